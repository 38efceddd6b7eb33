"""Output of `strandline consume`: plain records for a pipe, JSON for a program."""

from __future__ import annotations

import base64
import json
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from confluent_kafka import Message

FORMATS: Final = ("value", "key-value", "full", "json")
_CREATE_TIME: Final = 1  # Kafka's TimestampType
_LOG_APPEND_TIME: Final = 2


class RecordWriter:
    """Writes records to stdout in one of FORMATS."""

    def __init__(self, form: str) -> None:
        self._write = sys.stdout.buffer.write
        self._text = {"value": _value, "key-value": _key_value, "full": _full, "json": _json}[form]

    def write(self, message: Message) -> None:
        """One record and a line break."""
        self._write(self._text(message) + b"\n")

    def flush(self) -> None:
        """Let a reader behind a pipe have it; BrokenPipeError when there is none any more."""
        sys.stdout.buffer.flush()


def _value(message: Message) -> bytes:
    return _bytes(message.value()) or b""


def _key_value(message: Message) -> bytes:
    return (_bytes(message.key()) or b"") + b"\t" + _value(message)


def _full(message: Message) -> bytes:
    kind, milliseconds = message.timestamp()
    moment = "-"
    if kind in (_CREATE_TIME, _LOG_APPEND_TIME):
        moment = datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")
    key, value = _bytes(message.key()), _bytes(message.value())
    head = f"{message.partition()}:{message.offset()} {moment}".encode()
    named = b"".join(
        b" " + name.encode() + (b"" if value is None else b"=" + value) for name, value in _headers(message)
    )
    return b" ".join((head, b"-" if key is None else key, b"-" if value is None else value)) + named


def _json(message: Message) -> bytes:
    kind, milliseconds = message.timestamp()
    plain: dict[str, Any] = {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp_ms": milliseconds if kind in (_CREATE_TIME, _LOG_APPEND_TIME) else None,
        "leader_epoch": message.leader_epoch(),
        **_named("key", _bytes(message.key())),
        **_named("value", _bytes(message.value())),
    }
    headers = _headers(message)
    if headers:
        plain["headers"] = [{"name": name, **_named("value", value)} for name, value in headers]
    return json.dumps(plain, ensure_ascii=False).encode()


def _headers(message: Message) -> list[tuple[str, bytes | None]]:
    # librdkafka gives a list of pairs, whatever else its types allow for what one hands to it.
    return cast("list[tuple[str, bytes | None]] | None", message.headers()) or []


def _named(name: str, data: bytes | None) -> dict[str, str | None]:
    """Text under its name; other bytes in base64 under the name with `_base64` behind it."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
