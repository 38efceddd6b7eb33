"""The names of what is published, and the format of a log at rest."""

from __future__ import annotations

import hashlib

import msgpack
import pytest

from strandline.snapshot.log_document import (
    DIGEST_BYTES,
    MAGIC,
    LogDamaged,
    LogDocument,
    LogEntry,
    LogTooNew,
    decode_log,
    pack_entry,
)
from strandline.snapshot.names import (
    LocalName,
    LogName,
    SnapshotName,
    cluster_prefix,
    local_name,
    log_name,
    parse_name,
    snapshot_name,
)

ENTRIES = b"".join((pack_entry(5, 2, 3), pack_entry(7, 2, b"command"), pack_entry(8, 2, b"")))
LOG = LogDocument("harbour", "partition", 7, 4, 8, ENTRIES)


def test_names_are_read_back_and_sort_in_log_order() -> None:
    first, second = snapshot_name("harbour", 7, 99, 3), snapshot_name("harbour", 7, 100, 12)
    between = log_name("harbour", 7, 99, 100)
    assert first == "snapshots/harbour/0000000007/00000000000000000099/3"
    assert between == "snapshots/harbour/0000000007/00000000000000000100/log-00000000000000000099"
    assert parse_name(first) == SnapshotName("harbour", 7, 99, 3)
    assert parse_name(between) == LogName("harbour", 7, 99, 100)
    of_log = local_name("harbour", 7, 100, 12)
    assert of_log == "snapshots/harbour/0000000007/00000000000000000100/12.local"
    assert parse_name(of_log) == LocalName("harbour", 7, 100, 12)
    assert sorted([between, of_log, second, first]) == [first, second, of_log, between]


@pytest.mark.parametrize(
    "name",
    [
        "snapshots/harbour/0000000007/00000000000000000099",
        "snapshots/harbour/7/00000000000000000099/3",
        "snapshots/harbour/0000000007/00000000000000000099/03",
        "snapshots/harbour/0000000007/00000000000000000099/3/",
        "snapshots/harbour/0000000007/00000000000000000099/3.locals",
        "snapshots/harbour/0000000007/00000000000000000099/log-00000000000000000098.local",
        "snapshots/har/bour/0000000007/00000000000000000099/3",
        "l0/0000/00000000000000000003/2-00000000000000000000000000000004",
    ],
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="not the name of a published checkpoint"):
        parse_name(name)


@pytest.mark.parametrize("cluster", ["", "a/b", ".hidden", "ä", "x" * 201])
def test_a_cluster_id_that_cannot_stand_in_a_name_is_refused(cluster: str) -> None:
    with pytest.raises(ValueError, match="cannot stand in an object's name"):
        cluster_prefix(cluster)


def test_a_log_is_read_back() -> None:
    assert decode_log(LOG.encode()) == LOG
    assert LOG.read() == [LogEntry(5, 2, 3), LogEntry(7, 2, b"command"), LogEntry(8, 2, b"")]


def test_every_changed_byte_and_every_cut_of_a_log_is_found() -> None:
    data = LOG.encode()
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1
        with pytest.raises(LogDamaged):
            decode_log(bytes(damaged))
        with pytest.raises(LogDamaged):
            decode_log(data[:position])


def test_a_newer_log_is_refused_by_name() -> None:
    body = msgpack.packb([2, "harbour", "partition", 7, 4, 8, "new"])
    with pytest.raises(LogTooNew, match="format 2, this release reads up to 1"):
        decode_log(MAGIC + hashlib.sha256(body).digest() + body)
    assert len(hashlib.sha256(body).digest()) == DIGEST_BYTES


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        (ENTRIES + pack_entry(8, 2, b""), "entry 8 comes after entry 8"),
        (pack_entry(4, 2, b""), "entry 4 comes after entry 4"),
        (pack_entry(5, 2, b""), "ends at entry 5, not at 8"),
        (b"", "ends at entry 4, not at 8"),
        (ENTRIES[:-1], "ends at entry 7, not at 8"),
        (msgpack.packb([8, 2]), "cannot be read"),
        (msgpack.packb([8, 2, "text"]), "not an entry"),
        (b"\x05", "cannot be read"),
    ],
)
def test_entries_that_cannot_be_a_log_are_refused(entries: bytes, reason: str) -> None:
    with pytest.raises(LogDamaged, match=reason):
        LogDocument("harbour", "partition", 7, 4, 8, entries).read()
