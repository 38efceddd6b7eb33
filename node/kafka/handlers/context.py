"""The node, as the handlers of requests use it.

A handler takes this interface instead of the whole broker, so that a test can give it a node made of plain
objects, and so that imports point one way: the broker knows the handlers.
"""

from __future__ import annotations

import asyncio
import random
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from strandline.node.config.node_config import NodeConfig
    from strandline.node.controller.client import ControllerClient
    from strandline.node.controller.leaders import LeaderTable
    from strandline.node.controller.producer_ids import ProducerIds
    from strandline.node.coordinator.table import Coordinators
    from strandline.node.coordinator.verification import Verifier
    from strandline.node.kafka.handlers.action_log import ActionLog
    from strandline.node.kafka.handlers.authorizer import Authorizer
    from strandline.node.kafka.handlers.client_throttles import ClientThrottles
    from strandline.node.kafka.handlers.kept_fetches import KeptFetches
    from strandline.node.kafka.handlers.login_turns import LoginTurns
    from strandline.node.partition.partition import Partition
    from strandline.node.raft.disk import Disk
    from strandline.node.rpc import MeshCalls


class Partitions(Protocol):
    """The partitions this node has a replica of."""

    def get(self, topic_id: bytes, number: int) -> Partition | None:
        """The replica here of one partition."""

    def by_group(self, group: int) -> Partition | None:
        """The replica here of one group."""


class BrokerContext(Protocol):
    """One node, as its requests see it; `strandline.node.broker.broker.Broker` is one."""

    @property
    def node_id(self) -> int: ...
    @property
    def config(self) -> NodeConfig: ...
    @property
    def authorizer(self) -> Authorizer | None:
        """Decides what clients may do; None where each may do everything."""

    @property
    def throttles(self) -> ClientThrottles:
        """Counts what clients use, where there are quotas."""

    @property
    def fetches(self) -> KeptFetches:
        """The partitions that each connection fetches, kept for its next fetch."""

    @property
    def login_turns(self) -> LoginTurns:
        """Orders the comparisons of passwords by the addresses that they come from."""

    @property
    def actions(self) -> ActionLog:
        """The record of logins, refusals and changes of the cluster."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    @property
    def controller(self) -> ControllerClient: ...
    @property
    def leaders(self) -> LeaderTable: ...
    @property
    def partitions(self) -> Partitions: ...
    @property
    def producer_ids(self) -> ProducerIds: ...
    @property
    def coordinators(self) -> Coordinators:
        """Finds the coordinators of groups and transactions, and has those of this node."""

    @property
    def verifier(self) -> Verifier:
        """Asks the coordinators of transactions, on any node, whether a partition or group is in one."""

    @property
    def calls(self) -> MeshCalls: ...
    @property
    def disk(self) -> Disk:
        """The disk that the data folder is on."""

    @property
    def work_executor(self) -> Executor | None:
        """Threads for work that would hold up the loop; None for the loop's own."""

    @property
    def rng(self) -> random.Random:
        """Source of the ids of new topics."""

    def wall_ms(self) -> int:
        """Unix time in milliseconds, the node's own clock."""
