"""The cache of level one: in what order things go, what is loaded once, and how much may be read ahead."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import NamedTuple

import pytest

from strandline.node.level_one.block_cache import BlockCache, Key, arrived
from strandline.node.objectstore.store import NotDone
from tests.partition.lone import TaskLoop
from tests.runtime.manual_loop import ManualLoop


class Thing(NamedTuple):
    name: str
    bytes: int = 10
    sound: bool = True


class Loads:
    """Loads that end when a test says."""

    def __init__(self, loop: ManualLoop) -> None:
        self.started: dict[str, asyncio.Future[Thing]] = {}
        self._loop = loop

    def of(self, name: str) -> Callable[[], Awaitable[Thing]]:
        async def load() -> Thing:
            self.started[name] = self._loop.create_future()
            return await self.started[name]

        return load

    def end(self, name: str, size: int = 10, *, sound: bool = True) -> None:
        self.started[name].set_result(Thing(name, size, sound))
        self._loop.run()


class Case:
    def __init__(self, max_bytes: int = 40, *, by_use: bool = False) -> None:
        self.loop = TaskLoop()  # type: ignore[abstract]
        self.cache: BlockCache[Thing] = BlockCache(max_bytes, loop=self.loop, by_use=by_use)
        self.loads = Loads(self.loop)

    def get(self, name: str) -> Thing | asyncio.Future[object]:
        found = self.cache.get(key(name), self.loads.of(name))
        self.loop.run()
        return found  # type: ignore[return-value]

    def ahead(self, name: str, size: int = 10) -> bool:
        started = self.cache.ahead(key(name), size, self.loads.of(name))
        self.loop.run()
        return started

    def put(self, *names: str) -> None:
        for name in names:
            self.cache.put(key(name), Thing(name))

    def close(self) -> None:
        asyncio.Task(self.cache.close(), loop=self.loop)
        self.loop.run()

    def here(self, names: str) -> str:
        return "".join(name for name in names if self.cache.peek(key(name)) is not None)


@pytest.fixture
def case() -> Iterator[Case]:
    made = Case()
    yield made
    made.close()


def key(name: str) -> Key:
    return name.encode(), 0


def test_the_oldest_goes_first_used_or_not(case: Case) -> None:
    case.put(*"abcd")
    assert case.get("a") == Thing("a")
    case.put("e")
    assert case.here("abcde") == "bcde"
    assert (case.cache.bytes, len(case.cache), case.cache.evicted) == (40, 4, 1)


def test_the_least_recently_used_goes_first_where_use_counts() -> None:
    case = Case(by_use=True)
    case.put(*"abcd")
    case.get("a")
    case.put("e")
    assert case.here("abcde") == "acde"


def test_what_is_larger_than_the_cache_is_not_kept_and_pushes_nothing_out(case: Case) -> None:
    case.put("a")
    case.cache.put(key("b"), Thing("b", 41))
    assert case.here("ab") == "a"


def test_what_is_wanted_twice_is_loaded_once(case: Case) -> None:
    first, second = case.get("a"), case.get("a")
    assert list(case.loads.started) == ["a"]
    case.loads.end("a")
    assert isinstance(first, asyncio.Future)
    assert isinstance(second, asyncio.Future)
    assert first.result() == second.result() == Thing("a")
    assert case.get("a") == Thing("a")
    assert (case.cache.hits, case.cache.misses, case.cache.joined) == (1, 2, 1)


def test_what_is_damaged_is_given_to_who_waits_and_not_kept(case: Case) -> None:
    found = case.get("a")
    case.loads.end("a", sound=False)
    assert isinstance(found, asyncio.Future)
    assert found.result() == Thing("a", 10, False)
    assert case.here("a") == ""


def test_a_load_that_fails_fails_for_who_waits_and_is_begun_anew(case: Case) -> None:
    found = case.get("a")
    assert isinstance(found, asyncio.Future)
    case.loads.started["a"].set_exception(NotDone("get_range", "a", "no", retriable=True))
    case.loop.run()
    waiting: asyncio.Task[Thing] = asyncio.Task(arrived(found), loop=case.loop)  # type: ignore[arg-type]
    case.loop.run()
    with pytest.raises(NotDone, match="no"):
        waiting.result()
    case.get("a")
    case.loads.end("a")
    assert case.get("a") == Thing("a")


def test_an_unforeseen_failure_is_reported_and_ends_the_wait(case: Case) -> None:
    problems: list[object] = []
    case.loop.call_exception_handler = lambda context: problems.append(context["message"])  # type: ignore[method-assign]
    found = case.get("a")
    assert isinstance(found, asyncio.Future)
    case.loads.started["a"].set_exception(RuntimeError("a mistake"))
    case.loop.run()
    assert isinstance(found.result(), NotDone)
    assert problems == ["reading level one"]


def test_read_ahead_takes_up_to_half_of_the_cache_until_it_is_used(case: Case) -> None:
    assert [case.ahead(name) for name in "abc"] == [True, True, False]
    case.loads.end("a")
    assert not case.ahead("c")
    assert case.get("a") == Thing("a")
    assert case.ahead("c")
    assert case.cache.ahead_bytes == 20


def test_read_ahead_of_what_is_here_or_coming_starts_nothing(case: Case) -> None:
    case.put("a")
    case.get("b")
    assert case.ahead("a")
    assert case.ahead("b")
    assert (list(case.loads.started), case.cache.ahead_bytes) == (["b"], 0)


def test_what_was_read_ahead_is_spared_once_until_it_is_asked_for(case: Case) -> None:
    case.ahead("a")
    case.loads.end("a")
    case.put(*"bcde")
    assert case.here("abcde") == "acde"
    case.get("a")
    case.put(*"fgh")
    assert case.here("acdefgh") == "afgh"
    case.put("i")
    assert case.here("afghi") == "fghi"
    assert case.cache.wasted == 0


def test_what_was_read_ahead_for_nothing_goes_is_counted_and_makes_room(case: Case) -> None:
    case.ahead("a")
    case.loads.end("a")
    case.put(*"bcdefgh")
    assert case.here("a") == "a"
    assert case.cache.ahead_bytes == 10
    case.put("i")
    assert (case.here("a"), case.cache.wasted, case.cache.ahead_bytes) == ("", 1, 0)
    assert (case.cache.bytes, len(case.cache)) == (40, 4)


def test_read_ahead_that_fails_or_is_damaged_or_too_large_takes_no_room(case: Case) -> None:
    case.ahead("a")
    case.loads.started["a"].set_exception(NotDone("get_range", "a", "no", retriable=True))
    case.ahead("b")
    case.loads.end("b", sound=False)
    case.ahead("c")
    case.loads.end("c", 41)
    assert (case.cache.ahead_bytes, len(case.cache)) == (0, 0)


def test_a_closed_cache_ends_every_wait_and_starts_nothing(case: Case) -> None:
    running = case.get("a")
    asyncio.Task(case.cache.close(), loop=case.loop)
    unstarted = case.cache.get(key("b"), case.loads.of("b"))
    case.loop.run()
    late = case.get("c")
    assert not case.ahead("d")
    for one in (running, unstarted, late):
        assert isinstance(one, asyncio.Future)
        assert isinstance(one.result(), NotDone)
    assert list(case.loads.started) == ["a"]


def test_a_cache_of_less_than_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="-1 bytes"):
        Case(-1)
