"""Stores what lies in the nodes' logs alone: inline batches go to level-zero objects.

A few objects hold the batches of all partitions led here, at most half of `inline.seconds` after they came,
or sooner when half of a limit in bytes is used. One entry for each partition then names the places. From
there on they are batches as any other: read from objects, lifted to level one, held until then by the epochs
of their objects. A crash or a lost leadership at any step leaves an object that no partition names, which the
collector deletes, and the batches inline for the next leader. docs/write-path.md.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from heapq import nlargest
from math import inf
from operator import itemgetter
from typing import Final, NamedTuple

from strandline.node.level_one.plan import FirstSeen
from strandline.node.level_one.retry_backoff import RetryBackoff
from strandline.node.level_zero.batcher import Batcher, Result, Stored
from strandline.node.partition.inline_budget import InlineBudget
from strandline.node.partition.partition import Partition
from strandline.node.partition.partition_table import PartitionTable
from strandline.node.runtime.slices import in_slices, look_seconds, slices_of
from strandline.statemachine.partition.extent import InlineExtent
from strandline.statemachine.partition.partition_commands import InlineStored

MOST_LOOK_SECONDS: Final = 1.0
LOAD_BYTES: Final = 4 * 1024 * 1024
"""Batches that are staged together: an object is as large (`batching.target_bytes`)."""
LOAD_BATCHES: Final = 1_024
TURN_BATCHES: Final = 128
"""Those staged in one turn of the loop, or named by one entry of the log: half a millisecond. All of a load
at once is 10 ms at the leader and 4 at each follower, and each batch that is produced meanwhile waits."""
LOG_BYTES: Final = 64 * 1024 * 1024
"""Bytes of applied entries in memory, of all partitions here. Above this snapshots of those with most are
taken: what is stored in objects is still in these entries."""
HELD_BYTES: Final = 64 * 1024 * 1024
"""Of logs that bring a follower up these do not count. It is what one of them may have: `snapshot_bytes` that
stay for the follower, and as much again until the next snapshot."""
SHORTENED_AT_ONCE: Final = 256
"""Logs in one look: each is a snapshot, which is a file."""
SHORTENED_IN_A_TURN: Final = 8
FIRST_RETRY_SECONDS: Final = 1.0
MOST_RETRY_SECONDS: Final = 10.0
"""Pauses after attempts that failed, of which half is drawn: nodes that lost a store together do not come
back to it together."""
CLOSE_SECONDS: Final = 2.0
"""Time of a node that stops: it may stay down for long, and all others with it."""


class _Staged(NamedTuple):
    partition: Partition
    extent: InlineExtent
    result: asyncio.Future[Result]


class InlineStoring:
    """One per node. Everything belongs on `loop`."""

    def __init__(
        self,
        partitions: PartitionTable,
        batcher: Batcher,
        budget: InlineBudget,
        *,
        loop: asyncio.AbstractEventLoop,
        rng: random.Random,
    ) -> None:
        self._partitions = partitions
        self._batcher = batcher
        self._budget = budget
        self._config = budget.config
        self._loop = loop
        self._rng = rng
        self._backoff = RetryBackoff(FIRST_RETRY_SECONDS)
        self._retry_at = float("-inf")
        self._logs: list[tuple[int, Partition]] = []
        """Bytes of entries in memory, of each partition that has some, at the last look."""
        self._seen: dict[int, FirstSeen] = {}
        self._nothing_at = -1
        """The replicas' changes at which none of them had anything inline, nor too much in memory."""
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        budget.on_half = self._wanted.set

    def start(self) -> None:
        """Begin to look, unless nothing goes inline here: then markers stay until they are lifted, and so
        does what came before the configuration changed."""
        if self._config.max_batch_bytes:
            self._task = self._loop.create_task(self._run())

    async def close(self) -> None:
        """End the work in progress, and store what is led here, for at most `CLOSE_SECONDS`. What stays
        inline is so for the next leaders."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        last = self._loop.create_task(self._store_all())
        timer = self._loop.call_later(CLOSE_SECONDS, last.cancel)
        await asyncio.gather(last, return_exceptions=True)
        timer.cancel()

    def age(self, group: int) -> float:
        """Seconds since the oldest inline batch of a replica here was first seen; 0 when there is none, and
        where no looks are made, see `start`."""
        seen, partition = self._seen.get(group), self._partitions.by_group(group)
        if seen is None or partition is None:
            return 0.0
        return seen.age(partition.machine.extents.first_inline_offset, self._loop.time())

    async def _run(self) -> None:
        while True:
            least = min(self._config.seconds / 8, MOST_LOOK_SECONDS)
            pause, waits = look_seconds(least, len(self._partitions)), self._retry_at - self._loop.time()
            if waits > 0:
                # The limits may be passed all the time by now: that is no reason to try again.
                await asyncio.sleep(min(pause, waits))
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._wanted.wait()
            asked = self._wanted.is_set()
            try:
                await self.step(asked)
            except Exception as error:
                message = "storing inline batches failed in a way that was not foreseen"
                self._loop.call_exception_handler({"message": message, "exception": error})
                self._failed()

    async def step(self, asked: bool) -> bool:
        """Look, and store everything if it is time or `asked` for; returns False if a part of that failed."""
        led = await self._look()
        await self._shorten_logs()
        if self._loop.time() < self._retry_at:
            return True
        self._wanted.clear()
        due = [one for one in led if self.age(one.group.id) >= self._config.seconds / 2]
        if not due and not (asked and led):
            return True
        before = self._budget.measures.stored_batches
        done = await self._store(led)
        if done or self._budget.measures.stored_batches > before:
            # What failed in part is tried again soon: others were stored, so it is not the store.
            self._backoff.over()
        if not done:
            self._budget.measures.failed_stores += 1
            self._failed()
        return done

    def _failed(self) -> None:
        now = self._loop.time()
        self._backoff.failed(now, "not stored", MOST_RETRY_SECONDS)
        self._retry_at = now + (self._backoff.retry_at - now) * self._rng.uniform(0.5, 1.0)

    async def _look(self) -> list[Partition]:
        """Note what is inline, on every replica: the next leader then knows its age. Those led here that have
        something."""
        changes = self._partitions.changes
        if changes == self._nothing_at and not self._budget.kept:
            return []
        now, known, seen = self._loop.time(), self._seen, dict[int, FirstSeen]()
        led: list[Partition] = []
        logs: list[tuple[int, Partition]] = []
        kept_before, kept = self._budget.kept, 0
        async for slice_ in slices_of(self._partitions):
            for partition in slice_:
                extents, leads = partition.machine.extents, partition.leads
                if leads:
                    kept += partition.writer.inline_bytes
                if log_bytes := partition.group.taking.log_bytes:
                    logs.append((log_bytes, partition))
                if not extents.inline_bytes:
                    continue
                group = partition.group.id
                marks = known.get(group) or FirstSeen(self._config.seconds)
                marks.note(extents.first_inline_offset, extents.end_offset, now)
                seen[group] = marks
                if leads:
                    led.append(partition)
        self._seen, self._logs = seen, logs
        # What came while this look went through the slices may have been missed.
        self._budget.kept += kept - kept_before
        nothing = not seen and sum(size for size, _ in logs) <= LOG_BYTES
        self._nothing_at = changes if nothing else -1
        return led

    async def _shorten_logs(self) -> None:
        """Let the longest logs go from memory, if all of them together are too long.

        What stays of each behind its snapshot is a share of a quarter. With a thousand partitions that is
        less than stays usually: otherwise that alone would be a gigabyte, and nothing here would lessen it.
        """
        logs: Sequence[tuple[int, Partition]]
        logs, self._logs = self._logs, []
        if sum(size for size, _ in logs) <= LOG_BYTES:
            return
        logs = _without_held(logs)
        total = sum(size for size, _ in logs)
        if total <= LOG_BYTES:
            return
        room = LOG_BYTES // 4 // len(logs)
        longest = nlargest(SHORTENED_AT_ONCE, logs, key=itemgetter(0))
        async for size, partition in in_slices(longest, SHORTENED_IN_A_TURN):
            if total <= LOG_BYTES // 2 or size <= room:
                return
            total -= size - room
            self._budget.measures.snapshots += partition.group.taking.shorten(room)

    async def _store_all(self) -> None:
        await self._store(await self._look())

    async def _store(self, partitions: Sequence[Partition]) -> bool:
        """Store what these partitions have inline now; what comes meanwhile is for the next time."""
        done = True
        load: list[_Staged] = []
        size = in_turn = 0
        try:
            for partition in partitions:
                at, end = 0, partition.machine.extents.end_offset
                while found := partition.machine.extents.inline_between(
                    at, end, LOAD_BYTES - size, min(LOAD_BATCHES - len(load), TURN_BATCHES)
                ):
                    at = found[-1].end_offset
                    load += [self._stage(partition, extent) for extent in found]
                    size += sum(extent.length for extent in found)
                    in_turn += len(found)
                    if size >= LOAD_BYTES or len(load) >= LOAD_BATCHES:
                        done &= await self._name(load)
                        load, size = [], 0
                    elif in_turn >= TURN_BATCHES:
                        in_turn = 0
                        await asyncio.sleep(0)
            return await self._name(load) and done
        finally:
            for staged in load:
                staged.result.cancel()

    def _stage(self, partition: Partition, extent: InlineExtent) -> _Staged:
        result = self._batcher.stage(partition.topic_id, partition.number, extent.data)
        return _Staged(partition, extent, result)

    async def _name(self, load: Sequence[_Staged]) -> bool:
        """Let the partitions of these batches name the places, once they are in the bucket."""
        places: dict[Partition, list[tuple[InlineExtent, Stored]]] = {}
        for partition, extent, staged in load:
            if isinstance(result := await staged, Stored):
                places.setdefault(partition, []).append((extent, result))
        create = self._loop.create_task
        tasks = [create(self._name_some(partition, found)) for partition, found in places.items()]
        try:
            named = [await task for task in tasks]
        finally:
            for task in tasks:
                task.cancel()
        return sum(map(len, places.values())) == len(load) and all(named)

    async def _name_some(self, partition: Partition, places: Sequence[tuple[InlineExtent, Stored]]) -> bool:
        """Let a partition name its places, in entries of bounded size, one after the other."""
        measures = self._budget.measures
        for at in range(0, len(places), TURN_BATCHES):
            some = places[at : at + TURN_BATCHES]
            outcome = await partition.stored_inline.name(some)
            if not isinstance(outcome, InlineStored):
                return False
            measures.stored_batches += outcome.batches
            measures.stored_bytes += sum(extent.length for extent, _ in some)
        return True


def _without_held(logs: Sequence[tuple[int, Partition]]) -> Sequence[tuple[int, Partition]]:
    """The logs without those that bring a follower up: cut, these would have to send it a snapshot again.

    Such logs are left out in the order in which their snapshots began to be sent, each that still fits into
    `HELD_BYTES`, and the first in any case: it ends, or its follower lacks too much or starts over for too
    long, and it counts. So no two keep each other from an end.
    """
    left, held = HELD_BYTES, set[int]()
    bringing_up = [log for log in logs if log[1].group.sending.brought and _since(log) < inf]
    for size, partition in sorted(bringing_up, key=_since):
        if size <= left or not held:
            left -= size
            held.add(partition.group.id)
    return [log for log in logs if log[1].group.id not in held] if held else logs


def _since(log: tuple[int, Partition]) -> float:
    return log[1].group.sending.since
