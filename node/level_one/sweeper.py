"""Deletes the level-one objects of the partitions led here that no reader can need.

A partition's state keeps each object that it no longer refers to as removed, with the log index of its
removal. The sweeper deletes it when no leased checkpoint is older, and `collector.grace_seconds` have passed
since this leader saw it removed: the newest tail point, which has no lease, may still name it. A command then
forgets it. Objects that were never registered are found by listing: only the partition's leader can tell an
orphan from an object that may yet be registered. No object is ever deleted by its age.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Final

from strandline.node.level_one.context import LevelOneContext, Replica, label, leads_in
from strandline.node.level_one.level_one_measures import UpkeepMeasures
from strandline.node.level_one.pending_objects import PendingObjects
from strandline.node.level_one.retry_backoff import RetryBackoff
from strandline.node.objectstore.store import MAX_DELETE, StoreError
from strandline.node.runtime.rounds import next_round
from strandline.node.runtime.slices import in_slices, look_seconds, slices_of
from strandline.statemachine.partition.level_one import level_one_name, parse_level_one_name, partition_prefix
from strandline.statemachine.partition.partition_commands import ForgetRemoved

LOOK_SECONDS: Final = 1.0
PAGE: Final = 1_000
"""Names of one listing: as many as one deletion takes, and one request of a bucket gives."""
FIRST_SWEEP_SECONDS: Final = 60.0
"""Within this time, or `sweep_seconds` if that is less, a new leader looks for what earlier ones left."""
SPREAD: Final = 64
FIRST_RETRY_SECONDS: Final = 2.0
MOST_RETRY_SECONDS: Final = 60.0

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Sweeping:
    """State of a partition that is led here."""

    term: int
    sweep_at: float
    sweep: RetryBackoff = field(default_factory=lambda: RetryBackoff(FIRST_RETRY_SECONDS))
    removal: RetryBackoff = field(default_factory=lambda: RetryBackoff(FIRST_RETRY_SECONDS))
    seen: deque[tuple[float, int]] = field(default_factory=deque)
    """When the newest removed object was first seen, and the log index of its removal. The first is the
    newest one that is past its grace, if any is. There is at most one for each look within the grace."""

    def past_grace(self, newest: int, now: float, grace_seconds: float) -> int:
        """Take note of the newest removal; gives the log index up to which removals are past their grace."""
        seen = self.seen
        if not seen or newest > seen[-1][1]:
            seen.append((now, newest))
        while len(seen) > 1 and now - seen[1][0] >= grace_seconds:
            seen.popleft()
        at, index = seen[0]
        return index if now - at >= grace_seconds else 0


class Sweeper:
    """One per node; `run` is its task."""

    def __init__(self, context: LevelOneContext, pending: PendingObjects, measures: UpkeepMeasures) -> None:
        self._context = context
        self._pending = pending
        self._measures = measures
        self._sweepings: dict[int, Sweeping] = {}
        self._logged = False
        """Whether it was said that the store fails; once, until something works."""

    def sweeping(self, replica: Replica) -> Sweeping | None:
        """State of a partition since it is led here."""
        return self._sweepings.get(replica.group.id)

    async def run(self) -> None:
        """Delete objects that are due, until the node stops."""
        while True:
            await next_round(look_seconds(LOOK_SECONDS, len(self._context.partitions)))
            await self.step()

    async def step(self) -> None:
        """Delete removed objects of every partition, and sweep those whose time has come."""
        loop, period = self._context.loop, self._context.config.level_one.sweep_seconds
        led = [
            replica
            async for slice_ in slices_of(self._context.partitions)
            for replica in slice_
            if replica.leads
        ]
        known, self._sweepings = self._sweepings, {}
        for replica in led:
            group, term = replica.group.id, replica.leader_epoch
            sweeping = known.get(group)
            if sweeping is None or sweeping.term != term:
                first = min(period, FIRST_SWEEP_SECONDS) * (group % SPREAD) / SPREAD
                sweeping = Sweeping(term, loop.time() + first)
            self._sweepings[group] = sweeping
        async for replica in in_slices(led):
            if not self._may_delete():
                return
            sweeping, now = self._sweepings[replica.group.id], loop.time()
            removed, until = replica.machine.removed, 0
            if removed:
                grace_seconds = self._context.config.collector.grace_seconds
                until = sweeping.past_grace(removed[-1].log_index, now, grace_seconds)
            due = bool(removed) and removed[0].log_index <= until
            if not due and sweeping.sweep_at > now:
                continue
            try:
                await self._tend(replica, sweeping, until)
            except Exception as error:
                # The others must not wait for this one.
                message = f"level one: sweeping {label(replica)} failed in a way that was not foreseen"
                loop.call_exception_handler({"message": message, "exception": error})

    def _may_delete(self) -> bool:
        """Not while collecting is paused, nor before this process knows whether it is: its replica of the
        controller may be of before the pause."""
        return self._context.registered and not self._context.controller.machine.collection_paused

    async def _tend(self, replica: Replica, sweeping: Sweeping, until: int) -> None:
        loop = self._context.loop
        if until and sweeping.removal.retry_at <= loop.time():
            await self._guarded(self.delete_removed(replica, until), replica, sweeping.removal)
        due = max(sweeping.sweep_at, sweeping.sweep.retry_at) <= loop.time()
        if due and leads_in(replica, sweeping.term):
            # First, so that what goes wrong in an unforeseen way is not tried again at once.
            sweeping.sweep_at = loop.time() + self._context.config.level_one.sweep_seconds
            done = await self._guarded(self.sweep(replica), replica, sweeping.sweep)
            if not done or not self._may_delete():
                sweeping.sweep_at = loop.time()

    async def delete_removed(self, replica: Replica, until: int) -> None:
        """Delete objects that were removed up to this log index, and that no lease protects.

        Raises StoreError.

        The state alone decides, even if leadership has moved: a removed object is never named again, and an
        ended lease is not renewed. An object that is deleted and not forgotten is deleted again, by any
        leader.
        """
        gone = [one for one in replica.machine.removable() if one.log_index <= until][:MAX_DELETE]
        if not gone:
            return
        names = [level_one_name(replica.topic_id, replica.number, one.term, one.unique) for one in gone]
        await self._context.store.delete_many(names)
        self._measures.removed_deleted += len(gone)
        self._measures.removed_bytes += sum(one.size for one in gone)
        await replica.execute(ForgetRemoved([one.unique for one in gone]))

    async def sweep(self, replica: Replica) -> None:
        """List all that is stored of a partition, and delete its orphans. Raises StoreError.

        Breaks off when leadership ends or nothing may be deleted any more, before the page at hand.
        """
        term, after = replica.leader_epoch, ""
        prefix = partition_prefix(replica.topic_id, replica.number)
        while True:
            names = await self._context.store.list(prefix, after, PAGE)
            self._measures.lists += 1
            if not leads_in(replica, term) or not self._may_delete():
                return
            orphans = self._orphans(replica, term, names)
            if orphans:
                await self._context.store.delete_many(orphans)
                self._measures.orphans_deleted += len(orphans)
                log.info("%s: deleted %d objects that were never registered", label(replica), len(orphans))
            if len(names) < PAGE:
                self._measures.sweeps += 1
                return
            after = names[-1]

    def _orphans(self, replica: Replica, term: int, names: Sequence[str]) -> list[str]:
        """Of stored names those that no state of the partition names now or will name later.

        This node leads in `term`, so every entry of the terms before that will ever be applied is applied.
        What it made itself in this term is open until it knows better, and what later leaders made is theirs.
        """
        machine = replica.machine
        removed = {one.unique for one in machine.removed}
        orphans = []
        for name in names:
            try:
                parsed = parse_level_one_name(name)
            except ValueError:
                self._measures.foreign_names += 1
                continue
            named = parsed.unique in machine.level_one or parsed.unique in removed
            if not named and parsed.term <= term and parsed.unique not in self._pending:
                orphans.append(name)
        return orphans

    async def _guarded(self, work: Awaitable[None], replica: Replica, backoff: RetryBackoff) -> bool:
        """Do it; when the store fails, say so once and try again later. Whether it was done."""
        try:
            await work
        except StoreError as error:
            self._measures.store_errors += 1
            backoff.failed(self._context.loop.time(), str(error), MOST_RETRY_SECONDS)
            if not self._logged:
                self._logged = True
                log.warning("%s: unreferenced objects are kept for now: %s", label(replica), error)
            return False
        backoff.over()
        self._logged = False
        return True
