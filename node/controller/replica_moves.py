"""This node's part in moving partitions to other nodes (KIP-455), as the leader of their groups.

The controller's log has the targets, so a move goes on after any crash and under any leader. The leader adds
the members that are missing and then removes those that shall go, one at a time (Raft §6). It adds first: a
group never has fewer members than before and after. A leader that shall go hands over first. Leaders report
moves that are committed. A replacement of a data folder changes members too, so moves wait until it is over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from strandline.node.controller.client import ControllerClient, Unavailable
from strandline.node.raft.group import RaftGroup
from strandline.node.raft.host import RaftHost
from strandline.node.raft.outcome import Outcome
from strandline.statemachine.controller.controller_commands import ReplicasMoved
from strandline.statemachine.controller.controller_state import Move

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 0.5
AT_ONCE: Final = 8
"""Groups that change their members at the same time on one node: each may send its state to another node."""
BATCH: Final = 1000
"""Groups that one report names."""
SUBMIT_SECONDS: Final = 10.0


class ReplicaMoves:
    """The moves of the groups that this node leads. Everything belongs on `loop`."""

    def __init__(
        self, host: RaftHost, controller: ControllerClient, *, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._host = host
        self._controller = controller
        self._loop = loop
        self._task: asyncio.Task[None] | None = None
        self._changes: dict[int, tuple[int, asyncio.Future[Outcome]]] = {}
        """The node that is added or removed, and its end, of each change under way, by group."""

    def start(self) -> None:
        """Look, now and then, whether there is something to do."""
        self._task = self._loop.create_task(self._run())

    def close(self) -> None:
        """Stop; the groups' next leaders go on with changes in progress."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if not self._controller.machine.moves or self._controller.machine.replacement is not None:
                continue
            try:
                await self._go_on()
            except Exception:
                log.exception("moves of partitions will be retried")

    async def _go_on(self) -> None:
        """One look: hand over, change members, and report what has got there."""
        before = self._led(self._controller.machine.moves)
        if not before or not await self._controller.catch_up(SUBMIT_SECONDS):
            return
        # What the local replica of the controller said may be long over, and another leader of the group may
        # have done the next step meanwhile. It is not over for one that led before the look and leads now.
        machine = self._controller.machine
        if machine.replacement is not None:
            return
        now = self._led(machine.moves)
        self._changes = {group: one for group, one in self._changes.items() if not one[1].done()}
        arrived: list[tuple[int, tuple[int, ...]]] = []
        for group_id, term in now.items():
            group, move = self._host.groups[group_id], machine.moves[group_id]
            if before.get(group_id) != term or self._still_wanted(group_id, move):
                continue
            if _arrived(group, move):
                arrived.append((group_id, move.target))
            elif len(self._changes) < AT_ONCE:
                self._step(group, move)
        for start in range(0, len(arrived), BATCH):
            await self._report(arrived[start : start + BATCH])

    def _led(self, moves: Mapping[int, Move]) -> dict[int, int]:
        """The groups that move and that this node leads, each with the term it leads it in."""
        groups = self._host.groups
        return {
            group_id: groups[group_id].term
            for group_id in moves
            if group_id in groups and groups[group_id].is_ready
        }

    def _still_wanted(self, group_id: int, move: Move) -> bool:
        """Whether a change is under way; an addition that is not wanted any more need not be waited for."""
        under_way = self._changes.get(group_id)
        return under_way is not None and (
            under_way[0] in move.target or under_way[0] in self._host.groups[group_id].voters
        )

    def _step(self, group: RaftGroup, move: Move) -> None:
        """Begin the next change of one group's members."""
        configuration, here = group.configuration, self._host.node_id
        # One learner at a time: what is not wanted any more goes before anything is added.
        unwanted = [node for node in configuration.learners if node not in move.target]
        missing = [node for node in move.target if node not in configuration.voters]
        leaving = [node for node in configuration.voters if node not in move.target and node != here]
        if unwanted:
            self._changes[group.id] = unwanted[0], group.remove_member(unwanted[0])
        elif missing:
            begun = [node for node in missing if node in configuration.learners]
            node = (begun or missing)[0]
            if node == here or self._host.connected(node):
                self._changes[group.id] = node, group.add_member(node)
        elif leaving:
            if _can_do_without(group, leaving[0]):
                self._changes[group.id] = leaving[0], group.remove_member(leaving[0])
        else:
            # This node alone has to go: whichever node of the target leads next removes it.
            ready = [node for node in move.target if group.keeps_up(node)]
            if ready:
                group.transfer(ready[0])

    async def _report(self, arrived: list[tuple[int, tuple[int, ...]]]) -> None:
        result = await self._controller.submit(ReplicasMoved(arrived), SUBMIT_SECONDS)
        if isinstance(result, Unavailable):
            log.debug("not reported yet: %s", result.reason)
        elif isinstance(result, int):
            log.info("%d partitions have moved, %d moves to go", len(arrived), result)


def _can_do_without(group: RaftGroup, leaving: int) -> bool:
    """Whether a majority of the other voters follows closely; else the group would stop with the change."""
    others = [node for node in group.voters if node != leaving]
    follow = sum(node == group.host.node_id or group.keeps_up(node) for node in others)
    return follow * 2 > len(others)


def _arrived(group: RaftGroup, move: Move) -> bool:
    """Whether exactly the target's members are committed."""
    configuration = group.configuration
    return (
        set(configuration.voters) == set(move.target)
        and not configuration.learners
        and configuration.index <= group.commit
    )
