"""Protocols of the replicas on a node and of their leaders, as the admin server reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from strandline.node.coordinator.groups.coordinator import GroupCoordinator
from strandline.node.refusal import Refusal
from strandline.statemachine.groups.groups import GroupsMachine
from strandline.statemachine.partition.epoch_window import EpochWindow, WindowCounters
from strandline.statemachine.partition.partition import PartitionStateMachine
from strandline.statemachine.transactions.transactions import TransactionsMachine


class FenceSource(Protocol):
    """A partition's fence: the window of this node's term, None while it does not lead."""

    @property
    def window(self) -> EpochWindow | None: ...
    @property
    def counters(self) -> WindowCounters: ...


class WriterSource(Protocol):
    """A partition's way into the log."""

    duplicates: int


class GroupIdentity(Protocol):
    """The Raft group of a partition."""

    @property
    def id(self) -> int: ...


class PartitionSource(Protocol):
    """One replica of a partition on this node."""

    @property
    def group(self) -> GroupIdentity: ...
    @property
    def machine(self) -> PartitionStateMachine: ...
    @property
    def topic(self) -> str: ...
    @property
    def number(self) -> int: ...
    @property
    def leads(self) -> bool: ...
    @property
    def collectable_epoch(self) -> int: ...
    @property
    def fence(self) -> FenceSource: ...
    @property
    def writer(self) -> WriterSource: ...


class CoordinatorPlaceSource(Protocol):
    """The partition of an internal topic that a replica belongs to."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...


class CoordinatorSource(Protocol):
    """One replica of a coordinator on this node."""

    @property
    def group(self) -> GroupIdentity: ...
    @property
    def place(self) -> CoordinatorPlaceSource: ...
    @property
    def machine(self) -> GroupsMachine | TransactionsMachine: ...
    @property
    def leads(self) -> bool: ...


class TransactionCoordinatorSource(Protocol):
    """A coordinator of transactions that this node leads."""

    @property
    def number(self) -> int: ...
    @property
    def machine(self) -> TransactionsMachine: ...
    async def abort(self, transactional_id: str, number: int, /) -> object | Refusal | None: ...


class CoordinatorTableSource(Protocol):
    """All replicas of coordinators on this node."""

    def __iter__(self) -> Iterator[CoordinatorSource]: ...
    def led_groups(self) -> Sequence[GroupCoordinator]: ...
    def led_transactions(self) -> Sequence[TransactionCoordinatorSource]: ...


class LeaderSource(Protocol):
    """Leader and term of a group."""

    @property
    def node(self) -> int: ...
    @property
    def term(self) -> int: ...


class LeaderTableSource(Protocol):
    """Leaders of the cluster's groups, as known to this node."""

    def leader_of(self, group: int) -> LeaderSource | None: ...


class PartitionTableSource(Protocol):
    """All replicas of partitions on this node."""

    def __iter__(self) -> Iterator[PartitionSource]: ...
