"""Keeps the members of the controller's group as they should be: every node follows, some of them vote.

The controller's leader makes one change at a time, by the rules of voter_choice.py. It waits while the group
has a data folder to replace or a node to leave out (replacements.py), and Raft refuses a change while another
is under way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from strandline.node.controller.client import ControllerClient
from strandline.node.controller.periodic import PeriodicPart
from strandline.node.controller.voter_choice import Act, Change, View, next_change
from strandline.node.raft.group import RaftGroup
from strandline.node.raft.host import RaftHost
from strandline.node.raft.outcome import Applied, Outcome
from strandline.statemachine.controller.controller_state import CONTROLLER_GROUP, REMOVED
from strandline.statemachine.controller.feature_levels import GROWTH

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 0.5
AWAY_SECONDS: Final = 600.0
"""A voter that was not heard of for so long gives its vote to a node that is there: longer than a restart of
a machine takes, since a voter that comes back has to catch up anyway."""
CATCH_UP_SECONDS: Final = 5.0

_SAID: Final = {
    Act.FOLLOW: "node %d follows the controller's group",
    Act.VOTE: "node %d votes in the controller's group",
    Act.UNVOTE: "node %d follows the controller's group without a vote",
}


class ControllerVoters(PeriodicPart):
    """At work while this node leads the controller. Everything belongs on `loop`."""

    def __init__(
        self,
        host: RaftHost,
        controller: ControllerClient,
        silent_seconds: Callable[[int], float | None],
        *,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """`silent_seconds(node)` is the time since a node was heard, None if this node cannot say."""
        super().__init__(LOOK_SECONDS, "choosing the controller's voters failed and is retried", loop=loop)
        self._host = host
        self._controller = controller
        self._silent_seconds = silent_seconds
        self._under_way: tuple[Change, asyncio.Future[Outcome]] | None = None

    async def _look(self) -> None:
        group = self._host.groups.get(CONTROLLER_GROUP)
        if group is None or not group.is_ready:
            return
        if self._under_way is not None:
            change, ended = self._under_way
            if not ended.done():
                return
            self._under_way = None
            if isinstance(ended.result(), Applied):
                log.info(_SAID[change.act], change.node)
        if self._next(group) is None:
            return
        before = _leads(group)
        # What the local replica said may be long over: it may have led before, and another leads now.
        if not await self._controller.catch_up(CATCH_UP_SECONDS) or _leads(group) != before:
            return
        now = self._next(group)
        if now is not None:
            self._begin(group, now)

    def _next(self, group: RaftGroup) -> Change | None:
        replaced = self._controller.machine.replacement
        if replaced is not None and CONTROLLER_GROUP in replaced.leaving | replaced.joining:
            return None
        return next_change(self._view(group))

    def _view(self, group: RaftGroup) -> View:
        machine, me = self._controller.machine, self._host.node_id
        configuration = group.configuration
        # A founder that has not registered is a voter, and not away.
        racks = {node: "" for node in configuration.voters if node not in machine.folders}
        racks |= {node: known.rack for node, known in machine.nodes.items()}
        silent = {node: self._silent_seconds(node) for node in racks}
        return View(
            leader=me,
            voters=configuration.voters,
            learners=configuration.learners,
            racks=racks,
            there={
                node
                for node in configuration.members
                if node == me or (self._is_alive(node) and self._is_there(node) and group.keeps_up(node))
            },
            connected={node for node in racks if self._is_there(node)},
            draining=machine.draining,
            away={node for node, seconds in silent.items() if seconds is not None and seconds > AWAY_SECONDS},
            chooses=machine.feature_level >= GROWTH,
        )

    def _is_alive(self, node: int) -> bool:
        known = self._controller.machine.nodes.get(node)
        return known is not None and not known.fenced

    def _is_there(self, node: int) -> bool:
        """Whether a node is connected with the folder that is in force: the entry that adds it names that."""
        named = self._controller.machine.folders.get(node)
        if node == self._host.node_id:
            return True
        return (
            named is not None
            and named.folder != REMOVED
            and self._host.folder_of(node) == named.folder
            and self._host.connected(node)
        )

    def _begin(self, group: RaftGroup, change: Change) -> None:
        match change.act:
            case Act.FOLLOW | Act.UNVOTE:
                self._under_way = change, group.add_learner(change.node)
            case Act.VOTE:
                self._under_way = change, group.add_member(change.node)
            case Act.HAND_OVER:
                group.transfer(change.node)


def _leads(group: RaftGroup) -> tuple[bool, int]:
    """Whether this node leads the group, and its term."""
    return group.is_ready, group.term
