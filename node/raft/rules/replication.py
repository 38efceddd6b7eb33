"""Log replication and commitment (Raft §5.3, §5.4.2), event-driven and pipelined.

The leader sends a turn's entries to every follower while its own disk is still writing them (thesis
§10.2.1) and counts itself only once they are durable. A follower answers only for what is durable, and
only for what the message at hand has proven to match.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strandline.node.raft.bad_message import BadMessage
from strandline.node.raft.entries import PACKING_BYTES, Entry, EntryKind, unpack_entries
from strandline.node.raft.pysyncobj_seam import LEADER
from strandline.node.raft.rules.election import Elections
from strandline.node.raft.rules.held import Held
from strandline.node.raft.rules.messages import Append, AppendReply, MessageKind, NeedSnapshot
from strandline.node.raft.rules.progress import Phase, Progress, majority_of
from strandline.node.raft.rules.replica_state import SafetyViolation

_EMPTY = b""
_LONGEST_PROBE_PAUSE = 8
"""In heartbeats."""


def read_run(message: Append) -> list[Entry]:
    """The entries of an append message; raises BadMessage when they cannot follow its `previous`."""
    entries = unpack_entries(message.entries)
    if entries[0][1] != message.previous + 1:
        raise BadMessage("append message's entries do not follow its previous index")
    if entries[0][2] < message.previous_term or entries[-1][2] > message.term:
        raise BadMessage("append message's entries have terms that its leader cannot have")
    return entries


class Replication(Elections):
    """How entries reach the followers, become committed, and how far each log is known to match."""

    def __init__(self, *args: Any) -> None:
        self.ack: tuple[int, int, int, float] | None = None
        """(leader, term, match, its send time) to answer at the end of this turn."""
        self.lost_acknowledged: set[int] = set()
        """Followers that no longer hold entries they acknowledged: their disk was replaced."""
        self.held = Held()
        """Who waits until more voters than a majority hold an entry."""
        super().__init__(*args)

    # The leader's side.

    def become_leader(self) -> None:
        """Start a term: no follower is known to match, and an entry of the own term opens it (Raft §8)."""
        now = self.host.now()
        self.set_role(LEADER)
        self.host.stood(self)
        self.lost_campaigns = 0
        self.leader = self.host.node_id
        self.leader_since = now
        self.lease_allowed = True
        self.progress = {peer: Progress(self.journal.last + 1) for peer in self.peers}
        self.append(bytes([EntryKind.BEGIN_TERM]) + self.host.node_id.to_bytes(8, "big"))
        self.term_start = self.journal.last
        self._tell_leadership(True)

    def append(self, command: bytes) -> int:
        """Add one entry to the leader's own log (leaders only ever append, Raft §5.3); its index."""
        index = self.journal.last + 1
        self.journal.add(command, index, self.term)
        self.host.note_unwritten(len(command) + PACKING_BYTES)
        self.host.set_active(self, True)
        self.host.wake(self)
        return index

    def pump(self) -> None:
        """Send every follower what it lacks, as far as the bounds on what is under way allow."""
        now = self.host.now()
        for peer, progress in self.progress.items():
            if self.host.connected(peer):
                self.send_entries(peer, progress, now)

    def send_entries(self, peer: int, progress: Progress, now: float) -> None:
        """Send one follower the entries from `next` on."""
        if progress.phase is Phase.SNAPSHOT:
            return
        last = self.journal.last
        if progress.phase is Phase.PROBE:
            self.send_probe(peer, progress, now)
            return
        settings = self.settings
        while progress.next <= last and progress.may_send(
            settings.max_inflight_messages, settings.max_inflight_bytes
        ):
            if not self.send_run(peer, progress, now):
                return

    def send_probe(self, peer: int, progress: Progress, now: float) -> None:
        """Ask where the logs part: once a heartbeat, and ever less often while there is no answer.

        A node that comes back takes seconds until it has thousands of groups again, and each says so then.
        """
        if now - progress.probe_sent_at >= max(progress.probe_pause, self.settings.heartbeat_seconds * 0.9):
            self.send_run(peer, progress, now)
            progress.probe_sent_at = now
            heartbeat = self.settings.heartbeat_seconds
            progress.probe_pause = min(
                progress.probe_pause * 2 or heartbeat, heartbeat * _LONGEST_PROBE_PAUSE
            )

    def send_run(self, peer: int, progress: Progress, now: float) -> bool:
        """Send one append message with what follows `next`; false when it could not leave."""
        previous = progress.next - 1
        previous_term = self.journal.term_at(previous)
        if previous_term is None:
            self.start_snapshot(peer, progress)
            return False
        packed, last = _EMPTY, previous
        if progress.next <= self.journal.last:
            last, packed = self.journal.run_after(previous, self.settings.max_append_bytes)
        message = Append(
            self.id, MessageKind.APPEND, self.term, previous, previous_term, self.commit, packed, now
        )
        if not self.host.send(peer, message):
            return False
        progress.sent_at = now
        if packed and progress.phase is Phase.REPLICATE:
            progress.sent(last, len(packed))
        return True

    def send_heartbeat(self, peer: int, progress: Progress, now: float) -> None:
        """Tell a follower that its leader is there, and what is committed; it proves a match if it can.

        A follower that receives a snapshot is asked about the empty beginning, which always matches.
        """
        if progress.phase is Phase.PROBE:
            self.send_probe(peer, progress, now)
            return
        previous = 0 if progress.phase is Phase.SNAPSHOT else progress.next - 1
        previous_term = self.journal.term_at(previous) if previous else 0
        if previous_term is None:
            self.start_snapshot(peer, progress)
            return
        message = Append(
            self.id, MessageKind.APPEND, self.term, previous, previous_term, self.commit, _EMPTY, now
        )
        if self.host.send(peer, message):
            progress.sent_at = now

    def on_append_reply(self, peer: int, reply: AppendReply) -> None:
        progress = self.progress.get(peer)
        if self.role != LEADER or progress is None:
            return
        progress.acked_sent_at = max(progress.acked_sent_at, reply.sent_at)
        progress.probe_pause = 0.0
        index = reply.log_index
        if not reply.accepted:
            self._on_rejected(peer, progress, reply)
        else:
            if index > self.journal.last:
                raise BadMessage(f"group {self.id}: a match at entry {index}, beyond the leader's log")
            news = progress.accepted(index)
            if progress.phase is Phase.PROBE or (
                progress.phase is Phase.SNAPSHOT and progress.match >= self.journal.base
            ):
                progress.replicate()
                self.end_snapshot(peer)
                news = True
            if news:
                self.lost_acknowledged.discard(peer)
                self._use_match(progress)
        self.on_confirmed()

    def _use_match(self, progress: Progress) -> None:
        """A follower got further: let the group work if that may commit, send or finish anything."""
        if progress.match > self.commit or progress.next <= self.journal.last or self.awaits_follower():
            self.host.wake(self)
        if self.held:
            self.held.release(self.matches())

    def _on_rejected(self, peer: int, progress: Progress, reply: AppendReply) -> None:
        index, hint = reply.log_index, reply.hint
        if progress.phase is Phase.PROBE and index == progress.match and index > 0 and hint < index:
            self.lost_acknowledged.add(peer)
            return
        self.end_quiet_towards(peer, progress)
        if reply.hint_term:
            hint = self.journal.last_index_not_above(min(hint, self.journal.last), reply.hint_term)
        if progress.rejected(index, hint):
            self.send_entries(peer, progress, self.host.now())

    def advance_commit(self) -> None:
        """Commit what a majority holds durably, if it is of the own term (Raft §5.3, §5.4.2)."""
        index = int(majority_of(self.matches()))
        if index > self.commit and self.may_commit(index):
            self.commit = index

    def matches(self) -> list[int]:
        """For every voter the index up to which its durable log is known to be the leader's."""
        me = self.host.node_id
        return [self.own_match() if node == me else self.match_of(node) for node in self.voters]

    def match_of(self, peer: int) -> int:
        """A newcomer's log counts once it has a vote: until then its folder may have had a predecessor that
        acknowledged more."""
        progress = self.progress.get(peer)
        return progress.match if progress is not None and not self.host.is_newcomer(peer) else 0

    def own_match(self) -> int:
        """The leader counts itself only for what its own disk has confirmed."""
        return self.journal.synced

    def may_commit(self, index: int) -> bool:
        """Only entries of the leader's current term are committed by counting replicas (Raft §5.4.2)."""
        return self.journal.term_at(index) == self.term

    # The follower's side.

    def on_append(self, peer: int, message: Append) -> None:
        entries = read_run(message) if message.entries else []
        self.follow(peer)
        if self.quiet_under != peer:
            self.leave_quiet()
        if self.damaged_below is not None:
            self.leave_quiet()
            need = NeedSnapshot(
                self.id, MessageKind.NEED_SNAPSHOT, self.term, self.damaged_below, message.sent_at
            )
            self.host.send_when_synced(peer, need)
            return
        if self.host.backlogged() and entries:
            return
        previous, packed = message.previous, message.entries
        if previous < self.commit:
            # What is committed here is in this leader's log too (leader completeness, Raft §5.4.3).
            entries = entries[self.commit - previous :]
            packed = _EMPTY
            proven = max(previous, self.commit)
        elif self.journal.term_at(previous) == message.previous_term:
            proven = previous
        else:
            self._reject(peer, message)
            return
        proven = self._accept(entries, packed, proven)
        self.commit = max(self.commit, self.commit_limit(message.commit, proven))
        sent_at = message.sent_at
        if self.ack is not None and self.ack[:2] == (peer, self.term):
            proven, sent_at = max(proven, self.ack[2]), max(sent_at, self.ack[3])
        self.ack = (peer, self.term, proven, sent_at)
        self.host.wake(self)

    def commit_limit(self, leader_commit: int, proven: int) -> int:
        """How far a follower may commit: never beyond what this message has proven to match.

        PySyncObj takes the end of its own log, which may hold entries the leader does not have.
        """
        return min(leader_commit, proven)

    def _accept(self, entries: Sequence[Entry], packed: bytes, proven: int) -> int:
        """Add what is new, after dropping what conflicts; the index up to which the logs now match."""
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
        self.note_configurations(entries)
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
        """Delete from a conflicting entry on; never what is committed."""
        if index <= self.commit:
            raise SafetyViolation(
                f"group {self.id}: the leader of term {self.term} conflicts with committed entry {index}"
            )
        self.drop_from(index)
        self.forget_configurations(index)

    def _reject(self, peer: int, message: Append) -> None:
        self.leave_quiet()
        hint = self.journal.last_index_not_above(
            min(message.previous, self.journal.last), message.previous_term
        )
        reply = AppendReply(
            self.id, MessageKind.APPEND_REPLY, self.term,
            False, message.previous, hint, self.journal.term_at(hint) or 0, message.sent_at,
        )  # fmt: skip
        self.host.send_when_synced(peer, reply)

    def send_ack(self) -> None:
        """Answer the turn's append messages at once, when all they brought is durable.

        A match that was proven in an earlier term says nothing to the leader of this one.
        """
        if self.ack is None:
            return
        peer, term, match, sent_at = self.ack
        self.ack = None
        if term != self.term:
            return
        message = AppendReply(self.id, MessageKind.APPEND_REPLY, self.term, True, match, 0, 0, sent_at)
        self.host.send_when_synced(peer, message)

    # Declared here because another layer defines them.

    def awaits_follower(self) -> bool:
        raise NotImplementedError

    def end_quiet_towards(self, peer: int, progress: Progress) -> None:
        raise NotImplementedError

    def start_snapshot(self, peer: int, progress: Progress, least_index: int = 0) -> None:
        raise NotImplementedError

    def end_snapshot(self, peer: int) -> None:
        raise NotImplementedError

    def on_confirmed(self) -> None:
        raise NotImplementedError

    def note_configurations(self, entries: Sequence[Entry]) -> None:
        raise NotImplementedError

    def forget_configurations(self, index: int) -> None:
        raise NotImplementedError
