"""Groups that a starting node finds on its disk, each kept until it is claimed or forgotten.

The node reads the write-ahead log before it knows its groups, so their logs wait here. A group that is never
claimed still needs its part of the write-ahead log: the node has to forget it once it knows that it is gone.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from strandline.node.raft.configuration import Configuration
from strandline.node.raft.entries import Entry, EntryKind
from strandline.node.raft.snapshots.store import SnapshotStore
from strandline.node.raft.wal.carrying import GroupLog
from strandline.node.raft.wal.raft_log import RaftLog, Record
from strandline.node.raft.wal.recovered_log import RecoveredLog
from strandline.node.raft.wal.segment_use import SegmentUse
from strandline.node.raft.wal.write_ahead_log import RecordKind
from strandline.snapshot.document import SnapshotDamaged, SnapshotDocument, SnapshotTooNew
from strandline.statemachine.machine import StateMachine

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """One group's log as it goes on from here; its machine is already restored."""

    journal: RaftLog
    base: Configuration
    memberships: Sequence[Entry]
    """Membership entries above the base."""
    document: SnapshotDocument | None
    damaged_below: int | None
    """Set when no stored snapshot is whole: the state must come from a leader, from this index up."""


class StoredGroups:
    """The logs found in the write-ahead log and the snapshots found beside it."""

    def __init__(self, use: SegmentUse) -> None:
        self.replayed = False
        """Whether the write-ahead log held any record of a group."""
        self._use = use
        self._logs: dict[int, RecoveredLog] = {}
        self._indices: dict[int, list[int]] = {}

    def replay(self, group: int, kind: RecordKind, segment: int, payload: bytes) -> None:
        """Take in one record of the write-ahead log; raises RaftLogDamaged."""
        self.replayed = True
        if kind == RecordKind.FORGET:
            self._logs.pop(group, None)
            self._use.forget(group)
            return
        recovered = self._logs.get(group)
        if recovered is None:
            recovered = self._logs[group] = RecoveredLog(group)
        recovered.replay(kind, payload)
        self._use.note(segment, group, kind, recovered.newest)

    def finish(self) -> None:
        """Check, after the last record, that no group's log lacks its front; raises RaftLogDamaged."""
        for recovered in self._logs.values():
            recovered.finish()

    def find_snapshots(self, store: SnapshotStore) -> None:
        """Note which snapshots there are, and delete those of groups that the log does not know.

        A group is in the log before it has a snapshot, so such a file is what a crash left of a removed one.
        """
        self._indices = store.indices()
        for group in [group for group in self._indices if group not in self._logs]:
            store.drop(group, None)
            del self._indices[group]

    def unclaimed(self) -> list[int]:
        """Groups that are stored and that this node has not taken part in since its start."""
        return sorted(self._logs)

    def log(self, group: int) -> RecoveredLog | None:
        """The log of a group that is unclaimed."""
        return self._logs.get(group)

    def group_log(self, group: int, record: Record) -> GroupLog | None:
        """The log of an unclaimed group as it stands, for carrying it along; None if there is none."""
        recovered = self._logs.get(group)
        if recovered is None:
            return None
        base, term = recovered.entries[0][1:]
        members = Configuration(base, recovered.voters, recovered.learners, recovered.folders)
        return GroupLog(RaftLog(record, recovered, 0), members, term)

    def forget(self, group: int) -> bool:
        """Forget a group; returns whether it was stored and unclaimed."""
        self._indices.pop(group, None)
        return self._logs.pop(group, None) is not None

    def leave(self, group: int, log: RaftLog, commit: int, part_bytes: int) -> None:
        """Keep of a group's log what it promised, and not what is committed, nor its state.

        A vote is refused by the term, the vote before it and the last entry of the log, so these stay, with
        the entries above `commit`, which may be all that an acknowledgement stands for. The members go:
        whether the node is one again, only the group's leader can say. The state up to `commit` comes from
        the leader too, as it does for a snapshot that is damaged.
        """
        term = log.term_at(commit)
        assert term is not None, "the entry at the commit index is in memory"
        self._logs[group] = RecoveredLog.left(group, log.getCurrentTerm(), log.getVotedForNodeId())
        self._logs[group].entries = [(b"", commit, term), *log.after(commit)]
        self._logs[group].snapshot_index = commit
        self._indices.pop(group, None)
        log.write()
        upto = commit
        while upto < log.written:
            upto, _ = log.carry(upto, part_bytes)
        log.record_carried(commit, term, (), ())

    def claim(
        self,
        group: int,
        machine: StateMachine,
        voters: tuple[int, ...],
        store: SnapshotStore,
        record: Record,
        max_run_bytes: int,
    ) -> StoredGroup:
        """Hand a group's log over and restore its machine; `voters` counts only if nothing is stored.

        Raises ValueError when the stored snapshot is of another kind of machine; the group then stays
        unclaimed.
        """
        recovered = self._logs.get(group) or RecoveredLog(group)
        document, damaged_below = self._load_snapshot(recovered, store)
        newer = document is not None and document.index > recovered.snapshot_index
        if document is not None:
            if document.kind != machine.kind:
                raise ValueError(
                    f"group {group} holds a snapshot of a {document.kind}, not of a {machine.kind}"
                )
            if newer:
                recovered.rebase(document.index, document.term)
                recovered.voters, recovered.learners = document.voters, document.learners
                recovered.folders = document.folders
            machine.restore(document.state)
        journal = RaftLog(record, recovered, max_run_bytes)
        if document is not None and newer:
            # A crash came between the file and the record that tells of it.
            begin = journal.record_snapshot if len(journal) > 1 else journal.reset
            begin(document.index, document.term, document.voters, document.learners, document.folders)
        elif not recovered.based and document is None:
            journal.reset(0, 0, voters, ())
            recovered.voters = voters
        base = Configuration(recovered.entries[0][1], recovered.voters, recovered.learners, recovered.folders)
        self._logs.pop(group, None)
        memberships = [entry for entry in recovered.entries[1:] if entry[0][0] == EntryKind.MEMBERSHIP]
        return StoredGroup(journal, base, memberships, document, damaged_below)

    def _load_snapshot(
        self, recovered: RecoveredLog, store: SnapshotStore
    ) -> tuple[SnapshotDocument | None, int | None]:
        """The newest stored snapshot that is whole; or the index below which the state is lost."""
        group = recovered.group
        for index in reversed(self._indices.get(group, [])):
            if index < recovered.snapshot_index:
                break
            try:
                return store.load(group, index), None
            except (SnapshotDamaged, SnapshotTooNew, OSError) as error:
                log.error("%s", error)
        if not recovered.snapshot_index:
            return None, None
        if not recovered.voters:
            log.info("group %d comes back to this node: its state comes from its leader", group)
            return None, recovered.snapshot_index
        log.error(
            "%s: snapshot %d of group %d is missing or damaged: this replica waits for one from its leader",
            store.folder, recovered.snapshot_index, group,
        )  # fmt: skip
        return None, recovered.snapshot_index
