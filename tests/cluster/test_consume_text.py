"""Where `consume` begins, and how it writes what it finds."""

from __future__ import annotations

import base64
import io
import json
import sys
from typing import Any

import pytest

from strandline.cluster.commands.consume import parse_start
from strandline.cluster.commands.record_text import RecordWriter
from strandline.cluster.failure import CommandFailed

NOW = 1_000_000.0


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("beginning", ("beginning", 0)),
        ("end", ("end", 0)),
        ("0", ("offset", 0)),
        ("120", ("offset", 120)),
        ("90s", ("time", 999_910_000)),
        ("15m", ("time", 999_100_000)),
        ("2h", ("time", 992_800_000)),
        ("7d", ("time", 395_200_000)),
        ("2026-01-31T12:00:00Z", ("time", 1_769_860_800_000)),
        ("2026-01-31T12:00:00.250+02:00", ("time", 1_769_853_600_250)),
    ],
)
def test_places_in_a_topic(text: str, start: tuple[str, int]) -> None:
    assert parse_start(text, NOW) == start


@pytest.mark.parametrize("text", ["", "-1", "soon", "15 m", "1.5h", "2026-13-01"])
def test_what_is_no_place(text: str) -> None:
    with pytest.raises(CommandFailed, match="is not a place in a topic; write beginning"):
        parse_start(text, NOW)


class FakeMessage:
    def __init__(self, key: bytes | None, value: bytes | None, headers: Any = None) -> None:
        self._key, self._value, self._headers = key, value, headers

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> Any:
        return self._headers

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return 2

    def offset(self) -> int:
        return 7

    def leader_epoch(self) -> int:
        return 3

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_769_860_800_250


def written(form: str, message: Any, monkeypatch: pytest.MonkeyPatch) -> bytes:
    data = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(data))
    writer = RecordWriter(form)
    writer.write(message)
    writer.flush()
    return data.getvalue()


@pytest.mark.parametrize(
    ("form", "key", "value", "text"),
    [
        ("value", b"k", b"v\xff", b"v\xff\n"),
        ("value", None, None, b"\n"),
        ("key-value", b"k\xff", b"v", b"k\xff\tv\n"),
        ("key-value", None, b"v", b"\tv\n"),
        ("full", b"k", None, b"2:7 2026-01-31T12:00:00.250+00:00 k -\n"),
    ],
)
def test_text(
    form: str, key: bytes | None, value: bytes | None, text: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert written(form, FakeMessage(key, value), monkeypatch) == text


def test_json_holds_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    message = FakeMessage("ü".encode(), b"\xff\x00", [("h", b"1"), ("h", None), ("b", b"\xfe")])
    assert json.loads(written("json", message, monkeypatch)) == {
        "topic": "t",
        "partition": 2,
        "offset": 7,
        "timestamp_ms": 1_769_860_800_250,
        "leader_epoch": 3,
        "key": "ü",
        "value_base64": base64.b64encode(b"\xff\x00").decode(),
        "headers": [
            {"name": "h", "value": "1"},
            {"name": "h", "value": None},
            {"name": "b", "value_base64": base64.b64encode(b"\xfe").decode()},
        ],
    }
