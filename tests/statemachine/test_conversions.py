"""How a group becomes one of the other protocol, in its log: who has what, who may commit, snapshots."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import msgpack
import pytest

from strandline.statemachine.groups.classic_group import ClassicGroup
from strandline.statemachine.groups.consumer_group import ConsumerGroup
from strandline.statemachine.groups.consumer_group_commands import (
    STABLE,
    UNREVOKED,
    ChangeConsumerGroup,
    ClassicMetadata,
    ConsumerGroupChanged,
    ConsumerGroupMoved,
    ConsumerMember,
    Downgrade,
    Upgrade,
    change_from,
)
from strandline.statemachine.groups.consumer_protocol import (
    Subscription,
    read_assignment,
    read_subscription,
    subscribed_topics,
    write_assignment,
)
from strandline.statemachine.groups.conversions import (
    NotConvertible,
    fingerprint,
    from_classic,
    selected_protocol,
    topics_of,
)
from strandline.statemachine.groups.group_commands import (
    AssignGeneration,
    Member,
    ReplaceStaticMember,
    StartGeneration,
)
from strandline.statemachine.groups.groups import GroupsMachine
from strandline.statemachine.kafka_errors import KafkaError
from strandline.statemachine.machine import Corruption
from tests.coordinator.mixed import subscription
from tests.statemachine.groups_harness import CLICKS, EVENTS, Groups, ignore, offsets

IDS = {"events": EVENTS, "clicks": CLICKS}


def member(member_id: str, owned: tuple[int, ...] = (), instance: str | None = None) -> Member:
    metadata = subscription(["events", "clicks"], {"events": owned} if owned else {})
    return Member(member_id, instance, "client", "/10.0.0.1", 6_000, 60_000, [("range", metadata)])


def classic(
    *members: Member, assigned: dict[str, tuple[int, ...]] | None = None, generation: int = 3
) -> Groups:
    """A group in a generation; its members are assigned partitions of events, unless nobody is yet."""
    groups = Groups()
    leader = members[0].member_id
    groups.do(StartGeneration("g", generation, "consumer", "range", leader, members))
    if assigned is not None:
        given = {one: write_assignment({"events": numbers}, b"\0\1") for one, numbers in assigned.items()}
        groups.do(AssignGeneration("g", generation, given))
    return groups


def present(groups: Groups) -> Any:
    return groups.machine.groups["g"].membership


def newcomer(epoch: int = 4, **more: Any) -> ConsumerMember:
    one = ConsumerMember("x", None, None, "c", "/h", 60_000, ("events",), "", None, epoch, 0, STABLE, (), ())
    return one._replace(**more)


def upgrade(groups: Groups, *members: ConsumerMember, **more: Any) -> ChangeConsumerGroup:
    """The newcomer joins, and makes a consumer group of it."""
    conversion = Upgrade(fingerprint(present(groups)), [("events", EVENTS)])
    row: dict[str, Any] = {"metadata": b"d", "matches": None, "removed": [], "targets": {}, **more}
    return ChangeConsumerGroup("g", 0, 4, members=members or (newcomer(),), upgrade=conversion, **row)


def upgraded(*members: Member, assigned: dict[str, tuple[int, ...]] | None = None) -> ConsumerGroup:
    groups = classic(*members, assigned=assigned)
    assert isinstance(groups.do(upgrade(groups)), ConsumerGroupChanged)
    found = present(groups)
    assert isinstance(found, ConsumerGroup)
    return found


# Up.


def test_members_have_what_they_were_assigned_in_the_epoch_that_was_their_generation() -> None:
    group = upgraded(member("a", instance="i"), member("b"), assigned={"a": (0, 2), "b": (1,)})
    a, b = group.members["a"], group.members["b"]
    assert (a.epoch, a.state, a.assigned, a.revoking) == (3, STABLE, ((EVENTS, (0, 2)),), ())
    assert (b.assigned, group.targets["b"], group.static) == (((EVENTS, (1,)),), b.assigned, {"i": "a"})
    assert (a.topics, a.rebalance_timeout_ms) == (("clicks", "events"), 60_000)
    assert a.classic == ClassicMetadata(6_000, tuple(member("a").protocols))
    assert (group.classic, group.supported, group.epoch) == (2, {"range": 2}, 4)


def test_what_was_not_assigned_and_is_still_had_is_to_be_let_go_of() -> None:
    group = upgraded(member("a", (0, 1, 2)), member("b", (2,)), assigned={"a": (0,), "b": (1,)})
    a, b = group.members["a"], group.members["b"]
    assert (a.state, a.assigned, a.revoking) == (UNREVOKED, ((EVENTS, (0,)),), ((EVENTS, (2,)),))
    assert (b.state, b.assigned, b.revoking) == (STABLE, ((EVENTS, (1,)),), ())


def test_before_they_are_assigned_they_have_what_they_had() -> None:
    group = upgraded(member("a", (0, 1)), member("b"))
    a = group.members["a"]
    assert (a.state, a.assigned, group.members["b"].assigned) == (STABLE, ((EVENTS, (0, 1)),), ())


def test_topics_that_are_gone_are_nobodys() -> None:
    groups = classic(member("a"), assigned={"a": (0,)})
    assert topics_of(present(groups)) == ["events"]
    assert from_classic(present(groups), {}).owners == {}


@pytest.mark.parametrize(
    ("assigned", "words"),
    [
        ({"a": b"\0\1\0\0", "b": b""}, "malformed"),
        ({"a": b"", "b": struct.pack(">hiib", 0, 0, 1, 7)}, "custom assignor"),
        (dict.fromkeys("ab", write_assignment({"events": (0,)}, b"\0\0")), "two members"),
    ],
)
def test_what_cannot_be_read_is_not_converted(assigned: dict[str, bytes], words: str) -> None:
    groups = classic(member("a"), member("b"))
    groups.do(AssignGeneration("g", 3, assigned))
    with pytest.raises(NotConvertible, match=words):
        from_classic(present(groups), IDS)


def test_a_subscription_that_cannot_be_read_is_not_converted() -> None:
    groups = classic(member("a")._replace(protocols=[("range", b"?")]), assigned={"a": ()})
    for what in (topics_of, lambda group: from_classic(group, IDS)):
        with pytest.raises(NotConvertible, match="malformed"):
            what(present(groups))


def test_a_conversion_holds_for_the_generation_it_was_planned_from_only() -> None:
    groups = classic(member("a", instance="i"), member("b"))
    planned = upgrade(groups)
    before = groups.machine.snapshot()
    for change in (
        AssignGeneration("g", 3, {}),
        ReplaceStaticMember("g", 3, "a", member("c", instance="i")),
        StartGeneration("g", 4, "consumer", "range", "b", [member("b")]),
    ):
        groups.do(change)
        state = groups.machine.groups["g"].membership
        assert groups.do(planned) == ConsumerGroupMoved(0)
        assert groups.machine.groups["g"].membership is state
    assert before != groups.machine.snapshot()
    assert isinstance(groups.do(upgrade(groups)), ConsumerGroupChanged)


def test_without_being_one_a_change_does_not_touch_a_classic_group() -> None:
    groups = classic(member("a"), assigned={"a": ()})
    change = ChangeConsumerGroup("g", 0, 4, b"", None, [], [newcomer()], {})
    assert groups.refused(change) is KafkaError.GROUP_ID_NOT_FOUND


def test_it_cannot_give_away_what_a_classic_member_has() -> None:
    groups = classic(member("a"), assigned={"a": (0,)})
    with pytest.raises(Corruption, match="would own"):
        groups.do(upgrade(groups, newcomer(assigned=((EVENTS, (0,)),))))


# Who may commit.


def test_the_same_number_counts_until_a_member_joins_again() -> None:
    groups = classic(member("a"), assigned={"a": (0,)})
    assert not isinstance(groups.do(groups.commit(offsets(1), "a", 3)), KafkaError)
    groups.do(upgrade(groups))
    groups.do(groups.commit(offsets(2), "a", 3))
    groups.do(groups.add(offsets(3), member_id="a", generation=3))
    assert groups.committed() == 2
    group = present(groups)
    groups.do(
        ChangeConsumerGroup("g", group.version, 4, None, None, [], [group.members["a"]._replace(epoch=4)], {})
    )
    assert groups.refused(groups.commit(offsets(4), "a", 3)) is KafkaError.ILLEGAL_GENERATION
    late = groups.add(offsets(4), number=1, member_id="a", generation=3)
    assert groups.refused(late) is KafkaError.ILLEGAL_GENERATION
    assert groups.refused(groups.commit(offsets(4), "x", 3)) is KafkaError.STALE_MEMBER_EPOCH
    assert group.refuse_fetch("a", 3) is KafkaError.ILLEGAL_GENERATION
    assert (group.refuse_fetch("a", 4), group.refuse_fetch(None, -1)) == (None, None)


# Down.


def downgrade(groups: Groups, **more: Any) -> ChangeConsumerGroup:
    """The newcomer leaves, and the others go on as a classic group."""
    down = Downgrade("range", more.pop("rebalances", True), [(EVENTS, "events")])
    row: dict[str, Any] = {"metadata": None, "matches": None, "removed": ["x"], "members": [], "targets": {}}
    return ChangeConsumerGroup("g", present(groups).version, 4, **{**row, **more}, downgrade=down)


def test_a_consumer_group_becomes_the_generation_that_was_its_epoch() -> None:
    groups = classic(member("b", instance="i"), member("a"), assigned={"a": (0,), "b": (1,)})
    groups.do(upgrade(groups))
    assert isinstance(groups.do(downgrade(groups)), ConsumerGroupChanged)
    group = present(groups)
    assert isinstance(group, ClassicGroup)
    assert (group.generation, group.protocol_type, group.protocol_name, group.leader) == (
        4, "consumer", "range", "",
    )  # fmt: skip
    assert [*group.members] == ["a", "b"], "in an order that every replica has"
    assert group.members["b"] == member("b", instance="i")
    assert group.assignments is not None
    given = read_assignment(group.assignments["b"])
    assert given is not None
    assert given.partitions == (("events", (1,)),)
    assert group.refuse_commit("a", None, 4, transactional=False) is None
    assert group.refuse_commit("a", None, 3, transactional=False) is KafkaError.ILLEGAL_GENERATION
    assert group.refuse_commit("x", None, 4, transactional=True) is KafkaError.UNKNOWN_MEMBER_ID
    groups.restart()
    assert groups.do(StartGeneration("g", 5, "consumer", "range", "a", [member("a")])) == (5,)


def test_one_that_goes_on_as_it_is_has_a_leader() -> None:
    groups = classic(member("b"), member("a"), assigned={"a": (0,), "b": (1,)})
    groups.do(upgrade(groups))
    groups.do(downgrade(groups, rebalances=False))
    assert present(groups).leader == "a"


def test_one_with_a_member_of_the_consumer_protocol_does_not_become_classic() -> None:
    groups = classic(member("a"), assigned={"a": (0,)})
    groups.do(upgrade(groups))
    with pytest.raises(Corruption, match="speaks the consumer protocol"):
        groups.do(downgrade(groups, removed=["a"]))


def test_the_protocol_is_one_that_all_have_and_most_prefer() -> None:
    def of(*names: str) -> list[tuple[str, bytes]]:
        return [(name, b"") for name in names]

    assert selected_protocol([of("a", "b"), of("b", "a"), of("b", "a", "c")]) == "b"
    assert selected_protocol([of("a", "b"), of("b", "a")]) == "a"
    assert selected_protocol([of("c", "b"), of("b")]) == "b"
    assert selected_protocol([of("a"), of("b")]) is None
    assert selected_protocol([]) is None


# At rest.


def test_a_change_with_a_conversion_is_what_the_entry_says() -> None:
    groups = classic(member("a"), assigned={"a": (0,)})
    old = newcomer(classic=ClassicMetadata(7, (("range", b"m"),)))
    down = Downgrade("range", True, [(EVENTS, "events")])
    plain = ChangeConsumerGroup("g", 1, 1, None, None, [], [], {})
    for sent in (upgrade(groups, old), replace(plain, downgrade=down), plain):
        entry = msgpack.packb(sent.fields())
        read = change_from(msgpack.unpackb(entry))
        assert [*read.members] == [*sent.members]
        assert msgpack.packb(read.fields()) == entry
    assert len(plain.fields()) == 8, "as it was before groups changed their protocol"
    with pytest.raises(ValueError, match="without a protocol"):
        change_from(["g", 1, 1, None, None, [], [[*old[:-1], [7, []]]], []])


def test_a_snapshot_of_a_mixed_group_is_read_and_one_of_the_format_before() -> None:
    groups = classic(member("a", (0,)), member("b"), assigned={"a": (0,), "b": (1,)})
    groups.do(upgrade(groups))
    groups.restart()
    group = present(groups)
    assert (group.classic, group.supported, group.members["a"].classic.session_timeout_ms) == (
        2, {"range": 2}, 6_000,
    )  # fmt: skip
    groups.do(downgrade(groups))
    groups.restart()

    old = Groups()
    old.do(ChangeConsumerGroup("g", 0, 4, b"", None, [], [newcomer()], {}))
    state = msgpack.unpackb(old.machine.snapshot())
    assert len(state["groups"][0][2][5][0]) == 14, "a member of KIP-848 is as it was in format 1"
    state["format"] = 1
    machine = GroupsMachine(ignore)
    machine.restore(msgpack.packb(state))
    assert machine.snapshot() == old.machine.snapshot()


def test_a_copy_is_not_changed_with_the_group() -> None:
    groups = classic(member("a"), assigned={"a": (0,)})
    captured = groups.machine.capture()
    before = groups.machine.snapshot()
    groups.do(upgrade(groups))
    after = groups.machine.snapshot()
    later, kept = groups.machine.capture(), present(groups).copy()
    groups.do(replace(downgrade(groups), downgrade=None, removed=["a"]))
    assert (present(groups).classic, present(groups).supported["range"]) == (0, 0)
    assert (kept.classic, kept.supported) == (1, {"range": 1})
    assert (captured(), later()) == (before, after)


# What consumers write.


def test_subscriptions_of_all_versions_are_read() -> None:
    body = struct.pack(">ih1si", 1, 1, b"t", -1)
    owned = struct.pack(">ih1siii", 1, 1, b"t", 2, 4, 1)
    for version, more, expected in (
        (0, b"", Subscription(("t",), (), None)),
        (1, owned, Subscription(("t",), (("t", (4, 1)),), None)),
        (2, owned + struct.pack(">i", 9), Subscription(("t",), (("t", (4, 1)),), None)),
        (3, owned + struct.pack(">ih1s", 9, 1, b"r"), Subscription(("t",), (("t", (4, 1)),), "r")),
        (9, owned + struct.pack(">ih", 9, -1) + b"later", Subscription(("t",), (("t", (4, 1)),), None)),
    ):
        metadata = struct.pack(">h", version) + body + more
        assert read_subscription(metadata) == expected
        if version in (1, 2, 3):
            assert all(read_subscription(metadata[:end]) is None for end in range(len(metadata)))
        assert subscribed_topics(metadata) == ("t",)
    for broken in (
        b"",
        b"\xff\xff\0\0\0\0",
        b"\0\0\x7f\xff\xff\xff",
        b"\0\0\0\0\0\1\xff\xff",
        b"\0\0\0\0\0\1\0\1\xff",
    ):
        assert read_subscription(broken) is None


def test_assignments_are_written_in_the_version_of_the_member() -> None:
    for said, version in ((b"\0\0", 0), (b"\0\3", 3), (b"\0\7", 3), (b"\xff\xff", 0), (b"", 0)):
        written = write_assignment({"t": (1, 2), "u": ()}, said)
        assert written[:2] == version.to_bytes(2, "big")
        given = read_assignment(written)
        assert given is not None
        assert (given.partitions, given.user_data) == ((("t", (1, 2)), ("u", ())), b"")
        assert all(read_assignment(written[:end]) is None for end in range(1, len(written)))
    assert read_assignment(b"\0\0\0\0\0\1\0\1t\0\0\0\1\xff\xff\xff\xff\xff\xff\xff\xff") is None, (
        "partition -1"
    )
