"""This node's part in moving partitions to other nodes (KIP-455), as the leader of their groups.

The controller's log has the targets, so a move goes on after any crash and under any leader. The leader adds
the members that are missing and then removes those that shall go, one at a time (Raft §6). It adds first: a
group never has fewer members than before and after. A leader that shall go hands over first. Leaders report
moves that are committed. A replacement of a data folder changes members too, so moves wait until it is over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from strandline.node.controller.client import ControllerClient, Unavailable
from strandline.node.controller.periodic import PeriodicPart
from strandline.node.raft.group import RaftGroup
from strandline.node.raft.host import RaftHost
from strandline.node.raft.outcome import Applied, Outcome
from strandline.statemachine.controller.controller_commands import ReplicasMoved
from strandline.statemachine.controller.controller_state import Move

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 0.5
AT_ONCE: Final = 8
"""Groups that change their members at the same time on one node: each may send its state to another node."""
SILENT_SECONDS: Final = 15.0
"""A learner that has not answered for so long makes room for another group's, if there is none."""
BATCH: Final = 1000
"""Groups that one report names."""
SUBMIT_SECONDS: Final = 10.0


class _Change(NamedTuple):
    """A change of a group's members under way."""

    node: int
    """The node that is added or removed."""
    ended: asyncio.Future[Outcome]
    begun_at: float


class ReplicaMoves(PeriodicPart):
    """The moves of the groups that this node leads. Everything belongs on `loop`."""

    def __init__(
        self, host: RaftHost, controller: ControllerClient, *, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(LOOK_SECONDS, "moving partitions failed and will be retried", loop=loop)
        self._host = host
        self._controller = controller
        self._changes: dict[int, _Change] = {}
        """Those under way, by group."""
        self._failures: dict[int, int] = {}
        """By group that moves, the changes that came to nothing. Those with fewer go first: a node that hosts
        none of its groups, or is too slow for them, must not hold up the moves to others."""

    async def _look(self) -> None:
        """Hand over, change members, and report what has got there."""
        if not self._controller.machine.moves or self._controller.machine.replacement is not None:
            return
        before = self._led(self._controller.machine.moves)
        if not before or not await self._controller.catch_up(SUBMIT_SECONDS):
            return
        # What the local replica of the controller said may be long over, and another leader of the group may
        # have done the next step meanwhile. It is not over for one that led before the look and leads now.
        machine = self._controller.machine
        if machine.replacement is not None:
            return
        now = self._led(machine.moves)
        self._note_ended(machine.moves)
        arrived: list[tuple[int, tuple[int, ...], int]] = []
        for group_id in sorted(now, key=lambda group_id: self._failures.get(group_id, 0)):
            group, move = self._host.groups[group_id], machine.moves[group_id]
            if before.get(group_id) != now[group_id]:
                continue
            under_way = self._changes.get(group_id)
            if under_way is not None and _still_wanted(group, move, under_way.node):
                if len(now) > len(self._changes) >= AT_ONCE and self._is_silent(group, under_way):
                    self._begin(group, under_way.node, group.remove_member)
            elif _arrived(group, move):
                arrived.append((group_id, move.target, move.since))
            elif under_way is not None or len(self._changes) < AT_ONCE:
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

    def _note_ended(self, moves: Mapping[int, Move]) -> None:
        ended = [group_id for group_id, change in self._changes.items() if change.ended.done()]
        for group_id in ended:
            if not isinstance(self._changes.pop(group_id).ended.result(), Applied):
                self._failures[group_id] = self._failures.get(group_id, 0) + 1
        self._failures = {group: count for group, count in self._failures.items() if group in moves}

    def _is_silent(self, group: RaftGroup, change: _Change) -> bool:
        """Whether a learner that is to be brought up does not answer."""
        progress = group.progress.get(change.node)
        if group.joining != change.node or progress is None or change.node in group.voters:
            return False
        return self._host.now() - max(progress.acked_sent_at, change.begun_at) > SILENT_SECONDS

    def _begin(self, group: RaftGroup, node: int, change: Callable[[int], asyncio.Future[Outcome]]) -> None:
        under_way = self._changes.get(group.id)
        self._changes[group.id] = _Change(node, change(node), self._host.now())
        if under_way is not None and under_way.node == node:
            self._failures[group.id] = self._failures.get(group.id, 0) + 1

    def _step(self, group: RaftGroup, move: Move) -> None:
        """Begin the next change of one group's members."""
        configuration, here = group.configuration, self._host.node_id
        # One learner at a time: what is not wanted any more goes before anything is added.
        unwanted = [node for node in configuration.learners if node not in move.target]
        missing = [node for node in move.target if node not in configuration.voters]
        leaving = [node for node in configuration.voters if node not in move.target and node != here]
        if unwanted:
            self._begin(group, unwanted[0], group.remove_member)
        elif missing:
            begun = [node for node in missing if node in configuration.learners]
            node = (begun or missing)[0]
            if node == here or self._is_there(node):
                self._begin(group, node, group.add_member)
        elif leaving:
            if _can_do_without(group, leaving[0]):
                self._begin(group, leaving[0], group.remove_member)
        else:
            # This node alone has to go: whichever node of the target leads next removes it.
            ready = [node for node in move.target if group.keeps_up(node)]
            if ready:
                group.transfer(ready[0])

    def _is_there(self, node: int) -> bool:
        """Whether a node is connected with the folder that is in force: the entry that adds it names that."""
        named = self._controller.machine.folders.get(node)
        folder = named is None or self._host.folder_of(node) == named.folder
        return folder and self._host.connected(node)

    async def _report(self, arrived: list[tuple[int, tuple[int, ...], int]]) -> None:
        result = await self._controller.submit(ReplicasMoved(arrived), SUBMIT_SECONDS)
        if isinstance(result, Unavailable):
            log.debug("not reported yet: %s", result.reason)
        elif isinstance(result, int):
            log.info("%d partitions have moved, %d moves to go", len(arrived), result)


def _still_wanted(group: RaftGroup, move: Move, node: int) -> bool:
    """Whether a change under way is one towards the target; another addition need not be waited for."""
    return node in move.target or node in group.voters


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
