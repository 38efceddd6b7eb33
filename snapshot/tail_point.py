"""Tail points: restore points whose states are in tails, a few seconds old instead of an hour.

A restore point of documents costs an entry in every group's log and two objects for each replica, so that
one is taken now and then. A tail point costs one object. It names an entry of each group's log, and the tails
that are in the storage lead to the state after that entry. The entries were chosen while no transaction was
decided, in the order in which a restore point's documents are taken; docs/restore.md, "Tail points".
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgpack

from strandline.snapshot.names import CLUSTER_NAME, cluster_prefix

PREFIX: Final = "restore/"
MAGIC: Final = b"STRTPNT\x01"
FORMAT: Final = 1
READ_POINTS: Final = 3
"""Tail points that a restore reads, the newest ones: where a later one cannot be read, an earlier one may do.
A restored cluster keeps what they need until it has one of its own."""
_DIGEST_BYTES: Final = 32
_FIELDS: Final = [int, str, str, int, int, int, int, list, list]
_NAME: Final = re.compile(rf"{PREFIX}{CLUSTER_NAME}/tails/([0-9]{{20}})-([0-9]{{15}})")


class TailPointDamaged(ValueError):
    """The object is not what was written as a tail point."""


class TailPointTooNew(ValueError):
    """The tail point was written by a newer release than this one can read."""


class GroupEntry(NamedTuple):
    """The entry of one group's log up to which it is restored."""

    group: int
    log_index: int
    term: int
    """Of the group when the entry was chosen."""
    node: int
    """The node that led the group."""


class TailPointName(NamedTuple):
    """A tail point as its name tells of it. The order of these is that in which the points were taken."""

    number: int
    taken_ms: int


@dataclass(frozen=True, slots=True)
class TailPoint:
    """One state of the whole cluster, by the entries of its groups."""

    cluster: str
    incarnation: str
    number: int
    """The controller's last applied entry, so that it goes on with the numbers of restore points; several
    tail points may have the same, while the controller's log has nothing new."""
    taken_ms: int
    """Unix ms, by the clock that most nodes agreed on, before the first entry was chosen: whatever was
    acknowledged by then is in the point."""
    cluster_epoch: int
    interval_ms: int
    """`publish.seconds` of the node that took it: the time until the next, where all goes well."""
    floors: tuple[tuple[int, int], ...]
    """For each node the time in the name of the first tail of its that a restore may need."""
    groups: tuple[GroupEntry, ...]
    """The controller's group and every group that it knew, by group."""

    @property
    def name(self) -> str:
        """See `tail_point_name`."""
        return tail_point_name(self.cluster, self.number, self.taken_ms)

    def encode(self) -> bytes:
        """Magic, SHA-256 of the rest, and one msgpack array."""
        body: bytes = msgpack.packb(
            [
                FORMAT,
                self.cluster,
                self.incarnation,
                self.number,
                self.taken_ms,
                self.cluster_epoch,
                self.interval_ms,
                self.floors,
                self.groups,
            ]
        )
        return b"".join((MAGIC, hashlib.sha256(body).digest(), body))


def tail_points_prefix(cluster: str) -> str:
    """Prefix of the names of a cluster's tail points; a listing gives them in their order. Raises ValueError
    as `cluster_prefix` does."""
    cluster_prefix(cluster)
    return f"{PREFIX}{cluster}/tails/"


def tail_point_name(cluster: str, number: int, taken_ms: int) -> str:
    """`restore/<cluster>/tails/<number, 20 digits>-<taken_ms, 15 digits>`."""
    return f"{tail_points_prefix(cluster)}{number:020d}-{taken_ms:015d}"


def parse_tail_point_name(name: str) -> TailPointName | None:
    """Read a name back; None for the name of anything else."""
    match = _NAME.fullmatch(name)
    return None if match is None else TailPointName(int(match[1]), int(match[2]))


def decode_tail_point(data: bytes) -> TailPoint:
    """Read a tail point; raises TailPointDamaged, and TailPointTooNew for a later format."""
    header = len(MAGIC) + _DIGEST_BYTES
    if len(data) < header or data[: len(MAGIC)] != MAGIC:
        raise TailPointDamaged("it does not begin with a tail point's magic bytes")
    body = memoryview(data)[header:]
    if hashlib.sha256(body).digest() != data[len(MAGIC) : header]:
        raise TailPointDamaged("its SHA-256 digest does not match its content")
    try:
        fields: Any = msgpack.unpackb(body, max_array_len=1 << 24)
    except Exception as error:
        raise TailPointDamaged(f"its fields cannot be read: {error}") from error
    if not isinstance(fields, list) or not fields or not isinstance(fields[0], int):
        raise TailPointDamaged("it has no format version")
    if fields[0] > FORMAT:
        raise TailPointTooNew(f"it has format {fields[0]}, this release reads up to {FORMAT}: upgrade it")
    if [type(field) for field in fields] != _FIELDS:
        raise TailPointDamaged("it does not have the fields of its format")
    _, cluster, incarnation, number, taken_ms, cluster_epoch, interval_ms, floors, groups = fields
    if not all(_are_numbers(row, 2) for row in floors) or not all(_are_numbers(row, 4) for row in groups):
        raise TailPointDamaged("a row of it is not what its format has")
    return TailPoint(
        cluster,
        incarnation,
        number,
        taken_ms,
        cluster_epoch,
        interval_ms,
        tuple((node, made_ms) for node, made_ms in floors),
        tuple(GroupEntry(*row) for row in groups),
    )


def _are_numbers(row: Any, count: int) -> bool:
    return isinstance(row, list) and [type(value) for value in row] == [int] * count
