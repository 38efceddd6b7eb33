"""Placement of partitions: valid, even, and the same every time."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.statemachine.controller.assignment import Load, place


def spread(counts: Mapping[int, int], nodes: Sequence[int]) -> int:
    return max(counts[node] for node in nodes) - min(counts[node] for node in nodes)


def check_even(placed: Sequence[Sequence[int]], nodes: Sequence[int]) -> None:
    assert spread(Counter(replicas[0] for replicas in placed), nodes) <= 1
    assert spread(Counter(node for replicas in placed for node in replicas), nodes) <= 1


def no_racks(nodes: Sequence[int]) -> dict[int, str]:
    return dict.fromkeys(nodes, "")


def no_load(nodes: Sequence[int]) -> dict[int, Load]:
    return dict.fromkeys(nodes, Load(0, 0))


@pytest.mark.parametrize("nodes", range(1, 9))
def test_replicas_and_leaders_differ_by_one_at_most_after_every_partition(nodes: int) -> None:
    ids = list(range(1, nodes + 1))
    chance = random.Random(nodes)
    for replication_factor, _ in itertools.product(ids, range(4)):
        loads = {node: Load(chance.randrange(4), chance.randrange(4)) for node in ids}
        placed = place(no_racks(ids), 3 * nodes, replication_factor, present=(), loads=loads)
        for count in range(1, len(placed) + 1):
            check_even(placed[:count], ids)
        assert all(len(set(replicas)) == replication_factor for replicas in placed)


@given(st.data())
def test_whatever_nodes_hold_of_other_topics_a_topic_is_even(data: st.DataObject) -> None:
    nodes = data.draw(st.lists(st.integers(1, 65535), min_size=1, max_size=9, unique=True).map(sorted))
    load = st.builds(Load, st.integers(0, 9), st.integers(0, 9))
    loads = {node: data.draw(load) for node in nodes}
    replication_factor = data.draw(st.integers(1, len(nodes)))
    first = place(no_racks(nodes), data.draw(st.integers(0, 30)), replication_factor, present=(), loads=loads)
    grown = place(
        no_racks(nodes), data.draw(st.integers(1, 30)), replication_factor, present=first, loads=loads
    )
    check_even([*first, *grown], nodes)


def test_ties_go_to_the_node_that_holds_least() -> None:
    loads = {1: Load(2, 5), 2: Load(0, 5), 3: Load(2, 1)}
    assert place(no_racks([1, 2, 3]), 1, 2, present=(), loads=loads) == [(2, 3)]


def test_one_partition_topics_spread_their_leaders_over_the_cluster() -> None:
    led = Counter({1: 0, 2: 0, 3: 0})
    for _ in range(30):
        loads = {node: Load(led[node], sum(led.values())) for node in (1, 2, 3)}
        [(leader, *_)] = place(no_racks([1, 2, 3]), 1, 3, present=(), loads=loads)
        led[leader] += 1
    assert led == {1: 10, 2: 10, 3: 10}


def test_a_new_node_gets_what_a_topic_grows_by_until_it_is_level() -> None:
    present = place(no_racks([1, 2]), 4, 1, present=(), loads=no_load([1, 2]))
    grown = place(no_racks([1, 2, 3]), 5, 1, present=present, loads=no_load([1, 2, 3]))
    assert grown[:2] == [(3,), (3,)]
    check_even([*present, *grown], [1, 2, 3])


def test_nodes_that_may_not_be_chosen_do_not_count() -> None:
    present = [(9, 1), (9, 2), (9, 1)]
    assert place(no_racks([1, 2]), 1, 1, present=present, loads=no_load([1, 2])) == [(2,)]


@pytest.mark.parametrize("replication_factor", [0, 3])
def test_more_or_fewer_replicas_than_can_be_are_an_error(replication_factor: int) -> None:
    with pytest.raises(ValueError, match=f"{replication_factor} replicas cannot be placed on 2 nodes"):
        place(no_racks([1, 2]), 1, replication_factor, present=(), loads=no_load([1, 2]))


def racks_of(sizes: Sequence[int]) -> dict[int, str]:
    """Nodes from 1 on, in racks of these sizes, dealt out so that ids and racks are not in one order."""
    racks: list[str] = []
    for turn in range(max(sizes)):
        racks += [chr(ord("a") + rack) for rack, size in enumerate(sizes) if turn < size]
    return dict(enumerate(racks, 1))


@given(st.data())
def test_a_partition_lies_in_as_many_racks_as_it_can(data: st.DataObject) -> None:
    racks = racks_of(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=5)))
    load = st.builds(Load, st.integers(0, 9), st.integers(0, 9))
    loads = {node: data.draw(load) for node in racks}
    replication_factor = data.draw(st.integers(1, len(racks)))
    first = place(racks, data.draw(st.integers(0, 12)), replication_factor, present=(), loads=loads)
    grown = place(racks, data.draw(st.integers(1, 12)), replication_factor, present=first, loads=loads)
    sizes = Counter(racks.values())
    for replicas in [*first, *grown]:
        assert len(set(replicas)) == replication_factor
        shares = Counter(racks[node] for node in replicas)
        assert len(shares) == min(replication_factor, len(sizes))
        # No rack that has a node left holds two fewer than another: that other one would be lost with both.
        roomy = [shares[rack] for rack, size in sizes.items() if shares[rack] < size]
        assert not roomy or max(shares.values()) - min(roomy) <= 1


@given(st.data())
def test_racks_of_one_size_share_replicas_and_leaders_evenly(data: st.DataObject) -> None:
    racks = racks_of([data.draw(st.integers(1, 4))] * data.draw(st.integers(1, 5)))
    load = st.builds(Load, st.integers(0, 9), st.integers(0, 9))
    loads = {node: data.draw(load) for node in racks}
    replication_factor = data.draw(st.integers(1, len(racks)))
    placed = place(racks, data.draw(st.integers(1, 40)), replication_factor, present=(), loads=loads)
    for count in range(1, len(placed) + 1):
        replicas = Counter(node for one in placed[:count] for node in one)
        assert spread(replicas, list(racks)) <= 1
        assert spread(Counter(one[0] for one in placed[:count]), list(racks)) <= 2


def test_a_small_rack_has_a_replica_of_every_partition() -> None:
    racks = {1: "a", 2: "b", 3: "b", 4: "b"}
    placed = place(racks, 6, 2, present=(), loads=no_load(list(racks)))
    assert all({racks[node] for node in replicas} == {"a", "b"} for replicas in placed)
    assert spread(Counter(replicas[0] for replicas in placed), [1, 2, 3, 4]) <= 1
    assert spread(Counter(node for replicas in placed for node in replicas), [2, 3, 4]) <= 1
