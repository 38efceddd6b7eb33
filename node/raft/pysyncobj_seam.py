"""The one place that touches PySyncObj's private parts.

A group is a `SyncObj`: it keeps PySyncObj's state, log access and state changes, and replaces what is not
safe or not fast enough (docs/raft.md has the table). PySyncObj's private methods and fields are reached by
their mangled names, so the release is pinned and everything relied on is checked when a node starts: another
release must fail here, by name, and not in the middle of an election.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.node import Node
from pysyncobj.transport import Transport
from pysyncobj.version import VERSION

if TYPE_CHECKING:
    from strandline.node.raft.log import Log

PINNED = "0.3.17"

FOLLOWER, CANDIDATE, LEADER = 0, 1, 2
"""PySyncObj's _RAFT_STATE."""

METHODS = (
    "__applyLogEntries",
    "__changeCluster",
    "__deleteEntriesFrom",
    "__deleteEntriesTo",
    "__doApplyCommand",
    "__doChangeCluster",
    "__generateRaftTimeout",
    "__loadDumpFile",
    "__onBecomeLeader",
    "__onMessageReceived",
    "__onNodeConnected",
    "__onNodeDisconnected",
    "__parseChangeClusterRequest",
    "__sendAppendEntries",
    "__setCurrentTerm",
    "__setState",
    "__tryLogCompaction",
    "_applyCommand",
    "_checkCommandsToApply",
    "_onTick",
)
FIELDS = (
    "__otherNodes",
    "__raftCommitIndex",
    "__raftCurrentTerm",
    "__raftElectionDeadline",
    "__raftLastApplied",
    "__raftLeader",
    "__raftLog",
    "__raftState",
    "__votedForNodeId",
)


class IncompatiblePySyncObj(RuntimeError):
    """The installed PySyncObj is not the one this code was written against."""


def mangled(name: str) -> str:
    """The attribute under which PySyncObj's private `name` is found."""
    return f"_SyncObj{name}" if name.startswith("__") else name


def check_internals(cls: type[Any] = SyncObj, version: str = VERSION) -> None:
    """Check that PySyncObj has every internal that a group overrides or reads.

    Raises IncompatiblePySyncObj naming those that are missing, or the release if only that differs.
    """
    missing = [name for name in METHODS if not callable(getattr(cls, mangled(name), None))]
    assigned = set(cls.__init__.__code__.co_names)
    missing += [name for name in FIELDS if mangled(name) not in assigned]
    if missing:
        raise IncompatiblePySyncObj(
            f"PySyncObj {version} lacks {', '.join(missing)}, which the replicated log builds on:"
            f" install pysyncobj=={PINNED}"
        )
    if version != PINNED:
        raise IncompatiblePySyncObj(
            f"PySyncObj {version} is installed and {PINNED} is needed, the release whose source was read"
            f" line by line: install pysyncobj=={PINNED}"
        )


class _NoTransport(Transport):
    """PySyncObj wants a transport; a group's messages travel by the node's mesh instead."""

    def __init__(self) -> None:
        super().__init__(None, None, [])

    def send(self, node: Any, message: Any) -> NoReturn:
        raise NotImplementedError("a group sends through its host")


_CONF = SyncObjConf(autoTick=False, appendEntriesUseBatch=True, dynamicMembershipChange=True, useFork=False)


@cache
def _construct() -> tuple[tuple[str, type], ...]:
    """Give the class below what a SyncObj's constructor gives an object, all but the empty collections.

    Returns their names and types: each object has its own.
    """
    made = vars(SyncObj(Node("0"), [], _CONF, transport=_NoTransport()))
    collections = {
        name: type(value) for name, value in made.items() if type(value) in (dict, list, set) and not value
    }
    for name in made.keys() - collections.keys():
        setattr(SeamedSyncObj, _OURS.get(name, name), made[name])
    return tuple(collections.items())


_OURS: dict[str, str] = {
    mangled(theirs): ours
    for ours, theirs in {
        "role": "__raftState",
        "term": "__raftCurrentTerm",
        "vote": "__votedForNodeId",
        "leader": "__raftLeader",
        "commit": "__raftCommitIndex",
        "applied": "__raftLastApplied",
        "journal": "__raftLog",
        "deadline": "__raftElectionDeadline",
    }.items()
}
"""PySyncObj's names of what it shares with a group, and a group's own."""


def _shared(ours: str) -> Any:
    return property(attrgetter(ours), lambda self, value: setattr(self, ours, value))


class SeamedSyncObj(SyncObj):
    """SyncObj with readable names for its state, and every way to pickle, poll or forward closed.

    The state is kept under the readable names: PySyncObj's methods look at it once in a leadership, a group's
    rules dozens of times for each message.
    """

    role: int
    term: int
    vote: int | None
    leader: int | None
    commit: int
    applied: int
    journal: Log
    deadline: float

    def __init__(self, node_id: int, journal: Log) -> None:
        """As SyncObj's own, which takes 0.2 ms and opens a poller: a node with 10,000 groups cannot pay that.

        It runs once a process, and what it made are attributes of the class, which an object replaces when it
        sets one: fifty attributes of each group's own took 3 kB. A group's collections are its own; the
        poller, the serializer and the queue, which no group uses, are shared.
        """
        for name, kind in _construct():
            setattr(self, name, kind())
        self._SyncObj__selfNode = Node(str(node_id))
        self.journal = journal
        self.term = journal.getCurrentTerm()
        self.vote = journal.getVotedForNodeId()
        self.commit = self.applied = journal.getRaftCommitIndex()

    def set_term(self, term: int, vote: int | None) -> None:
        """Adopt a term and a vote; both are records of the write-ahead log before anything tells of them."""
        self._SyncObj__setCurrentTerm(term, vote)

    def set_role(self, role: int) -> None:
        """Change between follower, candidate and leader."""
        self._SyncObj__setState(role)

    def set_others(self, nodes: tuple[int, ...]) -> None:
        """Give the other members to PySyncObj's own view of the cluster (its status)."""
        self._SyncObj__otherNodes = {Node(str(node)) for node in nodes}

    def drop_from(self, index: int) -> None:
        """Delete the log's entries from `index` on."""
        self._SyncObj__deleteEntriesFrom(index)

    def drop_below(self, index: int) -> None:
        """Let the log in memory begin after `index`."""
        self._SyncObj__deleteEntriesTo(index)

    # What must never run: each of these pickles, polls, or trusts what a hardened group does not.

    def _closed(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise NotImplementedError("closed: commands go through replicate(), members through add_member()")

    _applyCommand = _closed
    _checkCommandsToApply = _closed
    _onTick = _closed
    _SyncObj__applyLogEntries = _closed
    _SyncObj__changeCluster = _closed
    _SyncObj__doApplyCommand = _closed
    _SyncObj__doChangeCluster = _closed
    _SyncObj__loadDumpFile = _closed
    _SyncObj__onBecomeLeader = _closed
    _SyncObj__onMessageReceived = _closed
    _SyncObj__parseChangeClusterRequest = _closed
    _SyncObj__sendAppendEntries = _closed
    _SyncObj__tryLogCompaction = _closed


Replica = TypeVar("Replica", bound=SeamedSyncObj)


def due_by(replicas: Iterable[Replica], moment: float) -> list[Replica]:
    """The replicas whose timers have anything to do by then: a leader's always, another's if its election
    deadline is earlier. Thousands are asked in each tick, so in one go."""
    return [each for each in replicas if each.deadline < moment or each.role == LEADER]


for _theirs, _ours in _OURS.items():
    setattr(SeamedSyncObj, _theirs, _shared(_ours))
