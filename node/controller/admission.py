"""The way into the cluster, on a member: answers the machines that ask to join (joining.py)."""

from __future__ import annotations

import logging
from typing import Any

from strandline.node.controller.client import ControllerClient, Unavailable
from strandline.node.controller.folder_keeper import FolderKeeper
from strandline.node.controller.joining import MEMBERS_WORD, REFUSED_WORD, SUBMIT_SECONDS
from strandline.node.controller.members import Members
from strandline.node.raft.data_folder import Standing
from strandline.node.raft.host import RaftHost
from strandline.statemachine.controller import feature_levels
from strandline.statemachine.controller.controller_commands import AddNode, decode
from strandline.statemachine.controller.controller_state import CONTROLLER_GROUP
from strandline.statemachine.kafka_errors import Refused
from strandline.statemachine.machine import Corruption

log = logging.getLogger(__name__)


class Admission:
    """Answers machines that ask. Everything belongs on the loop."""

    def __init__(
        self,
        host: RaftHost,
        controller: ControllerClient,
        members: Members,
        keeper: FolderKeeper,
    ) -> None:
        self._host = host
        self._controller = controller
        self._members = members
        self._keeper = keeper

    def start(self) -> None:
        """Answer from now on."""
        self._host.mesh.guests.answering = self._answer

    async def _answer(self, node: int, standing: Standing, question: Any) -> list[Any]:
        why = self._keeper.disowned() or self._keeper.waits_for()
        if why is not None:
            return [REFUSED_WORD, f"it cannot let another in: {why}"]
        try:
            entry, incarnation = question
            command = decode(entry)
        except (Corruption, TypeError, ValueError) as error:
            return [REFUSED_WORD, f"its release does not understand the question ({error}): upgrade it first"]
        if not isinstance(command, AddNode) or (command.node, command.folder) != (node, standing.key.folder):
            return [REFUSED_WORD, "that is no question about the node that asks"]
        if not await self._controller.catch_up(SUBMIT_SECONDS):
            return [REFUSED_WORD, "the controller has no leader that it hears: start more nodes, or wait"]
        if self._host.folder.is_foreign(standing):
            # It may ask without its storage's word, so that its storage.url may be the right one.
            return [REFUSED_WORD, self._host.mesh.strangers.refusal(node, standing)]
        if incarnation != self._controller.machine.incarnation:
            return [
                REFUSED_WORD,
                "the new machine's storage.url leads to another incarnation of the cluster: give it the one"
                " that the other nodes have",
            ]
        # A folder that is not this id's is one that knocks, and `strandline node replace` may let it in.
        why = self._host.mesh.strangers.refusal(node, standing)
        if why is not None:
            cure = "or give the new machine a node.id that no node has, or had"
            return [REFUSED_WORD, f"{why}; {cure}", self._rows()]
        if self._is_founder(node):
            return [
                REFUSED_WORD,
                f"node {node} is one that founds the cluster and is still to come, and may have voted: give"
                " the new machine a node.id that no node has, or had",
            ]
        refused = feature_levels.refusal(self._controller.machine.feature_level, command)
        result = refused or await self._controller.submit(command, SUBMIT_SECONDS)
        if isinstance(result, Unavailable):
            return [REFUSED_WORD, f"the controller does not answer it: {result.reason}"]
        if isinstance(result, Refused):
            return [REFUSED_WORD, result.message]
        log.info("node %d joins, and is told of %d nodes", node, len(self._members.ids))
        return [MEMBERS_WORD, self._rows()]

    def _rows(self) -> list[list[Any]]:
        """Each member with its address."""
        addresses = self._members.addresses()
        return [[each, *addresses[each]] for each in self._members.ids if each in addresses]

    def _is_founder(self, node: int) -> bool:
        """Whether it has a vote although it never registered: what it promised is not known."""
        voters = self._host.groups[CONTROLLER_GROUP].voters
        return node in voters and node not in self._controller.machine.folders
