"""Which partitions follow the cluster epoch, how many at a time, and what becomes of those that cannot."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, cast

from strandline.node.config.node_config import CollectorSection
from strandline.node.gc.idle_epochs import ADVANCE_SECONDS, AT_FULL_PACE, AT_ONCE, SLICE, IdleEpochs
from strandline.statemachine.partition.partition_commands import AdvanceEpoch
from tests.gc.parts import Group
from tests.level_zero.samples import started
from tests.simulation.world import World

LAG = 6


class Idle:
    """As much of a partition as following needs; `stuck` ones never end a command."""

    def __init__(self, group: int, epoch: int) -> None:
        self.group = Group(group)
        self.leads = True
        self.machine = self
        self.extents: Any = None
        self.checkpoints: Any = None
        self.previous_applied_epoch = self.max_applied_epoch = epoch
        self.time = 0
        self.stuck = False
        self.executed: list[int] = []

    async def execute(self, command: AdvanceEpoch) -> None:
        epoch = command.window.newest
        assert epoch is not None
        self.executed.append(epoch)
        if self.stuck:
            await asyncio.get_running_loop().create_future()
        await asyncio.sleep(0.01)
        if epoch > self.max_applied_epoch:
            self.previous_applied_epoch, self.max_applied_epoch = self.max_applied_epoch, epoch


class Extents:
    def __init__(self, epoch: int | None) -> None:
        self.oldest_epoch = epoch


class Leases:
    def __init__(self, epoch: int | None, until: int = 10_000) -> None:
        self.epoch, self.until = epoch, until

    def oldest_epoch(self, time: int) -> int | None:
        return self.epoch if time < self.until else None


class Site:
    def __init__(self, partitions: int, epoch: int = 1) -> None:
        self.world = World(1)
        self.sim = started(self.world)
        self.epoch = 100
        self.wall_ms = 1_000
        self.partitions = [Idle(group, epoch) for group in range(1, partitions + 1)]
        for partition in self.partitions:
            self.names(partition, None, None)
        me = cast(Any, self)
        self.idle = IdleEpochs(me, me, CollectorSection(advance_lag_epochs=LAG), loop=self.sim.loop,
                              wall_ms=lambda: self.wall_ms)  # fmt: skip

    def __iter__(self) -> Iterator[Idle]:
        return iter(self.partitions)

    def __len__(self) -> int:
        return len(self.partitions)

    def names(self, partition: Idle, extent: int | None, lease: int | None) -> None:
        partition.extents, partition.checkpoints = Extents(extent), Leases(lease)

    def current(self) -> int:
        return self.epoch

    def due(self, partition: Idle) -> bool:
        return self.idle.is_due(cast(Any, partition))

    def run(self, seconds: float) -> None:
        self.world.run(self.world.now + seconds)


def test_one_is_due_when_only_what_it_accepts_is_far_behind() -> None:
    site = Site(1, epoch=100 - LAG)
    with site.world:
        (partition,) = site.partitions
        assert not site.due(partition)
        site.epoch += 1
        assert site.due(partition)
        for extent, lease, due in (
            (94, None, False), (None, 94, False), (95, 94, False), (94, 95, False), (90, None, False),
            (95, None, True), (None, 95, True), (95, 99, True),
        ):  # fmt: skip
            site.names(partition, extent, lease)
            assert site.due(partition) == due, (extent, lease)


def test_a_lease_that_has_ended_by_the_clock_ends_with_the_entry() -> None:
    """In the state time stands still while nobody writes."""
    site = Site(1)
    with site.world:
        (partition,) = site.partitions
        site.names(partition, None, 1)
        assert not site.due(partition)
        site.wall_ms = 10_000
        assert site.due(partition)
        site.wall_ms, partition.time = 0, 10_000
        assert site.due(partition)


def test_two_entries_bring_it_to_the_present_and_then_there_is_peace() -> None:
    site = Site(3)
    with site.world:
        site.sim.call(site.idle.start)
        site.partitions[2].leads = False
        site.partitions[1].max_applied_epoch = 99
        site.run(5)
        assert [partition.executed for partition in site.partitions] == [[99, 100], [100], []]
        assert site.idle.advances == 3
        site.epoch += LAG - 1
        site.run(5)
        assert site.idle.advances == 3, "a window's lower end is one epoch behind, and that is no lag yet"
        site.epoch += 1
        site.run(5)
        assert site.partitions[0].executed[2:] == [105, 106]


def test_the_more_there_are_the_further_they_may_lag() -> None:
    site = Site(3 * AT_FULL_PACE, epoch=100 - 3 * LAG)
    with site.world:
        site.sim.call(site.idle.start)
        site.run(20)
        assert [partition for partition in site.partitions if partition.executed] == []
        for partition in site.partitions[AT_FULL_PACE:]:
            partition.leads = False
        site.run(20)
        assert site.idle.advances == 2 * AT_FULL_PACE, "only those that are led here count"
        for partition in site.partitions:
            partition.leads = True
        site.epoch += 1
        site.run(20)
        assert site.idle.advances == 2 * 3 * AT_FULL_PACE


def test_few_at_a_time_and_those_that_are_stuck_keep_nobody_waiting() -> None:
    site = Site(3 * AT_ONCE)
    with site.world:
        for partition in site.partitions[: 2 * AT_ONCE - 10]:
            partition.stuck = True
        site.sim.call(site.idle.start)
        site.run(1.005)
        assert sum(len(partition.executed) for partition in site.partitions) == AT_ONCE
        site.run(3 * ADVANCE_SECONDS)
        assert all(
            partition.executed[:2] == [99, 100] for partition in site.partitions if not partition.stuck
        )
        assert all(partition.executed.count(99) >= 1 for partition in site.partitions)
        site.sim.call(site.idle.close)
        site.run(1)
        before = sum(len(partition.executed) for partition in site.partitions)
        assert not site.idle._under_way
        site.run(60)
        assert sum(len(partition.executed) for partition in site.partitions) == before
        site.world.check()


def test_one_that_is_stuck_is_asked_once_until_it_is_given_up() -> None:
    site = Site(2)
    with site.world:
        site.partitions[0].stuck = True
        site.sim.call(site.idle.start)
        site.run(ADVANCE_SECONDS - 1)
        assert site.partitions[0].executed == [99]
        site.run(5)
        assert site.partitions[0].executed == [99, 99]


def test_many_are_looked_at_in_pieces() -> None:
    site = Site(3 * SLICE, epoch=100)
    with site.world:
        looking, turns = site.idle._look(), 0
        while True:
            try:
                looking.send(None)
            except StopIteration:
                break
            turns += 1
        assert turns == 3


def test_a_partition_that_fails_is_reported_and_the_others_go_on() -> None:
    site = Site(2)
    with site.world:
        reported: list[Any] = []
        cast(Any, site.sim.loop).call_exception_handler = reported.append

        async def fail(command: AdvanceEpoch) -> None:
            raise ValueError("no")

        site.partitions[0].execute = fail  # type: ignore[method-assign]
        site.sim.call(site.idle.start)
        site.run(2.5)
        assert len(reported) == 2
        assert "idle partitions" in reported[0]["message"]
        assert site.partitions[1].max_applied_epoch == 100
