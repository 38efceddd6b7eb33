"""Requests of transactional producers, and of who looks at them, through frames of every spoken version."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

import pytest
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode

from strandline.node.controller.client import Unavailable
from strandline.node.coordinator.transactions import transaction_coordinator as coordinator
from strandline.node.kafka.handlers.handler import TABLE
from strandline.node.kafka.wire.apis import ApiKey
from strandline.node.kafka.wire.codec import decode_request, encode_response
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.response_types import response_types
from strandline.statemachine.controller.controller_commands import CreateInternalTopic, DeleteTopic
from strandline.statemachine.internal_topics import GROUPS_TOPIC, TRANSACTIONS_TOPIC, coordinator_of
from tests.coordinator.transaction_harness import Coordinated, turns
from tests.kafka.handlers.fake_node import FakeNode
from tests.kafka.wire.entities import encoded, entity_of, head, versions
from tests.kafka.wire.sent_bytes import sent_bytes
from tests.runtime.jumping_loop import run

INIT, ADD, OFFSETS, END = (
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.END_TXN,
)
DESCRIBE, LIST = ApiKey.DESCRIBE_TRANSACTIONS, ApiKey.LIST_TRANSACTIONS
Test = Callable[[Coordinated, FakeNode], Coroutine[Any, Any, None]]


def served(test: Test) -> None:
    """Run a test that asks the node that coordinates."""

    async def body() -> None:
        coordinated = Coordinated()
        try:
            member = await coordinated.lead()
            await test(coordinated, member.node)
        finally:
            coordinated.close()
            await turns()

    run(body)


async def init(node: FakeNode, version: int | None = None, **given: Any) -> Any:
    fields = {"transactional_id": "t", "transaction_timeout": timedelta(minutes=1)}
    fields |= {"producer_id": -1, "producer_epoch": -1} | given
    return await node.ask(INIT, version, **fields)


async def add(
    node: FakeNode,
    of: tuple[int, int],
    *topics: tuple[str, list[int]],
    version: int | None = None,
    tid: str = "t",
) -> dict[tuple[str, int], str]:
    answer = await node.ask(
        ADD,
        version,
        v3_and_below_transactional_id=tid,
        v3_and_below_producer_id=of[0],
        v3_and_below_producer_epoch=of[1],
        v3_and_below_topics=[{"name": name, "partitions": numbers} for name, numbers in topics],
    )
    return {
        (topic.name, one.partition_index): one.partition_error_code.name
        for topic in answer.results_by_topic_v3_and_below
        for one in topic.results_by_partition
    }


async def end(
    node: FakeNode, of: tuple[int, int], committed: bool = True, version: int | None = None, tid: str = "t"
) -> Any:
    return await node.ask(
        END, version, transactional_id=tid, producer_id=of[0], producer_epoch=of[1], committed=committed
    )


async def offsets(node: FakeNode, of: tuple[int, int], group: str = "g", version: int | None = None) -> str:
    answer = await node.ask(
        OFFSETS, version, transactional_id="t", producer_id=of[0], producer_epoch=of[1], group_id=group
    )
    name: str = answer.error_code.name
    return name


# InitProducerId.


@pytest.mark.parametrize("version", versions(INIT))
def test_a_transactional_producer_gets_an_id_and_then_the_next_epochs(version: int) -> None:
    async def test(coordinated: Coordinated, node: FakeNode) -> None:
        for epoch in (0, 1):
            answer = await init(node, version)
            assert (answer.error_code, answer.producer_epoch) == (ErrorCode.none, epoch)
            assert answer.producer_id == 4001

    served(test)


@pytest.mark.parametrize("version", versions(INIT))
def test_a_fenced_producer_is_told_in_words_its_version_knows(version: int) -> None:
    async def test(coordinated: Coordinated, node: FakeNode) -> None:
        await init(node)
        await init(node)
        if version < 3:
            return
        answer = await init(node, version, producer_id=4001, producer_epoch=0)
        expected = ErrorCode.producer_fenced if version >= 4 else ErrorCode.invalid_producer_epoch
        assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (expected, -1, -1)

    served(test)


def test_a_producer_of_views_waits_until_the_coordinator_knows_the_newest_cutover() -> None:
    async def test(coordinated: Coordinated, node: FakeNode) -> None:
        known = ("t", "view.p.7")
        for name in known:
            assert (await init(node, transactional_id=name)).error_code is ErrorCode.none
        node.controller.down = Unavailable("no leader", False)
        codes = [(await init(node, transactional_id=name)).error_code for name in known]
        assert codes == [ErrorCode.none, ErrorCode.coordinator_load_in_progress]

    served(test)


def test_bad_requests_for_a_producer_id_are_refused() -> None:
    async def test(coordinated: Coordinated, node: FakeNode) -> None:
        async def refused(**given: Any) -> str:
            answer = await init(node, **given)
            assert (answer.producer_id, answer.producer_epoch) == (-1, -1)
            name: str = answer.error_code.name
            return name

        assert await refused(transactional_id="") == "invalid_request"
        assert await refused(producer_id=5) == "invalid_request"
        assert await refused(producer_epoch=5) == "invalid_request"
        for timeout in (timedelta(0), timedelta(milliseconds=-1), timedelta(minutes=15, milliseconds=1)):
            assert await refused(transaction_timeout=timeout) == "invalid_transaction_timeout"
        node.producer_ids.down = Unavailable("no controller", False)
        assert await refused() == "coordinator_load_in_progress"
        assert await refused(transactional_id=None) == "coordinator_load_in_progress"
        coordinated.depose()
        assert await refused() == "not_coordinator"

    served(test)


def test_an_idempotent_producer_always_gets_a_new_id() -> None:
    async def test(coordinated: Coordinated, node: FakeNode) -> None:
        first = await init(node, transactional_id=None)
        again = await init(
            node, transactional_id=None, producer_id=first.producer_id, producer_epoch=first.producer_epoch
        )
        assert again.producer_id == first.producer_id + 1
        assert again.producer_epoch == 0

    served(test)


# AddPartitionsToTxn, AddOffsetsToTxn.


@pytest.mark.parametrize("version", versions(ADD))
def test_partitions_are_added(version: int) -> None:
    async def test(coordinated: Coordinated, node: FakeNode) -> None:
        await init(node)
        of = (4001, 0)
        assert await add(node, of, ("t", [0, 2]), version=version) == {("t", 0): "none", ("t", 2): "none"}
        row = coordinated.members[0].machine.transactions["t"]
        assert list(row.partitions) == [coordinated.partition(0), coordinated.partition(2)]
        fenced = "producer_fenced" if version >= 2 else "invalid_producer_epoch"
        assert await add(node, (4001, 9), ("t", [1]), version=version) == {("t", 1): fenced}
        mapping = {("t", 1): "invalid_producer_id_mapping"}
        assert await add(node, (9, 0), ("t", [1]), version=version) == mapping
        assert await add(node, of, ("t", [1]), version=version, tid="u") == mapping
        assert await add(node, of, ("t", [1]), version=version, tid="") == {("t", 1): "invalid_request"}
        assert await add(node, of, version=version) == {}
        assert list(row.partitions) == [coordinated.partition(0), coordinated.partition(2)]

    served(test)


def test_with_a_partition_that_does_not_exist_none_is_added() -> None:
    async def test(coordinated: Coordinated, node: FakeNode) -> None:
        await init(node)
        coordinated.cluster.apply(CreateInternalTopic(b"i" * 16, TRANSACTIONS_TOPIC, 1, 3))
        node.controller.hear()
        asked = (("t", [0, 3, -1]), ("no", [0]), (TRANSACTIONS_TOPIC, [0]))
        assert await add(node, (4001, 0), *asked) == {
            ("t", 0): "operation_not_attempted",
            ("t", 3): "unknown_topic_or_partition",
            ("t", -1): "unknown_topic_or_partition",
            ("no", 0): "unknown_topic_or_partition",
            (TRANSACTIONS_TOPIC, 0): "invalid_topic_exception",
        }
        assert coordinated.members[0].machine.transactions["t"].number == 0

    served(test)


@pytest.mark.parametrize("version", versions(OFFSETS))
def test_groups_are_added(version: int) -> None:
    async def test(coordinated: Coordinated, node: FakeNode) -> None:
        await init(node)
        assert await offsets(node, (4001, 0), version=version) == "none"
        assert list(coordinated.members[0].machine.transactions["t"].groups) == ["g"]
        fenced = "producer_fenced" if version >= 2 else "invalid_producer_epoch"
        assert await offsets(node, (4001, 1), version=version) == fenced
        assert await offsets(node, (4001, 0), "", version=version) == "invalid_group_id"
        coordinated.depose()
        assert await offsets(node, (4001, 0), version=version) == "not_coordinator"
        assert await add(node, (4001, 0), ("t", [0])) == {("t", 0): "not_coordinator"}

    served(test)


def test_the_leaders_hear_the_number_once_their_partitions_are_in_the_transaction() -> None:
    async def test(coordinated: Coordinated, node: FakeNode) -> None:
        await init(node)
        coordinated.log.held = True
        adding = asyncio.create_task(add(node, (4001, 0), ("t", [0, 2])))
        await turns()
        assert node.calls.told == [], "it is not certain yet"
        coordinated.log.held = False
        coordinated.log.commit()
        assert await adding == {("t", 0): "none", ("t", 2): "none"}
        told = {to: payload for to, _, payload in node.calls.told}
        assert all(payload[:3] == [4001, 0, 1] for payload in told.values())
        places = [tuple(place) for payload in told.values() for place in payload[3]]
        assert sorted(places) == [coordinated.partition(0), coordinated.partition(2)]
        node.calls.told.clear()
        assert await add(node, (4001, 7), ("t", [1])) == {("t", 1): "producer_fenced"}
        assert node.calls.told == []

    served(test)


# EndTxn.


@pytest.mark.parametrize("version", versions(END))
@pytest.mark.parametrize("committed", [False, True])
def test_a_transaction_is_ended_and_the_version_says_whether_the_epoch_rises(
    version: int, committed: bool
) -> None:
    async def test(coordinated: Coordinated, node: FakeNode) -> None:
        await init(node)
        of = (4001, 0)
        await add(node, of, ("t", [0]))
        for _ in range(2):
            answer = await end(node, of, committed, version)
            assert answer.error_code is ErrorCode.none
            if version >= 5:
                assert (answer.producer_id, answer.producer_epoch) == (4001, 1)
            await asyncio.sleep(1)
        raised = int(version >= 5)
        assert [(sent.epoch, sent.commit) for sent in coordinated.sent] == [(raised, committed)]
        answer = await end(node, of, not committed, version)
        assert answer.error_code is ErrorCode.invalid_txn_state
        answer = await end(node, (4001, 7), committed, version)
        fenced = ErrorCode.producer_fenced if version >= 2 else ErrorCode.invalid_producer_epoch
        assert answer.error_code is fenced
        if version >= 5:
            assert (answer.producer_id, answer.producer_epoch) == (-1, -1)
        answer = await end(node, of, committed, version, tid="u")
        assert answer.error_code is ErrorCode.invalid_producer_id_mapping
        answer = await end(node, of, committed, version, tid="")
        assert answer.error_code is ErrorCode.invalid_request

    served(test)


def test_ids_and_groups_are_no_longer_and_no_more_than_replicas_can_keep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coordinator, "MAX_GROUPS", 2)

    async def test(coordinated: Coordinated, node: FakeNode) -> None:
        assert (await init(node, transactional_id="ä" * 16_383)).error_code is ErrorCode.none
        assert (await init(node, transactional_id="ä" * 16_384)).error_code is ErrorCode.invalid_request
        # Kept in the log and looked up by every leader that completes the transaction.
        assert await offsets(node, (4002, 0), "ä" * 16_384) == "invalid_group_id"
        of = (4002, 0)
        await init(node)
        assert [await offsets(node, of, group) for group in "abca"] == ["none"] * 2 + [
            "invalid_request",
            "none",
        ]
        assert list(coordinated.members[0].machine.transactions["t"].groups) == ["a", "b"]
        assert await add(node, of, ("t", [0])) == {("t", 0): "none"}
        await end(node, of, version=3)
        await turns(50)
        assert await offsets(node, of, "c") == "none"

    served(test)


@pytest.mark.parametrize("version", versions(END))
def test_what_never_began_cannot_be_committed(version: int) -> None:
    async def test(coordinated: Coordinated, node: FakeNode) -> None:
        await init(node)
        assert (await end(node, (4001, 0), True, version)).error_code is ErrorCode.invalid_txn_state
        aborted = await end(node, (4001, 0), False, version)
        # Clients of version 2 abort what the broker may have added for them.
        expected = ErrorCode.none if version >= 5 else ErrorCode.invalid_txn_state
        assert aborted.error_code is expected
        assert coordinated.sent == []

    served(test)


# Looking at it.


async def described(node: FakeNode, *tids: str) -> list[Any]:
    answer = await node.ask(DESCRIBE, transactional_ids=list(tids))
    return list(answer.transaction_states)


def test_a_transaction_is_described_with_what_is_in_it() -> None:
    async def test(coordinated: Coordinated, node: FakeNode) -> None:
        other = coordinated.cluster.create("gone", partitions=1)
        coordinated.cluster.apply(CreateInternalTopic(b"i" * 16, GROUPS_TOPIC, 50, 3))
        node.controller.hear()
        await init(node)
        began = coordinated.wall + int(node.loop.time() * 1000)
        await add(node, (4001, 0), ("t", [2, 0]), ("gone", [0]))
        await offsets(node, (4001, 0), "g")
        coordinated.cluster.apply(DeleteTopic(other.topic_id))
        node.controller.hear()
        [one] = await described(node, "t")
        assert (one.error_code, one.transactional_id, one.transaction_state) == (
            ErrorCode.none,
            "t",
            "Ongoing",
        )
        assert (one.producer_id, one.producer_epoch) == (4001, 0)
        assert one.transaction_timeout == timedelta(minutes=1)
        assert round(one.transaction_start_time.timestamp() * 1000) == began
        assert {topic.topic: topic.partitions for topic in one.topics} == {
            "t": (0, 2),
            GROUPS_TOPIC: (coordinator_of("g", 50),),
        }

    served(test)


def test_without_a_transaction_its_start_is_minus_one() -> None:
    async def test(coordinated: Coordinated, node: FakeNode) -> None:
        await init(node)
        header, payload = decode_request(
            memoryview(head(DESCRIBE, 0) + encoded(entity_of(request, {"transactional_ids": ["t"]}))), 1000
        )
        asked = Request(header, payload, "127.0.0.1", 100, 1)
        answer = await TABLE[DESCRIBE](node.context, asked, response_types(DESCRIBE, 0))
        frame = sent_bytes(encode_response(header, answer))
        # State, timeout, start, producer id: kio reads no negative times.
        assert b"\x06Empty" + struct.pack(">iqq", 60_000, -1, 4001) in frame

    request = load_request_schema(DESCRIBE, 0)
    served(test)


def test_what_cannot_be_described_says_why() -> None:
    async def test(coordinated: Coordinated, node: FakeNode) -> None:
        await init(node)
        await add(node, (4001, 0), ("t", [0]))
        found = await described(node, "t", "u", "")
        assert [one.error_code.name for one in found] == [
            "none",
            "transactional_id_not_found",
            "invalid_request",
        ]
        assert [one.transactional_id for one in found] == ["t", "u", ""]
        coordinated.depose()
        [one] = await described(node, "t")
        assert one.error_code is ErrorCode.not_coordinator

    served(test)


async def listed(node: FakeNode, version: int | None = None, **filters: Any) -> list[tuple[str, int, str]]:
    given = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1}
    given |= {"transactional_id_pattern": None} | filters
    answer = await node.ask(LIST, version, **given)
    assert answer.error_code is ErrorCode.none
    return [
        (one.transactional_id, one.producer_id, one.transaction_state) for one in answer.transaction_states
    ]


@pytest.mark.parametrize("version", versions(LIST))
def test_transactions_are_listed_by_state_producer_and_duration(version: int) -> None:
    async def test(coordinated: Coordinated, node: FakeNode) -> None:
        await init(node)
        await init(node, transactional_id="u")
        await init(node, transactional_id="v")
        await add(node, (4001, 0), ("t", [0]))
        await add(node, (4003, 0), ("t", [0]), tid="v")
        await end(node, (4003, 0), tid="v", version=3)
        await asyncio.sleep(20)
        t, u, v = ("t", 4001, "Ongoing"), ("u", 4002, "Empty"), ("v", 4003, "CompleteCommit")
        assert await listed(node, version) == [t, u, v]
        assert await listed(node, version, state_filters=["Empty", "CompleteCommit"]) == [u, v]
        assert await listed(node, version, producer_id_filters=[4001, 4003, 7]) == [t, v]
        assert await listed(node, version, producer_id_filters=[4001], state_filters=["Empty"]) == []
        if version >= 1:
            assert await listed(node, version, duration_filter=10_000) == [t]
            assert await listed(node, version, duration_filter=30_000) == []
        answer = await node.ask(
            LIST, version, state_filters=["Dead", "what", "Empty"], producer_id_filters=[], duration_filter=-1
        )
        assert answer.unknown_state_filters == ("what",)
        assert len(answer.transaction_states) == 1

    served(test)


def test_transactions_are_listed_by_a_pattern_of_their_ids() -> None:
    async def test(coordinated: Coordinated, node: FakeNode) -> None:
        tids = ("copier-1", "copier-22", "Kopierer-ä", "x" * 300)
        for tid in tids:
            await init(node, transactional_id=tid)

        async def by(pattern: str | None) -> list[str]:
            return [tid for tid, _, _ in await listed(node, transactional_id_pattern=pattern)]

        assert await by(None) == await by("") == await by(".*") == list(tids)
        assert await by("copier") == [], "as a whole"
        assert await by("copier-[0-9]") == ["copier-1"]
        assert await by("(?i)[ck]opier.*-.*") == list(tids[:3])
        assert await by("Kopierer-\\w") == []
        answer = await node.ask(
            LIST,
            state_filters=[],
            producer_id_filters=[],
            duration_filter=-1,
            transactional_id_pattern="copier-[",
        )
        assert answer.error_code is ErrorCode.invalid_regular_expression
        assert answer.transaction_states == ()

    served(test)


def test_a_node_that_leads_no_coordinator_lists_nothing_and_one_that_may_not_says_so() -> None:
    async def test(coordinated: Coordinated, node: FakeNode) -> None:
        await init(node)
        other = coordinated.members[1].node
        assert await listed(other) == []
        coordinated.members[0].group.is_leader = False
        answer = await node.ask(LIST, state_filters=[], producer_id_filters=[], duration_filter=-1)
        assert answer.error_code is ErrorCode.coordinator_not_available
        assert answer.transaction_states == ()

    served(test)


def test_a_node_that_has_yet_to_catch_up_lists_nothing_as_if_there_were_nothing() -> None:
    async def test(coordinated: Coordinated, node: FakeNode) -> None:
        await init(node)
        elected = coordinated.members[1]
        coordinated.depose()
        elected.group.is_leader = True
        assert elected.replica.loading
        answer = await elected.node.ask(LIST, state_filters=[], producer_id_filters=[], duration_filter=-1)
        assert answer.error_code is ErrorCode.coordinator_load_in_progress

    served(test)
