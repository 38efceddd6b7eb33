"""The node as compaction needs it: the broker satisfies it as it is."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from typing import Protocol

from strandline.node.compaction.compactor import Compactor
from strandline.node.compaction.unreadable_objects import UnreadableObjects
from strandline.node.level_one import context as level_one
from strandline.node.level_one.level_one_upkeep import LevelOneUpkeep
from strandline.node.raft.disk import Disk
from strandline.statemachine.controller.settings import Configs
from strandline.statemachine.controller.topic_config import CLEANUP_POLICY


class Group(Protocol):
    """The log of a replica."""

    @property
    def id(self) -> int:
        """Never used for another partition."""

    @property
    def applied(self) -> int:
        """Index of the newest entry that is in the state."""


class Replica(level_one.Replica, Protocol):
    """A partition's replica on this node, whether it leads or not."""

    @property
    def group(self) -> Group: ...


class Replicas(Protocol):
    """The replicas here."""

    def __iter__(self) -> Iterator[Replica]: ...
    def __len__(self) -> int: ...
    @property
    def changes(self) -> int: ...


class CompactionContext(level_one.LevelOneContext, Protocol):
    """A node, as compaction needs it."""

    boot_id: int
    compactor: Compactor
    disk: Disk
    log_executor: Executor | None
    """For the short operations on the disk that change a local log."""
    level_one: LevelOneUpkeep
    """The other maker of level-one objects: both know the names of those in the making."""
    unreadable: UnreadableObjects

    @property
    def partitions(self) -> Replicas: ...


def configs_of(context: CompactionContext, topic_id: bytes) -> Configs | None:
    """The configurations of a topic if it is compacted; None if not, or if it is gone."""
    topic = context.controller.machine.topic_by_id(topic_id)
    return topic.configs if topic is not None and "compact" in CLEANUP_POLICY.of(topic.configs) else None
