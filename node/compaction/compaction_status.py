"""Compaction on one node, for people and metrics: each replica's local log, and what holds back removal.

A replica's node knows its log and what is wrong with it; the leader knows all copies. The status of a cluster
is put together from the answers of all nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple, Protocol

from strandline.node.compaction.removal_leader import Copies, RemovalLeader, Replica, SeenOpen
from strandline.node.compaction.removal_minimum import LEVEL_ONE
from strandline.node.compaction.replica_log import ReplicaLog
from strandline.node.controller.client import ControllerClient
from strandline.statemachine.controller.topic_config import DELETE_RETENTION_MS
from strandline.statemachine.partition.removal import Removals

NEVER: Final = -1
"""In place of a time: no row waits to ripen."""


@dataclass(frozen=True, slots=True)
class LocalLogStatus:
    """The local log of the replica here; offsets, or null while it is not open."""

    start_offset: int | None
    clean_end: int | None
    log_end: int | None
    mcco: int | None
    mxfo: int | None
    segments: int
    bytes: int
    resets: int
    """Since this process started, as the log was damaged or behind; not that there was none."""
    reset_for: str | None
    """Cause of the last of them, or of the one that is due."""
    reset_seconds: float | None
    """The time since that was found; null: it was not."""
    problem: str | None
    """Cause why the log is not opened, filled or cleaned; null: nothing is wrong."""


@dataclass(frozen=True, slots=True)
class CopyStatus:
    """One copy of a partition, as its leader knows it."""

    node: int | None
    """Null for level one."""
    voter: bool
    mcco: int | None
    """Null: it has not reported to this leader."""
    mxfo: int | None


@dataclass(frozen=True, slots=True)
class HeldStatus:
    """The copies that hold removal back, and for how long the first of them has."""

    nodes: tuple[int, ...]
    level_one: bool
    seconds: float
    """Since this leader was elected, or later: an earlier leader's copies are not known to it."""


@dataclass(frozen=True, slots=True)
class OpenStatus:
    """The earliest open transaction of a partition: behind its first offset nothing is filled or cleaned."""

    producer_id: int
    first_offset: int
    seconds: float
    """Since this leader first saw it as the earliest."""


@dataclass(frozen=True, slots=True)
class LeaderStatus:
    """A partition's removal as its leader knows it."""

    term: int
    copies: tuple[CopyStatus, ...]
    tombstones_held: HeldStatus | None
    """Null: all copies are equally clean."""
    markers_held: HeldStatus | None
    open_transaction: OpenStatus | None
    error: str | None
    """Of the last entry, if it had no effect that is known."""
    lifting_error: str | None
    """Of the last lifting into level one, if it failed: local logs are filled from there."""
    publication_error: str | None
    """Of the last publication, if it failed: level one then holds back what the leader has cleaned."""


@dataclass(frozen=True, slots=True)
class HoldStatus:
    """A reader that keeps cleaning from going on beyond an offset."""

    reader: str
    offset: int
    until_ms: int
    """Unix milliseconds, in the state machine's time."""


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One replica of a compacted partition on this node."""

    group: int
    topic: str
    partition: int
    local: LocalLogStatus
    due: bool
    """Whether that log is to be filled or cleaned now, by the topic's settings. While it is not, what it
    holds back waits for further records."""
    mtro: int
    mxro: int
    ripe_tombstones: int
    ripe_markers: int
    waiting_removals: int
    ripens_at_ms: int
    """When the first of them ripens, in the state machine's time; -1 if none waits."""
    holds: tuple[HoldStatus, ...]
    leader: LeaderStatus | None
    """Null: this node does not lead the partition."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


class Hosted(NamedTuple):
    """A compacted replica here, and its log."""

    replica: Replica
    log: ReplicaLog


class Replicas(Protocol):
    """The replicas here."""

    def by_group(self, group: int, /) -> Replica | None: ...


class CompactionPublisherSource(Protocol):
    """The publisher of level one."""

    def error(self, group: int, /) -> str | None: ...


class LogsSource(Protocol):
    """The local logs here."""

    @property
    def logs(self) -> Mapping[int, ReplicaLog]: ...
    @property
    def publisher(self) -> CompactionPublisherSource: ...
    def due(self, group: int, /) -> bool:
        """Whether a log is to be filled or cleaned."""


class LiftingSource(Protocol):
    """Lifts records into level one."""

    def error(self, group: int, /) -> str | None: ...


class LevelOneSource(Protocol):
    """The upkeep of level one."""

    @property
    def reconciler(self) -> LiftingSource: ...


class StatusContext(Protocol):
    """A node, as the status of compaction needs it; the broker satisfies it as it is."""

    loop: asyncio.AbstractEventLoop
    controller: ControllerClient
    removal: RemovalLeader

    @property
    def level_one(self) -> LevelOneSource: ...
    @property
    def compaction(self) -> LogsSource: ...
    @property
    def partitions(self) -> Replicas: ...


class CompactionStatus:
    """Reads the status where the parts that do the work keep it."""

    def __init__(self, context: StatusContext) -> None:
        self._context = context

    def replicas(self, topic: str | None = None) -> dict[int, Hosted]:
        """The compacted replicas here by group, of one topic or of all."""
        found = {}
        for group, log in self._context.compaction.logs.items():
            replica = self._context.partitions.by_group(group)
            if replica is not None and topic in (None, replica.topic):
                found[group] = Hosted(replica, log)
        return found

    def partition(self, hosted: Hosted) -> PartitionStatus:
        """The status of one of them, also if it has just left this node."""
        replica, log = hosted
        removals = replica.machine.removals
        return PartitionStatus(
            replica.group.id,
            replica.topic,
            replica.number,
            local_status(log, self._context.loop.time()),
            self._context.compaction.due(replica.group.id),
            removals.mtro,
            removals.mxro,
            removals.ripe_tombstones,
            removals.ripe_markers,
            len(removals.waiting),
            self._ripens_at(replica, removals),
            tuple(HoldStatus(*one) for one in replica.machine.holds.rows()),
            self._leader_status(replica),
        )

    def _ripens_at(self, replica: Replica, removals: Removals) -> int:
        topic = self._context.controller.machine.topic_by_id(replica.topic_id)
        if topic is None or not removals.waiting:
            return NEVER
        return removals.waiting[0].time + DELETE_RETENTION_MS.of(topic.configs)

    def _leader_status(self, replica: Replica) -> LeaderStatus | None:
        led = self._context.removal.led(replica.group.id)
        if led is None or not replica.leads or replica.leader_epoch != led.term:
            return None
        copies, now = self._context.removal.copies(replica), self._context.loop.time()
        return LeaderStatus(
            led.term,
            tuple(_copies(copies)),
            _held(led.tombstones_held, now),
            _held(led.markers_held, now),
            _open(led.open_transaction, now),
            led.error,
            self._context.level_one.reconciler.error(replica.group.id),
            self._context.compaction.publisher.error(replica.group.id),
        )


def local_status(log: ReplicaLog, now: float) -> LocalLogStatus:
    """The status of one local log; `now` in seconds of the loop's clock."""
    ends, manifest = log.ends(log.replica.machine), None if log.log is None else log.log.manifest
    return LocalLogStatus(
        None if manifest is None else manifest.start_offset,
        None if manifest is None else manifest.clean_end,
        None if manifest is None else manifest.log_end,
        None if ends is None else ends.mcco,
        None if ends is None else ends.mxfo,
        0 if manifest is None else len(manifest.segments),
        0 if manifest is None else sum(one.size for one in manifest.segments),
        log.resets,
        log.reset_for,
        None if log.reset_at is None else round(now - log.reset_at, 3),
        log.problems.first,
    )


def _copies(copies: Copies) -> Iterator[CopyStatus]:
    yield CopyStatus(None, False, *copies.level_one)
    for node in sorted(copies.configuration.members):
        ends = copies.known.get(node)
        voter = node in copies.configuration.voters
        yield CopyStatus(node, voter, *((None, None) if ends is None else ends))


def _held(since: Mapping[int, float], now: float) -> HeldStatus | None:
    if not since:
        return None
    nodes = tuple(copy for copy in since if copy != LEVEL_ONE)
    return HeldStatus(nodes, LEVEL_ONE in since, round(now - min(since.values()), 3))


def _open(seen: SeenOpen | None, now: float) -> OpenStatus | None:
    if seen is None:
        return None
    return OpenStatus(seen.producer_id, seen.first_offset, round(now - seen.since, 3))
