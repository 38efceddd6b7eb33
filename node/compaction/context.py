"""The node as compaction needs it: the broker satisfies it as it is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Executor
from typing import Protocol

from strandline.node.compaction.compactor import Compactor
from strandline.node.config.node_config import NodeConfig
from strandline.node.controller.client import ControllerClient
from strandline.node.raft.disk import Disk
from strandline.statemachine.controller.settings import Configs
from strandline.statemachine.controller.topic_config import CLEANUP_POLICY
from strandline.statemachine.partition.partition import PartitionStateMachine


class Group(Protocol):
    """The log of a replica."""

    @property
    def id(self) -> int:
        """Never used for another partition."""

    @property
    def applied(self) -> int:
        """Index of the newest entry that is in the state."""


class Replica(Protocol):
    """A partition's replica on this node, whether it leads or not."""

    topic_id: bytes
    topic: str
    number: int

    @property
    def group(self) -> Group: ...

    @property
    def machine(self) -> PartitionStateMachine: ...


class Replicas(Protocol):
    """The replicas here."""

    def __iter__(self) -> Iterator[Replica]: ...
    def __len__(self) -> int: ...


class CompactionContext(Protocol):
    """A node, as compaction needs it."""

    config: NodeConfig
    loop: asyncio.AbstractEventLoop
    boot_id: int
    controller: ControllerClient
    compactor: Compactor
    disk: Disk
    log_executor: Executor | None
    """For the short operations on the disk that change a local log."""

    @property
    def partitions(self) -> Replicas: ...

    @property
    def registered(self) -> bool:
        """Whether the local replica of the controller has what was committed when this process started."""

    def wall_ms(self) -> int:
        """The wall clock, in ms since 1970, as the cluster has it."""


def configs_of(context: CompactionContext, topic_id: bytes) -> Configs | None:
    """The configurations of a topic if it is compacted; None if not, or if it is gone."""
    topic = context.controller.machine.topic_by_id(topic_id)
    return topic.configs if topic is not None and "compact" in CLEANUP_POLICY.of(topic.configs) else None
