"""Holes of stock PySyncObj 0.3.17 in log, votes and dumps, shown on itself, in process and without a socket.

Nothing here tests our code: it documents that the holes are real. A release that closes one fails here first,
by name, and tells what docs/raft.md can drop.
"""

from __future__ import annotations

import gzip
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from pysyncobj.node import Node

from tests.raft.holes.stock import NOOP, Stock, part

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
"""PySyncObj leaves files open."""


FileJournal = part("journal").FileJournal
ResizableFile = part("journal").ResizableFile
Serializer = part("serializer").Serializer


def test_matching_entries_after_the_previous_one_are_deleted() -> None:
    stock = Stock()
    stock.append("2", 1, (1, 0), [1, 1, 1])
    stock.append("2", 1, (1, 0), [1])  # The first part again, delayed.
    assert stock.terms == [0, 1]


def test_reply_of_an_earlier_term_counts() -> None:
    stock = Stock()
    stock.append("2", 1, (1, 0), [1, 1, 1])
    stock.lead()
    stock.hear("2", type="next_node_idx", next_node_idx=5, reset=False, success=True)
    stock.doTick()
    assert stock.internal("raftMatchIndex")[Node("2")] == 4, "the reply names no term to tell it by"


def test_append_of_a_lower_term_gets_no_answer() -> None:
    stock = Stock()
    stock.append("2", 5, (1, 0), [])
    assert stock.append("3", 4, (1, 0), []) == []


def test_vote_is_counted_twice() -> None:
    stock = Stock()
    stock.internal("otherNodes").update({Node("4"), Node("5")})
    stock._SyncObj__onNodeConnected(Node("2"))
    stock._SyncObj__raftElectionDeadline = 0
    stock.doTick()
    for _ in range(2):
        stock.hear("2", type="response_vote", term=stock.raftCurrentTerm)
    assert stock._isLeader(), "two of five voted"


def test_vote_whose_answer_was_lost_is_not_repeated() -> None:
    stock = Stock()
    ask = {"type": "request_vote", "term": 3, "last_log_index": 9, "last_log_term": 2}
    assert len(stock.hear("2", **ask)) == 1
    assert stock.hear("2", **ask) == []


def test_acknowledgement_sets_the_next_index_back() -> None:
    stock = Stock()
    stock.lead()
    log = stock.internal("raftLog")
    for index in range(3, 7):
        log.add(NOOP, index, 1)
    stock._SyncObj__raftNextIndex[Node("2")] = 7  # All are under way.
    stock.hear("2", type="next_node_idx", next_node_idx=4, reset=False, success=True)
    assert stock.internal("raftNextIndex")[Node("2")] == 4


def test_snapshot_chunk_commits_the_followers_own_log() -> None:
    """Not in any changelog: the commit index moves although nothing in the message proves a match."""
    stock = Stock()
    stock.append("2", 1, (1, 0), [1, 1, 1])  # Entries 2 to 4 of a leader that lost them.
    chunk = (b"a part of a dump", True, False)
    stock.hear("3", type="append_entries", term=2, commit_index=100, serialized=chunk)
    assert stock.raftCommitIndex == 4
    stock.doTick()
    assert len(stock.applied) == 3, "and what was never committed is applied"


def test_dump_that_cannot_be_read_is_acknowledged_with_the_end_of_the_own_log(tmp_path: Path) -> None:
    dump = tmp_path / "dump"
    stock = Stock(fullDumpFile=str(dump))
    stock.append("2", 1, (1, 0), [1, 1, 1])
    dump.write_bytes(b"the good dump it had")
    stock.hear("3", type="append_entries", term=2, commit_index=1, serialized=(b"garbage", True, False))
    replies = stock.hear("3", type="append_entries", term=2, commit_index=1, serialized=(b"", False, True))
    assert replies == [("3", {"type": "next_node_idx", "next_node_idx": 5, "reset": False, "success": True})]
    assert stock.terms == [0, 1, 1, 1], "stale entries now count towards a majority"
    assert dump.read_bytes() == b"garbage", "and the dump it had is gone"


def test_lost_chunk_of_a_dump_goes_unnoticed(tmp_path: Path) -> None:
    dump = tmp_path / "dump"
    receiver = Serializer(str(dump), 4, False, None, None, None)
    chunks = [(b"aaaa", True, False), (b"bbbb", False, False), (b"cccc", False, False), (b"", False, True)]
    assert [receiver.setTransmissionData(chunk) for chunk in (chunks[0], *chunks[2:])] == [False, False, True]
    assert dump.read_bytes() == b"aaaacccc"


def test_bad_dump_leaves_an_empty_state_and_no_error(tmp_path: Path) -> None:
    dump = tmp_path / "dump"
    dump.write_bytes(b"rotten")
    stock = Stock(fullDumpFile=str(dump))
    stock.doTick()
    assert stock.raftLastApplied == 1


def test_older_dump_takes_the_applied_index_back(tmp_path: Path) -> None:
    dump = tmp_path / "dump"
    stock = Stock(fullDumpFile=str(dump))
    stock.append("2", 1, (1, 0), [1] * 8, commit=9)
    stock.doTick()
    assert stock.raftLastApplied == 9
    with gzip.open(dump, "wb") as file:
        pickle.dump(({}, (NOOP, 5, 1), (NOOP, 4, 1), {Node("1")}), file)
    for chunk in ((dump.read_bytes(), True, False), (b"", False, True)):
        stock.hear("2", type="append_entries", term=1, commit_index=9, serialized=chunk)
    assert stock.raftLastApplied == 5


def test_crash_between_dump_and_trim_clears_the_journal(tmp_path: Path) -> None:
    dump, journal = tmp_path / "dump", str(tmp_path / "journal")
    stock = Stock(journalFile=journal, fullDumpFile=str(dump))
    stock.append("2", 1, (1, 0), [1] * 8, commit=1)
    entries = stock.internal("raftLog")[:]
    with gzip.open(dump, "wb") as file:  # As Serializer.serialize writes it, at entry 5.
        pickle.dump(({}, entries[4], entries[3], {Node("1")}), file)
    stock.destroy()
    again = Stock(journalFile=journal, fullDumpFile=str(dump))
    again.doTick()
    assert again.internal("raftLog")[-1][1] == 5, "entries 6 to 9 were acknowledged"
    again.destroy()


def test_crash_while_the_journal_is_trimmed_loses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "journal")
    journal = FileJournal(path)
    for index in range(1, 10):
        journal.add(NOOP, index, 1)

    def killed(*_: Any) -> None:
        raise SystemExit

    monkeypatch.setattr(FileJournal, "add", killed)
    with pytest.raises(SystemExit):
        journal.deleteEntriesTo(3)
    monkeypatch.undo()
    assert len(FileJournal(path)) == 0


def test_journal_is_never_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs: list[str] = []
    for name in ("fsync", "fdatasync", "sync"):
        monkeypatch.setattr(os, name, lambda *_, name=name: syncs.append(name))
    monkeypatch.setattr(ResizableFile, "flush", lambda _: syncs.append("flush"))
    journal = FileJournal(str(tmp_path / "journal"))
    journal.add(NOOP, 1, 1)
    journal.setCurrentTerm(3, "2")
    journal.onOneSecondTimer()
    assert syncs == []


def test_flipped_bit_in_the_journal_is_taken_for_an_entry(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = FileJournal(str(path))
    journal.add(b"\x00pay 100", 1, 1)
    journal._destroy()
    data = bytearray(path.read_bytes())
    data[data.index(b"100")] ^= 8
    path.write_bytes(data)
    assert FileJournal(str(path))[0][0] == b"\x00pay 900"


def test_unreadable_meta_file_means_term_0_and_no_vote(tmp_path: Path) -> None:
    path = str(tmp_path / "journal")
    FileJournal(path).setCurrentTerm(7, "2")
    with open(path + ".meta", "r+b") as file:
        file.write(b"?")
    again = FileJournal(path)
    assert (again.getCurrentTerm(), again.getVotedForNodeId()) == (0, None), "it may vote again in term 7"


def test_commit_index_from_before_the_crash_commits_what_comes_next(tmp_path: Path) -> None:
    path = str(tmp_path / "journal")
    stock = Stock(journalFile=path)
    stock.append("2", 1, (1, 0), [1, 1])
    stock.internal("raftLog").setRaftCommitIndex(10)  # Stored in time; entries 4 to 10 of the mmap were not.
    stock.internal("raftLog").onOneSecondTimer()
    stock.destroy()
    again = Stock(journalFile=path)
    again.append("2", 2, (3, 1), [2, 2], commit=1)
    assert again.raftCommitIndex == 5, "the leader said that entry 1 is committed"
    again.destroy()
