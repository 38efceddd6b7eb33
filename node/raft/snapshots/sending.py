"""Sends snapshots to followers that need entries no longer in the log, or lost their state (Raft §7)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from math import inf
from typing import Any, Final, NamedTuple

from strandline.node.raft.bad_message import BadMessage
from strandline.node.raft.disk import DiskFile
from strandline.node.raft.pysyncobj_seam import LEADER
from strandline.node.raft.rules.messages import (
    MessageKind,
    NeedSnapshot,
    SnapshotChunk,
    SnapshotReply,
)
from strandline.node.raft.rules.progress import NEVER, Phase, Progress
from strandline.node.raft.rules.quiescence import Quiescence
from strandline.node.raft.rules.replica_state import Part, ReplicaState
from strandline.node.raft.snapshots.store import SnapshotStore
from strandline.node.raft.snapshots.taking import RETRY_SECONDS, SnapshotTaking, note_untidy
from strandline.node.raft.snapshots.transfer import Sender, Status
from strandline.snapshot.document import (
    DIGEST_BYTES,
    MAGIC,
    SnapshotDamaged,
)

log = logging.getLogger(__name__)

STUCK_SECONDS: Final = 30.0
"""Time after which the log keeps nothing for a receiver that starts over and gets no further: a full disk."""


class Brought(NamedTuple):
    """A follower that was sent a snapshot and is not level yet."""

    snapshot_index: int
    """That of the newest one."""
    begun_at: float
    """Time of this node's loop at which its sending began."""


class SnapshotSending(Part):
    """A leader's side of bringing followers up by snapshot."""

    __slots__ = ("brought", "quiescence", "replaced_at", "resting", "senders", "store", "taking")

    def __init__(
        self, state: ReplicaState, store: SnapshotStore, taking: SnapshotTaking, quiescence: Quiescence
    ) -> None:
        super().__init__(state)
        self.store = store
        self.taking = taking
        taking.on_saved = self.start_waiting
        taking.held_from = self.held_from
        self.quiescence = quiescence
        self.senders: dict[int, Sender] = {}
        self.brought: dict[int, Brought] = {}
        self.resting: set[int] = set()
        """Followers that could not use a snapshot, until another is stored for them."""
        self.replaced_at: float = NEVER

    def start(self, peer: int, progress: Progress, least_index: int = 0) -> None:
        """Bring a follower up by snapshot: its next entry is no longer in the log, or its state is gone."""
        state = self.state
        progress.snapshot()
        if peer in self.senders or peer in self.resting:
            return
        if state.snapshot_index < max(least_index, self.journal.base, 1):
            self.taking.wanted[peer] = least_index
            self.taking.take()
            return
        index = state.snapshot_index
        self.brought[peer] = Brought(index, self.host.now())
        state.run_blocking(partial(self._open_for_sending, index), partial(self._begin_sending, peer, index))

    def start_waiting(self) -> None:
        """A snapshot was stored: start towards those that wait for one."""
        state = self.state
        for peer in list(self.taking.wanted):
            progress = state.progress.get(peer)
            least = self.taking.wanted.pop(peer)
            if progress is not None:
                self.start(peer, progress, least)

    def held_from(self, index: int) -> int:
        """The least entry after which a follower goes on that was sent a snapshot and is not level.

        It is level once all up to `index` is on its way: under load a distant one never has all. A learner
        that is added is level once it has its vote: what is on its way may be lost, with a connection or at
        a slow disk. One that is gone goes on with what is there when it is back, and one that lacks more
        needs another snapshot.
        """
        self._forget_level(index, gone=True)
        return min((place for place, _ in self._served()), default=index)

    @property
    def since(self) -> float:
        """When the first snapshot began to be sent behind which its receiver can go on; else infinite.

        A follower whose disk is full takes none: it counts no more after STUCK_SECONDS, or once what it
        needs is gone from memory.
        """
        return min((one.begun_at for _, one in self._served()), default=inf)

    def _served(self) -> Iterator[tuple[int, Brought]]:
        """Of the followers that are not level those that the log still serves, with the entry each has."""
        for peer, one in self.brought.items():
            progress = self.state.progress.get(peer)
            if progress is None or self._is_stuck(peer):
                continue
            place = max(one.snapshot_index, progress.match)
            if place >= self.journal.base:
                yield place, one

    def _is_stuck(self, peer: int) -> bool:
        sender = self.senders.get(peer)
        if sender is None or not sender.starts_over:
            return False
        return self.host.now() - sender.furthest_at > STUCK_SECONDS

    def let_go(self, *, idle: bool) -> None:
        """Let what stayed for followers leave memory once they are level, or members no more.

        Where one is gone it stays till the next snapshot, or until the group is idle: under load the follower
        would need a snapshot again after each loss of its connection.
        """
        if self.brought:
            self._forget_level(self.state.applied, gone=idle)
            if not self.brought:
                self.taking.let_go()

    def _forget_level(self, index: int, *, gone: bool) -> None:
        for peer in list(self.brought):
            progress = self.state.progress.get(peer)
            away = gone and not self.host.connected(peer)
            if progress is None or away or self._is_level(peer, progress, index):
                del self.brought[peer]

    def _is_level(self, peer: int, progress: Progress, index: int) -> bool:
        """Its match says nothing: where its state is damaged it takes no entry before that is mended."""
        sent = progress.phase is Phase.REPLICATE and progress.next > index
        return sent and peer != self.state.joining

    def _open_for_sending(self, index: int) -> tuple[DiskFile, bytes]:
        file = self.store.open(self.state.id, index)
        digest = file.pread(DIGEST_BYTES, len(MAGIC))
        if len(digest) < DIGEST_BYTES:
            file.close()
            raise SnapshotDamaged("the file is cut short")
        return file, digest

    def _begin_sending(self, peer: int, index: int, opened: Any, error: Exception | None) -> None:
        state = self.state
        progress = state.progress.get(peer)
        if error is not None:
            self._replace_stored(peer, index, f"cannot be sent: {error}")
            return
        file, digest = opened
        if (
            state.role != LEADER
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
            self.state.run_blocking(
                partial(sender.file.pread, size, offset), partial(self._chunk_read, peer, sender, offset)
            )

    def _chunk_read(self, peer: int, sender: Sender, offset: int, data: Any, error: Exception | None) -> None:
        state = self.state
        if self.senders.get(peer) is not sender:
            return
        if error is not None:
            self.end(peer)
            self._replace_stored(peer, sender.index, f"cannot be read: {error}")
            return
        message = SnapshotChunk(
            state.id, MessageKind.SNAPSHOT, state.term,
            sender.index, sender.term, offset, sender.total, sender.digest, data, self.host.now(),
        )  # fmt: skip
        self.host.send(peer, message)

    def _replace_stored(self, peer: int, index: int, why: str) -> None:
        """This node's own file is bad: store the state again, which is sound, and send that."""
        state = self.state
        log.error("group %d: stored snapshot %d %s: storing the state again", state.id, index, why)
        if state.role != LEADER or peer not in state.progress:
            return
        self.taking.stored_is_bad = True
        self.resting.add(peer)
        wait = self.replaced_at + RETRY_SECONDS - self.host.now()
        if wait > 0:
            # A follower that can read none of them, as one of an older release, must not keep us at it.
            self.host.later(wait, state, partial(self._store_again, peer, index))
        else:
            self._store_again(peer, index)

    def _store_again(self, peer: int, index: int) -> None:
        state = self.state
        self.resting.discard(peer)
        if state.role == LEADER and peer in state.progress:
            self.replaced_at = self.host.now()
            self.taking.wanted[peer] = index
            self.taking.take()

    def on_reply(self, peer: int, progress: Progress, reply: SnapshotReply) -> None:
        """A follower took a chunk, or the whole, or found that it cannot use it; raises BadMessage."""
        state = self.state
        index, offset, status = reply.snapshot_index, reply.offset, reply.status
        sender = self.senders.get(peer)
        if sender is None or sender.index != index:
            return
        if offset > sender.total or status > Status.BAD:
            raise BadMessage(f"group {state.id}: an answer to snapshot {index} that cannot be")
        if status == Status.CONTINUE:
            sender.acknowledged(offset, self.host.now())
            self._send_chunks(peer)
            return
        self.end(peer)
        if status == Status.DONE:
            progress.accepted(index)
            progress.probe(progress.match + 1)
            self.host.wake(state)
        else:
            self._replace_stored(peer, index, f"is damaged, as node {peer} found")

    def on_need(self, peer: int, progress: Progress, need: NeedSnapshot) -> None:
        """A follower has no state: its snapshot is bad, or it knows nothing of the group yet.

        A learner gets one of this leader's own term. Only that is sure to have what was committed before, and
        so all changes of members before the one that added it. Voters may be needed to commit in this term.
        """
        if peer in self.senders or peer in self.taking.wanted or peer in self.resting:
            return
        self.quiescence.end_towards(peer, progress)
        newest = self.state.term_start if peer not in self.state.voters else 0
        self.start(peer, progress, max(need.least, newest))

    def tick(self, peer: int, now: float) -> None:
        sender = self.senders.get(peer)
        if sender is not None and now - sender.progress_at > self.settings.election_max_seconds:
            sender.rewind(now)
            self._send_chunks(peer)

    def end(self, peer: int) -> None:
        sender = self.senders.pop(peer, None)
        if sender is not None:
            self.state.run_blocking(sender.file.close, note_untidy)
        self.taking.wanted.pop(peer, None)

    def abandon(self) -> None:
        for peer in list(self.senders):
            self.end(peer)
        self.taking.wanted.clear()
        if self.brought:
            self.brought.clear()
            self.taking.let_go()
