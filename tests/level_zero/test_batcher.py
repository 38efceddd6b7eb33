"""The batcher: when an object leaves, what is in it, and how each batch learns what became of it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from strandline.node.level_zero.batcher import Batcher, Result, Stored
from strandline.node.level_zero.batcher_config import BatcherConfig
from strandline.node.level_zero.measures import FlushReason
from strandline.node.level_zero.money_budget import MONTH_SECONDS, MoneyBudget, Prices
from strandline.node.objectstore.requests import Requests
from strandline.node.objectstore.store import NotDone, OutcomeUnknown
from strandline.node.refusal import Reason, Refusal
from strandline.statemachine.object_names import object_name, parse_object_name
from tests.level_zero.samples import OTHER_TOPIC, TOPIC, record_batch, started
from tests.objectstore.hand_store import HandStore
from tests.simulation.world import World

CONFIG = BatcherConfig(
    target_bytes=1000,
    max_object_bytes=3000,
    linger_seconds=0.02,
    max_uploads=3,
    max_staged_bytes=10_000,
    max_staged_batches=100,
)


class Case:
    """A batcher on a store that obeys the test, and a world to let time pass."""

    def __init__(self, config: BatcherConfig = CONFIG, **changes: Any) -> None:
        self.world = World(1)
        self.node = started(self.world)
        self.epoch = 5
        self.store = HandStore(self.node.loop)
        self.batcher = self.another(config, **changes)
        self.results: list[tuple[int, Result]] = []
        self.staged = 0

    def another(self, config: BatcherConfig = CONFIG, seed: int = 1) -> Batcher:
        return Batcher(
            self.store,
            config,
            loop=self.node.loop,
            rng=random.Random(seed),
            node=7,
            shard=3,
            epoch=lambda: self.epoch,
        )

    def stage(self, size: int = 100, topic: bytes = TOPIC, partition: int = 0) -> asyncio.Future[Result]:
        number = self.staged
        self.staged += 1
        data = b"%03d" % number + bytes(size - 3)
        future = self.batcher.stage(topic, partition, data)
        future.add_done_callback(
            lambda done: None if done.cancelled() else self.results.append((number, done.result()))
        )
        return future

    def stage_many(self, *sizes: int) -> list[asyncio.Future[Result]]:
        return [self.stage(size) for size in sizes]

    def turn(self, seconds: float = 0.0) -> None:
        """Let every callback that is due run, and then some time pass."""
        self.world.run(self.world.now)
        if seconds:
            self.world.run(self.world.now + seconds)

    def sizes(self) -> list[int]:
        """Bytes of batches in each object begun so far."""
        return [sum(section.length for section in put.footer.sections) for put in self.store.begun]

    def why(self) -> dict[FlushReason, int]:
        return {why: count for why, count in self.batcher.measures.left.items() if count}


@pytest.fixture
def case() -> Iterator[Case]:
    made = Case()
    with made.world:
        yield made
        made.world.check()


def test_with_nothing_under_way_a_batch_leaves_in_the_next_turn(case: Case) -> None:
    case.stage(100)
    assert case.store.begun == []
    case.turn()
    assert case.sizes() == [100]
    assert case.world.now == 0.0
    assert case.why() == {FlushReason.IDLE: 1}


def test_what_comes_in_the_same_turn_goes_along(case: Case) -> None:
    case.stage_many(100, 200, 300)
    case.turn()
    assert case.sizes() == [600]


def test_a_result_names_the_bytes_exactly_as_sent(case: Case) -> None:
    data = [record_batch(b"%d" % n) for n in range(4)]
    topics = [(TOPIC, 0), (OTHER_TOPIC, 0), (TOPIC, 0), (TOPIC, 9)]
    futures = [
        case.batcher.stage(topic, partition, batch)
        for (topic, partition), batch in zip(topics, data, strict=True)
    ]
    case.turn()
    (put,) = case.store.under_way
    put.succeed()
    case.turn()
    for future, batch in zip(futures, data, strict=True):
        result = future.result()
        assert isinstance(result, Stored)
        assert put.data[result.position : result.position + result.length] == batch
        assert object_name(result.epoch, result.object_id) == put.name
    assert [(s.topic_id, s.partition, s.batches) for s in put.footer.sections] == [
        (TOPIC, 0, 2),
        (OTHER_TOPIC, 0, 1),
        (TOPIC, 9, 1),
    ]


def test_while_an_upload_is_under_way_batches_gather_and_leave_when_it_returns(case: Case) -> None:
    case.stage(100)
    case.turn()
    case.stage_many(10, 20, 30)
    case.turn(0.019)
    assert case.sizes() == [100]
    assert case.batcher.gathered_bytes == 60
    case.store.under_way[0].succeed()
    case.turn()
    assert case.sizes() == [100, 60]
    assert case.why() == {FlushReason.IDLE: 1, FlushReason.RETURNED: 1}


def test_gathered_batches_leave_when_they_fill_an_object(case: Case) -> None:
    case.stage(100)
    case.turn()
    case.stage_many(500, 499)
    case.turn()
    assert case.sizes() == [100]
    case.stage(3)
    case.turn()
    assert case.sizes() == [100, 999]
    assert case.batcher.gathered_bytes == 3
    assert case.why() == {FlushReason.IDLE: 1, FlushReason.FULL: 1}


def test_gathered_batches_leave_when_the_oldest_has_lingered(case: Case) -> None:
    case.stage(100)
    case.turn()
    case.stage(10)
    case.turn(0.015)
    case.stage(20)
    case.turn(0.004)
    assert case.sizes() == [100]
    case.turn(0.002)
    assert case.sizes() == [100, 30]
    assert case.why() == {FlushReason.IDLE: 1, FlushReason.LINGER: 1}
    case.stage(40)
    case.turn(0.019)
    assert case.sizes() == [100, 30]
    case.turn(0.002)
    assert case.sizes() == [100, 30, 40]


def test_uploads_in_parallel_are_bounded(case: Case) -> None:
    case.stage_many(*[900] * 6)
    case.turn(1.0)
    assert case.sizes() == [900] * 3
    assert case.batcher.gathered_bytes == 2700
    case.store.under_way[1].succeed()
    case.turn()
    assert case.sizes() == [900] * 4


def test_uploads_in_parallel_are_bounded_in_bytes_too() -> None:
    case = Case(replace(CONFIG, max_upload_bytes=2500))
    case.stage_many(900, 900, 900, 10)
    case.turn(1.0)
    assert case.sizes() == [900] * 2
    case.store.under_way[0].succeed()
    case.turn()
    assert case.sizes() == [900, 900, 910]
    for put in case.store.under_way:
        put.succeed()
    case.stage_many(3000)  # more than that in one batch: alone
    case.turn()
    case.stage(10)
    case.turn(1.0)
    assert case.sizes() == [900, 900, 910, 3000]
    case.world.close()


def test_as_many_uploads_as_the_store_bears() -> None:
    """The window opens with the answers it hears of, and closes with failures; a folder has its own bound."""
    case = Case(replace(CONFIG, max_uploads=8))
    window = case.batcher.window

    def succeed() -> None:
        put = case.store.under_way[0]
        window.heard(900, put.began, None)
        put.succeed()

    case.stage_many(*[900] * 11)
    case.turn(0.1)
    assert case.sizes() == [900] * 4
    for _ in range(4):
        succeed()
        case.turn()
    assert len(case.store.under_way) > 4
    while case.batcher.uploads > 1:
        succeed()
        case.turn(0.001)
    window.heard(900, case.world.now, OutcomeUnknown("put", "l0/a", "503 SlowDown"))
    window.heard(900, case.world.now + 1, OutcomeUnknown("put", "l0/a", "503 SlowDown"))
    window.heard(900, case.world.now + 2, OutcomeUnknown("put", "l0/a", "503 SlowDown"))
    case.stage_many(*[900] * 3)
    case.turn(1.0)
    assert case.batcher.uploads == 1
    case.store.max_puts = 2
    assert case.another(replace(CONFIG, max_uploads=8)).window.most == 2
    case.world.close()


def test_a_slot_that_frees_late_takes_all_that_has_lingered(case: Case) -> None:
    case.stage_many(900, 900, 900)
    case.turn(0.03)
    assert len(case.store.under_way) == 3
    case.stage_many(800, 700)
    case.turn(1.0)
    for put in case.store.under_way[:2]:
        put.succeed()
    case.turn()
    assert case.sizes() == [900, 900, 900, 800, 700]


def test_a_large_batch_goes_alone_and_beyond_the_limit_is_a_callers_mistake(case: Case) -> None:
    case.stage_many(10, 3000, 10)
    case.turn()
    assert case.sizes() == [10, 3000]
    with pytest.raises(ValueError, match="3001 bytes fits no object; 3000 would"):
        case.stage(3001)
    with pytest.raises(ValueError, match="0 bytes"):
        case.batcher.stage(TOPIC, 0, b"")


def test_a_batch_beyond_the_bound_is_refused_and_changes_nothing(case: Case) -> None:
    case.stage_many(*[2000] * 5)
    late = case.stage(3)
    result = late.result()
    assert isinstance(result, Refusal)
    assert result.reason is Reason.NOT_NOW
    assert result.message == "10000 bytes wait for the object store"
    case.turn()
    case.store.under_way[0].succeed()
    case.turn()
    assert not case.stage(2000).done()
    assert case.batcher.measures.batches_refused == 1
    assert case.batcher.staged_bytes == 10_000


def test_the_number_of_batches_is_bounded_too(case: Case) -> None:
    case.stage_many(*[3] * 101)
    assert isinstance(case.results, list)
    case.turn()
    assert [(number, isinstance(result, Refusal)) for number, result in case.results] == [(100, True)]


def test_a_failed_upload_fails_exactly_its_batches_in_order(case: Case) -> None:
    case.stage_many(400, 400, 300)
    case.turn()
    case.stage_many(500, 600)
    case.turn()
    first, second = case.store.under_way
    second.succeed()
    first.fail(NotDone("put", first.name, "no space", retriable=True))
    case.turn()
    assert [number for number, _ in case.results] == [2, 3, 0, 1]
    failed = {number: result for number, result in case.results if isinstance(result, Refusal)}
    assert failed == dict.fromkeys((0, 1), Refusal(Reason.STORAGE_FAILED, f"object {first.name}: no space"))
    assert case.batcher.measures.batches_failed == 2
    assert case.batcher.measures.objects_failed == 1


def test_an_object_that_may_be_there_all_the_same_fails_its_batches(case: Case) -> None:
    case.stage()
    case.turn()
    put = case.store.under_way[0]
    put.fail(OutcomeUnknown("put", put.name, "connection reset"))
    case.turn()
    assert case.results == [(0, Refusal(Reason.STORAGE_FAILED, f"object {put.name}: connection reset"))]


def test_a_store_that_breaks_its_promise_still_ends_every_batch(case: Case) -> None:
    case.stage()
    case.turn()
    case.store.under_way[0].fail(RuntimeError("a bug"))
    case.turn()
    ((_, result),) = case.results
    assert isinstance(result, Refusal)
    assert result.reason is Reason.STORAGE_FAILED
    assert result.message is not None
    name, _, error = result.message.removeprefix("object ").partition(": ")
    assert error == "RuntimeError: a bug"
    assert [failure.message for failure in case.world.failures] == [f"putting {name}"]
    case.world.failures.clear()
    assert case.batcher.uploads == case.batcher.staged_bytes == 0


def test_the_name_holds_the_epoch_of_the_moment_the_object_is_made(case: Case) -> None:
    case.stage()
    case.turn()
    case.stage()
    case.epoch = 6
    case.store.under_way[0].succeed()
    case.turn()
    assert [parse_object_name(put.name).epoch for put in case.store.begun] == [5, 6]
    case.store.under_way[0].succeed()
    case.turn()
    assert [result.epoch for _, result in case.results if isinstance(result, Stored)] == [5, 6]


def test_names_are_unique_within_and_across_processes() -> None:
    case = Case()
    for seed in (1, 2):
        case.batcher = case.another(seed=seed)
        for _ in range(3):
            case.stage_many(900)
            case.turn()
            case.store.under_way[0].succeed()
            case.turn()
    names = [put.name for put in case.store.begun]
    assert len(set(names)) == 6
    assert all(name.startswith("l0/0003/00000000000000000005/7-") for name in names)
    case.world.close()


def test_a_batch_nobody_waits_for_is_left_out_and_frees_its_bytes(case: Case) -> None:
    case.stage(100)
    case.turn()
    gone, _ = case.stage_many(500, 20)
    gone.cancel()
    case.store.under_way[0].succeed()
    case.turn()
    assert case.sizes() == [100, 20]
    assert case.batcher.staged_bytes == 20
    assert case.batcher.measures.batches_abandoned == 1


def test_a_batch_given_up_during_its_upload_frees_its_bytes_at_the_end(case: Case) -> None:
    future = case.stage(100)
    case.turn()
    future.cancel()
    assert case.batcher.staged_bytes == 100
    case.store.under_way[0].succeed()
    case.turn()
    assert case.batcher.staged_bytes == case.batcher.staged_batches == 0


BUDGETED = BatcherConfig(
    target_bytes=1000,
    max_object_bytes=3000,
    linger_seconds=0.02,
    max_uploads=2,
    puts_per_second=4.0,
    max_staged_bytes=100_000,
)


def test_a_budget_of_puts_makes_objects_fewer_and_larger() -> None:
    case = Case(BUDGETED)
    for _ in range(1000):
        case.stage(30)
        case.turn(0.01)
        for put in case.store.under_way:
            put.succeed()
    assert len(case.store.begun) <= 10 * 4 + 2
    assert sum(case.sizes()) + case.batcher.gathered_bytes == 30_000
    assert max(case.sizes()) > 700
    assert case.why()[FlushReason.BUDGET] > 0
    case.world.close()


def test_a_budget_of_money_makes_objects_fewer_and_larger_and_refuses_nothing() -> None:
    """With a budget of 4 puts a second from then on, where a read a second takes one of them."""
    case = Case(replace(BUDGETED, puts_per_second=None))
    reads = 0
    now = case.node.loop.time
    money = MoneyBudget(lambda: 4 * MONTH_SECONDS, Prices(1.0, 1.0), lambda: Requests(0, reads), now)
    while not money.seconds_to_next():
        money.spend()
    case.batcher = Batcher(
        case.store, replace(BUDGETED, puts_per_second=None), loop=case.node.loop, rng=random.Random(1),
        node=7, shard=3, epoch=lambda: 5, money=money,
    )  # fmt: skip
    for number in range(1000):
        reads = number // 100
        case.stage(30)
        case.turn(0.01)
        for put in case.store.under_way:
            put.succeed()
    assert 25 <= len(case.store.begun) == case.batcher.puts_begun <= 33
    assert max(case.sizes()) > 700
    assert case.batcher.measures.batches_refused == 0
    assert sum(case.sizes()) + case.batcher.gathered_bytes == 30_000
    case.world.close()


def test_a_budget_does_not_delay_a_lone_batch() -> None:
    case = Case(BUDGETED)
    case.turn(10.0)
    case.stage(30)
    case.turn()
    assert case.sizes() == [30]
    case.world.close()


def test_an_object_under_a_budget_may_be_larger_than_the_target() -> None:
    case = Case(BUDGETED)
    case.turn(100.0)  # a long rest saves up no more than a burst
    case.stage_many(*[500] * 20)
    case.turn()
    assert case.sizes() == [3000, 3000]
    for put in case.store.under_way:
        put.succeed()
    case.turn()
    assert len(case.sizes()) == 2, "the budget is spent"
    case.turn(0.26)
    assert case.sizes() == [3000] * 3
    case.world.close()


def test_closing_lets_everything_leave_and_waits_for_it(case: Case) -> None:
    case.stage_many(900)
    case.turn()
    case.stage_many(10, 20)
    closing = case.node.loop.create_task(case.batcher.close())
    case.turn()
    assert case.sizes() == [900, 30]
    assert isinstance(case.stage().result(), Refusal)
    case.store.under_way[0].succeed()
    case.turn()
    assert not closing.done()
    case.store.under_way[0].succeed()
    case.turn()
    assert closing.done()
    assert sorted(number for number, result in case.results if isinstance(result, Stored)) == [0, 1, 2]


def test_closing_waits_for_no_linger() -> None:
    case = Case(BUDGETED)
    case.node.loop.create_task(case.batcher.close())
    case.stage_many(2990, 20)  # before the closing takes its first step
    case.turn()
    assert case.sizes() == [2990, 20]
    assert case.world.now == 0.0
    case.world.close()


def test_closing_with_nothing_staged_ends_at_once(case: Case) -> None:
    closing = case.node.loop.create_task(case.batcher.close())
    case.turn()
    assert closing.done()


def test_closing_ends_when_the_callers_of_all_that_waits_for_the_budget_are_gone() -> None:
    """Their batches are dropped when the budget has a put again, and no upload then comes back."""
    case = Case(BUDGETED)
    case.stage_many(*[3000] * 2)
    case.turn()
    waiting = case.stage(100)
    closing = case.node.loop.create_task(case.batcher.close())
    for put in case.store.under_way:
        put.succeed()
    case.turn()
    assert len(case.sizes()) == 2, "the budget is spent"
    waiting.cancel()
    case.turn(5.0)
    assert closing.done()
    assert case.batcher.staged_batches == 0
    case.world.close()


def test_closing_waits_for_no_put_when_the_callers_of_all_that_waits_for_the_budget_were_gone() -> None:
    """As at a node's end, where the partitions close first. A put may be a minute away."""
    case = Case(replace(BUDGETED, puts_per_second=0.01))
    case.stage_many(*[3000] * 2)
    case.turn()
    waiting = [case.stage(100), case.stage(200)]
    for put in case.store.under_way:
        put.succeed()
    case.turn(0.5)
    assert len(case.sizes()) == 2, "the budget is spent"
    for future in waiting:
        future.cancel()
    closing = case.node.loop.create_task(case.batcher.close())
    case.turn()
    assert closing.done()
    assert (case.batcher.staged_batches, case.batcher.staged_bytes, case.batcher.gathered_bytes) == (0, 0, 0)
    assert case.batcher.measures.batches_abandoned == 2
    case.world.close()


def test_upload_that_the_store_cancels_is_answered_and_gives_its_place_back() -> None:
    """A client library may end a request so. Nothing waits for it, and the next batch leaves."""
    case = Case(CONFIG)
    first = case.stage(100)
    case.turn()
    case.store.under_way[0].done.cancel()
    case.turn()
    result = first.result()
    assert isinstance(result, Refusal)
    assert result.reason is Reason.STORAGE_FAILED
    assert (case.batcher.uploads, case.batcher.staged_batches, case.batcher.staged_bytes) == (0, 0, 0)
    case.stage(100)
    closing = case.node.loop.create_task(case.batcher.close())
    case.turn()
    case.store.under_way[0].succeed()
    case.turn()
    assert closing.done()
    assert isinstance(case.results[1][1], Stored)
    case.world.close()


def test_closing_that_is_given_up_leaves_another_one_whole(case: Case) -> None:
    case.stage(100)
    case.turn()
    closings = [case.node.loop.create_task(case.batcher.close()) for _ in range(3)]
    case.turn()
    closings[0].cancel()
    case.turn()
    assert [closing.done() for closing in closings] == [True, False, False]
    case.store.under_way[0].succeed()
    case.turn()
    assert all(closing.done() for closing in closings)
    again = case.node.loop.create_task(case.batcher.close())
    case.turn()
    assert again.done()


def test_measures_add_up(case: Case) -> None:
    case.stage_many(100, 200)
    case.turn(0.5)
    case.store.under_way[0].succeed()
    case.turn()
    measures = case.batcher.measures
    assert (measures.objects_stored, measures.batches_stored) == (1, 2)
    assert measures.bytes_stored == len(case.store.begun[0].data)
    assert measures.upload_seconds.sum == pytest.approx(0.5)
    assert measures.wait_seconds.count == 2
    assert measures.object_batches.counts == [0, 1, *[0] * 13]
    assert sum(measures.object_bytes.counts) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"target_bytes": 0},
        {"target_bytes": 2, "max_object_bytes": 1},
        {"max_staged_bytes": 1},
        {"linger_seconds": -1.0},
        {"max_uploads": 0},
        {"max_upload_bytes": 0},
        {"puts_per_second": 0.0},
    ],
)
def test_a_configuration_that_contradicts_itself_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be"):
        BatcherConfig(**wrong)


def test_a_store_too_small_for_the_objects_is_refused(case: Case) -> None:
    case.store.max_object_bytes = 4000
    with pytest.raises(ValueError, match="the store takes objects of up to 4000 bytes: too few"):
        case.another()
