"""One host with its real log and snapshots, over many lives: what it acknowledged is there in the next."""

from __future__ import annotations

import random

import pytest

from node.raft.config import RaftConfig
from node.raft.outcome import Applied
from tests.holes.lone_host import LoneHost
from tests.register_map import set_register
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
                node.group.take_snapshot()
            node.loop.run()
            if self.chance.random() < 0.5:
                node.host._retain()
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
