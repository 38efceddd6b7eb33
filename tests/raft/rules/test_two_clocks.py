"""Promises go by the clock, silence by attention: nothing is set on one of the two and read on the other.

On a node whose loop has stood still the two differ for good. So here they differ by an hour in either
direction, and nothing may end a moment earlier or later for it.
"""

from __future__ import annotations

import pytest

from strandline.node.raft.rules.messages import MessageKind
from strandline.node.raft.rules.shared_heartbeats import HEARTBEAT
from tests.raft.harness import CONFIG, Replica

LOST = [3600.0, -3600.0]
SHORT = 0.001


def replica(lost: float, **given: object) -> Replica:
    made = Replica(terms=[1, 1], **given)  # type: ignore[arg-type]
    made.host.lost = lost
    made.group.reset_deadline()
    return made


def heard(lost: float) -> Replica:
    """A follower that has just heard its leader, node 2."""
    follower = replica(lost)
    follower.advance(10.0)
    follower.append(2, 1, (2, 1))
    return follower


def waited_for(follower: Replica) -> float:
    """Seconds, in heartbeats, until the follower asks whether it would be elected."""
    step, waited = CONFIG.heartbeat_seconds / 10, 0.0
    follower.take()
    while not follower.take(MessageKind.PRE_VOTE):
        assert waited < 60.0, "it never stands"
        follower.advance(step)
        waited += step
        follower.tick()
    return waited


@pytest.mark.parametrize("lost", LOST)
def test_a_promise_lasts_for_the_minimum_timeout_of_the_clock(lost: float) -> None:
    follower = heard(lost)
    follower.advance(CONFIG.election_min_seconds - SHORT)
    assert follower.group.contact.hears_leader()
    follower.advance(2 * SHORT)
    assert not follower.group.contact.hears_leader()


@pytest.mark.parametrize("lost", LOST)
def test_a_promise_to_a_leader_that_is_quiet_lasts_as_long(lost: float) -> None:
    follower = heard(lost)
    follower.append(2, 1, (2, 1), commit=2)
    follower.told(2, MessageKind.QUIESCE, 1, 2)
    assert follower.group.quiesced_under == 2
    for _ in range(20):
        follower.advance(CONFIG.heartbeat_seconds)
        led = follower.host.peer_heartbeat(2).followed
        follower.host.heartbeats.on_frame(2, [HEARTBEAT, 0.0, len(led.terms), led.digest])
    follower.advance(CONFIG.election_min_seconds - SHORT)
    assert follower.group.contact.hears_leader()
    follower.advance(2 * SHORT)
    assert not follower.group.contact.hears_leader()


@pytest.mark.parametrize("lost", LOST)
def test_a_lease_runs_by_the_clock(lost: float) -> None:
    leader = replica(lost)
    leader.establish()
    leader.acknowledge(2, leader.group.journal.last)
    assert leader.group.lease.holds()
    leader.advance(CONFIG.lease_seconds - SHORT)
    assert leader.group.lease.holds()
    leader.advance(2 * SHORT)
    assert not leader.group.lease.holds()


@pytest.mark.parametrize("lost", LOST)
@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.parametrize("broken", [False, True])
def test_silence_is_waited_for_by_attention(lost: float, quiet: bool, broken: bool) -> None:
    follower = heard(lost)
    if quiet:
        follower.append(2, 1, (2, 1), commit=2)
        follower.told(2, MessageKind.QUIESCE, 1, 2)
        assert follower.group.quiesced_under == 2
    if broken:
        follower.group.connections.on_disconnect(2)
    elif quiet:
        follower.group.quiescence.leave()
    waited = waited_for(follower)
    assert CONFIG.election_min_seconds - SHORT <= waited <= CONFIG.election_max_seconds + 0.1


@pytest.mark.parametrize("lost", LOST)
def test_each_further_try_waits_by_attention(lost: float) -> None:
    follower = heard(lost)
    waited_for(follower)
    assert 0.3 <= waited_for(follower) <= CONFIG.election_max_seconds + 0.1


@pytest.mark.parametrize("lost", LOST)
def test_the_first_leader_asks_again_soon_by_attention(lost: float) -> None:
    first = Replica(voters=(7, 8, 9), node=8)
    first.host.lost = lost
    first.group.first_leader = 8
    first.group.timeouts.ask_first()
    assert waited_for(first) <= CONFIG.heartbeat_seconds + 0.02
    assert waited_for(first) <= 2 * CONFIG.heartbeat_seconds + 0.02


@pytest.mark.parametrize("lost", LOST)
def test_a_group_that_waits_in_line_asks_again_by_attention(
    lost: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = heard(lost)
    monkeypatch.setattr(follower.host, "admit_campaign", lambda _: False)
    follower.advance(CONFIG.election_max_seconds + SHORT)
    follower.tick()
    assert not follower.take(MessageKind.PRE_VOTE)
    monkeypatch.undo()
    assert waited_for(follower) <= CONFIG.election_max_seconds + 0.02


@pytest.mark.parametrize(("away", "last"), [(set(), False), ({2}, False), ({2, 3}, True)])
def test_a_group_without_a_connected_majority_waits_behind_the_others(
    away: set[int], last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = heard(0.0)
    monkeypatch.setattr(follower.host, "admit_campaign", lambda _: False)
    follower.host.away |= {follower.host.node_id, *away}  # no node has a connection to itself
    follower.advance(CONFIG.election_max_seconds + SHORT)
    follower.tick()
    campaigns, other = follower.host.campaigns, follower.group.id + 1
    campaigns.wait(other, 0.0)
    assert campaigns.line == 2
    called = campaigns.next_in_line(0.0, late=False)
    assert called is not None
    assert (called[0] == other) is last


@pytest.mark.parametrize("hears", [False, True])
def test_a_group_in_line_stands_when_a_place_is_free_unless_it_heard_a_leader(
    hears: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = heard(0.0)
    monkeypatch.setattr(follower.host, "admit_campaign", lambda _: False)
    follower.advance(CONFIG.election_max_seconds + SHORT)
    follower.tick()
    monkeypatch.undo()
    waited_with = follower.group.deadline
    if hears:
        follower.append(2, 1, (2, 1))
    follower.group.timeouts.place_is_free(waited_with)
    assert bool(follower.take(MessageKind.PRE_VOTE)) is not hears
