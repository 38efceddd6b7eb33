"""ConsumerGroupHeartbeat and ConsumerGroupDescribe through real frames, in both their versions."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from strandline.node.kafka.wire.apis import ApiKey
from strandline.node.refusal import Refusal
from strandline.statemachine.controller.controller_commands import DeleteTopic
from strandline.statemachine.kafka_errors import KafkaError
from tests.kafka.handlers.groups_home import Home, at_home, beat, described, parts, topic
from tests.kafka.wire.entities import versions

MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize("version", versions(ApiKey.CONSUMER_GROUP_HEARTBEAT))
def test_a_member_joins_lives_is_described_and_leaves_in_every_version(version: int) -> None:
    async def test(home: Home) -> None:
        events = topic(home)
        id = UUID(bytes=events.topic_id)
        joined = await beat(home, version, rack_id="r", instance_id="i", server_assignor="range")
        assert (joined.error_code, joined.error_message) == (ErrorCode.none, None)
        assert (joined.member_id, joined.member_epoch) == ("m", 1)
        assert parts(joined.assignment) == {id: (0, 1)}
        assert timedelta(0) < joined.heartbeat_interval <= timedelta(seconds=5)
        steady = await beat(home, version, 1)
        assert (steady.error_code, steady.member_epoch, steady.assignment) == (ErrorCode.none, 1, None)
        group = await described(home, version=version)
        assert (group.error_code, group.group_state, group.assignor_name) == (
            ErrorCode.none,
            "Stable",
            "range",
        )
        assert (group.group_epoch, group.assignment_epoch) == (1, 1)
        (member,) = group.members
        assert (member.member_id, member.instance_id, member.rack_id) == ("m", "i", "r")
        assert (member.member_epoch, member.subscribed_topic_names) == (1, ("events",))
        assert (member.client_host, member.subscribed_topic_regex) == ("/127.0.0.1", None)
        for assignment in (member.assignment, member.target_assignment):
            (one,) = assignment.topic_partitions
            assert (one.topic_id, one.topic_name, one.partitions) == (id, "events", (0, 1))
        if version >= 1:
            assert member.member_type == 1
        left = await beat(home, version, -1)
        assert (left.error_code, left.member_epoch, left.assignment) == (ErrorCode.none, -1, None)
        assert (await described(home)).group_state == "Empty"

    at_home(test)


def test_only_members_of_version_0_are_given_their_ids() -> None:
    async def test(home: Home) -> None:
        topic(home)
        first, second = [await beat(home, 0, member_id="") for _ in range(2)]
        assert len({first.member_id, second.member_id, ""}) == 3
        UUID(first.member_id)
        assert (await beat(home, 1, member_id="")).error_code is ErrorCode.invalid_request

    at_home(test)


def test_a_pattern_subscribes_from_version_1_on() -> None:
    async def test(home: Home) -> None:
        events = topic(home)
        joined = await beat(home, 1, subscribed_topic_names=None, subscribed_topic_regex="e.*")
        assert parts(joined.assignment) == {UUID(bytes=events.topic_id): (0, 1)}
        assert (await described(home)).members[0].subscribed_topic_regex == "e.*"
        refused = await beat(home, 1, member_id="n", subscribed_topic_regex="(")
        assert refused.error_code is ErrorCode.invalid_regular_expression
        assert "`(`" in refused.error_message

    at_home(test)


def test_what_is_let_go_of_is_what_is_no_longer_said() -> None:
    async def test(home: Home) -> None:
        id = UUID(bytes=topic(home).topic_id)
        await beat(home)
        await beat(home, member_id="n")
        told = await beat(home, epoch=1)
        (kept,) = parts(told.assignment)[id]
        owned = [{"topic_id": id, "partitions": [kept]}]
        assert (await beat(home, epoch=1, topic_partitions=owned)).member_epoch == 2
        told = await beat(home, epoch=2, member_id="n")
        assert parts(told.assignment) == {id: (1 - kept,)}

    at_home(test)


@pytest.mark.parametrize(
    "wrong",
    [
        {"group_id": ""},
        {"instance_id": ""},
        {"rack_id": ""},
        {"member_epoch": -3},
        {"member_epoch": -2},
        {"member_epoch": 1, "member_id": ""},
        {"member_epoch": -1, "member_id": ""},
        {"rebalance_timeout": timedelta(milliseconds=-1)},
        {"topic_partitions": None},
        {"topic_partitions": [{"topic_id": UUID(int=1), "partitions": [0]}]},
        {"subscribed_topic_names": None},
        {"member_id": "m" * 40_000},
        {"subscribed_topic_names": [f"t{number}" for number in range(10_001)]},
    ],
)
def test_a_request_that_makes_no_sense_changes_nothing(wrong: dict[str, Any]) -> None:
    async def test(home: Home) -> None:
        topic(home)
        refused = await beat(home, 0, **wrong)
        assert refused.error_code is ErrorCode.invalid_request
        assert refused.error_message
        assert home.replica.machine.groups == {}

    at_home(test)


def test_an_assignor_nobody_knows_is_named_with_those_there_are() -> None:
    async def test(home: Home) -> None:
        refused = await beat(home, server_assignor="sticky")
        assert refused.error_code is ErrorCode.unsupported_assignor
        assert refused.error_message == (
            "ServerAssignor sticky is not supported. Supported assignors: uniform, range."
        )

    at_home(test)


def test_strangers_and_stale_members_hear_kafkas_codes() -> None:
    async def test(home: Home) -> None:
        topic(home)
        assert (await beat(home, epoch=1)).error_code is ErrorCode.group_id_not_found
        await beat(home)
        assert (await beat(home, epoch=2)).error_code is ErrorCode.fenced_member_epoch
        assert (await beat(home, epoch=1, member_id="n")).error_code is ErrorCode.unknown_member_id
        assert (await beat(home, epoch=1, instance_id="i")).error_code is ErrorCode.unknown_member_id

    at_home(test)


def test_a_classic_group_that_cannot_be_read_is_not_one_of_these() -> None:
    async def test(home: Home) -> None:
        topic(home)
        await home.stable()
        refused = await beat(home)
        assert (refused.error_code, refused.error_message) == (
            ErrorCode.group_id_not_found,
            "Cannot upgrade classic group g to consumer group because the embedded consumer protocol is "
            "malformed.",
        )
        group = await described(home)
        assert (group.error_code, group.error_message) == (
            ErrorCode.group_id_not_found,
            "Group g is not a consumer group.",
        )
        group = await described(home, "h")
        assert (group.error_code, group.error_message) == (ErrorCode.group_id_not_found, "Group h not found.")

    at_home(test)


def test_who_does_not_lead_sends_the_client_on() -> None:
    async def test(home: Home) -> None:
        for code in (ErrorCode.not_coordinator, ErrorCode.coordinator_load_in_progress):
            home.code = KafkaError(code.name)
            assert (await beat(home)).error_code is code
            assert (await described(home)).error_code is code

    at_home(test)


def test_a_topic_that_is_gone_is_not_described() -> None:
    async def test(home: Home) -> None:
        made = topic(home)
        await beat(home)
        home.cluster.apply(DeleteTopic(made.topic_id))
        home.controller.hear()
        (member,) = (await described(home)).members
        assert member.assignment.topic_partitions == ()

    at_home(test)


@pytest.mark.parametrize("version", versions(ApiKey.LEAVE_GROUP))
def test_an_administrator_removes_members_by_the_classic_request(version: int) -> None:
    async def test(home: Home) -> None:
        topic(home)
        await beat(home, instance_id="i")
        await beat(home, member_id="n")
        asked: dict[str, Any] = {"group_id": "g"}
        if version < 3:
            asked |= {"member_id": "n"}
        else:
            rows = [("", "i"), ("n", None), ("nobody", None)]
            asked |= {"members": [{"member_id": id, "group_instance_id": instance} for id, instance in rows]}
        home.replica.down = Refusal(KafkaError.NOT_COORDINATOR, "it leads no more")
        failed = await home.ask(ApiKey.LEAVE_GROUP, version, **asked)
        assert failed.error_code is ErrorCode.not_coordinator, "as a whole: it is asked elsewhere"
        home.replica.down = None
        answer = await home.ask(ApiKey.LEAVE_GROUP, version, **asked)
        assert answer.error_code is ErrorCode.none
        left = [member.member_id for member in (await described(home)).members]
        if version < 3:
            assert left == ["m"]
        else:
            codes = [(one.member_id, one.group_instance_id, one.error_code) for one in answer.members]
            assert codes == [
                ("", "i", ErrorCode.none),
                ("n", None, ErrorCode.none),
                ("nobody", None, ErrorCode.unknown_member_id),
            ]
            assert left == []

    at_home(test)
