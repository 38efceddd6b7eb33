"""What has come to stay is not looked at again and again, and what went is given back all the same."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from strandline.node.runtime.garbage import CAME, GONE, Garbage


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
    garbage = Garbage(lambda: (counts[0], counts[1]))
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
