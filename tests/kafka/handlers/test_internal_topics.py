"""What the requests of users make of the topics whose partitions are coordinators."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from strandline.node.kafka.handlers.configs import TOPIC
from strandline.node.kafka.wire.apis import ApiKey
from strandline.statemachine.internal_topics import GROUPS_TOPIC, INTERNAL_TOPICS, TRANSACTIONS_TOPIC
from tests.kafka.handlers.fake_node import FakeNode
from tests.kafka.wire.batches import build
from tests.kafka.wire.entities import versions
from tests.runtime.jumping_loop import simulated

INVALID = ErrorCode.invalid_topic_exception
BOTH = sorted(INTERNAL_TOPICS)
SOON = timedelta(seconds=1)


async def node_with_coordinators() -> FakeNode:
    node = FakeNode()
    node.topic("t")
    await node.coordinators.group_place("g")
    await node.coordinators.transaction_place("t")
    return node


@simulated
async def test_metadata_lists_them_as_internal() -> None:
    node = await node_with_coordinators()
    for version in versions(ApiKey.METADATA):
        answer = await node.ask(ApiKey.METADATA, version, topics=() if version == 0 else None)
        assert [topic.name for topic in answer.topics] == ["t", GROUPS_TOPIC, TRANSACTIONS_TOPIC]
        for topic in answer.topics:
            assert topic.error_code is ErrorCode.none
            if version >= 1:
                assert topic.is_internal == (topic.name != "t")
            assert len(topic.partitions) == (1 if topic.name == "t" else 16)


@simulated
async def test_naming_one_in_metadata_creates_none() -> None:
    node = FakeNode()
    wanted = [{"name": name, "topic_id": None} for name in BOTH]
    answer = await node.ask(ApiKey.METADATA, 9, topics=wanted, allow_auto_topic_creation=True)
    codes = [(topic.error_code, topic.is_internal) for topic in answer.topics]
    assert codes == [(ErrorCode.unknown_topic_or_partition, True)] * 2
    assert node.controller.submitted == []


@pytest.mark.parametrize("name", BOTH)
@simulated
async def test_there_are_no_records_to_write_or_read(name: str) -> None:
    node = await node_with_coordinators()
    for version in versions(ApiKey.PRODUCE):
        answer = await node.produce({(name, 0): build(), ("t", 0): build()}, version)
        codes = [part.error_code for topic in answer.responses for part in topic.partition_responses]
        assert codes == [INVALID, ErrorCode.none]
    for version in versions(ApiKey.FETCH):
        answer = await node.fetch({(name, 0): 0}, version)
        (part,) = answer.responses[0].partitions
        assert (part.error_code, part.records or None) == (INVALID, None)
    for version in versions(ApiKey.LIST_OFFSETS):
        times = {-1: 0, -2: 0, 1_700_000_000_000: -1} | ({-3: -1, -4: 0, -5: -1} if version >= 9 else {})
        for time, offset in times.items():
            (listed,) = await node.list_offsets([(15, time)], version, topic=name)
            assert (listed.error_code, listed.offset) == (ErrorCode.none, offset)
        (listed,) = await node.list_offsets([(16, -1)], version, topic=name)
        assert listed.error_code is ErrorCode.unknown_topic_or_partition
    asked = [{"name": name, "partition_indexes": [0, 16]}]
    producers = await node.ask(ApiKey.DESCRIBE_PRODUCERS, topics=asked)
    told = [(part.error_code, part.active_producers) for part in producers.topics[0].partitions]
    assert told == [(ErrorCode.none, ()), (ErrorCode.unknown_topic_or_partition, ())]
    for version in versions(ApiKey.OFFSET_FOR_LEADER_EPOCH):
        asked = [{"topic": name, "partitions": [{"partition": 0, "leader_epoch": 1}]}]
        answer = await node.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, version, topics=asked)
        assert answer.topics[0].partitions[0].error_code is INVALID
    for version in versions(ApiKey.DELETE_RECORDS):
        asked = [{"name": name, "partitions": [{"partition_index": 0, "offset": 0}]}]
        answer = await node.ask(ApiKey.DELETE_RECORDS, version, topics=asked, timeout=SOON)
        assert answer.topics[0].partitions[0].error_code is INVALID


@pytest.mark.parametrize("name", BOTH)
@simulated
async def test_users_neither_delete_nor_grow_nor_configure_them(name: str) -> None:
    node = await node_with_coordinators()
    before = node.cluster.leader.topics
    made = node.controller.machine.topic(name)
    assert made is not None

    def error(answered: Any) -> ErrorCode:
        assert "internal" in answered.error_message
        code: ErrorCode = answered.error_code
        return code

    by_name = await node.ask(ApiKey.DELETE_TOPICS, 5, topic_names=[name], timeout=SOON)
    assert error(by_name.responses[0]) is INVALID
    grown = [{"name": name, "count": 17, "assignments": None}]
    for validate_only in (True, False):
        answer = await node.ask(
            ApiKey.CREATE_PARTITIONS, topics=grown, timeout=SOON, validate_only=validate_only
        )
        assert error(answer.results[0]) is INVALID
    config = {"name": "retention.ms", "value": "5", "config_operation": 0}
    resource = {"resource_type": TOPIC, "resource_name": name, "configs": [config]}
    for key in (ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS):
        answer = await node.ask(key, resources=[resource], validate_only=False)
        assert error(answer.responses[0]) is INVALID
    assert node.cluster.leader.topics == before


@pytest.mark.parametrize("name", [*BOTH, "__consumer.offsets"])
@pytest.mark.parametrize("there", [False, True])
@simulated
async def test_users_do_not_create_them(name: str, there: bool) -> None:
    node = await node_with_coordinators() if there else FakeNode()
    before = node.cluster.leader.topics
    asked = {
        "name": name,
        "num_partitions": 1,
        "replication_factor": 3,
        "assignments": (),
        "configs": (),
    }
    for validate_only in (True, False):
        answer = await node.ask(
            ApiKey.CREATE_TOPICS, topics=[asked], timeout=SOON, validate_only=validate_only
        )
        (made,) = answer.topics
        assert (made.error_code, "internal" in made.error_message) == (INVALID, True)
    assert node.cluster.leader.topics == before


@simulated
async def test_their_configuration_may_be_read() -> None:
    node = await node_with_coordinators()
    resource = {"resource_type": TOPIC, "resource_name": GROUPS_TOPIC, "configuration_keys": None}
    answer = await node.ask(ApiKey.DESCRIBE_CONFIGS, resources=[resource])
    assert answer.results[0].error_code is ErrorCode.none


@simulated
async def test_their_leadership_goes_back_on_request() -> None:
    node = await node_with_coordinators()
    topic = node.controller.machine.topic(GROUPS_TOPIC)
    assert topic is not None
    answer = await node.ask(
        ApiKey.ELECT_LEADERS,
        election_type=0,
        topic_partitions=[{"topic": GROUPS_TOPIC, "partitions": [0]}],
        timeout=SOON,
    )
    (result,) = answer.replica_election_results[0].partition_result
    assert result.error_code is ErrorCode.election_not_needed
