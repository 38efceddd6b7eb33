"""Lets idle partitions follow the cluster epoch, so that they do not hold M back for ever.

An append brings its window along, and with it M(p) moves on. A partition without appends would stay at the
epoch of its last one. So its leader has it accept the newest epoch, through the fence and the log like any
write, once it lags so far behind that it is worth an entry. Twice, because a window keeps the epoch that was
newest before as its lower end. The more partitions a node leads, the further they may lag: all of them
together cost it a bounded number of entries a second.

What names objects is left alone: as long as something older than the window holds M(p) back, a batch that is
not lifted to level one yet or a leased checkpoint, moving the window would gain nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from strandline.node.config.node_config import CollectorSection
from strandline.node.partition.partition import Partition
from strandline.node.partition.partition_table import PartitionTable
from strandline.node.partition.writer import EpochSource
from strandline.node.runtime.rounds import next_round
from strandline.node.runtime.slices import look_seconds
from strandline.statemachine.partition.epoch_window import EpochWindow
from strandline.statemachine.partition.partition_commands import AdvanceEpoch

LOOK_SECONDS: Final = 1.0
AT_ONCE: Final = 128
"""Partitions that move on at the same time: those that were created together lag together."""
ADVANCE_SECONDS: Final = 10.0
"""A leader that cannot reach a majority has stepped down long before."""
AT_FULL_PACE: Final = 250
"""Partitions led here that follow as `advance_lag_epochs` says. Twice as many lag twice as far, and so on:
with the defaults a node writes eight entries a second for them at most."""
SLICE: Final = 512
"""Partitions looked at in one turn of the loop: well under a millisecond."""


class IdleEpochs:
    """One node's work for the partitions that it leads. Everything belongs on `loop`."""

    def __init__(
        self,
        partitions: PartitionTable,
        epoch: EpochSource,
        config: CollectorSection,
        *,
        loop: asyncio.AbstractEventLoop,
        wall_ms: Callable[[], int],
    ) -> None:
        self.advances = 0
        """Commands that were proposed."""
        self._partitions = partitions
        self._epoch = epoch
        self._config = config
        self._loop = loop
        self._wall_ms = wall_ms
        self._lag = float(config.advance_lag_epochs)
        """Epochs that a partition led here may be behind."""
        self._under_way: dict[int, asyncio.Task[None]] = {}
        self._first = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look."""
        self._task = self._loop.create_task(self._run())
        self._task.add_done_callback(self._ended)

    def close(self) -> None:
        """Move nothing any more."""
        if self._task is not None:
            self._task.cancel()
        for task in self._under_way.values():
            task.cancel()

    async def _run(self) -> None:
        while True:
            await next_round(look_seconds(LOOK_SECONDS, len(self._partitions)))
            await self._look()

    async def _look(self) -> None:
        partitions = [*self._partitions]
        led = sum(partition.leads for partition in partitions)
        self._lag = self._config.advance_lag_epochs * max(1.0, led / AT_FULL_PACE)
        followed = self._epoch.current() - self._lag
        first = self._first % max(1, len(partitions))
        # Where the last look had to stop: those in front, if they are stuck, must not keep the rest waiting.
        for number, partition in enumerate(partitions[first:] + partitions[:first]):
            if len(self._under_way) >= AT_ONCE:
                self._first = first + number
                return
            lags = partition.leads and partition.machine.previous_applied_epoch < followed
            if lags and partition.group.id not in self._under_way and self.is_due(partition):
                task = self._loop.create_task(self._advance(partition))
                self._under_way[partition.group.id] = task
                task.add_done_callback(self._ended)
            if number % SLICE == SLICE - 1:
                await asyncio.sleep(0)

    def is_due(self, partition: Partition) -> bool:
        """Whether the epochs that a partition still accepts, and nothing else, hold M(p) far back."""
        machine = partition.machine
        accepted = machine.previous_applied_epoch
        if self._epoch.current() - accepted <= self._lag:
            return False
        # Leases run in the state's time, which stands still while nothing is written. By the clock this one
        # may have ended, and the entry that lets the partition follow lets its time pass too.
        now = max(machine.time, self._wall_ms())
        named = machine.extents.oldest_epoch, machine.checkpoints.oldest_epoch(now)
        return all(epoch is None or epoch > accepted for epoch in named)

    async def _advance(self, partition: Partition) -> None:
        """Move the window to the newest two epochs. After any outcome the next look decides again."""
        group = partition.group.id
        try:
            async with asyncio.timeout(ADVANCE_SECONDS):
                newest = self._epoch.current()
                for epoch in (newest - 1, newest):
                    if epoch > partition.machine.max_applied_epoch:
                        self.advances += 1
                        # Of the window the epoch alone counts, its term and lower end are the fence's.
                        await partition.execute(AdvanceEpoch(EpochWindow(0, epoch, epoch)))
        except TimeoutError:
            return
        finally:
            del self._under_way[group]

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            message = "letting idle partitions follow the cluster epoch failed"
            self._loop.call_exception_handler({"message": message, "exception": error})
