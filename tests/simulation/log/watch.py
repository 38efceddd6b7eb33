"""The production classes as they are, with eyes: each tells the ledger what it did after it did it.

These are subclasses made on top of whatever class is simulated, the production one or a sabotaged one, and
they change nothing of what it does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, cast

from strandline.node.raft.entries import unpack_entries
from strandline.node.raft.group import RaftGroup
from strandline.node.raft.host import RaftHost
from strandline.node.raft.rank import Rank
from strandline.node.raft.rules.messages import AppendEntries, AppendReply, Message, RequestVote, VoteReply
from strandline.node.raft.snapshots.receiving import SnapshotReceiving
from strandline.node.raft.snapshots.taking import SnapshotTaking
from strandline.snapshot.document import SnapshotDocument
from strandline.statemachine.machine import Captured, StateMachine
from tests.raft.group_with import group_of
from tests.raft.register_map import RegisterMap
from tests.simulation.log.invariants import Ledger


class Traffic:
    """Messages of groups that left, by kind; and, while `watch_resends`, who was sent what entries."""

    def __init__(self) -> None:
        self.sent = 0
        self.watch_resends = False
        self.resent: list[str] = []
        self._upto: dict[tuple[int, int, int, int], int] = {}

    def message(self, node: int, peer: int, message: Message) -> None:
        self.sent += 1
        if not self.watch_resends or not isinstance(message, AppendEntries) or not message.entries:
            return
        key = (message.group, message.term, node, peer)
        if message.previous < self._upto.get(key, 0):
            self.resent.append(
                f"group {message.group}: entries after {message.previous} sent from {node} to {peer} again"
            )
        self._upto[key] = unpack_entries(message.entries)[-1][1]


class WatchedMap(RegisterMap):
    """A register map that tells the ledger of every command it applies."""

    def __init__(self, ledger: Ledger, node: int, group_id: int) -> None:
        super().__init__()
        self._ledger = ledger
        self._node = node
        self._group = group_id

    def apply(self, index: int, term: int, command: bytes) -> Any:
        result = super().apply(index, term, command)
        self._ledger.applies(self._node, self._group, index, term, command, result, len(self.applied))
        if self.doubled:
            self._ledger.broken(
                "applied twice", f"group {self._group}: command {self.doubled[0]} on node {self._node}"
            )
        return result


class WatchedGroup(RaftGroup):
    """Reports every turn."""

    host: WatchedHost

    def work(self) -> None:
        super().work()
        self.host.ledger.after_turn(self, self.host.node_id)


class WatchedTaking(SnapshotTaking):
    """Reports the snapshots that the replica has."""

    def __init__(self, *args: Any) -> None:
        self._written: SnapshotDocument | None = None
        """The newest snapshot that this replica took, as it was written down off the loop."""
        super().__init__(*args)

    def _save(self, place: SnapshotDocument, captured: Captured) -> None:
        self._written = replace(place, state=captured())
        super()._save(place, captured)

    def remember(self, document: SnapshotDocument) -> None:
        super().remember(document)
        if not document.state:
            assert self._written is not None
            assert self._written.index == document.index
            document = self._written
        group = group_of(self)
        assert isinstance(group, WatchedGroup)
        group.host.ledger.has_snapshot(group, self.host.node_id, document)


class WatchedReceiving(SnapshotReceiving):
    """Counts the snapshots that are installed."""

    def install(self, *read: Any) -> None:
        before = self.state.applied
        super().install(*read)
        if self.state.applied > before:
            group = group_of(self)
            assert isinstance(group, WatchedGroup)
            group.host.ledger.snapshots_installed += 1


class WatchedHost(RaftHost):
    """Reports what its groups tell others."""

    ledger: ClassVar[Ledger]
    traffic: ClassVar[Traffic]
    boot: int

    def create_group(
        self,
        group_id: int,
        machine: StateMachine,
        voters: tuple[int, ...] = (),
        first_leader: int | None = None,
        rank: Rank = Rank.PARTITION,
        earlier_terms: int = 0,
    ) -> RaftGroup:
        group = super().create_group(group_id, machine, voters, first_leader, rank, earlier_terms)
        self.ledger.opened(group, self.node_id, self.boot)
        return group

    def limit_backlog(self, size: int) -> None:
        """Refuse new work once `size` bytes wait for the disk."""
        self.records.backlog_limit = size

    def active_groups(self) -> list[int]:
        """Groups that the timer looks at."""
        return list(self.ticker.active)

    def send(self, peer: int, message: Message) -> bool:
        left = super().send(peer, message)
        if left:
            self._tell(peer, message)
        return left

    def _tell(self, peer: int, message: Message) -> None:
        group_id, term = message.group, message.term
        ledger, group = self.ledger, self.groups.get(group_id)
        if group is None:
            return  # said before the replica was removed, and durable only now
        ledger.tells_term(self.node_id, group_id, term)
        self.traffic.message(self.node_id, peer, message)
        if isinstance(message, AppendReply) and message.accepted:
            ledger.acknowledges(group, self.node_id, message.log_index)
        elif isinstance(message, RequestVote):
            ledger.votes(self.node_id, group_id, term, self.node_id)
        elif isinstance(message, VoteReply) and message.granted:
            ledger.votes(self.node_id, group_id, term, peer)


def watched(host_class: type[RaftHost], ledger: Ledger, traffic: Traffic) -> Callable[..., WatchedHost]:
    """The class that simulates `host_class` and tells `ledger`."""
    group = host_class.group_class
    parts = {
        "taking_class": type("WatchedTaking", (WatchedTaking, group.taking_class), {}),
        "receiving_class": type("WatchedReceiving", (WatchedReceiving, group.receiving_class), {}),
    }
    group_class = type("Watched" + group.__name__, (WatchedGroup, group), parts)
    fields = {"group_class": group_class, "ledger": ledger, "traffic": traffic}
    return cast(
        Callable[..., WatchedHost], type("Watched" + host_class.__name__, (WatchedHost, host_class), fields)
    )
