"""FindCoordinator in every version, and the topics that come into being by it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from strandline.node.controller.client import Unavailable
from strandline.node.controller.leaders import Leader
from strandline.node.coordinator.context import CoordinatorPlace
from strandline.node.coordinator.table import CREATE_SECONDS
from strandline.node.kafka.handlers.cluster_changes import LEADER_SECONDS
from strandline.node.kafka.handlers.find_coordinator import MAX_CHARACTERS, MAX_KEYS
from strandline.node.kafka.wire.apis import APIS, ApiKey
from strandline.node.refusal import Refusal
from strandline.statemachine.controller.controller_commands import CreateInternalTopic
from strandline.statemachine.internal_topics import (
    GROUPS_TOPIC,
    MAX_KEY_BYTES,
    TRANSACTIONS_TOPIC,
    coordinator_of,
)
from strandline.statemachine.kafka_errors import KafkaError, Refused
from tests.kafka.handlers.fake_cluster import Cluster
from tests.kafka.handlers.fake_node import FakeNode
from tests.runtime.jumping_loop import run

FIND = ApiKey.FIND_COORDINATOR
GROUP, TRANSACTION = 0, 1
VERSIONS = range(APIS[FIND].first, APIS[FIND].last + 1)


async def find(node: FakeNode, version: int, kind: int, *keys: str) -> list[Any]:
    """What is said of each key; before version 4 of one."""
    answer = await node.ask(FIND, version, key=keys[0], key_type=kind, coordinator_keys=keys)
    if version < 4:
        assert len(keys) == 1
        return [answer]
    assert [one.key for one in answer.coordinators] == list(keys)
    return list(answer.coordinators)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", [GROUP, TRANSACTION])
def test_a_key_is_where_its_partition_is_led(version: int, kind: int) -> None:
    if version == 0 and kind == TRANSACTION:
        pytest.skip("version 0 knows groups only")

    async def test() -> None:
        node = FakeNode()
        name = (GROUPS_TOPIC, TRANSACTIONS_TOPIC)[kind]
        for key in ("flights", "trains", "", "é"):
            (found,) = await find(node, version, kind, key)
            topic = node.controller.machine.topic(name)
            assert topic is not None
            assert (len(topic.partitions), topic.replication_factor) == (16, 3)
            leader = topic.partitions[coordinator_of(key, 16)].replicas[0]
            assert (found.error_code, found.node_id, found.host, found.port) == (
                ErrorCode.none,
                leader,
                f"n{leader}",
                9000 + leader,
            )
            if version >= 1:
                assert not found.error_message
        assert [one.name for one in node.controller.machine.topics] == [name]
        assert len(node.controller.submitted) == 1

    run(test)


@pytest.mark.parametrize("version", range(4, APIS[FIND].last + 1))
def test_a_batch_of_keys_is_answered_one_by_one(version: int) -> None:
    async def test() -> None:
        node = FakeNode()
        keys = [f"group-{number}" for number in range(200)]
        found = await find(node, version, GROUP, *keys)
        assert {one.error_code for one in found} == {ErrorCode.none}
        assert {one.node_id for one in found} == {1, 2, 3}
        assert await find(node, version, GROUP, *reversed(keys)) == list(reversed(found))
        answer = await node.ask(FIND, version, key_type=GROUP, coordinator_keys=())
        assert answer.coordinators == ()

    run(test)


def test_an_unreasonable_batch_is_refused_whole() -> None:
    async def test() -> None:
        node = FakeNode()
        found = await find(node, 6, GROUP, *map(str, range(MAX_KEYS + 1)))
        assert {(one.error_code, one.node_id) for one in found} == {(ErrorCode.invalid_request, -1)}
        assert node.controller.submitted == []

    run(test)


@pytest.mark.parametrize("kind", [GROUP, TRANSACTION])
def test_keys_that_take_long_to_hash_are_not_looked_up(kind: int) -> None:
    async def test() -> None:
        node = FakeNode()
        too_long, whole = "x" * (MAX_KEY_BYTES + 1), "x" * MAX_KEY_BYTES
        assert (await find(node, 3, kind, too_long))[0].error_code is ErrorCode.invalid_request
        first, second = await find(node, 6, kind, too_long, whole)
        assert (first.error_code, second.error_code) == (ErrorCode.invalid_request, ErrorCode.none)
        # For producers that name such an id as well, and for all requests about a group.
        place = await node.coordinators.transaction_place(too_long)
        assert isinstance(place, Refusal)
        assert place.reason is KafkaError.INVALID_REQUEST
        assert node.coordinators.groups_for(too_long) is KafkaError.INVALID_REQUEST
        many = await find(node, 6, kind, *[whole] * (MAX_CHARACTERS // MAX_KEY_BYTES + 1))
        assert {one.error_code for one in many} == {ErrorCode.invalid_request}

    run(test)


@pytest.mark.parametrize("version", range(1, APIS[FIND].last + 1))
@pytest.mark.parametrize("kind", [2, -1])
def test_other_keys_have_no_coordinator(version: int, kind: int) -> None:
    async def test() -> None:
        node = FakeNode()
        (found,) = await find(node, version, kind, "share")
        assert (found.error_code, found.node_id) == (ErrorCode.invalid_request, -1)
        assert f"type {kind}" in found.error_message
        assert node.controller.submitted == []

    run(test)


@pytest.mark.parametrize("version", VERSIONS)
def test_without_a_leader_clients_come_again(version: int) -> None:
    async def test() -> None:
        node = FakeNode()
        node.leaders.nobody = True
        began = node.loop.time()
        (found,) = await find(node, version, GROUP, "g")
        assert node.loop.time() - began == pytest.approx(LEADER_SECONDS, abs=0.1)
        assert (found.error_code, found.node_id, found.host, found.port) == (
            ErrorCode.coordinator_not_available,
            -1,
            "",
            -1,
        )
        if version >= 1:
            assert "no leader" in found.error_message

    run(test)


def test_an_election_is_waited_for() -> None:
    async def test() -> None:
        node = FakeNode()
        node.leaders.nobody = True
        asked = asyncio.ensure_future(find(node, 6, GROUP, "g"))
        await asyncio.sleep(LEADER_SECONDS / 2)
        assert not asked.done()
        node.leaders.nobody = False
        began = node.loop.time()
        assert (await asked)[0].error_code is ErrorCode.none
        assert node.loop.time() - began < 0.2

    run(test)


def test_no_client_is_sent_to_a_node_that_is_fenced_or_unknown() -> None:
    async def test() -> None:
        node = FakeNode()
        place = await node.coordinators.group_place("g")
        assert isinstance(place, CoordinatorPlace)
        for leader in (2, 9):
            node.leaders.others[place.raft_group] = Leader(leader, 3)
            node.cluster.fence(2)
            node.controller.hear()
            assert (await find(node, 6, GROUP, "g"))[0].error_code is ErrorCode.coordinator_not_available
        node.cluster.revive(2)
        node.controller.hear()
        node.leaders.others[place.raft_group] = Leader(2, 3)
        assert (await find(node, 6, GROUP, "g"))[0].node_id == 2

    run(test)


# Creating.


def test_nodes_that_find_it_missing_together_get_the_same() -> None:
    async def test() -> None:
        cluster = Cluster()
        nodes = [FakeNode(cluster, number) for number in (1, 2, 3)]
        places = await asyncio.gather(
            *(node.coordinators.group_place(f"g{number}") for node in nodes for number in range(20))
        )
        assert places[:20] == places[20:40] == places[40:]
        assert [topic.name for topic in cluster.leader.topics] == [GROUPS_TOPIC]
        # Each node asked once, however many waited there.
        assert [len(node.controller.submitted) for node in nodes] == [1, 1, 1]
        ids = [one.topic_id for node in nodes for one in node.controller.submitted]  # type: ignore[union-attr]
        assert len(set(ids)) == 3

    run(test)


@pytest.mark.parametrize("unknown", [False, True])
def test_without_the_controller_clients_come_again(unknown: bool) -> None:
    async def test() -> None:
        node = FakeNode()
        node.controller.down = Unavailable("nobody leads it", unknown)
        (found,) = await find(node, 6, TRANSACTION, "t")
        assert (found.error_code, found.node_id) == (ErrorCode.coordinator_not_available, -1)
        assert "nobody leads it" in found.error_message
        node.controller.down = None
        assert (await find(node, 6, TRANSACTION, "t"))[0].error_code is ErrorCode.none

    run(test)


def test_with_too_few_nodes_nothing_is_created_with_fewer_replicas() -> None:
    async def test() -> None:
        node = FakeNode()
        node.cluster.fence(3)
        node.controller.hear()
        (found,) = await find(node, 6, GROUP, "g")
        assert found.error_code is ErrorCode.coordinator_not_available
        assert "only 2 broker(s)" in found.error_message
        assert node.cluster.leader.topics == ()

    run(test)


def test_who_gives_up_takes_it_from_nobody_else() -> None:
    async def test() -> None:
        node = FakeNode()
        first = asyncio.ensure_future(node.coordinators.group_place("g"))
        second = asyncio.ensure_future(node.coordinators.group_place("h"))
        for _ in range(2):
            await asyncio.sleep(0)
        first.cancel()
        assert isinstance(await second, CoordinatorPlace)
        assert first.cancelled()
        assert len(node.controller.submitted) == 1

    run(test)


def test_a_node_that_stops_creates_nothing() -> None:
    async def test() -> None:
        node = FakeNode()
        node.coordinators.close()
        refused = await node.coordinators.group_place("g")
        assert isinstance(refused, Refusal)
        assert refused.reason is KafkaError.COORDINATOR_NOT_AVAILABLE
        assert node.coordinators.groups_for("g") is KafkaError.COORDINATOR_NOT_AVAILABLE
        assert node.controller.submitted == []

    run(test)


def test_the_controller_is_asked_for_as_long_as_a_client_waits() -> None:
    async def test() -> None:
        node = FakeNode()
        seconds: list[float] = []
        submit = node.controller.submit

        async def noted(command: Any, timeout: float) -> Any:  # noqa: ASYNC109
            seconds.append(timeout)
            assert isinstance(command, CreateInternalTopic)
            return await submit(command, timeout)

        node.controller.submit = noted  # type: ignore[method-assign]
        await node.coordinators.group_place("g")
        assert seconds == [CREATE_SECONDS]

    run(test)


def test_the_reason_why_there_are_no_coordinators_is_in_the_log_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Clients only show that there is none yet. So it is with three nodes of which one is away or drained."""

    async def test() -> None:
        node = FakeNode()
        reasons = iter(["only 2 nodes are alive", "only 2 nodes are alive", "only 1 node is alive"])

        async def refused(command: Any, timeout: float) -> Any:  # noqa: ASYNC109
            return Refused(KafkaError.INVALID_REPLICATION_FACTOR, next(reasons))

        node.controller.submit = refused  # type: ignore[method-assign]
        for _ in range(3):
            assert isinstance(await node.coordinators.group_place("g"), Refusal)
        told = [line for line in caplog.messages if "cannot be created yet, and clients wait for it" in line]
        assert [line.rpartition(": ")[2] for line in told] == [
            "only 2 nodes are alive",
            "only 1 node is alive",
        ]

    run(test)


# What answers here.


def test_what_is_not_hosted_here_is_coordinated_elsewhere() -> None:
    async def test() -> None:
        node = FakeNode()
        for answers in (node.coordinators.groups_for, node.coordinators.transactions_for):
            assert answers("g") is KafkaError.NOT_COORDINATOR
        await node.coordinators.group_place("g")
        assert node.coordinators.groups_for("g") is KafkaError.NOT_COORDINATOR
        assert not node.coordinators.led_groups()
        assert not node.coordinators.led_transactions()
        assert node.coordinators.groups_by_raft_group(1) is None
        assert node.coordinators.by_group(1) is None
        assert node.coordinators.remove(1) is None

    run(test)
