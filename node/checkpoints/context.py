"""The node as this package needs it: the broker satisfies these protocols as it is."""

from __future__ import annotations

import asyncio
import random
from typing import Any, Protocol

from strandline.node.config.node_config import NodeConfig
from strandline.node.controller.client import ControllerClient
from strandline.node.controller.leaders import LeaderTable
from strandline.node.coordinator.replica import CoordinatorReplica
from strandline.node.objectstore.store import ObjectStore
from strandline.node.raft.host import RaftHost
from strandline.node.rpc import MeshCalls
from strandline.statemachine.partition.partition import PartitionStateMachine
from strandline.statemachine.partition.partition_commands import (
    Checkpoint,
    ReleaseCheckpoints,
    RenewCheckpoint,
)


class Replica(Protocol):
    """A partition's replica, as checkpoints need it."""

    @property
    def machine(self) -> PartitionStateMachine: ...

    async def confirm(self) -> bool:
        """Whether this node leads now, with everything applied that was committed before."""

    async def execute(self, command: Checkpoint | RenewCheckpoint | ReleaseCheckpoints) -> Any:
        """The command's result, or whatever says why there is none."""


class Replicas(Protocol):
    """The replicas here."""

    def by_group(self, group: int) -> Replica | None: ...


class CoordinatorReplicas(Protocol):
    """The replicas of coordinators here."""

    def by_group(self, group: int) -> CoordinatorReplica[Any] | None: ...


class CheckpointContext(Protocol):
    """A node, as its checkpoints need it."""

    config: NodeConfig
    loop: asyncio.AbstractEventLoop
    host: RaftHost
    calls: MeshCalls
    controller: ControllerClient
    leaders: LeaderTable
    store: ObjectStore
    rng: random.Random

    def wall_ms(self) -> int:
        """Unix time in milliseconds; see ClusterClock."""

    @property
    def partitions(self) -> Replicas: ...

    @property
    def coordinators(self) -> CoordinatorReplicas: ...
