"""Restore points: which published states together are one state of the whole cluster.

A checkpoint has an index of its own for each group, and any set of them is not a state that a cluster can
go on from: a transaction might be in one partition and missing from another, or a group's offset beyond the
end of its partition. A restore point names, for each group, a document that was taken while no transaction
was decided, coordinators of groups before partitions, and coordinators of transactions after them
(docs/restore.md). It is put once all of these documents are in the storage.

Each attempt to restore leaves a record of its own beside the points, before it does anything: what it goes
on from (terms, epochs, ids) lies above all that the attempts before may have used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from zlib import crc32

from strandline.snapshot.names import CLUSTER_NAME, cluster_prefix

PREFIX: Final = "restore/"
FORMAT: Final = 1
ATTEMPT_FORMAT: Final = 2
"""1 counted steps from the attempt's own point; no release wrote it."""
_POINT: Final = re.compile(rf"{PREFIX}{CLUSTER_NAME}/points/([0-9]{{20}})")
_ATTEMPT: Final = re.compile(rf"{PREFIX}{CLUSTER_NAME}/attempts/([0-9]{{10}})(-[0-9a-f]{{16}})")


class RestorePointDamaged(ValueError):
    """The object is not what was written as a restore point, or as the record of an attempt."""


class GroupState(NamedTuple):
    """The published document of one group's state."""

    group: int
    log_index: int
    node: int
    """The node whose document it is; those of the other replicas have the same bytes."""


@dataclass(frozen=True, slots=True)
class RestorePoint:
    """One state of the whole cluster, by the names of its groups' documents."""

    cluster: str
    incarnation: str
    number: int
    """Log index of the controller's document, so that a point taken later has a higher one. Releases before
    counted points from 1, which is lower."""
    taken_ms: int
    """Unix ms, by the clock that most nodes agreed on, when the first document was asked for."""
    cluster_epoch: int
    """The cluster epoch when the last document was asked for."""
    attempts: int
    """Number of the newest attempt to restore this cluster; 0 before the first."""
    groups: tuple[GroupState, ...]
    """The controller's group and every group that it knew, by group."""

    def encode(self) -> bytes:
        """The object's content."""
        return _checked(
            {
                "format": FORMAT,
                "cluster": self.cluster,
                "incarnation": self.incarnation,
                "number": self.number,
                "taken_ms": self.taken_ms,
                "cluster_epoch": self.cluster_epoch,
                "attempts": self.attempts,
                "groups": [list(group) for group in self.groups],
            }
        )


@dataclass(frozen=True, slots=True)
class RestoreAttempt:
    """One attempt to restore a cluster."""

    cluster: str
    number: int
    point: int
    """Number of the restore point that it goes on from."""
    incarnation: str
    """Of the cluster that it makes."""
    lineage: int
    """The number of times that its numbers moved on since the first of the cluster's lives, which is 0; see
    docs/restore.md. It is higher than that of every attempt before."""

    def encode(self) -> bytes:
        """The object's content."""
        return _checked(
            {
                "format": ATTEMPT_FORMAT,
                "cluster": self.cluster,
                "number": self.number,
                "point": self.point,
                "incarnation": self.incarnation,
                "lineage": self.lineage,
            }
        )


def points_prefix(cluster: str) -> str:
    """Prefix of the names of a cluster's restore points; a listing gives them in their order."""
    return f"{_restore_prefix(cluster)}points/"


def attempts_prefix(cluster: str) -> str:
    """Prefix of the names of the records of attempts, in their order."""
    return f"{_restore_prefix(cluster)}attempts/"


def point_name(cluster: str, number: int) -> str:
    """`restore/<cluster>/points/<number, 20 digits>`."""
    return f"{points_prefix(cluster)}{number:020d}"


def attempt_name(cluster: str, number: int, unique: int) -> str:
    """`restore/<cluster>/attempts/<number, 10 digits>-<unique, 16 hex digits>`.

    Two attempts at once may have the same number. `unique`, of 64 bits, keeps their records apart, as the
    storage cannot refuse the second of two puts.
    """
    return f"{attempts_prefix(cluster)}{number:010d}-{unique:016x}"


def point_number(name: str) -> int | None:
    """Number of a restore point by its name; None for the name of anything else."""
    match = _POINT.fullmatch(name)
    return None if match is None else int(match.group(1))


def attempt_number(name: str) -> int | None:
    """Number of an attempt by the name of its record; None for the name of anything else."""
    match = _ATTEMPT.fullmatch(name)
    return None if match is None else int(match.group(1))


def decode_point(data: bytes) -> RestorePoint:
    """Read a restore point; raises RestorePointDamaged, which says what is wrong."""
    fields = _read(data, FORMAT)
    try:
        return RestorePoint(
            str(fields["cluster"]),
            str(fields["incarnation"]),
            int(fields["number"]),
            int(fields["taken_ms"]),
            int(fields["cluster_epoch"]),
            int(fields["attempts"]),
            tuple(GroupState(int(group), int(index), int(node)) for group, index, node in fields["groups"]),
        )
    except (LookupError, TypeError, ValueError) as error:
        raise RestorePointDamaged(f"it lacks a field of its format: {error!r}") from None


def decode_attempt(data: bytes) -> RestoreAttempt:
    """Read the record of an attempt; raises RestorePointDamaged."""
    fields = _read(data, ATTEMPT_FORMAT)
    try:
        return RestoreAttempt(
            str(fields["cluster"]),
            int(fields["number"]),
            int(fields["point"]),
            str(fields["incarnation"]),
            int(fields["lineage"]),
        )
    except (LookupError, TypeError, ValueError) as error:
        raise RestorePointDamaged(f"it lacks a field of its format: {error!r}") from None


def _restore_prefix(cluster: str) -> str:
    cluster_prefix(cluster)  # refuses an id that cannot stand in a name
    return f"{PREFIX}{cluster}/"


def _checked(fields: Mapping[str, Any]) -> bytes:
    text = json.dumps(fields)
    return json.dumps({"crc32": crc32(text.encode()), "restore": text}).encode()


def _read(data: bytes, readable: int) -> dict[str, Any]:
    try:
        outer = json.loads(data)
        text = outer["restore"]
        if crc32(text.encode()) != outer["crc32"]:
            raise ValueError("its checksum does not match")
        fields: dict[str, Any] = json.loads(text)
        version = fields["format"]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise RestorePointDamaged(f"it is damaged, or not one of Strandline's ({error})") from None
    if version != readable:
        raise RestorePointDamaged(
            f"it has format {version}, and this release reads {readable}: use the release that wrote it"
        )
    return fields
