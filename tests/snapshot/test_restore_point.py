"""Restore points and records of attempts as objects: read back as written, and refused when damaged."""

from __future__ import annotations

import json

import pytest

from strandline.snapshot.restore_point import (
    GroupState,
    RestoreAttempt,
    RestorePoint,
    RestorePointDamaged,
    attempt_name,
    attempt_number,
    decode_attempt,
    decode_point,
    point_name,
    point_number,
    points_prefix,
)

POINT = RestorePoint(
    "harbour", "2026-01-01T00:00:00Z-1", 7, 1_000, 12, 2, (GroupState(0, 9, 1), GroupState(3, 5, 2))
)
ATTEMPT = RestoreAttempt("harbour", 3, 7, "2026-01-02T00:00:00Z-2", 4)


def test_what_is_written_is_read() -> None:
    assert decode_point(POINT.encode()) == POINT
    assert decode_attempt(ATTEMPT.encode()) == ATTEMPT


def test_names_are_in_the_order_of_numbers() -> None:
    names = [point_name("harbour", number) for number in (1, 9, 10, 11_000)]
    assert names == sorted(names)
    assert [point_number(name) for name in names] == [1, 9, 10, 11_000]
    assert attempt_number(attempt_name("harbour", 3, 5)) == 3
    assert point_number(attempt_name("harbour", 3, 5)) is attempt_number(names[0]) is None
    with pytest.raises(ValueError, match="cannot stand in an object's name"):
        points_prefix("a/b")


@pytest.mark.parametrize("at", [0, 5, 40, 100, -2])
def test_a_changed_byte_is_found(at: int) -> None:
    data = bytearray(POINT.encode())
    data[at] ^= 1
    with pytest.raises(RestorePointDamaged):
        decode_point(bytes(data))


def test_another_content_or_format_is_refused() -> None:
    with pytest.raises(RestorePointDamaged, match="format 2, and this release reads 1"):
        decode_point(ATTEMPT.encode())
    with pytest.raises(RestorePointDamaged, match="format 1, and this release reads 2"):
        decode_attempt(POINT.encode())
    outer = json.loads(POINT.encode())
    later = outer["restore"].replace('"format": 1', '"format": 2')
    from zlib import crc32

    with pytest.raises(RestorePointDamaged, match="format 2, and this release reads 1"):
        decode_point(json.dumps({"crc32": crc32(later.encode()), "restore": later}).encode())
