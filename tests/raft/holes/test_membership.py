"""Holes in membership changes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from strandline.node.raft.entries import Entry
from strandline.node.raft.group import RaftGroup
from strandline.node.raft.outcome import Applied, Outcome, Overloaded
from strandline.node.raft.rules.configuration_log import ConfigurationLog
from strandline.node.raft.rules.membership_change import MembershipChange
from tests.raft.harness import GROUP, Replica, entry, membership
from tests.raft.holes.hole import hole_in
from tests.simulation.log.sabotaged_rules import SnapshotsCurrentMembers


class TwoChanges(MembershipChange):
    def under_way(self) -> bool:
        return self.state.commit < self.state.term_start


@hole_in(TwoChanges)
def test_one_change_at_a_time(group_class: type[RaftGroup]) -> None:
    leader = Replica(terms=[1], group_class=group_class)
    leader.establish()
    leader.group.remove_member(3)
    second = leader.group.remove_member(2)
    assert second.done()
    assert isinstance(second.result(), Overloaded)
    assert leader.group.voters == (1, 2)


@hole_in(TwoChanges)
def test_change_of_an_earlier_leader_is_under_way_too(group_class: type[RaftGroup]) -> None:
    log = [entry(1, 1), membership(2, 1, (1, 2, 3, 4))]
    leader = Replica(log=log, group_class=group_class)
    leader.lead()
    leader.group.term_start = 0  # Suppose this term had committed something, by other means.
    refused = leader.group.remove_member(3)
    assert refused.done()
    assert isinstance(refused.result(), Overloaded)


class ChangesBeforeItsTermCommits(MembershipChange):
    def under_way(self) -> bool:
        return self.state.change is not None or self.state.configuration.index > self.state.commit


@hole_in(ChangesBeforeItsTermCommits)
def test_no_change_before_the_term_has_committed(group_class: type[RaftGroup]) -> None:
    """Thesis §4.1 has the error, its erratum the rule: two leaders in turn could each change unseen."""
    leader = Replica(voters=(1, 2, 3, 4), terms=[1], group_class=group_class)
    leader.lead()
    refused = leader.group.add_member(5)
    assert refused.done()
    assert isinstance(refused.result(), Overloaded)


class CountsOnlyApplied(ConfigurationLog):
    def note(self, entries: Sequence[Entry]) -> None:
        pass


@hole_in(CountsOnlyApplied)
def test_newest_configuration_in_the_log_counts_after_a_restart(group_class: type[RaftGroup]) -> None:
    follower = Replica(log=[entry(1, 1), membership(2, 1, (1, 2, 3, 4))], group_class=group_class)
    follower.restart()
    assert follower.group.voters == (1, 2, 3, 4)


class ForgetsNothing(ConfigurationLog):
    def forget(self, index: int) -> None:
        pass


@hole_in(ForgetsNothing)
def test_truncated_configuration_no_longer_counts(group_class: type[RaftGroup]) -> None:
    follower = Replica(log=[entry(1, 1), membership(2, 1, (1, 2, 3, 4))], group_class=group_class)
    follower.append(2, 2, (1, 1), [2])
    assert follower.group.voters == (1, 2, 3)


@hole_in(SnapshotsCurrentMembers)
def test_snapshot_holds_the_members_of_its_index(group_class: type[RaftGroup]) -> None:
    follower = Replica(log=[entry(1, 1), membership(2, 1, (1, 2, 3, 4))], group_class=group_class)
    follower.append(2, 1, (1, 1), commit=1)
    follower.group.taking.take()
    follower.host.run_jobs()
    assert follower.host.snapshots.load(GROUP, 1).voters == (1, 2, 3)


class VotesAtOnce(MembershipChange):
    def add_member(self, node: int) -> asyncio.Future[Outcome]:
        self.propose((*self.state.voters, node), ())
        return self.host.loop.create_future()


@hole_in(VotesAtOnce)
def test_new_member_has_no_vote_before_it_has_caught_up(group_class: type[RaftGroup]) -> None:
    """With one of three away, a fourth that has nothing yet would stop the group."""
    leader = Replica(terms=[1], group_class=group_class)
    leader.establish()
    leader.group.add_member(4)
    future = leader.propose()
    leader.sync()
    leader.acknowledge(2, leader.group.journal.last)
    assert future.done()
    assert isinstance(future.result(), Applied)


class StaysWhenRemoved(MembershipChange):
    def on_applied(self, index: int, term: int) -> None:
        pass


@hole_in(StaysWhenRemoved)
def test_leader_can_remove_itself(group_class: type[RaftGroup]) -> None:
    leader = Replica(terms=[1], group_class=group_class)
    leader.establish()
    future = leader.group.remove_member(1)
    leader.sync()
    for peer in (2, 3):
        leader.acknowledge(peer, leader.group.journal.last)
    assert leader.role == "follower"
    assert isinstance(future.result(), Applied)
