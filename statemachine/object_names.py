"""Names of level-zero objects.

The epoch comes first within a shard, zero-padded, so that listing order is epoch order and a collector can
stop at the first name it must keep. A partition's state keeps the epoch as a number and the rest as a
20-byte id: a third of the name's size, and a name whose epoch contradicts its extent cannot be written down.
"""

from __future__ import annotations

import re
import struct
from typing import NamedTuple

PREFIX = "l0/"
OBJECT_ID_BYTES = 20
_ID = struct.Struct(">HH16s")
_NAME = re.compile(r"l0/([0-9a-f]{4})/([0-9]{20})/([1-9][0-9]{0,4})-([0-9a-f]{32})")


class ParsedName(NamedTuple):
    """The two halves of a name, as extents keep them."""

    epoch: int
    object_id: bytes


def object_id(shard: int, node: int, unique: bytes) -> bytes:
    """The id of an object: its shard of the key space (0..65535), the writing node, 16 unique bytes."""
    if len(unique) != 16:
        raise ValueError(f"an object id needs 16 unique bytes, not {len(unique)}")
    return _ID.pack(shard, node, unique)


def object_name(epoch: int, identity: bytes) -> str:
    """`l0/<shard>/<epoch, 20 digits>/<node>-<32 hex digits>`."""
    shard, node, unique = _ID.unpack(identity)
    return f"{PREFIX}{shard:04x}/{epoch:020d}/{node}-{unique.hex()}"


def shard_prefix(shard: int) -> str:
    """Prefix of every name of one shard; a listing of it gives the shard's objects in epoch order."""
    return f"{PREFIX}{shard:04x}/"


def parse_object_name(name: str) -> ParsedName:
    """Read a name back; raises ValueError for anything `object_name` does not give."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"{name!r} is not the name of a level-zero object")
    shard, epoch, node, unique = match.groups()
    if int(node) > 0xFFFF:
        raise ValueError(f"{name!r} names node {node}, ids go up to 65535")
    return ParsedName(int(epoch), _ID.pack(int(shard, 16), int(node), bytes.fromhex(unique)))
