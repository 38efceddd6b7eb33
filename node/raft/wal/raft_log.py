"""One group's log: entries in memory for speed, on the node's write-ahead log for durability.

It takes the place of PySyncObj's FileJournal, which writes an mmap and never syncs it. Element 0 is the
base: the index and term of the last entry that a snapshot (or the empty beginning) stands for, with no
command. Writing is lazy within one loop turn, so that all entries of a turn share a record; what is durable
is known exactly (`synced`), because only that may be counted or acknowledged (docs/raft.md).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import overload

import msgpack
from pysyncobj.journal import Journal

from strandline.node.raft.entries import Entry, Folders, pack_entries, pack_folders
from strandline.node.raft.wal.recovered_log import INDEX, STATE, RecoveredLog
from strandline.node.raft.wal.write_ahead_log import RecordKind

_TERM_OF = itemgetter(2)
_CACHED_RUNS = 64
_LONGEST_RUN = 65_536

Record = Callable[[RecordKind, bytes], int]
"""Appends one record of this group to the write-ahead log and returns its LSN."""


class RaftLog(Journal):
    """PySyncObj's journal interface on the node's write-ahead log."""

    def __init__(self, record: Record, recovered: RecoveredLog, max_run_bytes: int) -> None:
        self._record = record
        self._entries = recovered.entries
        self._term = recovered.term
        self._vote = recovered.vote
        self._max_run_bytes = max_run_bytes
        last = self._entries[-1][1]
        self.written = last
        """Index of the newest entry handed to the write-ahead log."""
        self.synced = last
        """Index of the newest entry known durable."""
        self._unwritten_bytes = 0
        self._state_lsn = self._synced_lsn = 0
        # Lists, though they are queues: an empty deque takes 0.7 kB, and most groups of a node are idle.
        self._in_flight: list[tuple[int, int]] = []
        self._runs: list[tuple[int, int, bytes]] = []

    # What PySyncObj calls. Positions count from the base, indices are the log's.

    def add(self, command: bytes, idx: int, term: int) -> None:
        self._entries.append((command, idx, term))
        self._unwritten_bytes += len(command)

    def clear(self) -> None:
        raise NotImplementedError("a group's log is reset by reset(), with a base")

    def deleteEntriesFrom(self, entryFrom: int) -> None:
        """Drop the entries from a position on; the drop itself is a record, or they would come back."""
        index = self._entries[entryFrom][1]
        del self._entries[entryFrom:]
        last = index - 1
        if index <= self.written:
            self._record(RecordKind.TRUNCATE, INDEX.pack(index))
            self.written = last
        self.synced = min(self.synced, last)
        self._in_flight = [(lsn, min(upto, last)) for lsn, upto in self._in_flight]
        while self._runs and self._runs[-1][1] >= index:
            self._runs.pop()
        self._unwritten_bytes = sum(len(entry[0]) for entry in self.after(self.written))

    def deleteEntriesTo(self, entryTo: int) -> None:
        """Drop the entries before a position, in memory; the snapshot's own record drops them on disk."""
        _, index, term = self._entries[entryTo]
        del self._entries[:entryTo]
        self._entries[0] = (b"", index, term)

    @overload
    def __getitem__(self, item: int) -> Entry: ...
    @overload
    def __getitem__(self, item: slice) -> list[Entry]: ...
    def __getitem__(self, item: int | slice) -> Entry | list[Entry]:
        return self._entries[item]

    def __len__(self) -> int:
        return len(self._entries)

    def _destroy(self) -> None:
        pass

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:
        """Do nothing: a commit index is not stored; after a crash the node learns it from a leader again."""

    def getRaftCommitIndex(self) -> int:
        return self._entries[0][1]

    def setCurrentTerm(self, term: int, votedForNodeId: int | None) -> None:
        """Record term and vote (Raft §5.1, figure 2: both are durable before anything reflects them)."""
        self._term, self._vote = term, votedForNodeId
        self.record_state()

    def getCurrentTerm(self) -> int:
        return self._term

    def getVotedForNodeId(self) -> int | None:
        return self._vote

    # What a group calls.

    @property
    def base(self) -> int:
        """Index up to which the snapshot under this log covers it; entries begin after it."""
        return self._entries[0][1]

    @property
    def base_term(self) -> int:
        return self._entries[0][2]

    @property
    def last(self) -> int:
        return self._entries[-1][1]

    @property
    def last_term(self) -> int:
        return self._entries[-1][2]

    @property
    def unsynced(self) -> bool:
        """Whether any entry is not durable yet."""
        return self.synced < self._entries[-1][1]

    @property
    def state_waits(self) -> bool:
        """Whether a term or vote is not durable yet."""
        return self._state_lsn > self._synced_lsn

    def term_at(self, index: int) -> int | None:
        """Term of the entry at `index`, the base included; None when the log does not hold it."""
        position = index - self._entries[0][1]
        return self._entries[position][2] if 0 <= position < len(self._entries) else None

    def after(self, index: int, count: int | None = None) -> Sequence[Entry]:
        """Entries above `index`, at most `count`."""
        start = index + 1 - self._entries[0][1]
        return self._entries[start:] if count is None else self._entries[start : start + count]

    def last_index_not_above(self, index: int, term: int) -> int:
        """Largest index up to `index` whose term is at most `term`; the base if all terms are higher.

        It lets a follower and its leader find where they part in a message or two (Raft §5.3, the
        optimisation at its end).
        """
        start = self._entries[0][1]
        position = bisect_right(self._entries, term, 0, max(index - start + 1, 0), key=_TERM_OF) - 1
        return start + max(position, 0)

    def record_state(self) -> None:
        """Write term and vote again, so that the segment that holds them now is not needed for them."""
        self._state_lsn = self._record(RecordKind.STATE, STATE.pack(self._term, self._packed_vote()))

    def _packed_vote(self) -> int:
        return 0 if self._vote is None else self._vote + 1

    def write(self) -> None:
        """Hand every entry not yet written to the write-ahead log."""
        if self._entries[-1][1] <= self.written:
            return
        entries = self.after(self.written)
        if self._unwritten_bytes <= self._max_run_bytes:
            self._write_run(entries)
        else:
            start = size = 0
            for position, entry in enumerate(entries):
                size += len(entry[0])
                if size > self._max_run_bytes and position > start:
                    self._write_run(entries[start:position])
                    start, size = position, len(entry[0])
            self._write_run(entries[start:])
        self._unwritten_bytes = 0

    def extend(self, entries: Sequence[Entry], packed: bytes | None) -> None:
        """Add entries that came from a leader; `packed`, if given, is exactly them as bytes."""
        if packed is None:
            self._entries.extend(entries)
            self._unwritten_bytes += sum(len(entry[0]) for entry in entries)
            self.write()
        else:
            self.write()
            self._entries.extend(entries)
            self._in_flight.append((self._record(RecordKind.ENTRIES, packed), entries[-1][1]))
            self.written = entries[-1][1]

    def run_after(self, index: int, max_bytes: int) -> tuple[int, bytes]:
        """(last index, packed entries) of a run that begins after `index`; as written, when still at hand."""
        for first, last, packed in reversed(self._runs):
            if first == index + 1:
                return last, packed
            if first <= index:
                break
        entries = self.after(index, _LONGEST_RUN)
        size = 0
        for count, entry in enumerate(entries):
            size += len(entry[0])
            if size > max_bytes and count:
                entries = entries[:count]
                break
        return entries[-1][1], pack_entries(entries)

    def on_synced(self, lsn: int) -> None:
        """All records up to `lsn` are durable."""
        self._synced_lsn = lsn
        done = 0
        for written, last in self._in_flight:
            if written > lsn:
                break
            self.synced = max(self.synced, last)
            done += 1
        del self._in_flight[:done]

    def record_snapshot(
        self, index: int, term: int, voters: tuple[int, ...], learners: tuple[int, ...], folders: Folders = ()
    ) -> int:
        """Record that a durable snapshot covers all entries up to `index`; returns the record's LSN."""
        self.write()
        return self._record(RecordKind.SNAPSHOT, _place(index, term, voters, learners, folders))

    def carry(self, index: int, max_bytes: int) -> tuple[int, int]:
        """Write entries above `index` again, at least one and about `max_bytes`: (the last, their bytes).

        They count once `record_carried` says so. Only what is written already can be carried.
        """
        entries = self.after(index, min(self.written - index, _LONGEST_RUN))
        size = 0
        for count, entry in enumerate(entries):
            size += len(entry[0])
            if size > max_bytes and count:
                entries = entries[:count]
                break
        packed = pack_entries(entries)
        self._record(RecordKind.CARRY, packed)
        return entries[-1][1], len(packed)

    def record_carried(
        self, index: int, term: int, voters: tuple[int, ...], learners: tuple[int, ...], folders: Folders = ()
    ) -> None:
        """Record that the log holds the entries carried above `index`, and no others; with term and vote."""
        place = [index, term, list(voters), list(learners), self.written, self._term, self._packed_vote()]
        self._state_lsn = self._record(RecordKind.CARRIED, msgpack.packb(place + pack_folders(folders)))

    def reset(
        self, index: int, term: int, voters: tuple[int, ...], learners: tuple[int, ...], folders: Folders = ()
    ) -> int:
        """Forget every entry and begin after (`index`, `term`), as a bootstrap or an install does."""
        self._entries = [(b"", index, term)]
        self.written = self.synced = index
        self._unwritten_bytes = 0
        self._in_flight.clear()
        self._runs.clear()
        return self._record(RecordKind.RESET, _place(index, term, voters, learners, folders))

    def _write_run(self, entries: Sequence[Entry]) -> None:
        packed = pack_entries(entries)
        last = entries[-1][1]
        self._in_flight.append((self._record(RecordKind.ENTRIES, packed), last))
        self._runs.append((entries[0][1], last, packed))
        del self._runs[:-_CACHED_RUNS]
        self.written = last


def _place(
    index: int, term: int, voters: tuple[int, ...], learners: tuple[int, ...], folders: Folders
) -> bytes:
    packed: bytes = msgpack.packb([index, term, list(voters), list(learners), *pack_folders(folders)])
    return packed
