"""What patterns match counts against every bound, and is never so much that a group fits into no entry."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.node.coordinator.groups import consumer_groups, consumer_matches, consumer_plan
from strandline.node.coordinator.groups.consumer_groups import HeartbeatAnswer
from strandline.node.coordinator.groups.consumer_matches import (
    Matches,
    size_of_match,
    size_of_matches,
    within,
)
from strandline.node.coordinator.groups.consumer_member import LEAVING
from strandline.node.refusal import Refusal
from strandline.statemachine.groups.consumer_group_commands import LEFT_FOR_A_WHILE
from strandline.statemachine.kafka_errors import KafkaError
from tests.coordinator.consumer_house import SESSION, ConsumerHouse
from tests.coordinator.consumers import Consumer

TOPICS = 50
NAMES = tuple(f"topic-{number:02}" for number in range(TOPICS))
ONE = size_of_match("t.*|0", NAMES)
"""Of any pattern of `wide`."""


def wide(number: int, **settings: Any) -> Consumer:
    """A member with a pattern of its own, which matches all of NAMES."""
    return Consumer(f"m{number}", pattern=f"t.*|{number}", **settings)


@pytest.fixture
def home(made: Callable[..., ConsumerHouse]) -> ConsumerHouse:
    house = made()
    for name in NAMES:
        house.cluster.create(name, 1)
    return house


def joined(home: ConsumerHouse, *members: Consumer) -> None:
    for one in members:
        home.beat(one)
        one.obey()
    home.settle(*members)


def narrow(home: ConsumerHouse) -> None:
    """From now on the log takes nothing that is much larger than what it has."""
    replicate, largest = home.log.replicate, 2 * max(len(entry.command) for entry in home.log.proposed)

    def refusing(command: bytes, term: int) -> Any:
        if len(command) > largest:
            raise ValueError("an entry is too big")
        return replicate(command, term)

    home.log.replicate = refusing  # type: ignore[method-assign]


def test_a_pattern_that_is_new_to_the_group_counts_with_what_it_matches(
    home: ConsumerHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_matches, "MAX_MATCH_BYTES", 3 * ONE)
    members = [wide(number) for number in range(3)]
    joined(home, *members)
    assert home.code(wide(3).word()) is KafkaError.GROUP_MAX_SIZE_REACHED
    same = Consumer("same", pattern=members[0].pattern)
    joined(home, same, Consumer("by name", NAMES))
    same.pattern, same.says_all = wide(3).pattern, True
    assert home.code(same.word()) is KafkaError.GROUP_MAX_SIZE_REACHED
    assert home.group.members["same"].pattern == members[0].pattern
    assert size_of_matches(home.group.matches) == 3 * ONE

    members[1].pattern, members[1].says_all = wide(4).pattern, True
    home.beat(members[1])
    assert set(home.group.matches) == {"t.*|0", "t.*|4", "t.*|2"}, "one in the place of another"
    home.told(members[0].word(LEAVING))
    assert home.code(wide(3).word()) is KafkaError.GROUP_MAX_SIZE_REACHED, "another has its pattern"
    same.pattern = "t.*|2"
    home.beat(same)
    joined(home, wide(3))
    assert len(home.group.matches) == 3


def test_of_those_who_join_together_as_many_as_fit_are_taken(
    home: ConsumerHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_matches, "MAX_MATCH_BYTES", 5 * ONE)
    first = Consumer("first", ("events",))
    joined(home, first)
    home.by_hand = True
    blocker = home.say(Consumer("z", ("clicks",)).word())  # holds the queue
    tasks = [
        home.say(Consumer(f"n{number}", pattern=wide(number % 8).pattern).word()) for number in range(16)
    ]
    home.by_hand = False
    home.turn()
    assert isinstance(blocker.result(), HeartbeatAnswer)
    taken = [isinstance(task.result(), HeartbeatAnswer) for task in tasks]
    assert taken == [number % 8 < 5 for number in range(16)]
    assert size_of_matches(home.group.matches) == 5 * ONE


def create_late_at_the_limit(home: ConsumerHouse, members: list[Consumer]) -> tuple[str, ...]:
    """Topics that the members' patterns match; the first one's session is nearly over by then."""
    joined(home, *members)
    for _ in range(9):
        home.advance((SESSION - 1) / 9)
        home.settle(*members[1:])
    narrow(home)
    late = tuple(f"t-{'late' * 50}-{number:02}" for number in range(20))
    for name in late:
        home.cluster.create(name, 1)
    return late


def test_a_topic_that_is_created_at_the_limit_does_not_stop_heartbeats(
    home: ConsumerHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_matches, "MAX_MATCH_BYTES", 6 * ONE)
    members = [wide(number) for number in range(6)]
    create_late_at_the_limit(home, members)
    before, logged = home.group.matches, home.logged_entries
    home.settle(*members)
    assert (home.group.matches, home.logged_entries) == (before, logged), "they leave no trace"


@pytest.mark.parametrize("goes", ["leaves", "is silent", "leaves for a while"])
def test_a_topic_that_is_created_at_the_limit_keeps_nobody_in(
    home: ConsumerHouse, monkeypatch: pytest.MonkeyPatch, goes: str
) -> None:
    monkeypatch.setattr(consumer_matches, "MAX_MATCH_BYTES", 6 * ONE)
    gone, *others = members = [wide(number, instance_id=f"i{number}") for number in range(6)]
    late = create_late_at_the_limit(home, members)
    if goes == "leaves":
        assert isinstance(home.told(gone.word(LEAVING)), HeartbeatAnswer)
    elif goes == "leaves for a while":
        assert isinstance(home.told(gone.word(LEFT_FOR_A_WHILE)), HeartbeatAnswer)
        home.advance(SESSION - 1)
        home.settle(*others)
    home.advance(2)
    assert set(home.group.members) == {one.member_id for one in others}
    home.settle(*others)
    assert set(home.group.matches.values()) == {NAMES}
    assert set().union(*(one.owned for one in others)) == {
        (home.cluster.topic(name).topic_id, 0) for name in NAMES
    }
    for one in others[1:]:
        home.told(one.word(LEAVING))
    home.settle(others[0])
    assert home.group.matches == {"t.*|1": (*late, *NAMES)}, "now there is room for them"


def test_topics_that_are_deleted_at_the_limit_make_room(
    home: ConsumerHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_matches, "MAX_MATCH_BYTES", 2 * ONE)
    members = [wide(number) for number in range(2)]
    joined(home, *members)
    for name in ("t1", "t2"):
        home.cluster.create(name, 1)
    home.settle(*members)
    assert home.group.matches == {"t.*|0": NAMES, "t.*|1": NAMES}
    home.cluster.delete(NAMES[0])
    home.settle(*members)
    assert home.group.matches == {"t.*|0": ("t1", "t2", *NAMES[1:]), "t.*|1": NAMES[1:]}, "for one of them"
    home.cluster.delete(NAMES[1])
    home.settle(*members)
    assert home.group.matches == dict.fromkeys(("t.*|0", "t.*|1"), ("t1", "t2", *NAMES[2:]))


def test_what_is_matched_counts_for_the_coordinator(home: ConsumerHouse) -> None:
    groups = home.groups
    first, second, third = wide(0), wide(1), Consumer("m2", pattern=wide(1).pattern)
    counted = [groups.bytes]
    for one in (first, second, third):
        joined(home, one)
        counted.append(groups.bytes)
    grown = [after - before for before, after in pairwise(counted)]
    assert grown[0] == grown[1] == ONE + grown[2]
    home.cluster.create("t-new", 1)
    home.settle(first, second, third)
    one_name = size_of_match("", ("t-new",)) - size_of_match("", ())
    assert groups.bytes == counted[3] + 2 * one_name
    home.new_leader()
    assert groups.bytes == counted[3] + 2 * one_name, "it counts what the log has"
    home.cluster.delete("t-new")
    home.settle(first, second, third)
    assert groups.bytes == counted[3]
    home.told(third.word(LEAVING))
    assert groups.bytes == counted[2]
    second.pattern, second.topics, second.says_all = "", NAMES, True
    home.beat(second)
    assert groups.bytes < counted[2] - ONE + TOPICS * len(NAMES[0]), "its names are its own now"
    home.told(second.word(LEAVING))
    assert groups.bytes == counted[1]
    home.told(first.word(LEAVING))
    assert groups.bytes == 0


def test_what_all_groups_match_is_bounded(home: ConsumerHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    bound = 3 * (ONE + 300)
    monkeypatch.setattr(consumer_groups, "MAX_BYTES", bound)
    told = [home.say(wide(number).word(), f"g{number}").result() for number in range(4)]
    assert [isinstance(answer, HeartbeatAnswer) for answer in told] == [True, True, True, False]
    assert isinstance(told[3], Refusal)
    assert told[3].reason is KafkaError.COORDINATOR_LOAD_IN_PROGRESS
    members = [wide(number) for number in range(3)]
    for number in range(10):
        home.cluster.create(f"t-{number}", 1)
        for place, one in enumerate(members):
            answer = home.say(one.word(), f"g{place}").result()
            assert isinstance(answer, HeartbeatAnswer)
            one.hear(answer.reply)
            one.obey()
    assert home.groups.bytes <= bound
    for place, one in enumerate(members):
        assert isinstance(home.say(one.word(LEAVING), f"g{place}").result(), HeartbeatAnswer)
    assert home.groups.bytes == 0


def test_what_a_group_matches_counts_with_what_its_members_say(
    home: ConsumerHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_plan, "MAX_GROUP_BYTES", 2 * (ONE + 300))
    members = [wide(number) for number in range(2)]
    joined(home, *members)
    assert home.code(wide(2).word()) is KafkaError.GROUP_MAX_SIZE_REACHED
    for number in range(20):
        home.cluster.create(f"t-{number}", 1)
        home.settle(*members)
    assert TOPICS < max(map(len, home.group.matches.values())) < TOPICS + 20
    assert home.groups.bytes <= 2 * (ONE + 300)


names = st.frozensets(st.sampled_from([f"t{number}" for number in range(12)])).map(sorted).map(tuple)
matched = st.dictionaries(st.sampled_from(["a", "b", "c", "d", "e"]), names)


@given(now=matched, had=matched, limit=st.integers(0, 2500))
def test_a_pattern_follows_the_topics_or_keeps_what_it_had(now: Matches, had: Matches, limit: int) -> None:
    given_ = within(limit, now, had)
    assert list(given_) == list(now)
    kept = {pattern for pattern in now if given_[pattern] != now[pattern]}
    for pattern in kept:
        assert given_[pattern] == tuple(name for name in had[pattern] if name in now[pattern])
    least = {pattern: had.get(pattern, now[pattern]) for pattern in now}
    assert size_of_matches(given_) <= max(limit, size_of_matches(least))
    if size_of_matches(now) <= limit:
        assert not kept
    assert within(limit, now, given_) == given_, "the next look changes nothing"
