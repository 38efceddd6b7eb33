"""A new group is led by the node named for it, at once, in whatever order nodes come to have the group."""

from __future__ import annotations

from functools import partial
from itertools import permutations

import pytest

from strandline.node.raft.host import RaftHost
from strandline.node.raft.outcome import Applied
from strandline.node.raft.rules.messages import Message, MessageKind
from tests.raft.register_map import RegisterMap
from tests.raft.small_cluster import SmallCluster

NEW = 10
LATER = 0.05
"""Seconds from one node to the next; shorter than any election timeout."""
ROUNDS = 0.02
"""A pre-vote, a vote and their syncs, with room; less than a heartbeat."""
STEP = 0.0002
"""Between two looks; less than a sync."""


def create(
    cluster: SmallCluster, node: int, first_leader: int, *, group: int = NEW, earlier_terms: int = 0
) -> None:
    host = cluster.hosts[node]
    cluster.world.nodes[node].call(
        partial(
            host.create_group,
            group,
            RegisterMap(),
            cluster.voters,
            first_leader,
            earlier_terms=earlier_terms,
        )
    )


def leaders(cluster: SmallCluster) -> list[int]:
    groups = {node: host.groups.get(NEW) for node, host in cluster.hosts.items()}
    return [node for node, group in groups.items() if group is not None and group.is_leader]


def watch(host: RaftHost, kind: MessageKind) -> list[Message]:
    """From now on, what a node's new group sends of one kind."""
    found: list[Message] = []
    send = host.send

    def watched(peer: int, message: Message) -> bool:
        if message.group == NEW and message.kind == kind:
            found.append(message)
        return send(peer, message)

    host.send = watched  # type: ignore[method-assign]
    return found


@pytest.mark.parametrize("order", list(permutations((1, 2, 3))))
def test_it_leads_as_soon_as_a_majority_has_the_group(order: tuple[int, ...]) -> None:
    with SmallCluster() as cluster:
        cluster.serve()
        first = 3
        for node in order:
            cluster.world.call_later(LATER * order.index(node), create, cluster, node, first)
        complete = cluster.world.now + LATER * max(order.index(first), 1)
        assert cluster.world.run_until(lambda: leaders(cluster) == [first], timeout=1)
        assert complete < cluster.world.now < complete + ROUNDS
        cluster.run(1)
        assert leaders(cluster) == [first]
        assert cluster.group(first, NEW).term == 1


def test_its_terms_are_above_those_of_another_life_also_where_one_node_does_not_know_them() -> None:
    with SmallCluster() as cluster:
        cluster.serve()
        for node in cluster.voters:
            create(cluster, node, 1, earlier_terms=0 if node == 2 else 1000)
        assert cluster.world.run_until(lambda: leaders(cluster) == [1], timeout=1)
        assert cluster.group(1, NEW).term == 1001
        assert cluster.group(1, NEW).transfer(2)
        assert cluster.world.run_until(lambda: leaders(cluster) == [2], timeout=1)
        assert cluster.group(2, NEW).term == 1002


def test_terms_that_a_node_began_too_low_are_left_at_the_next_election() -> None:
    """As of a node whose release did not know the terms of another life."""
    with SmallCluster() as cluster:
        cluster.serve()
        for node in cluster.voters:
            create(cluster, node, 1, earlier_terms=0 if node == 1 else 1000)
        assert cluster.world.run_until(lambda: leaders(cluster) == [1], timeout=1)
        assert cluster.group(1, NEW).term == 1
        assert cluster.group(1, NEW).transfer(3)
        assert cluster.world.run_until(lambda: leaders(cluster) == [3], timeout=1)
        assert cluster.group(3, NEW).term == 1001


@pytest.mark.parametrize("order", list(permutations((1, 2, 3))))
def test_it_is_ready_as_soon_as_its_first_entry_is_applied(order: tuple[int, ...]) -> None:
    """A reader that asks after the leader's first message left waits for no other message either."""
    with SmallCluster() as cluster:
        cluster.serve()
        first = 3
        for node in order:
            cluster.world.call_later(LATER * order.index(node), create, cluster, node, first)
        assert cluster.world.run_until(lambda: leaders(cluster) == [first], timeout=1, step=STEP)
        elected = cluster.world.now
        group = cluster.group(first, NEW)
        assert not group.is_ready, "its first entry is on no disk yet"
        reading = cluster.world.nodes[first].spawn(group.barrier())
        assert cluster.world.run_until(lambda: group.is_ready, timeout=1)
        assert cluster.world.now < elected + ROUNDS
        assert cluster.world.run_until(reading.done, timeout=1)
        assert isinstance(reading.result(), Applied)
        assert cluster.world.now < elected + ROUNDS


def test_an_offer_that_is_lost_is_made_up_for_within_a_few_heartbeats() -> None:
    with SmallCluster() as cluster:
        cluster.serve()
        create(cluster, 2, 2)
        cluster.run(LATER)
        others = [cluster.hosts[node] for node in (1, 3)]
        sends = [host.send for host in others]
        for host in others:
            host.send = lambda *_: True  # type: ignore[method-assign]
            create(cluster, host.node_id, 2)
        cluster.run(0.002)
        for host, send in zip(others, sends, strict=True):
            host.send = send  # type: ignore[method-assign]
        assert leaders(cluster) == []
        assert cluster.world.run_until(
            lambda: leaders(cluster) == [2], timeout=3 * cluster.raft.heartbeat_seconds
        )


def test_alone_it_asks_less_and_less_often() -> None:
    with SmallCluster() as cluster:
        cluster.serve()
        asked = watch(cluster.hosts[1], MessageKind.PRE_VOTE)
        create(cluster, 1, 1)
        cluster.run(1.0)
        assert 3 <= len(asked) / 2 <= 8
        cluster.run(4.0)
        assert len(asked) / 2 < 20


def test_without_it_the_others_elect_one_of_themselves() -> None:
    with SmallCluster() as cluster:
        cluster.serve()
        create(cluster, 1, 3)
        create(cluster, 2, 3)
        assert cluster.world.run_until(lambda: leaders(cluster) != [], timeout=3)
        leader, term = leaders(cluster), cluster.group(leaders(cluster)[0], NEW).term
        create(cluster, 3, 3)
        cluster.run(2)
        assert leaders(cluster) == leader
        assert cluster.group(3, NEW).term == term


def test_one_that_is_busy_is_not_overtaken_for_some_time() -> None:
    with SmallCluster() as cluster:
        cluster.serve()
        create(cluster, 1, 3)
        create(cluster, 2, 3)
        cluster.run(cluster.raft.election_min_seconds + cluster.raft.election_max_seconds - LATER)
        create(cluster, 3, 3)
        cluster.run(ROUNDS)
        assert leaders(cluster) == [3]
        assert cluster.group(3, NEW).term == 1


def test_without_the_name_of_one_the_groups_id_chooses() -> None:
    with SmallCluster(groups=(3, 4, 5)) as cluster:
        cluster.serve()
        cluster.run(0.5)
        assert [cluster.leader(group) for group in (3, 4, 5)] == [1, 2, 3]


def test_a_group_that_had_a_leader_offers_nothing() -> None:
    with SmallCluster(groups=(NEW,)) as cluster:
        cluster.serve()
        cluster.run(1)
        [leader] = leaders(cluster)
        follower = cluster.followers(NEW)[0]
        cluster.stop(follower)
        offers: list[list[Message]] = []
        cluster.prepare[follower] = lambda host: offers.append(watch(host, MessageKind.PRE_VOTE_REPLY))
        cluster.start(follower)
        cluster.run(2)
        assert offers == [[]]
        assert leaders(cluster) == [leader]


def test_when_a_leader_dies_its_groups_are_led_again_in_turn_and_spread() -> None:
    """Everybody sees the connection break; who stands first is settled, so no vote is split."""
    with SmallCluster() as cluster:
        cluster.serve()
        dead, groups = 3, range(NEW, NEW + 6)
        for group in groups:
            for node in cluster.hosts:
                create(cluster, node, dead, group=group)
        cluster.run(1)
        assert all(cluster.group(dead, group).is_leader for group in groups)
        died = cluster.world.now
        cluster.stop(dead)
        alive = [1, 2]

        def led() -> list[int]:
            return [node for group in groups for node in alive if cluster.group(node, group).is_leader]

        assert cluster.world.run_until(lambda: len(led()) == len(groups), timeout=2)
        raft = cluster.raft
        assert cluster.world.now - died < raft.election_min_seconds + raft.heartbeat_seconds
        assert led() == [node for group in groups for node in [alive[group % 2]]]
        assert {cluster.group(node, group).term for node in alive for group in groups} == {2}


@pytest.mark.parametrize("again", [False, True])
def test_one_that_has_the_group_later_than_its_leader_asked_for_it_is_brought_up_at_once(again: bool) -> None:
    """A leader asks one that does not answer ever less often; it says so itself when it is there."""
    with SmallCluster() as cluster:
        cluster.serve()
        nodes = (1, 2, 3) if again else (1, 2)
        for node in nodes:
            create(cluster, node, 1)
        cluster.run(1.0)
        assert leaders(cluster) == [1]
        if again:
            cluster.stop(3)
            cluster.run(1.0)
            cluster.start(3)
        asked = watch(cluster.hosts[1], MessageKind.APPEND)
        cluster.run(4.0)
        assert 3 < len(asked) < 12
        create(cluster, 3, 1)
        cluster.run(ROUNDS)
        late = cluster.group(3, NEW)
        assert (late.leader, late.applied) == (1, cluster.group(1, NEW).applied)
        assert late.applied > 0


def test_new_entries_do_not_end_the_heartbeat_that_stands_for_a_group() -> None:
    with SmallCluster(groups=(NEW,)) as cluster:
        cluster.serve()
        cluster.run(1.0)
        leader, followers = cluster.leader(NEW), cluster.followers(NEW)
        shared = [cluster.hosts[leader].peer_heartbeat(node).heartbeat() for node in followers]
        assert shared == [cluster.hosts[leader].peer_heartbeat(followers[0]).heartbeat()] * 2
        assert shared[0][0] == 1
        for _ in range(20):
            cluster.world.nodes[leader].call(cluster.propose, leader, NEW)
            cluster.run(0.01)
            assert [cluster.hosts[leader].peer_heartbeat(node).heartbeat() for node in followers] == shared
            assert [cluster.group(node, NEW).quiesced_under for node in followers] == [leader] * 2
        cluster.run(0.5)
        assert not any(host.ticker.active for host in cluster.hosts.values())
        applied = cluster.group(leader, NEW).applied
        assert [cluster.group(node, NEW).applied for node in followers] == [applied] * 2
