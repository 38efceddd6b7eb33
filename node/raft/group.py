"""One replicated log: commands in, results out, in the same order on every replica.

`RaftGroup` is the last layer over `GroupState`: it takes commands and messages, applies what is committed,
and does the work of one loop turn. `docs/raft.md` says which hole of PySyncObj each rule closes.
"""

from __future__ import annotations

import asyncio
from typing import Any

from strandline.node.raft.entries import EntryKind
from strandline.node.raft.outcome import Applied, NotLeader, Outcome, Overloaded
from strandline.node.raft.pysyncobj_seam import FOLLOWER, LEADER
from strandline.node.raft.rules.messages import (
    Append,
    AppendReply,
    Message,
    MessageKind,
    PreVoteReply,
    Quiesce,
    ReplicaOpened,
    RequestPreVote,
    RequestVote,
    SnapshotChunk,
    TimeoutNow,
)
from strandline.node.raft.rules.replica_state import SafetyViolation
from strandline.node.raft.rules.replication import read_run
from strandline.node.raft.snapshots.receiving import SnapshotReceiving

_REGULAR = bytes([EntryKind.REGULAR])

_BY_LEADER = (Append, SnapshotChunk, Quiesce, TimeoutNow)


class RaftGroup(SnapshotReceiving):
    """One replica of one group.

    The interface of the rest of the node: `replicate`, `barrier`, `term`, `leader`, `is_leader`,
    `on_leadership`, `transfer`, `add_member`, `remove_member`.
    """

    # Commands.

    def replicate(self, command: bytes, term: int) -> asyncio.Future[Outcome]:
        """Replicate `command` if this node leads in `term`; the future always ends.

        Applied: committed and applied here. NotLeader, Overloaded: never applied, now or later. Unknown:
        leadership was lost first, and the command may yet be applied. Raises ValueError for a command over
        `max_entry_bytes`. Nothing is forwarded, and nothing queues while there is no leader.
        """
        future: asyncio.Future[Outcome] = self.host.loop.create_future()
        size = len(command)
        if size > self.settings.max_entry_bytes:
            raise ValueError(
                f"command of {size} bytes is over max_entry_bytes, {self.settings.max_entry_bytes}: split it"
            )
        if self.role != LEADER or term != self.term or self.failure is not None:
            future.set_result(self.not_leader())
        elif self.transfer_target is not None:
            future.set_result(NotLeader(self.transfer_target, "leadership is being handed over"))
        elif self.overloaded(size):
            future.set_result(Overloaded("too many commands wait for this group or its disk"))
        else:
            index = self.append(_REGULAR + command)
            waiting = self.waiting.get(index)
            if waiting is None:
                self.waiting[index] = [(term, size, future)]
            else:
                waiting.append((term, size, future))
            self.waiting_bytes += size
        return future

    def overloaded(self, size: int = 0) -> bool:
        """Whether a command of so many bytes would be refused now: too much waits, or the disk is full."""
        return (
            len(self.waiting) >= self.settings.max_pending_commands
            or self.waiting_bytes + size > self.settings.max_pending_bytes
            or self.host.backlogged()
        )

    # One loop turn.

    def work(self) -> None:
        """Write, send, answer, commit and apply what this turn brought; called once a turn by the host."""
        if self.failure is not None:
            return
        self.journal.write()
        if self.role == LEADER:
            self.continue_change()
            self.journal.write()
            self.pump()
            self.advance_commit()
        else:
            self.send_ack()
        self.apply_committed()
        if self.transfer_target is not None and self.role == LEADER:
            self.continue_transfer()

    def on_synced(self, lsn: int) -> None:
        """Everything this group recorded up to `lsn` is durable."""
        self.journal.on_synced(lsn)
        if self.role == LEADER:
            self.host.wake(self)
            if self.held:
                self.held.release(self.matches())

    def tick(self, now: float) -> None:
        """Let time pass; called by the host while the group is active."""
        if self.failure is not None:
            return
        if self.role == LEADER:
            self.leader_tick(now)
        elif self.host.attentive() >= self.deadline:
            self.election_timeout()

    # Applying.

    def apply_committed(self) -> None:
        """Apply committed entries in order, a bounded number a turn.

        `applied` moves before anything else sees the entry: PySyncObj applied an entry again when a
        callback raised. An exception from the machine stops this replica.
        """
        if self.applied >= self.commit or self.damaged_below is not None:
            return
        count = min(self.commit - self.applied, self.settings.max_apply_per_turn)
        machine = self.machine
        for command, index, term in self.journal.after(self.applied, count):
            self._SyncObj__raftLastApplied = index  # `applied`, without the cost of the property
            self.bytes_since_snapshot += len(command)
            kind = command[0]
            result = None
            if kind == EntryKind.REGULAR:
                result = machine.apply(index, term, command[1:])
            elif kind == EntryKind.BEGIN_TERM:
                machine.begin_term(index, term, int.from_bytes(command[1:], "big"))
            elif kind == EntryKind.MEMBERSHIP:
                self.configuration_applied(index, term)
            else:
                raise SafetyViolation(f"group {self.id}: entry {index} is of unknown kind {kind}")
            waiting = self.waiting.pop(index, None)
            if waiting is not None:
                self._resolve(waiting, result, index, term)
        self.idle_since = self.host.now()
        self.release_applied()
        if self.snapshot_due():
            self.take_snapshot()
        if self.applied < self.commit:
            self.host.wake(self)

    def _resolve(
        self, waiting: list[tuple[int, int, asyncio.Future[Outcome]]], result: Any, index: int, term: int
    ) -> None:
        """Whoever proposed this very entry gets its result; another term's entry here means theirs is lost
        for good, because no log can hold both."""
        for proposed_term, size, future in waiting:
            self.waiting_bytes -= size
            if not future.done():
                if proposed_term == term:
                    future.set_result(Applied(result, index, term))
                else:
                    future.set_result(
                        NotLeader(self.leader, "another leader's entry took the command's place")
                    )

    # Messages.

    def receive(self, peer: int, message: Message) -> None:
        """Act on one message of a peer; its shape has been checked.

        A higher term is adopted, but for what must not raise it and while it cannot be recorded; a lower one
        is answered with ours, so that a leader that was left behind steps down (Raft §5.1).
        """
        term = message.term
        if isinstance(message, RequestPreVote):
            self.on_pre_vote(peer, message)
            return
        if isinstance(message, RequestVote):
            self.on_vote(peer, message)
            return
        if isinstance(message, ReplicaOpened):
            self.on_here(peer)
            return
        if term > self.term:
            if not self.may_record_term():
                return
            if isinstance(message, Append) and message.entries:
                # A malformed message changes nothing, so not even the term.
                read_run(message)
            self.adopt_term(term)
        elif isinstance(message, PreVoteReply):
            # Counts by the term it was asked for: a voter whose term is lower grants it all the same.
            pass
        elif term < self.term and not self.is_current(message):
            if isinstance(message, _BY_LEADER):
                self.answer_stale(peer)
            return
        getattr(self, _HANDLERS[message.kind])(peer, message)

    def is_current(self, message: Message) -> bool:
        """Whether a message of a lower term counts: never. PySyncObj's replies carried no term at all."""
        return False

    def answer_stale(self, peer: int) -> None:
        """Tell a leader of an earlier term what the term is."""
        message = AppendReply(self.id, MessageKind.APPEND_REPLY, self.term, False, 0, 0, 0, 0.0)
        self.host.send_when_synced(peer, message)

    # Looking at it.

    def status(self) -> dict[str, Any]:
        """What an operator wants to know of this replica, as plain values."""
        return {
            "group": self.id,
            "kind": self.machine.kind,
            "role": "leader" if self.role == LEADER else "follower" if self.role == FOLLOWER else "candidate",
            "term": self.term,
            "leader": self.leader,
            "voters": list(self.voters),
            "learners": list(self.configuration.learners),
            "commit": self.commit,
            "applied": self.applied,
            "last": self.journal.last,
            "synced": self.journal.synced,
            "log_start": self.journal.base,
            "snapshot": self.snapshot_index,
            "quiet": self.quiet_under is not None,
            "needs_snapshot_from": self.damaged_below,
            "failure": None if self.failure is None else str(self.failure),
            "followers": {
                peer: {"match": progress.match, "next": progress.next, "phase": progress.phase.value}
                for peer, progress in self.progress.items()
            },
            "lost_acknowledged": sorted(self.lost_acknowledged),
        }


_HANDLERS: dict[int, str] = {
    MessageKind.APPEND: "on_append",
    MessageKind.APPEND_REPLY: "on_append_reply",
    MessageKind.VOTE_REPLY: "on_vote_reply",
    MessageKind.PRE_VOTE_REPLY: "on_pre_vote_reply",
    MessageKind.TIMEOUT_NOW: "on_timeout_now",
    MessageKind.SNAPSHOT: "on_snapshot",
    MessageKind.SNAPSHOT_REPLY: "on_snapshot_reply",
    MessageKind.QUIET: "on_quiet",
    MessageKind.NEED_SNAPSHOT: "on_need_snapshot",
}
