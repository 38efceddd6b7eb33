"""The leaders' part of removal: they take the minimum over all copies and put it into the log.

Only a leader computes, and only from what was reported to it in its own term; the entry carries the term, so
a deposed leader's changes nothing. A new leader has to tell nothing again, since the state has what is in
force. What became of an entry need not be known either: the next look computes from the state.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from strandline.node.compaction.distribution import Distribution
from strandline.node.compaction.removal_minimum import Ends, HeldBy, held_by, removal_minimum
from strandline.node.compaction.reports import ReplicaLogs, Reports
from strandline.node.controller.client import ControllerClient
from strandline.node.raft.configuration import Configuration
from strandline.node.refusal import Refusal
from strandline.node.runtime.rounds import next_round
from strandline.node.runtime.slices import in_slices, look_seconds
from strandline.statemachine.controller.topic_config import CLEANUP_POLICY, DELETE_RETENTION_MS
from strandline.statemachine.partition.partition import PartitionStateMachine
from strandline.statemachine.partition.partition_commands import AdvanceRemoval, RemovalAdvanced
from strandline.statemachine.partition.producers import Producers

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
SLICE: Final = 64
"""Partitions looked at in one turn of the loop: well under a millisecond."""
AT_ONCE: Final = 128
"""Partitions with an entry under way: those that were created together change together."""
ADVANCE_SECONDS: Final = 10.0
"""A leader that cannot reach a majority has stepped down long before."""


class Group(Protocol):
    """The log of a replica."""

    @property
    def id(self) -> int: ...
    @property
    def configuration(self) -> Configuration:
        """The newest configuration in the log, committed or not."""


class Replica(Protocol):
    """A partition's replica here."""

    topic_id: bytes
    topic: str
    number: int

    @property
    def group(self) -> Group: ...
    @property
    def machine(self) -> PartitionStateMachine: ...
    @property
    def leads(self) -> bool: ...
    @property
    def leader_epoch(self) -> int: ...
    async def execute(self, command: AdvanceRemoval, /) -> Any: ...


class Replicas(Protocol):
    """The replicas here."""

    def by_group(self, group: int, /) -> Replica | None: ...


class RemovalContext(Protocol):
    """A node, as the leaders' part needs it; the broker satisfies it as it is."""

    loop: asyncio.AbstractEventLoop
    controller: ControllerClient
    reports: Reports

    @property
    def compaction(self) -> ReplicaLogs: ...
    @property
    def partitions(self) -> Replicas: ...
    def agreed_ms(self) -> int | None:
        """The time in ms since 1970; None while the nodes do not agree on it."""


class SeenOpen(NamedTuple):
    """The earliest open transaction of a partition: nothing behind its first offset is decided."""

    producer_id: int
    first_offset: int
    since: float
    """When this leader first saw it as the earliest, in seconds of the loop's clock."""


class Copies(NamedTuple):
    """All copies of a partition as its leader knows them, in one turn of the loop."""

    configuration: Configuration
    known: dict[int, Ends]
    """The reports of its members in this term; a member without one is not there."""
    level_one: Ends

    @property
    def minimum(self) -> Ends | None:
        return removal_minimum(self.configuration.members, self.known, self.level_one)

    @property
    def held_by(self) -> HeldBy:
        return held_by(self.configuration.members, self.known, self.level_one)


@dataclass(slots=True)
class Led:
    """A partition that is led here, in one term. Times are seconds of the loop's clock."""

    term: int
    distribution: Distribution = field(default_factory=Distribution)
    tombstones_held: dict[int, float] = field(default_factory=dict)
    """The copies that hold tombstones back, LEVEL_ONE among them, and since when this leader has seen it."""
    markers_held: dict[int, float] = field(default_factory=dict)
    open_transaction: SeenOpen | None = None
    error: str | None = None
    """Of the last entry, if it had no effect that is known."""

    def note(self, held: HeldBy, producers: Producers, now: float) -> None:
        self.tombstones_held = {copy: self.tombstones_held.get(copy, now) for copy in held.tombstones}
        self.markers_held = {copy: self.markers_held.get(copy, now) for copy in held.markers}
        producer_id, first = producers.first_open_producer, producers.first_open_offset
        if producer_id is None or first is None:
            self.open_transaction = None
        elif self.open_transaction is None or self.open_transaction[:2] != (producer_id, first):
            self.open_transaction = SeenOpen(producer_id, first, now)


class RemovalLeader:
    """One per node. Everything belongs on the context's loop."""

    def __init__(self, context: RemovalContext) -> None:
        self.counters: Counter[str] = Counter()
        """Entries `proposed`, and of them those `in_force`: what is left had no effect that is known."""
        self._context = context
        self._led: dict[int, Led] = {}
        self._under_way: dict[int, asyncio.Task[None]] = {}
        self._first = 0
        self._untimed = False
        """Whether it was said that the nodes do not agree on the time; once, until they do."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look."""
        self._task = self._context.loop.create_task(self._run())
        self._task.add_done_callback(self._ended)

    def close(self) -> None:
        """Propose nothing any more."""
        if self._task is not None:
            self._task.cancel()
        for task in self._under_way.values():
            task.cancel()

    def led(self, group: int) -> Led | None:
        """The notes on a compacted partition that this node leads; None for another."""
        return self._led.get(group)

    def copies(self, replica: Replica) -> Copies:
        """All copies of a partition that is led here, as they are known now."""
        configuration = replica.group.configuration
        removals = replica.machine.removals
        return Copies(
            configuration,
            self._context.reports.known(replica.group.id, replica.leader_epoch, configuration.members),
            Ends(removals.level_one_clean, removals.level_one_settled),
        )

    async def _run(self) -> None:
        context = self._context
        while True:
            await next_round(look_seconds(LOOK_SECONDS, len(context.compaction.logs)))
            await self.look()

    async def look(self) -> None:
        """Note what holds each partition back, and begin the entries that are due."""
        context, led_now = self._context, dict[int, Led]()
        groups = [*context.compaction.logs]
        first = self._first % max(1, len(groups))
        groups = groups[first:] + groups[:first]
        # Where entries ran out at the last look: those in front must not keep the rest waiting.
        self._first = 0
        position = first
        async for group in in_slices(groups, SLICE):
            replica = context.partitions.by_group(group)
            position += 1
            if replica is None or not replica.leads:
                continue
            try:
                retention = self._retention(replica)
                if retention is None:
                    continue
                led = led_now[group] = self._led_in(replica)
                if self._is_due(replica, led, retention):
                    if len(self._under_way) < AT_ONCE:
                        self._begin(replica, led)
                    else:
                        self._first = self._first or position - 1
            except Exception as error:
                # The others must not wait for this one.
                message = f"removal in {replica.topic}-{replica.number} failed in a way that was not foreseen"
                context.loop.call_exception_handler({"message": message, "exception": error})
        self._led = led_now

    def _led_in(self, replica: Replica) -> Led:
        known, term = self._led.get(replica.group.id), replica.leader_epoch
        if known is not None and known.term == term:
            return known
        return Led(term)

    def _is_due(self, replica: Replica, led: Led, retention: int) -> bool:
        copies, now = self.copies(replica), self._context.loop.time()
        led.note(copies.held_by, replica.machine.producers, now)
        agreed_ms = self._agreed_ms()
        if agreed_ms is None or replica.group.id in self._under_way:
            return False
        removals = replica.machine.removals
        due = led.distribution.is_due(copies.minimum, removals, retention, now, agreed_ms)
        if led.distribution.nothing_to_send:
            led.error = None  # An entry whose outcome was not known has come into force since.
        return due

    def _begin(self, replica: Replica, led: Led) -> None:
        task = self._context.loop.create_task(self._advance(replica, led))
        self._under_way[replica.group.id] = task
        task.add_done_callback(self._ended)

    async def _advance(self, replica: Replica, led: Led) -> None:
        """Propose what the copies allow in this very turn of the loop."""
        loop = self._context.loop
        try:
            retention = self._retention(replica)
            if retention is None or not replica.leads or replica.leader_epoch != led.term:
                return
            removals = replica.machine.removals
            minimum = self.copies(replica).minimum or Ends(removals.mtro, removals.mxro)
            self.counters["proposed"] += 1
            led.distribution.attempted(loop.time())
            async with asyncio.timeout(ADVANCE_SECONDS):
                result = await replica.execute(AdvanceRemoval(minimum.mcco, minimum.mxfo, retention))
            if isinstance(result, RemovalAdvanced):
                self.counters["in_force"] += 1
                led.distribution.in_force(loop.time())
                led.error = None
            else:
                led.error = result.message or str(result) if isinstance(result, Refusal) else str(result)
        except TimeoutError:
            led.error = f"the log did not answer within {ADVANCE_SECONDS:.0f} s"
        except Exception as error:
            led.error = f"this failed in a way that was not foreseen: {error!r}"
            raise
        finally:
            del self._under_way[replica.group.id]

    def _retention(self, replica: Replica) -> int | None:
        """The topic's delete.retention.ms; None if it is gone, or is not compacted any more."""
        topic = self._context.controller.machine.topic_by_id(replica.topic_id)
        if topic is None or "compact" not in CLEANUP_POLICY.of(topic.configs):
            return None
        return DELETE_RETENTION_MS.of(topic.configs)

    def _agreed_ms(self) -> int | None:
        now = self._context.agreed_ms()
        if now is None and not self._untimed:
            log.warning("compaction removes no tombstones for now: too few nodes agree on the time")
        self._untimed = now is None
        return now

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            message = "advancing the offsets of removal failed"
            self._context.loop.call_exception_handler({"message": message, "exception": error})
