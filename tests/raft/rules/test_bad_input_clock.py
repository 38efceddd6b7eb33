"""Clocks that jump under load: nothing is lost, no read is stale, and the service comes back."""

from __future__ import annotations

import pytest

from strandline.node.raft.rules.messages import Message, MessageKind
from tests.raft.small_cluster import SmallCluster


@pytest.mark.parametrize("seconds", [0.15, 5.0, -0.15, -5.0])
@pytest.mark.parametrize("whose", ["leader", "followers", "all"])
def test_a_clock_that_jumps_loses_nothing_and_makes_no_read_stale(seconds: float, whose: str) -> None:
    with SmallCluster(groups=(1,)) as cluster:
        cluster.serve()
        cluster.load(pause=0.02)
        cluster.run(1.0)
        for _ in range(3):
            leaders = cluster.leaders()
            for node in (1, 2, 3):
                if whose == "all" or (node in leaders) is (whose == "leader"):
                    cluster.world.nodes[node].jump_clock(seconds)
            cluster.run(1.0 + abs(seconds) / 2)
        cluster.run(3.0)
        assert cluster.reads > 50
        cluster.settle(seconds=20.0)
        assert (cluster.failed, cluster.fatal) == ([], {})


def test_clocks_that_jump_back_and_forth_at_random(caplog: pytest.LogCaptureFixture) -> None:
    with SmallCluster() as cluster:
        cluster.serve()
        cluster.load()
        chance = cluster.world.rng("jumps")
        for _ in range(15):
            cluster.run(0.4 * chance.random())
            cluster.world.nodes[chance.randint(1, 3)].jump_clock(chance.uniform(-2.0, 2.0))
        cluster.run(4.0)
        cluster.settle(seconds=20.0)
        assert any("or the clock jumped" in line for line in caplog.messages)


@pytest.mark.parametrize("seconds", [0.1, 2.0])
def test_a_clock_that_was_set_back_while_the_leader_slept_leaves_no_lease(seconds: float) -> None:
    """No time seems to have passed, but the others have a new leader: the old one must not answer reads."""
    with SmallCluster(groups=(1,)) as cluster:
        cluster.serve()
        cluster.load()
        cluster.run(1.0)
        leader = cluster.leader()
        sim = cluster.world.nodes[leader]
        cluster.world.network.isolate(leader, hold=True)
        sim.pause()
        cluster.run(2.0)
        sim.jump_clock(-2.0 - seconds)
        assert len(cluster.leaders()) == 1
        sim.resume()
        cluster.run(0.02)
        assert len(cluster.leaders()) == 2, "the old leader does not know yet"
        cluster.run(0.5)
        cluster.world.network.heal_all()
        cluster.run(1.0)
        cluster.settle()


def test_time_never_runs_backward_for_a_group() -> None:
    with SmallCluster(groups=(1,)) as cluster:
        cluster.serve()
        host = cluster.hosts[1]
        seen = host.now()
        for seconds in (-5.0, 3.0, -0.01, -100.0):
            cluster.world.nodes[1].jump_clock(seconds)
            assert host.now() >= seen
            seen = host.now()
        cluster.run(1.0)
        assert host.now() > seen


@pytest.mark.parametrize("later_term", [False, True], ids=["leaders term", "later term"])
@pytest.mark.parametrize("kind", [MessageKind.VOTE, MessageKind.PRE_VOTE])
def test_after_a_jump_the_first_frame_is_not_judged_by_the_old_promises(
    kind: MessageKind, later_term: bool
) -> None:
    """The leader's lease stands on its followers' word not to vote: a jump must not let them forget it,
    not even in the moment before the timer notices the jump."""
    with SmallCluster(groups=(1,)) as cluster:
        cluster.serve()
        cluster.load()
        cluster.run(1.0)
        follower, other = cluster.followers()
        host, group = cluster.hosts[follower], cluster.group(follower)
        if later_term:
            told = [1, int(MessageKind.VOTE_REPLY), group.term + 1, False]
            host.peer_traffic.on_frame(other, [0, [told]])
        term, last = group.term, group.journal.last
        cluster.world.nodes[follower].jump_clock(5.0)
        fields = [last, term, False] if kind is MessageKind.VOTE else [last, term, 7.5]
        sent: list[object] = []
        host.send_when_synced = lambda peer, message: sent.append(message)  # type: ignore[method-assign]
        host.peer_traffic.on_frame(other, [0, [[1, int(kind), term + 1, *fields]]])
        assert group.term == term
        assert sent in ([], [(1, MessageKind.PRE_VOTE_REPLY, term, False, term + 2, 7.5)])


@pytest.mark.parametrize("seconds", [0.3, 5.0])
def test_a_follower_whose_clock_has_jumped_waits_as_long_as_any_before_it_stands(seconds: float) -> None:
    """Its own vote is a vote: the leader's lease stands on it, too. And time that was lost stays lost."""
    with SmallCluster(groups=(1,)) as cluster:
        cluster.serve()
        cluster.load()
        cluster.run(1.0)
        leader, follower = cluster.leader(), cluster.followers()[0]
        asked: list[float] = []
        send = cluster.hosts[follower].send

        def watched(peer: int, message: Message) -> bool:
            if message.kind in (MessageKind.PRE_VOTE, MessageKind.VOTE):
                asked.append(cluster.world.now)
            return send(peer, message)

        cluster.hosts[follower].send = watched  # type: ignore[method-assign]
        for _ in range(2):
            cluster.world.nodes[follower].jump_clock(seconds)
            cluster.run(1.0)
            assert asked == []
        cluster.world.network.cut(leader, follower, both=False)
        silent = cluster.world.now
        cluster.run(1.5)
        assert asked
        assert asked[0] - silent >= cluster.raft.election_min_seconds - cluster.raft.heartbeat_seconds


def test_jumps_in_quick_succession_do_not_end_a_promise() -> None:
    """The second one is not to be judged by when the leader was heard, but by the promise made anew."""
    with SmallCluster(groups=(1,)) as cluster:
        cluster.serve()
        cluster.load()
        cluster.run(1.0)
        follower = cluster.followers()[0]
        group = cluster.group(follower)
        cluster.stop(cluster.leader())
        for _ in range(4):
            cluster.world.nodes[follower].jump_clock(0.3)
            cluster.run(0.06)
            assert group.contact.hears_leader(), "a quarter of a second at most has passed"
