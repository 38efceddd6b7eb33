"""A group's log as Raft's rules use it; `wal/raft_log.py` keeps it on the node's write-ahead log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from strandline.node.raft.entries import Entry, Folders


class Log(Protocol):
    """The entries above `base`; a snapshot, or the empty start of the log, covers those up to it.

    What PySyncObj calls keeps its names and counts positions from the base; all else takes log indices.
    """

    written: int
    """Index of the newest entry handed to the disk."""
    synced: int
    """Index of the newest entry known durable."""

    @property
    def base(self) -> int: ...
    @property
    def base_term(self) -> int: ...
    @property
    def last(self) -> int: ...
    @property
    def last_term(self) -> int: ...
    @property
    def unsynced(self) -> bool:
        """Whether any entry is not durable yet."""

    @property
    def state_waits(self) -> bool:
        """Whether a term or vote is not durable yet."""

    def add(self, command: bytes, idx: int, term: int) -> None: ...
    def getRaftCommitIndex(self) -> int: ...
    def getCurrentTerm(self) -> int: ...
    def getVotedForNodeId(self) -> int | None: ...
    def term_at(self, index: int) -> int | None:
        """Term of the entry at `index`, the base included; None when the log does not hold it."""

    def after(self, index: int, count: int | None = None) -> Sequence[Entry]:
        """Entries above `index`, at most `count`."""

    def last_index_not_above(self, index: int, term: int) -> int:
        """Largest index up to `index` whose term is at most `term`; the base if all terms are higher."""

    def run_after(self, index: int, max_bytes: int) -> tuple[int, bytes]:
        """(last index, packed entries) of a run that begins after `index`."""

    def write(self) -> None:
        """Hand every entry not yet written to the disk."""

    def extend(self, entries: Sequence[Entry], packed: bytes | None) -> None:
        """Add entries that came from a leader; `packed`, if given, is exactly them as bytes."""

    def on_synced(self, lsn: int) -> None:
        """All records up to `lsn` are durable."""

    def record_state(self) -> None:
        """Write term and vote again."""

    def record_snapshot(
        self, index: int, term: int, voters: tuple[int, ...], learners: tuple[int, ...], folders: Folders = ()
    ) -> int:
        """Record that a durable snapshot covers all entries up to `index`."""

    def reset(
        self, index: int, term: int, voters: tuple[int, ...], learners: tuple[int, ...], folders: Folders = ()
    ) -> int:
        """Forget every entry and begin after (`index`, `term`)."""
