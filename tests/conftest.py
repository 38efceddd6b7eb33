"""How several workers share the tests: a file of tests, or a folder with costly fixtures, is one worker's.

So no cluster and no Spark session is built twice. The units that took longest, as recorded, come first; tests
that share nothing come last and one by one, for the workers to end at the same time.
"""

from __future__ import annotations

import gc
import os
import time
from collections import defaultdict
from collections.abc import Generator

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from tests.units import SET_UP, is_shared_out, recorded_seconds, unit_of

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")  # No test may fail because other work has the processor.


class ByUnit(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling:
    config.option.loadscopereorder = False  # the order is the one below
    return ByUnit(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not hasattr(config, "workerinput"):
        return
    seconds: defaultdict[str, float] = defaultdict(float)
    for path, took in recorded_seconds().items():
        seconds[unit_of(path)] += took
    items.sort(key=lambda item: (is_shared_out(item.nodeid), -seconds[unit_of(item.nodeid)]))


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # a collection that looks at all modules and all tests costs a third of a second


class SetUps:
    """Notes what a fixture costs that files share, so that not its first user alone seems to take long."""

    def __init__(self) -> None:
        self._running: pytest.Item | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self._running = item

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> Generator[None, object, object]:
        started = time.perf_counter()
        made = yield
        if fixturedef.scope in ("session", "package") and fixturedef.baseid and self._running:
            name = f"{SET_UP}{fixturedef.baseid}/conftest.py::{fixturedef.argname}"
            self._running.user_properties.append((name, time.perf_counter() - started))
        return made


def pytest_configure(config: pytest.Config) -> None:
    # Not functions of this file: pytest asks no conftest.py below the root of fixtures for the session.
    config.pluginmanager.register(SetUps())
    # Nodes of tests take the checkpoints that a test asks for. The first by itself comes after a minute, at
    # one place or another of the tests that share a cluster.
    os.environ["STRANDLINE_CHECKPOINTS_INTERVAL"] = "0"
