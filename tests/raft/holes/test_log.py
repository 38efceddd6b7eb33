"""Holes in how the log is kept, replicated and committed."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

import pytest

from strandline.node.raft.entries import EntryKind
from strandline.node.raft.group import RaftGroup
from strandline.node.raft.outcome import Applied
from strandline.node.raft.pysyncobj_seam import LEADER
from strandline.node.raft.rules.applying import Applying
from strandline.node.raft.rules.dispatch import Dispatch
from strandline.node.raft.rules.election import Election
from strandline.node.raft.rules.following import Following
from strandline.node.raft.rules.leader_contact import LeaderContact
from strandline.node.raft.rules.messages import (
    AppendEntries,
    AppendReply,
    Message,
    MessageKind,
    SnapshotChunk,
)
from strandline.node.raft.rules.peer_connections import PeerConnections
from strandline.node.raft.rules.progress import Progress
from strandline.node.raft.rules.replica_state import SafetyViolation
from strandline.node.raft.rules.replication import Replication
from strandline.node.raft.rules.roles import Roles
from strandline.node.raft.snapshots.receiving import SnapshotReceiving
from strandline.node.raft.snapshots.taking import SnapshotTaking
from tests.raft.group_with import group_of
from tests.raft.harness import CONFIG, Cluster, Replica
from tests.raft.holes.hole import hole, hole_in
from tests.simulation.log.sabotaged_rules import CommitsToOwnEnd, CountsItselfBeforeSync

APPEND: Final = MessageKind.APPEND
APPEND_REPLY: Final = MessageKind.APPEND_REPLY


# The journal is written and never synced.


@hole_in(CountsItselfBeforeSync)
def test_leader_does_not_count_itself_before_the_sync(group_class: type[RaftGroup]) -> None:
    leader = Replica(terms=[1], group_class=group_class)
    leader.lead()
    leader.acknowledge(2, 2)
    assert leader.group.commit == 0
    leader.sync()
    assert leader.group.commit == 2


class AnswersAtOnce(Following):
    def send_ack(self) -> None:
        if self.ack is not None:
            peer, term, match, sent_at = self.ack
            self.ack = None
            self.host.send(peer, AppendReply(self.state.id, APPEND_REPLY, term, True, match, 0, 0, sent_at))


@hole_in(AnswersAtOnce)
def test_follower_does_not_acknowledge_before_the_sync(group_class: type[RaftGroup]) -> None:
    follower = Replica(terms=[1], group_class=group_class)
    acknowledged = max((reply.fields[1] for reply in follower.append(2, 1, (1, 1), [1, 1])), default=0)
    follower.restart()
    assert len(follower.terms) >= acknowledged


class KeepsTheVoteInMemory(RaftGroup):
    def set_term(self, term: int, vote: int | None) -> None:
        self.term, self.vote = term, vote


@hole(RaftGroup, KeepsTheVoteInMemory)
def test_vote_survives_a_restart(group_class: type[RaftGroup]) -> None:
    voter = Replica(terms=[1], group_class=group_class)
    granted = []
    for candidate in (2, 3):
        voter.advance(CONFIG.election_min_seconds)
        replies = voter.told(candidate, MessageKind.VOTE, 2, 1, 1, False)
        voter.sync()
        granted += [reply.peer for reply in (*replies, *voter.take()) if reply.fields[0]]
        voter.restart()
    assert granted == [2]


class SendsItsVoteAtOnce(Election):
    def on_vote(self, peer: int, *fields: Any) -> None:
        self.host.send_when_synced = self.host.send  # type: ignore[method-assign,assignment]
        super().on_vote(peer, *fields)


@hole_in(SendsItsVoteAtOnce)
def test_vote_is_durable_before_it_is_sent(group_class: type[RaftGroup]) -> None:
    voter = Replica(terms=[1], group_class=group_class)
    voter.advance(CONFIG.election_min_seconds)
    assert voter.told(2, MessageKind.VOTE, 2, 1, 1, False) == []


class BelievesItsOldCommitIndex(RaftGroup):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.commit = self.journal.last


@hole(RaftGroup, BelievesItsOldCommitIndex)
def test_commit_index_from_before_a_crash_is_not_believed(group_class: type[RaftGroup]) -> None:
    follower = Replica(terms=[1, 1], group_class=group_class)
    follower.append(2, 1, (2, 1), [1], commit=3)
    follower.restart()
    follower.turn()
    assert (follower.group.commit, follower.machine.applied) == (0, {})


class TrimsInPlace(SnapshotTaking):
    def drop_covered(self, index: int) -> None:
        kept = list(self.state.journal.after(index))
        members = self.configuration_log.at(index)
        term = self.state.journal.term_at(index) or 0
        self.state.journal.reset(index, term, members.voters, members.learners)
        for entry in kept:
            self.state.journal.add(*entry)


@hole_in(TrimsInPlace)
def test_crash_while_the_log_is_trimmed_loses_nothing(group_class: type[RaftGroup]) -> None:
    for survives in range(4):
        follower = Replica(terms=[1] * 5, group_class=group_class)
        follower.append(2, 1, (5, 1), commit=3)
        synced = len(follower.host.records)
        follower.group.taking.take()
        follower.host.run_jobs()
        follower.turn()
        follower.host.synced_lsn = min(synced + survives, len(follower.host.records))
        follower.restart()
        assert follower.group.journal.last == 5


# The append handler deletes what matches.


class DeletesWhatMatches(Following):
    def first_new(self, entries: Any) -> int:
        return 0


@hole_in(DeletesWhatMatches)
def test_only_conflicting_entries_are_deleted(group_class: type[RaftGroup]) -> None:
    follower = Replica(group_class=group_class)
    follower.append(2, 1, (0, 0), [1, 1, 1])
    follower.sync()
    assert follower.take()[-1].fields[:2] == (True, 3)
    follower.append(2, 1, (0, 0), [1])  # Delayed, or doubled by the network.
    follower.sync()
    assert follower.durable_terms == [1, 1, 1], "an acknowledged entry is gone"


class DeletesWhatIsCommitted(Following):
    def truncate(self, index: int) -> None:
        self.state.drop_from(index)


@hole_in(DeletesWhatIsCommitted)
def test_committed_entries_are_never_deleted(group_class: type[RaftGroup]) -> None:
    follower = Replica(terms=[1, 1], group_class=group_class)
    follower.append(2, 1, (2, 1), commit=2)
    with pytest.raises(SafetyViolation, match="committed entry 2"):
        follower.group.following.truncate(2)


# A follower commits to the end of its own log.


@hole_in(CommitsToOwnEnd)
def test_follower_commits_only_what_the_message_proved(group_class: type[RaftGroup]) -> None:
    follower = Replica(terms=[1, 1, 1], group_class=group_class)
    follower.append(2, 2, (1, 1), commit=3)
    assert follower.group.commit == 1, "entries 2 and 3 may be another leader's"


class CommitsWithSnapshotChunks(SnapshotReceiving):
    def on_chunk(self, peer: int, chunk: SnapshotChunk) -> None:
        super().on_chunk(peer, chunk)
        self.state.commit = max(self.state.commit, min(chunk.snapshot_index, self.state.journal.last))


@hole_in(CommitsWithSnapshotChunks)
def test_chunk_of_a_snapshot_commits_nothing(group_class: type[RaftGroup]) -> None:
    follower = Replica(terms=[1, 1, 1], group_class=group_class)
    follower.told(2, MessageKind.SNAPSHOT, 2, 9, 2, 0, 100, b"digest", b"chunk", 0.0)
    assert (follower.group.commit, follower.machine.applied) == (0, {})


# Replies carry no term; an append of a lower term gets no answer.


class CountsOldReplies(Dispatch):
    def is_current(self, message: Message) -> bool:
        return True


@hole_in(CountsOldReplies)
def test_reply_counts_only_in_its_own_term(group_class: type[RaftGroup]) -> None:
    """Entry 2 was acknowledged to this node's leadership of term 1, and overwritten since."""
    leader = Replica(terms=[1, 2], term=2, group_class=group_class)
    leader.lead()
    leader.sync()
    leader.acknowledge(2, 3, term=1)
    assert leader.group.progress[2].match == 0
    assert leader.group.commit == 0


class SaysNothingToOldLeaders(Dispatch):
    def answer_stale(self, peer: int) -> None:
        pass


@hole_in(SaysNothingToOldLeaders)
def test_append_of_a_lower_term_is_answered_with_the_term(group_class: type[RaftGroup]) -> None:
    follower = Replica(terms=[1], term=5, group_class=group_class)
    assert [(reply.peer, reply.term) for reply in follower.append(2, 4, (1, 1))] == [(2, 5)]


class IgnoresHigherTerms(Roles):
    def adopt_term(self, term: int) -> None:
        if self.state.role != LEADER:
            super().adopt_term(term)


@hole_in(IgnoresHigherTerms)
def test_leader_that_sees_a_higher_term_steps_down(group_class: type[RaftGroup]) -> None:
    leader = Replica(terms=[1], group_class=group_class)
    leader.establish()
    leader.told(2, APPEND_REPLY, 9, False, 0, 0, 0, 0.0)
    assert (leader.role, leader.group.term) == ("follower", 9)


class ObeysAnother(LeaderContact):
    def follow(self, peer: int) -> None:
        if self.state.role == LEADER:
            group_of(self).roles.step_down()
        super().follow(peer)


@hole_in(ObeysAnother)
def test_second_leader_of_one_term_stops_the_replica(group_class: type[RaftGroup]) -> None:
    leader = Replica(terms=[1], group_class=group_class)
    term = leader.establish()
    with pytest.raises(SafetyViolation, match="both lead term 2"):
        leader.append(2, term, (1, 1), [term])


# An acknowledgement sets `nextIndex` back.


class SendsTwice(Replication):
    def on_append_reply(self, peer: int, progress: Progress, reply: AppendReply) -> None:
        super().on_append_reply(peer, progress, reply)
        if reply.accepted and peer in self.state.progress:
            self.state.progress[peer].next = reply.log_index + 1


@hole_in(SendsTwice)
def test_acknowledgement_does_not_send_again_what_is_under_way(group_class: type[RaftGroup]) -> None:
    leader = Replica(terms=[1], group_class=group_class)
    leader.establish()
    for number in range(4):
        leader.propose(number)
        leader.turn()
    assert len([sent for sent in leader.take(APPEND) if sent.peer == 2]) == 4
    leader.acknowledge(2, 3)
    leader.acknowledge(2, 4)
    assert [sent for sent in leader.take(APPEND) if sent.peer == 2] == []


class GoesOnWhereItWas(PeerConnections):
    def _restart(self, peer: int, progress: Progress) -> None:
        progress._inflight.clear()


@hole_in(GoesOnWhereItWas)
def test_reconnect_starts_after_what_is_known_to_match(group_class: type[RaftGroup]) -> None:
    leader = Replica(terms=[1], group_class=group_class)
    leader.establish()
    leader.propose()
    leader.turn()  # Sent, and lost with the connection.
    leader.take()
    leader.group.connections.on_disconnect(2)
    leader.group.connections.on_connect(2)
    leader.turn()
    assert [(sent.fields[0], sent.fields[3] != b"") for sent in leader.take(APPEND) if sent.peer == 2] == [
        (2, True)
    ]


# Appends leave on the heartbeat.


class WaitsForTheHeartbeat(Replication):
    pumped_at = 0.0

    def pump(self) -> None:
        if self.host.now() - self.pumped_at >= self.settings.heartbeat_seconds:
            self.pumped_at = self.host.now()
            super().pump()


@hole_in(WaitsForTheHeartbeat)
def test_command_is_committed_without_waiting_for_a_timer(group_class: type[RaftGroup]) -> None:
    cluster = Cluster(group_class=group_class)
    cluster.elect(1)
    cluster.advance(0.05)
    for number in range(3):
        future = cluster[1].propose(number)
        cluster.settle()  # Turns, syncs and messages; no time passes.
        assert future.done()
        assert isinstance(future.result(), Applied)


class WalksBackOneByOne(Following):
    def reject(self, peer: int, message: AppendEntries) -> None:
        previous = message.previous
        reply = AppendReply(
            self.state.id, APPEND_REPLY, self.state.term, False, previous, previous - 1, 0, message.sent_at
        )
        self.host.send_when_synced(peer, reply)


@hole_in(WalksBackOneByOne)
def test_logs_that_parted_long_ago_meet_in_a_few_messages(group_class: type[RaftGroup]) -> None:
    logs = {1: [1] + [3] * 200, 2: [1] + [2] * 200, 3: [1] + [3] * 200}
    cluster = Cluster(logs=logs, group_class=group_class)
    cluster.elect(1)
    assert cluster[2].terms == cluster[1].terms
    history = cluster[2].host.history
    assert sum(1 for sent in history if sent.kind == APPEND_REPLY and not sent.fields[0]) < 5


# A callback that raises makes its entry apply again.


class AppliesBeforeItCounts(Applying):
    def run(self) -> None:
        for command, index, term in self.state.journal.after(
            self.state.applied, self.state.commit - self.state.applied
        ):
            if command[0] == EntryKind.REGULAR:
                self.state.machine.apply(index, term, command[1:])
            self.state.applied = index


@hole_in(AppliesBeforeItCounts)
def test_entry_whose_application_raises_is_not_applied_again(group_class: type[RaftGroup]) -> None:
    follower = Replica(terms=[1, 1, 1], group_class=group_class)
    applied: list[int] = []

    def apply(index: int, term: int, command: bytes) -> None:
        applied.append(index)
        if index == 2:
            raise ValueError("half done")

    follower.machine.apply = apply  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="half done"):
        follower.append(2, 1, (3, 1), commit=3)
    with suppress(ValueError):
        follower.turn()
    assert applied.count(2) == 1


class SkipsWhatItCannotApply(Applying):
    def run(self) -> None:
        with suppress(SafetyViolation):
            super().run()


@hole_in(SkipsWhatItCannotApply)
def test_entry_of_unknown_kind_stops_the_replica(group_class: type[RaftGroup]) -> None:
    follower = Replica(terms=[1], group_class=group_class)
    follower.group.journal.extend([(b"\x03", 2, 1)], None)
    with pytest.raises(SafetyViolation, match="entry 2 is of unknown kind 3"):
        follower.append(2, 1, (2, 1), commit=2)
