"""A follower's side of log replication (Raft §5.3).

A follower acknowledges only entries that are durable, and that the message at hand has proven to match.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from strandline.node.raft.bad_message import BadMessage
from strandline.node.raft.configuration import Configuration
from strandline.node.raft.entries import Entry, unpack_entries
from strandline.node.raft.rules.configuration_log import ConfigurationLog
from strandline.node.raft.rules.leader_contact import LeaderContact
from strandline.node.raft.rules.messages import (
    AppendEntries,
    AppendReply,
    MessageKind,
    NeedSnapshot,
)
from strandline.node.raft.rules.quiescence import Quiescence
from strandline.node.raft.rules.replica_state import Part, ReplicaState, SafetyViolation

log = logging.getLogger(__name__)


_EMPTY = b""


def read_run(message: AppendEntries) -> list[Entry]:
    """The entries of an append message; raises BadMessage when they cannot follow its `previous`."""
    entries = unpack_entries(message.entries)
    if entries[0][1] != message.previous + 1:
        raise BadMessage("append message's entries do not follow its previous index")
    if entries[0][2] < message.previous_term or entries[-1][2] > message.term:
        raise BadMessage("append message's entries have terms that its leader cannot have")
    return entries


class Following(Part):
    """Takes a leader's entries at a follower, and answers."""

    __slots__ = ("ack", "configuration_log", "contact", "quiescence")

    def __init__(
        self,
        state: ReplicaState,
        contact: LeaderContact,
        quiescence: Quiescence,
        configuration_log: ConfigurationLog,
    ) -> None:
        super().__init__(state)
        self.contact = contact
        self.quiescence = quiescence
        self.configuration_log = configuration_log
        self.ack: tuple[int, int, int, float] | None = None
        """(leader, term, match, its send time) to answer at the end of this turn."""

    def on_append(self, peer: int, message: AppendEntries) -> None:
        state = self.state
        entries = read_run(message) if message.entries else []
        self.contact.follow(peer)
        if state.quiesced_under != peer:
            self.quiescence.leave()
        if not state.voters and state.damaged_below is None and not self.begin(message):
            return
        if state.damaged_below is not None:
            self.quiescence.leave()
            need = NeedSnapshot(
                state.id, MessageKind.NEED_SNAPSHOT, state.term, state.damaged_below, message.sent_at
            )
            self.host.send_when_synced(peer, need)
            return
        if self.host.backlogged() and entries:
            return
        previous, packed = message.previous, message.entries
        if previous < state.commit:
            # What is committed here is in this leader's log too (leader completeness, Raft §5.4.3).
            entries = entries[state.commit - previous :]
            packed = _EMPTY
            proven = max(previous, state.commit)
        elif self.journal.term_at(previous) == message.previous_term:
            proven = previous
        else:
            self.reject(peer, message)
            return
        proven = self.accept(entries, packed, proven)
        state.commit = max(state.commit, self.commit_limit(message.commit, proven))
        if state.committed_before is None and self.journal.term_at(state.commit) == state.term:
            # The leader's own index: this log may end far below what an earlier replica here has applied.
            state.committed_before = message.commit
        sent_at = message.sent_at
        if self.ack is not None and self.ack[:2] == (peer, state.term):
            proven, sent_at = max(proven, self.ack[2]), max(sent_at, self.ack[3])
        self.ack = (peer, state.term, proven, sent_at)
        self.host.wake(state)

    def begin(self, message: AppendEntries) -> bool:
        """Begin a replica that knows nothing of its group where the group is; False if that is not possible.

        The folder may have forgotten a promise to the group: of a replica that left, and whose folder was
        replaced since. On its way through the log the replica would come by members that are over, and its
        vote could elect a leader of these. So it gets the state as of the leader's commit index or later.
        Until then it refuses candidates as if its log had an entry of the leader's term there: every change
        of members before the one that added this node is committed up to there, or in an earlier term.
        """
        state = self.state
        if not message.commit or self.host.backlogged():
            return False
        self.journal.reset(message.commit, message.term, (), ())
        state.configurations = [Configuration(message.commit, ())]
        state.commit = state.applied = state.damaged_below = message.commit
        return True

    def commit_limit(self, leader_commit: int, proven: int) -> int:
        """Highest index that a follower may commit: never beyond what this message has proven to match.

        PySyncObj takes the end of its own log, which may hold entries the leader does not have.
        """
        return min(leader_commit, proven)

    def accept(self, entries: Sequence[Entry], packed: bytes, proven: int) -> int:
        """Append new entries after dropping conflicting ones; returns the last index that now matches."""
        if not entries:
            return proven
        last = entries[-1][1]
        fresh = self.first_new(entries)
        if fresh == len(entries):
            return last
        index = entries[fresh][1]
        if index <= self.journal.last:
            self.truncate(index)
        if fresh:
            entries, packed = entries[fresh:], _EMPTY
        self.journal.extend(entries, packed or None)
        self.configuration_log.note(entries)
        return last

    def first_new(self, entries: Sequence[Entry]) -> int:
        """Position of the first entry that is missing here or conflicts (Raft §5.3: only it and what
        follows is deleted; PySyncObj deletes everything after the previous entry)."""
        if entries[0][1] > self.journal.last:
            return 0
        for position, (_, index, term) in enumerate(entries):
            if self.journal.term_at(index) != term:
                return position
        return len(entries)

    def truncate(self, index: int) -> None:
        """Delete the entries from a conflicting one on; never a committed entry."""
        state = self.state
        if index <= state.commit:
            raise SafetyViolation(
                f"group {state.id}: the leader of term {state.term} conflicts with committed entry {index}"
            )
        state.drop_from(index)
        self.configuration_log.forget(index)

    def reject(self, peer: int, message: AppendEntries) -> None:
        state = self.state
        self.quiescence.leave()
        hint = self.journal.last_index_not_above(
            min(message.previous, self.journal.last), message.previous_term
        )
        reply = AppendReply(
            state.id, MessageKind.APPEND_REPLY, state.term,
            False, message.previous, hint, self.journal.term_at(hint) or 0, message.sent_at,
        )  # fmt: skip
        self.host.send_when_synced(peer, reply)

    def send_ack(self) -> None:
        """Answer the turn's append messages at once, when all they brought is durable.

        A match that was proven in an earlier term says nothing to the leader of this one.
        """
        state = self.state
        if self.ack is None:
            return
        peer, term, match, sent_at = self.ack
        self.ack = None
        if term != state.term:
            return
        message = AppendReply(state.id, MessageKind.APPEND_REPLY, state.term, True, match, 0, 0, sent_at)
        self.host.send_when_synced(peer, message)
