"""Requests that are sent twice: when, how many, which, and what the two of them are together."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest

from strandline.node.objectstore.hedging import (
    ENOUGH,
    LEAST_SECONDS,
    MOST_PUT_BYTES,
    MOST_UNDER_WAY,
    PAUSE_SECONDS,
    SAVED,
    Hedging,
)
from strandline.node.objectstore.retries import RetryingStore, RetryPolicy
from strandline.node.objectstore.store import (
    Buffer,
    NotDone,
    ObjectNotFound,
    ObjectStore,
    OutcomeUnknown,
    StoreError,
)
from tests.level_zero.samples import run, started
from tests.simulation.world import World

NAME = "l0/0001/00000000000000000001/1-00"
POLICY = RetryPolicy(attempts=1, attempt_seconds=10.0)


@dataclass
class Call:
    operation: str
    key: str
    data: bytes
    at: float
    seconds: float | None = None
    """Time of its answer, None if it has none."""
    cancelled: bool = False


class Timed(ObjectStore):
    """Answers the n-th call after `seconds(n)`, with the error `error(n)` if there is one."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.max_object_bytes = 1 << 30
        self.calls: list[Call] = []
        self.seconds: Callable[[int], float] = lambda _: 0.1
        self.error: Callable[[int], StoreError | None] = lambda _: None
        self._loop = loop

    async def _answer(self, operation: str, key: str, data: bytes = b"") -> None:
        number = len(self.calls)
        call = Call(operation, key, data, self._loop.time())
        self.calls.append(call)
        try:
            await asyncio.sleep(self.seconds(number))
        except asyncio.CancelledError:
            call.cancelled = True
            raise
        call.seconds = self._loop.time() - call.at
        if (error := self.error(number)) is not None:
            raise error

    async def put(self, key: str, parts: Sequence[Buffer]) -> None:
        await self._answer("put", key, b"".join(parts))

    async def get(self, key: str) -> Buffer:
        await self._answer("get", key)
        return b"data"

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        await self._answer("get_range", key)
        return bytes(length)

    async def size(self, key: str) -> int:
        await self._answer("size", key)
        return 4

    async def list(self, prefix: str, after: str, limit: int) -> list[str]:
        await self._answer("list", prefix)
        return []

    async def delete_many(self, keys: Sequence[str]) -> None:
        await self._answer("delete", keys[0])

    async def close(self) -> None:
        """Nothing to let go of."""


class Case:
    def __init__(self, *, puts: bool = True, policy: RetryPolicy = POLICY) -> None:
        self.world = World(1)
        self.node = started(self.world)
        self.bucket = Timed(self.node.loop)
        self.hedging = Hedging(loop=self.node.loop, puts=puts)
        self.store = RetryingStore(
            self.bucket, policy, loop=self.node.loop, rng=random.Random(1), hedging=self.hedging
        )

    def get(self) -> float:
        began = self.world.now
        run(self.world, self.node, self.store.get("a"))
        return self.world.now - began

    def put(self, key: str = NAME, size: int = 10) -> None:
        run(self.world, self.node, self.store.put(key, [bytes(size)]))

    def warm(self, what: Callable[[], object], count: int = ENOUGH) -> None:
        """So many answers of 0.1 s, and the leave for one second request from each twenty."""
        # Each a little quicker than the one before, so that none is later than nearly all others.
        self.bucket.seconds = lambda number: 0.1 - 1e-6 * number
        for _ in range(count):
            what()
        assert len(self.bucket.calls) == count
        self.bucket.calls.clear()
        self.bucket.seconds = lambda _: 0.09

    def unlucky(self, *numbers: int, seconds: float = 5.0) -> None:
        """These calls from now on take long, the others 0.09 s."""
        late = [len(self.bucket.calls) + number for number in numbers]
        self.bucket.seconds = lambda number: seconds if number in late else 0.09


@pytest.fixture
def case() -> Iterator[Case]:
    made = Case()
    with made.world:
        yield made
        made.world.check()


def test_a_read_that_takes_longer_than_nearly_all_is_sent_again_and_the_first_answer_counts(
    case: Case,
) -> None:
    case.warm(case.get)
    case.unlucky(0)
    assert case.get() == pytest.approx(0.2, abs=0.01)
    first, second = case.bucket.calls
    assert second.at - first.at == pytest.approx(0.1, abs=0.01)
    assert (first.cancelled, second.cancelled) == (True, False)
    assert (case.hedging.sent["get"], case.hedging.won["get"]) == (1, 1)
    assert case.store.requests["get"] == ENOUGH + 2, "the store's bill has it"


def test_the_first_request_may_win_all_the_same(case: Case) -> None:
    case.warm(case.get)
    case.bucket.seconds = lambda number: 0.15 if number == 0 else 5.0
    assert case.get() == pytest.approx(0.15, abs=0.01)
    assert case.bucket.calls[1].cancelled
    assert (case.hedging.sent["get"], case.hedging.won["get"]) == (1, 0)


def test_nothing_is_sent_twice_while_too_few_answers_are_known_or_the_store_is_near(case: Case) -> None:
    case.warm(case.get, ENOUGH - 1)
    case.unlucky(0, seconds=1.0)
    assert case.get() == pytest.approx(1.0, abs=0.01)
    near = Case()
    near.bucket.seconds = lambda number: 0.001 - 1e-6 * number
    for _ in range(3 * ENOUGH):
        near.get()
    near.bucket.calls.clear()
    near.bucket.seconds = lambda _: LEAST_SECONDS * 0.9
    near.get()
    assert len(near.bucket.calls) == 1
    near.world.close()


def test_what_takes_long_because_it_is_large_is_not_held_against_small_ones(case: Case) -> None:
    def read(length: int) -> None:
        run(case.world, case.node, case.store.get_range("a", 0, length))

    case.warm(lambda: read(10), 2 * ENOUGH)
    case.bucket.seconds = lambda _: 3.0
    read(8 << 20)
    assert len(case.bucket.calls) == 1


def test_one_of_twenty_requests_is_sent_twice_at_most(case: Case) -> None:
    case.warm(case.get, 100)
    rng = random.Random(1)
    case.bucket.seconds = lambda _: 0.3 if rng.random() < 0.04 else 0.1
    for _ in range(3000):
        case.get()
    assert 60 < case.hedging.sent["get"] <= 0.05 * 3100
    rng = random.Random(2)
    before = case.hedging.sent["get"]
    # Two kinds of answers: the percentile lies at the slower, and is passed by what comes on top of it.
    case.bucket.seconds = lambda _: 0.3 + 0.001 * rng.random() if rng.random() < 0.5 else 0.1
    for _ in range(2000):
        case.get()
    assert case.hedging.sent["get"] - before <= 0.05 * 2000 + SAVED


def test_leave_to_send_twice_is_saved_up_for_a_few(case: Case) -> None:
    case.warm(case.get, 1000)
    case.bucket.seconds = lambda number: 0.3 if number % 2 else 0.09
    for _ in range(60):
        case.get()
    assert case.hedging.sent["get"] <= SAVED + 0.05 * 60
    assert case.hedging.sent["get"] >= SAVED


def test_none_is_sent_twice_for_a_while_after_a_failure(case: Case) -> None:
    case.warm(case.get, 3 * ENOUGH)
    case.bucket.error = lambda _: NotDone("list", "", "503 SlowDown", retriable=True)
    with pytest.raises(NotDone):
        run(case.world, case.node, case.store.list("", "", 1))
    case.bucket.error = lambda _: None
    case.bucket.calls.clear()
    case.unlucky(0, seconds=1.0)
    assert case.get() == pytest.approx(1.0, abs=0.01)
    assert case.hedging.refused == 1
    case.world.run(case.world.now + PAUSE_SECONDS)
    case.unlucky(0)
    assert case.get() < 1.0


def test_a_failure_that_a_second_request_made_up_for_is_one_too(case: Case) -> None:
    case.warm(case.get, 3 * ENOUGH)
    case.bucket.seconds = lambda number: 0.15 if number == 0 else 0.1
    case.bucket.error = lambda number: (
        NotDone("get", "a", "503 SlowDown", retriable=True) if number == 0 else None
    )
    assert case.get() == pytest.approx(0.2, abs=0.01)
    case.bucket.calls.clear()
    case.bucket.error = lambda _: None
    case.unlucky(0, seconds=1.0)
    assert case.get() == pytest.approx(1.0, abs=0.01)


def test_that_an_object_is_not_there_is_no_failure_and_an_answer(case: Case) -> None:
    case.warm(case.get, 3 * ENOUGH)
    case.bucket.seconds = lambda number: 5.0 if number == 0 else 0.1
    case.bucket.error = lambda _: ObjectNotFound("get", "a")
    began = case.world.now
    with pytest.raises(ObjectNotFound):
        case.get()
    assert case.world.now - began < 1.0
    case.bucket.error = lambda _: None
    case.bucket.calls.clear()
    case.unlucky(0)
    assert case.get() < 1.0


def test_a_silent_store_gets_a_few(case: Case) -> None:
    case.warm(case.get, 200)
    case.bucket.seconds = lambda _: 100.0
    tasks = [case.node.loop.create_task(case.store.get("a")) for _ in range(50)]
    case.world.run(case.world.now + 9.0)
    assert len(case.bucket.calls) == 50 + MOST_UNDER_WAY
    case.world.run(case.world.now + 2.0)
    assert all(isinstance(task.exception(), OutcomeUnknown) for task in tasks)
    assert all(call.cancelled for call in case.bucket.calls)


def test_puts_of_level_zero_objects_alone_are_sent_twice_with_the_same_bytes(case: Case) -> None:
    case.warm(lambda: case.put(size=1000), 3 * ENOUGH)
    case.unlucky(0)
    case.put(size=1000)
    first, second = case.bucket.calls
    assert (first.key, first.data) == (second.key, second.data) == (NAME, bytes(1000))
    assert case.hedging.won["put"] == 1
    hedging = case.hedging
    assert not hedging.covers("put", "cluster", 1000)
    assert not hedging.covers("put", "l1/a", 1000)
    assert not hedging.covers("put", NAME, MOST_PUT_BYTES + 1)
    assert not hedging.covers("list", "", 0)
    assert not hedging.covers("delete", NAME, 0)
    assert not Hedging(loop=case.node.loop, puts=False).covers("put", NAME, 1000)
    assert Hedging(loop=case.node.loop, puts=False).covers("get_range", NAME, 1000)


def unknown() -> StoreError:
    return OutcomeUnknown("put", NAME, "connection reset")


def refused() -> StoreError:
    return NotDone("put", NAME, "503 SlowDown", retriable=True)


@pytest.mark.parametrize(
    ("errors", "kind"),
    [
        ((refused(), refused()), NotDone),
        ((unknown(), refused()), OutcomeUnknown),
        ((refused(), unknown()), OutcomeUnknown),
        ((refused(), None), None),
        ((unknown(), None), None),
    ],
)
def test_a_put_sent_twice_is_definite_only_if_both_are(
    case: Case, errors: tuple[StoreError | None, ...], kind: type[StoreError] | None
) -> None:
    case.warm(case.put, 3 * ENOUGH)
    case.bucket.seconds = lambda _: 0.15
    case.bucket.error = lambda number: errors[number]
    if kind is None:
        case.put()
    else:
        with pytest.raises(StoreError) as raised:
            case.put()
        assert type(raised.value) is kind
    assert len(case.bucket.calls) == 2


def test_a_mistake_of_the_client_library_is_told_as_it_is(case: Case) -> None:
    case.warm(case.put, 3 * ENOUGH)
    case.bucket.seconds = lambda _: 0.15

    def broken(number: int) -> StoreError | None:
        raise RuntimeError("a bug")

    case.bucket.error = broken
    case.bucket.seconds = lambda number: 5.0 if number else 0.15
    began = case.world.now
    with pytest.raises(RuntimeError, match="a bug"):
        case.put()
    assert case.world.now - began < 1.0


def test_a_caller_that_goes_away_takes_both_requests_along(case: Case) -> None:
    case.warm(case.get, 3 * ENOUGH)
    case.bucket.seconds = lambda _: 5.0
    task = case.node.loop.create_task(case.store.get("a"))
    case.world.run(case.world.now + 1.0)
    task.cancel()
    case.world.run(case.world.now + 0.1)
    assert [call.cancelled for call in case.bucket.calls] == [True, True]


def test_a_request_that_fails_as_its_caller_goes_away_is_looked_at(case: Case) -> None:
    """Else the loop would tell of an error that "was never retrieved"."""
    case.warm(case.get, 3 * ENOUGH)

    def goes_away(number: int) -> StoreError:
        task.cancel()
        return refused()

    case.bucket.error = goes_away
    task = case.node.loop.create_task(case.store.get("a"))
    case.world.run(case.world.now + 1.0)
    assert task.cancelled()
    case.node.loop.report_unretrieved()
    case.world.check()
