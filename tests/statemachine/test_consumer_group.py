"""A consumer group of KIP-848 at apply: versions, ownership, epochs of commits, snapshots."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from strandline.statemachine.groups.consumer_group import ConsumerGroup
from strandline.statemachine.groups.consumer_group_commands import (
    LEFT_FOR_A_WHILE,
    NOTHING,
    STABLE,
    UNREVOKED,
    Assignment,
    ChangeConsumerGroup,
    ConsumerGroupChanged,
    ConsumerGroupMoved,
    ConsumerMember,
    assignment,
    assignment_from,
    change_from,
)
from strandline.statemachine.groups.group_commands import (
    CommitOffsets,
    DeleteGroup,
    GroupDeleted,
    OffsetsCommitted,
)
from strandline.statemachine.kafka_errors import KafkaError
from strandline.statemachine.machine import Corruption
from tests.statemachine.groups_harness import Groups, member, offsets

T, U = b"t" * 16, b"u" * 16


def consumer(member_id: str, epoch: int = 1, assigned: Assignment = NOTHING, **fields: Any) -> ConsumerMember:
    one = ConsumerMember(
        member_id,
        None,
        None,
        "client",
        "/10.0.0.1",
        1000,
        ("events",),
        "",
        None,
        epoch,
        0,
        STABLE,
        assigned,
        NOTHING,
    )
    return one._replace(**fields)


def change(version: int, *members: ConsumerMember, epoch: int = 1, **fields: Any) -> ChangeConsumerGroup:
    row = {"metadata": None, "matches": None, "removed": (), "targets": {}, **fields}
    return ChangeConsumerGroup("g", version, epoch, members=members, **row)


def made(*members: ConsumerMember, **fields: Any) -> Groups:
    groups = Groups()
    assert isinstance(groups.do(change(0, *members, **fields)), ConsumerGroupChanged)
    return groups


def membership(groups: Groups) -> ConsumerGroup:
    found = groups.machine.groups["g"].membership
    assert isinstance(found, ConsumerGroup)
    return found


def test_a_change_is_what_the_entry_says() -> None:
    one = consumer("a", assigned=((T, (0, 2)),), instance_id="i", rack_id="r", assignor="range")
    two = consumer("b", assigned=((T, (1,)),), revoking=((U, (3,)),), state=UNREVOKED, pattern="e.*")
    sent = change(
        0,
        one,
        two,
        metadata=b"12345678",
        matches={"e.*": ("events",)},
        targets={"a": one.assigned},
        removed=["z"],
    )
    read = change_from(msgpack.unpackb(msgpack.packb(sent.fields())))
    assert [*read.members] == [one, two]
    assert read.fields() == [*sent.fields()[:5], ["z"], [one[:-1], two[:-1]], [("a", one.assigned)]]


def test_members_targets_and_owners_come_and_go() -> None:
    groups = made(consumer("a", assigned=((T, (0, 1)),)), targets={"a": ((T, (0, 1)),)})
    group = membership(groups)
    assert group.owners == {(T, 0): "a", (T, 1): "a"}
    half, rest = ((T, (0,)),), ((T, (1,)),)
    moving = consumer("a", assigned=half, revoking=rest, state=UNREVOKED)
    groups.do(change(group.version, moving, consumer("b", 2), epoch=2, targets={"a": half, "b": rest}))
    assert group.owners == {(T, 0): "a", (T, 1): "a"}, "what is to be let go of is still its own"
    assert group.state == "Reconciling"
    groups.do(change(group.version, consumer("a", 2, half), consumer("b", 2, rest), epoch=2))
    assert group.owners == {(T, 0): "a", (T, 1): "b"}
    assert group.state == "Stable"
    groups.do(change(group.version, epoch=3, removed=["a"], targets={"b": ((T, (0, 1)),)}))
    assert (group.owners, group.targets) == ({(T, 1): "b"}, {"b": ((T, (0, 1)),)})
    groups.time += 5
    groups.do(change(group.version, epoch=4, removed=["b"]))
    assert (group.owners, group.targets, group.state) == ({}, {}, "Empty")
    assert group.empty_since == groups.time


def test_a_plan_made_from_another_version_changes_nothing() -> None:
    groups = made(consumer("a"))
    before = groups.machine.snapshot()
    version = membership(groups).version
    for stale in (0, version - 1, version + 1):
        assert groups.do(change(stale, consumer("b"), epoch=2)) == ConsumerGroupMoved(version)
    assert groups.machine.snapshot() == before
    assert Groups().do(change(3, consumer("a"))) == ConsumerGroupMoved(0)


def test_an_id_belongs_to_one_protocol_while_it_has_members() -> None:
    groups = Groups()
    groups.generation(member("m", None, "events"))
    assert groups.refused(change(0, consumer("a"))) is KafkaError.GROUP_ID_NOT_FOUND
    groups.generation(generation=2)
    assert isinstance(groups.do(change(0, consumer("a"))), ConsumerGroupChanged)
    assert membership(groups).members.keys() == {"a"}


def test_offsets_outlive_a_change_of_protocol() -> None:
    groups = Groups()
    groups.do(groups.commit(offsets(7)))
    groups.do(change(0, consumer("a")))
    assert groups.committed() == 7


@pytest.mark.parametrize(
    "broken",
    [
        change(0, consumer("a", assigned=((T, (0,)),)), consumer("b", assigned=((T, (0,)),))),
        change(
            0, consumer("a", assigned=((T, (0,)),)), consumer("b", revoking=((T, (0,)),), state=UNREVOKED)
        ),
        change(0, consumer("a", 2)),
        change(0, consumer("a", -3)),
        change(0, consumer("a"), consumer("a")),
        change(0, consumer("a", instance_id="i"), consumer("b", instance_id="i")),
        change(0, consumer("a", assigned=((T, (0,)),), revoking=((T, (0,)),), state=UNREVOKED)),
        change(0, consumer("a", state=UNREVOKED)),
        change(0, consumer("a", revoking=((T, (0,)),))),
        change(0, consumer("a"), removed=["b"]),
        change(0, consumer("a"), targets={"b": ((T, (0,)),)}),
        change(0, consumer("a", assigned=((T, (1, 0)),))),
        change(0, consumer("a", assigned=((T, (0, 0)),))),
        change(0, consumer("a", assigned=((U, (0,)), (T, (0,))))),
        change(0, consumer("a", assigned=((T, ()),))),
    ],
)
def test_what_would_break_a_rule_stops_the_replica(broken: ChangeConsumerGroup) -> None:
    with pytest.raises(Corruption):
        Groups().do(broken)


def test_an_epoch_never_falls() -> None:
    groups = made(consumer("a", 3), epoch=3)
    with pytest.raises(Corruption, match="falls from 3 to 2"):
        groups.do(change(membership(groups).version, epoch=2))


def test_offsets_are_taken_of_members_in_their_epoch_only() -> None:
    groups = made(consumer("a", 3), epoch=3)

    def refusal(member_id: str, epoch: int) -> KafkaError:
        return groups.refused(CommitOffsets("g", member_id, epoch, None, offsets(1)))

    assert isinstance(groups.do(CommitOffsets("g", "a", 3, None, offsets(1))), OffsetsCommitted)
    assert refusal("a", 2) is KafkaError.STALE_MEMBER_EPOCH
    assert refusal("a", 4) is KafkaError.STALE_MEMBER_EPOCH
    assert refusal("b", 3) is KafkaError.UNKNOWN_MEMBER_ID
    assert refusal("", -1) is KafkaError.UNKNOWN_MEMBER_ID
    assert (
        groups.refused(groups.add(offsets(2), member_id="a", generation=2)) is KafkaError.ILLEGAL_GENERATION
    )
    assert groups.refused(groups.add(offsets(2), member_id="b", generation=3)) is KafkaError.UNKNOWN_MEMBER_ID
    assert isinstance(groups.do(groups.add(offsets(2), number=1)), OffsetsCommitted), (
        "KIP-447: it names nobody"
    )
    groups.do(change(membership(groups).version, epoch=4, removed=["a"]))
    assert isinstance(groups.do(CommitOffsets("g", "", -1, None, offsets(1))), OffsetsCommitted)
    assert refusal("a", 3) is KafkaError.UNKNOWN_MEMBER_ID


def test_offsets_are_told_to_members_in_their_epoch_and_to_whoever_names_nobody() -> None:
    group = membership(made(consumer("a", 3), epoch=3))
    assert group.refuse_fetch(None, -1) is None
    assert group.refuse_fetch("a", 3) is None
    assert group.refuse_fetch("a", 2) is KafkaError.STALE_MEMBER_EPOCH
    assert group.refuse_fetch("b", 3) is KafkaError.UNKNOWN_MEMBER_ID


def test_a_member_that_left_for_a_while_commits_nothing() -> None:
    groups = made(consumer("a", LEFT_FOR_A_WHILE, instance_id="i"))
    assert groups.refused(CommitOffsets("g", "a", 1, "i", offsets(1))) is KafkaError.STALE_MEMBER_EPOCH


def test_a_topic_counts_as_subscribed_by_name_and_by_pattern() -> None:
    group = membership(made(consumer("a", pattern="c.*"), matches={"c.*": ("clicks",)}))
    subscribed = group.subscriptions()
    assert [subscribed(topic) for topic in ("events", "clicks", "other")] == [True, True, False]


def test_a_group_with_members_is_not_deleted() -> None:
    groups = made(consumer("a"))
    assert groups.refused(DeleteGroup("g")) is KafkaError.NON_EMPTY_GROUP
    groups.do(change(membership(groups).version, epoch=2, removed=["a"]))
    assert isinstance(groups.do(DeleteGroup("g")), GroupDeleted)


def test_a_snapshot_gives_the_same_group_whatever_order_it_came_about_in() -> None:
    a, b = consumer("a", assigned=((T, (0,)),), instance_id="i"), consumer("b", assigned=((T, (1,)),))
    targets = {"b": b.assigned, "a": a.assigned}
    matches = {"y": ("events",), "x": ()}
    groups = made(b, a, targets=targets, matches=matches, metadata=b"12345678")
    other = made(a, b, targets=dict(sorted(targets.items())), matches=matches, metadata=b"12345678")
    assert groups.machine.snapshot() == other.machine.snapshot()
    before = vars(membership(groups)).copy()
    groups.restart()
    assert vars(membership(groups)) == before


def test_a_snapshot_of_two_owners_is_not_taken_up() -> None:
    row = membership(made(consumer("a", assigned=((T, (0,)),)))).fields()
    row[5] = [*row[5], consumer("b", assigned=((T, (0,)),))]
    with pytest.raises(Corruption, match="as a does"):
        ConsumerGroup.loaded(row)


def test_assignments_have_one_form() -> None:
    assert assignment([(U, 1), (T, 2), (T, 0)]) == ((T, (0, 2)), (U, (1,)))
    with pytest.raises(ValueError, match="not in order"):
        assignment_from([[U, [1]], [T, [0]]])
