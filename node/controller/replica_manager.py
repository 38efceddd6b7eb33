"""Makes this node host the replicas that the controller says it has, and no others.

The work is the difference between the controller's state and this node's replicas, computed again whenever
the controller changes; so it does not matter which changes were seen. The work is cut into slices, one in a
turn of the loop, because a thousand groups at once would hold up everything else.

A process that has just started applies the controller's log again, and so meets topics that were deleted long
ago. It opens the stored replicas at once. It creates a group without anything stored only
when the controller's replica has caught up: otherwise, after all nodes restarted together, the group of a
deleted topic could be begun a second time, from term 1 and an empty log.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Final, Protocol

from strandline.node.controller.client import ControllerClient
from strandline.node.raft.host import RaftHost
from strandline.statemachine.controller.controller_state import CONTROLLER_GROUP
from strandline.statemachine.controller.hosted_groups import PartitionGroup

log = logging.getLogger(__name__)

SLICE: Final = 8
"""Groups created or removed in one turn of the loop: a millisecond or two."""
PAUSE_SECONDS: Final = 0.01
MOST_PAUSES: Final = 10
"""Maximum waits of one slice for the groups before it, which may never settle."""


class Replicas(Protocol):
    """Takes up and gives up a replica: the group on the host, and the partition around it."""

    def create(self, place: PartitionGroup) -> None: ...
    def remove(self, group: int) -> None: ...


class ReplicaManager:
    """The groups of one node. Everything belongs on `loop`."""

    def __init__(
        self,
        host: RaftHost,
        controller: ControllerClient,
        replicas: Replicas,
        *,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.failed: dict[int, str] = {}
        """Groups that this node should host and cannot, with the cause; tried again after a restart."""
        self._host = host
        self._controller = controller
        self._loop = loop
        self._replicas = replicas
        self._caught_up = False
        self._planned_at = -1
        self._todo: deque[PartitionGroup | int] = deque()
        self._turn: asyncio.Handle | None = None
        self._pauses = 0
        self._closed = False

    def start(self) -> None:
        """Host what the local replica of the controller knows already, and follow it from now on."""
        self._controller.on_change(self.wake)
        self.wake()

    def caught_up(self) -> None:
        """The controller's local replica has all that was committed when this process started."""
        self._caught_up = True
        self._planned_at = -1
        self.wake()

    def close(self) -> None:
        """Leave everything as it is."""
        self._closed = True
        if self._turn is not None:
            self._turn.cancel()

    def wake(self) -> None:
        """Look again."""
        if self._turn is None and not self._closed:
            self._turn = self._loop.call_soon(self._slice)

    @property
    def waiting(self) -> int:
        """Groups still to be created or removed, as last planned."""
        return len(self._todo)

    def _slice(self) -> None:
        self._turn = None
        version = self._controller.machine.version
        if version != self._planned_at:
            self._planned_at = version
            self._todo = deque(self._plan())
        if self._todo and self._pauses < MOST_PAUSES and self._host.crowded():
            self._pauses += 1
            self._turn = self._loop.call_later(PAUSE_SECONDS, self._slice)
            return
        self._pauses = 0
        for _ in range(min(SLICE, len(self._todo))):
            self._do(self._todo.popleft())
        if self._todo:
            self.wake()

    def _plan(self) -> list[PartitionGroup | int]:
        machine, node = self._controller.machine, self._host.node_id
        hosted = self._host.groups
        stored = dict.fromkeys(self._host.stored_groups())
        create = [
            place
            for place in machine.group_changes(node, hosted).create
            if place.group not in self.failed and (self._caught_up or place.group in stored)
        ]
        # Stored groups come to life when they are wanted, and are let go of when their topic is gone. That
        # holds for an old state too: a group's id is given out once, and of ids that are not given out yet
        # nothing is said. What moved away is looked after elsewhere (`departures.py`).
        present = [group for group in (*hosted, *stored) if group != CONTROLLER_GROUP]
        return [*machine.groups_to_remove(present), *create]

    def _do(self, step: PartitionGroup | int) -> None:
        if isinstance(step, int):
            self.failed.pop(step, None)
            self._replicas.remove(step)
            return
        try:
            self._replicas.create(step)
        except Exception as error:
            # One replica that cannot be had must not keep the others from coming.
            place = (step.group, step.topic, step.partition)
            log.critical("group %d (%s-%d) cannot be hosted: %s", *place, error, exc_info=True)
            self.failed[step.group] = repr(error)
