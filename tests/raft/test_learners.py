"""Members that follow without a vote for as long as they are members, and voters that lose their vote."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from strandline.node.raft.outcome import Applied, Outcome, Overloaded
from strandline.node.raft.rules.commitment import Commitment
from strandline.node.raft.rules.election import Election
from strandline.node.raft.rules.membership_change import MembershipChange
from strandline.node.raft.rules.pre_vote import PreVote
from tests.raft.small_cluster import SmallCluster

LEARNS = 4


@pytest.fixture
def cluster() -> Iterator[SmallCluster]:
    """Three voters, and a node that knows no members."""
    with SmallCluster(nodes=(1, 2, 3, LEARNS), groups=(1,)) as made:
        made.voters_of = {1: (1, 2, 3), 2: (1, 2, 3), 3: (1, 2, 3), LEARNS: ()}
        made.serve()
        made.run(1.0)
        yield made


def ended(cluster: SmallCluster, *nodes: int) -> list[Outcome]:
    """The outcomes of `add_learner` of these nodes at the leader, all asked for at once."""
    outcomes: list[Outcome] = []
    leader = cluster.leader()

    def begin() -> None:
        for node in nodes:
            future = cluster.group(leader).add_learner(node)
            future.add_done_callback(lambda done: outcomes.append(done.result()))

    cluster.world.nodes[leader].call(begin)
    assert cluster.world.run_until(lambda: len(outcomes) == len(nodes), timeout=20)
    return outcomes


def members(cluster: SmallCluster, node: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    configuration = cluster.group(node).configuration
    return configuration.voters, configuration.learners


def test_a_learner_follows_and_stays_one(cluster: SmallCluster) -> None:
    cluster.load()
    assert isinstance(ended(cluster, LEARNS)[0], Applied)
    cluster.run(3.0)
    assert all(members(cluster, node) == ((1, 2, 3), (LEARNS,)) for node in (1, 2, 3, LEARNS))
    assert isinstance(ended(cluster, LEARNS)[0], Applied), "asked twice"
    cluster.stop(LEARNS)
    cluster.run(2.0)
    before = len(cluster.acked[1])
    cluster.run(1.0)
    assert len(cluster.acked[1]) > before, "no commit waits for it"
    cluster.start(LEARNS)
    cluster.settle()
    # A quiet group tells a learner that comes back what it missed.
    cluster.stop(LEARNS)
    cluster.world.nodes[cluster.leader()].call(cluster.propose, cluster.leader())
    cluster.run(3.0)
    cluster.start(LEARNS)
    assert cluster.world.run_until(cluster.level, timeout=20)


@pytest.mark.parametrize("sabotaged", [False, True], ids=["as it is", "it counts"])
def test_a_learner_makes_no_majority(
    cluster: SmallCluster, monkeypatch: pytest.MonkeyPatch, sabotaged: bool
) -> None:
    ended(cluster, LEARNS)
    cluster.run(1.0)
    leader = cluster.leader()
    if sabotaged:
        monkeypatch.setattr(Commitment, "matches", lambda self: [self.journal.last] * 3)
    for node in (1, 2, 3):
        if node != leader:
            cluster.stop(node)
    committed = cluster.group(leader).commit
    cluster.world.nodes[leader].call(cluster.propose, leader)
    cluster.run(0.3)
    assert (cluster.group(leader).commit > committed) is sabotaged
    if not sabotaged:
        cluster.run(10.0)
        assert cluster.leaders() == []
        assert cluster.group(LEARNS).term == cluster.group(leader).term


@pytest.mark.parametrize("sabotaged", [False, True], ids=["as it is", "it stands"])
def test_a_learner_does_not_stand_for_election(
    cluster: SmallCluster, monkeypatch: pytest.MonkeyPatch, sabotaged: bool
) -> None:
    ended(cluster, LEARNS)
    cluster.run(1.0)
    term = cluster.group(LEARNS).term
    for node in (1, 2, 3):
        cluster.stop(node)
    asked: list[int] = []
    if sabotaged:
        monkeypatch.setattr(Election, "may_campaign", lambda self: True)
    monkeypatch.setattr(PreVote, "start", lambda self: asked.append(self.host.node_id))
    cluster.run(10.0)
    assert (LEARNS in asked) is sabotaged
    assert cluster.group(LEARNS).term == term


def test_a_voter_gives_up_its_vote_and_follows_on(cluster: SmallCluster) -> None:
    cluster.load()
    leader = cluster.leader()
    loses = next(node for node in (1, 2, 3) if node != leader)
    assert isinstance(ended(cluster, loses)[0], Applied)
    rest = tuple(node for node in (1, 2, 3) if node != loses)
    cluster.run(2.0)
    assert members(cluster, loses) == (rest, (loses,))
    cluster.stop(loses)
    cluster.run(2.0)
    before = len(cluster.acked[1])
    cluster.run(1.0)
    assert len(cluster.acked[1]) > before, "two of two voters are there"
    cluster.start(loses)
    cluster.run(2.0)
    assert cluster.machine(loses).snapshot()
    other = next(node for node in rest if node != cluster.leader())
    cluster.stop(other)
    cluster.run(10.0)
    assert cluster.leaders() == [], "the learner is no majority with the last voter"


def goes_on(self: MembershipChange, index: int, term: int) -> None:
    """As `on_applied`, of a leader that goes on without a vote."""
    state = self.state
    if index == state.configuration.index and state.change is not None and index == self.change_index:
        self._end_change(Applied(None, index, term))


@pytest.mark.parametrize("sabotaged", [False, True], ids=["as it is", "it leads on"])
def test_a_leader_that_takes_its_own_vote_steps_down(
    cluster: SmallCluster, monkeypatch: pytest.MonkeyPatch, sabotaged: bool
) -> None:
    if sabotaged:
        monkeypatch.setattr(MembershipChange, "on_applied", goes_on)
    cluster.load()
    cluster.run(1.0)
    leader = cluster.leader()
    assert isinstance(ended(cluster, leader)[0], Applied)
    cluster.run(3.0)
    leads_without_a_vote = any(node not in members(cluster, node)[0] for node in cluster.leaders())
    assert leads_without_a_vote is sabotaged
    if not sabotaged:
        (now,) = cluster.leaders()
        assert now != leader
        assert members(cluster, now) == (tuple(node for node in (1, 2, 3) if node != leader), (leader,))


@pytest.mark.parametrize("sabotaged", [False, True], ids=["as it is", "two at once"])
def test_two_changes_are_never_under_way(
    cluster: SmallCluster, monkeypatch: pytest.MonkeyPatch, sabotaged: bool
) -> None:
    if sabotaged:
        monkeypatch.setattr(MembershipChange, "under_way", lambda self: False)
    leader = cluster.leader()
    proposed: list[bool] = []
    propose = MembershipChange.propose

    def watched(self: MembershipChange, *arguments: object) -> int:
        proposed.append(self.state.configuration.index > self.state.commit)
        return propose(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(MembershipChange, "propose", watched)
    others = [node for node in (1, 2, 3) if node != leader]
    refused: list[Outcome] = []

    def begin() -> None:
        first = cluster.group(leader).add_learner(LEARNS)
        second = cluster.group(leader).add_learner(others[0])
        for future in (first, second):
            future.add_done_callback(lambda done: refused.append(done.result()))

    cluster.world.nodes[leader].call(begin)
    cluster.run(2.0)
    assert any(proposed) is sabotaged, "a change is proposed while the one before is not committed"
    if not sabotaged:
        assert any(
            isinstance(outcome, Overloaded) and "another membership change is under way" in outcome.reason
            for outcome in refused
        )
        assert cluster.group(leader).voters == (1, 2, 3)


def test_the_last_voter_keeps_its_vote() -> None:
    with SmallCluster(nodes=(1,), groups=(1,)) as alone:
        alone.serve()
        alone.run(1.0)
        (outcome,) = ended(alone, 1)
        assert isinstance(outcome, Overloaded)
        assert "is the group's only voter and keeps its vote" in outcome.reason
        assert alone.group(1).voters == (1,)


def test_a_learner_may_become_a_voter_and_lead(cluster: SmallCluster) -> None:
    ended(cluster, LEARNS)
    leader = cluster.leader()
    done: list[Outcome] = []

    def begin() -> None:
        cluster.group(leader).add_member(LEARNS).add_done_callback(lambda one: done.append(one.result()))

    cluster.world.nodes[leader].call(begin)
    assert cluster.world.run_until(lambda: bool(done), timeout=20)
    assert isinstance(done[0], Applied)
    assert members(cluster, leader) == ((1, 2, 3, LEARNS), ())
    cluster.world.nodes[leader].call(cluster.group(leader).transfer, LEARNS)
    assert cluster.world.run_until(lambda: cluster.leaders() == [LEARNS], timeout=5)
