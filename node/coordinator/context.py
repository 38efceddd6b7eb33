"""The node, as coordinators need it; the broker satisfies it as it is."""

from __future__ import annotations

import asyncio
import random
from typing import NamedTuple, Protocol

from strandline.node.config.node_config import NodeConfig
from strandline.node.controller.client import ControllerClient
from strandline.node.controller.leaders import LeaderTable
from strandline.node.controller.producer_ids import ProducerIds
from strandline.node.coordinator.decision_hold import DecisionHold
from strandline.node.refusal import Refusal
from strandline.node.rpc import MeshCalls


class CoordinatorPlace(NamedTuple):
    """The partition that coordinates a key: its Raft group, whose leader answers for it, and its number."""

    raft_group: int
    number: int


class CoordinatorPlaces(Protocol):
    """Finds the coordinator of a key; `strandline.node.coordinator.table.Coordinators` does."""

    async def group_place(self, group_id: str) -> CoordinatorPlace | Refusal: ...
    async def transaction_place(self, transactional_id: str) -> CoordinatorPlace | Refusal: ...


class CoordinatorContext(Protocol):
    """One node, as its coordinators see it."""

    @property
    def config(self) -> NodeConfig: ...
    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    @property
    def controller(self) -> ControllerClient: ...
    @property
    def leaders(self) -> LeaderTable: ...
    @property
    def producer_ids(self) -> ProducerIds: ...
    @property
    def decisions(self) -> DecisionHold: ...
    @property
    def coordinators(self) -> CoordinatorPlaces: ...
    @property
    def calls(self) -> MeshCalls: ...
    @property
    def rng(self) -> random.Random:
        """Source of random ids for new members and internal topics."""

    def wall_ms(self) -> int:
        """Unix time in milliseconds, the node's own clock."""

    def agreed_ms(self) -> int | None:
        """The time that most nodes agree on; None while they do not: nothing may go by its age then."""
