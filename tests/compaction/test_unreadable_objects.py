"""A lost or damaged level-one object is replaced from the leader's log, so that no copy waits for it."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from strandline.node.compaction.compactor import JobFailed, Why
from strandline.node.compaction.unreadable_objects import MOST, TELL, UnreadableObjects
from strandline.node.rpc import CallFailed
from strandline.statemachine.partition.level_one import LevelOneExtent, level_one_name
from tests.compaction.logs import Plan
from tests.compaction.publishing_rig import Rig, fill, removals, rig
from tests.compaction.upkeep_harness import contents


def name_of(made: Rig, one: LevelOneExtent) -> str:
    return level_one_name(made.partition.topic_id, made.partition.number, one.term, one.unique)


def harm(made: Rig, one: LevelOneExtent, how: str) -> None:
    """Lose an object, or change a byte of its batches or of its index, or cut it."""
    objects, name = made.bucket.objects, name_of(made, one)
    data = bytearray(objects.pop(name))
    if how == "lost":
        return
    if how == "cut":
        del data[len(data) // 2 :]
    else:
        data[40 if how == "batch" else one.size - one.index_bytes + 8] ^= 1
    objects[name] = bytes(data)


def lose_log(made: Rig, number: int) -> None:
    log = made.nodes[number].upkeep.log_of(made.partition.id)
    assert log is not None
    log.damaged("its disk was replaced")


def problem(made: Rig, number: int) -> str | None:
    log = made.nodes[number].upkeep.log_of(made.partition.id)
    assert log is not None
    return log.problems.first


def more(made: Rig, start: int, keys: int) -> None:
    for number in range(start, start + 20):
        made.partition.put(Plan(((b"key %d" % (number % keys), b"v" * 20, 0),)))
    made.partition.lift()


@pytest.mark.parametrize("how", ["lost", "batch", "index", "cut"])
def test_an_object_that_no_new_record_supersedes_is_replaced(how: str) -> None:
    """Without that, a copy that lost its log would hold removal back for good."""
    with rig() as made:
        fill(made, 100, keys=100)
        made.settle()
        one = list(made.partition.machine.level_one)[5]
        harm(made, one, how)
        lose_log(made, 1)
        made.settle()
        assert one.unique not in made.partition.machine.level_one
        assert problem(made, 1) is None
        of_leader, of_copy = (contents(node.log(cast(Any, made.partition))) for node in made.nodes)
        assert of_copy == of_leader
        made.check()
        assert made.nodes[0].upkeep.measures.published_objects == 1, "that one alone"
        # And removal goes on.
        more(made, 100, keys=130)
        made.settle()
        assert removals(made)[0] > 115
        made.check()


def test_two_objects_apart_are_replaced_one_after_the_other() -> None:
    with rig() as made:
        fill(made, 100, keys=100)
        made.settle()
        for number in (2, 7):
            harm(made, list(made.partition.machine.level_one)[number], "lost")
        lose_log(made, 1)
        made.settle()
        assert problem(made, 1) is None
        made.check()


def test_the_next_leader_replaces_it_when_the_copy_is_tried_again() -> None:
    with rig() as made:
        fill(made, 100, keys=100)
        made.settle()
        harm(made, list(made.partition.machine.level_one)[5], "lost")
        lose_log(made, 0)
        for _ in range(10):
            made.work(0)
        assert problem(made, 0) is not None, "the leader itself lacks it, and cannot help"
        made.lead(1)
        made.settle()
        assert problem(made, 0) is None
        made.check()


def test_a_leader_whose_log_is_not_clean_up_to_it_replaces_nothing() -> None:
    """It would bring back what was superseded: here it lost its log as well."""
    with rig() as made:
        fill(made, 100, keys=100)
        made.settle()
        one = list(made.partition.machine.level_one)[5]
        harm(made, one, "lost")
        lose_log(made, 0)
        lose_log(made, 1)
        for _ in range(60):
            for number in (0, 1):
                made.work(number)
        assert one.unique in made.partition.machine.level_one
        assert "there is no such object" in str(problem(made, 1))


def test_an_object_that_cannot_be_put_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with rig() as made:
        fill(made, 100, keys=100)
        made.settle()
        one = list(made.partition.machine.level_one)[5]
        harm(made, one, "lost")
        lose_log(made, 1)
        publish, failures = made.nodes[0].compactor.publish, [2]

        async def failing(job: Any) -> Any:
            if failures[0]:
                failures[0] -= 1
                return JobFailed(Why.STORE, "the store is away")
            return await publish(job)

        monkeypatch.setattr(made.nodes[0].compactor, "publish", failing)
        made.settle()
        assert failures == [0]
        assert one.unique not in made.partition.machine.level_one
        made.check()


def test_objects_that_level_one_has_no_more_are_not_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    with rig() as made:
        fill(made, 100, keys=100)
        made.settle()
        told: list[Any] = []
        monkeypatch.setattr(made.nodes[1], "tell", lambda *row: told.append(row))
        old = list(made.partition.machine.level_one)[5]
        lose_log(made, 1)
        ingest = made.nodes[1].compactor.ingest

        async def late(job: Any) -> Any:
            done = await ingest(job)
            if old in job.sources:
                made.partition.merge(7)
                return JobFailed(Why.SOURCE, "damage", name_of(made, old))
            return done

        monkeypatch.setattr(made.nodes[1].compactor, "ingest", late)
        for _ in range(6):
            made.work(1)
        assert told == []


class Calls:
    def __init__(self) -> None:
        self.handlers: dict[str, Any] = {}
        self.groups = {7: object()}

    def serve(self, method: str, handler: Any) -> None:
        self.handlers[method] = handler

    def tell(self, *_: Any) -> bool:
        return True

    def leader_of(self, _: int) -> None:
        return None


def test_what_is_told_is_bounded_and_checked() -> None:
    calls = Calls()
    objects = UnreadableObjects(calls, calls, calls)
    tell = calls.handlers[TELL]
    objects.tell(7, b"u" * 16)  # without a leader that is nothing
    for bad in (None, [], [7], [7, b"short"], ["7", b"u" * 16], [7, "u" * 16], [7, b"u" * 16, 0]):
        with pytest.raises(CallFailed, match="that is not a group"):
            asyncio.run(tell(2, bad))
    for number in range(2 * MOST):
        asyncio.run(tell(2, [7, number.to_bytes(16, "big")]))
        asyncio.run(tell(2, [8, number.to_bytes(16, "big")]))
    assert {group: len(told) for group, told in objects._told.items()} == {7: MOST}
    calls.groups = {9: object()}
    asyncio.run(tell(2, [9, b"u" * 16]))
    assert list(objects._told) == [9], "groups that left this node are forgotten"


def test_what_can_be_replaced_is_taken_once_and_the_rest_waits() -> None:
    with rig() as made:
        fill(made, 30, keys=30)
        replica, (first, second, third) = cast(Any, made.partition), made.partition.machine.level_one
        calls = Calls()
        calls.groups = {replica.group.id: object()}
        objects = UnreadableObjects(calls, calls, calls)
        for one in (first, second):
            asyncio.run(calls.handlers[TELL](2, [replica.group.id, one.unique]))
        assert objects.take(replica, [third]) is None, "the log does not have it yet"
        assert objects.take(replica, [third, second]) == frozenset({first.unique, second.unique})
        assert objects.take(replica, [first, second]) is None, "if that fails it is told again"


def test_the_work_that_fails_for_an_object_names_it() -> None:
    with rig() as made:
        fill(made, 100, keys=100)
        made.settle()
        one = list(made.partition.machine.level_one)[5]
        harm(made, one, "batch")
        made.nodes[1].leader = None
        lose_log(made, 1)
        for _ in range(6):
            made.work(1)
        assert name_of(made, one) in str(problem(made, 1))
