"""Generations of classic groups, who may commit in them, and what becomes of a group in the end."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import msgpack
import pytest

from strandline.statemachine.coordinator_machine import OlderTerm, encode
from strandline.statemachine.groups.classic_group import ClassicGroup
from strandline.statemachine.groups.consumer_group import ConsumerGroup
from strandline.statemachine.groups.consumer_protocol import subscribed_topics
from strandline.statemachine.groups.group_commands import (
    AssignGeneration,
    CommitOffsets,
    DeleteGroup,
    DeleteOffsets,
    GroupOpcode,
    Member,
    ReplaceStaticMember,
    StartGeneration,
)
from strandline.statemachine.groups.groups import GroupsMachine
from strandline.statemachine.kafka_errors import KafkaError
from strandline.statemachine.machine import Corruption
from tests.statemachine.groups_harness import (
    CLICKS,
    DAY,
    EVENTS,
    Groups,
    consumers,
    ignore,
    member,
    offsets,
    subscription,
)


def classic(groups: Groups, group: str = "g") -> ClassicGroup:
    membership = groups.machine.groups[group].membership
    assert isinstance(membership, ClassicGroup)
    return membership


def test_a_generation_is_started_assigned_and_kept_through_a_snapshot() -> None:
    groups = Groups()
    groups.generation(member("a", None, "events"), member("b", "i"), assigned=False)
    assert classic(groups).awaits_assignment
    groups.restart()
    assert classic(groups).awaits_assignment
    assert groups.do(AssignGeneration("g", 1, {"b": b"two", "gone": b"none"})) == (1,)
    for _ in range(2):
        present = classic(groups)
        assert (present.generation, present.protocol_type, present.protocol_name, present.leader) == (
            1,
            "consumer",
            "range",
            "a",
        )
        assert present.members == {"a": member("a", None, "events"), "b": member("b", "i")}
        assert present.assignments == {"a": b"", "b": b"two"}
        assert not present.awaits_assignment
        groups.restart()


def test_only_the_next_generation_can_start() -> None:
    groups = Groups()
    groups.generation(member("a"))
    for generation in (1, 3):
        again = StartGeneration("g", generation, "consumer", "range", "b", [member("b")])
        assert groups.refused(again) is KafkaError.ILLEGAL_GENERATION
    groups.generation(member("b"), generation=2)
    assert list(classic(groups).members) == ["b"]


def test_a_group_that_is_gone_may_go_on_counting() -> None:
    groups = Groups()
    groups.generation(member("a"), generation=6)
    assert classic(groups).generation == 6


def test_only_the_present_generation_is_assigned_and_only_once() -> None:
    groups = Groups()
    assert groups.refused(AssignGeneration("g", 1, {"a": b""})) is KafkaError.UNKNOWN_MEMBER_ID
    groups.generation(member("a"), assigned=False)
    for generation in (0, 2):
        assert groups.refused(AssignGeneration("g", generation, {})) is KafkaError.ILLEGAL_GENERATION
    assert groups.do(AssignGeneration("g", 1, {"a": b"first"})) == (1,)
    assert groups.refused(AssignGeneration("g", 1, {"a": b"x"})) is KafkaError.REBALANCE_IN_PROGRESS
    assert classic(groups).assignments == {"a": b"first"}


def test_a_group_without_members_waits_for_no_assignment() -> None:
    groups = Groups()
    groups.generation()
    assert not classic(groups).awaits_assignment
    assert groups.refused(AssignGeneration("g", 1, {})) is KafkaError.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize(
    "members",
    [
        pytest.param([member("b")], id="the leader is not a member"),
        pytest.param([member("a"), member("a")], id="two of one id"),
        pytest.param([member("a", "i"), member("b", "i")], id="two of one instance id"),
    ],
)
def test_what_no_leader_writes_stops_the_replica(members: list[Member]) -> None:
    groups = Groups()
    with pytest.raises(Corruption):
        groups.do(StartGeneration("g", 1, "consumer", "range", "a", members))


def test_a_generation_of_zero_stops_the_replica() -> None:
    with pytest.raises(Corruption, match="generation 0"):
        Groups().do(StartGeneration("g", 0, "consumer", "range", "a", [member("a")]))


def test_an_entry_of_an_earlier_term_changes_nothing() -> None:
    groups = Groups()
    entry = encode(1, 5000, CommitOffsets("g", "", -1, None, offsets(5)))
    groups.begin_term()
    assert groups.machine.apply(99, 2, entry) == OlderTerm(2)
    assert groups.machine.groups == {}


# Static members.


def test_a_static_member_that_came_back_takes_the_place_of_its_former_self() -> None:
    groups = Groups()
    groups.generation(member("a", "i"), member("b", "j"), member("c"))
    new = member("a2", "i", "clicks")
    assert groups.do(ReplaceStaticMember("g", 1, "a", new)) == ("a2",)
    for _ in range(2):
        present = classic(groups)
        assert list(present.members.values()) == [new, member("b", "j"), member("c")]
        assert present.leader == "a2"
        assert list(present.assignments or {}) == ["a2", "b", "c"]
        groups.restart()
    assert groups.refused(groups.commit(offsets(1), "a", 1, instance_id="i")) is KafkaError.FENCED_INSTANCE_ID
    assert groups.refused(groups.commit(offsets(1), "a", 1)) is KafkaError.UNKNOWN_MEMBER_ID
    groups.do(groups.commit(offsets(2), "a2", 1, instance_id="i"))
    assert groups.committed() == 2


def test_a_static_member_that_came_back_before_the_assignment_is_assigned_nothing() -> None:
    groups = Groups()
    groups.generation(member("a"), member("b", "j"), assigned=False)
    groups.do(ReplaceStaticMember("g", 1, "b", member("b2", "j")))
    assert classic(groups).awaits_assignment
    groups.do(AssignGeneration("g", 1, {"a": b"x", "b": b"y"}))
    assert classic(groups).assignments == {"a": b"x", "b2": b""}
    assert classic(groups).leader == "a"


def test_a_replacement_that_lost_a_race_is_refused() -> None:
    groups = Groups()
    again = ReplaceStaticMember("g", 1, "a", member("a3", "i"))
    assert groups.refused(again) is KafkaError.UNKNOWN_MEMBER_ID
    groups.generation(member("a", "i"), member("b"))
    groups.do(ReplaceStaticMember("g", 1, "a", member("a2", "i")))
    assert groups.refused(again) is KafkaError.UNKNOWN_MEMBER_ID
    assert groups.refused(replace(again, old="a2", generation=2)) is KafkaError.ILLEGAL_GENERATION
    with pytest.raises(Corruption, match="another's"):
        groups.do(ReplaceStaticMember("g", 1, "a2", member("b", "i")))


# Who may commit: Kafka's ClassicGroup.validateOffsetCommit.


def test_a_member_commits_in_its_generation_only() -> None:
    groups = Groups()
    groups.generation(member("a"))
    groups.do(groups.commit(offsets(1), "a", 1))
    assert groups.committed() == 1
    groups.generation(member("a"), member("b"), generation=2)
    for generation in (1, 3, -1):
        assert groups.refused(groups.commit(offsets(9), "a", generation)) is KafkaError.ILLEGAL_GENERATION
    assert groups.refused(groups.commit(offsets(9), "c", 2)) is KafkaError.UNKNOWN_MEMBER_ID
    assert groups.refused(groups.commit(offsets(9), "", 2)) is KafkaError.UNKNOWN_MEMBER_ID
    groups.do(groups.commit(offsets(2), "b", 2))
    assert groups.committed() == 2


def test_who_is_no_member_commits_only_while_there_is_none() -> None:
    groups = Groups()
    groups.do(groups.commit(offsets(1)))
    groups.generation(member("a"))
    assert groups.refused(groups.commit(offsets(2))) is KafkaError.UNKNOWN_MEMBER_ID
    groups.generation(generation=2)
    groups.do(groups.commit(offsets(3)))
    groups.do(groups.commit(offsets(4), "a"))
    assert groups.committed() == 4
    assert groups.refused(groups.commit(offsets(5), "a", 2)) is KafkaError.UNKNOWN_MEMBER_ID


def test_a_generation_of_no_group_commits_nothing() -> None:
    groups = Groups()
    assert groups.refused(groups.commit(offsets(1), "a", 4)) is KafkaError.GROUP_ID_NOT_FOUND
    assert (
        groups.refused(groups.add(offsets(1), member_id="a", generation=4)) is KafkaError.ILLEGAL_GENERATION
    )
    groups.do(groups.commit(offsets(1)))
    assert groups.refused(groups.commit(offsets(1), "a", 0)) is KafkaError.UNKNOWN_MEMBER_ID


def test_nothing_is_committed_before_the_generation_is_assigned() -> None:
    groups = Groups()
    groups.generation(member("a"), assigned=False)
    assert groups.refused(groups.commit(offsets(1), "a", 1)) is KafkaError.REBALANCE_IN_PROGRESS
    assert groups.refused(groups.commit(offsets(1), "a", 0)) is KafkaError.ILLEGAL_GENERATION
    # What a transaction carries comes from the generation before it, or from this one: its fence is enough.
    groups.do(groups.add(offsets(1), member_id="a", generation=1))
    assert groups.pending()


def test_an_instance_id_is_fenced_by_its_member() -> None:
    groups = Groups()
    groups.generation(member("a", "i"))
    for command in (groups.commit, groups.add):
        fenced = command(offsets(1), member_id="z", generation=1, instance_id="i")
        assert groups.refused(fenced) is KafkaError.FENCED_INSTANCE_ID
        unknown = command(offsets(1), member_id="a", generation=1, instance_id="j")
        assert groups.refused(unknown) is KafkaError.UNKNOWN_MEMBER_ID


def test_a_zombie_of_an_earlier_generation_adds_nothing_to_its_transaction() -> None:
    groups = Groups()
    groups.generation(member("a"))
    groups.do(groups.add(offsets(1, 0), member_id="a", generation=1))
    groups.generation(member("b"), generation=2)
    zombie = groups.add(offsets(8, 1), member_id="a", generation=1)
    assert groups.refused(zombie) is KafkaError.UNKNOWN_MEMBER_ID
    groups.generation(member("a"), member("b"), generation=3)
    assert groups.refused(zombie) is KafkaError.ILLEGAL_GENERATION
    # Clients before KIP-447 do not say who they are; the producer's own fences are all there is.
    groups.do(groups.add(offsets(3, 2)))
    groups.do(groups.end())
    assert [groups.committed(partition) for partition in range(3)] == [1, None, 3]


# Both kinds.


def test_a_group_changes_its_kind_only_without_members_and_keeps_its_offsets() -> None:
    groups = Groups()
    groups.generation(member("a"))
    groups.do(groups.commit(offsets(5), "a", 1))
    assert groups.refused(consumers(0, 1, "c")) is KafkaError.GROUP_ID_NOT_FOUND
    groups.generation(generation=2)
    assert groups.do(consumers(0, 1, "c")) == (groups.index,)
    start = StartGeneration("g", 3, "consumer", "range", "a", [member("a")])
    assert groups.refused(start) is KafkaError.INCONSISTENT_GROUP_PROTOCOL
    for command in (AssignGeneration("g", 3, {}), ReplaceStaticMember("g", 3, "a", member("b", "i"))):
        assert groups.refused(command) is KafkaError.UNKNOWN_MEMBER_ID
    groups.restart()
    assert groups.refused(start) is KafkaError.INCONSISTENT_GROUP_PROTOCOL
    membership = groups.machine.groups["g"].membership
    assert isinstance(membership, ConsumerGroup)
    assert groups.refused(DeleteGroup("g")) is KafkaError.NON_EMPTY_GROUP
    assert groups.do(DeleteOffsets("g", [(EVENTS, "events", [0])])) == (0, [EVENTS])
    groups.do(consumers(membership.version, 2, removed=["c"]))
    groups.generation(member("a"), generation=3)
    assert groups.committed() == 5
    groups.do(groups.commit(offsets(6), "a", 3))


def test_a_member_of_the_new_protocol_commits_in_its_epoch_only() -> None:
    groups = Groups()
    groups.do(consumers(0, 4, "c"))
    assert groups.refused(groups.commit(offsets(1), "c", 3)) is KafkaError.STALE_MEMBER_EPOCH
    assert groups.refused(groups.commit(offsets(1), "d", 4)) is KafkaError.UNKNOWN_MEMBER_ID
    groups.do(groups.commit(offsets(1), "c", 4))
    # To a producer a stale epoch is a generation that is over.
    assert (
        groups.refused(groups.add(offsets(2), member_id="c", generation=3)) is KafkaError.ILLEGAL_GENERATION
    )
    groups.do(groups.add(offsets(2), member_id="c", generation=4))
    groups.do(groups.end())
    assert groups.committed() == 2


def test_offsets_of_a_consumer_group_go_by_the_time_it_is_empty() -> None:
    groups = Groups()
    groups.do(consumers(0, 1, "c"))
    groups.do(groups.commit(offsets(1), "c", 1))
    groups.time += 500
    assert groups.expire(100, DAY) == (0, [], 0)
    membership = groups.machine.groups["g"].membership
    assert isinstance(membership, ConsumerGroup)
    groups.do(consumers(membership.version, 2, removed=["c"]))
    groups.time += 99
    assert groups.expire(100, DAY) == (0, [], 0)
    groups.time += 1
    assert groups.expire(100, DAY) == (1, ["g"], 0)


# The ends of a group.


def test_a_group_is_deleted_only_without_members() -> None:
    groups = Groups()
    assert groups.refused(DeleteGroup("g")) is KafkaError.GROUP_ID_NOT_FOUND
    groups.generation(member("a"))
    groups.do(groups.commit(offsets(1, 0, 1), "a", 1))
    assert groups.refused(DeleteGroup("g")) is KafkaError.NON_EMPTY_GROUP
    groups.generation(generation=2)
    groups.do(groups.add(offsets(5, 2)))
    assert groups.do(DeleteGroup("g")) == (2,)
    assert groups.machine.groups == {}
    # The transaction's marker finds nothing, and brings nothing back.
    assert groups.do(groups.end()) == (0, False)
    assert groups.machine.groups == {}


def test_a_group_deleted_and_made_anew_has_nothing_of_the_former_transaction() -> None:
    groups = Groups()
    groups.do(groups.add(offsets(5)))
    groups.do(DeleteGroup("g"))
    groups.do(groups.commit(offsets(1, 1)))
    groups.do(groups.end())
    assert groups.committed() is None


def test_a_group_that_has_nothing_left_goes() -> None:
    groups = Groups()
    groups.generation(member("a"), group="full")
    groups.generation(group="empty")
    groups.generation(group="kept")
    groups.do(groups.commit(offsets(1), group="kept"))
    groups.do(groups.add(offsets(1), group="open"))
    assert groups.expire(DAY, DAY) == (0, ["empty"], 0)
    assert list(groups.machine.groups) == ["full", "kept", "open"]


# What its members are subscribed to.


def test_offsets_of_a_topic_somebody_is_subscribed_to_stay() -> None:
    groups = Groups()
    groups.do(groups.commit(offsets(1, 0, 1) + offsets(2, 0, topic=CLICKS)))
    groups.generation(member("a", None, "events"), member("b", None, "other"))
    delete = DeleteOffsets("g", [(EVENTS, "events", [0]), (CLICKS, "clicks", [0, 7])])
    assert groups.do(delete) == (1, [EVENTS])
    assert (groups.committed(), groups.committed(0, CLICKS)) == (1, None)
    groups.generation(generation=2)
    assert groups.do(delete) == (1, [])
    assert (groups.committed(0), groups.committed(1)) == (None, 1)
    assert groups.refused(DeleteOffsets("no", [])) is KafkaError.GROUP_ID_NOT_FOUND


def test_offsets_stay_where_nobody_knows_what_the_members_use() -> None:
    groups = Groups()
    groups.do(groups.commit(offsets(1)))
    delete = DeleteOffsets("g", [(EVENTS, "events", [0])])
    assert groups.do(delete) == (1, []), "nobody ever was a member"
    groups.do(groups.commit(offsets(1)))
    groups.do(StartGeneration("g", 1, "connect", "range", "a", [member("a")]))
    assert groups.refused(delete) is KafkaError.NON_EMPTY_GROUP
    broken = member("a")._replace(protocols=[("range", b"\0\0\0\0\0\1\0\6even")])
    groups.do(StartGeneration("g", 2, "consumer", "range", "a", [broken]))
    assert groups.do(delete) == (0, [EVENTS])
    assert groups.committed() == 1


@pytest.mark.parametrize(
    ("metadata", "topics"),
    [
        (subscription(), []),
        (subscription("a", "ä"), ["a", "ä"]),
        (b"\0\3" + subscription("a")[2:] + b"of a later version", ["a"]),
        (b"", None),
        (b"\xff\xff" + subscription("a")[2:], None),
        (subscription("a")[:7], None),
        (subscription("abc")[:9], None),
        (b"\0\0\0\0\0\1\0\2\xff\xff", None),
        (b"\0\0\x7f\xff\xff\xff\0\1a", None),
        (b"\0\0\xff\xff\xff\xff", None),
    ],
)
def test_the_topics_of_a_subscription(metadata: bytes, topics: list[str] | None) -> None:
    assert subscribed_topics(metadata) == (None if topics is None else tuple(topics))


# Snapshots.


def test_a_snapshot_that_does_not_fit_together_is_refused() -> None:
    groups = Groups()
    groups.generation(member("a"))
    groups.do(groups.commit(offsets(1), "a", 1))
    groups.do(groups.add(offsets(1)))
    good = groups.machine.snapshot()

    def refuse(change: object, *path: str | int) -> None:
        state = msgpack.unpackb(good)
        at = state
        for step in path[:-1]:
            at = at[step]
        at[path[-1]] = change
        machine = GroupsMachine(ignore)
        empty = machine.snapshot()
        with pytest.raises(ValueError, match="cannot be read"):
            machine.restore(msgpack.packb(state))
        assert machine.snapshot() == empty

    membership = ("groups", 0, 2)
    refuse("no kind", "groups", 0, 1)
    refuse("z", *membership, 3)
    refuse([["z", b""]], *membership, 6)
    refuse([], "groups", 0, 3, 0)
    refuse([[7, []]], "groups", 0, 3, 2)
    refuse(1, "more")
    refuse(3, "format")


def test_a_kind_of_command_has_one_number() -> None:
    assert sorted(GroupsMachine.HANDLERS)[: len(GroupOpcode)] == list(GroupOpcode)


MANY = 10_000
CPU_SECONDS = 0.5
"""What ten thousand questions about ten thousand members may take: a few hundredths, and far more if each
looked at every member."""


def test_ten_thousand_static_members_commit_at_the_cost_of_one_each() -> None:
    groups = Groups()
    groups.generation(*[member(f"m{number}", f"i{number}") for number in range(MANY)])
    held = classic(groups)
    began = time.process_time()
    for number in range(MANY):
        named = f"m{number}", f"i{number}", 1
        assert held.refuse_commit(*named, transactional=False) is None
    assert time.process_time() - began < CPU_SECONDS


def test_offsets_of_many_topics_are_deleted_at_the_cost_of_one_look_at_the_members() -> None:
    groups = Groups()
    groups.generation(*[member(f"m{number}", None, "clicks", "other") for number in range(1_000)])
    topics = [(number.to_bytes(16, "big"), f"topic-{number}", [0]) for number in range(1_000)]
    began = time.process_time()
    assert groups.do(DeleteOffsets("g", [*topics, (CLICKS, "clicks", [0])])) == (0, [CLICKS])
    assert time.process_time() - began < CPU_SECONDS


# What was captured.


def test_what_was_captured_of_its_members_stays_as_it_was() -> None:
    """A snapshot is made later, in another thread; meanwhile the group goes on."""
    groups = Groups()
    groups.generation(member("a", "i"), member("b"), assigned=False)
    made = []

    def then(command: Any) -> None:
        made.append((groups.machine.capture(), groups.machine.snapshot()))
        groups.do(command)
        assert groups.machine.snapshot() != made[-1][1], "it changes something"

    then(AssignGeneration("g", 1, {"a": b"its", "b": b"its"}))
    then(ReplaceStaticMember("g", 1, "a", member("c", "i")))
    groups.do(DeleteGroup("g"))
    groups.generation(generation=2)
    groups.do(DeleteGroup("g"))
    then(consumers(0, 1, "x", "y"))

    def version() -> int:
        membership = groups.machine.groups["g"].membership
        assert isinstance(membership, ConsumerGroup)
        return membership.version

    then(consumers(version(), 2, "z", removed=["x"]))
    then(consumers(version(), 3, removed=["y", "z"]))
    assert [captured() for captured, _ in made] == [state for _, state in made]


def test_capturing_takes_a_moment_however_many_groups_there_are() -> None:
    """The bytes are made by a thread. In one go on the loop they would take as long as an election."""
    groups = Groups()
    for number in range(5_000):
        groups.do(groups.commit(offsets(1, *range(8)), group=f"g{number}"))
    captured = groups.machine.capture()
    seconds = []
    for _ in range(5):
        began = time.process_time()
        groups.machine.capture()
        seconds.append(time.process_time() - began)
        groups.do(groups.commit(offsets(2, 0), group=f"g{len(seconds)}"))
    began = time.process_time()
    captured()
    assert min(seconds) * 20 < time.process_time() - began, "a two hundredth"
