"""A store that fails is told of, once a minute until it is over; and is looked at while idle."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence

import pytest

from strandline.node.objectstore.retries import RetryingStore, RetryPolicy
from strandline.node.objectstore.storage_owner import KEY, OwnedStore, Owner
from strandline.node.objectstore.store import Buffer, NotDone, ObjectNotFound, ObjectStore, StoreError
from strandline.node.objectstore.store_health import OperationKind
from strandline.node.objectstore.store_watch import IDLE_SECONDS, StoreWatch
from tests.level_zero.samples import run, started
from tests.simulation.world import World

BUCKET = "s3://orders/prefix"
OWNER = Owner("orders", "first")


class Switched(ObjectStore):
    """Fails at what `wrong` says, hangs at what `silent` says, and is empty."""

    max_object_bytes = 1 << 20

    def __init__(self) -> None:
        self.wrong: dict[str, StoreError] = {}
        self.silent = False
        self.asked: list[str] = []

    async def _answer(self, operation: str) -> None:
        self.asked.append(operation)
        if self.silent:
            await asyncio.get_running_loop().create_future()
        if operation in self.wrong:
            raise self.wrong[operation]

    async def put(self, key: str, parts: Sequence[Buffer]) -> None:
        await self._answer("put")

    async def get(self, key: str) -> Buffer:
        await self._answer("get")
        if key == KEY:
            return OWNER.document().encode()
        raise ObjectNotFound("get", key)

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        raise AssertionError

    async def size(self, key: str) -> int:
        await self._answer("size")
        raise ObjectNotFound("size", key)

    async def list(self, prefix: str, after: str, limit: int) -> list[str]:
        await self._answer("list")
        return []

    async def delete_many(self, keys: Sequence[str]) -> None:
        await self._answer("delete")

    async def close(self) -> None:
        return None


def full(operation: str = "put") -> NotDone:
    return NotDone(operation, "l0/x", "No space left on device", retriable=True, cure="make room there")


def gone(operation: str) -> NotDone:
    return NotDone(operation, "l0/x", "the bucket is missing", retriable=False, cure="create the bucket")


class Case:
    def __init__(self, *, watched: bool = True, owned: bool = True) -> None:
        self.world = World(1)
        self.node = started(self.world)
        self.switched = Switched()
        self.store = RetryingStore(
            self.switched, RetryPolicy(), loop=self.node.loop, rng=random.Random(1), place=BUCKET
        )
        self.health = self.store.health
        if watched:
            self.owned = OwnedStore(self.store)
            if owned:
                self.owned.open_for(OWNER)
            StoreWatch(self.store, self.owned, 1, loop=self.node.loop).start()

    def put(self) -> bool:
        """Whether the store took it."""
        try:
            run(self.world, self.node, self.store.put("l0/x", [b"bytes"]))
        except StoreError:
            return False
        return True

    def pass_time(self, seconds: float) -> None:
        self.world.run(self.world.now + seconds)

    @property
    def failing(self) -> list[OperationKind]:
        return [trouble.kind for trouble in self.health.troubles()]


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "object storage" in record.getMessage()]


def test_puts_that_fail_are_told_with_store_cause_and_cure_once_a_minute_until_they_work(
    caplog: pytest.LogCaptureFixture,
) -> None:
    case = Case()
    assert case.put()
    case.switched.wrong["put"] = full()
    assert not case.put()
    assert case.failing == [OperationKind.PUT]
    (begun,) = lines(caplog)
    for part in (BUCKET, "puts fail", "No space left on device", "put l0/x", "make room there"):
        assert part in begun
    for _ in range(100):
        assert not case.put()
    assert len(lines(caplog)) == 1 + int(case.node.loop.time() // 60), "and not one for each put"
    case.pass_time(130.0)
    assert len(lines(caplog)) >= 3
    assert "in the last minute" in lines(caplog)[-1]
    case.switched.wrong.clear()
    case.pass_time(20.0)
    assert not case.failing, "it is tried without a producer's help"
    assert "takes puts again" in lines(caplog)[-1]
    told = len(lines(caplog))
    case.pass_time(200.0)
    assert len(lines(caplog)) == told


@pytest.mark.parametrize("operation", ["put", "delete"])
def test_nothing_is_put_or_deleted_before_the_stores_owner_was_seen(operation: str) -> None:
    """The node may have been given another cluster's bucket."""
    case = Case(owned=False)
    case.switched.wrong[operation] = full(operation)
    call = case.store.put(KEY, [b""]) if operation == "put" else case.store.delete_many(["l0/x"])
    with pytest.raises(NotDone):
        run(case.world, case.node, call)
    case.pass_time(6.0)
    assert case.failing
    case.switched.wrong.clear()
    case.switched.asked.clear()
    case.pass_time(60.0)
    assert set(case.switched.asked) <= {"get", "size", "list"}
    case.owned.open_for(OWNER)
    case.pass_time(20.0)
    assert not case.failing


def test_an_idle_node_notices_that_its_bucket_is_gone_and_is_back() -> None:
    case = Case()
    case.pass_time(2 * IDLE_SECONDS)
    assert not case.failing
    asked = case.switched.asked.count("list")
    assert 1 <= asked <= 3
    for operation in ("put", "get", "list"):
        case.switched.wrong[operation] = gone(operation)
    case.pass_time(IDLE_SECONDS + 2)
    assert case.failing == [OperationKind.LIST]
    (trouble,) = case.health.troubles()
    assert "create the bucket" in case.health.describe(trouble)
    case.switched.wrong.clear()
    case.pass_time(12.0)
    assert not case.failing


def test_a_store_that_does_not_answer_is_known_before_its_operations_are_given_up() -> None:
    case = Case()
    assert case.put()
    case.switched.silent = True
    task = case.node.loop.create_task(case.store.put("l0/y", [b"bytes"]))
    case.pass_time(21.0)
    assert not task.done()
    assert case.failing == [OperationKind.PUT]
    case.pass_time(20.0)
    assert isinstance(task.exception(), StoreError)


def test_what_is_mended_by_trying_again_is_no_trouble() -> None:
    case = Case(watched=False)
    case.switched.wrong["put"] = full()
    task = case.node.loop.create_task(case.store.put("l0/x", [b"bytes"]))
    case.pass_time(0.1)
    case.switched.wrong.clear()
    case.pass_time(5.0)
    assert task.done()
    assert task.exception() is None
    assert not case.failing
    assert case.health.given_up[OperationKind.PUT] == 0


def test_an_object_that_is_not_there_is_an_answer() -> None:
    case = Case(watched=False)
    for _ in range(10):
        with pytest.raises(ObjectNotFound):
            run(case.world, case.node, case.store.get("none"))
    assert not case.failing


def test_what_fails_apart_is_told_apart_and_ends_apart() -> None:
    case = Case()
    case.switched.wrong["delete"] = NotDone("delete", "l0/x", "denied", retriable=False)
    with pytest.raises(NotDone):
        run(case.world, case.node, case.store.delete_many(["l0/x"]))
    for _ in range(20):
        assert case.put()
        case.pass_time(1.0)
    assert case.failing == [OperationKind.DELETE]
    case.switched.wrong.clear()
    case.pass_time(12.0)
    assert not case.failing


def test_a_store_that_comes_and_goes_is_one_trouble(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    case = Case(watched=False)
    case.switched.wrong["put"] = gone("put")
    assert not case.put()
    for _ in range(20):
        case.switched.wrong.clear()
        assert case.put()
        case.switched.wrong["put"] = gone("put")
        assert not case.put()
        case.pass_time(1.0)
    assert len(lines(caplog)) == 1
