"""Parts that pause for about the same time wake at the same moment."""

from __future__ import annotations

import asyncio
from math import inf
from unittest.mock import patch

import pytest

from strandline.node.runtime import rounds
from strandline.node.runtime.rounds import GRID_SECONDS, next_round, until_round
from tests.level_zero.samples import started
from tests.simulation.world import World


def test_pauses_that_begin_at_different_times_end_together() -> None:
    world = World(1)
    sim = started(world)
    ends: list[float] = []

    async def pause(begins: float, seconds: float) -> None:
        await asyncio.sleep(begins)
        for _ in range(3):
            await next_round(seconds)
            ends.append(sim.loop.time())
            await asyncio.sleep(0.01)

    with world:
        first = sim.loop.time()
        for begins in (0.0, 0.03, 0.06, 0.1):
            sim.spawn(pause(begins, 2 * GRID_SECONDS))
        sim.spawn(pause(0.05, 1.0))
        world.run(world.now + 10)
    moments = sorted({round(end - first, 6) for end in ends})
    assert moments == [0.5, 1.0, 1.5, 2.0, 3.0], "each within half a grid of what was asked for"


def test_a_short_pause_is_what_it_is_and_so_is_any_without_a_grid() -> None:
    world = World(1)
    sim = started(world)
    with world:
        until_round(sim.loop, 1.0)
        world.run(world.now + 0.1)
        assert until_round(sim.loop, 0.2) == 0.2
        assert until_round(sim.loop, 1.0) == pytest.approx(0.9)
        with patch.object(rounds, "GRID_SECONDS", inf):
            assert until_round(sim.loop, 1.0) == 1.0


def test_each_loop_has_a_grid_of_its_own() -> None:
    world = World(1)
    sim = started(world)
    with world:
        until_round(sim.loop, 1.0)
        world.run(world.now + 0.1)
        other = world.add_node(7)
        other.start(lambda _: None)
        world.run(world.now)
        assert until_round(other.loop, 1.0) == pytest.approx(1.0)
