"""OffsetCommit, OffsetFetch, OffsetDelete, TxnOffsetCommit: in every version, over a real groups' machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode

from strandline.node.controller.client import Unavailable
from strandline.node.coordinator.groups.coordinator import GroupCoordinator
from strandline.node.coordinator.replica import CoordinatorReplica
from strandline.node.kafka.handlers.offset_rows import MAX_METADATA_BYTES
from strandline.node.kafka.wire.apis import APIS, ApiKey
from strandline.node.raft.group import RaftGroup
from strandline.node.refusal import Refusal
from strandline.statemachine.controller.controller_commands import DeleteTopic
from strandline.statemachine.controller.hosted_groups import PartitionGroup
from strandline.statemachine.groups.group_commands import (
    AssignGeneration,
    EndGroupTransaction,
    StartGeneration,
)
from strandline.statemachine.groups.groups import GroupsMachine
from strandline.statemachine.kafka_errors import KafkaError
from tests.coordinator.recording import Recording
from tests.coordinator.transaction_harness import Group, Log, turns
from tests.kafka.handlers.fake_node import FakeNode
from tests.runtime.jumping_loop import run
from tests.statemachine.groups_harness import consumers, member

COMMIT, FETCH, DELETE = ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH, ApiKey.OFFSET_DELETE
TXN_COMMIT = ApiKey.TXN_OFFSET_COMMIT
PLACE = PartitionGroup(900, b"g" * 16, "__consumer_offsets", 3, (1, 2, 3), 1)
NONE = ErrorCode.none
MANY_GROUPS = 8
"""The first version of OffsetFetch that asks for many groups."""


class Desk:
    """A node that coordinates all groups, with the topic events of two partitions."""

    def __init__(self) -> None:
        self.node = FakeNode()
        context: Any = self.node
        context.wall_ms = lambda: 1_000_000
        self.verifier = self.node.verifier
        self.elsewhere: KafkaError | None = None
        context.coordinators = SimpleNamespace(groups_for=self._groups_for)
        self.replica: CoordinatorReplica[GroupsMachine] = CoordinatorReplica(
            GroupsMachine,
            place=PLACE,
            loop=self.node.loop,
            wall_ms=context.wall_ms,
            recorder=cast(Any, Recording()),
        )
        self.log = Log()
        self.group = Group(self.log, cast(Any, self.replica))
        self.replica.attach(cast(RaftGroup, self.group))
        self.coordinator = GroupCoordinator(self.replica, context)
        self.heard: list[tuple[str, str]] = []
        self.coordinator.restart_session = lambda *who: self.heard.append(who)  # type: ignore[method-assign]

    def _groups_for(self, group_id: str) -> GroupCoordinator | KafkaError:
        return self.elsewhere or self.coordinator

    async def lead(self) -> None:
        self.log.begin_term(1, 1)
        self.group.tell(True, 1)
        await turns()
        self.topic("events")

    def topic(self, name: str) -> bytes:
        topic = self.node.cluster.create(name)
        self.node.controller.hear()
        return topic.topic_id

    def topic_id(self, name: str = "events") -> bytes:
        topic = self.node.cluster.leader.topic(name)
        assert topic is not None
        return topic.topic_id

    @property
    def machine(self) -> GroupsMachine:
        return self.replica.machine

    def apply(self, command: Any) -> Any:
        """Something that others had applied."""
        return asyncio.ensure_future(self.coordinator.execute(command))

    async def member(self, member_id: str = "a", instance: str | None = None, *topics: str) -> None:
        one = member(member_id, instance, *topics)
        present = self.machine.groups.get("g")
        generation = 1 if present is None or present.membership is None else 2
        await self.apply(StartGeneration("g", generation, "consumer", "range", member_id, [one]))
        await self.apply(AssignGeneration("g", generation, {}))

    # Requests; the topic is events unless it is named.

    async def commit(
        self, *rows: tuple[int, int], version: int = 9, name: str = "events", **fields: Any
    ) -> list[ErrorCode]:
        answer = await self.node.ask(COMMIT, version, **self.asked(rows, name), **said(fields))
        return codes(answer)

    async def txn_commit(self, *rows: tuple[int, int], version: int = 5, **fields: Any) -> list[ErrorCode]:
        given = {"transactional_id": "t", "producer_id": 7, "producer_epoch": 0, "generation_id": -1}
        given |= {"group_id": "g", "member_id": ""} | fields
        answer = await self.node.ask(TXN_COMMIT, version, **self.asked(rows), **given)
        return codes(answer)

    def asked(self, rows: Sequence[tuple[int, int]], name: str = "events") -> dict[str, Any]:
        partitions = [
            {
                "partition_index": number,
                "committed_offset": offset,
                "committed_leader_epoch": 4,
                "committed_metadata": None,
            }
            for number, offset in rows
        ]
        return {"topics": [{"name": name, "partitions": partitions}]}

    async def fetch(self, *numbers: int, version: int = 9, **fields: Any) -> Any:
        """Code of the group, and rows of the one topic; no numbers: of all that there is."""
        topics = [{"name": "events", "partition_indexes": list(numbers)}] if numbers else None
        return await self.fetch_topics(topics, version, **fields)

    async def fetch_topics(self, topics: Any, version: int = 9, **fields: Any) -> Any:
        stable = {"require_stable": fields.pop("stable", False)} if version >= 7 else {}
        group = {"group_id": "g", "topics": topics} | fields
        if version >= MANY_GROUPS:
            answer = (await self.node.ask(FETCH, version, groups=[group], **stable)).groups[0]
        else:
            answer = await self.node.ask(FETCH, version, **group, **stable)
        rows = [
            (
                one.partition_index,
                one.error_code,
                one.committed_offset,
                getattr(one, "committed_leader_epoch", 4),
                one.metadata,
            )
            for topic in answer.topics
            for one in topic.partitions
        ]
        return getattr(answer, "error_code", NONE), rows

    async def committed(self, *numbers: int) -> list[int]:
        code, rows = await self.fetch(*numbers)
        assert code is NONE
        return [row[2] for row in rows]


def said(fields: dict[str, Any]) -> dict[str, Any]:
    """Who commits; nobody that is a member, unless told."""
    return {"group_id": "g", "member_id": "", "generation_id_or_member_epoch": -1} | fields


def codes(answer: Any) -> list[ErrorCode]:
    return [one.error_code for topic in answer.topics for one in topic.partitions]


Test = Callable[[Desk], Coroutine[Any, Any, None]]


def served(test: Test) -> Callable[[], None]:
    """Run a test with a node that leads."""

    def of_pytest() -> None:
        async def body() -> None:
            desk = Desk()
            await desk.lead()
            try:
                await test(desk)
            finally:
                desk.replica.close()
                await turns()

        run(body)

    of_pytest.__name__ = test.__name__
    return of_pytest


def row(number: int, offset: int, metadata: str = "", epoch: int = 4) -> tuple[Any, ...]:
    return number, NONE, offset, epoch, metadata


NOTHING = (NONE, -1, -1, "")


@served
async def test_a_commit_is_fetched_in_every_version(desk: Desk) -> None:
    for version in range(APIS[COMMIT].first, APIS[COMMIT].last + 1):
        assert await desk.commit((0, 10 * version), (1, 5), version=version) == [NONE, NONE]
        for fetching in range(APIS[FETCH].first, APIS[FETCH].last + 1):
            code, rows = await desk.fetch(0, 1, version=fetching)
            assert code is NONE
            epoch = 4 if version >= 6 or fetching < 5 else -1
            assert rows == [row(0, 10 * version, epoch=epoch), row(1, 5, epoch=epoch)]


@served
async def test_what_was_never_committed_is_no_error(desk: Desk) -> None:
    for version in (1, 7, 9):
        assert (await desk.fetch(1, version=version))[1][0][:3] == (1, NONE, -1)
    assert await desk.fetch(version=9) == (NONE, [])
    await desk.commit((0, 5))
    assert await desk.fetch(1) == (NONE, [(1, *NOTHING)])
    assert await desk.fetch_topics([{"name": "nowhere", "partition_indexes": [3]}], 9) == (
        NONE,
        [(3, *NOTHING)],
    )


@served
async def test_all_offsets_of_a_group_are_those_of_topics_that_exist(desk: Desk) -> None:
    desk.topic("clicks")
    await desk.commit((0, 5), (1, 6))
    await desk.commit((1, 7), name="clicks")
    for version in (2, 7, 8, 9):
        assert [one[:3] for one in (await desk.fetch(version=version))[1]] == [
            (0, NONE, 5),
            (1, NONE, 6),
            (1, NONE, 7),
        ]
    desk.node.cluster.apply(DeleteTopic(desk.topic_id("clicks")))
    desk.node.controller.hear()
    assert [one[2] for one in (await desk.fetch())[1]] == [5, 6]


@served
async def test_what_cannot_be_committed_is_refused_alone(desk: Desk) -> None:
    large = "é" * (MAX_METADATA_BYTES // 2)
    topics = [
        {
            "name": "events",
            "partitions": [
                {"partition_index": 0, "committed_offset": 1, "committed_metadata": large},
                {"partition_index": 1, "committed_offset": 1, "committed_metadata": large + "."},
                {"partition_index": 2, "committed_offset": 1, "committed_metadata": ""},
                {"partition_index": -1, "committed_offset": 1, "committed_metadata": ""},
            ],
        },
        {
            "name": "nowhere",
            "partitions": [{"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}],
        },
    ]
    unknown = ErrorCode.unknown_topic_or_partition
    expected = [NONE, ErrorCode.offset_metadata_too_large, unknown, unknown, unknown]
    assert codes(await desk.node.ask(COMMIT, 9, **said({}), topics=topics)) == expected
    assert (await desk.fetch(0, 1))[1] == [row(0, 1, large, epoch=-1), (1, *NOTHING)]
    given = {"transactional_id": "t", "producer_id": 7, "producer_epoch": 0, "generation_id": -1}
    answer = await desk.node.ask(TXN_COMMIT, 5, group_id="g", member_id="", **given, topics=topics)
    assert codes(answer) == expected


# A group with members.


@served
async def test_a_member_commits_and_is_heard(desk: Desk) -> None:
    await desk.member("a", "i")
    who: dict[str, Any] = {"member_id": "a", "generation_id_or_member_epoch": 1, "group_instance_id": "i"}
    assert await desk.commit((0, 5), **who) == [NONE]
    assert desk.heard == [("g", "a")]
    wrong: list[tuple[dict[str, Any], ErrorCode]] = [
        ({"generation_id_or_member_epoch": 2}, ErrorCode.illegal_generation),
        ({"member_id": "b"}, ErrorCode.fenced_instance_id),
        ({"member_id": "b", "group_instance_id": None}, ErrorCode.unknown_member_id),
    ]
    for change, code in wrong:
        assert await desk.commit((0, 9), **{**who, **change}) == [code]
    assert await desk.commit((0, 9)) == [ErrorCode.unknown_member_id]
    assert desk.heard == [("g", "a")]
    assert await desk.committed(0) == [5]


@served
async def test_without_a_group_only_generations_are_unknown(desk: Desk) -> None:
    who: dict[str, Any] = {"member_id": "a", "generation_id_or_member_epoch": 1}
    assert await desk.commit((0, 5), version=8, **who) == [ErrorCode.illegal_generation]
    assert await desk.commit((0, 5), version=9, **who) == [ErrorCode.group_id_not_found]
    assert await desk.commit((0, 5), group_id="") == [NONE]


@served
async def test_a_member_of_the_new_protocol_is_judged_by_its_epoch(desk: Desk) -> None:
    await desk.apply(consumers(0, 3, "a"))
    who: dict[str, Any] = {"member_id": "a", "generation_id_or_member_epoch": 3}
    stale: dict[str, Any] = {"member_id": "a", "generation_id_or_member_epoch": 2}
    assert await desk.commit((0, 5), **who) == [NONE]
    assert await desk.commit((0, 5), **stale) == [ErrorCode.stale_member_epoch]
    assert await desk.commit((0, 5), version=8, **stale) == [ErrorCode.unsupported_version]
    assert await desk.txn_commit((0, 5), member_id="a", generation_id=2) == [ErrorCode.illegal_generation]
    assert (await desk.fetch(0, member_id="a", member_epoch=3))[0] is NONE
    assert await desk.fetch(0, member_id="a", member_epoch=2) == (ErrorCode.stale_member_epoch, [])
    assert await desk.fetch(0, member_id="b", member_epoch=3) == (ErrorCode.unknown_member_id, [])
    for version in (7, 8, 9):
        assert await desk.fetch(0, version=version) == (NONE, [row(0, 5)])


@served
async def test_old_versions_may_ask_for_a_retention(desk: Desk) -> None:
    def expiry() -> int:
        there = desk.machine.groups["g"].offsets.get(desk.topic_id(), 0)
        assert there is not None
        return there.expires_at

    await desk.commit((0, 5), version=4, retention_time=timedelta(seconds=2))
    assert expiry() == 1_002_000
    for negative in (-1, -5):
        await desk.commit((0, 5), version=4, retention_time=timedelta(milliseconds=negative))
        assert expiry() == -1
    await desk.commit((0, 5), version=5)
    assert expiry() == -1


# Leadership.


@served
async def test_a_node_that_does_not_coordinate_says_so(desk: Desk) -> None:
    for code in (ErrorCode.not_coordinator, ErrorCode.coordinator_load_in_progress):
        desk.elsewhere = KafkaError(code.name)
        assert await desk.commit((0, 5)) == [code]
        assert await desk.txn_commit((0, 5)) == [code]
        for version in (2, 7, 9):
            assert await desk.fetch(0, version=version) == (code, [])
        assert [one[:3] for one in (await desk.fetch(0, 1, version=1))[1]] == [(0, code, -1), (1, code, -1)]
        answer = await desk.node.ask(DELETE, group_id="g", topics=delete_of(0))
        assert (answer.error_code, answer.topics) == (code, ())
    assert desk.verifier.asked == []


@served
async def test_a_leader_that_cannot_prove_it_gives_no_offsets(desk: Desk) -> None:
    await desk.commit((0, 5))
    desk.group.is_leader = False
    assert await desk.fetch(0) == (ErrorCode.not_coordinator, [])


@served
async def test_what_became_of_a_commit_may_be_unknown(desk: Desk) -> None:
    desk.log.held = True
    commit = asyncio.ensure_future(desk.commit((0, 5)))
    await turns()
    desk.group.tell(False, 2)
    assert await commit == [ErrorCode.not_coordinator]
    desk.log.commit()
    await turns()


@served
async def test_commits_of_a_connection_are_applied_as_they_came(desk: Desk) -> None:
    asked = [asyncio.ensure_future(desk.commit((0, offset))) for offset in range(20)]
    await asyncio.gather(*asked)
    assert await desk.committed(0) == [19]


# Topics this node has not heard of.


@served
async def test_an_offset_of_a_topic_this_node_is_late_to_hear_of_is_not_withheld(desk: Desk) -> None:
    await desk.commit((0, 5))
    late = desk.node.controller
    late.machine = type(late.machine)(lambda *_: None)
    late.applied = 0
    assert late.machine.topic("events") is None
    assert (await desk.fetch(0, version=9))[1] == [row(0, 5)]
    late.machine = type(late.machine)(lambda *_: None)
    late.applied = 0
    late.down = Unavailable("no leader", False)
    assert await desk.fetch(0) == (ErrorCode.coordinator_load_in_progress, [])
    assert await desk.fetch() == (ErrorCode.coordinator_load_in_progress, [])


@served
async def test_a_topic_made_anew_has_no_offsets(desk: Desk) -> None:
    await desk.commit((0, 5))
    desk.node.cluster.apply(DeleteTopic(desk.topic_id()))
    desk.node.controller.hear()
    desk.node.cluster.create("events")
    assert await desk.fetch(0, version=9) == (NONE, [(0, *NOTHING)])
    assert await desk.fetch(version=9) == (NONE, [])


@served
async def test_nobody_asks_the_controller_for_what_is_known(desk: Desk) -> None:
    await desk.commit((0, 5))
    desk.node.controller.down = Unavailable("no leader", False)
    assert await desk.committed(0) == [5]
    assert (await desk.fetch_topics([{"name": "nowhere", "partition_indexes": [0]}], 9))[0] is NONE


@served
async def test_a_commit_to_a_deleted_topic_is_refused(desk: Desk) -> None:
    desk.node.cluster.apply(DeleteTopic(desk.topic_id()))
    desk.node.controller.hear()
    unknown = ErrorCode.unknown_topic_or_partition
    assert await desk.commit((0, 5), version=9) == [unknown]
    assert await desk.txn_commit((0, 5)) == [unknown]
    assert desk.log.committed == []


# Many groups.


@served
async def test_groups_of_one_request_answer_for_themselves(desk: Desk) -> None:
    await desk.commit((0, 5))
    await desk.commit((0, 6), group_id="h")
    topics = [{"name": "events", "partition_indexes": [0]}]
    answer = await desk.node.ask(
        FETCH, 9, groups=[{"group_id": one, "topics": topics} for one in ("h", "none", "g")]
    )
    got = [(one.group_id, one.topics[0].partitions[0].committed_offset) for one in answer.groups]
    assert got == [("h", 6), ("none", -1), ("g", 5)]


# Transactions.


@served
async def test_offsets_of_a_transaction_are_unstable_until_it_ends(desk: Desk) -> None:
    await desk.commit((0, 5), (1, 6))
    assert await desk.txn_commit((0, 9)) == [NONE]
    for version in (7, 9):
        code, rows = await desk.fetch(0, 1, version=version, stable=True)
        assert code is NONE
        assert rows == [(0, ErrorCode.unstable_offset_commit, -1, -1, ""), row(1, 6)]
        assert (await desk.fetch(version=version, stable=True))[1] == rows
        assert (await desk.fetch(0, version=version))[1] == [row(0, 5)]
    await desk.apply(EndGroupTransaction(7, 0, 1, True, 1))
    assert (await desk.fetch(0, 1, stable=True))[1] == [row(0, 9), row(1, 6)]


@pytest.mark.parametrize("version", range(6))
def test_who_adds_the_group_to_the_transaction_depends_on_the_version(version: int) -> None:
    async def test(desk: Desk) -> None:
        assert await desk.txn_commit((0, 9), version=version) == [NONE]
        assert desk.verifier.asked == [("t", 7, 0, "g", version == 5)]
        # The group is in the transaction now: nobody is asked again, unless it is another incarnation.
        assert await desk.txn_commit((1, 9), version=version) == [NONE]
        assert len(desk.verifier.asked) == 1
        desk.verifier.answer = Refusal(KafkaError.PRODUCER_FENCED, "")
        fenced = [ErrorCode.invalid_producer_epoch]
        assert await desk.txn_commit((1, 9), version=version, producer_epoch=1) == fenced
        assert await desk.txn_commit((1, 9), version=version, group_id="h") == fenced
        await desk.apply(EndGroupTransaction(7, 0, 1, True, 1))
        assert await desk.txn_commit((1, 9), version=version) == fenced
        assert await desk.committed(0, 1) == [9, 9]

    served(test)()


@served
async def test_a_transaction_that_ended_while_it_was_verified_takes_nothing(desk: Desk) -> None:
    held = desk.verifier.held = asyncio.get_running_loop().create_future()
    commit = asyncio.ensure_future(desk.txn_commit((0, 9)))
    await turns()
    assert desk.verifier.asked
    await desk.apply(EndGroupTransaction(7, 0, 1, True, 1))
    held.set_result(None)
    assert await commit == [ErrorCode.invalid_txn_state]
    assert await desk.committed(0) == [-1]


@served
async def test_a_zombie_of_its_group_takes_no_part_in_a_transaction(desk: Desk) -> None:
    await desk.member("a")
    who: dict[str, Any] = {"member_id": "a", "generation_id": 1}
    assert await desk.txn_commit((0, 9), **who) == [NONE]
    await desk.member("b")
    assert await desk.txn_commit((1, 9), **who) == [ErrorCode.unknown_member_id]
    assert await desk.txn_commit((1, 9), member_id="b", generation_id=1) == [ErrorCode.illegal_generation]
    assert await desk.txn_commit((1, 9), version=2) == [NONE]
    assert await desk.txn_commit((1, 9), group_id="") == [ErrorCode.invalid_group_id]


LOADING = ErrorCode.coordinator_load_in_progress


@pytest.mark.parametrize(
    ("failure", "version", "told"),
    [
        (KafkaError.NOT_COORDINATOR, 5, LOADING),
        (KafkaError.COORDINATOR_NOT_AVAILABLE, 5, LOADING),
        (KafkaError.CONCURRENT_TRANSACTIONS, 5, ErrorCode.concurrent_transactions),
        (KafkaError.CONCURRENT_TRANSACTIONS, 4, LOADING),
        (KafkaError.NOT_COORDINATOR, 1, ErrorCode.coordinator_not_available),
        (KafkaError.CONCURRENT_TRANSACTIONS, 0, ErrorCode.coordinator_not_available),
        (KafkaError.INVALID_PRODUCER_ID_MAPPING, 3, ErrorCode.invalid_producer_id_mapping),
        (KafkaError.INVALID_TXN_STATE, 3, ErrorCode.invalid_txn_state),
        (KafkaError.INVALID_TXN_STATE, 4, ErrorCode.transaction_abortable),
        (KafkaError.INVALID_TXN_STATE, 5, ErrorCode.invalid_txn_state),
        (KafkaError.PRODUCER_FENCED, 5, ErrorCode.invalid_producer_epoch),
    ],
)
def test_what_the_transactions_coordinator_says_sends_no_client_to_another_one(
    failure: KafkaError, version: int, told: ErrorCode
) -> None:
    async def test(desk: Desk) -> None:
        desk.verifier.answer = Refusal(failure, "")
        assert await desk.txn_commit((0, 9), version=version) == [told]
        assert desk.log.committed == []

    served(test)()


# Deletion.


def delete_of(*numbers: int, name: str = "events") -> list[dict[str, Any]]:
    return [{"name": name, "partitions": [{"partition_index": number} for number in numbers]}]


@served
async def test_offsets_are_deleted_unless_a_member_is_subscribed(desk: Desk) -> None:
    desk.topic("clicks")
    await desk.commit((0, 5), (1, 6))
    await desk.commit((0, 7), name="clicks")
    await desk.member("a", None, "clicks")
    topics = delete_of(0, 2, -1) + delete_of(0, name="clicks") + delete_of(0, name="nowhere")
    answer = await desk.node.ask(DELETE, group_id="g", topics=topics)
    unknown = ErrorCode.unknown_topic_or_partition
    assert answer.error_code is NONE
    assert codes(answer) == [NONE, unknown, unknown, ErrorCode.group_subscribed_to_topic, unknown]
    assert [one[2] for one in (await desk.fetch())[1]] == [6, 7]


@served
async def test_deletion_names_a_group_that_is_there(desk: Desk) -> None:
    for group, code in (("none", ErrorCode.group_id_not_found), ("", ErrorCode.invalid_group_id)):
        answer = await desk.node.ask(DELETE, group_id=group, topics=delete_of(0))
        assert (answer.error_code, answer.topics) == (code, ())
