"""Receiving and installing a leader's snapshot (Raft §7).

What takes long is done by a disk job: the state is read beside the present one, which the loop then replaces
at once. Until then the follower is as if the snapshot was still arriving.

PySyncObj took an older snapshot back, cleared the journal when a dump and the log did not line up, and
went on with an empty state when a dump was bad. Here a snapshot at or below the commit index changes
nothing, what the log holds above a snapshot stays, and a bad one stops the replica until a leader sends
another.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from strandline.node.raft.disk import DiskFile
from strandline.node.raft.outcome import Unknown
from strandline.node.raft.rules.configuration_log import ConfigurationLog
from strandline.node.raft.rules.leader_contact import LeaderContact
from strandline.node.raft.rules.messages import (
    MessageKind,
    SnapshotChunk,
    SnapshotReply,
)
from strandline.node.raft.rules.pending_commands import PendingCommands
from strandline.node.raft.rules.quiescence import Quiescence
from strandline.node.raft.rules.read_index import ReadIndex
from strandline.node.raft.rules.replica_state import Part, ReplicaState, SafetyViolation
from strandline.node.raft.snapshots.store import SnapshotStore
from strandline.node.raft.snapshots.taking import SnapshotTaking, note_untidy
from strandline.node.raft.snapshots.transfer import Receiver, Status
from strandline.snapshot.document import (
    SnapshotDamaged,
    SnapshotDocument,
    SnapshotTooNew,
)
from strandline.statemachine.machine import ReadState

log = logging.getLogger(__name__)


TURN_SECONDS: Final = 0.001
"""The loop gives the interpreter away with each system call, and has it back from a thread that is busy only
after so long. Of Python's own 5 ms a loop that sends twenty messages would wait a tenth of a second."""


@contextmanager
def _short_turns() -> Iterator[None]:
    """Only used by the one thread of disk jobs, so that two do not set back each other's."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(TURN_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


class SnapshotReceiving(Part):
    """A follower's side of bringing it up by snapshot."""

    __slots__ = (
        "commands",
        "configuration_log",
        "contact",
        "opening",
        "quiescence",
        "reads",
        "receiver",
        "store",
        "taking",
        "taking_in",
        "trouble",
    )

    def __init__(
        self,
        state: ReplicaState,
        store: SnapshotStore,
        contact: LeaderContact,
        quiescence: Quiescence,
        configuration_log: ConfigurationLog,
        commands: PendingCommands,
        reads: ReadIndex,
        taking: SnapshotTaking,
    ) -> None:
        super().__init__(state)
        self.store = store
        self.contact = contact
        self.quiescence = quiescence
        self.configuration_log = configuration_log
        self.commands = commands
        self.reads = reads
        self.taking = taking
        self.receiver: Receiver | None = None
        self.opening: bool = False
        self.taking_in: tuple[int, int, int, bytes] | None = None
        """The snapshot that is whole, and is being read."""
        self.trouble: str | None = None
        """The disk's error with the last snapshot, in half a line; None once one is whole."""

    def on_chunk(self, peer: int, chunk: SnapshotChunk) -> None:
        state = self.state
        self.contact.follow(peer)
        self.quiescence.leave()
        if not state.voters and state.damaged_below is None:
            # How new a snapshot has to be, an append message says first (`Following.begin`).
            return
        if self.has_applied_enough(chunk.snapshot_index):
            self.reply(peer, chunk, chunk.total, Status.DONE)
            return
        if self.host.disk_stalled():
            # Installing one is a record each time, and none of them could be written.
            return
        if chunk.snapshot == self.taking_in:
            # Its leader has waited for long and sends again what is here.
            return
        if self.receiver is None or self.receiver.key != chunk.snapshot:
            self.drop()
            if self.opening:
                return
            if chunk.offset == 0:
                self.opening = True
                state.run_blocking(
                    partial(self.store.open_incoming, state.id),
                    partial(self._opened, peer, chunk),
                )
            else:
                self.reply(peer, chunk, 0, Status.CONTINUE)
            return
        self._take_chunk(self.receiver, peer, chunk)

    def has_applied_enough(self, index: int) -> bool:
        """A snapshot at or below the commit index is ignored: it would take the state back."""
        state = self.state
        if state.damaged_below is not None:
            return index < state.damaged_below
        return index <= state.commit

    def _opened(self, peer: int, chunk: SnapshotChunk, file: Any, error: Exception | None) -> None:
        self.opening = False
        if error is not None:
            self._failed("a snapshot cannot be received", error)
            return
        self.receiver = Receiver(chunk.snapshot, file)
        self._take_chunk(self.receiver, peer, chunk)

    def _take_chunk(self, receiver: Receiver, peer: int, chunk: SnapshotChunk) -> None:
        job = receiver.take(chunk.offset, chunk.data)
        if job is None:
            if receiver.expected < receiver.total:
                self.reply(peer, chunk, receiver.expected, Status.CONTINUE)
            return
        self.state.run_blocking(job, partial(self._chunk_written, receiver, peer, chunk))

    def _chunk_written(
        self, receiver: Receiver, peer: int, chunk: SnapshotChunk, written: Any, error: Exception | None
    ) -> None:
        state = self.state
        if receiver.abandoned or state.failure is not None:
            return
        if error is not None:
            self._failed("a snapshot's chunk cannot be written", error)
            self.drop()
            return
        receiver.written = written
        if written < receiver.total:
            self.reply(peer, chunk, written, Status.CONTINUE)
            return
        self.receiver, self.taking_in, self.trouble = None, receiver.key, None
        state.run_blocking(
            partial(self._take_in, receiver.file, chunk.snapshot_index), partial(self.adopted, peer, chunk)
        )

    def _failed(self, what: str, error: Exception) -> None:
        """Tell of it once: the leader sends the snapshot again every second or so."""
        trouble = f"{what}: {error}"
        if trouble != self.trouble:
            log.error("group %d: %s", self.state.id, trouble)
        self.trouble = trouble

    def _take_in(self, file: DiskFile, index: int) -> tuple[SnapshotDocument, ReadState | Exception]:
        """Off the loop: a large state takes longer to read than an election may."""
        with _short_turns():
            document = self.store.adopt_incoming(file, self.state.id, index)
            try:
                return document, self.read(document)
            except Exception as error:
                return document, error

    def read(self, document: SnapshotDocument) -> ReadState:
        """Read a snapshot's state, in any thread; raises ValueError if the machine cannot."""
        machine = self.state.machine
        if document.kind != machine.kind:
            raise SafetyViolation(
                f"group {self.state.id}: a snapshot of a {document.kind} for a {machine.kind}"
            )
        return machine.read(document.state)

    def adopted(self, peer: int, chunk: SnapshotChunk, taken: Any, error: Exception | None) -> None:
        state = self.state
        if self.taking_in == chunk.snapshot:
            self.taking_in = None
        if state.failure is not None:
            return
        if error is not None:
            log.error("group %d: the snapshot that arrived cannot be used: %s", state.id, error)
            if isinstance(error, SnapshotDamaged | SnapshotTooNew):
                self.reply(peer, chunk, 0, Status.BAD)
            return
        self.install(*taken)
        self.reply(peer, chunk, chunk.total, Status.DONE)

    def reply(self, peer: int, chunk: SnapshotChunk, offset: int, status: Status) -> None:
        state = self.state
        reply = SnapshotReply(
            state.id,
            MessageKind.SNAPSHOT_REPLY,
            state.term,
            chunk.snapshot_index,
            offset,
            int(status),
            chunk.sent_at,
        )
        self.host.send_when_synced(peer, reply)

    def drop(self) -> None:
        """Abandon the snapshot that arrives, and delete it."""
        state = self.state
        receiver, self.receiver = self.receiver, None
        if receiver is not None:
            receiver.abandoned = True
            state.run_blocking(partial(self.store.discard_incoming, receiver.file, state.id), note_untidy)

    def install(self, document: SnapshotDocument, read: ReadState | Exception) -> None:
        """Replace the state by a snapshot's, atomically on the loop; keep the log's matching suffix.

        Raises what its state could not be read for, if it is needed.
        """
        state = self.state
        if self.has_applied_enough(document.index):
            if not isinstance(read, Exception):
                state.run_blocking(partial(self._let_go, read, 0), note_untidy)
            return
        if isinstance(read, Exception):
            raise read
        read.adopt()
        self.taking.remember(document)
        place = document.index, document.term, document.voters, document.learners, document.folders
        if self.keeps_suffix(document):
            self.journal.record_snapshot(*place)
            state.drop_below(document.index)
            newer = [known for known in state.configurations if known.index > document.index]
            state.configurations = [state.snapshot_members, *newer]
        else:
            self.journal.reset(*place)
            state.configurations = [state.snapshot_members]
        state.applied = document.index
        state.commit = max(state.commit, document.index)
        state.damaged_below = None
        state.bytes_since_snapshot = 0
        self.configuration_log.changed()
        for index in [index for index in state.waiting if index <= document.index]:
            self.commands.end(index, Unknown("a snapshot covered the command before it was seen applied"))
        self.reads.release()
        self.host.wake(state)
        state.run_blocking(partial(self._let_go, read, document.index), note_untidy)

    def _let_go(self, read: ReadState, index: int) -> None:
        """Off the loop: free the former state and delete older snapshots."""
        with _short_turns():
            read.let_go()
        self.store.drop(self.state.id, index)

    def keeps_suffix(self, document: SnapshotDocument) -> bool:
        """The log goes on after the snapshot if it holds the snapshot's last entry (Raft §7)."""
        return self.journal.term_at(document.index) == document.term
