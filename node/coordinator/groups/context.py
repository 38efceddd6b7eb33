"""Interfaces between the runtimes of one coordinator's groups, and to the coordinator they belong to."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any, Protocol

from strandline.node.coordinator.context import CoordinatorContext
from strandline.node.coordinator.groups.timers import Timers
from strandline.node.coordinator.replica import CoordinatorReplica
from strandline.node.refusal import Refusal
from strandline.statemachine.coordinator_machine import CoordinatorCommand
from strandline.statemachine.groups.groups import GroupsMachine


class GroupBounds(Protocol):
    """Bound on the number of groups."""

    def has_room_for(self, group_id: str) -> bool:
        """Whether the group exists, or may be created."""

    def refuse_group(self, group_id: str) -> str:
        """Count the refusal of a member whose group does not exist, and give the reason."""


class ClassicRuntime(Protocol):
    """Groups of the classic protocol."""

    @property
    def group_ids(self) -> Collection[str]:
        """The ids of the groups that have members, or soon will have."""

    def has_members(self, group_id: str) -> bool:
        """Whether the group has members, or some that join it."""

    def consumes(self, group_id: str) -> bool:
        """Whether the group's members consume topics."""

    def members_of(self, group_id: str) -> Collection[str]:
        """The ids of the members that are in the group or join it; none if there is no such group."""

    def follow(self, group_id: str) -> None:
        """The group may have become one of the other protocol."""


class ConsumerRuntime(Protocol):
    """Groups of KIP-848."""

    @property
    def changing(self) -> Collection[str]:
        """The ids of the groups whose members wait for a turn."""


class GroupsContext(Protocol):
    """One coordinator of groups; `strandline.node.coordinator.groups.coordinator.GroupCoordinator` is one."""

    timers: Timers
    loop: asyncio.AbstractEventLoop

    @property
    def replica(self) -> CoordinatorReplica[GroupsMachine]: ...
    @property
    def context(self) -> CoordinatorContext: ...
    @property
    def bounds(self) -> GroupBounds: ...
    @property
    def classic(self) -> ClassicRuntime: ...
    @property
    def consumer(self) -> ConsumerRuntime: ...
    @property
    def number(self) -> int:
        """Of the internal topic's partition."""

    @property
    def machine(self) -> GroupsMachine:
        """The state of this replica, to be read only."""

    @property
    def leads(self) -> bool:
        """Whether this node leads the coordinator."""

    async def execute(self, command: CoordinatorCommand) -> Any | Refusal:
        """Have a command applied: its result, or a Refusal (see CoordinatorReplica.execute)."""
