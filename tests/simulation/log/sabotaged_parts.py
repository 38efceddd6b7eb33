"""Hosts, journals, logs, stores, pairs with one rule taken out each; sabotages.py names the holes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from strandline.node.raft.data_folder import Folder, RunBlocking, Standing
from strandline.node.raft.folder_file import FolderFields, FolderFile, FolderKey
from strandline.node.raft.host import RaftHost
from strandline.node.raft.log_retention import LogRetention
from strandline.node.raft.rules.messages import Message, MessageKind
from strandline.node.raft.rules.peer_heartbeat import PeerHeartbeat
from strandline.node.raft.rules.progress import Progress
from strandline.node.raft.rules.shared_heartbeats import SharedHeartbeats
from strandline.node.raft.snapshots.store import SnapshotStore
from strandline.node.raft.stored_groups import StoredGroups
from strandline.node.raft.ticker import Ticker
from strandline.node.raft.wal.after_sync import AfterSync, Call
from strandline.node.raft.wal.carrying import Carrying
from strandline.node.raft.wal.raft_log import RaftLog
from strandline.node.raft.wal.recovered_log import RecoveredLog
from strandline.node.raft.wal.segment_use import SegmentUse
from strandline.node.raft.wal.write_ahead_log import RecordKind, WalFailed, WriteAheadLog
from strandline.snapshot.document import SnapshotDocument

_VOTING = (MessageKind.VOTE, MessageKind.VOTE_REPLY)


class AcknowledgesBeforeSync(RaftHost):
    def send_when_synced(self, peer: int, message: Message) -> None:
        if message.kind == MessageKind.APPEND_REPLY:
            self.send(peer, message)
        else:
            super().send_when_synced(peer, message)


class VotesBeforeSync(RaftHost):
    def send_when_synced(self, peer: int, message: Message) -> None:
        if message.kind in _VOTING:
            self.send(peer, message)
        else:
            super().send_when_synced(peer, message)


class TakesAnyFolder(Folder):
    def reason_to_refuse(self, peer: int, claim: Standing) -> str | None:
        return None

    def _know(self, peers: dict[int, FolderKey]) -> None:
        """Or a dialler would tell the wiped node by which folder it knows it."""


class ForgetsTheOthersFolders(Folder):
    def __init__(self, file: FolderFile, fields: FolderFields, run_blocking: RunBlocking) -> None:
        super().__init__(file, replace(fields, peers={}), run_blocking)


class DamageUnnoticed(StoredGroups):
    def _load_snapshot(
        self, recovered: RecoveredLog, store: SnapshotStore
    ) -> tuple[SnapshotDocument | None, int | None]:
        return super()._load_snapshot(recovered, store)[0], None


class SwallowsDamagedSnapshots(RaftHost):
    stored_class = DamageUnnoticed


class TermNotRecorded(RaftLog):
    def record_state(self) -> None:
        pass


class TruncationNotRecorded(RaftLog):
    def deleteEntriesFrom(self, entryFrom: int) -> None:
        record = self._record
        self._record = lambda kind, payload: 0 if kind == RecordKind.TRUNCATE else record(kind, payload)
        super().deleteEntriesFrom(entryFrom)
        self._record = record


class ClearsLogAboveSnapshot(RecoveredLog):
    def rebase(self, index: int, term: int) -> None:
        super().rebase(index, term)
        del self.entries[1:]


class IgnoresFailedSync(WriteAheadLog):
    def _on_job_end(
        self, job: Callable[[], None], done: Callable[[], None], future: asyncio.Future[None]
    ) -> None:
        if not future.cancelled() and isinstance(future.exception(), WalFailed):
            future = self._loop.create_future()
            future.set_result(None)
        super()._on_job_end(job, done, future)


class DropsSegmentsWithVotes(SegmentUse):
    def first_needed(self, first: int, current: int, covered: Callable[[int], int]) -> int:
        state, base = self._state, self._base
        self._state, self._base = {}, {}
        needed = super().first_needed(first, current, covered)
        self._state, self._base = state, base
        return needed


class StoresUnsyncedSnapshots(SnapshotStore):
    def save(self, document: SnapshotDocument) -> None:
        path = self._path(self._name(document.group, document.index))
        if not self._disk.exists(path):
            file = self._disk.open(path, create=True)
            file.pwrite(document.encode(), 0)
            file.close()


class MovesNextBack(Progress):
    __slots__ = ()

    def accepted(self, index: int) -> bool:
        news = super().accepted(index)
        self.next = index + 1
        return news


class AcceptsAnyHeartbeat(SharedHeartbeats):
    def accepts(self, pair: PeerHeartbeat, count: int, digest: int) -> bool:
        return True


class MovesLogsWhileFull(LogRetention):
    def run(self) -> None:
        self._moved_lsn = 0
        super().run()


class KeepsQuietGroupsWhileFull(Ticker):
    def wake_led(self) -> None:
        pass


class AnswersPileUp(AfterSync):
    def message(self, lsn: int, writing_lsn: int, group: int, peer: int, kind: int, send: Call) -> None:
        self.callback(lsn, send)


class CarriesNothing(Carrying):
    def round(self, *_: object) -> None:
        pass


class WakesNobody(SharedHeartbeats):
    """A follower of quiet groups that hears no heartbeat any more sleeps on."""

    def _wake_followed(self, groups: list[int]) -> None:
        pass
