"""The server-side assignors of KIP-848: they compute the target assignment of a group's members.

Both depend on their arguments alone, so a test can check them against their rule. Both start from the present
target, because every partition that moves costs a consumer its state and its caches:

- `uniform` gives every member as many partitions as the subscriptions allow, and moves no more for it than it
  has to. It balances over all topics together.
- `range` gives every member a run of each topic's partitions. Topics with the same partitions and the same
  subscribers are cut alike, so that what has the same key lands at the same member.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heapreplace
from typing import Final, NamedTuple

from strandline.statemachine.groups.consumer_group_commands import Assignment, assignment, partitions_of

MAX_STEPS: Final = 100_000
"""Members looked at while an uneven target is mended; what is uneven then stays so until the next one."""

Partition = tuple[bytes, int]


class Subscriber(NamedTuple):
    """A member, as an assignor sees it."""

    member_id: str
    rank: str
    """Order of the members if all else is equal; a static member keeps its rank (KIP-345)."""
    topics: Sequence[bytes]
    """Ids of the topics it subscribes to, each of which exists."""
    target: Assignment
    """The member's present target assignment."""


Assignor = Callable[[Sequence[Subscriber], Mapping[bytes, int]], dict[str, Assignment]]
"""Gives target assignments by member id, from the subscribers and the number of partitions of each topic.

Members without a partition are left out."""


def uniform(subscribers: Sequence[Subscriber], sizes: Mapping[bytes, int]) -> dict[str, Assignment]:
    """See the module; Kafka's `UniformAssignor`."""
    ordered = sorted(subscribers, key=_rank)
    kept = _kept(ordered, sizes)
    held = _filled(ordered, kept, sizes) if _alike(ordered) else _balanced(ordered, kept, sizes)
    return {member_id: assignment(partitions) for member_id, partitions in held.items() if partitions}


def range_of(subscribers: Sequence[Subscriber], sizes: Mapping[bytes, int]) -> dict[str, Assignment]:
    """See the module; Kafka's `RangeAssignor`.

    Where all subscribe to the same, runs are given out in the order in which they lie now, newcomers last: a
    member that comes or goes shifts the others' ends and not their places. Otherwise there is no such order.
    """
    ordered = sorted(subscribers, key=_rank)
    if _alike(subscribers):
        ordered.sort(key=_lowest)
    held: dict[str, list[Partition]] = {subscriber.member_id: [] for subscriber in ordered}
    for topic_id, members in sorted(_by_topic(ordered).items()):
        share, extra = divmod(sizes[topic_id], len(members))
        first = 0
        for place, member_id in enumerate(members):
            end = first + share + (place < extra)
            if first == end:
                break
            held[member_id] += ((topic_id, number) for number in range(first, end))
            first = end
    return {member_id: assignment(partitions) for member_id, partitions in held.items() if partitions}


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": uniform, "range": range_of}
DEFAULT_ASSIGNOR: Final = "uniform"


def _rank(subscriber: Subscriber) -> tuple[str, str]:
    return subscriber.rank, subscriber.member_id


def _alike(subscribers: Sequence[Subscriber]) -> bool:
    different = {tuple(subscriber.topics) for subscriber in subscribers}
    return len({frozenset(topics) for topics in different}) <= 1


def _lowest(subscriber: Subscriber) -> float:
    return min((numbers[0] for _, numbers in subscriber.target), default=float("inf"))


def _by_topic(ordered: Sequence[Subscriber]) -> dict[bytes, list[str]]:
    members: dict[bytes, list[str]] = {}
    for subscriber in ordered:
        for topic_id in subscriber.topics:
            members.setdefault(topic_id, []).append(subscriber.member_id)
    return members


def _kept(ordered: Sequence[Subscriber], sizes: Mapping[bytes, int]) -> dict[str, list[Partition]]:
    """The partitions of the members' targets that still exist and are still subscribed to."""
    kept: dict[str, list[Partition]] = {}
    for subscriber in ordered:
        topics = frozenset(subscriber.topics)
        kept[subscriber.member_id] = [
            (topic_id, number)
            for topic_id, number in partitions_of(subscriber.target)
            if topic_id in topics and number < sizes[topic_id]
        ]
    return kept


def _unassigned(
    topics: Sequence[bytes], sizes: Mapping[bytes, int], kept: Mapping[str, Sequence[Partition]]
) -> list[Partition]:
    taken = {partition for partitions in kept.values() for partition in partitions}
    every = ((topic_id, number) for topic_id in topics for number in range(sizes[topic_id]))
    return [partition for partition in every if partition not in taken]


def _filled(
    ordered: Sequence[Subscriber], kept: dict[str, list[Partition]], sizes: Mapping[bytes, int]
) -> dict[str, list[Partition]]:
    """All subscribe to the same: each has its share, and those that have most already have the one more."""
    if not ordered:
        return kept
    topics = sorted(ordered[0].topics)
    share, extra = divmod(sum(sizes[topic_id] for topic_id in topics), len(ordered))
    room: deque[tuple[str, int]] = deque()
    for subscriber in sorted(ordered, key=lambda one: -len(kept[one.member_id])):
        quota = share + (extra > 0)
        extra -= extra > 0
        del kept[subscriber.member_id][quota:]
        if left := quota - len(kept[subscriber.member_id]):
            room.append((subscriber.member_id, left))
    for partition in _unassigned(topics, sizes, kept):  # in turn, so that each has some of every topic
        member_id, left = room.popleft()
        kept[member_id].append(partition)
        if left > 1:
            room.append((member_id, left - 1))
    return kept


def _balanced(
    ordered: Sequence[Subscriber], kept: dict[str, list[Partition]], sizes: Mapping[bytes, int]
) -> dict[str, list[Partition]]:
    """Targets for differing subscriptions: each free partition goes to the subscriber with the fewest
    partitions, then `_mend` evens out the loads."""
    members = _by_topic(ordered)
    place = {subscriber.member_id: number for number, subscriber in enumerate(ordered)}
    scarcest_first = sorted(members, key=lambda topic_id: (len(members[topic_id]), topic_id))
    heap: list[tuple[int, int, str]] = []
    heap_of: bytes | None = None
    for topic_id, number in _unassigned(scarcest_first, sizes, kept):
        if topic_id != heap_of:
            heap_of = topic_id
            heap = [(len(kept[member_id]), place[member_id], member_id) for member_id in members[topic_id]]
            heapify(heap)
        load, nth, member_id = heap[0]
        kept[member_id].append((topic_id, number))
        heapreplace(heap, (load + 1, nth, member_id))
    _mend(kept, members, min((len(kept[one.member_id]) for one in ordered if one.topics), default=0))
    return kept


def _mend(held: dict[str, list[Partition]], members: Mapping[bytes, Sequence[str]], least: int) -> None:
    """Move partitions from members that have too many to members that have at least two fewer, along chains;
    no subscriber has fewer than `least`.

    A chain is needed if the two members have no topic in common: a member between them gets one partition and
    passes on another. While such a chain exists the target is uneven; without one it is as even as possible
    (semi-matchings: Harvey, Ladner, Lovász, Tamir, 2003).
    """
    by_topic: dict[str, dict[bytes, list[Partition]]] = {}
    for member_id, partitions in held.items():
        topics = by_topic.setdefault(member_id, {})
        for partition in partitions:
            topics.setdefault(partition[0], []).append(partition)
    load = {member_id: len(partitions) for member_id, partitions in held.items()}
    steps = 0
    moved = True
    while moved and steps < MAX_STEPS:
        moved = False
        for member_id in sorted(load, key=lambda one: (-load[one], one)):
            # It gives to a member that has at least two fewer, so no member falls below `least`.
            while load[member_id] >= least + 2 and steps < MAX_STEPS:
                chain, looks = _chain(member_id, by_topic, members, load, MAX_STEPS - steps)
                steps += looks
                if not chain:
                    break
                moved = True
                for giver, topic_id, taker in chain:
                    partition = by_topic[giver][topic_id].pop()
                    by_topic[taker].setdefault(topic_id, []).append(partition)
                load[member_id] -= 1
                load[chain[0][2]] += 1
    for member_id, topics in by_topic.items():
        held[member_id] = [partition for partitions in topics.values() for partition in partitions]


def _chain(
    first: str,
    by_topic: Mapping[str, Mapping[bytes, Sequence[Partition]]],
    members: Mapping[bytes, Sequence[str]],
    load: Mapping[str, int],
    most: int,
) -> tuple[list[tuple[str, bytes, str]], int]:
    """The shortest chain from a member to one that has two less, last link first; and how often a member was
    looked at, which ends the search once it is more than `most`."""
    enough = load[first] - 2
    looks = 0
    came_from: dict[str, tuple[str, bytes] | None] = {first: None}
    seen_topics: set[bytes] = set()
    queue = deque([first])
    while queue:
        giver = queue.popleft()
        for topic_id, partitions in by_topic[giver].items():
            if not partitions or topic_id in seen_topics:
                continue
            seen_topics.add(topic_id)
            if looks > most:
                return [], looks
            for look, taker in enumerate(members[topic_id], 1):
                if taker in came_from:
                    continue
                came_from[taker] = giver, topic_id
                if load[taker] <= enough:
                    return _links(taker, came_from), looks + look
                queue.append(taker)
            looks += len(members[topic_id])
    return [], looks


def _links(last: str, came_from: Mapping[str, tuple[str, bytes] | None]) -> list[tuple[str, bytes, str]]:
    links = []
    taker = last
    while (link := came_from[taker]) is not None:
        links.append((link[0], link[1], taker))
        taker = link[0]
    return links
