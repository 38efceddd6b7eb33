"""The server-side assignors against their rules: whole, even, sticky, and for `range` cut alike."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.statemachine.groups import assignors
from strandline.statemachine.groups.assignors import ASSIGNORS, Subscriber, range_of, uniform
from strandline.statemachine.groups.consumer_group_commands import (
    NOTHING,
    Assignment,
    assignment,
    partitions_of,
)

TOPICS = [bytes([number]) * 16 for number in range(4)]


def subscriber(name: str, topics: Sequence[int], target: Assignment = NOTHING, rank: str = "") -> Subscriber:
    return Subscriber(name, rank or name, [TOPICS[topic] for topic in topics], target)


@st.composite
def groups(draw: st.DrawFn, *, alike: bool | None = None) -> tuple[list[Subscriber], dict[bytes, int]]:
    """Members with some target of the past, of which topics may have gone, shrunk or changed subscribers."""
    sizes = {topic_id: draw(st.integers(1, 6)) for topic_id in TOPICS}
    names = draw(st.lists(st.sampled_from("abcdef"), min_size=1, unique=True))
    topics = st.lists(st.sampled_from(range(4)), unique=True, max_size=4)
    same = draw(topics)
    alike = draw(st.booleans()) if alike is None else alike
    past = [(topic_id, number) for topic_id in [*TOPICS, b"z" * 16] for number in range(7)]
    owners = draw(st.lists(st.sampled_from([*names, ""]), min_size=len(past), max_size=len(past)))
    found = []
    for name in names:
        had = assignment(part for part, owner in zip(past, owners, strict=True) if owner == name)
        found.append(subscriber(name, same if alike else draw(topics), had))
    return found, sizes


def owners_of(targets: Mapping[str, Assignment]) -> dict[tuple[bytes, int], str]:
    owners: dict[tuple[bytes, int], str] = {}
    for member_id, target in targets.items():
        for partition in partitions_of(target):
            assert owners.setdefault(partition, member_id) == member_id, "two members have it"
    return owners


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
@given(case=groups())
def test_every_partition_that_somebody_subscribes_to_has_one_subscriber(
    name: str, case: tuple[list[Subscriber], dict[bytes, int]]
) -> None:
    members, sizes = case
    targets = ASSIGNORS[name](members, sizes)
    owners = owners_of(targets)
    topics_of = {member.member_id: member.topics for member in members}
    wanted = {topic_id for member in members for topic_id in member.topics}
    assert set(owners) == {(topic_id, number) for topic_id in wanted for number in range(sizes[topic_id])}
    assert all(topic_id in topics_of[owner] for (topic_id, _), owner in owners.items())
    assert NOTHING not in targets.values()


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
@given(case=groups())
def test_what_is_assigned_stays_while_nothing_changes(
    name: str, case: tuple[list[Subscriber], dict[bytes, int]]
) -> None:
    members, sizes = case
    targets = ASSIGNORS[name](members, sizes)
    again = [member._replace(target=targets.get(member.member_id, NOTHING)) for member in members]
    assert ASSIGNORS[name](again, sizes) == targets
    assert ASSIGNORS[name](again[::-1], sizes) == targets, "the order in which members are given counts"


@given(case=groups(alike=True))
def test_uniform_is_even_and_moves_no_more_than_it_has_to(
    case: tuple[list[Subscriber], dict[bytes, int]],
) -> None:
    members, sizes = case
    owners = owners_of(uniform(members, sizes))
    share, extra = divmod(len(owners), len(members))
    loads = sorted(sum(owner == member.member_id for owner in owners.values()) for member in members)
    assert loads == [share] * (len(members) - extra) + [share + 1] * extra
    had = {partition: one.member_id for one in members for partition in partitions_of(one.target)}
    before = [sum(had.get(part) == one.member_id for part in owners) for one in members]
    may_stay = sum(min(load, share) for load in before) + min(extra, sum(load > share for load in before))
    assert sum(had.get(partition) == owner for partition, owner in owners.items()) == may_stay


@given(case=groups(alike=False))
def test_uniform_is_as_even_as_the_subscriptions_allow(
    case: tuple[list[Subscriber], dict[bytes, int]],
) -> None:
    """Against the evenness of all there is: only few members and partitions can be tried out."""
    members, sizes = case
    members = members[:3]
    sizes = {topic_id: min(size, 2) for topic_id, size in sizes.items()}
    takers = [
        [one.member_id for one in members if topic_id in one.topics]
        for topic_id in TOPICS
        for _ in range(sizes[topic_id])
        if any(topic_id in one.topics for one in members)
    ]
    names = [one.member_id for one in members]
    best = min((sum(way.count(name) ** 2 for name in names) for way in itertools.product(*takers)), default=0)
    targets = uniform(members, sizes)
    assert sum(len(partitions_of(target)) ** 2 for target in targets.values()) == best


def test_uniform_moves_along_a_chain_where_two_members_have_no_topic_in_common() -> None:
    four = assignment((TOPICS[0], number) for number in range(4))
    members = [
        subscriber("a", [0], four),
        subscriber("b", [0, 1], ((TOPICS[1], (0, 1)),)),
        subscriber("c", [1]),
    ]
    targets = uniform(members, {TOPICS[0]: 4, TOPICS[1]: 2})
    assert {name: len(partitions_of(target)) for name, target in targets.items()} == {"a": 2, "b": 2, "c": 2}
    assert targets["a"] == ((TOPICS[0], (0, 1)),), "what stays is what it had"


def test_uniform_gives_each_member_some_of_every_topic() -> None:
    targets = uniform([subscriber("a", [0, 1]), subscriber("b", [0, 1])], {TOPICS[0]: 2, TOPICS[1]: 2})
    assert targets == {
        "a": ((TOPICS[0], (0,)), (TOPICS[1], (0,))),
        "b": ((TOPICS[0], (1,)), (TOPICS[1], (1,))),
    }


@given(case=groups())
def test_range_gives_runs_and_cuts_topics_alike(case: tuple[list[Subscriber], dict[bytes, int]]) -> None:
    members, sizes = case
    targets = range_of(members, sizes)
    cuts: dict[bytes, dict[str, tuple[int, ...]]] = {topic_id: {} for topic_id in TOPICS}
    for member_id, target in targets.items():
        for topic_id, numbers in target:
            assert numbers == tuple(range(numbers[0], numbers[-1] + 1))
            cuts[topic_id][member_id] = numbers
    for topic_id in TOPICS:
        there = [member.member_id for member in members if topic_id in member.topics]
        lengths = [len(cuts[topic_id].get(name, ())) for name in there]
        assert not lengths or max(lengths) - min(lengths) <= 1
        for other in TOPICS:
            alike = there == [member.member_id for member in members if other in member.topics]
            if alike and sizes[topic_id] == sizes[other]:
                assert cuts[topic_id] == cuts[other]


def test_range_lets_a_newcomer_come_last_whatever_its_name() -> None:
    members = [
        subscriber("m", [0], ((TOPICS[0], (0, 1, 2)),)),
        subscriber("n", [0], ((TOPICS[0], (3, 4, 5)),)),
    ]
    targets = range_of([subscriber("a", [0]), *members], {TOPICS[0]: 6})
    assert targets["m"] == ((TOPICS[0], (0, 1)),)
    assert targets["a"] == ((TOPICS[0], (4, 5)),)


def test_static_members_keep_their_place_under_a_new_id() -> None:
    first = range_of([subscriber("x", [0], rank="1"), subscriber("y", [0], rank="2")], {TOPICS[0]: 2})
    later = range_of([subscriber("z", [0], rank="1"), subscriber("b", [0], rank="2")], {TOPICS[0]: 2})
    assert (first["x"], first["y"]) == (later["z"], later["b"])


def test_the_work_on_an_uneven_target_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {TOPICS[0]: 200, TOPICS[1]: 1}
    every = assignment((TOPICS[0], number) for number in range(200))
    members = [subscriber("a", [0, 1], every), *(subscriber(f"b{number}", [0]) for number in range(9))]
    assert max(len(partitions_of(target)) for target in uniform(members, sizes).values()) == 21
    monkeypatch.setattr(assignors, "MAX_STEPS", 50)
    targets = uniform(members, sizes)
    assert max(len(partitions_of(target)) for target in targets.values()) > 100
    assert len(owners_of(targets)) == 201


def test_an_even_target_is_not_mended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assignors, "_chain", lambda *_: pytest.fail("nobody has two less than another"))
    crowd = [subscriber(name, [0, 1, 2]) for name in "abcdefgh"]
    sizes = dict.fromkeys(TOPICS, 4)
    targets = uniform([*crowd, subscriber("other", [0]), subscriber("none", [])], sizes)
    assert {len(partitions_of(target)) for target in targets.values()} == {1, 2}


def test_every_look_at_a_member_counts_as_work() -> None:
    topics = [number.to_bytes(16, "big") for number in range(50)]
    names = [f"m{number}" for number in range(100)]
    by_topic = {names[0]: {key: [(key, 0)] for key in topics}, **{name: {} for name in names[1:]}}
    members, load = dict.fromkeys(topics, names), dict.fromkeys(names, 50)
    assert assignors._chain(names[0], by_topic, members, load, 10_000) == ([], 5_000)
    assert assignors._chain(names[0], by_topic, members, load, 1_000) == ([], 1_100)
