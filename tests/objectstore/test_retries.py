"""Retries: bounded in every way, and truthful about what may have happened."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable, Sequence

import pytest

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
from tests.simulation.node import SimNode
from tests.simulation.world import World

Answer = Callable[[], StoreError | None]


def refused() -> StoreError:
    return NotDone("put", "a", "busy", retriable=True)


def forbidden() -> StoreError:
    return NotDone("put", "a", "forbidden", retriable=False)


def lost() -> StoreError:
    return OutcomeUnknown("put", "a", "connection reset")


def fine() -> None:
    return None


class Scripted(ObjectStore):
    """Answers each call as told, and the last way ever after; None in place of an answer never answers."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *answers: Answer | None) -> None:
        self.max_object_bytes = 1000
        self.loop = loop
        self.answers = list(answers)
        self.calls: list[tuple[float, str, bytes]] = []

    async def put(self, key: str, parts: Sequence[Buffer]) -> None:
        self.calls.append((self.loop.time(), key, b"".join(parts)))
        await self.answer()

    async def get(self, key: str) -> Buffer:
        self.calls.append((self.loop.time(), key, b""))
        await self.answer()
        return b"data"

    async def answer(self) -> None:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            await self.loop.create_future()
        elif (error := answer()) is not None:
            raise error

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        raise AssertionError

    async def size(self, key: str) -> int:
        raise AssertionError

    async def list(self, prefix: str, after: str, limit: int) -> list[str]:
        raise AssertionError

    async def delete_many(self, keys: Sequence[str]) -> None:
        raise AssertionError

    async def close(self) -> None:
        raise AssertionError


class Case:
    def __init__(self, *answers: Answer | None, policy: RetryPolicy | None = None) -> None:
        self.world = World(1)
        self.node: SimNode = started(self.world)
        self.scripted = Scripted(self.node.loop, *answers)
        policy = policy or RetryPolicy()
        self.store = RetryingStore(self.scripted, policy, loop=self.node.loop, rng=random.Random(1))

    def put(self) -> None:
        run(self.world, self.node, self.store.put("a", [b"some ", b"bytes"]))

    def get(self) -> Buffer:
        return run(self.world, self.node, self.store.get("a"))

    @property
    def times(self) -> list[float]:
        return [when for when, _, _ in self.scripted.calls]


def test_a_retry_has_the_same_name_and_the_same_bytes() -> None:
    case = Case(refused, lost, refused, fine)
    case.put()
    assert [call[1:] for call in case.scripted.calls] == [("a", b"some bytes")] * 4
    assert case.store.retries == 3


def test_what_cannot_succeed_is_not_tried_again() -> None:
    case = Case(forbidden)
    with pytest.raises(NotDone, match="forbidden"):
        case.put()
    assert len(case.times) == 1


def test_an_error_keeps_its_cause_and_is_not_its_own() -> None:
    """What looks through causes, as for a full disk, would find none, and never end."""
    cause = OSError(errno.ENOSPC, "No space left on device")

    def full() -> StoreError:
        error = forbidden()
        error.__cause__ = cause
        return error

    with pytest.raises(NotDone) as raised:
        Case(full).put()
    assert raised.value.__cause__ is cause


def test_attempts_are_bounded() -> None:
    case = Case(refused, policy=RetryPolicy(attempts=4))
    with pytest.raises(NotDone, match="busy"):
        case.put()
    assert len(case.times) == 4


def test_a_put_is_definite_only_if_every_attempt_was() -> None:
    case = Case(lost, refused, forbidden)
    with pytest.raises(OutcomeUnknown, match=r"forbidden; an attempt before it had no answer \(connection"):
        case.put()
    definite = Case(refused, refused, forbidden)
    with pytest.raises(NotDone, match="forbidden"):
        definite.put()


def test_a_read_is_definite_whatever_came_before() -> None:
    case = Case(None, lambda: ObjectNotFound("get", "a"))
    with pytest.raises(ObjectNotFound):
        case.get()


def test_an_attempt_without_an_answer_ends_and_its_outcome_is_unknown() -> None:
    case = Case(None, policy=RetryPolicy(attempts=1, attempt_seconds=3.0))
    with pytest.raises(OutcomeUnknown, match="no answer within 3 s"):
        case.put()
    assert case.node.loop.time() == pytest.approx(3.0, abs=0.01)


def test_all_attempts_together_end_in_time() -> None:
    case = Case(None, policy=RetryPolicy(attempts=100, attempt_seconds=4.0, total_seconds=10.0))
    with pytest.raises(OutcomeUnknown):
        case.put()
    assert case.node.loop.time() <= 10.01
    assert len(case.times) == 3


def test_delays_double_up_to_the_limit_and_differ_by_chance() -> None:
    policy = RetryPolicy(attempts=8, first_delay_seconds=0.1, max_delay_seconds=1.0)
    case = Case(refused, policy=policy)
    with pytest.raises(NotDone):
        case.put()
    pauses = [later - earlier for earlier, later in zip(case.times, case.times[1:], strict=False)]
    for pause, full in zip(pauses, [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0], strict=True):
        assert full / 2 <= pause <= full + 1e-6
    assert len({round(pause, 6) for pause in pauses[-3:]}) == 3


def test_the_budget_is_shared_and_successes_earn_it_back() -> None:
    policy = RetryPolicy(attempts=10, budget=5, earned_by_success=0.5)
    case = Case(refused, policy=policy)
    for _ in range(3):
        with pytest.raises(NotDone):
            case.put()
    assert len(case.times) == 3 + 5
    assert case.store.exhausted == 3
    case.scripted.answers = [fine]
    for _ in range(100):
        case.put()
    case.scripted.answers = [refused]
    with pytest.raises(NotDone):
        case.put()
    assert case.store.retries == 10, "100 successes fill the budget, and no more than that"


def test_cancelling_the_caller_ends_the_retries() -> None:
    case = Case(refused)
    task = case.node.loop.create_task(case.store.put("a", [b"x"]))
    case.world.run(0.01)
    task.cancel()
    case.world.run(100.0)
    assert task.cancelled()
    assert len(case.times) == 1


def test_success_returns_what_the_store_gave() -> None:
    case = Case(refused, fine)
    assert case.get() == b"data"


@pytest.mark.parametrize(
    "wrong",
    [
        {"attempts": 0},
        {"budget": -1},
        {"attempt_seconds": 40.0},
        {"first_delay_seconds": 0.0},
        {"earned_by_success": 2.0},
    ],
)
def test_a_policy_that_contradicts_itself_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - each has a message of its own
        RetryPolicy(**wrong)  # type: ignore[arg-type]
