"""A snapshot at rest: one msgpack document and a digest over it.

The document says what it is (format, cluster, group, kind), where in the log it stands (index, term), the
members at that index, and holds the machine's state. It does not say which node wrote it: replicas
at one index write the same bytes, so they can be compared without being understood.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import msgpack

MAGIC = b"STRSNAP\x01"
FORMAT_VERSION = 2
"""The newest, whose members have folders. A document without folders is of the first, which has none."""
DIGEST_BYTES = 32
_FIELDS = [str, str, int, int, int, list, list, bytes]
_PAIRS = 7
"""Place of the members' folders in the second format, just before the state."""


class SnapshotDamaged(ValueError):
    """The bytes are not a whole, unchanged snapshot document."""


class SnapshotTooNew(ValueError):
    """The document was written by a newer release than this one can read."""


@dataclass(frozen=True, slots=True)
class SnapshotDocument:
    """One replica group's state after applying `index`, the entry of term `term`."""

    cluster: str
    kind: str
    group: int
    index: int
    term: int
    voters: tuple[int, ...]
    learners: tuple[int, ...]
    state: bytes
    folders: tuple[tuple[int, int], ...] = ()
    """(node, identity of its data folder) of members, by node; none in what is published to the storage."""

    def parts(self) -> tuple[bytes, bytes]:
        """Canonical bytes as (all before the state, the state): magic, SHA-256 of the body, body.

        The state, which may be large, is hashed and written where it lies: packing it would copy it, more
        than once, while the event loop waits for the interpreter.
        """
        head: bytes = msgpack.packb(
            [
                FORMAT_VERSION if self.folders else 1,
                self.cluster,
                self.kind,
                self.group,
                self.index,
                self.term,
                list(self.voters),
                list(self.learners),
                *([[number for pair in self.folders for number in pair]] if self.folders else []),
                b"",
            ]
        )
        head = head[: -len(_EMPTY_BIN)] + _bin_header(len(self.state))
        digest = hashlib.sha256(head)
        digest.update(self.state)
        return b"".join((MAGIC, digest.digest(), head)), self.state

    def encode(self) -> bytes:
        """The parts in one."""
        return b"".join(self.parts())


_EMPTY_BIN = b"\xc4\x00"


def _bin_header(size: int) -> bytes:
    """msgpack's shortest header of a byte string, as packers write it."""
    if size < 1 << 8:
        return b"\xc4" + size.to_bytes(1, "big")
    if size < 1 << 16:
        return b"\xc5" + size.to_bytes(2, "big")
    return b"\xc6" + size.to_bytes(4, "big")


def decode(data: bytes | memoryview) -> SnapshotDocument:
    """Read a document back.

    Raises SnapshotDamaged when a byte is missing or changed, SnapshotTooNew for a later format.
    """
    view = memoryview(data)
    header = len(MAGIC) + DIGEST_BYTES
    if len(view) < header:
        raise SnapshotDamaged(f"snapshot is cut short: {len(view)} bytes, a header alone has {header}")
    if bytes(view[: len(MAGIC)]) != MAGIC:
        raise SnapshotDamaged("snapshot does not begin with the magic bytes: not a snapshot, or damaged")
    body = view[header:]
    if hashlib.sha256(body).digest() != bytes(view[len(MAGIC) : header]):
        raise SnapshotDamaged("snapshot's SHA-256 digest does not match its content")
    fields = msgpack.unpackb(body, strict_map_key=True, max_bin_len=len(view), max_array_len=1 << 16)
    if not isinstance(fields, list) or not fields or not isinstance(fields[0], int):
        raise SnapshotDamaged("snapshot document has no format version")
    if fields[0] > FORMAT_VERSION:
        raise SnapshotTooNew(
            f"snapshot has format {fields[0]}, this release reads up to {FORMAT_VERSION}: upgrade this node"
        )
    version, *fields = fields
    folders = fields.pop(_PAIRS) if version > 1 and len(fields) > _PAIRS else []
    if [type(field) for field in fields] != _FIELDS or type(folders) is not list or len(folders) % 2:
        raise SnapshotDamaged("snapshot document does not have the fields of its format")
    cluster, kind, group, index, term, voters, learners, state = fields
    pairs = tuple(zip(folders[::2], folders[1::2], strict=True))
    return SnapshotDocument(cluster, kind, group, index, term, tuple(voters), tuple(learners), state, pairs)
