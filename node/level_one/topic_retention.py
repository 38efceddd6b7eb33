"""Moves the start offset of the partitions led here by their topics' retention.

Only the start offset moves: objects below it then leave the state, and are deleted when no leased checkpoint
names them. Whole objects and batches go, from the front, as Kafka's segments do; a
`merge_count`-th of what a topic keeps is as large as an object gets. The time is the leader's own, as the
cluster has it, and where the nodes do not agree on it nothing is removed by time: what is deleted by a wrong
clock does not come back.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, NamedTuple

from strandline.node.level_one.context import LevelOneContext, Replica, configs_of, label
from strandline.node.level_one.level_one_measures import UpkeepMeasures
from strandline.node.runtime.rounds import next_round
from strandline.node.runtime.slices import look_seconds, slices_of
from strandline.statemachine.controller.settings import Configs
from strandline.statemachine.controller.topic_config import CLEANUP_POLICY, RETENTION_BYTES, RETENTION_MS
from strandline.statemachine.partition.partition import PartitionStateMachine
from strandline.statemachine.partition.partition_commands import SetStartOffset, StartOffsetSet

LOOK_SECONDS: Final = 1.0
MAX_BATCHES: Final = 2_000
"""Batches of level zero looked at in one check: they are lifted before most retention ends."""
SPREAD: Final = 64

log = logging.getLogger(__name__)


class Kept(NamedTuple):
    """Limits of a topic's retention; None for no limit."""

    ms: int | None
    bytes: int | None
    """Of each partition; the copies of a record in the object store are one, so replicas do not count."""


def kept(configs: Configs) -> Kept:
    """Retention as Kafka reads it: only with the policy "delete", and a negative number is no limit."""
    if "delete" not in CLEANUP_POLICY.of(configs):
        return Kept(None, None)
    ms, size = RETENTION_MS.of(configs), RETENTION_BYTES.of(configs)
    return Kept(ms if ms >= 0 else None, size if size >= 0 else None)


class Stretch(NamedTuple):
    """A level-one object or a batch in level zero; retention removes it as a whole."""

    end_offset: int
    max_timestamp: int
    size: int


def wanted_start(
    stretches: Iterable[Stretch], start_offset: int, total_bytes: int, keep: Kept, now_ms: int | None
) -> int:
    """The start offset that retention wants; the present one to leave it.

    `stretches` from the front, `total_bytes` of all there are. Without a `now_ms` nothing goes by time.

    By size, a stretch goes if what remains is still as large as what is kept, like Kafka's oldest segment. By
    time, it goes if its newest record is older than what is kept. A stretch without any timestamp (-1) goes
    with the next one that has one.
    """
    oldest = None if keep.ms is None or now_ms is None else now_ms - keep.ms
    start, left = start_offset, total_bytes
    by_size = by_time = True
    for stretch in stretches:
        left -= stretch.size
        by_size = by_size and keep.bytes is not None and left >= keep.bytes
        by_time = by_time and oldest is not None and stretch.max_timestamp < oldest
        if by_size or (by_time and stretch.max_timestamp >= 0):
            start = stretch.end_offset
        elif not by_time:
            break
    return max(start, start_offset)


def stretches_of(machine: PartitionStateMachine) -> Iterator[Stretch]:
    """Objects and batches of a partition, from the front, as far as one check looks."""
    for one in machine.level_one:
        yield Stretch(one.end_offset, one.max_timestamp, one.size)
    for extent in islice(machine.extents, MAX_BATCHES):
        yield Stretch(extent.end_offset, extent.max_timestamp, extent.length)


class TopicRetention:
    """One per node; `run` is its task."""

    def __init__(self, context: LevelOneContext, measures: UpkeepMeasures) -> None:
        self._context = context
        self._measures = measures
        self._due: dict[int, tuple[int, float]] = {}
        """By group: term of the leadership, and when its retention is looked at next."""
        self._logged = False
        """Whether it was said that nothing goes by time; once, until the clocks agree again."""

    @property
    def by_time(self) -> bool:
        """Whether anything is removed by time at present."""
        return self._context.clock.trusted

    async def run(self) -> None:
        """Look at each partition every `check_seconds`, for as long as the node lives."""
        while True:
            await next_round(look_seconds(LOOK_SECONDS, len(self._context.partitions)))
            await self.step()

    async def step(self) -> None:
        """Check the partitions whose time has come; the first check of a leader is within a period."""
        now, period = self._context.loop.time(), self._context.config.retention.check_seconds
        known, self._due = self._due, {}
        async for slice_ in slices_of(self._context.partitions):
            for replica in slice_:
                if not replica.leads:
                    continue
                group, term = replica.group.id, replica.leader_epoch
                of_term, due = known.get(group, (term, 0.0))
                if group not in known or of_term != term:
                    due = now + period * (1 + group % SPREAD) / SPREAD
                self._due[group] = (term, now + period if due <= now else due)
                if due > now:
                    continue
                try:
                    await self.check(replica)
                except Exception as error:
                    # The others must not wait for this one.
                    message = (
                        f"level one: retention of {label(replica)} failed in a way that was not foreseen"
                    )
                    self._context.loop.call_exception_handler({"message": message, "exception": error})

    async def check(self, replica: Replica) -> None:
        """Move one partition's start offset if its topic's retention says so."""
        configs = configs_of(self._context, replica)
        if configs is None:
            return
        machine, keep = replica.machine, kept(configs)
        now_ms = self._now_ms() if keep.ms is not None else None
        total = machine.level_one.bytes + machine.extents.bytes
        before = machine.start_offset
        wanted = wanted_start(stretches_of(machine), before, total, keep, now_ms)
        if wanted == before:
            return
        # If it was refused, or its outcome is unknown, the next check decides by the state at that time.
        if isinstance(await replica.execute(SetStartOffset(wanted)), StartOffsetSet):
            self._measures.retention_moves += 1
            self._measures.retention_records += wanted - before
            log.info("%s: retention moved the start offset from %d to %d", label(replica), before, wanted)

    def _now_ms(self) -> int | None:
        """The time; None while it is not known well enough to delete by it."""
        if self.by_time:
            self._logged = False
            return self._context.wall_ms()
        if not self._logged:
            self._logged = True
            log.warning("retention.ms is suspended: too few nodes agree on the time")
        return None
