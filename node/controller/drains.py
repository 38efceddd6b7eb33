"""Moves replicas while this node leads the controller: off drained nodes, and to even out the others.

The state says which nodes these are, so a drain goes on under the next leader. Only so many partitions move
at a time, because each has its state sent to its new replica. While a node is emptied the others are not
evened out (`balancer.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from strandline.node.controller.balancer import Balancer
from strandline.node.controller.client import ControllerClient, Unavailable
from strandline.node.controller.periodic import PeriodicPart
from strandline.statemachine.controller.drain_plan import Staying
from strandline.statemachine.kafka_errors import Refused

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 0.5
AT_ONCE: Final = 64
"""Moves under way in the cluster beyond which a drain begins none; a node changes eight groups at a time."""
SUBMIT_SECONDS: Final = 10.0


class Drains(PeriodicPart):
    """Begins the moves that empty drained nodes, and has the balancer look. Everything belongs on `loop`."""

    def __init__(
        self, controller: ControllerClient, node_id: int, *, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(LOOK_SECONDS, "emptying drained nodes failed and will be retried", loop=loop)
        self._controller = controller
        self._node_id = node_id
        self._balancer = Balancer(controller, loop=loop)
        self._told = frozenset[tuple[int, str]]()
        """Nodes of which the log says that they cannot be emptied for now, each with a reason."""

    async def _look(self) -> None:
        """Begin what may move now."""
        machine = self._controller.machine
        wanted = machine.draining or self._balancer.is_due()
        if self._controller.leader != self._node_id or not wanted or machine.replacement:
            return
        if not await self._controller.catch_up(SUBMIT_SECONDS):
            return
        if self._balancer.is_due():
            await self._balancer.begin()
        self._tell(machine.drains_staying())
        for command in machine.drain_moves(AT_ONCE):
            result = await self._controller.submit(command, SUBMIT_SECONDS)
            if isinstance(result, Unavailable):
                return
            if isinstance(result, Refused):
                log.warning("a partition of a drained node does not move yet: %s", result.message)

    def _tell(self, staying: Mapping[int, Staying]) -> None:
        """Warn of what keeps a node from being emptied, once until that is over."""
        reasons: dict[tuple[int, str], str] = {}
        for node, one in staying.items():
            if one.without_room:
                reasons[node, "room"] = (
                    f"{one.without_room} of its replicas have no other node to go to, since none that is "
                    "alive and not drained lacks the partition: start or add a node"
                )
            for topic in one.below_minimum:
                reasons[node, f"topic {topic}"] = (
                    f"topic {topic} has fewer replicas than its min.insync.replicas, so no move of it is "
                    "taken: lower that, or give the topic more replicas"
                )
            for topic in one.without_majority:
                reasons[node, f"majority {topic}"] = (
                    f"topic {topic} has a partition without a majority of live replicas, which cannot move: "
                    "start the nodes that have the others"
                )
        for place in sorted(reasons.keys() - self._told):
            log.warning("node %d cannot be emptied for now: %s", place[0], reasons[place])
        self._told = frozenset(reasons)
