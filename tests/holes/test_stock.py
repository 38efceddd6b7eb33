"""Holes of stock PySyncObj 0.3.17, shown on itself, in process and without a socket.

Nothing here tests our code: it documents that the holes are real. A release that closes one fails here first,
by name, and tells what docs/raft.md can drop.
"""

from __future__ import annotations

import gzip
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pysyncobj import FAIL_REASON, SyncObj, SyncObjConf
from pysyncobj.journal import FileJournal, ResizableFile
from pysyncobj.node import Node
from pysyncobj.serializer import Serializer
from pysyncobj.tcp_connection import TcpConnection
from pysyncobj.transport import TCPTransport, Transport

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
"""PySyncObj leaves files open."""

CANDIDATE = 1
NOOP, MEMBERSHIP, VERSION = b"\x01", b"\x02", b"\x03"


class Wire(Transport):
    """Takes what is sent, and says what a test says."""

    def __init__(self) -> None:
        super().__init__(None, None, [])
        self.sent: list[tuple[Any, dict[str, Any]]] = []

    def send(self, node: Any, message: Any) -> bool:
        self.sent.append((node.id, message))
        return True

    def take(self) -> list[tuple[Any, dict[str, Any]]]:
        taken, self.sent = self.sent, []
        return taken


class Stock(SyncObj):
    """Node "1" of three: a counter."""

    def __init__(self, **settings: Any) -> None:
        self.wire = Wire()
        self.applied: list[bytes] = []
        conf = SyncObjConf(autoTick=False, **settings)
        super().__init__(Node("1"), [Node("2"), Node("3")], conf, transport=self.wire)

    def internal(self, name: str) -> Any:
        return getattr(self, f"_SyncObj__{name}")

    def _SyncObj__doApplyCommand(self, command: bytes) -> Any:
        if command[:1] == VERSION:
            return super()._SyncObj__doApplyCommand(command)
        self.applied.append(command)
        return None

    def hear(self, node: str, **message: Any) -> list[tuple[Any, dict[str, Any]]]:
        self.wire.take()
        self._SyncObj__onMessageReceived(Node(node), message)
        return self.wire.take()

    def append(self, node: str, term: int, previous: tuple[int, int], terms: list[int], commit: int = 1) -> Any:
        entries = [(NOOP, previous[0] + at, entry_term) for at, entry_term in enumerate(terms, 1)]
        return self.hear(
            node,
            type="append_entries",
            term=term,
            commit_index=commit,
            prevLogIdx=previous[0],
            prevLogTerm=previous[1],
            entries=entries,
        )

    def lead(self) -> None:
        for node in self.otherNodes:
            self._SyncObj__onNodeConnected(node)
        self._SyncObj__raftElectionDeadline = 0
        self.doTick()
        for node in ("2", "3"):
            self.hear(node, type="response_vote", term=self.raftCurrentTerm)
        assert self._isLeader()

    @property
    def terms(self) -> list[int]:
        return [term for _, _, term in self.internal("raftLog")[:]]


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


def test_crash_while_the_journal_is_trimmed_loses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_callback_that_raises_makes_its_entry_apply_again() -> None:
    stock = Stock()
    stock.append("2", 1, (1, 0), [1], commit=2)

    def callback(*_: Any) -> None:
        raise RuntimeError("a bug in what waits for the command")

    stock.internal("commandsWaitingCommit")[2].append((1, callback))
    with pytest.raises(RuntimeError):
        stock._SyncObj__applyLogEntries()
    stock._SyncObj__applyLogEntries()
    assert len(stock.applied) == 2


def test_entry_of_a_newer_version_makes_the_next_one_apply_twice() -> None:
    stock = Stock()
    log = stock.internal("raftLog")
    log.add(VERSION + pickle.dumps(99), 2, 1)
    log.add(b"\x00pay", 3, 1)
    stock._SyncObj__raftCommitIndex = 3
    for _ in range(2):
        stock._SyncObj__applyLogEntries()
    assert stock.applied == [b"\x00pay", b"\x00pay"]


def test_command_without_a_leader_waits_for_ever() -> None:
    stock = Stock()
    ended: list[Any] = []
    stock._applyCommand(b"\x00", lambda *outcome: ended.append(outcome))
    for _ in range(3):
        stock.doTick()
    assert ended == []


def test_unknown_outcome_is_reported_as_leader_changed() -> None:
    """The first leader has the command and may commit it yet."""
    stock = Stock()
    stock.append("2", 1, (1, 0), [])
    ended: list[Any] = []
    stock._applyCommand(b"\x00", lambda *outcome: ended.append(outcome))
    stock._checkCommandsToApply()
    assert [message["type"] for _, message in stock.wire.take()] == ["apply_command"]
    stock.append("3", 2, (1, 0), [])
    assert ended == [(None, FAIL_REASON.LEADER_CHANGED)]


def test_snapshot_leaves_the_commands_it_covers_waiting_for_ever(tmp_path: Path) -> None:
    dump = tmp_path / "dump"
    stock = Stock(fullDumpFile=str(dump))
    ended: list[Any] = []
    stock.internal("commandsWaitingCommit")[3].append((1, lambda *outcome: ended.append(outcome)))
    with gzip.open(dump, "wb") as file:
        pickle.dump(({}, (NOOP, 9, 2), (NOOP, 8, 2), {Node("1")}), file)
    stock._SyncObj__loadDumpFile(clearJournal=True)
    stock.append("2", 2, (9, 2), [2], commit=10)
    stock.doTick()
    assert stock.raftLastApplied == 10
    assert ended == []


def test_two_membership_changes_are_under_way_after_a_change_of_leader() -> None:
    stock = Stock(dynamicMembershipChange=True)
    stock.wire.addNode = lambda node: None  # type: ignore[method-assign]
    stock.hear(
        "2",
        type="append_entries",
        term=1,
        commit_index=1,
        prevLogIdx=1,
        prevLogTerm=0,
        entries=[(MEMBERSHIP + pickle.dumps(["add", "4", Node("4")]), 2, 1)],
    )
    stock.lead()
    stock._SyncObj__noopIDx = 0  # As once the entry of its term is applied; the change before it may not be.
    assert stock._SyncObj__changeCluster(["add", "5", Node("5")])
    assert {node.id for node in stock.otherNodes} == {"2", "3", "4", "5"}


def test_removed_node_goes_on_as_a_member() -> None:
    stock = Stock(dynamicMembershipChange=True)
    assert not stock._SyncObj__doChangeCluster(["rem", "1", Node("1")])
    stock._SyncObj__onNodeConnected(Node("2"))
    stock._SyncObj__raftElectionDeadline = 0
    stock.doTick()
    assert stock._SyncObj__raftState == CANDIDATE


def test_leader_of_one_term_obeys_another_of_the_same() -> None:
    stock = Stock()
    stock.lead()
    stock.append("3", stock.raftCurrentTerm, (1, 0), [stock.raftCurrentTerm])
    assert not stock._isLeader()


def test_reply_of_a_node_that_is_no_member_breaks_the_tick() -> None:
    stock = Stock()
    stock.lead()
    with pytest.raises(KeyError):
        stock.hear("9", type="next_node_idx", next_node_idx=2, reset=False, success=True)


def test_conflict_is_walked_back_one_entry_a_message() -> None:
    stock = Stock()
    stock.append("2", 1, (1, 0), [1] * 100)
    replies = stock.append("3", 2, (101, 2), [])
    assert replies[0][1]["next_node_idx"] == 101, "and the next message leaves with the next heartbeat"


def test_some_lengths_of_large_commands_never_arrive() -> None:
    """It cuts by the length of the pickled entry, and ends by that of the command in it."""
    broken = []
    for length in range(100, 300):
        stock = Stock(appendEntriesBatchSizeBytes=100)
        stock.lead()
        stock.wire.take()
        stock.internal("raftLog").add(bytes([1]) * length, 3, 1)
        stock._SyncObj__raftNextIndex[Node("2")] = 3
        stock._SyncObj__sendAppendEntries()
        kinds = [m["transmission"] for node, m in stock.wire.take() if node == "2" and "transmission" in m]
        if kinds.count("finish") != 1:
            broken.append(length)
    assert broken, "some are never ended, or ended twice"


def test_anyone_who_reaches_the_port_runs_code() -> None:
    stock = Stock(dynamicMembershipChange=True)
    stock.hear(
        "2",
        type="append_entries",
        term=1,
        commit_index=1,
        prevLogIdx=1,
        prevLogTerm=0,
        entries=[(MEMBERSHIP + pickle.dumps(Bomb()), 2, 1)],
    )
    assert EXPLODED


EXPLODED: list[bool] = []


def explode() -> list[str]:
    EXPLODED.append(True)
    return ["nothing", "host:1"]


class Bomb:
    def __reduce__(self) -> tuple[Callable[[], list[str]], tuple[()]]:
        return explode, ()


class Stranger:
    """A connection from anywhere."""

    def __init__(self) -> None:
        self.sendRandKey = None
        self.said: list[Any] = []

    def send(self, message: Any) -> None:
        self.said.append(message)

    def setOnMessageReceivedCallback(self, callback: Any) -> None:
        pass

    def disconnect(self) -> None:
        pass


def test_stranger_is_whom_it_says_it_is_and_may_change_the_members() -> None:
    transport = TCPTransport.__new__(TCPTransport)
    Transport.__init__(transport, None, None, [])
    asked: list[Any] = []
    connected: list[str] = []
    transport._syncObj = type("WithoutPassword", (), {"encryptor": None})
    transport._unknownConnections = set()
    transport._connections = {}
    transport._nodeAddrToNode = {"host:2": Node("host:2")}
    transport.setOnUtilityMessageCallback("remove", lambda arguments, _: asked.append(arguments))
    transport.setOnNodeConnectedCallback(lambda node: connected.append(node.id))
    transport._onIncomingMessageReceived(Stranger(), ["remove", "host:3"])
    transport._onIncomingMessageReceived(Stranger(), "host:2")
    assert (asked, connected) == ([["host:3"]], ["host:2"])


def test_frame_length_has_no_bound() -> None:
    connection = TcpConnection(None)
    connection._TcpConnection__readBuffer = struct.pack("i", 2**31 - 1) + bytes(1000)
    assert connection._TcpConnection__processParseMessage() is None
    assert len(connection._TcpConnection__readBuffer) == 1004, "it waits for two gigabytes, and keeps them"
