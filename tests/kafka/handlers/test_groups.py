"""Requests about groups through real frames, in all their versions; decisions are applied at once."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from kio.schema.errors import ErrorCode

from strandline.node.coordinator.groups.classic_state import Leaving
from strandline.node.kafka.wire.apis import APIS, ApiKey
from strandline.node.refusal import Reason, Refusal
from strandline.statemachine.groups.consumer_group import ConsumerGroup
from strandline.statemachine.groups.group_commands import CommitOffsets, PartitionOffset, TopicOffsets
from strandline.statemachine.groups.group_state import Group
from strandline.statemachine.internal_topics import MAX_KEY_BYTES
from strandline.statemachine.kafka_errors import KafkaError
from tests.kafka.handlers.groups_home import Home, at_home
from tests.kafka.wire.entities import versions


@pytest.mark.parametrize("version", versions(ApiKey.JOIN_GROUP))
def test_a_member_joins_syncs_lives_and_leaves_in_every_version(version: int) -> None:
    async def test(home: Home) -> None:
        first = await home.join(version)
        assert (first.error_code is ErrorCode.member_id_required) == (version >= 4)
        joined = await home.member(version) if version >= 4 else first
        assert joined.generation_id == 1
        assert joined.leader == joined.member_id
        assert joined.protocol_name == "range"
        assert [(one.member_id, one.metadata) for one in joined.members] == [(joined.member_id, b"topics")]
        if version >= 7:
            assert joined.protocol_type == "consumer"
        for one in versions(ApiKey.SYNC_GROUP):
            synced = await home.sync(joined, {joined.member_id: b"all"}, one)
            assert (synced.error_code, synced.assignment) == (ErrorCode.none, b"all")
            if one >= 5:
                assert (synced.protocol_type, synced.protocol_name) == ("consumer", "range")
        for one in versions(ApiKey.HEARTBEAT):
            assert await home.beat(joined, one) is ErrorCode.none
        leave = min(version, APIS[ApiKey.LEAVE_GROUP].last)
        left = await home.ask(
            ApiKey.LEAVE_GROUP,
            leave,
            group_id="g",
            member_id=joined.member_id,
            members=[{"member_id": joined.member_id, "group_instance_id": None}],
        )
        assert left.error_code is ErrorCode.none
        if leave >= 3:
            assert [one.error_code for one in left.members] == [ErrorCode.none]
        assert await home.beat(joined) is ErrorCode.unknown_member_id

    at_home(test)


def test_version_0_waits_for_members_as_long_as_their_sessions_are() -> None:
    """It has no rebalance timeout; Kafka takes the session's (JoinGroupRequest)."""

    async def test(home: Home) -> None:
        joined = await home.member(0, session_timeout=timedelta(seconds=20))
        await home.sync(joined, {joined.member_id: b"all"}, 0)
        began = home.loop.time()
        waiting = asyncio.create_task(home.join(0, session_timeout=timedelta(seconds=6)))
        while not waiting.done() and home.loop.time() < began + 60:
            await home.beat(joined, 0)  # it lives, and does not join again
            await asyncio.sleep(1)
        second = await waiting
        assert (second.error_code, second.leader) == (ErrorCode.none, second.member_id)
        assert 20 <= home.loop.time() - began < 23
        assert await home.beat(joined, 0) is ErrorCode.unknown_member_id

    at_home(test)


def test_a_client_says_who_it_is_and_where() -> None:
    async def test(home: Home) -> None:
        joined = await home.stable()
        described = await home.ask(ApiKey.DESCRIBE_GROUPS, groups=["g"])
        (group,) = described.groups
        assert (group.error_code, group.group_state) == (ErrorCode.none, "Stable")
        assert (group.protocol_type, group.protocol_data) == ("consumer", "range")
        (member,) = group.members
        assert member.member_id == joined.member_id
        assert member.client_host == "/127.0.0.1"
        assert (member.member_metadata, member.member_assignment) == (b"topics", b"all")
        assert joined.member_id.startswith(f"{member.client_id}-")

    at_home(test)


def test_static_members_are_who_they_say_they_are() -> None:
    async def test(home: Home) -> None:
        joined = await home.member(group_instance_id="one")
        assert joined.members[0].group_instance_id == "one"
        await home.sync(joined, {joined.member_id: b"all"})
        again = await home.member(group_instance_id="one")
        assert again.skip_assignment
        left = await home.ask(
            ApiKey.LEAVE_GROUP,
            group_id="g",
            members=[
                {"member_id": joined.member_id, "group_instance_id": "one"},
                {"member_id": "", "group_instance_id": "one"},
            ],
        )
        codes = [one.error_code for one in left.members]
        assert codes == [ErrorCode.fenced_instance_id, ErrorCode.none]

    at_home(test)


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_GROUPS))
def test_groups_are_described_in_every_version(version: int) -> None:
    async def test(home: Home) -> None:
        await home.stable()
        described = await home.ask(ApiKey.DESCRIBE_GROUPS, version, groups=["g", "nothing", ""])
        known, nothing, empty = described.groups
        assert (known.group_state, len(known.members)) == ("Stable", 1)
        code = ErrorCode.group_id_not_found if version >= 6 else ErrorCode.none
        assert [(one.error_code, one.group_state) for one in (nothing, empty)] == [(code, "Dead")] * 2
        if version >= 6:
            assert nothing.error_message == "Group nothing is not found."
        home.code = KafkaError.NOT_COORDINATOR
        described = await home.ask(ApiKey.DESCRIBE_GROUPS, version, groups=["g"])
        assert (described.groups[0].error_code, described.groups[0].group_state) == (
            ErrorCode.not_coordinator,
            "",
        )

    at_home(test)


def test_a_group_on_the_move_is_described_without_what_may_change() -> None:
    async def test(home: Home) -> None:
        await home.stable()
        waiting = asyncio.create_task(home.join(3))
        await asyncio.sleep(0)
        (group,) = (await home.ask(ApiKey.DESCRIBE_GROUPS, groups=["g"])).groups
        assert (group.group_state, group.protocol_data, len(group.members)) == ("PreparingRebalance", "", 2)
        assert all(not one.member_metadata and not one.member_assignment for one in group.members)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

    at_home(test)


@pytest.mark.parametrize("version", versions(ApiKey.LIST_GROUPS))
def test_groups_are_listed_in_every_version(version: int) -> None:
    async def test(home: Home) -> None:
        await home.stable()
        row = TopicOffsets(b"t" * 16, "topic", [PartitionOffset(0, 5, -1, "")])
        await home.replica.execute(CommitOffsets("simple", "", -1, None, [row]))
        home.replica.machine.groups["new"] = Group(ConsumerGroup())
        pending = asyncio.create_task(home.join(9, group_id="soon"))
        await asyncio.sleep(0)
        listed = await home.ask(ApiKey.LIST_GROUPS, version)
        assert [(one.group_id, one.protocol_type) for one in listed.groups] == [
            ("g", "consumer"),
            ("simple", ""),
            ("new", "consumer"),
        ], "a member id that was given out makes no group"
        await pending
        if version >= 4:
            assert [one.group_state for one in listed.groups] == ["Stable", "Empty", "Empty"]
            some = await home.ask(ApiKey.LIST_GROUPS, version, states_filter=["stable", "Dead"])
            assert [one.group_id for one in some.groups] == ["g"]
        if version >= 5:
            assert [one.group_type for one in listed.groups] == ["classic", "classic", "consumer"]
            some = await home.ask(ApiKey.LIST_GROUPS, version, types_filter=["Consumer"])
            assert [one.group_id for one in some.groups] == ["new"]
            some = await home.ask(
                ApiKey.LIST_GROUPS, version, types_filter=["consumer"], states_filter=["Stable"]
            )
            assert some.groups == ()
        home.code = KafkaError.NOT_COORDINATOR
        assert (await home.ask(ApiKey.LIST_GROUPS, version)).groups == ()

    at_home(test)


def test_a_list_that_would_lack_groups_is_asked_for_again() -> None:
    async def test(home: Home) -> None:
        await home.stable()
        home.loads.loading = True
        listed = await home.ask(ApiKey.LIST_GROUPS)
        assert (listed.error_code, listed.groups) == (ErrorCode.coordinator_load_in_progress, ())
        home.loads.place.topic = "__transaction_state"
        assert len((await home.ask(ApiKey.LIST_GROUPS)).groups) == 1

    at_home(test)


@pytest.mark.parametrize("version", versions(ApiKey.DELETE_GROUPS))
def test_groups_without_members_are_deleted(version: int) -> None:
    async def test(home: Home) -> None:
        joined = await home.stable()
        row = TopicOffsets(b"t" * 16, "topic", [PartitionOffset(0, 5, -1, "")])
        await home.replica.execute(CommitOffsets("simple", "", -1, None, [row]))
        deleted = await home.ask(
            ApiKey.DELETE_GROUPS, version, groups_names=["g", "simple", "simple", "nothing", ""]
        )
        assert [(one.group_id, one.error_code) for one in deleted.results] == [
            ("g", ErrorCode.non_empty_group),
            ("simple", ErrorCode.none),
            ("nothing", ErrorCode.group_id_not_found),
            ("", ErrorCode.group_id_not_found),
        ]
        home.coordinator.classic.leave("g", [Leaving(joined.member_id, None)])
        for code in (ErrorCode.none, ErrorCode.group_id_not_found):
            deleted = await home.ask(ApiKey.DELETE_GROUPS, version, groups_names=["g"])
            assert deleted.results[0].error_code is code

    at_home(test)


def test_a_group_that_somebody_joins_is_not_deleted_and_neither_if_nobody_knows() -> None:
    async def test(home: Home) -> None:
        waiting = asyncio.create_task(home.join(3))
        await asyncio.sleep(0)
        deleted = await home.ask(ApiKey.DELETE_GROUPS, groups_names=["g"])
        assert deleted.results[0].error_code is ErrorCode.non_empty_group
        await waiting
        home.replica.down = Refusal(Reason.COORDINATOR_UNDECIDED, "cut off")
        deleted = await home.ask(ApiKey.DELETE_GROUPS, groups_names=["h"])
        assert deleted.results[0].error_code is ErrorCode.not_coordinator

    at_home(test)


@pytest.mark.parametrize(
    ("code", "synced", "beaten"),
    [
        (ErrorCode.not_coordinator, ErrorCode.not_coordinator, ErrorCode.not_coordinator),
        (ErrorCode.coordinator_load_in_progress, ErrorCode.rebalance_in_progress, ErrorCode.none),
        (ErrorCode.coordinator_not_available,) * 3,
    ],
)
def test_who_does_not_coordinate_sends_clients_on(
    code: ErrorCode, synced: ErrorCode, beaten: ErrorCode
) -> None:
    async def test(home: Home) -> None:
        joined = await home.stable()
        home.code = KafkaError(code.name)
        refused = await home.join(member_id="mine")
        assert (refused.error_code, refused.member_id, refused.generation_id) == (code, "mine", -1)
        assert refused.protocol_name is None
        assert (await home.join(2)).protocol_name == ""
        assert (await home.sync(joined, {})).error_code is synced
        assert await home.beat(joined) is beaten
        left = await home.ask(ApiKey.LEAVE_GROUP, group_id="g", members=[])
        assert left.error_code is code
        deleted = await home.ask(ApiKey.DELETE_GROUPS, groups_names=["g"])
        assert deleted.results[0].error_code is code

    at_home(test)


@pytest.mark.parametrize("name", ["", "x" * (MAX_KEY_BYTES + 1), "ü" * 20_000])
def test_ids_that_no_group_has(name: str) -> None:
    async def test(home: Home) -> None:
        wrong = ErrorCode.invalid_group_id
        assert (await home.join(group_id=name)).error_code is wrong
        for key in (ApiKey.HEARTBEAT, ApiKey.LEAVE_GROUP):
            assert (await home.ask(key, group_id=name)).error_code is wrong
        sync = await home.ask(ApiKey.SYNC_GROUP, group_id=name, protocol_type="c", protocol_name="r")
        assert sync.error_code is wrong

    at_home(test)


def test_a_sync_has_to_say_its_protocol() -> None:
    async def test(home: Home) -> None:
        for said in ({}, {"protocol_type": "consumer"}, {"protocol_name": "range"}):
            answer = await home.ask(ApiKey.SYNC_GROUP, group_id="g", member_id="m", **said)
            assert answer.error_code is ErrorCode.inconsistent_group_protocol

    at_home(test)


def test_a_client_that_went_is_not_waited_for() -> None:
    async def test(home: Home) -> None:
        waiting = asyncio.create_task(home.join(3))
        await asyncio.sleep(0)
        assert home.coordinator.classic.waiting == 1
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert home.coordinator.classic.waiting == 0
        await asyncio.sleep(30)
        assert len(home.coordinator.classic) == 0

    at_home(test)


def test_the_end_of_a_transaction_reaches_the_groups() -> None:
    async def test(home: Home) -> None:
        assert await home.coordinator.end_transaction(7, 0, 1, True, 1) is True
        assert await home.coordinator.end_transaction(7, 0, 1, True, 1) is True
        home.replica.down = Refusal(Reason.COORDINATOR_UNDECIDED, "cut off")
        assert await home.coordinator.end_transaction(7, 0, 2, True, 1) is home.replica.down

    at_home(test)
