"""What has come to stay is not looked at again and again, and what went is given back all the same."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from strandline.node.runtime.garbage import CAME, GONE, LOOK_SECONDS, Garbage
from tests.runtime.jumping_loop import run


class Cycle:
    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    yield
    gc.unfreeze()
    if enabled:
        gc.enable()


def test_what_came_is_set_aside_and_what_went_is_collected() -> None:
    counts = [0, 0]
    loop = asyncio.new_event_loop()
    loop.close()  # it is asked to look, and waits for no time
    garbage = Garbage(lambda: (counts[0], counts[1]), loop)
    garbage.look()
    before = gc.get_freeze_count()
    counts[:] = [CAME - 1, CAME - 1]
    garbage.look()
    assert gc.get_freeze_count() == before, "not worth it"
    stays, goes = Cycle(), Cycle()
    there = weakref.ref(goes)
    counts[:] = [4 * GONE, 4 * GONE]
    garbage.look()
    assert gc.get_freeze_count() > before
    del goes
    gc.collect()
    assert there() is not None, "it was set aside"
    counts[:] = [4 * GONE - GONE + 1, 4 * GONE]
    garbage.look()
    assert there() is not None, "too few have gone"
    counts[:] = [3 * GONE, 4 * GONE]
    garbage.look()
    assert there() is None
    assert gc.get_freeze_count() > before
    assert stays.me is stays


def test_it_looks_once_for_groups_that_come_together_and_not_where_none_comes() -> None:
    looks: list[float] = []

    async def test() -> None:
        loop = asyncio.get_running_loop()

        def groups() -> tuple[int, int]:
            looks.append(round(loop.time() - began, 3))
            return 0, 0

        garbage, began = Garbage(groups, loop), loop.time()
        await asyncio.sleep(10)
        assert looks == []
        for _ in range(3):
            garbage.changed()
        await asyncio.sleep(10)
        assert looks == [10 + LOOK_SECONDS]
        garbage.changed()
        await asyncio.sleep(10)
        assert looks[1:] == [20 + LOOK_SECONDS]

    run(test)
