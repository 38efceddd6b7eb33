"""Groups with one rule taken out each; sabotages.py says which hole that reopens."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from strandline.node.raft.configuration import Configuration
from strandline.node.raft.entries import Entry, EntryKind
from strandline.node.raft.group import RaftGroup
from strandline.node.raft.outcome import Applied, Outcome
from strandline.node.raft.pysyncobj_seam import LEADER
from strandline.node.raft.rules.applying import Applying
from strandline.node.raft.rules.commitment import Commitment
from strandline.node.raft.rules.configuration_log import ConfigurationLog
from strandline.node.raft.rules.dispatch import Dispatch
from strandline.node.raft.rules.election import Election
from strandline.node.raft.rules.following import Following
from strandline.node.raft.rules.leader_contact import LeaderContact
from strandline.node.raft.rules.leader_tick import LeaderTick
from strandline.node.raft.rules.leadership_transfer import LeadershipTransfer
from strandline.node.raft.rules.lease import Lease
from strandline.node.raft.rules.membership_change import MembershipChange
from strandline.node.raft.rules.messages import AppendReply, Message, VoteReply
from strandline.node.raft.rules.pending_commands import PendingCommands
from strandline.node.raft.rules.pre_vote import PreVote
from strandline.node.raft.rules.progress import NEVER, Progress
from strandline.node.raft.rules.quiescence import Quiescence
from strandline.node.raft.rules.read_index import ReadIndex
from strandline.node.raft.rules.replication import Replication
from strandline.node.raft.snapshots.receiving import SnapshotReceiving
from strandline.snapshot.document import SnapshotDocument
from tests.raft.group_with import group_of, group_with

# Durability and counting.


class CountsItselfBeforeSync(Commitment):
    def own_match(self) -> int:
        return self.state.journal.last


class VoteNotRecorded(RaftGroup):
    def set_term(self, term: int, vote: int | None) -> None:
        super().set_term(term, None)
        self.vote = vote


class CommitsWithoutOwnTerm(Commitment):
    def may_commit(self, index: int) -> bool:
        return True


# Replication.


class TruncatesAfterPrevious(Following):
    def first_new(self, entries: Sequence[Entry]) -> int:
        return 0

    def truncate(self, index: int) -> None:
        self.state.drop_from(index)
        self.configuration_log.forget(index)


class CommitsToOwnEnd(Following):
    def commit_limit(self, leader_commit: int, proven: int) -> int:
        return min(leader_commit, self.state.journal.last)


class AcknowledgesOwnEnd(Following):
    def accept(self, entries: Sequence[Entry], packed: bytes, proven: int) -> int:
        super().accept(entries, packed, proven)
        return self.state.journal.last


class _TakesOldReplies(Dispatch):
    def is_current(self, message: Message) -> bool:
        return isinstance(message, AppendReply | VoteReply)


class _TakesImpossibleReplies(Replication):
    def on_append_reply(self, peer: int, progress: Progress, reply: AppendReply) -> None:
        # A reply that cannot be true in this term is taken for what it can be.
        possible = min(reply.log_index, self.state.journal.last)
        super().on_append_reply(peer, progress, reply._replace(log_index=possible))


CountsRepliesOfOtherTerms = group_with(_TakesOldReplies, _TakesImpossibleReplies)


class LeavesStaleLeadersUnanswered(Dispatch):
    def answer_stale(self, peer: int, *_: Any) -> None:
        pass


class _NeverPumps(Replication):
    def pump(self) -> None:
        pass


class _PumpsOnHeartbeat(LeaderTick):
    pumped_at = NEVER

    def run(self, now: float) -> None:
        super().run(now)
        if self.state.role == LEADER and now - self.pumped_at >= self.settings.heartbeat_seconds:
            self.pumped_at = now
            Replication.pump(group_of(self).replication)


CommitsOnHeartbeat = group_with(_NeverPumps, _PumpsOnHeartbeat)


# Elections.


class TakesAnyTermWhileFull(RaftGroup):
    def may_record_term(self) -> bool:
        return True


class CountsVotesNotVoters(Election):
    _tally = (0, 0)

    def count_vote(self, voter: int) -> None:
        term, count = self._tally
        self._tally = (self.state.term, count + 1 if term == self.state.term else 1)
        if self._tally[1] * 2 > len(self.state.voters):
            self.roles.become_leader()


class VotesTwice(Election):
    def may_vote_for(self, peer: int) -> bool:
        return True


class IgnoresOlderLogs(Election):
    def is_up_to_date(self, last: int, last_term: int) -> bool:
        return True


class _AsksNobody(PreVote):
    def start(self) -> None:
        self.election.campaign()


class _LooksAtAnyVote(Election):
    def ignores_vote(self, transfer: bool) -> bool:
        return False


CampaignsAtOnce = group_with(_AsksNobody, _LooksAtAnyVote)


class ForgetsItsLeader(LeaderContact):
    def hears_leader(self) -> bool:
        return False


class VotesInTermsItWasToldOf(Election):
    def keeps_vote(self, peer: int, transfer: bool) -> bool:
        return False


class CountsPreVotesOfAnyRound(PreVote):
    def is_of_this_round(self, asked: int, asked_at: float) -> bool:
        return True


class ForgetsTheSharedHeartbeat(Quiescence):
    def leave(self) -> None:
        heard_at, quiet = self.state.heard_at, self.state.quiesced_under is not None
        super().leave()
        if quiet:
            self.state.heard_at = heard_at


class VotesRightAfterRestart(RaftGroup):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.heard_at = NEVER


class TransfersByOrdinaryVote(Election):
    def on_timeout_now(self, peer: int) -> None:
        if self.state.leader == peer and self.may_campaign():
            self.campaign(transfer=False)


class _TransfersAtOnce(LeadershipTransfer):
    def is_ready(self) -> bool:
        return True


class _GivesUpAtOnce(PendingCommands):
    def leadership_lost(self) -> None:
        super().leadership_lost()
        self.give_up(self.state.term)


TransfersWithCommandsPending = group_with(_TransfersAtOnce, _GivesUpAtOnce)


class KeepsLeaseInTransfer(LeadershipTransfer):
    def begin(self, target: int | None = None) -> bool:
        begun = super().begin(target)
        self.state.lease_allowed = True
        return begun


# Reading and leading.


class LeadsWithoutQuorum(Lease):
    def lost_quorum(self) -> bool:
        return False


class LeaseFromReceiveTime(Replication):
    def on_append_reply(self, peer: int, progress: Progress, reply: AppendReply) -> None:
        super().on_append_reply(peer, progress, reply._replace(sent_at=self.host.now()))


class ReadsUnconfirmed(Lease):
    def holds(self) -> bool:
        return True


class ReadsBeforeOwnTerm(ReadIndex):
    async def barrier(self) -> Outcome:
        started, self.state.term_start = self.state.term_start, 0
        try:
            return await super().barrier()
        finally:
            self.state.term_start = started


class NeverEndsPending(PendingCommands):
    def give_up(self, term: int) -> None:
        pass

    def resolve(
        self, waiting: list[tuple[int, int, asyncio.Future[Outcome]]], result: Any, index: int, term: int
    ) -> None:
        super().resolve([entry for entry in waiting if entry[0] == term], result, index, term)


class AppliesAgainAfterError(Applying):
    """A caller that gave up makes `set_result` raise; PySyncObj then applied the entry once more."""

    def run(self) -> None:
        while self.state.applied < self.state.commit and self.state.damaged_below is None:
            command, index, term = self.state.journal.after(self.state.applied, 1)[0]
            result = None
            if command[0] == EntryKind.REGULAR:
                result = self.state.machine.apply(index, term, command[1:])
            elif command[0] == EntryKind.BEGIN_TERM:
                self.state.machine.begin_term(index, term, int.from_bytes(command[1:], "big"))
            waiting = self.state.waiting.pop(index, ())
            try:
                for proposed_term, size, future in waiting:
                    self.state.waiting_bytes -= size
                    if proposed_term == term:
                        future.set_result(Applied(result, index, term))
            except asyncio.InvalidStateError:
                self.host.wake(self.state)
                return
            self.state.applied = index
            if command[0] == EntryKind.MEMBERSHIP:
                self.membership_change.on_applied(index, term)
        self.state.idle_since = self.host.now()
        self.reads.release()
        if self.taking.due():
            self.taking.take()


# Members.


class ChangesMembersAtWill(MembershipChange):
    def under_way(self) -> bool:
        return False


class _NotesNothingAtFirst(ConfigurationLog):
    restarted = True

    def note(self, entries: Sequence[Entry]) -> None:
        if not self.restarted:
            super().note(entries)


class _NotesWhatIsApplied(MembershipChange):
    def on_applied(self, index: int, term: int) -> None:
        if index > self.state.configuration.index:
            ConfigurationLog.note(self.configuration_log, self.state.journal.after(index - 1, 1))
        super().on_applied(index, term)


class ConfigurationCountsOnceApplied(group_with(_NotesNothingAtFirst, _NotesWhatIsApplied)):  # type: ignore[misc]
    """After a restart only, as with PySyncObj."""

    def work(self) -> None:
        assert isinstance(self.configuration_log, _NotesNothingAtFirst)
        self.configuration_log.restarted = False
        super().work()


class SnapshotsCurrentMembers(ConfigurationLog):
    def at(self, index: int) -> Configuration:
        return self.state.configuration


class AddsVotersAtOnce(MembershipChange):
    def add_member(self, node: int) -> asyncio.Future[Outcome]:
        if self.refuses() is None and node not in self.state.voters:
            future: asyncio.Future[Outcome] = self.host.loop.create_future()
            self.state.change, self.state.joining = future, None
            self.change_index = self.propose((*self.state.voters, node), ())
            return future
        return super().add_member(node)


# Snapshots.


class InstallsOlderSnapshots(SnapshotReceiving):
    def has_applied_enough(self, index: int) -> bool:
        return False


class DropsMatchingSuffix(SnapshotReceiving):
    def keeps_suffix(self, document: SnapshotDocument) -> bool:
        return False


class KeepsConflictingSuffix(SnapshotReceiving):
    def keeps_suffix(self, document: SnapshotDocument) -> bool:
        return self.state.journal.base <= document.index <= self.state.journal.last
