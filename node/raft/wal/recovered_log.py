"""One group's log, put together from the write-ahead log's records when a node starts."""

from __future__ import annotations

import struct
from typing import Any

import msgpack

from strandline.node.raft.entries import Entry, Folders, unpack_entries, unpack_folders
from strandline.node.raft.wal.write_ahead_log import RecordKind

STATE = struct.Struct("<QQ")
INDEX = struct.Struct("<Q")
_ANY_TERM = -1
"""Term of a base that floats: the entry itself was dropped with its segment."""


class RaftLogDamaged(ValueError):
    """The records of a group contradict each other: the write-ahead log lost or invented something."""


class RecoveredLog:
    """One group as the write-ahead log's records tell of it, gathered in order when a node starts.

    Segments are dropped from the front once a snapshot covers them, so the first records met may begin
    anywhere, also with a snapshot older than the one that covers what was dropped. Until that one is met,
    and it is always kept, the base of the entries floats.
    """

    def __init__(self, group: int) -> None:
        self.group = group
        self.entries: list[Entry] = [(b"", 0, 0)]
        self.voters: tuple[int, ...] = ()
        self.learners: tuple[int, ...] = ()
        self.folders: Folders = ()
        self.term = 0
        self.vote: int | None = None
        self.snapshot_index = 0
        self.based = False
        """Whether a record said what lies below the first entry."""
        self._carry: list[Entry] = []
        """Entries written again further on, which count once the CARRIED record behind them is met."""
        self._anchored = False
        """Whether the newest element is known to be the log's last entry, so that the next follows it."""

    @classmethod
    def left(cls, group: int, term: int, vote: int | None) -> RecoveredLog:
        """The log of a group that this node left; its members are for a leader to say."""
        log = cls(group)
        log.term, log.vote, log.based, log._anchored = term, vote, True, True
        return log

    def replay(self, kind: RecordKind, payload: bytes) -> None:
        """Apply one record; raises RaftLogDamaged when it does not follow from those before it."""
        if kind == RecordKind.ENTRIES:
            self._extend(unpack_entries(payload))
        elif kind == RecordKind.TRUNCATE:
            self._truncate(INDEX.unpack(payload)[0])
        elif kind == RecordKind.STATE:
            self.term, vote = STATE.unpack(payload)
            self.vote = vote - 1 if vote else None
        elif kind in (RecordKind.SNAPSHOT, RecordKind.RESET):
            index, term, voters, learners, *folders = msgpack.unpackb(payload)
            if kind == RecordKind.RESET:
                self.entries = [(b"", index, term)]
                self._anchored = self.based = True
            else:
                self.rebase(index, term)
            self._base_members(voters, learners, folders)
            self.snapshot_index = index
        elif kind == RecordKind.CARRY:
            run = unpack_entries(payload)
            if not self._carry or run[0][1] != self._carry[-1][1] + 1:
                # What was begun before was given up, because the group's log changed.
                self._carry = []
            self._carry += run
        elif kind == RecordKind.CARRIED:
            self._carried(*msgpack.unpackb(payload))
        else:
            raise RaftLogDamaged(f"group {self.group}: a record of kind {kind} has no place in a group's log")

    @property
    def newest(self) -> int:
        """Index of the newest entry met, carried ones included."""
        carried = self._carry[-1][1] if self._carry else 0
        return max(self.entries[-1][1], carried)

    def finish(self) -> None:
        """Check, after the last record, that nothing is missing at the front; raises RaftLogDamaged."""
        if not self.based and self.entries[0][1] > 0:
            raise RaftLogDamaged(
                f"group {self.group}: the log begins at entry {self.entries[0][1] + 1} and no snapshot covers"
                " what came before: a segment of the write-ahead log is missing"
            )

    def rebase(self, index: int, term: int) -> None:
        """Let the log begin after `index`; entries above stay if the entry at `index` has that term."""
        position = index - self.entries[0][1]
        if position < 0:
            if self.based:
                raise RaftLogDamaged(
                    f"group {self.group}: snapshot {index} lies below the log's start {self.entries[0][1]}"
                )
            return
        if position < len(self.entries) and self.entries[position][2] in (term, _ANY_TERM):
            del self.entries[:position]
            self.entries[0] = (b"", index, term)
        else:
            self.entries = [(b"", index, term)]
        self.based = True

    def _extend(self, entries: list[Entry]) -> None:
        first = entries[0][1]
        if not self._anchored and first > self.entries[-1][1] + 1:
            self._float(first - 1)
        if first != self.entries[-1][1] + 1:
            raise RaftLogDamaged(
                f"group {self.group}: entry {first} follows entry {self.entries[-1][1]} in the log"
            )
        self.entries.extend(entries)
        self._anchored = True
        self.term = max(self.term, entries[-1][2])

    def _truncate(self, index: int) -> None:
        position = index - self.entries[0][1]
        if 0 < position < len(self.entries):
            del self.entries[position:]
        elif (position > 0 and not self._anchored) or (position <= 0 and not self.based):
            self._float(index - 1)
        else:
            raise RaftLogDamaged(f"group {self.group}: truncation at {index} outside the log")

    def _carried(
        self,
        index: int,
        term: int,
        voters: list[int],
        learners: list[int],
        last: int,
        current: int,
        vote: int,
        *folders: Any,
    ) -> None:
        """Replace the log's content by the carried entries above `index`, up to `last`, that remain."""
        entries = [entry for entry in self._carry if index < entry[1] <= last]
        self._carry = []
        if entries and entries[-1][1] != last:
            raise RaftLogDamaged(
                f"group {self.group}: carried along up to entry {last}, and {entries[-1][1]} is the last"
            )
        if not entries and last > index:
            self._float(last)
        elif entries and entries[0][1] != index + 1:
            self._float(entries[0][1] - 1)
            self.entries += entries
            self._anchored = True
        else:
            self.entries = [(b"", index, term), *entries]
            self._anchored = self.based = True
        self._base_members(voters, learners, list(folders))
        self.snapshot_index = index
        self.term, self.vote = current, vote - 1 if vote else None

    def _base_members(self, voters: list[int], learners: list[int], folders: list[Any]) -> None:
        self.voters, self.learners, self.folders = tuple(voters), tuple(learners), unpack_folders(folders)

    def _float(self, last: int) -> None:
        """Mark the entries up to `last` as lost with their segment; a later snapshot has their state."""
        self.entries = [(b"", last, _ANY_TERM if last else 0)]
        self.based = self._anchored = False
