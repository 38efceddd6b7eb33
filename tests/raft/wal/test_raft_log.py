"""A group's log against a plain list: what is in memory, what is durable, and what a crash leaves of it."""

from __future__ import annotations

import struct
from typing import Any

import msgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from strandline.node.raft.entries import Entry, pack_entries, unpack_entries
from strandline.node.raft.wal.raft_log import RaftLog
from strandline.node.raft.wal.recovered_log import RaftLogDamaged, RecoveredLog
from strandline.node.raft.wal.segment_use import SegmentUse
from strandline.node.raft.wal.write_ahead_log import RecordKind

GROUP = 5
VOTERS = (1, 2, 3)
MAX_RUN = 60


class Plain:
    """What records mean, said as simply as can be, with every segment at hand."""

    def __init__(self, records: list[tuple[RecordKind, bytes]]) -> None:
        self.base, self.entries = (0, 0), dict[int, Entry]()
        self.state = (0, 0)
        for kind, payload in records:
            if kind == RecordKind.ENTRIES:
                for entry in unpack_entries(payload):
                    self.entries[entry[1]] = entry
            elif kind == RecordKind.TRUNCATE:
                (index,) = struct.unpack("<Q", payload)
                self.entries = {at: entry for at, entry in self.entries.items() if at < index}
            elif kind == RecordKind.STATE:
                self.state = struct.unpack("<QQ", payload)
            else:
                index, term, _, _ = msgpack.unpackb(payload)
                self.base = (index, term)
                kept = kind == RecordKind.SNAPSHOT
                self.entries = {at: entry for at, entry in self.entries.items() if kept and at > index}

    def log(self) -> list[Entry]:
        return [(b"", *self.base), *(self.entries[at] for at in sorted(self.entries))]


class Log:
    """A journal, the segments its records went to, and a list that does what the journal should do."""

    def __init__(self) -> None:
        self.records: list[tuple[RecordKind, bytes]] = []
        self.segments: list[int] = []
        self.lasts: list[int] = []
        self.segment = self.first = 1
        self.synced = self.kept_since = 0
        self.use = SegmentUse()
        self.snapshot = (0, 0)
        self.commit = 0
        self.term = 1
        self.model: list[Entry] = [(b"", 0, 0)]
        self.journal = RaftLog(self.record, RecoveredLog(GROUP), MAX_RUN)
        self.journal.reset(0, 0, VOTERS, ())
        self.journal.setCurrentTerm(self.term, None)

    def record(self, kind: RecordKind, payload: bytes) -> int:
        self.records.append((kind, payload))
        self.segments.append(self.segment)
        self.lasts.append(self.journal.last if hasattr(self, "journal") else 0)
        return len(self.records)

    @property
    def last(self) -> int:
        return self.model[-1][1]

    def fresh(self, count: int, size: int) -> list[Entry]:
        return [(bytes([0]) * size, self.last + at, self.term) for at in range(1, count + 1)]

    # What may be done with a log; `a` and `b` are any two small numbers.

    def append(self, a: int, b: int) -> None:
        for entry in self.fresh(a % 4 + 1, b % 40 + 1):
            self.journal.add(*entry)
            self.model.append(entry)

    def write(self, a: int, b: int) -> None:
        self.journal.write()

    def extend(self, a: int, b: int) -> None:
        entries = self.fresh(a % 4 + 1, b % 40 + 1)
        self.journal.extend(entries, pack_entries(entries) if b % 2 else None)
        self.model += entries

    def truncate(self, a: int, b: int) -> None:
        if self.last > self.commit:
            index = self.commit + 1 + a % (self.last - self.commit)
            position = index - self.journal.base
            self.journal.deleteEntriesFrom(position)
            del self.model[index - self.model[0][1] :]
            self.vote(1, 0)

    def advance(self, a: int, b: int) -> None:
        self.commit = min(self.last, self.commit + a)

    def take_snapshot(self, a: int, b: int) -> None:
        """Of any applied entry: it was captured some time ago, and the log went on since."""
        if self.commit > self.snapshot[0]:
            index = self.snapshot[0] + 1 + a % (self.commit - self.snapshot[0])
            self.snapshot = index, self.term_at(index)
            self.journal.record_snapshot(*self.snapshot, VOTERS, ())
            keep_from = index - b % 4
            if keep_from > self.journal.base:
                self.journal.deleteEntriesTo(keep_from - self.journal.base)
                del self.model[: keep_from - self.model[0][1]]
                self.model[0] = (b"", *self.model[0][1:])

    def install(self, a: int, b: int) -> None:
        self.snapshot = self.last + a % 5 + 1, self.term
        self.commit = self.snapshot[0]
        self.journal.reset(*self.snapshot, VOTERS, ())
        self.model = [(b"", *self.snapshot)]

    def vote(self, a: int, b: int) -> None:
        self.term += a
        self.journal.setCurrentTerm(self.term, b % 4 or None)

    def record_again(self, a: int, b: int) -> None:
        self.journal.record_state()
        if self.snapshot[0]:
            self.journal.record_snapshot(*self.snapshot, VOTERS, ())

    def roll(self, a: int, b: int) -> None:
        """As the write-ahead log does, between two batches: the one before is synced."""
        while self.synced < len(self.records):
            self.sync(len(self.records) - self.synced - 1, 0)
        self.segment += 1

    def sync(self, a: int, b: int) -> None:
        upto = self.synced + 1 + a % max(1, len(self.records) - self.synced)
        for lsn in range(self.synced, min(upto, len(self.records))):
            self.use.note(self.segments[lsn], GROUP, self.records[lsn][0], self.lasts[lsn])
        self.synced = min(upto, len(self.records))
        self.journal.on_synced(self.synced)

    def drop_segments(self, a: int, b: int) -> None:
        """As the host does, by a record that comes after all that is recorded by now."""
        needed = self.use.first_needed(self.first, self.segment, lambda _: self.snapshot[0])
        if needed > self.first:
            self.first, self.kept_since = needed, len(self.records)

    # What must hold.

    def term_at(self, index: int) -> int:
        return self.model[index - self.model[0][1]][2]

    def check(self) -> None:
        journal = self.journal
        assert list(journal[:]) == self.model
        assert len(journal) == len(self.model)
        assert (journal.base, journal.last) == (self.model[0][1], self.last)
        assert (
            journal.base <= journal.synced <= journal.written <= journal.last or journal.synced <= self.commit
        )
        assert list(journal.after(journal.base)) == self.model[1:]
        durable = Plain(self.records[: self.synced])
        for index in range(max(journal.base, durable.base[0]) + 1, journal.synced + 1):
            assert durable.entries[index] == self.model[index - journal.base], "counted before it was durable"
        for at in range(journal.base, self.last):
            last, packed = journal.run_after(at, 50)
            entries = unpack_entries(packed)
            assert entries == self.model[at + 1 - journal.base : last + 1 - journal.base]

    def check_recovery(self) -> None:
        """After a crash that leaves any of the records that were not synced, in order."""
        for end in range(max(self.synced, self.kept_since), len(self.records) + 1):
            recovered = RecoveredLog(GROUP)
            for record, segment in zip(self.records[:end], self.segments, strict=False):
                if segment >= self.first:
                    recovered.replay(*record)
            recovered.finish()
            plain = Plain(self.records[:end])
            assert recovered.entries == plain.log()
            assert recovered.snapshot_index == plain.base[0]
            assert recovered.term == plain.state[0]
            assert (0 if recovered.vote is None else recovered.vote + 1) == plain.state[1]
            assert not end or recovered.voters == VOTERS


NAMES = [
    "append", "write", "extend", "truncate", "advance", "take_snapshot", "install", "vote", "record_again",
    "roll", "sync", "drop_segments",
]  # fmt: skip

NUMBERS = st.integers(0, 40)


def run(steps: list[tuple[str, int, int]]) -> Log:
    log = Log()
    for name, a, b in steps:
        getattr(log, name)(a, b)
        log.check()
    log.check_recovery()
    return log


@settings(max_examples=120, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(NAMES), NUMBERS, NUMBERS), max_size=40))
def test_journal_is_the_list_it_stands_for_and_survives_any_crash(steps: list[tuple[str, int, int]]) -> None:
    run(steps)


LATE = [("extend", 3, 1), ("extend", 3, 1), ("advance", 6, 0), ("roll", 0, 0)]


@pytest.mark.parametrize(
    "steps",
    [
        [*LATE, ("extend", 1, 1), ("take_snapshot", 2, 0), ("extend", 1, 1)],
        [*LATE, ("take_snapshot", 2, 0), ("extend", 1, 1)],
        [*LATE, ("take_snapshot", 2, 0), ("truncate", 0, 0), ("extend", 3, 1)],
        [*LATE, ("truncate", 0, 0), ("extend", 3, 1), ("take_snapshot", 2, 0), ("extend", 0, 0)],
    ],
    ids=["after entries", "before entries", "before a truncation", "after a truncation"],
)
def test_snapshot_older_than_the_dropped_segments_does_not_confuse_recovery(
    steps: list[tuple[str, int, int]],
) -> None:
    """It was taken, the log went on into a next segment, and only then was it recorded."""
    log = run(steps)
    log.advance(40, 0)
    log.take_snapshot(40, 0)
    log.vote(1, 1)
    log.extend(1, 1)
    log.roll(0, 0)
    log.drop_segments(0, 0)
    log.check_recovery()


def test_only_what_is_synced_counts_and_a_truncation_takes_it_back() -> None:
    log = Log()
    log.extend(3, 1)
    assert (log.journal.last, log.journal.written, log.journal.synced) == (4, 4, 0)
    assert log.journal.unsynced
    log.truncate(1, 0)
    log.extend(1, 1)
    log.journal.on_synced(3)  # The first four entries: of them one is left.
    assert log.journal.synced == 1
    log.journal.on_synced(len(log.records))
    assert log.journal.synced == 3
    assert not log.journal.unsynced


def test_entries_of_one_turn_share_a_record_up_to_the_limit() -> None:
    log = Log()
    for _ in range(4):
        log.append(0, 19)
    log.journal.write()
    runs = [unpack_entries(payload) for kind, payload in log.records if kind == RecordKind.ENTRIES]
    assert [len(entries) for entries in runs] == [3, 1]


def test_commit_index_is_not_stored() -> None:
    log = Log()
    before = list(log.records)
    log.journal.setRaftCommitIndex(40)
    assert (log.records, log.journal.getRaftCommitIndex()) == (before, 0)


def test_last_index_not_above_finds_where_logs_part() -> None:
    journal = Log().journal
    for index, term in enumerate([1, 1, 3, 3, 5], 1):
        journal.add(b"\x00", index, term)
    found = [[journal.last_index_not_above(index, term) for term in range(7)] for index in (5, 4, 2)]
    assert found == [[0, 2, 2, 4, 4, 5, 5], [0, 2, 2, 4, 4, 4, 4], [0, 2, 2, 2, 2, 2, 2]]


def entries(first: int, count: int) -> bytes:
    return pack_entries([(b"\x00", index, 1) for index in range(first, first + count)])


def base(index: int) -> bytes:
    packed: bytes = msgpack.packb([index, 1, VOTERS, []])
    return packed


DAMAGED: dict[str, tuple[list[tuple[RecordKind, bytes]], str]] = {
    "gap": (
        [
            (RecordKind.RESET, base(0)),
            (RecordKind.ENTRIES, entries(1, 2)),
            (RecordKind.ENTRIES, entries(4, 1)),
        ],
        "entry 4",
    ),
    "gap after a reset": (
        [(RecordKind.RESET, base(0)), (RecordKind.ENTRIES, entries(2, 1))],
        "entry 2 follows entry 0",
    ),
    "entry twice": (
        [
            (RecordKind.RESET, base(0)),
            (RecordKind.ENTRIES, entries(1, 2)),
            (RecordKind.ENTRIES, entries(2, 1)),
        ],
        "2",
    ),
    "front missing": ([(RecordKind.ENTRIES, entries(5, 2))], "segment of the write-ahead log is missing"),
    "snapshot too old": (
        [(RecordKind.SNAPSHOT, base(3)), (RecordKind.ENTRIES, entries(9, 2))],
        "begins at entry 9",
    ),
    "truncated nothing": (
        [
            (RecordKind.RESET, base(0)),
            (RecordKind.ENTRIES, entries(1, 2)),
            (RecordKind.TRUNCATE, struct.pack("<Q", 9)),
        ],
        "truncation at 9",
    ),
    "snapshot goes back": (
        [(RecordKind.RESET, base(5)), (RecordKind.SNAPSHOT, base(3))],
        "snapshot 3 lies below",
    ),
    "foreign kind": ([(RecordKind.MARK, b"")], "no place in a group's log"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_records_that_contradict_each_other_are_named(name: str) -> None:
    records, text = DAMAGED[name]
    recovered = RecoveredLog(GROUP)

    def replay() -> None:
        for record in records:
            recovered.replay(*record)
        recovered.finish()

    with pytest.raises(RaftLogDamaged, match=text):
        replay()


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 4)), min_size=1, max_size=5), st.integers(1, 50))
@example([(1, 1)], 1)
def test_runs_of_any_terms_are_recovered(runs: list[tuple[int, int]], first: int) -> None:
    terms = sorted(term for term, count in runs for _ in range(count))
    run: list[Any] = [(b"\x00", index, term) for index, term in enumerate(terms, first)]
    recovered = RecoveredLog(GROUP)
    recovered.replay(RecordKind.RESET, base(first - 1))
    recovered.replay(RecordKind.ENTRIES, pack_entries(run))
    assert recovered.entries[1:] == run
    assert recovered.term == terms[-1]
