"""What keeps a node with thousands of groups from deposing its leaders because it is busy."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.node.raft import campaigns as campaigns_module
from strandline.node.raft import group_services, log_retention
from strandline.node.raft.attention import SLACK_SECONDS, Attention
from strandline.node.raft.campaigns import AT_ONCE, Campaigns
from strandline.node.raft.group import RaftGroup
from strandline.node.raft.host import RaftHost
from strandline.node.raft.log_retention import LogRetention
from strandline.node.raft.pysyncobj_seam import due_by
from strandline.node.raft.rank import Rank
from strandline.node.raft.sweeps import SLICE, Sweeps
from tests.raft.harness import Cluster
from tests.raft.register_map import RegisterMap
from tests.raft.small_cluster import BUSY, SmallCluster
from tests.runtime.manual_loop import manual_loop
from tests.simulation.node import SimNode

TICK = 0.05


def _note(seen: list[int], number: int, _: RaftGroup) -> None:
    seen.append(number)


def test_time_in_which_the_loop_stood_still_is_no_silence() -> None:
    attention = Attention(10.0, TICK)
    attention.ticked(10.05)
    assert attention.clock(10.05) == pytest.approx(10.05)
    assert attention.since(10.0, 10.05) == pytest.approx(0.05)
    # Two seconds without a tick count as one tick, while they last and afterwards.
    assert attention.clock(12.05) == pytest.approx(10.05 + TICK + SLACK_SECONDS)
    assert attention.ticked(12.05) == pytest.approx(2.0 - TICK - SLACK_SECONDS)
    assert attention.since(10.05, 12.05) == pytest.approx(TICK + SLACK_SECONDS)
    assert attention.since(12.05, 12.05) == 0.0
    assert attention.since(float("-inf"), 12.05) == float("inf")


def test_a_leader_is_always_due_and_another_once_its_deadline_comes() -> None:
    cluster = Cluster()
    cluster.elect(1)
    leader, early, late = (cluster[node].group for node in (1, 2, 3))
    leader.deadline, early.deadline, late.deadline = 30.0, 20.0, 30.0
    assert due_by([late, early, leader], 20.0) == [leader]
    assert due_by([late, early, leader], 20.1) == [early, leader]


@given(st.lists(st.floats(0.0, 3.0), min_size=1, max_size=40))
def test_attention_is_never_more_than_the_time_nor_than_the_ticks(pauses: list[float]) -> None:
    now = started = 5.0
    attention = Attention(now, TICK)
    moments = [(now, 0)]
    for ticks, pause in enumerate(pauses, 1):
        before = attention.clock(now)
        now += pause
        assert attention.clock(now) >= before
        attention.ticked(now)
        moments.append((now, ticks))
    for moment, ticks in moments:
        since = attention.since(moment, now)
        assert -1e-9 <= since <= now - moment + 1e-9
        assert since <= (len(pauses) - ticks) * (TICK + SLACK_SECONDS) + 1e-9
    assert attention.clock(now) - started == pytest.approx(attention.since(started, now))


def test_partitions_stand_a_few_at_a_time_and_what_others_wait_for_at_once() -> None:
    campaigns = Campaigns(0.1)
    assert all(campaigns.admit(group, Rank.PARTITION, 1.0, late=False) for group in range(AT_ONCE))
    assert not campaigns.admit(1000, Rank.PARTITION, 1.0, late=False)
    assert campaigns.admit(5, Rank.PARTITION, 1.0, late=False), "it has its place"
    assert campaigns.admit(1001, Rank.COORDINATOR, 1.0, late=False)
    assert campaigns.admit(0, Rank.CONTROLLER, 1.0, late=False)
    assert not campaigns.admit(1002, Rank.PARTITION, 1.0, late=True)
    campaigns.ended(7)
    assert campaigns.admit(1000, Rank.PARTITION, 1.0, late=False)
    assert not campaigns.admit(1002, Rank.PARTITION, 1.05, late=False)
    assert not campaigns.admit(1002, Rank.PARTITION, 1.05, late=True), "far more than may stand then"
    # An election that does not end keeps nobody waiting for good.
    assert campaigns.admit(1002, Rank.PARTITION, 1.1, late=False)


def test_groups_without_a_place_wait_in_line_in_the_order_in_which_they_asked() -> None:
    campaigns = Campaigns(0.1)
    for group in range(AT_ONCE):
        assert campaigns.admit(group, Rank.PARTITION, 1.0, late=False)
    for group in (1000, 1001, 1002):
        assert not campaigns.admit(group, Rank.PARTITION, 1.0, late=False)
        campaigns.wait(group, 2.0)
    campaigns.wait(1000, 3.0)
    assert campaigns.next_in_line(1.0, late=False) is None, "no place is free"
    campaigns.ended(7)
    assert campaigns.next_in_line(1.0, late=True) is None, "far more than may stand then"
    assert campaigns.next_in_line(1.0, late=False) == (1000, 3.0), "who asks again keeps its place in line"
    assert campaigns.admit(1000, Rank.PARTITION, 1.0, late=False)
    assert campaigns.next_in_line(1.05, late=False) is None
    assert campaigns.next_in_line(1.1, late=False) == (1001, 2.0), "an election that does not end"
    assert campaigns.admit(1001, Rank.PARTITION, 1.1, late=False)
    assert campaigns.admit(1002, Rank.PARTITION, 1.1, late=False)
    assert not campaigns.line, "a group that stands waits no more"


def test_a_group_that_stands_in_vain_gives_its_place_to_those_in_line() -> None:
    campaigns = Campaigns(0.1)
    for now in (1.0, 1.05, 1.1, 1.15):
        for group in range(AT_ONCE):
            assert campaigns.admit(group, Rank.PARTITION, now, late=False), "nothing else wants its place"
    campaigns.wait(1000, 2.0)
    assert not campaigns.admit(0, Rank.PARTITION, 1.15, late=False)
    assert campaigns.next_in_line(1.15, late=False) == (1000, 2.0)
    assert campaigns.admit(1000, Rank.PARTITION, 1.15, late=False)
    campaigns.wait(0, 2.0)
    assert campaigns.admit(1000, Rank.PARTITION, 1.2, late=False), "it has had its place for a short time"


def test_groups_that_cannot_win_are_called_last() -> None:
    campaigns = Campaigns(0.1)
    campaigns.wait(1000, 2.0, hopeless=True)
    campaigns.wait(1001, 2.0, hopeless=True)
    campaigns.wait(1002, 2.0)
    campaigns.wait(1001, 3.0)
    assert campaigns.line == 3
    assert campaigns.next_in_line(1.0, late=False) == (1002, 2.0)
    assert campaigns.next_in_line(1.0, late=False) == (1001, 3.0), "a majority of it is connected now"
    campaigns.wait(1001, 4.0)
    campaigns.wait(1001, 5.0, hopeless=True)
    assert campaigns.next_in_line(1.0, late=False) == (1000, 2.0)
    assert campaigns.admit(1001, Rank.PARTITION, 1.0, late=False)
    assert not campaigns.line


@pytest.fixture
def few_places(monkeypatch: pytest.MonkeyPatch) -> int:
    """Places on a node, so few that a cluster of some hundred groups does with them."""
    places = AT_ONCE // 4
    monkeypatch.setattr(campaigns_module, "AT_ONCE", places)
    return places


class Replicas(SmallCluster):
    """Groups with three voters of five: every other one has a majority on nodes 4 and 5."""

    def _main(self, sim: SimNode) -> None:
        host = self.hosts[sim.id] = self.make_host(sim)
        host.open()
        for group in self.group_ids:
            voters = ((1, 2, 3), (1, 4, 5), (1, 2, 3), (2, 4, 5))[group % 4]
            if sim.id in voters:
                host.create_group(group, RegisterMap(), voters, first_leader=voters[-1])
        sim.spawn(host.start())


def test_groups_that_cannot_win_keep_no_place_from_those_that_can(few_places: int) -> None:
    with Replicas(nodes=(1, 2, 3, 4, 5), groups=tuple(range(4, 604))) as cluster:
        cluster.serve()
        cluster.stop(4)
        cluster.stop(5)
        cluster.run(2.0)
        for node in (1, 2):
            assert cluster.hosts[node].campaigns.line > few_places
        cluster.stop(3)
        can_win = [group for group in cluster.group_ids if group % 2 == 0]
        assert not any(map(cluster.leaders, can_win))
        assert cluster.world.run_until(lambda: all(map(cluster.leaders, can_win)), timeout=4.0)


class CountsQuestions(RaftHost):
    """Counts how often its groups ask whether they may stand, and how many stand at once."""

    asked = most = 0

    def admit_campaign(self, group: RaftGroup) -> bool:
        self.asked += 1
        admitted = super().admit_campaign(group)
        self.most = max(self.most, len(self.campaigns._since))
        return admitted


def test_the_groups_of_a_node_that_died_stand_one_after_the_other(few_places: int) -> None:
    with SmallCluster(groups=tuple(range(3, 1203, 3)), host_class=CountsQuestions) as cluster:
        cluster.serve()
        cluster.run(1.0)
        dead = cluster.leader(3)
        led = sum(group.is_leader for group in cluster.hosts[dead].groups.values())
        assert led == 400
        left = [host for node, host in cluster.hosts.items() if node != dead]
        for host in left:
            assert isinstance(host, CountsQuestions)
            host.asked = host.most = 0
        cluster.stop(dead)
        assert cluster.world.run_until(cluster.all_led, timeout=0.6)
        for host in left:
            assert isinstance(host, CountsQuestions)
            assert host.most == few_places
            assert host.asked == 2 * led // len(left) - few_places, "each once, and those in line once more"
            assert not host.campaigns.line


def test_a_place_that_is_held_for_too_long_is_given_away_by_the_timer() -> None:
    with SmallCluster() as cluster:
        cluster.serve()
        cluster.run(1.0)
        host = cluster.hosts[1]
        for group in range(1000, 1000 + AT_ONCE):
            assert host.campaigns.admit(group, Rank.PARTITION, host.now(), late=False)
        host.campaigns.wait(2000, 0.0)
        cluster.run(BUSY.election_max_seconds - 2 * TICK)
        assert host.campaigns.line
        cluster.run(4 * TICK)
        assert not host.campaigns.line


def test_a_group_that_is_removed_holds_no_place() -> None:
    with SmallCluster() as cluster:
        cluster.serve()
        host = cluster.hosts[cluster.followers()[0]]
        for remove, group in ((host.remove_group, 1), (host.leave_group, 2)):
            assert host.campaigns.admit(group, Rank.PARTITION, host.now(), late=False)
            remove(group)
        for group in range(1000, 1000 + AT_ONCE):
            assert host.campaigns.admit(group, Rank.PARTITION, host.now(), late=False)


def test_a_walk_takes_turns_with_the_loop_and_the_next_one_waits_for_it() -> None:
    loop = manual_loop()
    sweeps = Sweeps(loop)
    groups = [cast(RaftGroup, number) for number in range(2 * SLICE + 1)]
    seen: list[tuple[str, RaftGroup]] = []
    sweeps.begin(lambda group: seen.append(("gone", group)), groups)
    assert len(seen) == SLICE
    sweeps.begin(lambda group: seen.append(("back", group)), groups)
    assert len(seen) == SLICE
    loop.run()
    assert seen == [(what, group) for what in ("gone", "back") for group in groups]


def test_the_order_of_walks_does_not_depend_on_when_they_begin() -> None:
    loop, rng = manual_loop(), random.Random(3)
    sweeps = Sweeps(loop)
    seen: list[int] = []
    for number in range(6):
        sweeps.begin(partial(_note, seen, number), [cast(RaftGroup, 0)] * 100)
        if rng.random() < 0.5:
            loop.run()
    loop.run()
    assert seen == [number for number in range(6) for _ in range(100)]


def test_a_node_that_stops_hands_its_groups_over_a_part_at_a_time() -> None:
    with SmallCluster(groups=tuple(range(3, 603, 3))) as cluster:  # all led by one node at first
        cluster.serve()
        cluster.run(1.0)
        leader = cluster.leader(3)
        host = cluster.hosts[leader]
        assert sum(group.is_leader for group in host.groups.values()) == 200
        stopping = cluster.world.nodes[leader].spawn(host.leader_drain.hand_over(5.0))
        most = 0
        while not stopping.done():
            cluster.run(0.0005)
            most = max(most, sum(group.transfer_target is not None for group in host.groups.values()))
        assert 32 < most <= 64
        assert not any(group.is_leader for group in host.groups.values())
        assert cluster.all_led()


class TellsWhenItLooks(LogRetention):
    def run(self) -> None:
        host = self._host
        assert isinstance(host, CountsMoved)
        host.moved, host.looking = 0, True
        super().run()
        host.looking = False
        host.most = max(host.most, host.moved)


class CountsMoved(RaftHost):
    """Counts the snapshots that one look at the log's segments begins."""

    most = moved = 0
    looking = False

    def guard(self, group: RaftGroup, call: Callable[..., object], *args: Any) -> None:
        self.moved += self.looking and call == group.taking.take
        super().guard(group, call, *args)


def test_groups_that_pin_the_oldest_segment_are_snapshotted_a_part_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_retention, "_MOVED_AT_ONCE", 5)
    monkeypatch.setattr(group_services, "LogRetention", TellsWhenItLooks)
    raft = replace(BUSY, snapshot_entries=10_000)
    with SmallCluster(groups=tuple(range(1, 25)), raft=raft, host_class=CountsMoved) as cluster:
        cluster.serve()
        cluster.load(pause=0.05, size=200)
        cluster.run(10.0)
        cluster.unload()
        cluster.run(20.0)
        for host in cluster.hosts.values():
            assert isinstance(host, CountsMoved)
            assert host.most == 5
            assert host.wal.first_segment > 1
            assert host.wal.current_segment - host.wal.first_segment <= raft.max_wal_segments
