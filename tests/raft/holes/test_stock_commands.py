"""Holes of stock PySyncObj 0.3.17 in commands, members and the wire (see test_stock_log.py)."""

from __future__ import annotations

import gzip
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pysyncobj import FAIL_REASON
from pysyncobj.node import Node
from pysyncobj.transport import Transport

from tests.raft.holes.stock import MEMBERSHIP, NOOP, VERSION, Stock, part

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
"""PySyncObj leaves files open."""


CANDIDATE = 1
TcpConnection = part("tcp_connection").TcpConnection
TCPTransport = part("transport").TCPTransport


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
