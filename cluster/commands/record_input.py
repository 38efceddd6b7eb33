"""Input of `strandline produce`: each line is one record: a plain value, a key and a value, or JSON."""

from __future__ import annotations

import base64
import binascii
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from strandline.cluster.failure import MISUSED, CommandFailed

LINE_LIMIT: Final = 64 * 1024 * 1024
FORMATS: Final = ("value", "json")
_MAX_MILLISECONDS: Final = 2**63 - 1
_TAKEN: Final = frozenset(("key", "key_base64", "value", "value_base64", "headers", "timestamp_ms"))
_LEFT_OUT: Final = frozenset(("topic", "partition", "offset", "leader_epoch"))
"""Fields of a record's place in the output of `consume --format json`: a produced record gets a new place."""

Header = tuple[str, bytes | None]


@dataclass(frozen=True, slots=True)
class Record:
    """One record to be sent; a `value` of None is a tombstone, a `timestamp_ms` of None is now."""

    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()
    timestamp_ms: int | None = None


class BadLine(ValueError):
    """A line is no record; `str()` says why, `cure` what to do."""

    def __init__(self, why: str, cure: str) -> None:
        super().__init__(why)
        self.cure = cure


def reader(
    form: str, key: str | None, separator: str | None, headers: list[str], tombstone: bool
) -> Callable[[bytes], Record]:
    """Give the function that parses a line into a record, by the options; that function raises BadLine.

    Raises CommandFailed for options that exclude each other.
    """
    if form not in FORMATS:
        raise CommandFailed(f"there is no format {form}", f"use {' or '.join(FORMATS)}", MISUSED)
    if separator == "":
        raise CommandFailed("an empty --key-separator separates nothing", "leave it out", MISUSED)
    given = {
        "--key": key is not None,
        "--key-separator": separator is not None,
        "--tombstone": tombstone,
        "--format json": form == "json",
    }
    # --tombstone with --key needs no input at all, and is one record.
    said = [option for option, there in given.items() if there and not (option == "--key" and tombstone)]
    if len(said) > 1:
        raise CommandFailed(
            f"{' and '.join(said)} exclude each other", "leave all but one of them out", MISUSED
        )
    all_have = tuple(_header(text) for text in headers)
    if form == "json":
        return lambda line: _of_json(line, all_have)
    if tombstone:
        return lambda line: Record(line, None, all_have)
    if separator is not None:
        mark = separator.replace("\\t", "\t").encode()
        return lambda line: _of_pair(line, mark, all_have)
    same_key = None if key is None else key.encode()
    return lambda line: Record(same_key, line, all_have)


@contextmanager
def lines(file: Path | None) -> Iterator[Iterator[bytes]]:
    """The lines of a file or of stdin, without their ends; CommandFailed for one that is too long."""
    if file is None:
        yield _split(sys.stdin.buffer)
        return
    try:
        opened = file.open("rb")
    except OSError as error:
        raise CommandFailed(
            f"{file} cannot be read ({error.strerror})", "name another file", MISUSED
        ) from None
    with opened:
        yield _split(opened)


def _split(source: BinaryIO) -> Iterator[bytes]:
    try:
        while line := source.readline(LINE_LIMIT + 1):
            if len(line) > LINE_LIMIT:
                raise CommandFailed(
                    "a line is longer than 64 MiB", "records are smaller; is this a text?", MISUSED
                )
            yield line.removesuffix(b"\n").removesuffix(b"\r")
    except OSError as error:
        raise CommandFailed(f"the input cannot be read ({error.strerror})", "name a file", MISUSED) from None


def _of_pair(line: bytes, separator: bytes, headers: tuple[Header, ...]) -> Record:
    key, found, value = line.partition(separator)
    if not found:
        raise BadLine("has no key separator", "correct the line, or leave --key-separator out")
    return Record(key, value, headers)


def _of_json(line: bytes, headers: tuple[Header, ...]) -> Record:
    cure = "write objects as `consume --format json` does, one a line"
    try:
        plain = json.loads(line)
    except (ValueError, RecursionError):
        raise BadLine("is not JSON", cure) from None
    if not isinstance(plain, dict):
        raise BadLine("is not a JSON object", cure)
    unknown = plain.keys() - _TAKEN - _LEFT_OUT
    if unknown:
        raise BadLine(
            f"has a field {min(unknown)!r}, which no record has", f"use {', '.join(sorted(_TAKEN))}"
        )
    own = plain.get("headers") or []
    if not isinstance(own, list) or not all(
        isinstance(each, dict) and isinstance(each.get("name"), str) for each in own
    ):
        raise BadLine("has headers that are not a list of objects with a name and a value", cure)
    moment = plain.get("timestamp_ms")
    if moment is not None and (
        isinstance(moment, bool) or not isinstance(moment, int) or not 0 <= moment <= _MAX_MILLISECONDS
    ):
        raise BadLine("has a timestamp_ms that is not a time", "write milliseconds since 1970")
    try:
        named = tuple((each["name"], _field(each, "value")) for each in own)
        return Record(_field(plain, "key"), _field(plain, "value"), (*named, *headers), moment)
    except UnicodeEncodeError:
        raise BadLine(
            "has text that is no Unicode", "give bytes as base64, in key_base64 or value_base64"
        ) from None


def _field(plain: dict[str, Any], name: str) -> bytes | None:
    """Text as UTF-8, base64 as its bytes, another value of JSON as its text."""
    coded = plain.get(f"{name}_base64")
    if coded is not None:
        if plain.get(name) is not None:
            raise BadLine(f"has {name} and {name}_base64", "leave one of them out")
        try:
            return base64.b64decode(coded, validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise BadLine(f"has a {name}_base64 that is not base64", "correct it") from None
    value = plain.get(name)
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode()


def _header(text: str) -> Header:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise CommandFailed(f"--header {text} has no name and value", "write --header NAME=VALUE", MISUSED)
    return name, value.encode()
