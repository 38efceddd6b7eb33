"""One group's log: entries in memory for speed, on the node's write-ahead log for durability.

It takes the place of PySyncObj's FileJournal, which writes an mmap and never syncs it. Element 0 is the
base: the index and term of the last entry that a snapshot (or the empty beginning) stands for, with no
command. Writing is lazy within one loop turn, so that all entries of a turn share a record; what is durable
is known exactly (`synced`), because only that may be counted or acknowledged (docs/raft.md).
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import overload

import msgpack
from pysyncobj.journal import Journal

from strandline.node.raft.entries import Entry, pack_entries, unpack_entries
from strandline.node.raft.wal.write_ahead_log import Kind

_STATE = struct.Struct("<QQ")
_INDEX = struct.Struct("<Q")
_TERM_OF = itemgetter(2)
_CACHED_RUNS = 64
_LONGEST_RUN = 65_536
_ANY_TERM = -1
"""Term of a base that floats: the entry itself was dropped with its segment."""

Record = Callable[[Kind, bytes], int]
"""Appends one record of this group to the write-ahead log and returns its LSN."""


class RaftLogDamaged(ValueError):
    """The records of a group contradict each other: the write-ahead log lost or invented something."""


class RecoveredLog:
    """What the write-ahead log's records say of one group, gathered in order when a node starts.

    Segments are dropped from the front once a snapshot covers them, so the first records met may begin
    anywhere, also with a snapshot older than the one that covers what was dropped. Until that one is met,
    and it is always kept, the base of the entries floats.
    """

    def __init__(self, group: int) -> None:
        self.group = group
        self.entries: list[Entry] = [(b"", 0, 0)]
        self.voters: tuple[int, ...] = ()
        self.learners: tuple[int, ...] = ()
        self.term = 0
        self.vote: int | None = None
        self.snapshot_index = 0
        self.based = False
        """Whether a record said what lies below the first entry."""
        self._carry: list[Entry] = []
        """Entries written again further on, which count once the CARRIED record behind them is met."""
        self._anchored = False
        """Whether the newest element is known to be the log's last entry, so that the next follows it."""

    def replay(self, kind: Kind, payload: bytes) -> None:
        """Apply one record; raises RaftLogDamaged when it does not follow from those before it."""
        if kind == Kind.ENTRIES:
            self._extend(unpack_entries(payload))
        elif kind == Kind.TRUNCATE:
            self._truncate(_INDEX.unpack(payload)[0])
        elif kind == Kind.STATE:
            self.term, vote = _STATE.unpack(payload)
            self.vote = vote - 1 if vote else None
        elif kind in (Kind.SNAPSHOT, Kind.RESET):
            index, term, voters, learners = msgpack.unpackb(payload)
            if kind == Kind.RESET:
                self.entries = [(b"", index, term)]
                self._anchored = self.based = True
            else:
                self.rebase(index, term)
            self.voters, self.learners = tuple(voters), tuple(learners)
            self.snapshot_index = index
        elif kind == Kind.CARRY:
            run = unpack_entries(payload)
            if not self._carry or run[0][1] != self._carry[-1][1] + 1:
                # What was begun before was given up, because the group's log changed.
                self._carry = []
            self._carry += run
        elif kind == Kind.CARRIED:
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
        """Let the log begin after `index`; what lies above stays if the entry at `index` has that term."""
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
    ) -> None:
        """All that the log holds now: entries up to `last` above `index`, or those whose records remain."""
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
        self.voters, self.learners = tuple(voters), tuple(learners)
        self.snapshot_index = index
        self.term, self.vote = current, vote - 1 if vote else None

    def _float(self, last: int) -> None:
        """What was at `last` and below went with its segment; a later snapshot says what it was."""
        self.entries = [(b"", last, _ANY_TERM if last else 0)]
        self.based = self._anchored = False


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
        self._in_flight: deque[tuple[int, int]] = deque()
        self._runs: deque[tuple[int, int, bytes]] = deque(maxlen=_CACHED_RUNS)

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
            self._record(Kind.TRUNCATE, _INDEX.pack(index))
            self.written = last
        self.synced = min(self.synced, last)
        self._in_flight = deque((lsn, min(upto, last)) for lsn, upto in self._in_flight)
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
        """Not stored: a commit index is learned anew from a leader, never believed from before a crash."""

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
        """Index that the snapshot under this log stands for; entries begin after it."""
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
        """Largest index up to `index` whose term is at most `term`; the base's when all are above.

        It lets a follower and its leader find where they part in a message or two (Raft §5.3, the
        optimisation at its end).
        """
        start = self._entries[0][1]
        position = bisect_right(self._entries, term, 0, max(index - start + 1, 0), key=_TERM_OF) - 1
        return start + max(position, 0)

    def record_state(self) -> None:
        """Write term and vote again, so that the segment that holds them now is not needed for them."""
        self._state_lsn = self._record(Kind.STATE, _STATE.pack(self._term, self._packed_vote()))

    def _packed_vote(self) -> int:
        return 0 if self._vote is None else self._vote + 1

    def write(self) -> None:
        """Hand every entry not yet written to the write-ahead log."""
        entries = self.after(self.written)
        if not entries:
            return
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
            self._in_flight.append((self._record(Kind.ENTRIES, packed), entries[-1][1]))
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
        while self._in_flight and self._in_flight[0][0] <= lsn:
            self.synced = max(self.synced, self._in_flight.popleft()[1])

    def record_snapshot(
        self, index: int, term: int, voters: tuple[int, ...], learners: tuple[int, ...]
    ) -> int:
        """Say that a durable snapshot stands for everything up to `index`; returns the record's LSN."""
        self.write()
        return self._record(Kind.SNAPSHOT, msgpack.packb([index, term, list(voters), list(learners)]))

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
        self._record(Kind.CARRY, packed)
        return entries[-1][1], len(packed)

    def record_carried(
        self, index: int, term: int, voters: tuple[int, ...], learners: tuple[int, ...]
    ) -> None:
        """Say that the log is what was carried above `index`, and nothing else; with term and vote."""
        place = [index, term, list(voters), list(learners), self.written, self._term, self._packed_vote()]
        self._state_lsn = self._record(Kind.CARRIED, msgpack.packb(place))

    def reset(self, index: int, term: int, voters: tuple[int, ...], learners: tuple[int, ...]) -> int:
        """Forget every entry and begin after (`index`, `term`), as a bootstrap or an install does."""
        self._entries = [(b"", index, term)]
        self.written = self.synced = index
        self._unwritten_bytes = 0
        self._in_flight.clear()
        self._runs.clear()
        return self._record(Kind.RESET, msgpack.packb([index, term, list(voters), list(learners)]))

    def _write_run(self, entries: Sequence[Entry]) -> None:
        packed = pack_entries(entries)
        last = entries[-1][1]
        self._in_flight.append((self._record(Kind.ENTRIES, packed), last))
        self._runs.append((entries[0][1], last, packed))
        self.written = last
