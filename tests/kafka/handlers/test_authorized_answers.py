"""Answers to clients that may do some things with some resources: what is hidden, and by which codes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, cast
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from strandline.node.kafka.handlers.authorizer import Authorizer
from strandline.node.kafka.handlers.consumer_group_heartbeat import MAX_TOPICS
from strandline.node.kafka.wire.apis import ApiKey
from strandline.node.kafka.wire.handler import CloseConnection
from strandline.statemachine.controller.acl import Operation, ResourceType
from tests.kafka.handlers.authorized_place import OFFSETS, REQUESTS, Place, Recorder, refusals, sent
from tests.kafka.handlers.fake_node import FakeNode
from tests.kafka.handlers.groups_home import MINUTE, at_home, beat

MAY: Final = ErrorCode.none
NOT_TOPIC, NOT_GROUP = ErrorCode.topic_authorization_failed, ErrorCode.group_authorization_failed


class Named(Recorder):
    """An authorizer that allows some things with some names."""

    def __init__(self, *allowed: tuple[Operation, ResourceType, str]) -> None:
        super().__init__(lambda _: True)
        self._allowed = allowed

    def allows(self, principal: str, host: str, operation: Operation, kind: ResourceType, name: str) -> bool:
        return (operation, kind, name) in self._allowed


TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
WHOLE: Final = "kafka-cluster"


def with_topics(test: Callable[[Place], Any], *names: str) -> None:
    async def placed(_: FakeNode) -> None:
        place = Place()
        try:
            for name in names:
                place.topic(name)
            await test(place)
        finally:
            place.close()

    at_home(placed)


def allow(place: Place, *allowed: tuple[Operation, ResourceType, str]) -> None:
    place.authorizer = cast(Authorizer, Named(*allowed))


async def metadata(place: Place, topics: list[dict[str, Any]] | None, **more: Any) -> dict[Any, Any]:
    answer = await place.ask(
        ApiKey.METADATA,
        topics=topics,
        **{
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": False,
            **more,
        },
    )
    return {topic.name or topic.topic_id: topic for topic in answer.topics}


def test_metadata_hides_what_may_not_be_described() -> None:
    async def test(place: Place) -> None:
        allow(place, (Operation.DESCRIBE, TOPIC, "seen"), (Operation.DESCRIBE, TOPIC, "absent"))
        hidden = place.controller.machine.topic("hidden")
        assert hidden is not None
        assert set(await metadata(place, None)) == {"seen"}
        asked = [{"name": name, "topic_id": None} for name in ("seen", "hidden", "absent", "never")]
        found = await metadata(place, asked, allow_auto_topic_creation=True)
        assert {name: topic.error_code for name, topic in found.items()} == {
            "seen": MAY, "hidden": NOT_TOPIC, "never": NOT_TOPIC, "absent": NOT_TOPIC,
        }  # fmt: skip
        assert found["hidden"].topic_id is None
        assert found["hidden"].partitions == ()
        assert place.controller.machine.topic("absent") is None
        by_id = await metadata(place, [{"name": None, "topic_id": UUID(bytes=hidden.topic_id)}])
        ((_, one),) = by_id.items()
        assert (one.error_code, one.name, one.partitions) == (NOT_TOPIC, None, ())
        allow(place, (Operation.DESCRIBE, TOPIC, "absent"), (Operation.CREATE, TOPIC, "absent"))
        found = await metadata(place, asked[2:3], allow_auto_topic_creation=True)
        assert found["absent"].error_code is not NOT_TOPIC
        assert place.controller.machine.topic("absent") is not None

    with_topics(test, "seen", "hidden")


def test_authorized_operations_are_what_each_client_may_do() -> None:
    async def test(place: Place) -> None:
        allow(
            place, (Operation.DESCRIBE, TOPIC, "t"), (Operation.READ, TOPIC, "t"),
            (Operation.ALTER, CLUSTER, WHOLE), (Operation.DESCRIBE, GROUP, "g"),
        )  # fmt: skip
        found = await metadata(place, None, include_topic_authorized_operations=True)
        assert found["t"].topic_authorized_operations == 1 << 3 | 1 << 8
        cluster = {"endpoint_type": 1, "include_cluster_authorized_operations": True}
        cluster["include_fenced_brokers"] = False
        told = await place.ask(ApiKey.DESCRIBE_CLUSTER, **cluster)
        assert told.cluster_authorized_operations == 0
        groups = await place.ask(ApiKey.DESCRIBE_GROUPS, groups=["g"], include_authorized_operations=True)
        assert groups.groups[0].error_code is ErrorCode.group_id_not_found
        place.authorizer = None
        await place.member()
        allow(place, (Operation.DESCRIBE, GROUP, "g"), (Operation.DELETE, GROUP, "g"))
        groups = await place.ask(ApiKey.DESCRIBE_GROUPS, groups=["g"], include_authorized_operations=True)
        assert groups.groups[0].error_code is MAY
        assert groups.groups[0].authorized_operations == 1 << 8 | 1 << 6
        allow(place, (Operation.DESCRIBE, CLUSTER, WHOLE), (Operation.ALTER, CLUSTER, WHOLE))
        told = await place.ask(ApiKey.DESCRIBE_CLUSTER, **cluster)
        assert told.cluster_authorized_operations == 1 << 8 | 1 << 7
        place.authorizer = None
        found = await metadata(place, None, include_topic_authorized_operations=True)
        assert found["t"].topic_authorized_operations == 0b110111111000

    with_topics(test, "t")


def test_lists_leave_out_what_may_not_be_seen() -> None:
    async def test(place: Place) -> None:
        await beat(place, subscribed_topic_names=["t"])
        await beat(place, group_id="h", subscribed_topic_names=["t"])

        async def listed() -> set[str]:
            answer = await place.ask(ApiKey.LIST_GROUPS, states_filter=[], types_filter=[])
            return {group.group_id for group in answer.groups}

        allow(place, (Operation.DESCRIBE, GROUP, "g"))
        assert await listed() == {"g"}
        allow(place, (Operation.DESCRIBE, CLUSTER, WHOLE))
        assert await listed() == {"g", "h"}
        allow(place)
        assert await listed() == set()
        filters = REQUESTS[ApiKey.LIST_TRANSACTIONS][0]
        assert (await place.ask(ApiKey.LIST_TRANSACTIONS, **filters)).transaction_states == ()
        allow(place, (Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, "id"))
        (one,) = (await place.ask(ApiKey.LIST_TRANSACTIONS, **filters)).transaction_states
        assert one.transactional_id == "id"

    with_topics(test, "t")


async def initialized(place: Place, transactional_id: str | None) -> ErrorCode:
    answer = await place.ask(
        ApiKey.INIT_PRODUCER_ID,
        transactional_id=transactional_id, transaction_timeout=MINUTE, producer_id=-1, producer_epoch=-1,
    )  # fmt: skip
    return cast(ErrorCode, answer.error_code)


@pytest.mark.parametrize(
    ("allowed", "code"),
    [
        ((Operation.IDEMPOTENT_WRITE, CLUSTER, WHOLE), MAY),
        ((Operation.WRITE, TOPIC, "any"), MAY),
        ((Operation.READ, TOPIC, "any"), ErrorCode.cluster_authorization_failed),
    ],
)
def test_an_idempotent_producer_needs_one_topic_to_write(allowed: Any, code: ErrorCode) -> None:
    async def test(place: Place) -> None:
        allow(place, allowed)
        assert await initialized(place, None) is code
        assert await initialized(place, "id") is ErrorCode.transactional_id_authorization_failed

    with_topics(test)


@pytest.mark.parametrize(
    ("key", "allowed"),
    [
        (ApiKey.WRITE_TXN_MARKERS, (Operation.ALTER, CLUSTER, WHOLE)),
        (ApiKey.WRITE_TXN_MARKERS, (Operation.CLUSTER_ACTION, CLUSTER, WHOLE)),
        (ApiKey.OFFSET_FOR_LEADER_EPOCH, (Operation.CLUSTER_ACTION, CLUSTER, WHOLE)),
        (ApiKey.OFFSET_FOR_LEADER_EPOCH, (Operation.DESCRIBE, TOPIC, "t")),
        (ApiKey.DELETE_TOPICS, (Operation.DELETE, CLUSTER, WHOLE)),
        (ApiKey.CREATE_TOPICS, (Operation.CREATE, TOPIC, "new")),
        (ApiKey.CREATE_TOPICS, (Operation.CREATE, CLUSTER, WHOLE)),
    ],
)
def test_either_permission_is_enough(key: ApiKey, allowed: Any) -> None:
    async def test(place: Place) -> None:
        allow(place)
        assert refusals(await sent(place, key)) != set()
        allow(place, allowed)
        answers = await sent(place, key)
        if key is ApiKey.CREATE_TOPICS:
            (topic,) = answers[0].topics
            assert (topic.error_code, topic.configs, topic.num_partitions) == (MAY, (), -1)
            assert topic.topic_config_error_code == NOT_TOPIC.value
        else:
            assert refusals(answers) == set()

    with_topics(test, "t")


def test_a_topic_is_deleted_by_a_client_that_may_see_and_delete_it() -> None:
    async def test(place: Place) -> None:
        topic = place.controller.machine.topic("t")
        assert topic is not None
        topic_id = UUID(bytes=topic.topic_id)

        async def delete(name: str | None, by: UUID | None) -> Any:
            asked = [{"name": name, "topic_id": by}]
            answer = await place.ask(ApiKey.DELETE_TOPICS, topics=asked, timeout=timedelta(seconds=1))
            (one,) = answer.responses
            return one.name, one.topic_id, one.error_code

        allow(place, (Operation.DELETE, TOPIC, "t"))
        assert await delete("t", None) == ("t", None, NOT_TOPIC)
        allow(place)
        assert await delete("never", None) == ("never", None, NOT_TOPIC)
        assert await delete(None, topic_id) == (None, topic_id, NOT_TOPIC)
        allow(place, (Operation.DESCRIBE, TOPIC, "t"))
        assert await delete("t", None) == ("t", topic_id, NOT_TOPIC)
        assert await delete(None, topic_id) == ("t", topic_id, NOT_TOPIC)
        allow(place, (Operation.DESCRIBE, TOPIC, "t"), (Operation.DELETE, TOPIC, "t"))
        assert await delete("t", None) == ("t", topic_id, MAY)

    with_topics(test, "t")


def test_a_fetch_by_id_tells_a_hidden_topic_from_an_unknown_one_as_kafka_does() -> None:
    async def test(place: Place) -> None:
        allow(place, (Operation.READ, TOPIC, "t"))
        answer = await place.fetch({("t", 0): 0, ("hidden", 0): 0, (UUID(int=9), 0): 0})
        told = [topic.partitions[0].error_code for topic in answer.responses]
        assert told == [MAY, NOT_TOPIC, ErrorCode.unknown_topic_id]
        answer = await place.fetch({("t", 0): 0, ("hidden", 0): 0, ("never", 0): 0}, 12)
        told = [topic.partitions[0].error_code for topic in answer.responses]
        assert told == [MAY, NOT_TOPIC, NOT_TOPIC]

    with_topics(test, "t", "hidden")


def test_a_produce_request_without_an_answer_ends_the_connection() -> None:
    async def test(place: Place) -> None:
        allow(place)
        with pytest.raises(CloseConnection, match="topic_authorization_failed"):
            await place.produce({0: None}, acks=0)

    with_topics(test, "t")


def test_offsets_of_hidden_topics_are_left_out() -> None:
    async def test(place: Place) -> None:
        for name in ("t", "hidden"):
            offsets = [{**OFFSETS[0], "name": name}]
            await place.ask(
                ApiKey.OFFSET_COMMIT, group_id="o", member_id="", generation_id_or_member_epoch=-1,
                topics=offsets,
            )  # fmt: skip
        allow(place, (Operation.DESCRIBE, GROUP, "o"), (Operation.DESCRIBE, TOPIC, "t"))

        async def fetched(topics: Any) -> list[tuple[str, Any]]:
            group = {"group_id": "o", "member_id": None, "member_epoch": -1, "topics": topics}
            answer = await place.ask(ApiKey.OFFSET_FETCH, groups=[group], require_stable=False)
            return [
                (topic.name, (topic.partitions[0].error_code, topic.partitions[0].committed_offset))
                for topic in answer.groups[0].topics
            ]

        assert await fetched(None) == [("t", (MAY, 1))]
        named = [{"name": name, "partition_indexes": [0]} for name in ("t", "hidden", "never")]
        assert await fetched(named) == [
            ("t", (MAY, 1)), ("hidden", (NOT_TOPIC, -1)), ("never", (NOT_TOPIC, -1)),
        ]  # fmt: skip

    with_topics(test, "t", "hidden")


@pytest.mark.parametrize("operations", [False, True])
def test_the_question_about_all_topics_holds_nothing_up(operations: bool) -> None:
    class Counting(Recorder):
        turn = 0

        def allows(self, *_: object) -> bool:
            decided[self.turn] += 1
            return True

    decided: Counter[int] = Counter()
    counting = Counting(lambda _: False)

    async def test(place: Place) -> None:
        async def turns() -> None:
            while True:
                counting.turn += 1
                await asyncio.sleep(0)

        place.authorizer = cast(Authorizer, counting)
        task = asyncio.create_task(turns())
        found = await metadata(place, None, include_topic_authorized_operations=operations)
        task.cancel()
        assert len(found) >= 700

    with_topics(test, *(f"t{number}" for number in range(700)))
    assert max(decided.values()) <= 600


@pytest.mark.parametrize(
    ("count", "decided"), [(MAX_TOPICS, MAX_TOPICS + 1), (MAX_TOPICS + 1, 1)], ids=["most", "too many"]
)
def test_more_names_than_a_member_may_have_are_refused_before_they_are_decided(
    count: int, decided: int
) -> None:
    asked: list[object] = []

    class Counting(Recorder):
        def allows(self, *question: object) -> bool:
            asked.append(question[4])
            return True

    async def test(place: Place) -> None:
        place.authorizer = cast(Authorizer, Counting(lambda _: False))
        names = tuple(f"t{number}" for number in range(count))
        answer = await beat(place, subscribed_topic_names=names)
        refused = answer.error_code is ErrorCode.invalid_request
        assert refused == (count > MAX_TOPICS)

    with_topics(test)
    assert len(set(asked)) == decided
