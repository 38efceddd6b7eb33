"""Spreads replicas over the live nodes in the background, while this node leads the controller.

One replica moves at a time: the next step is planned from what the last one made of the cluster, so anything
that comes between (a node that dies, a drain, an operator's own move, another leader) counts at once. The
state says whether it is on, so it goes on, or stays off, under the next leader.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from strandline.node.controller.client import ControllerClient, Unavailable
from strandline.statemachine.kafka_errors import Refused

log = logging.getLogger(__name__)

PAUSE_SECONDS: Final = 2.0
"""Least time between two moves that begin: clients of the partition learn of its new nodes meanwhile."""
SUBMIT_SECONDS: Final = 10.0


class Balancer:
    """Begins the moves that even out the nodes. Everything belongs on `loop`."""

    def __init__(self, controller: ControllerClient, *, loop: asyncio.AbstractEventLoop) -> None:
        self._controller = controller
        self._loop = loop
        self._not_before = 0.0
        self._even_at = -1
        """Version of the controller's state in which the nodes were even: planning looks at each replica."""

    def is_due(self) -> bool:
        """Whether there may be a move to begin, by what is known here."""
        machine = self._controller.machine
        return (
            machine.balance().on
            and machine.version != self._even_at
            and self._loop.time() >= self._not_before
        )

    async def begin(self) -> None:
        """Begin the next move, if one is to be made. The controller's log has been caught up with."""
        machine = self._controller.machine
        version, step = machine.version, None
        for step in machine.balance().search():
            if step is None:
                # Of 100,000 partitions it takes a second, and clients and heartbeats wait for the loop.
                await asyncio.sleep(0)
                if machine.version != version:
                    self._not_before = self._loop.time() + PAUSE_SECONDS
                    return
        if step is None:
            self._not_before = self._loop.time() + PAUSE_SECONDS
            if machine.balance().on and machine.balance().waits() is None:
                self._even_at = machine.version
            return
        self._not_before = self._loop.time() + PAUSE_SECONDS
        result = await self._controller.submit(step.command, SUBMIT_SECONDS)
        if isinstance(result, Unavailable):
            log.debug("a replica is not moved yet: %s", result.reason)
            return
        place = f"{step.topic}-{step.command.partition}"
        if isinstance(result, Refused):
            log.warning("partition %s is not moved to even out the nodes: %s", place, result.message)
            return
        log.info("partition %s moves from node %d to node %d: %s", place, step.leaves, step.joins, step.why)
