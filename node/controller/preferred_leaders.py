"""Gives leadership back to the preferred leaders, like Kafka's auto.leader.rebalance.enable.

A node that was away comes back without leading anything, and nothing would ever change that. So each leader
looks at its own partitions, and hands one to the first of its replicas once that node has been well for a
while. It takes its time: while a partition is handed over, for some ten milliseconds, it has no leader,
and its producers have to look for the new one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Final

from strandline.node.controller.client import ControllerClient
from strandline.node.raft.group import RaftGroup
from strandline.node.raft.host import RaftHost
from strandline.node.runtime.rounds import until_round
from strandline.statemachine.controller.controller_state import CONTROLLER_GROUP

log = logging.getLogger(__name__)

STEP_SECONDS: Final = 0.25
"""At most one transfer is begun in this time, and none while the one before is under way."""
LOOK_SECONDS: Final = 1.0
"""Time between two looks while there is nothing to hand over."""
FIRST_PAUSE: Final = 4
"""Pause before a partition is handed over again, in multiples of `settled_seconds`; it doubles each time."""
MAX_PAUSE_SECONDS: Final = 300.0
"""The longest pause between two transfers of one partition that keeps coming back."""


class PreferredLeaders:
    """One node's work for the partitions that it leads. Everything belongs on `loop`."""

    def __init__(
        self,
        host: RaftHost,
        controller: ControllerClient,
        settled_seconds: float,
        *,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """`settled_seconds`: how long a node must have been well, and this one have led, before."""
        self.begun = 0
        """Transfers so far."""
        self._host = host
        self._controller = controller
        self._settled_seconds = settled_seconds
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._well: dict[int, tuple[int, float]] = {}
        """Boot id of a node that is alive and connected, and since when."""
        self._plan_at = 0.0
        self._todo: deque[int] = deque()
        self._under_way: RaftGroup | None = None
        self._pauses: dict[int, tuple[float, float]] = {}
        """For a group that was handed over: until when it is not again, and how long that pause is."""

    def start(self) -> None:
        """Begin to look."""
        self._step_in(LOOK_SECONDS)

    def close(self) -> None:
        """Hand nothing over any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _step_in(self, seconds: float) -> None:
        self.close()
        self._timer = self._loop.call_later(until_round(self._loop, seconds), self._step)

    def _step(self) -> None:
        self._step_in(LOOK_SECONDS)
        self._look(self._host.now())
        if LOOK_SECONDS > STEP_SECONDS and (self._todo or self._under_way is not None):
            self._step_in(STEP_SECONDS)

    def _look(self, now: float) -> None:
        self._look_at_nodes(now)
        if self._under_way is not None and self._under_way.transfer_target is not None:
            return
        self._under_way = None
        if not self._todo and now >= self._plan_at:
            self._plan_at = now + self._settled_seconds
            self._plan(now)
        while self._todo and self._under_way is None:
            self._hand_over(self._todo.popleft(), now)

    def _look_at_nodes(self, now: float) -> None:
        nodes = self._controller.machine.nodes
        well = {}
        for node, registration in nodes.items():
            if not registration.fenced and self._host.connected(node):
                boot_id, since = self._well.get(node, (0, now))
                well[node] = (
                    (boot_id, since) if boot_id == registration.boot_id else (registration.boot_id, now)
                )
        self._well = well

    def _plan(self, now: float) -> None:
        """Note which groups are to move; what that costs grows with the groups this node has."""
        self._pauses = {
            group: (until, pause) for group, (until, pause) in self._pauses.items() if now < until + pause
        }
        self._todo.extend(group for group in self._host.groups if self._target(group, now) is not None)

    def _target(self, group_id: int, now: float) -> int | None:
        """The node that should and can lead a group instead of this node; None to leave it as it is."""
        group = self._host.groups.get(group_id)
        if group is None or not group.is_leader or group_id == CONTROLLER_GROUP:
            return None
        machine = self._controller.machine
        place = machine.place_of(group_id)
        partition = machine.partition(place.topic_id, place.partition) if place is not None else None
        if partition is None or partition.replicas[0] == self._host.node_id:
            return None
        preferred = partition.replicas[0]
        well = self._well.get(preferred)
        settled = now - self._settled_seconds
        if well is None or well[1] > settled or group.leader_since > settled:
            return None
        if now < self._pauses.get(group_id, (0.0, 0.0))[0] or not group.keeps_up(preferred):
            return None
        return preferred

    def _hand_over(self, group_id: int, now: float) -> None:
        target = self._target(group_id, now)
        if target is None:
            return
        group = self._host.groups[group_id]
        if group.transfer(target):
            self.begun += 1
            self._under_way = group
            # One that comes back again and again has a reason to, which is not known here.
            known = self._pauses.get(group_id)
            pause = min(
                FIRST_PAUSE * self._settled_seconds if known is None else 2 * known[1], MAX_PAUSE_SECONDS
            )
            self._pauses[group_id] = (now + pause, pause)
            log.debug("handing group %d over to node %d, its preferred leader", group_id, target)
