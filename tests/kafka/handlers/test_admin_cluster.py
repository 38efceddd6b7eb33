"""DescribeCluster, ElectLeaders and InitProducerId, in every version."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from strandline.node.controller.client import Unavailable
from strandline.node.controller.leaders import Leader
from strandline.node.kafka.handlers import elect_leaders
from strandline.node.kafka.wire.apis import APIS, ApiKey
from strandline.node.rpc import CallFailed
from tests.kafka.handlers.fake_cluster import CLUSTER, Cluster
from tests.kafka.handlers.fake_node import FakeNode
from tests.runtime.jumping_loop import run

DESCRIBE, ELECT = ApiKey.DESCRIBE_CLUSTER, ApiKey.ELECT_LEADERS
INIT = ApiKey.INIT_PRODUCER_ID


def versions(key: ApiKey, first: int | None = None) -> range:
    return range(APIS[key].first if first is None else first, APIS[key].last + 1)


# DescribeCluster.


@pytest.mark.parametrize("version", versions(DESCRIBE))
def test_the_cluster_is_its_live_nodes(version: int) -> None:
    async def test() -> None:
        node = FakeNode()
        node.cluster.fence(3)
        node.controller.hear()
        answer = await node.ask(DESCRIBE, version)
        assert (answer.error_code, answer.error_message) == (ErrorCode.none, None)
        assert (answer.cluster_id, answer.controller_id) == (CLUSTER, 1)
        assert [(one.broker_id, one.host, one.port) for one in answer.brokers] == [
            (1, "n1", 9001),
            (2, "n2", 9002),
        ]
        assert answer.cluster_authorized_operations == -(2**31)
        if version >= 1:
            assert answer.endpoint_type == 1
        answer = await node.ask(DESCRIBE, version, include_cluster_authorized_operations=True)
        assert answer.cluster_authorized_operations == 8096

    run(test)


def test_fenced_nodes_are_told_to_those_who_ask() -> None:
    async def test() -> None:
        node = FakeNode()
        node.cluster.fence(3)
        node.controller.hear()
        answer = await node.ask(DESCRIBE, 2, include_fenced_brokers=True)
        assert [(one.broker_id, one.is_fenced) for one in answer.brokers] == [
            (1, False),
            (2, False),
            (3, True),
        ]
        answer = await node.ask(DESCRIBE, 2, include_fenced_brokers=False)
        assert [one.broker_id for one in answer.brokers] == [1, 2]

    run(test)


@pytest.mark.parametrize("version", versions(DESCRIBE, 1))
@pytest.mark.parametrize(
    ("kind", "code"), [(2, ErrorCode.mismatched_endpoint_type), (3, ErrorCode.unsupported_endpoint_type)]
)
def test_who_looks_for_a_controller_s_own_port_is_told_that_this_is_none(
    version: int, kind: int, code: ErrorCode
) -> None:
    async def test() -> None:
        answer = await FakeNode().ask(DESCRIBE, version, endpoint_type=kind)
        assert (answer.error_code, answer.brokers) == (code, ())
        assert answer.error_message

    run(test)


# ElectLeaders.


def moved(
    cluster: Cluster, leader: int, *, preferred: int = 1, count: int = 1
) -> tuple[FakeNode, FakeNode, list[int]]:
    """A topic whose partitions prefer one node and are led by another, and both nodes."""
    nodes = [FakeNode(cluster, node) for node in sorted({preferred, leader})]
    made = cluster.create("t", 3 * count, 3)
    groups = [one.group for one in made.partitions if one.replicas[0] == preferred]
    for node in nodes:
        elect_leaders.serve(node.context)
        node.controller.hear()
        node.partitions.host(made)
        node.leaders.others = dict.fromkeys(groups, Leader(leader, 9))
    asked, leads = (next(one for one in nodes if one.node_id == wanted) for wanted in (preferred, leader))
    return asked, leads, groups


def number_of(node: FakeNode, group: int) -> int:
    place = node.controller.machine.place_of(group)
    assert place is not None
    return place.partition


def take_over(node: FakeNode, *nodes: FakeNode) -> Any:
    """A transfer after which, a little later, all nodes know the new leader."""

    def transfer(group: int, target: int) -> bool:
        for one in nodes:
            node.loop.call_later(0.1, one.leaders.others.__setitem__, group, Leader(target, 10))
        return True

    return transfer


async def elect(node: FakeNode, *partitions: int, version: int = 2, **more: Any) -> Any:
    wanted = {
        "topic_partitions": [{"topic": "t", "partitions": partitions}],
        "timeout": timedelta(seconds=5),
        "election_type": 0,
        **more,
    }
    answer = await node.ask(ELECT, version, **wanted)
    return answer.replica_election_results


@pytest.mark.parametrize("version", versions(ELECT))
def test_the_leader_is_asked_to_hand_over_to_the_preferred_one(version: int) -> None:
    async def test() -> None:
        node, leads, (group, *_) = moved(Cluster(), 2)
        leads.partitions.transfer = take_over(node, node, leads)
        begun = node.loop.time()
        number = number_of(node, group)
        (result,) = await elect(node, number, version=version)
        (partition,) = result.partition_result
        assert (result.topic, partition.partition_id) == ("t", number)
        assert (partition.error_code, partition.error_message) == (ErrorCode.none, None)
        assert leads.partitions.transfers == [(group, 1)]
        assert 0.09 < node.loop.time() - begun < 0.3

    run(test)


def test_a_partition_that_its_preferred_node_leads_needs_no_election() -> None:
    async def test() -> None:
        node = FakeNode()
        node.cluster.create("t", 1)
        node.controller.hear()
        (result,) = await elect(node, 0)
        assert result.partition_result[0].error_code == ErrorCode.election_not_needed

    run(test)


def test_all_partitions_are_meant_by_null_and_those_that_need_nothing_are_not_told() -> None:
    async def test() -> None:
        node, leads, groups = moved(Cluster(), 2, count=2)
        leads.partitions.transfer = take_over(node, node, leads)
        (result,) = await elect(node, topic_partitions=None)
        assert [one.partition_id for one in result.partition_result] == [
            number_of(node, group) for group in groups
        ]
        assert {one.error_code for one in result.partition_result} == {ErrorCode.none}
        assert await elect(node, topic_partitions=None) == ()

    run(test)


def test_what_does_not_exist_is_unknown() -> None:
    async def test() -> None:
        node = FakeNode()
        node.cluster.create("t", 1)
        node.controller.hear()
        asked = [{"topic": "t", "partitions": [0, 1, -1]}, {"topic": "no", "partitions": [0]}]
        there, missing = await elect(node, topic_partitions=asked)
        assert [(one.partition_id, one.error_code) for one in there.partition_result] == [
            (0, ErrorCode.election_not_needed),
            (1, ErrorCode.unknown_topic_or_partition),
            (-1, ErrorCode.unknown_topic_or_partition),
        ]
        assert missing.partition_result[0].error_code == ErrorCode.unknown_topic_or_partition

    run(test)


@pytest.mark.parametrize("why", ["fenced", "no leader", "not begun", "not reached"])
def test_a_preferred_node_that_cannot_lead_now_is_not_available(why: str) -> None:
    async def test() -> None:
        asked, leads, (group, *_) = moved(Cluster(), 2)
        if why == "fenced":
            asked.cluster.fence(1)
            asked.controller.hear()
        elif why == "no leader":
            asked.leaders.others[group] = None
        elif why == "not begun":
            leads.partitions.transfer = lambda *_: False
        else:
            asked.calls.failure = CallFailed("node 2 is not connected", unknown=False)
        (result,) = await elect(asked, number_of(asked, group))
        assert result.partition_result[0].error_code == ErrorCode.preferred_leader_not_available
        assert leads.partitions.transfers == ([(group, 1)] if why == "not begun" else [])

    run(test)


@pytest.mark.parametrize("taken", [True, False])
def test_a_hand_over_whose_answer_is_lost_is_judged_by_who_leads(taken: bool) -> None:
    async def test() -> None:
        node, leads, (group, *_) = moved(Cluster(), 2)
        node.calls.failure = CallFailed("the connection was lost", unknown=True)
        if taken:
            take_over(node, node, leads)(group, 1)
        begun = node.loop.time()
        (result,) = await elect(node, number_of(node, group))
        expected = ErrorCode.none if taken else ErrorCode.request_timed_out
        assert result.partition_result[0].error_code == expected
        assert node.loop.time() - begun < 5.2

    run(test)


def test_a_hand_over_that_does_not_happen_in_time_is_a_timeout() -> None:
    async def test() -> None:
        node, _, (group, *_) = moved(Cluster(), 2)
        begun = node.loop.time()
        (result,) = await elect(node, number_of(node, group))
        assert result.partition_result[0].error_code == ErrorCode.request_timed_out
        assert 4.9 < node.loop.time() - begun < 5.2

    run(test)


def test_many_partitions_change_their_leaders_a_hundred_at_a_time() -> None:
    async def test() -> None:
        node, leads, groups = moved(Cluster(), 2, count=150)
        under_way: set[int] = set()
        most = 0

        def transfer(group: int, target: int) -> bool:
            nonlocal most
            under_way.add(group)
            most = max(most, len(under_way))
            for one in (node, leads):
                node.loop.call_later(0.1, one.leaders.others.__setitem__, group, Leader(target, 10))
            node.loop.call_later(0.1, under_way.discard, group)
            return True

        leads.partitions.transfer = transfer
        (result,) = await elect(node, topic_partitions=None)
        assert len(result.partition_result) == len(groups) == 150
        assert {one.error_code for one in result.partition_result} == {ErrorCode.none}
        assert most == 100

    run(test)


def test_a_node_that_has_no_replica_hands_nothing_over() -> None:
    async def test() -> None:
        node = FakeNode()
        elect_leaders.serve(node.context)
        assert await node.calls.call(1, elect_leaders.METHOD, [[5, 2]], 1.0) == [False]

    run(test)


@pytest.mark.parametrize("version", versions(ELECT, 1))
def test_no_leader_is_ever_elected_uncleanly(version: int) -> None:
    async def test() -> None:
        node, leads, (group, *_) = moved(Cluster(), 2)
        number = number_of(node, group)
        (result,) = await elect(node, number, version=version, election_type=1)
        assert result.partition_result[0].error_code == ErrorCode.election_not_needed
        node.leaders.others[group] = None
        (result,) = await elect(node, number, version=version, election_type=1)
        assert result.partition_result[0].error_code == ErrorCode.eligible_leaders_not_available
        assert leads.partitions.transfers == []
        answer = await node.ask(ELECT, version, election_type=2, topic_partitions=None)
        assert (answer.error_code, answer.replica_election_results) == (ErrorCode.invalid_request, ())

    run(test)


# InitProducerId.


@pytest.mark.parametrize("version", versions(INIT))
def test_every_idempotent_producer_gets_a_new_id_also_one_that_brings_its_own(version: int) -> None:
    async def test() -> None:
        node = FakeNode()
        first = await node.ask(INIT, version, transactional_id=None)
        again = await node.ask(INIT, version, transactional_id=None, producer_id=4001, producer_epoch=3)
        assert [(one.error_code, one.producer_id, one.producer_epoch) for one in (first, again)] == [
            (ErrorCode.none, 4001, 0),
            (ErrorCode.none, 4002, 0),
        ]

    run(test)


@pytest.mark.parametrize("version", versions(INIT, 3))
@pytest.mark.parametrize("present", [{"producer_id": 5}, {"producer_epoch": 5}])
def test_half_of_an_identity_is_invalid(version: int, present: dict[str, int]) -> None:
    async def test() -> None:
        answer = await FakeNode().ask(INIT, version, transactional_id=None, **present)
        assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (
            ErrorCode.invalid_request,
            -1,
            -1,
        )

    run(test)


@pytest.mark.parametrize("version", versions(INIT))
def test_transactional_producers_are_their_coordinators(version: int) -> None:
    async def test() -> None:
        node = FakeNode()
        answer = await node.ask(INIT, version, transactional_id="x", transaction_timeout=timedelta(seconds=1))
        assert answer.error_code == ErrorCode.not_coordinator
        empty = await node.ask(INIT, version, transactional_id="")
        assert empty.error_code == ErrorCode.invalid_request
        assert node.producer_ids.given == 4000

    run(test)


@pytest.mark.parametrize("version", versions(INIT))
def test_without_ids_from_the_controller_a_producer_asks_again(version: int) -> None:
    async def test() -> None:
        node = FakeNode()
        node.producer_ids.down = Unavailable("no leader is known", False)
        answer = await node.ask(INIT, version, transactional_id=None)
        assert answer.error_code == ErrorCode.coordinator_load_in_progress
        assert (answer.producer_id, answer.producer_epoch) == (-1, -1)

    run(test)


# FindCoordinator.


def test_requests_give_up_their_work_when_their_client_goes() -> None:
    async def test() -> None:
        node, _, (group, *_) = moved(Cluster(), 2)
        asked = asyncio.ensure_future(elect(node, number_of(node, group)))
        await asyncio.sleep(0.5)
        asked.cancel()
        assert await asyncio.gather(asked, return_exceptions=True)

    run(test)
