"""A replica goes only when its partition has moved away for certain, and no leader counts on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from strandline.node.controller.client import ControllerClient
from strandline.node.controller.departures import LOOK_SECONDS, Departures
from strandline.node.raft.host import RaftHost
from tests.runtime.jumping_loop import run


class House:
    """Node 1 with a replica of group 5; `meanwhile` happens while the controller is asked."""

    def __init__(self) -> None:
        self.group = SimpleNamespace(term=3, journal=SimpleNamespace(last=7, last_term=3))
        self.groups: dict[int, Any] = {5: self.group}
        self.away = True
        self.reached = True
        self.asked = self.looked = 0
        self.left: list[int] = []
        self.meanwhile: Callable[[], None] = lambda: None

    async def catch_up(self, timeout: float) -> bool:  # noqa: ASYNC109
        self.asked += 1
        self.meanwhile()
        return self.reached

    def moved_away(self, node: int, group: int) -> bool:
        self.looked += 1
        return self.away and (node, group) == (1, 5)

    def leave(self, group: int) -> None:
        self.left.append(group)
        del self.groups[group]

    async def looks(self, count: int) -> None:
        host = SimpleNamespace(node_id=1, groups=self.groups)
        machine = SimpleNamespace(version=9, moved_away=self.moved_away)
        controller = SimpleNamespace(machine=machine, catch_up=self.catch_up)
        departures = Departures(
            cast(RaftHost, host), cast(ControllerClient, controller), self.leave,
            loop=asyncio.get_running_loop(),
        )  # fmt: skip
        departures.start()
        await asyncio.sleep((count + 0.5) * LOOK_SECONDS)
        departures.close()


def test_a_replica_whose_partition_moved_away_goes() -> None:
    house = House()
    run(lambda: house.looks(3))
    assert (house.left, house.asked) == ([5], 1)


def test_nothing_is_asked_while_nothing_moved() -> None:
    house = House()
    house.away = False
    run(lambda: house.looks(3))
    assert (house.left, house.asked) == ([], 0)
    assert house.looked == 1, "replicas are looked at once for each state of the controller"


def test_a_replica_stays_while_the_controller_does_not_answer() -> None:
    house = House()
    house.reached = False
    run(lambda: house.looks(3))
    assert (house.left, house.asked) == ([], 3)


def test_a_replica_stays_when_its_partition_is_on_its_way_back() -> None:
    house = House()

    def back() -> None:
        house.away = False

    house.meanwhile = back
    run(lambda: house.looks(3))
    assert house.left == []


def test_a_replica_that_a_leader_writes_to_stays() -> None:
    """Another leader made the node a member again, and what it acknowledges counts."""
    house = House()

    def written() -> None:
        house.group.journal.last += 1

    house.meanwhile = written
    run(lambda: house.looks(3))
    assert house.left == []
    house.meanwhile = lambda: None
    run(lambda: house.looks(1))
    assert house.left == [5]
