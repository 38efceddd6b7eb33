"""Lets an empty folder take a lost one's place without an operator: `cluster.replace_lost_disks`.

The controller's leader does what `strandline node replace` would ask it for, and by the same rules: the node
counts as dead, no other is being replaced, and the folder is neither of another incarnation nor one that was
replaced before. The folder has to knock for a while first: a disk that is mounted late looks as a lost one
does, and is refused once another has its place.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from strandline.node.controller.client import ControllerClient
from strandline.node.controller.folder_keeper import FolderKeeper
from strandline.node.controller.periodic import PeriodicPart
from strandline.node.raft.host import RaftHost
from strandline.statemachine.controller.node_folders import replacing
from strandline.statemachine.kafka_errors import Refused

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
KNOCKING_SECONDS: Final = 30.0
"""Time for which a folder must have come, again and again, before it is let in."""
SUBMIT_SECONDS: Final = 10.0


class LostDisks(PeriodicPart):
    """Replaces lost folders while this node leads the controller. Everything belongs on `loop`."""

    def __init__(
        self,
        host: RaftHost,
        controller: ControllerClient,
        keeper: FolderKeeper,
        *,
        enabled: bool,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(LOOK_SECONDS, "the search for lost disks failed and will be retried", loop=loop)
        self._host = host
        self._controller = controller
        self._keeper = keeper
        self._enabled = enabled
        self._since: dict[tuple[int, int], float] = {}
        """By node and folder, since when it knocks; one that stopped is forgotten."""
        self._told: dict[int, str] = {}
        """By node, the refusal that the log has a line of."""

    def start(self) -> None:
        """Look, now and then, which folders knock; never where it is not enabled."""
        if self._enabled:
            super().start()

    async def _look(self) -> None:
        now, machine = self._loop.time(), self._controller.machine
        knocking = {
            (node, stranger.folder): self._since.get((node, stranger.folder), now)
            for node, stranger in self._host.mesh.strangers.knocking().items()
            if not stranger.foreign and not stranger.replaced and node in machine.nodes
        }
        self._since = knocking
        if (
            self._controller.leader != self._host.node_id
            or machine.replacement is not None
            or self._keeper.disowned() is not None
            or self._keeper.waits_for() is not None
        ):
            return
        for (node, folder), since in knocking.items():
            if machine.nodes[node].fenced and now - since >= KNOCKING_SECONDS:
                await self._replace(node, folder)
                return

    async def _replace(self, node: int, folder: int) -> None:
        machine = self._controller.machine
        command = replacing(machine.folders, machine.feature_level, node, folder)
        result = await self._controller.submit(command, SUBMIT_SECONDS)
        if isinstance(result, Refused):
            if self._told.get(node) != result.message:
                log.error("node %d comes with an empty folder and cannot join: %s", node, result.message)
            self._told[node] = result.message
            self._since.pop((node, folder), None)
        elif isinstance(result, int):
            self._told.pop(node, None)
            log.warning(
                "node %d lost its data folder: folder %016x takes its place, %d groups to go",
                node,
                folder,
                result,
            )
