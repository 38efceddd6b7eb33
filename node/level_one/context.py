"""The node as the upkeep of level one needs it: the broker satisfies it as it is.

A leader's work takes seconds, and leadership may end and begin again meanwhile. So each piece of work belongs
to the term it was begun in, and the code that replicates its result asks `leads_in` in the same turn of the
loop.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any, Protocol

from strandline.node.config.node_config import NodeConfig
from strandline.node.controller.client import ControllerClient
from strandline.node.level_one.builder import LevelOneBuilder
from strandline.node.objectstore.store import ObjectStore
from strandline.statemachine.controller.settings import Configs
from strandline.statemachine.partition.partition import PartitionStateMachine
from strandline.statemachine.partition.partition_commands import (
    AdvanceReconciled,
    ForgetRemoved,
    ReplaceLevelOne,
    SetStartOffset,
)


class Group(Protocol):
    """The log of a replica."""

    @property
    def id(self) -> int:
        """Never used for another partition."""


class Replica(Protocol):
    """A partition's replica, as checkpoints need it."""

    topic_id: bytes
    topic: str
    number: int

    @property
    def group(self) -> Group: ...

    @property
    def machine(self) -> PartitionStateMachine: ...

    @property
    def leads(self) -> bool:
        """Whether this node believes that it leads and has applied everything of earlier terms."""

    @property
    def leader_epoch(self) -> int:
        """The term of this node's leadership."""

    async def confirm(self) -> bool:
        """Whether this node leads now, with everything applied that was committed before."""

    async def execute(
        self, command: AdvanceReconciled | ReplaceLevelOne | SetStartOffset | ForgetRemoved
    ) -> Any:
        """The command's result, or whatever says why there is none."""


class Replicas(Protocol):
    """The replicas here."""

    def __iter__(self) -> Iterator[Replica]: ...
    def __len__(self) -> int: ...
    @property
    def changes(self) -> int:
        """A number that grows whenever any of them may have changed, or one comes or goes."""


class Clock(Protocol):
    """The cluster's idea of the time."""

    @property
    def trusted(self) -> bool:
        """Whether the nodes agree on what time it is."""


class LevelOneContext(Protocol):
    """A node, as the upkeep needs it."""

    config: NodeConfig
    loop: asyncio.AbstractEventLoop
    rng: random.Random
    store: ObjectStore
    controller: ControllerClient
    level_one_builder: LevelOneBuilder

    @property
    def partitions(self) -> Replicas: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def registered(self) -> bool:
        """Whether the local replica of the controller has what was committed when this process started."""

    def wall_ms(self) -> int:
        """The wall clock, in ms since 1970, as the cluster has it."""


def leads_in(replica: Replica, term: int) -> bool:
    """Whether this node still leads in the term in which a piece of work was begun."""
    return replica.leads and replica.leader_epoch == term


def configs_of(context: LevelOneContext, replica: Replica) -> Configs | None:
    """The configurations that the replica's topic sets; None if the topic is gone."""
    topic = context.controller.machine.topic_by_id(replica.topic_id)
    return None if topic is None else topic.configs


def label(replica: Replica) -> str:
    """For people: the topic's name and the number."""
    return f"{replica.topic}-{replica.number}"
