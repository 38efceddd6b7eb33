"""A leader's side of log replication (Raft §5.3), event-driven and pipelined.

The leader sends a turn's entries to every follower while its own disk is still writing them (thesis §10.2.1)
and counts itself only once they are durable.
"""

from __future__ import annotations

import logging

from strandline.node.raft.bad_message import BadMessage
from strandline.node.raft.rules.in_sync_replicas import InSyncReplicas
from strandline.node.raft.rules.messages import (
    AppendEntries,
    AppendReply,
    MessageKind,
)
from strandline.node.raft.rules.progress import Phase, Progress
from strandline.node.raft.rules.quiescence import Quiescence
from strandline.node.raft.rules.replica_state import Part, ReplicaState
from strandline.node.raft.rules.snapshot_protocols import SnapshotSender

log = logging.getLogger(__name__)


_EMPTY = b""
_LONGEST_PROBE_PAUSE = 8
"""In heartbeats."""


class Replication(Part):
    """Sends entries to the followers, and learns how far each log matches."""

    __slots__ = ("isr", "quiescence", "sending")

    def __init__(
        self, state: ReplicaState, quiescence: Quiescence, isr: InSyncReplicas, sending: SnapshotSender
    ) -> None:
        super().__init__(state)
        self.quiescence = quiescence
        self.isr = isr
        self.sending = sending

    def pump(self) -> None:
        """Send every follower the entries it lacks, within the bounds on messages in flight."""
        last = self.journal.last
        for peer, progress in self.state.progress.items():
            has_all = progress.phase is Phase.REPLICATE and progress.next > last
            if not has_all and self.host.connected(peer):
                self.send_entries(peer, progress, self.host.now())

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
        """Send one append message with the entries from `next` on; False if it could not be sent."""
        state = self.state
        previous = progress.next - 1
        previous_term = self.journal.term_at(previous)
        if previous_term is None:
            self.sending.start(peer, progress)
            return False
        packed, last = _EMPTY, previous
        if progress.next <= self.journal.last:
            last, packed = self.journal.run_after(previous, self.settings.max_append_bytes)
        message = AppendEntries(
            state.id, MessageKind.APPEND, state.term, previous, previous_term, state.commit, packed, now
        )
        if not self.host.send(peer, message):
            return False
        progress.sent_at = now
        if packed and progress.phase is Phase.REPLICATE:
            progress.sent(last, len(packed))
        return True

    def send_heartbeat(self, peer: int, progress: Progress, now: float) -> None:
        """Send a follower a heartbeat with the commit index; it also proves a match if it can.

        A follower that receives a snapshot is asked about the empty log, which always matches.
        """
        state = self.state
        if progress.phase is Phase.PROBE:
            self.send_probe(peer, progress, now)
            return
        previous = 0 if progress.phase is Phase.SNAPSHOT else progress.next - 1
        previous_term = self.journal.term_at(previous) if previous else 0
        if previous_term is None:
            self.sending.start(peer, progress)
            return
        message = AppendEntries(
            state.id, MessageKind.APPEND, state.term, previous, previous_term, state.commit, _EMPTY, now
        )
        if self.host.send(peer, message):
            progress.sent_at = now

    def tell_commit(self) -> None:
        """Tell the followers at once what is committed; with no more entries they hear it by a heartbeat."""
        now = self.host.now()
        for peer, progress in self.state.progress.items():
            if self.host.connected(peer):
                self.send_heartbeat(peer, progress, now)

    def on_append_reply(self, peer: int, progress: Progress, reply: AppendReply) -> None:
        """A follower matches further, or has no entry where the logs were thought to match."""
        state = self.state
        progress.answered(reply.sent_at)
        progress.probe_pause = 0.0
        index = reply.log_index
        if not reply.accepted:
            self._on_rejected(peer, progress, reply)
        else:
            if index > self.journal.last:
                raise BadMessage(f"group {state.id}: a match at entry {index}, beyond the leader's log")
            news = progress.accepted(index)
            if progress.phase is Phase.PROBE or (
                progress.phase is Phase.SNAPSHOT and progress.match >= self.journal.base
            ):
                progress.replicate()
                self.sending.end(peer)
                news = True
            if news:
                state.lost_acknowledged.discard(peer)
                self._use_match(progress)

    def _use_match(self, progress: Progress) -> None:
        """A follower got further: let the group work if that may commit, send or finish anything."""
        state = self.state
        if progress.match > state.commit or progress.next <= self.journal.last or self.awaits_follower():
            self.host.wake(state)
        self.isr.release()

    def _on_rejected(self, peer: int, progress: Progress, reply: AppendReply) -> None:
        state = self.state
        index, hint = reply.log_index, reply.hint
        if progress.phase is Phase.PROBE and index == progress.match and index > 0 and hint < index:
            if peer not in state.lost_acknowledged:
                state.lost_acknowledged.add(peer)
                log.error(
                    "group %d: node %d no longer holds entries up to %d, which it had acknowledged: its data"
                    " folder is an older copy, or its disk lost what was synced: stop that node, empty its"
                    " folder, start it, and let it in with `strandline node replace %d`",
                    state.id, peer, index, peer,
                )  # fmt: skip
            return
        self.quiescence.end_towards(peer, progress)
        if reply.hint_term:
            hint = self.journal.last_index_not_above(min(hint, self.journal.last), reply.hint_term)
        if progress.rejected(index, hint):
            self.send_entries(peer, progress, self.host.now())

    def awaits_follower(self) -> bool:
        """A change or a transfer goes on when a follower gets further."""
        state = self.state
        return state.joining is not None or state.transfer_target is not None
