"""Taking, sending, receiving and installing snapshots (Raft §7), and repairing a replica that lost its own.

PySyncObj took an older snapshot back, cleared the journal when a dump and the log did not line up, and
went on with an empty state when a dump was bad. Here a snapshot at or below the commit index changes
nothing, what the log holds above a snapshot stays, and a bad one stops the replica until a leader sends
another.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from node.raft.disk import DiskFile
from node.raft.group_state import Configuration, SafetyViolation
from node.raft.membership import Membership
from node.raft.messages import BadMessage, MessageKind
from node.raft.outcome import Unknown
from node.raft.progress import NEVER, Phase, Progress
from node.raft.pysyncobj_seam import LEADER
from node.raft.snapshot_transfer import Receiver, Sender, Status
from snapshot.document import DIGEST_BYTES, MAGIC, SnapshotDamaged, SnapshotDocument, SnapshotTooNew

log = logging.getLogger(__name__)

_RETRY_SECONDS = 5.0
"""Pause before a snapshot that could not be stored is tried again: each try serializes the whole state."""


class Snapshots(Membership):
    """A replica's snapshots: its own, and those it gives to and takes from others."""

    def __init__(self, *args: Any) -> None:
        self.snapshot_index = 0
        """Index of the newest durable snapshot on this node; 0 for none."""
        self.snapshot_term = 0
        self.snapshot_members = Configuration(0, ())
        self.saving = False
        self.bytes_since_snapshot = 0
        self.senders: dict[int, Sender] = {}
        self.wanted: dict[int, int] = {}
        """Followers that wait for this node's next snapshot, with the least index that helps them."""
        self.resting: set[int] = set()
        """Followers that could not use a snapshot, until another is stored for them."""
        self.replaced_at = NEVER
        self.receiver: Receiver | None = None
        self.opening = False
        self.stored_is_bad = False
        """A follower found this node's newest snapshot file damaged: store it again."""
        super().__init__(*args)

    # Taking.

    def snapshot_due(self) -> bool:
        """Enough was applied since the last snapshot, or a follower waits for one."""
        entries = self.applied - self.snapshot_index
        return entries > 0 and (
            entries >= self.settings.snapshot_entries
            or self.bytes_since_snapshot >= self.settings.snapshot_bytes
            or bool(self.wanted)
        )

    def take_snapshot(self) -> bool:
        """Capture the state as of what is applied and store it off the loop; whether one was begun."""
        fresh = self.applied > self.snapshot_index or (self.stored_is_bad and self.applied > 0)
        if self.saving or not fresh or self.damaged_below is not None:
            return False
        index = self.applied
        term = self.journal.term_at(index)
        assert term is not None
        members = self.configuration_at(index)
        if not members.voters:
            # A node that joined by the log learns the members with the entry that added it, not before.
            return False
        document = SnapshotDocument(
            self.host.cluster_id, self.machine.kind, self.id, index, term,
            members.voters, members.learners, self.machine.snapshot(),
        )  # fmt: skip
        self.saving = True
        self.bytes_since_snapshot = 0
        self._blocking(partial(self.host.snapshots.save, document), partial(self._saved, document))
        return True

    def _saved(self, document: SnapshotDocument, _: Any, error: Exception | None) -> None:
        if error is not None:
            log.error(
                "group %d: snapshot %d could not be stored: %s: free or repair the disk; next try in %.0f s",
                self.id, document.index, error, _RETRY_SECONDS,
            )  # fmt: skip
            self.host.later(_RETRY_SECONDS, self, self._try_saving_again)
            return
        self.saving = False
        if self.failure is not None:
            return
        self.stored_is_bad = False
        if document.index > self.snapshot_index:
            self._note_snapshot(document)
            self.drop_covered(document.index)
        for peer in list(self.wanted):
            progress = self.progress.get(peer)
            least = self.wanted.pop(peer)
            if progress is not None:
                self.start_snapshot(peer, progress, least)

    def _try_saving_again(self) -> None:
        self.saving = False
        if self.snapshot_due() or self.stored_is_bad:
            self.take_snapshot()

    def _note_snapshot(self, document: SnapshotDocument) -> None:
        """A snapshot is durable: say so in the log, and delete older ones once that is durable too."""
        self.remember_snapshot(document)
        index = document.index
        self.journal.record_snapshot(index, document.term, document.voters, document.learners)
        self.host.wake(self)
        self.host.when_synced(
            lambda: self._blocking(partial(self.host.snapshots.drop, self.id, index), _ignore)
        )

    def remember_snapshot(self, document: SnapshotDocument) -> None:
        """Keep what identifies this node's newest durable snapshot."""
        self.snapshot_index = document.index
        self.snapshot_term = document.term
        self.snapshot_members = Configuration(document.index, document.voters, document.learners)

    def record_again(self) -> None:
        """Write term, vote and base again, so that the segment they lie in is not needed for them."""
        self.journal.record_state()
        if self.snapshot_index and self.damaged_below is None:
            members = self.snapshot_members
            self.journal.record_snapshot(
                self.snapshot_index, self.snapshot_term, members.voters, members.learners
            )
        elif self.applied:
            self.take_snapshot()
        elif self.journal.last == 0:
            self.journal.reset(0, 0, self.configurations[0].voters, self.configurations[0].learners)

    def drop_covered(self, index: int) -> None:
        """Let go of the entries a snapshot stands for, but for a few that a slow follower may still need."""
        keep_from = index - self.settings.trailing_entries
        if self.journal.term_at(keep_from) is not None and keep_from > self.journal.base:
            self.drop_below(keep_from)
        self.compact_configurations(self.journal.base)

    # Sending.

    def start_snapshot(self, peer: int, progress: Progress, least_index: int = 0) -> None:
        """Bring a follower up by snapshot: its next entry is no longer in the log, or its state is gone."""
        progress.snapshot()
        if peer in self.senders or peer in self.resting:
            return
        if self.snapshot_index < max(least_index, self.journal.base, 1):
            self.wanted[peer] = least_index
            self.take_snapshot()
            return
        index = self.snapshot_index
        self._blocking(partial(self._open_for_sending, index), partial(self._begin_sending, peer, index))

    def _open_for_sending(self, index: int) -> tuple[DiskFile, bytes]:
        file = self.host.snapshots.open(self.id, index)
        digest = file.pread(DIGEST_BYTES, len(MAGIC))
        if len(digest) < DIGEST_BYTES:
            file.close()
            raise SnapshotDamaged("the file is cut short")
        return file, digest

    def _begin_sending(self, peer: int, index: int, opened: Any, error: Exception | None) -> None:
        progress = self.progress.get(peer)
        if error is not None:
            self._replace_stored(peer, index, f"cannot be sent: {error}")
            return
        file, digest = opened
        if (
            self.role != LEADER
            or progress is None
            or progress.phase is not Phase.SNAPSHOT
            or peer in self.senders
        ):
            file.close()
            return
        self.senders[peer] = Sender(
            file, index, self.journal.term_at(index) or 0, digest,
            self.settings.snapshot_chunk_bytes, self.settings.snapshot_window, self.host.now(),
        )  # fmt: skip
        self._send_chunks(peer)

    def _send_chunks(self, peer: int) -> None:
        sender = self.senders[peer]
        while (chunk := sender.next_chunk()) is not None:
            offset, size = chunk
            self._blocking(
                partial(sender.file.pread, size, offset), partial(self._chunk_read, peer, sender, offset)
            )

    def _chunk_read(self, peer: int, sender: Sender, offset: int, data: Any, error: Exception | None) -> None:
        if self.senders.get(peer) is not sender:
            return
        if error is not None:
            self.end_snapshot(peer)
            self._replace_stored(peer, sender.index, f"cannot be read: {error}")
            return
        message = [
            self.id, MessageKind.SNAPSHOT, self.term,
            sender.index, sender.term, offset, sender.total, sender.digest, data, self.host.now(),
        ]  # fmt: skip
        self.host.send(peer, message)

    def _replace_stored(self, peer: int, index: int, why: str) -> None:
        """This node's own file is bad: store the state again, which is sound, and send that."""
        log.error("group %d: stored snapshot %d %s: storing the state again", self.id, index, why)
        if self.role != LEADER or peer not in self.progress:
            return
        self.stored_is_bad = True
        self.resting.add(peer)
        wait = self.replaced_at + _RETRY_SECONDS - self.host.now()
        if wait > 0:
            # A follower that can read none of them, as one of an older release, must not keep us at it.
            self.host.later(wait, self, partial(self._store_again, peer, index))
        else:
            self._store_again(peer, index)

    def _store_again(self, peer: int, index: int) -> None:
        self.resting.discard(peer)
        if self.role == LEADER and peer in self.progress:
            self.replaced_at = self.host.now()
            self.wanted[peer] = index
            self.take_snapshot()

    def on_snapshot_reply(self, peer: int, index: int, offset: int, status: int, sent_at: float) -> None:
        progress = self.progress.get(peer)
        if self.role != LEADER or progress is None:
            return
        progress.acked_sent_at = max(progress.acked_sent_at, sent_at)
        self.on_confirmed()
        sender = self.senders.get(peer)
        if sender is None or sender.index != index:
            return
        if offset > sender.total or status > Status.BAD:
            raise BadMessage(f"group {self.id}: an answer to snapshot {index} that cannot be")
        if status == Status.CONTINUE:
            sender.acknowledged(offset, self.host.now())
            self._send_chunks(peer)
            return
        self.end_snapshot(peer)
        if status == Status.DONE:
            progress.accepted(index)
            progress.probe(progress.match + 1)
            self.host.wake(self)
        else:
            self._replace_stored(peer, index, f"is damaged, as node {peer} found")

    def on_need_snapshot(self, peer: int, least: int, sent_at: float) -> None:
        """A follower's stored state is bad: whatever it acknowledged is in its log, its state is not."""
        progress = self.progress.get(peer)
        if self.role != LEADER or progress is None:
            return
        if least > self.journal.last:
            raise BadMessage(f"group {self.id}: snapshot {least} is wanted, beyond the leader's log")
        progress.acked_sent_at = max(progress.acked_sent_at, sent_at)
        self.on_confirmed()
        if peer in self.senders or peer in self.wanted or peer in self.resting:
            return
        self.end_quiet_towards(peer, progress)
        self.start_snapshot(peer, progress, least)

    def tick_snapshot(self, peer: int, now: float) -> None:
        sender = self.senders.get(peer)
        if sender is not None and now - sender.progress_at > self.settings.election_max_seconds:
            sender.rewind(now)
            self._send_chunks(peer)

    def end_snapshot(self, peer: int) -> None:
        sender = self.senders.pop(peer, None)
        if sender is not None:
            self._blocking(sender.file.close, _ignore)
        self.wanted.pop(peer, None)

    def abandon_transfers(self) -> None:
        for peer in list(self.senders):
            self.end_snapshot(peer)
        self.wanted.clear()

    # Receiving.

    def on_snapshot(
        self,
        peer: int,
        index: int,
        term: int,
        offset: int,
        total: int,
        digest: bytes,
        data: bytes,
        sent_at: float,
    ) -> None:
        self.follow(peer)
        self.leave_quiet()
        if self.has_applied_enough(index):
            self._reply_snapshot(peer, index, total, Status.DONE, sent_at)
            return
        key = (index, term, total, digest)
        if self.receiver is None or self.receiver.key != key:
            self.drop_receiver()
            if self.opening:
                return
            if offset == 0:
                self.opening = True
                self._blocking(
                    partial(self.host.snapshots.open_incoming, self.id),
                    partial(self._opened, key, peer, offset, data, sent_at),
                )
            else:
                self._reply_snapshot(peer, index, 0, Status.CONTINUE, sent_at)
            return
        self._take_chunk(self.receiver, peer, offset, data, sent_at)

    def has_applied_enough(self, index: int) -> bool:
        """A snapshot at or below the commit index is ignored: it would take the state back."""
        if self.damaged_below is not None:
            return index < self.damaged_below
        return index <= self.commit

    def _opened(
        self,
        key: tuple[int, int, int, bytes],
        peer: int,
        offset: int,
        data: bytes,
        sent_at: float,
        file: Any,
        error: Exception | None,
    ) -> None:
        self.opening = False
        if error is not None:
            log.error("group %d: a snapshot cannot be received: %s", self.id, error)
            return
        self.receiver = Receiver(key, file)
        self._take_chunk(self.receiver, peer, offset, data, sent_at)

    def _take_chunk(self, receiver: Receiver, peer: int, offset: int, data: bytes, sent_at: float) -> None:
        job = receiver.take(offset, data)
        if job is None:
            if receiver.expected < receiver.total:
                self._reply_snapshot(peer, receiver.key[0], receiver.expected, Status.CONTINUE, sent_at)
            return
        self._blocking(job, partial(self._chunk_written, receiver, peer, sent_at))

    def _chunk_written(
        self, receiver: Receiver, peer: int, sent_at: float, written: Any, error: Exception | None
    ) -> None:
        if receiver.abandoned or self.failure is not None:
            return
        if error is not None:
            log.error("group %d: a snapshot's chunk cannot be written: %s", self.id, error)
            self.drop_receiver()
            return
        receiver.written = written
        index = receiver.key[0]
        if written < receiver.total:
            self._reply_snapshot(peer, index, written, Status.CONTINUE, sent_at)
            return
        self.receiver = None
        self._blocking(
            partial(self.host.snapshots.adopt_incoming, receiver.file, self.id, index),
            partial(self._adopted, receiver, peer, sent_at),
        )

    def _adopted(
        self, receiver: Receiver, peer: int, sent_at: float, document: Any, error: Exception | None
    ) -> None:
        if self.failure is not None:
            return
        index, _, total, _ = receiver.key
        if error is not None:
            log.error("group %d: the snapshot that arrived cannot be used: %s", self.id, error)
            if isinstance(error, SnapshotDamaged | SnapshotTooNew):
                self._reply_snapshot(peer, index, 0, Status.BAD, sent_at)
            return
        self.install(document)
        self._reply_snapshot(peer, index, total, Status.DONE, sent_at)

    def _reply_snapshot(self, peer: int, index: int, offset: int, status: Status, sent_at: float) -> None:
        message = [self.id, MessageKind.SNAPSHOT_REPLY, self.term, index, offset, int(status), sent_at]
        self.host.send_when_synced(peer, message)

    def _blocking(self, job: Callable[[], Any], done: Callable[[Any, Exception | None], None]) -> None:
        """Run a disk job off the loop; what goes wrong in `done` stops this replica alone."""
        self.host.run_blocking(job, partial(self.host.guard, self, done))

    def drop_receiver(self) -> None:
        """Abandon what arrives, and delete it."""
        receiver, self.receiver = self.receiver, None
        if receiver is not None:
            receiver.abandoned = True
            self._blocking(partial(self.host.snapshots.discard_incoming, receiver.file, self.id), _ignore)

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
        self._blocking(partial(self.host.snapshots.drop, self.id, document.index), _ignore)

    def keeps_suffix(self, document: SnapshotDocument) -> bool:
        """The log goes on after the snapshot if it holds the snapshot's last entry (Raft §7)."""
        return self.journal.term_at(document.index) == document.term


def _ignore(_: Any, error: Exception | None) -> None:
    if error is not None:
        log.warning("snapshot file could not be tidied up: %s", error)
