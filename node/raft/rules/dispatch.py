"""A leader, a candidate and a follower each handle every message here."""

from __future__ import annotations

from strandline.node.raft.bad_message import BadMessage
from strandline.node.raft.pysyncobj_seam import CANDIDATE, LEADER
from strandline.node.raft.rules.election import Election
from strandline.node.raft.rules.following import Following, read_run
from strandline.node.raft.rules.leadership_transfer import LeadershipTransfer
from strandline.node.raft.rules.messages import (
    AppendEntries,
    AppendReply,
    Message,
    MessageKind,
    NeedSnapshot,
    PreVoteReply,
    Quiesce,
    ReplicaOpened,
    RequestPreVote,
    RequestVote,
    SnapshotChunk,
    SnapshotReply,
    TimeoutNow,
    VoteReply,
)
from strandline.node.raft.rules.peer_connections import PeerConnections
from strandline.node.raft.rules.pre_vote import PreVote
from strandline.node.raft.rules.quiescence import Quiescence
from strandline.node.raft.rules.read_index import ReadIndex
from strandline.node.raft.rules.replica_state import Part, ReplicaState
from strandline.node.raft.rules.replication import Replication
from strandline.node.raft.rules.roles import Roles
from strandline.node.raft.rules.snapshot_protocols import SnapshotReceiver, SnapshotSender

_BY_LEADER = (AppendEntries, SnapshotChunk, Quiesce, TimeoutNow)
_BY_MEMBER = (AppendReply, SnapshotReply, NeedSnapshot, VoteReply, PreVoteReply)
"""Answers, which only the member that was asked can give."""


class Dispatch(Part):
    """The way of a message to its rule: first by its term, then by this replica's role."""

    __slots__ = (
        "connections", "election", "following", "pre_vote", "quiescence", "reads", "receiving", "replication",
        "roles", "sending", "transfer",
    )  # fmt: skip

    def __init__(
        self,
        state: ReplicaState,
        roles: Roles,
        election: Election,
        pre_vote: PreVote,
        replication: Replication,
        following: Following,
        reads: ReadIndex,
        quiescence: Quiescence,
        connections: PeerConnections,
        sending: SnapshotSender,
        receiving: SnapshotReceiver,
        transfer: LeadershipTransfer,
    ) -> None:
        super().__init__(state)
        self.roles = roles
        self.election = election
        self.pre_vote = pre_vote
        self.replication = replication
        self.following = following
        self.reads = reads
        self.quiescence = quiescence
        self.connections = connections
        self.sending = sending
        self.receiving = receiving
        self.transfer = transfer

    def step(self, peer: int, message: Message) -> None:
        """Act on one message of a peer; raises BadMessage for one that no node of this version sends.

        A higher term is adopted, but for what must not raise it and while it cannot be recorded; a lower one
        is answered with ours, so that a leader that was left behind steps down (Raft §5.1).
        """
        state, term = self.state, message.term
        if not state.is_member(peer) and isinstance(message, _BY_MEMBER):
            return
        if isinstance(message, RequestPreVote):
            self.pre_vote.on_request(peer, message)
            return
        if isinstance(message, RequestVote):
            self.election.on_vote(peer, message)
            return
        if isinstance(message, ReplicaOpened):
            if state.role == LEADER:
                self.connections.on_opened(peer)
            return
        if term > state.term:
            if not state.may_record_term():
                return
            if isinstance(message, AppendEntries) and message.entries:
                # A malformed message changes nothing, so not even the term.
                read_run(message)
            self.roles.adopt_term(term)
        elif isinstance(message, PreVoteReply):
            # Counts by the term it was asked for: a voter whose term is lower grants it all the same.
            pass
        elif term < state.term and not self.is_current(message):
            if isinstance(message, _BY_LEADER):
                self.answer_stale(peer)
            return
        role = state.role
        if role == LEADER:
            self.leader(peer, message)
        elif role == CANDIDATE:
            self.candidate(peer, message)
        else:
            self.follower(peer, message)

    def leader(self, peer: int, message: Message) -> None:
        """A leader takes its followers' answers."""
        progress = self.state.progress.get(peer)
        match message:
            case AppendReply() if progress is not None:
                self.replication.on_append_reply(peer, progress, message)
                self.reads.confirm()
            case SnapshotReply() if progress is not None:
                progress.answered(message.sent_at)
                self.reads.confirm()
                self.sending.on_reply(peer, progress, message)
            case NeedSnapshot() if progress is not None:
                self._refuse_impossible(message)
                progress.answered(message.sent_at)
                self.reads.confirm()
                self.sending.on_need(peer, progress, message)
            case VoteReply(granted=False):
                self.transfer.on_declined(peer)
            case PreVoteReply() if message.asked == 1:
                # Offered unasked, by a voter that has had the group only since the others elected this node.
                self.connections.on_opened(peer)
            case AppendEntries() | SnapshotChunk() | Quiesce():
                # Another leader of this term: the replica stops (LeaderContact.follow).
                self.follower(peer, message)

    def candidate(self, peer: int, message: Message) -> None:
        """A candidate counts votes, and follows once the term has a leader."""
        match message:
            case VoteReply():
                self.election.on_vote_reply(peer, message)
            case AppendEntries() | SnapshotChunk() | Quiesce():
                self.follower(peer, message)

    def follower(self, peer: int, message: Message) -> None:
        """Handle a message as a follower: obey its leader, and count the pre-votes it asked for."""
        match message:
            case AppendEntries():
                self.following.on_append(peer, message)
            case SnapshotChunk():
                self.receiving.on_chunk(peer, message)
            case Quiesce():
                self.quiescence.on_quiesce(peer, message)
            case TimeoutNow():
                self.election.on_timeout_now(peer)
            case PreVoteReply():
                self.pre_vote.on_reply(peer, message)

    def is_current(self, message: Message) -> bool:
        """Whether a message of a lower term counts: never. PySyncObj's replies carried no term at all."""
        return False

    def answer_stale(self, peer: int) -> None:
        """Tell a leader of an earlier term the present term."""
        state = self.state
        reply = AppendReply(state.id, MessageKind.APPEND_REPLY, state.term, False, 0, 0, 0, 0.0)
        self.host.send_when_synced(peer, reply)

    def _refuse_impossible(self, need: NeedSnapshot) -> None:
        state = self.state
        if need.least > self.journal.last:
            raise BadMessage(f"group {state.id}: snapshot {need.least} is wanted, beyond the leader's log")
