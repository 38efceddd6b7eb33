"""Holes in what becomes of a command: forwarding, waiting, pickles, sizes."""

from __future__ import annotations

import ast
import asyncio
import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pysyncobj import SyncObj

import strandline.node.raft
from strandline.node.raft.entries import EntryKind
from strandline.node.raft.group import RaftGroup
from strandline.node.raft.outcome import Applied, NotLeader, Outcome, Overloaded, Unknown
from strandline.node.raft.pysyncobj_seam import (
    FIELDS,
    METHODS,
    IncompatiblePySyncObj,
    check_internals,
    mangled,
)
from strandline.node.raft.rules.messages import AppendEntries, MessageKind
from strandline.node.raft.rules.pending_commands import PendingCommands
from strandline.node.raft.snapshots.receiving import SnapshotReceiving
from strandline.snapshot.document import SnapshotDocument
from tests.raft.fake_host import CLUSTER
from tests.raft.harness import CONFIG, GROUP, Replica
from tests.raft.holes.hole import hole, hole_in
from tests.raft.register_map import RegisterMap, set_register

# Followers forward; commands wait without bound for a leader.


class Forwards(RaftGroup):
    def replicate(self, command: bytes, term: int) -> asyncio.Future[Outcome]:
        if self.is_leader or self.leader is None:
            return super().replicate(command, term)
        self.host.send(
            self.leader, AppendEntries(self.id, MessageKind.APPEND, self.term, 0, 0, 0, command, 0.0)
        )
        return self.host.loop.create_future()


@hole(RaftGroup, Forwards)
def test_follower_forwards_nothing(group_class: type[RaftGroup]) -> None:
    follower = Replica(terms=[1], group_class=group_class)
    follower.append(2, 1, (1, 1))
    future = follower.propose()
    assert follower.take() == []
    assert future.done()
    assert future.result() == NotLeader(2)


class WaitsForALeader(RaftGroup):
    def replicate(self, command: bytes, term: int) -> asyncio.Future[Outcome]:
        if self.leader is None:
            return self.host.loop.create_future()
        return super().replicate(command, term)


@hole(RaftGroup, WaitsForALeader)
def test_command_without_a_leader_fails_at_once(group_class: type[RaftGroup]) -> None:
    follower = Replica(terms=[1], group_class=group_class)
    future = follower.propose()
    assert future.done()
    assert future.result() == NotLeader(None)


class QueuesWithoutBound(RaftGroup):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.settings = replace(self.settings, max_pending_commands=1 << 30, max_pending_bytes=1 << 40)


@hole(RaftGroup, QueuesWithoutBound)
def test_commands_that_wait_are_bounded(group_class: type[RaftGroup]) -> None:
    config = replace(CONFIG, max_pending_commands=3, max_pending_bytes=100)
    leader = Replica(config=config, group_class=group_class)
    leader.establish()
    futures = [leader.propose(number) for number in range(4)]
    assert futures[3].done()
    assert isinstance(futures[3].result(), Overloaded)
    leader.sync()
    leader.acknowledge(2, leader.group.journal.last)
    big = [leader.propose(number, "v" * 40) for number in range(3)]
    assert isinstance(big[2].result(), Overloaded)


class TakesAnyTerm(RaftGroup):
    def replicate(self, command: bytes, term: int) -> asyncio.Future[Outcome]:
        return super().replicate(command, self.term)


@hole(RaftGroup, TakesAnyTerm)
def test_command_for_an_earlier_term_is_rejected(group_class: type[RaftGroup]) -> None:
    leader = Replica(terms=[1], group_class=group_class)
    term = leader.establish()
    future = leader.group.replicate(set_register(1, "x", 1), term - 1)
    assert future.done()
    assert isinstance(future.result(), NotLeader)


# On a change of leader a pending callback may never fire.


class NeverGivesUp(PendingCommands):
    def give_up(self, term: int) -> None:
        pass


@hole_in(NeverGivesUp)
def test_command_of_a_deposed_leader_ends(group_class: type[RaftGroup]) -> None:
    leader = Replica(terms=[1], group_class=group_class)
    leader.establish()
    future = leader.propose()
    leader.append(2, 9, (2, 2))
    leader.advance(CONFIG.command_grace_seconds)
    assert future.done()


class CallsUnknownRejected(PendingCommands):
    def end(self, index: int, outcome: Outcome) -> None:
        super().end(index, NotLeader(self.state.leader) if isinstance(outcome, Unknown) else outcome)


@hole_in(CallsUnknownRejected)
def test_unknown_outcome_is_never_called_a_rejection(group_class: type[RaftGroup]) -> None:
    leader = Replica(terms=[1], group_class=group_class)
    leader.establish()
    future = leader.propose()
    leader.append(2, 9, (2, 2))
    leader.advance(CONFIG.command_grace_seconds)
    leader.append(2, 9, (2, 2), log=[*leader.group.journal.after(2)][:1], commit=3)
    assert isinstance(future.result(), Unknown), "the new leader had the entry, and committed it"


class TellsByIndexAlone(PendingCommands):
    def resolve(self, waiting: Any, result: Any, index: int, term: int) -> None:
        super().resolve([(term, size, future) for _, size, future in waiting], result, index, term)


@hole_in(TellsByIndexAlone)
def test_entry_of_another_leader_in_its_place_is_no_success(group_class: type[RaftGroup]) -> None:
    leader = Replica(terms=[1], group_class=group_class)
    leader.establish()
    future = leader.propose()
    leader.append(2, 9, (2, 2), [9], commit=3)
    assert isinstance(future.result(), NotLeader)


class ForgetsWhatASnapshotCovers(SnapshotReceiving):
    def install(self, *read: Any) -> None:
        waiting, self.state.waiting = self.state.waiting, {}
        super().install(*read)
        self.state.waiting = waiting


@hole_in(ForgetsWhatASnapshotCovers)
def test_command_that_a_snapshot_covers_ends(group_class: type[RaftGroup]) -> None:
    leader = Replica(terms=[1], group_class=group_class)
    leader.establish()
    future = leader.propose()
    leader.append(2, 9, (2, 2))
    state = RegisterMap().snapshot()
    leader.install(SnapshotDocument(CLUSTER, "register-map", GROUP, 9, 9, (1, 2, 3), (), state))
    assert future.done()
    assert isinstance(future.result(), Unknown)


def test_stopping_ends_every_command_and_read() -> None:
    leader = Replica(terms=[1])
    leader.lead()
    future, reading = leader.propose(), leader.read()
    leader.group.stop(None, "the node is stopping")
    assert future.result() == Unknown("the node is stopping")
    assert isinstance(reading.step(), NotLeader)


# Commands, membership changes, dumps and messages are pickles.


def test_nothing_below_the_log_imports_a_module_that_runs_what_it_reads() -> None:
    folder = Path(strandline.node.raft.__file__).parent
    sources = sorted(folder.rglob("*.py"))
    assert len(sources) > 40
    for source in sources:
        for statement in ast.walk(ast.parse(source.read_text())):
            names = []
            if isinstance(statement, ast.Import):
                names = [alias.name for alias in statement.names]
            elif isinstance(statement, ast.ImportFrom):
                names = [f"{statement.module}.{alias.name}" for alias in statement.names]
            for name in names:
                parts = set(name.split("."))
                assert not parts & {"pickle", "marshal", "shelve", "dill", "serializer"}, f"{source}: {name}"
            if isinstance(statement, ast.Name):
                assert statement.id not in {"eval", "exec", "compile"}, f"{source}: {statement.id}"


WAYS_IN: list[tuple[str, tuple[Any, ...]]] = [
    ("addNodeToCluster", ("host:1",)),
    ("removeNodeFromCluster", ("host:1",)),
    ("doTick", ()),
    ("_applyCommand", (b"", None)),
    ("_checkCommandsToApply", ()),
    ("_onTick", ()),
    ("__applyLogEntries", ()),
    ("__doApplyCommand", (b"\x00",)),
    ("__loadDumpFile", (True,)),
    ("__onMessageReceived", (None, {"type": "append_entries"})),
    ("__parseChangeClusterRequest", (b"\x02",)),
    ("__sendAppendEntries", ()),
    ("__tryLogCompaction", ()),
]


@pytest.mark.parametrize(("name", "arguments"), WAYS_IN, ids=[name for name, _ in WAYS_IN])
def test_every_way_into_pysyncobj_that_pickles_is_closed(name: str, arguments: tuple[Any, ...]) -> None:
    assert callable(getattr(SyncObj, mangled(name)))
    with pytest.raises(NotImplementedError, match="closed"):
        getattr(Replica(terms=[1]).group, mangled(name))(*arguments)


def test_missing_internals_are_named() -> None:
    class Renamed:
        def __init__(self) -> None:
            pass

    with pytest.raises(IncompatiblePySyncObj) as caught:
        check_internals(Renamed)
    for name in (*METHODS, *FIELDS):
        assert name in str(caught.value)
    assert "install pysyncobj==0.3.17" in str(caught.value)


def test_one_missing_internal_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(SyncObj, "_SyncObj__setState")
    with pytest.raises(IncompatiblePySyncObj, match=r"lacks __setState, which"):
        check_internals()


def test_another_release_is_refused_even_when_nothing_is_missing() -> None:
    check_internals()
    with pytest.raises(IncompatiblePySyncObj, match=r"0\.3\.18 is installed and 0\.3\.17 is needed"):
        check_internals(version="0.3.18")


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [("role", "__raftState"), ("term", "__raftCurrentTerm"), ("commit", "__raftCommitIndex")],
)
def test_what_pysyncobj_reads_and_writes_is_the_groups_own(ours: str, theirs: str) -> None:
    group = Replica(terms=[1]).group
    setattr(group, mangled(theirs), 1_000)
    assert getattr(group, ours) == 1_000
    setattr(group, ours, 2_000)
    assert getattr(group, mangled(theirs)) == 2_000
    # Each look at it is that of a plain attribute, which the rules have many of for every message.
    assert not isinstance(inspect.getattr_static(type(group), ours, None), property)


# A large command is chunked, and some lengths break the receiver.


class TakesAnySize(RaftGroup):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.settings = replace(self.settings, max_entry_bytes=1 << 30)


@hole(RaftGroup, TakesAnySize)
def test_command_over_the_limit_is_refused(group_class: type[RaftGroup]) -> None:
    leader = Replica(config=replace(CONFIG, max_entry_bytes=1000), group_class=group_class)
    leader.establish()
    assert not leader.group.replicate(bytes(1000), leader.group.term).done()
    with pytest.raises(ValueError, match="1001 bytes is over max_entry_bytes, 1000: split it"):
        leader.group.replicate(bytes(1001), leader.group.term)


class CutsWhatIsLong(RaftGroup):
    def append(self, command: bytes) -> int:
        limit = self.settings.max_append_bytes
        for start in range(0, len(command) - limit, limit):
            super().append(bytes([EntryKind.REGULAR]) + set_register(1_000_000 + start, "part", start))
        return super().append(command)


@hole(RaftGroup, CutsWhatIsLong)
def test_entry_of_any_length_up_to_the_limit_travels_as_one(group_class: type[RaftGroup]) -> None:
    config = replace(CONFIG, max_append_bytes=100, max_entry_bytes=350)
    leader = Replica(voters=(1, 2), config=config, group_class=group_class)
    follower = Replica(node=2, voters=(1, 2), config=config)
    leader.establish()
    follower.append(1, 1, (0, 0), log=leader.group.journal.after(0))
    futures = []
    for length in range(0, 300, 7):
        futures.append(leader.propose(length, "v" * length))
        leader.sync()
        for sent in leader.take(MessageKind.APPEND):
            follower.told(1, sent.kind, sent.term, *sent.fields)
        follower.sync()
        leader.acknowledge(2, follower.group.journal.last)
    assert all(isinstance(future.result(), Applied) for future in futures)
    assert follower.group.journal.last == leader.group.journal.last == 1 + len(futures)


def test_pysyncobjs_own_status_tells_of_the_group() -> None:
    leader = Replica(terms=[1])
    leader.establish()
    status = leader.group.getStatus()
    assert (status["raft_term"], status["last_applied"], status["log_len"]) == (2, 2, 3)
    assert status["partner_nodes_count"] == 2
