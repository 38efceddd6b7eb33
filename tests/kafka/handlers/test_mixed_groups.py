"""A group with members of both protocols, through real frames: every request that looks at groups."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from strandline.node.kafka.wire.apis import ApiKey
from strandline.statemachine.groups.consumer_protocol import read_assignment, write_assignment
from strandline.statemachine.groups.group_commands import CommitTransactionOffsets
from strandline.statemachine.kafka_errors import KafkaError, Refused
from tests.coordinator.mixed import subscription
from tests.kafka.handlers.groups_home import Home, at_home, beat, described, parts, topic

METADATA = subscription(["events"], {})
PROTOCOLS = [{"name": "range", "metadata": METADATA}]


async def stable(home: Home) -> Any:
    """A classic group of one member, who has both partitions."""
    topic(home)
    joined = await home.member(protocols=PROTOCOLS)
    await home.sync(joined, {joined.member_id: write_assignment({"events": (0, 1)}, METADATA)})
    return joined


async def mixed(home: Home) -> tuple[Any, Any]:
    """The same with a member of KIP-848, each with its partition: what they were told last."""
    old = await stable(home)
    await beat(home)
    old = await home.join(member_id=old.member_id, protocols=PROTOCOLS)
    assert old.error_code is ErrorCode.none
    return old, await beat(home, epoch=2)


async def commit(home: Home, member_id: str, epoch: int, version: int | None = None) -> ErrorCode:
    rows = [{"partition_index": 0, "committed_offset": 7, "committed_metadata": None}]
    answer = await home.ask(
        ApiKey.OFFSET_COMMIT, version, group_id="g", generation_id_or_member_epoch=epoch, member_id=member_id,
        topics=[{"name": "events", "partitions": rows}],
    )  # fmt: skip
    code: ErrorCode = answer.topics[0].partitions[0].error_code
    return code


async def fetch(home: Home, member_id: str | None, epoch: int) -> ErrorCode:
    asked = {"group_id": "g", "member_id": member_id, "member_epoch": epoch, "topics": None}
    answer = await home.ask(ApiKey.OFFSET_FETCH, 9, groups=[asked], require_stable=False)
    code: ErrorCode = answer.groups[0].error_code
    return code


def test_both_are_served_and_shown() -> None:
    async def test(home: Home) -> None:
        old, new = await mixed(home)
        assert (old.generation_id, old.protocol_type, old.protocol_name) == (2, "consumer", "range")
        assert (old.leader, old.members, old.skip_assignment) == ("", (), False)
        synced = await home.sync(old, {})
        assert (synced.error_code, synced.protocol_name) == (ErrorCode.none, "range")
        given = read_assignment(synced.assignment)
        assert given is not None
        ((name, (kept,)),) = given.partitions
        assert name == "events"
        assert [*parts(new.assignment).values()] == [(1 - kept,)]
        assert await home.beat(old) is ErrorCode.none

        group = await described(home, version=1)
        assert (group.group_state, group.group_epoch) == ("Stable", 2)
        told = {one.member_id: (one.member_type, one.member_epoch) for one in group.members}
        assert told == {old.member_id: (0, 2), "m": (1, 2)}
        classic = await home.ask(ApiKey.DESCRIBE_GROUPS, 6, groups=["g"])
        assert classic.groups[0].error_code is ErrorCode.group_id_not_found
        listed = await home.ask(ApiKey.LIST_GROUPS, 5, states_filter=[], types_filter=[])
        assert [(one.group_id, one.group_type, one.group_state) for one in listed.groups] == [
            ("g", "consumer", "Stable")
        ]
        deleted = await home.ask(ApiKey.DELETE_GROUPS, groups_names=["g"])
        assert deleted.results[0].error_code is ErrorCode.non_empty_group

    at_home(test)


def test_offsets_are_taken_from_each_by_its_own_number() -> None:
    async def test(home: Home) -> None:
        old, _ = await mixed(home)
        assert await commit(home, old.member_id, 2) is ErrorCode.none
        assert await commit(home, old.member_id, 2, 5) is ErrorCode.none
        assert await commit(home, "m", 2) is ErrorCode.none
        assert await commit(home, old.member_id, 1) is ErrorCode.illegal_generation
        assert await commit(home, "m", 1) is ErrorCode.stale_member_epoch
        assert await commit(home, "", -1) is ErrorCode.unknown_member_id
        assert await fetch(home, None, -1) is ErrorCode.none
        assert await fetch(home, old.member_id, 2) is ErrorCode.none
        assert await fetch(home, old.member_id, 1) is ErrorCode.illegal_generation
        assert await fetch(home, "m", 1) is ErrorCode.stale_member_epoch
        for member_id in (old.member_id, "m"):
            late = CommitTransactionOffsets("g", member_id, 1, None, 5, 0, 1, [])
            assert await home.replica.execute(late) == Refused(KafkaError.ILLEGAL_GENERATION)
            now = late.__class__("g", member_id, 2, None, 5, 0, 1, [])
            assert not isinstance(await home.replica.execute(now), Refused)

    at_home(test)


def test_a_leave_makes_it_one_of_the_other_protocol() -> None:
    async def test(home: Home) -> None:
        old, _ = await mixed(home)
        await home.sync(old, {})
        assert (await beat(home, epoch=-1)).error_code is ErrorCode.none
        classic = await home.ask(ApiKey.DESCRIBE_GROUPS, 6, groups=["g"])
        assert (classic.groups[0].group_state, len(classic.groups[0].members)) == ("PreparingRebalance", 1)
        assert await commit(home, old.member_id, 2) is ErrorCode.none
        assert await home.beat(old) is ErrorCode.rebalance_in_progress
        again = await home.join(member_id=old.member_id, protocols=PROTOCOLS)
        assert (again.generation_id, again.leader) == (3, old.member_id)
        assert await commit(home, old.member_id, 2) is ErrorCode.illegal_generation
        assert (await described(home)).error_code is ErrorCode.group_id_not_found

    at_home(test)


def test_the_policy_is_told_with_the_configuration_of_a_broker() -> None:
    async def test(home: Home) -> None:
        asked = {"resource_type": 4, "resource_name": "1", "configuration_keys": None}
        answer = await home.ask(ApiKey.DESCRIBE_CONFIGS, 4, resources=[asked])
        told = {one.name: (one.value, one.read_only) for one in answer.results[0].configs}
        assert told["group.consumer.migration.policy"] == ("bidirectional", True)

    at_home(test)
