"""Sending a snapshot to a follower that needs what is no longer in the log, or lost its state (Raft §7)."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from strandline.node.raft.bad_message import BadMessage
from strandline.node.raft.disk import DiskFile
from strandline.node.raft.pysyncobj_seam import LEADER
from strandline.node.raft.rules.messages import MessageKind, NeedSnapshot, SnapshotChunk, SnapshotReply
from strandline.node.raft.rules.progress import NEVER, Phase, Progress
from strandline.node.raft.snapshots.taking import RETRY_SECONDS, SnapshotTaking, note_untidy
from strandline.node.raft.snapshots.transfer import Sender, Status
from strandline.snapshot.document import DIGEST_BYTES, MAGIC, SnapshotDamaged

log = logging.getLogger(__name__)


class SnapshotSending(SnapshotTaking):
    """A leader's side of bringing followers up by snapshot."""

    def __init__(self, *args: Any) -> None:
        self.senders: dict[int, Sender] = {}
        self.resting: set[int] = set()
        """Followers that could not use a snapshot, until another is stored for them."""
        self.replaced_at = NEVER
        super().__init__(*args)

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
        self.blocking(partial(self._open_for_sending, index), partial(self._begin_sending, peer, index))

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
            self.blocking(
                partial(sender.file.pread, size, offset), partial(self._chunk_read, peer, sender, offset)
            )

    def _chunk_read(self, peer: int, sender: Sender, offset: int, data: Any, error: Exception | None) -> None:
        if self.senders.get(peer) is not sender:
            return
        if error is not None:
            self.end_snapshot(peer)
            self._replace_stored(peer, sender.index, f"cannot be read: {error}")
            return
        message = SnapshotChunk(
            self.id, MessageKind.SNAPSHOT, self.term,
            sender.index, sender.term, offset, sender.total, sender.digest, data, self.host.now(),
        )  # fmt: skip
        self.host.send(peer, message)

    def _replace_stored(self, peer: int, index: int, why: str) -> None:
        """This node's own file is bad: store the state again, which is sound, and send that."""
        log.error("group %d: stored snapshot %d %s: storing the state again", self.id, index, why)
        if self.role != LEADER or peer not in self.progress:
            return
        self.stored_is_bad = True
        self.resting.add(peer)
        wait = self.replaced_at + RETRY_SECONDS - self.host.now()
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

    def on_snapshot_reply(self, peer: int, reply: SnapshotReply) -> None:
        progress = self.progress.get(peer)
        if self.role != LEADER or progress is None:
            return
        progress.acked_sent_at = max(progress.acked_sent_at, reply.sent_at)
        self.on_confirmed()
        index, offset, status = reply.snapshot_index, reply.offset, reply.status
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

    def on_need_snapshot(self, peer: int, need: NeedSnapshot) -> None:
        """A follower's stored state is bad: whatever it acknowledged is in its log, its state is not."""
        progress = self.progress.get(peer)
        if self.role != LEADER or progress is None:
            return
        if need.least > self.journal.last:
            raise BadMessage(f"group {self.id}: snapshot {need.least} is wanted, beyond the leader's log")
        progress.acked_sent_at = max(progress.acked_sent_at, need.sent_at)
        self.on_confirmed()
        if peer in self.senders or peer in self.wanted or peer in self.resting:
            return
        self.end_quiet_towards(peer, progress)
        self.start_snapshot(peer, progress, need.least)

    def tick_snapshot(self, peer: int, now: float) -> None:
        sender = self.senders.get(peer)
        if sender is not None and now - sender.progress_at > self.settings.election_max_seconds:
            sender.rewind(now)
            self._send_chunks(peer)

    def end_snapshot(self, peer: int) -> None:
        sender = self.senders.pop(peer, None)
        if sender is not None:
            self.blocking(sender.file.close, note_untidy)
        self.wanted.pop(peer, None)

    def abandon_transfers(self) -> None:
        for peer in list(self.senders):
            self.end_snapshot(peer)
        self.wanted.clear()
