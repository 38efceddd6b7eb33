"""One host with its real log and snapshots, over many lives: what it acknowledged is there in the next."""

from __future__ import annotations

import random

import pytest

from strandline.node.raft.config import RaftConfig
from strandline.node.raft.outcome import Applied
from tests.raft.holes.lone_host import LoneHost
from tests.raft.register_map import RegisterMap, set_register
from tests.simulation.disk import SimCrash, SimDisk

SMALL = RaftConfig(trailing_entries=3, max_wal_segments=2, snapshot_entries=12)


class Lives:
    """A node that is killed again and again, in the middle of whatever its disk does."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.disk = SimDisk(random.Random(seed))
        self.acknowledged: dict[str, int] = {}
        self.number = 0
        self.segments: set[int] = set()

    def live(self) -> None:
        """Start, check what is there, work for a while, die."""
        node = LoneHost(self.disk, segment_bytes=2048, raft=SMALL).lead()
        node.write(self.next())
        self.acknowledged[str(self.number)] = self.number
        assert {key: node.machine.registers.get(key) for key in self.acknowledged} == self.acknowledged
        assert node.machine.doubled == []
        if self.chance.random() < 0.7:
            self.disk.crash_at(self.chance.randint(1, 60), self.chance.choice(["kill", "power"]))
        try:
            for _ in range(self.chance.randint(1, 12)):
                self.work(node)
        except SimCrash:
            pass
        self.segments.add(node.host.wal.first_segment)
        self.disk.crash(self.chance.choice(["kill", "power"]))

    def next(self) -> int:
        self.number += 1
        return self.number

    def work(self, node: LoneHost) -> None:
        numbers = [self.next() for _ in range(self.chance.randint(1, 5))]
        futures = {
            number: node.group.replicate(set_register(number, str(number), number), node.group.term)
            for number in numbers
        }
        try:
            if self.chance.random() < 0.3:
                node.group.taking.take()
            node.loop.run()
            if self.chance.random() < 0.5:
                node.host.retention.run()
                node.loop.run()
        finally:
            self.acknowledged |= {
                str(number): number
                for number, future in futures.items()
                if future.done() and isinstance(future.result(), Applied)
            }


@pytest.mark.parametrize("seed", range(6))
def test_what_was_acknowledged_is_there_in_every_later_life(seed: int) -> None:
    lives = Lives(seed)
    for _ in range(12):
        lives.live()
    assert len(lives.acknowledged) > 40
    assert max(lives.segments) > 3, "segments were dropped on the way"


def test_a_stored_group_that_nobody_creates_is_named_and_can_be_let_go() -> None:
    """It pins its part of the write-ahead log until then: what nobody asks for is not forgotten by itself."""
    disk = SimDisk(random.Random(1))
    node = LoneHost(disk).lead()
    node.host.create_group(77, RegisterMap(), (1,))
    node.loop.run()
    disk = node.killed("kill")

    again = LoneHost(disk)
    assert again.host.stored_groups() == [77]
    again.host.remove_group(77)
    again.loop.run()
    assert again.host.stored_groups() == []
    with pytest.raises(ValueError, match="no group 77 on this node"):
        again.host.remove_group(77)

    assert LoneHost(again.killed("power")).host.stored_groups() == []


def test_it_is_told_when_a_group_comes_and_when_one_goes() -> None:
    node = LoneHost(SimDisk(random.Random(1))).lead()
    told: list[list[int]] = []
    node.host.on_groups_changed = lambda: told.append(sorted(node.host.groups))
    node.host.create_group(77, RegisterMap(), (1,))
    node.host.create_group(78, RegisterMap(), (1,))
    node.host.remove_group(77)
    node.host.leave_group(78)
    first = node.group.id
    assert told == [[first, 77], [first, 77, 78], [first, 78], [first]]


def test_a_snapshot_stored_late_does_not_bring_a_removed_group_back() -> None:
    disk = SimDisk(random.Random(1))
    node = LoneHost(disk).lead()
    node.write(1, 2, 3)
    assert node.group.taking.take()
    node.host.remove_group(node.group.id)
    node.loop.run()
    again = LoneHost(node.killed("power"))
    assert again.machine.registers == {}
    assert again.group.journal.base == 0


def test_a_snapshot_of_another_kind_of_machine_is_refused() -> None:
    class OtherMap(RegisterMap):
        kind = "other-map"

    node = LoneHost(SimDisk(random.Random(1))).lead()
    node.write(1)
    node.snapshot()
    with pytest.raises(ValueError, match="holds a snapshot of a register-map, not of a other-map"):
        LoneHost(node.killed("kill"), machine=OtherMap())
