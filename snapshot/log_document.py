"""A group's log between two checkpoints, at rest: what leads from one published state to the next.

With it an audit can apply the entries to the earlier state and compare the outcome with the later one, long
after the nodes have dropped their logs. It holds what the state machine was given, entry by entry, under one
digest; like a snapshot it does not name its writer. Changes of membership are no entries of a machine, so
indexes may skip.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgpack

MAGIC = b"STRLOG\x00\x01"
FORMAT_VERSION = 1
DIGEST_BYTES = 32
_FIELDS = [int, str, str, int, int, int]
_packer = msgpack.Packer()


class LogDamaged(ValueError):
    """The bytes are not a whole, unchanged log."""


class LogTooNew(ValueError):
    """The log was written by a newer release than this one can read."""


class LogEntry(NamedTuple):
    """One entry as the machine got it: `given` is a command's bytes, or the node whose term begins."""

    log_index: int
    term: int
    given: bytes | int


@dataclass(frozen=True, slots=True)
class LogDocument:
    """The entries above `after` up to `index` of one group; `entries` is packed entries, joined."""

    cluster: str
    kind: str
    group: int
    after: int
    index: int
    entries: bytes | bytearray

    def parts(self) -> tuple[bytes, bytes | bytearray]:
        """Canonical bytes as (all before the entries, the entries): magic, SHA-256 of the rest, the rest."""
        head: bytes = msgpack.packb(
            [FORMAT_VERSION, self.cluster, self.kind, self.group, self.after, self.index]
        )
        digest = hashlib.sha256(head)
        digest.update(self.entries)
        return b"".join((MAGIC, digest.digest(), head)), self.entries

    def encode(self) -> bytes:
        """The parts in one."""
        return b"".join(self.parts())

    def read(self) -> list[LogEntry]:
        """The entries, in order; raises LogDamaged when they are not what `pack_entry` gave, or not in
        (after, index]."""
        return read_entries(self.entries, self.after, self.index)


def read_entries(packed: bytes | bytearray, after: int, index: int) -> list[LogEntry]:
    """The entries of packed ones, joined, in order: above `after`, the last one `index`.

    Raises LogDamaged when they are not what `pack_entry` gave, or others.
    """
    unpacker = msgpack.Unpacker(max_buffer_size=max(len(packed), 1))
    unpacker.feed(packed)
    try:
        entries = [LogEntry(*entry) for entry in unpacker]
    except Exception as error:
        raise LogDamaged(f"the log's entries cannot be read: {error}") from error
    return _checked(entries, after, index)


def pack_entry(index: int, term: int, given: bytes | int) -> bytes:
    """One entry as a log holds it; a log is these, joined."""
    packed: bytes = _packer.pack((index, term, given))
    return packed


def _checked(entries: Sequence[LogEntry], after: int, index: int) -> list[LogEntry]:
    last = after
    for entry in entries:
        if [type(field) for field in entry[:2]] != [int, int] or not isinstance(entry.given, (bytes, int)):
            raise LogDamaged("the log holds something that is not an entry")
        if entry.log_index <= last:
            raise LogDamaged(f"entry {entry.log_index} comes after entry {last}")
        last = entry.log_index
    if last != index:
        raise LogDamaged(f"the log ends at entry {last}, not at {index}")
    return list(entries)


def decode_log(data: bytes | memoryview) -> LogDocument:
    """Read a log back; raises LogDamaged when a byte is missing or changed, LogTooNew for a later format."""
    view = memoryview(data)
    header = len(MAGIC) + DIGEST_BYTES
    if len(view) < header or bytes(view[: len(MAGIC)]) != MAGIC:
        raise LogDamaged("it does not begin with a log's magic bytes: not a log, or damaged")
    body = view[header:]
    if hashlib.sha256(body).digest() != bytes(view[len(MAGIC) : header]):
        raise LogDamaged("the log's SHA-256 digest does not match its content")
    unpacker = msgpack.Unpacker(max_buffer_size=len(body) + 1)
    unpacker.feed(body)
    try:
        fields: Any = unpacker.unpack()
    except Exception as error:
        raise LogDamaged(f"the log's fields cannot be read: {error}") from error
    if not isinstance(fields, list) or not fields or not isinstance(fields[0], int):
        raise LogDamaged("the log has no format version")
    if fields[0] > FORMAT_VERSION:
        raise LogTooNew(
            f"the log has format {fields[0]}, this release reads up to {FORMAT_VERSION}: upgrade it"
        )
    if [type(field) for field in fields] != _FIELDS:
        raise LogDamaged("the log does not have the fields of its format")
    _, cluster, kind, group, after, index = fields
    return LogDocument(cluster, kind, group, after, index, bytes(body[unpacker.tell() :]))
