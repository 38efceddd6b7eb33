"""Replicas in sync, and those who wait for more than a majority of them (`min.insync.replicas`)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from strandline.node.raft.outcome import Applied
from tests.raft.harness import CONFIG, Cluster


def led() -> Cluster:
    cluster = Cluster()
    cluster.elect(1)
    cluster.advance(0.3)
    return cluster


def committed(cluster: Cluster, number: int = 1) -> int:
    """The index of an entry that is applied at the leader."""
    proposed = cluster[1].propose(number)
    cluster.settle()
    outcome = proposed.result()
    assert isinstance(outcome, Applied)
    return outcome.index


def held(cluster: Cluster, index: int, count: int = 3) -> asyncio.Future[bool]:
    return cluster[1].group.when_held(index, count)


def test_all_are_in_sync_in_a_group_that_is_quiet_and_in_one_that_works() -> None:
    cluster = led()
    cluster.advance(5.0)
    assert cluster[1].group.quiescence.quorum_is_quiesced()
    assert cluster[1].group.in_sync() == 3
    for number in range(1, 50):
        committed(cluster, number)
        assert cluster[1].group.in_sync() == 3


def test_what_all_hold_is_told_at_once() -> None:
    cluster = led()
    index = committed(cluster)
    assert held(cluster, index).result()
    assert not cluster[1].group.isr.waits


@pytest.mark.parametrize("slow", [1, 3])
def test_an_entry_is_waited_for_until_the_slowest_disk_has_it(slow: int) -> None:
    cluster = led()
    cluster.slow_disks.add(slow)
    first = cluster[1].propose(1)
    cluster.settle()
    if slow == 1:  # the leader learns of the commit from its followers alone
        assert cluster[1].group.commit == cluster[1].group.journal.last > cluster[1].group.journal.synced
    outcome = first.result()
    assert isinstance(outcome, Applied)
    two, three = held(cluster, outcome.index, 2), held(cluster, outcome.index, 3)
    assert (two.done(), three.done()) == (True, False)
    cluster.slow_disks.clear()
    cluster.settle()
    assert three.result()


def test_a_follower_that_is_cut_off_is_not_in_sync_and_not_waited_for() -> None:
    cluster = led()
    cluster.slow_disks.add(3)
    index = committed(cluster)
    waiting = held(cluster, index)
    cluster.cut(3)
    cluster.settle()
    assert waiting.result() is False
    assert cluster[1].group.in_sync() == 2
    assert cluster[1].group.behind() == [3]
    assert held(cluster, index, 2).result()
    cluster.slow_disks.clear()
    cluster.heal()
    cluster.advance(0.5)
    assert cluster[1].group.in_sync() == 3
    assert cluster[1].group.behind() == []
    assert held(cluster, index).result()


@pytest.mark.parametrize("quiet", [True, False])
def test_a_follower_that_hangs_is_in_sync_for_an_election_timeout(quiet: bool) -> None:
    cluster = led()
    if quiet:
        cluster.advance(5.0)
    cluster.mute.add(3)
    cluster.advance(CONFIG.election_max_seconds / 2)
    assert cluster[1].group.in_sync() == 3
    if not quiet:
        committed(cluster)
    cluster.advance(CONFIG.election_max_seconds)
    assert cluster[1].group.in_sync() == 2


def test_a_leader_that_is_deposed_tells_those_who_wait() -> None:
    cluster = led()
    cluster.slow_disks.add(3)
    index = committed(cluster)
    waiting: Any = held(cluster, index)
    cluster[1].group.roles.step_down()
    assert waiting.result() is False
    assert held(cluster, index).result() is False


def test_a_follower_that_answers_and_lags_by_more_than_a_pipeline_is_not_in_sync() -> None:
    cluster = led()
    for number in range(1, CONFIG.max_inflight_messages + 10):
        cluster[1].propose(number)
    cluster.settle()
    group = cluster[1].group
    group.progress[3].match = group.commit - CONFIG.max_inflight_messages
    assert group.in_sync() == 3
    group.progress[3].match -= 1
    assert group.in_sync() == 2


def test_what_is_not_committed_yet_puts_no_follower_behind() -> None:
    """All of them would be, in the moment after many batches at once."""
    cluster = led()
    for number in range(1, CONFIG.max_inflight_messages + 10):
        cluster[1].propose(number)
    assert cluster[1].group.in_sync() == 3


def test_a_newcomer_is_not_in_sync_commits_nothing_and_gives_no_lease() -> None:
    """Its folder may have had a predecessor: what it has now is not what was acknowledged."""
    cluster = led()
    group = cluster[1].group
    assert group.lease.holds()
    cluster[1].host.newcomers.add(3)
    assert group.in_sync() == 2
    cluster.slow_disks.add(2)
    proposed = cluster[1].propose(1)
    cluster.settle()
    assert group.progress[3].match == group.journal.synced == group.journal.last, "two disks have it"
    assert not proposed.done()
    assert not held(cluster, group.journal.last, 2).done()
    cluster.mute.add(2)
    cluster.advance(CONFIG.lease_seconds + CONFIG.heartbeat_seconds)
    assert not group.lease.holds()
    cluster.advance(CONFIG.election_min_seconds)
    assert cluster.leaders == []
