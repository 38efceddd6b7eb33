"""Gives up the replicas of this node whose partitions moved to other nodes.

The controller's local replica may be behind, and the partition may be on its way back: its leader may have
made this node a member again and count on what it acknowledges. So a replica goes only if the controller said
that it moved away after this look began, and the replica took nothing from any leader since. Whatever adds
the node again does so later, and begins with an entry.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from strandline.node.controller.client import ControllerClient
from strandline.node.controller.periodic import PeriodicPart
from strandline.node.raft.group import RaftGroup
from strandline.node.raft.host import RaftHost

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
AT_ONCE: Final = 32
"""Replicas that are given up in one look."""
CATCH_UP_SECONDS: Final = 10.0


class Departures(PeriodicPart):
    """The replicas that may go. Everything belongs on `loop`."""

    def __init__(
        self,
        host: RaftHost,
        controller: ControllerClient,
        leave: Callable[[int], None],
        *,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(
            LOOK_SECONDS, "giving up replicas that moved away failed and will be retried", loop=loop
        )
        self._host = host
        self._controller = controller
        self._leave = leave
        self._nothing_at = -1
        """Version of the controller's state by which no replica here has moved away: looking costs one step
        for each group, and an idle node has thousands."""

    async def _look(self) -> None:
        machine, node = self._controller.machine, self._host.node_id
        if machine.version == self._nothing_at:
            return
        before = {
            group_id: _mark(group)
            for group_id, group in self._host.groups.items()
            if machine.moved_away(node, group_id)
        }
        if not before:
            self._nothing_at = machine.version
            return
        if not await self._controller.catch_up(CATCH_UP_SECONDS):
            return
        for group_id, mark in list(before.items())[:AT_ONCE]:
            group = self._host.groups.get(group_id)
            if group is not None and machine.moved_away(node, group_id) and _mark(group) == mark:
                log.info(
                    "the replica of group %d is given up here: its partition moved to other nodes", group_id
                )
                self._leave(group_id)


def _mark(group: RaftGroup) -> tuple[int, int, int]:
    """Differs when anything came from a leader meanwhile that an acknowledgement could stand for."""
    return group.term, group.journal.last, group.journal.last_term
