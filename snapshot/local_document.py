"""The records of some keys in one replica's own log of a compacted partition, published beside a checkpoint.

The rest of a checkpoint is the same on every replica. Local logs are not: each replica cleans its own, in its
own time, and only the tables that they give must be equal. So a document has the records of a share of all
keys, and an audit compares the tables. A key counts by its BLAKE2b-128, and the share is that of the lowest
hashes: every replica takes the same keys.

magic | SHA-256 of the rest | msgpack of the fields | rows
"""

from __future__ import annotations

import hashlib
from typing import Any, Final, NamedTuple

import msgpack

MAGIC: Final = b"STRLOCAL"
FORMAT_VERSION: Final = 1
DIGEST_BYTES: Final = 32
KEY_BYTES: Final = 16
MAX_SHARE_BITS: Final = 64
ROW_BYTES: Final = KEY_BYTES + 8 + 1
"""Of a record: the hash of its key, its offset, and whether it deletes its key; see `local_rows`."""


class LocalDocumentDamaged(ValueError):
    """The bytes are not a whole, unchanged local document, or of a later format."""


class LocalDocument(NamedTuple):
    """The rows of a local log as it was when the replica applied the checkpoint's entry."""

    cluster: str
    group: int
    log_index: int
    reset_index: int
    """Log index that was applied when the log was last reset."""
    floor: int
    """The MTRO that was applied when the log was last empty and began to be filled."""
    floor_markers: int
    """The MXRO of that moment."""
    start_offset: int
    clean_end: int
    log_end: int
    share_bits: int
    """The rows have the records of those keys whose hashes begin with this many zero bits; see `bound`."""
    rows: bytes
    """Of ROW_BYTES each, in the order of their offsets."""

    def encode(self) -> bytes:
        """Canonical bytes."""
        body = msgpack.packb([FORMAT_VERSION, *self[:-1]]) + self.rows
        return MAGIC + hashlib.sha256(body).digest() + body


def key_hash(key: bytes) -> bytes:
    """The BLAKE2b-128 that stands for a key."""
    return hashlib.blake2b(key, digest_size=KEY_BYTES).digest()


def bound(share_bits: int) -> bytes:
    """All hashes that begin with this many zero bits sort below this, and no other hash does."""
    if not share_bits:
        return b"\xff" * (KEY_BYTES + 1)
    return (1 << 8 * KEY_BYTES - share_bits).to_bytes(KEY_BYTES, "big")


def decode_local(data: bytes) -> LocalDocument:
    """Read a document back; raises LocalDocumentDamaged."""
    header = len(MAGIC) + DIGEST_BYTES
    if len(data) < header or not data.startswith(MAGIC):
        raise LocalDocumentDamaged("it does not begin with a local document's magic bytes, or is cut")
    body = memoryview(data)[header:]
    if hashlib.sha256(body).digest() != data[len(MAGIC) : header]:
        raise LocalDocumentDamaged("its SHA-256 digest does not match its content")
    unpacker = msgpack.Unpacker(max_buffer_size=len(data) + 1)
    unpacker.feed(body)
    try:
        version, *fields = unpacker.unpack()
        if version > FORMAT_VERSION:
            raise LocalDocumentDamaged(f"it has format {version}, this release reads {FORMAT_VERSION}")
        rows = bytes(body[unpacker.tell() :])
        document = LocalDocument._make([*fields, rows])
        _check(document)
    except LocalDocumentDamaged:
        raise
    except Exception as error:
        raise LocalDocumentDamaged(f"its fields cannot be read: {error!r}") from error
    return document


def _check(document: LocalDocument) -> None:
    cluster, *numbers, _ = tuple[Any, ...](document)
    if not isinstance(cluster, str) or not all(type(one) is int and one >= 0 for one in numbers):
        raise LocalDocumentDamaged("its fields are not those of its format")
    if document.share_bits > MAX_SHARE_BITS or len(document.rows) % ROW_BYTES:
        raise LocalDocumentDamaged("its rows are not those of its format")
