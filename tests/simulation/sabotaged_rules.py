"""Groups with one rule taken out each; sabotages.py says which hole that reopens."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from strandline.node.raft.entries import Entry, EntryKind
from strandline.node.raft.group import RaftGroup
from strandline.node.raft.outcome import Applied, Outcome
from strandline.node.raft.pysyncobj_seam import LEADER
from strandline.node.raft.rules.messages import AppendReply, Message, TimeoutNow, VoteReply
from strandline.node.raft.rules.progress import NEVER
from strandline.node.raft.rules.replica_state import Configuration
from strandline.snapshot.document import SnapshotDocument

# Durability and counting.


class CountsItselfBeforeSync(RaftGroup):
    def own_match(self) -> int:
        return self.journal.last


class VoteNotRecorded(RaftGroup):
    def set_term(self, term: int, vote: int | None) -> None:
        super().set_term(term, None)
        self.vote = vote


class CommitsWithoutOwnTerm(RaftGroup):
    def may_commit(self, index: int) -> bool:
        return True


# Replication.


class TruncatesAfterPrevious(RaftGroup):
    def first_new(self, entries: Sequence[Entry]) -> int:
        return 0

    def truncate(self, index: int) -> None:
        self.drop_from(index)
        self.forget_configurations(index)


class CommitsToOwnEnd(RaftGroup):
    def commit_limit(self, leader_commit: int, proven: int) -> int:
        return min(leader_commit, self.journal.last)


class AcknowledgesOwnEnd(RaftGroup):
    def _accept(self, entries: Sequence[Entry], packed: bytes, proven: int) -> int:
        super()._accept(entries, packed, proven)
        return self.journal.last


class CountsRepliesOfOtherTerms(RaftGroup):
    def is_current(self, message: Message) -> bool:
        return isinstance(message, AppendReply | VoteReply)

    def on_append_reply(self, peer: int, reply: AppendReply) -> None:
        # A reply that cannot be true in this term is taken for what it can be.
        super().on_append_reply(peer, reply._replace(log_index=min(reply.log_index, self.journal.last)))


class LeavesStaleLeadersUnanswered(RaftGroup):
    def answer_stale(self, peer: int, *_: Any) -> None:
        pass


class CommitsOnHeartbeat(RaftGroup):
    def pump(self) -> None:
        pass

    def leader_tick(self, now: float) -> None:
        super().leader_tick(now)
        if (
            self.role == LEADER
            and now - getattr(self, "_pumped_at", NEVER) >= self.settings.heartbeat_seconds
        ):
            self._pumped_at = now
            super().pump()


# Elections.


class TakesAnyTermWhileFull(RaftGroup):
    def may_record_term(self) -> bool:
        return True


class CountsVotesNotVoters(RaftGroup):
    _tally = (0, 0)

    def count_vote(self, voter: int) -> None:
        term, count = self._tally
        self._tally = (self.term, count + 1 if term == self.term else 1)
        if self._tally[1] * 2 > len(self.voters):
            self.become_leader()


class VotesTwice(RaftGroup):
    def may_vote_for(self, peer: int) -> bool:
        return True


class IgnoresOlderLogs(RaftGroup):
    def is_up_to_date(self, last: int, last_term: int) -> bool:
        return True


class CampaignsAtOnce(RaftGroup):
    def start_pre_vote(self) -> None:
        self.campaign()

    def ignores_vote(self, transfer: bool) -> bool:
        return False


class ForgetsItsLeader(RaftGroup):
    def hears_leader(self) -> bool:
        return False


class VotesInTermsItWasToldOf(RaftGroup):
    def keeps_vote(self, peer: int, transfer: bool) -> bool:
        return False


class CountsPreVotesOfAnyRound(RaftGroup):
    def is_of_this_round(self, asked: int, asked_at: float) -> bool:
        return True


class ForgetsTheSharedHeartbeat(RaftGroup):
    def leave_quiet(self) -> None:
        heard_at, quiet = self.heard_at, self.quiet_under is not None
        super().leave_quiet()
        if quiet:
            self.heard_at = heard_at


class VotesRightAfterRestart(RaftGroup):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.heard_at = NEVER


class TransfersByOrdinaryVote(RaftGroup):
    def on_timeout_now(self, peer: int, _: TimeoutNow) -> None:
        if self.leader == peer and self.may_campaign():
            self.campaign(transfer=False)


class TransfersWithCommandsPending(RaftGroup):
    def transfer_ready(self) -> bool:
        return True

    def _end_leadership(self) -> None:
        super()._end_leadership()
        self._give_up_waiting(self.term)


class KeepsLeaseInTransfer(RaftGroup):
    def transfer(self, target: int | None = None) -> bool:
        begun = super().transfer(target)
        self.lease_allowed = True
        return begun


# Reading and leading.


class LeadsWithoutQuorum(RaftGroup):
    def lost_quorum(self) -> bool:
        return False


class LeaseFromReceiveTime(RaftGroup):
    def on_append_reply(self, peer: int, reply: AppendReply) -> None:
        super().on_append_reply(peer, reply._replace(sent_at=self.host.now()))


class ReadsUnconfirmed(RaftGroup):
    def has_lease(self) -> bool:
        return True


class ReadsBeforeOwnTerm(RaftGroup):
    async def barrier(self) -> Outcome:
        started, self.term_start = self.term_start, 0
        try:
            return await super().barrier()
        finally:
            self.term_start = started


class NeverEndsPending(RaftGroup):
    def _give_up_waiting(self, term: int) -> None:
        pass

    def _resolve(
        self, waiting: list[tuple[int, int, asyncio.Future[Outcome]]], result: Any, index: int, term: int
    ) -> None:
        super()._resolve([entry for entry in waiting if entry[0] == term], result, index, term)


class AppliesAgainAfterError(RaftGroup):
    """A caller that gave up makes `set_result` raise; PySyncObj then applied the entry once more."""

    def apply_committed(self) -> None:
        while self.applied < self.commit and self.damaged_below is None:
            command, index, term = self.journal.after(self.applied, 1)[0]
            result = None
            if command[0] == EntryKind.REGULAR:
                result = self.machine.apply(index, term, command[1:])
            elif command[0] == EntryKind.BEGIN_TERM:
                self.machine.begin_term(index, term, int.from_bytes(command[1:], "big"))
            waiting = self.waiting.pop(index, ())
            try:
                for proposed_term, size, future in waiting:
                    self.waiting_bytes -= size
                    if proposed_term == term:
                        future.set_result(Applied(result, index, term))
            except asyncio.InvalidStateError:
                self.host.wake(self)
                return
            self.applied = index
            if command[0] == EntryKind.MEMBERSHIP:
                self.configuration_applied(index, term)
        self.idle_since = self.host.now()
        self.release_applied()
        if self.snapshot_due():
            self.take_snapshot()


# Members.


class ChangesMembersAtWill(RaftGroup):
    def change_under_way(self) -> bool:
        return False


class ConfigurationCountsOnceApplied(RaftGroup):
    """After a restart only, as with PySyncObj."""

    _restarted = True

    def note_configurations(self, entries: Sequence[Entry]) -> None:
        if not self._restarted:
            super().note_configurations(entries)

    def work(self) -> None:
        self._restarted = False
        super().work()

    def configuration_applied(self, index: int, term: int) -> None:
        if index > self.configuration.index:
            super().note_configurations(self.journal.after(index - 1, 1))
        super().configuration_applied(index, term)


class SnapshotsCurrentMembers(RaftGroup):
    def configuration_at(self, index: int) -> Configuration:
        return self.configuration


class AddsVotersAtOnce(RaftGroup):
    def add_member(self, node: int) -> asyncio.Future[Outcome]:
        if self._refuses_change() is None and node not in self.voters:
            future: asyncio.Future[Outcome] = self.host.loop.create_future()
            self.change, self.joining = future, None
            self.change_index = self._propose((*self.voters, node), ())
            return future
        return super().add_member(node)


# Snapshots.


class InstallsOlderSnapshots(RaftGroup):
    def has_applied_enough(self, index: int) -> bool:
        return False


class DropsMatchingSuffix(RaftGroup):
    def keeps_suffix(self, document: SnapshotDocument) -> bool:
        return False


class KeepsConflictingSuffix(RaftGroup):
    def keeps_suffix(self, document: SnapshotDocument) -> bool:
        return self.journal.base <= document.index <= self.journal.last
