"""Receiving and installing a leader's snapshot (Raft §7).

PySyncObj took an older snapshot back, cleared the journal when a dump and the log did not line up, and
went on with an empty state when a dump was bad. Here a snapshot at or below the commit index changes
nothing, what the log holds above a snapshot stays, and a bad one stops the replica until a leader sends
another.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from strandline.node.raft.outcome import Unknown
from strandline.node.raft.rules.messages import MessageKind, SnapshotChunk, SnapshotReply
from strandline.node.raft.rules.replica_state import SafetyViolation
from strandline.node.raft.snapshots.sending import SnapshotSending
from strandline.node.raft.snapshots.taking import note_untidy
from strandline.node.raft.snapshots.transfer import Receiver, Status
from strandline.snapshot.document import SnapshotDamaged, SnapshotDocument, SnapshotTooNew

log = logging.getLogger(__name__)


class SnapshotReceiving(SnapshotSending):
    """A follower's side of it."""

    def __init__(self, *args: Any) -> None:
        self.receiver: Receiver | None = None
        self.opening = False
        super().__init__(*args)

    def on_snapshot(self, peer: int, chunk: SnapshotChunk) -> None:
        self.follow(peer)
        self.leave_quiet()
        if self.has_applied_enough(chunk.snapshot_index):
            self._reply_snapshot(peer, chunk, chunk.total, Status.DONE)
            return
        if self.host.disk_stalled():
            # Installing one is a record each time, and none of them could be written.
            return
        if self.receiver is None or self.receiver.key != chunk.snapshot:
            self.drop_receiver()
            if self.opening:
                return
            if chunk.offset == 0:
                self.opening = True
                self.blocking(
                    partial(self.host.snapshots.open_incoming, self.id),
                    partial(self._opened, peer, chunk),
                )
            else:
                self._reply_snapshot(peer, chunk, 0, Status.CONTINUE)
            return
        self._take_chunk(self.receiver, peer, chunk)

    def has_applied_enough(self, index: int) -> bool:
        """A snapshot at or below the commit index is ignored: it would take the state back."""
        if self.damaged_below is not None:
            return index < self.damaged_below
        return index <= self.commit

    def _opened(self, peer: int, chunk: SnapshotChunk, file: Any, error: Exception | None) -> None:
        self.opening = False
        if error is not None:
            log.error("group %d: a snapshot cannot be received: %s", self.id, error)
            return
        self.receiver = Receiver(chunk.snapshot, file)
        self._take_chunk(self.receiver, peer, chunk)

    def _take_chunk(self, receiver: Receiver, peer: int, chunk: SnapshotChunk) -> None:
        job = receiver.take(chunk.offset, chunk.data)
        if job is None:
            if receiver.expected < receiver.total:
                self._reply_snapshot(peer, chunk, receiver.expected, Status.CONTINUE)
            return
        self.blocking(job, partial(self._chunk_written, receiver, peer, chunk))

    def _chunk_written(
        self, receiver: Receiver, peer: int, chunk: SnapshotChunk, written: Any, error: Exception | None
    ) -> None:
        if receiver.abandoned or self.failure is not None:
            return
        if error is not None:
            log.error("group %d: a snapshot's chunk cannot be written: %s", self.id, error)
            self.drop_receiver()
            return
        receiver.written = written
        if written < receiver.total:
            self._reply_snapshot(peer, chunk, written, Status.CONTINUE)
            return
        self.receiver = None
        self.blocking(
            partial(self.host.snapshots.adopt_incoming, receiver.file, self.id, chunk.snapshot_index),
            partial(self._adopted, peer, chunk),
        )

    def _adopted(self, peer: int, chunk: SnapshotChunk, document: Any, error: Exception | None) -> None:
        if self.failure is not None:
            return
        if error is not None:
            log.error("group %d: the snapshot that arrived cannot be used: %s", self.id, error)
            if isinstance(error, SnapshotDamaged | SnapshotTooNew):
                self._reply_snapshot(peer, chunk, 0, Status.BAD)
            return
        self.install(document)
        self._reply_snapshot(peer, chunk, chunk.total, Status.DONE)

    def _reply_snapshot(self, peer: int, chunk: SnapshotChunk, offset: int, status: Status) -> None:
        reply = SnapshotReply(
            self.id,
            MessageKind.SNAPSHOT_REPLY,
            self.term,
            chunk.snapshot_index,
            offset,
            int(status),
            chunk.sent_at,
        )
        self.host.send_when_synced(peer, reply)

    def drop_receiver(self) -> None:
        """Abandon what arrives, and delete it."""
        receiver, self.receiver = self.receiver, None
        if receiver is not None:
            receiver.abandoned = True
            self.blocking(partial(self.host.snapshots.discard_incoming, receiver.file, self.id), note_untidy)

    # Installing.

    def install(self, document: SnapshotDocument) -> None:
        """Replace the state by a snapshot's, atomically on the loop; keep the log's matching suffix."""
        if self.has_applied_enough(document.index):
            return
        if document.kind != self.machine.kind:
            raise SafetyViolation(
                f"group {self.id}: a snapshot of a {document.kind} for a {self.machine.kind}"
            )
        self.machine.restore(document.state)
        self.remember_snapshot(document)
        if self.keeps_suffix(document):
            self.journal.record_snapshot(document.index, document.term, document.voters, document.learners)
            self.drop_below(document.index)
            newer = [known for known in self.configurations if known.index > document.index]
            self.configurations = [self.snapshot_members, *newer]
        else:
            self.journal.reset(document.index, document.term, document.voters, document.learners)
            self.configurations = [self.snapshot_members]
        self.applied = document.index
        self.commit = max(self.commit, document.index)
        self.damaged_below = None
        self.bytes_since_snapshot = 0
        self._configuration_changed()
        for index in [index for index in self.waiting if index <= document.index]:
            self.end_waiting(index, Unknown("a snapshot covered the command before it was seen applied"))
        self.release_applied()
        self.host.wake(self)
        self.blocking(partial(self.host.snapshots.drop, self.id, document.index), note_untidy)

    def keeps_suffix(self, document: SnapshotDocument) -> bool:
        """The log goes on after the snapshot if it holds the snapshot's last entry (Raft §7)."""
        return self.journal.term_at(document.index) == document.term
