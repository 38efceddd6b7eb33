"""Taking a snapshot of a replica's state and storing it (Raft §7).

What a snapshot stands for leaves the log only once the snapshot is durable, and the log says so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from strandline.node.raft.rules.membership import Membership
from strandline.node.raft.rules.replica_state import Configuration
from strandline.node.raft.wal.carrying import GroupLog
from strandline.snapshot.document import SnapshotDocument
from strandline.statemachine.machine import Captured

log = logging.getLogger(__name__)

RETRY_SECONDS = 5.0
"""Pause before a snapshot that could not be stored is tried again: each try serializes the whole state."""


class SnapshotTaking(Membership):
    """A replica's own snapshots."""

    def __init__(self, *args: Any) -> None:
        self.snapshot_index = 0
        """Index of the newest durable snapshot on this node; 0 for none."""
        self.snapshot_term = 0
        self.snapshot_members = Configuration(0, ())
        self.saving = False
        self.bytes_since_snapshot = 0
        self.stored_is_bad = False
        """A follower found this node's newest snapshot file damaged: store it again."""
        self.wanted: dict[int, int] = {}
        """Followers that wait for this node's next snapshot, with the least index that helps them."""
        super().__init__(*args)

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
        place = SnapshotDocument(
            self.host.cluster_id, self.machine.kind, self.id, index, term,
            members.voters, members.learners, b"",
        )  # fmt: skip
        self.saving = True
        self.bytes_since_snapshot = 0
        self.blocking(partial(self._save, place, self.machine.capture()), partial(self._saved, place))
        return True

    def _save(self, place: SnapshotDocument, captured: Captured) -> None:
        """Off the loop: a large state takes longer to write down than an election may."""
        self.host.snapshots.save(replace(place, state=captured()))

    def _saved(self, document: SnapshotDocument, _: Any, error: Exception | None) -> None:
        if error is not None:
            log.error(
                "group %d: cannot store snapshot %d: %s: free or repair the disk; next try in %.0f s",
                self.id, document.index, error, RETRY_SECONDS,
            )  # fmt: skip
            self.host.later(RETRY_SECONDS, self, self._try_saving_again)
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
        if self.host.disk_stalled():
            # Nothing could leave the log for a snapshot that its full disk has no record of.
            self.host.later(RETRY_SECONDS, self, self._try_saving_again)
            return
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
            lambda: self.blocking(partial(self.host.snapshots.drop, self.id, index), note_untidy)
        )

    def remember_snapshot(self, document: SnapshotDocument) -> None:
        """Keep what identifies this node's newest durable snapshot."""
        self.snapshot_index = document.index
        self.snapshot_term = document.term
        self.snapshot_members = Configuration(document.index, document.voters, document.learners)

    def moves_by_itself(self) -> bool:
        """Whether a snapshot can cover all that it holds, if not now then when it is this group's turn."""
        return self.failure is None and self.damaged_below is None and self.applied == self.journal.last

    def group_log(self) -> GroupLog:
        """The log as it stands, for carrying it along."""
        if self.snapshot_index and self.damaged_below is None:
            return GroupLog(self.journal, self.snapshot_members, self.snapshot_term)
        base = self.configurations[0]
        members = Configuration(self.journal.base, base.voters, base.learners)
        return GroupLog(self.journal, members, self.journal.base_term)

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

    def blocking(self, job: Callable[[], Any], done: Callable[[Any, Exception | None], None]) -> None:
        """Run a disk job off the loop; what goes wrong in `done` stops this replica alone."""
        self.host.run_blocking(job, partial(self.host.guard, self, done))


def note_untidy(_: Any, error: Exception | None) -> None:
    if error is not None:
        log.warning("snapshot file could not be tidied up: %s", error)
