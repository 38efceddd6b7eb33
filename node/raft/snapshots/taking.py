"""Taking a snapshot of a replica's state and storing it (Raft §7).

What a snapshot stands for leaves the log only once the snapshot is durable, and the log says so.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import accumulate
from math import inf
from operator import itemgetter
from typing import Any, Final

from strandline.node.raft.configuration import Configuration
from strandline.node.raft.rules.configuration_log import ConfigurationLog
from strandline.node.raft.rules.replica_state import Part, ReplicaState
from strandline.node.raft.snapshots.store import SnapshotStore
from strandline.snapshot.document import (
    SnapshotDocument,
)
from strandline.statemachine.machine import Captured

log = logging.getLogger(__name__)


_COMMAND_OF = itemgetter(0)

RETRY_SECONDS = 5.0
"""Pause before a snapshot that could not be stored is tried again: each try serializes the whole state."""
HELD_ENTRIES: Final = 50_000
"""Most entries that stay for followers that are not level yet: to add up the bytes of so many holds up the
loop for 3.5 ms."""


class SnapshotTaking(Part):
    """A replica's own snapshots."""

    __slots__ = (
        "_room",
        "_trailing_bytes",
        "configuration_log",
        "held_from",
        "on_saved",
        "saving",
        "store",
        "stored_is_bad",
        "wanted",
    )

    def __init__(
        self, state: ReplicaState, store: SnapshotStore, configuration_log: ConfigurationLog
    ) -> None:
        super().__init__(state)
        self.store = store
        self.configuration_log = configuration_log
        self.on_saved: Callable[[], None] = lambda: None
        """Called when a snapshot was stored."""
        self.held_from: Callable[[int], int] = lambda index: index
        """Of the entries up to an index, followers that are not level yet still need those after this one."""
        self.saving: bool = False
        self.stored_is_bad: bool = False
        """A follower found this node's newest snapshot file damaged: store it again."""
        self.wanted: dict[int, int] = {}
        """Followers that wait for this node's next snapshot, with the least index that helps them."""
        self._room: float = inf
        """Bytes of entries that may stay behind the next snapshot, where that is less than usual."""
        self._trailing_bytes: int = 0
        """Those that stayed behind the newest."""

    @property
    def log_bytes(self) -> int:
        """Bytes of applied entries in memory."""
        return self.state.bytes_since_snapshot + self._trailing_bytes

    def due(self) -> bool:
        """Enough was applied since the last snapshot, or a follower waits for one."""
        state = self.state
        entries = state.applied - state.snapshot_index
        return entries > 0 and (
            entries >= self.settings.snapshot_entries
            or state.bytes_since_snapshot >= self.settings.snapshot_bytes
            or bool(self.wanted)
        )

    def take(self) -> bool:
        """Capture the applied state and store it off the loop; returns whether a snapshot was begun."""
        state = self.state
        fresh = state.applied > state.snapshot_index or (self.stored_is_bad and state.applied > 0)
        if self.saving or not fresh or state.damaged_below is not None:
            return False
        index = state.applied
        term = self.journal.term_at(index)
        assert term is not None
        members = self.configuration_log.at(index)
        if not members.voters:
            # Under an earlier release a node joined by the log, and learned them from a later entry.
            return False
        place = SnapshotDocument(
            self.host.cluster_id, state.machine.kind, state.id, index, term,
            members.voters, members.learners, b"", members.folders,
        )  # fmt: skip
        self.saving = True
        state.bytes_since_snapshot = 0
        state.run_blocking(partial(self._save, place, state.machine.capture()), partial(self._saved, place))
        return True

    def shorten(self, most_trailing_bytes: int) -> bool:
        """Let go of all applied entries in memory but this many bytes of the newest, once a snapshot covers
        them; returns whether one was begun."""
        self._room = most_trailing_bytes
        if self.take():
            return True
        # Nothing was applied since the last one, but much may have stayed behind it.
        self.let_go()
        return False

    def let_go(self) -> None:
        """Let go what is not to stay any more. A snapshot under way does so by itself."""
        if not self.saving:
            self.drop_covered(self.state.snapshot_index)

    def _save(self, place: SnapshotDocument, captured: Captured) -> None:
        """Off the loop: a large state takes longer to write down than an election may."""
        self.store.save(replace(place, state=captured()))

    def _saved(self, document: SnapshotDocument, _: Any, error: Exception | None) -> None:
        state = self.state
        if error is not None:
            log.error(
                "group %d: cannot store snapshot %d: %s: free or repair the disk; next try in %.0f s",
                state.id, document.index, error, RETRY_SECONDS,
            )  # fmt: skip
            self.host.later(RETRY_SECONDS, state, self._try_saving_again)
            return
        self.saving = False
        if state.failure is not None:
            return
        self.stored_is_bad = False
        if document.index > state.snapshot_index:
            self._note_snapshot(document)
            self.drop_covered(document.index)
        self.on_saved()

    def _try_saving_again(self) -> None:
        if self.host.disk_stalled():
            # Nothing could leave the log for a snapshot that its full disk has no record of.
            self.host.later(RETRY_SECONDS, self.state, self._try_saving_again)
            return
        self.saving = False
        if self.due() or self.stored_is_bad:
            self.take()

    def _note_snapshot(self, document: SnapshotDocument) -> None:
        """A snapshot is durable: say so in the log, and delete older ones once that is durable too."""
        state = self.state
        self.remember(document)
        index = document.index
        self.journal.record_snapshot(
            index, document.term, document.voters, document.learners, document.folders
        )
        self.host.wake(state)
        self.host.when_synced(
            lambda: state.run_blocking(partial(self.store.drop, state.id, index), note_untidy)
        )

    def remember(self, document: SnapshotDocument) -> None:
        """Keep what identifies this node's newest durable snapshot."""
        state = self.state
        state.snapshot_index = document.index
        state.snapshot_term = document.term
        state.snapshot_members = Configuration(
            document.index, document.voters, document.learners, document.folders
        )
        self._trailing_bytes = 0

    def drop_covered(self, index: int) -> None:
        """Drop the entries that a snapshot covers, except those that a slow follower may still need.

        These are a few; and where one is sent a snapshot, what came after that. Without it the follower would
        need the next snapshot as soon as it has this one, and under a steady load never be level.
        """
        trailing, self._trailing_bytes = self._trailing(index)
        keep_from = index - trailing
        self._room = inf
        if self.journal.term_at(keep_from) is not None and keep_from > self.journal.base:
            self.state.drop_below(keep_from)
        self.configuration_log.compact(self.journal.base)

    def _trailing(self, index: int) -> tuple[int, int]:
        """Number of entries up to `index` that stay, and their bytes."""
        settings = self.settings
        held = min(index - self.held_from(index), HELD_ENTRIES)
        most_bytes = max(settings.trailing_bytes, settings.snapshot_bytes)
        after = max(index - max(settings.trailing_entries, held), self.journal.base)
        entries = self.journal.after(after, index - after)
        # Without a step of Python's own for each entry: there may be many, and the loop waits.
        sizes = list(accumulate(map(len, map(_COMMAND_OF, reversed(entries)))))
        usual = bisect_right(sizes, min(settings.trailing_bytes, self._room))
        count = min(bisect_right(sizes, min(most_bytes, self._room)), max(held, usual))
        return count, sizes[count - 1] if count else 0


def note_untidy(_: Any, error: Exception | None) -> None:
    if error is not None:
        log.warning("snapshot file could not be tidied up: %s", error)
