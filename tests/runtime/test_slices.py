"""Looks at thousands of items: all that there were, in order, with a turn of the loop after each slice."""

from __future__ import annotations

import asyncio

import pytest

from strandline.node.runtime.slices import in_slices, slices_of
from tests.runtime.jumping_loop import run


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(("items", "turns"), [(0, 0), (3, 0), (4, 1), (7, 1), (8, 2)])
def test_each_item_once_and_a_turn_after_each_whole_slice(items: int, turns: int, whole: bool) -> None:
    present = [*range(items)]
    taken: list[int] = []
    between: list[int] = []

    async def look() -> None:
        loop = asyncio.get_running_loop()

        def turn() -> None:
            between.append(len(taken))
            loop.call_soon(turn)

        loop.call_soon(turn)
        if whole:
            async for slice_ in slices_of(present, 4):
                present.clear()
                taken.extend(slice_)
        else:
            async for item in in_slices(present, 4):
                present.clear()
                taken.append(item)
        turned = [*between]
        assert taken == [*range(items)]
        assert turned == [4 * number for number in range(1, turns + 1)]

    run(look)
