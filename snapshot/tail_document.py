"""Tails: what nodes have committed since the newest checkpoint, for readers that do not wait for the next.

Every few seconds a node puts one object for all groups that it leads. For each group it has a section: either
the group's state after one entry of its log, or the entries that follow the section before. With the newest
checkpoint, or a state in a tail, the entries behind it give a newer state; whatever is missing between two
sections leaves a reader with the older one. See docs/checkpoints.md, "Tails".

A tail belongs to one incarnation of its cluster: in one restored from the storage, the tails of the life
before tell of what was lost.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgpack

from strandline.snapshot.log_document import LogEntry, read_entries
from strandline.snapshot.names import CLUSTER_NAME, cluster_prefix

PREFIX: Final = "tails/"
OWNER_NAME: Final = "cluster"
"""The object that says whose the storage is, and of which incarnation."""
MAGIC: Final = b"STRTAIL\x01"
FORMAT: Final = 1
_DIGEST_BYTES: Final = 32
_FIELDS: Final = [int, str, int, list]
_SECTION: Final = ([str, int, int, int, bytes, bytes], [str, int, int, int, type(None), bytes])
_NAME: Final = re.compile(
    rf"{PREFIX}{CLUSTER_NAME}/[A-Za-z0-9_.=+-]+/([0-9]{{15}})-([1-9][0-9]{{0,4}})-[0-9a-f]{{8}}"
)


class TailDamaged(ValueError):
    """The bytes are not a whole, unchanged tail."""


class TailTooNew(ValueError):
    """The tail was written by a newer release than this one can read."""


class Section(NamedTuple):
    """One group's part of a tail: from the entry `after` to the entry `log_index` of its log."""

    kind: str
    """Kind of the group's state machine."""
    group: int
    after: int
    log_index: int
    state: bytes | None
    """The state after the entry `after`; None: the entries go on from what the reader has."""
    entries: bytes
    """Entries above `after`, up to `log_index`, packed as in a LogDocument."""

    def read(self) -> list[LogEntry]:
        """The entries, in order; raises LogDamaged."""
        return read_entries(self.entries, self.after, self.log_index) if self.log_index > self.after else []


class TailName(NamedTuple):
    """The time at which a tail was made, in Unix ms by the clock that most nodes agree on, and the node."""

    made_ms: int
    node: int


def tails_prefix(cluster: str) -> str:
    """Prefix of the names of all tails of a cluster; raises ValueError as `cluster_prefix` does."""
    cluster_prefix(cluster)
    return f"{PREFIX}{cluster}/"


def life_prefix(cluster: str, incarnation: str) -> str:
    """Prefix of the tails of one incarnation: colons are left out, which stores do not take."""
    return f"{tails_prefix(cluster)}{incarnation.replace(':', '')}/"


def tail_name(cluster: str, incarnation: str, made_ms: int, node: int, unique: int) -> str:
    """`tails/<cluster>/<incarnation>/<made_ms, 15 digits>-<node>-<unique, 8 hexadecimal digits>`.

    A listing of an incarnation's is in the order of time. `unique` is drawn, since a clock may go back.
    """
    return f"{life_prefix(cluster, incarnation)}{made_ms:015d}-{node}-{unique:08x}"


def parse_tail_name(name: str) -> TailName:
    """Read a name back; raises ValueError for anything that `tail_name` does not give."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"{name!r} is not the name of a tail")
    return TailName(int(match[1]), int(match[2]))


@dataclass(frozen=True, slots=True)
class TailDocument:
    """One node's tail."""

    cluster: str
    node: int
    sections: Sequence[Section]

    def encode(self) -> bytes:
        """Magic, SHA-256 of the rest, and one msgpack array."""
        body: bytes = msgpack.packb([FORMAT, self.cluster, self.node, self.sections])
        return b"".join((MAGIC, hashlib.sha256(body).digest(), body))


def decode_tail(data: bytes) -> TailDocument:
    """Read a tail back; raises TailDamaged if a byte is missing or changed, TailTooNew for a later format."""
    header = len(MAGIC) + _DIGEST_BYTES
    if len(data) < header or data[: len(MAGIC)] != MAGIC:
        raise TailDamaged("it does not begin with a tail's magic bytes: not a tail, or damaged")
    body = memoryview(data)[header:]
    if hashlib.sha256(body).digest() != data[len(MAGIC) : header]:
        raise TailDamaged("the tail's SHA-256 digest does not match its content")
    try:
        fields: Any = msgpack.unpackb(body, max_bin_len=len(body), max_array_len=1 << 20)
    except Exception as error:
        raise TailDamaged(f"the tail's fields cannot be read: {error}") from error
    if not isinstance(fields, list) or not fields or not isinstance(fields[0], int):
        raise TailDamaged("the tail has no format version")
    if fields[0] > FORMAT:
        raise TailTooNew(f"the tail has format {fields[0]}, this release reads up to {FORMAT}: upgrade it")
    if [type(field) for field in fields] != _FIELDS:
        raise TailDamaged("the tail does not have the fields of its format")
    _, cluster, node, rows = fields
    for row in rows:
        if not isinstance(row, list) or [type(field) for field in row] not in _SECTION or row[2] > row[3]:
            raise TailDamaged("the tail holds something that is not a section")
    return TailDocument(cluster, node, [Section(*row) for row in rows])


def read_incarnation(owner: bytes) -> str:
    """The incarnation that the object OWNER_NAME names; raises ValueError if it names none."""
    try:
        return str(json.loads(owner)["incarnation"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"the object {OWNER_NAME!r} does not name an incarnation: {error!r}") from None
