"""Puts a new data folder into a node's place, group by group, after `strandline node replace`.

The controller's log has its progress, so it goes on after any crash. Each leader looks after the groups it
leads: while the node is to be left out, it removes the node from their members (Raft §6, one change at a
time); once every group has done so and the new folder was let in, it adds the node again, which catches up as
a learner and is then a voter. Leaders report committed changes, in batches.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from strandline.node.controller.client import ControllerClient, Unavailable
from strandline.node.controller.periodic import PeriodicPart
from strandline.node.raft.group import RaftGroup
from strandline.node.raft.host import RaftHost
from strandline.node.raft.outcome import Applied, Outcome
from strandline.statemachine.controller.controller_commands import ReplicasJoined, ReplicasLeft
from strandline.statemachine.controller.controller_state import CONTROLLER_GROUP, Replacement

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 0.5
AT_ONCE: Final = 32
"""Groups that change their members at the same time on one node."""
BATCH: Final = 1000
"""Groups that one report names."""
SUBMIT_SECONDS: Final = 10.0


class Replacements(PeriodicPart):
    """This node's part in every replacement. Everything belongs on `loop`."""

    def __init__(
        self, host: RaftHost, controller: ControllerClient, *, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(LOOK_SECONDS, "replacing a data folder failed and will be retried", loop=loop)
        self._host = host
        self._controller = controller
        self._phase: tuple[int, int, bool] | None = None
        """Node, folder, and whether it is being removed; the changes below are for these."""
        self._changes: dict[int, asyncio.Task[bool]] = {}
        """Membership changes in progress, by group."""

    def close(self) -> None:
        """Stop; the groups' next leaders go on with changes in progress."""
        self._turn_to(None)
        super().close()

    async def _look(self) -> None:
        present = self._controller.machine.replacement
        self._turn_to(None if present is None else _phase(present))
        if present is not None:
            await self._go_on(present)

    def _turn_to(self, phase: tuple[int, int, bool] | None) -> None:
        if phase != self._phase:
            self._phase = phase
            for change in self._changes.values():
                change.cancel()
            self._changes.clear()

    async def _go_on(self, present: Replacement) -> None:
        """Report the groups that got there, then begin with others."""
        ended = [group for group, change in self._changes.items() if change.done()]
        done = [
            group for group in ended if not self._changes[group].cancelled() and self._changes[group].result()
        ]
        for group in ended:
            del self._changes[group]
        kind = ReplicasLeft if present.leaving else ReplicasJoined
        for start in range(0, len(done), BATCH):
            await self._report(kind(present.node, present.folder, done[start : start + BATCH]))
        ready = self._ready(present)
        if not ready or not await self._controller.catch_up(SUBMIT_SECONDS):
            return
        # What the local replica of the controller said may be long over, and another leader of the group may
        # have done the next step meanwhile. It is not over for one that led before the look and leads now.
        now = self._controller.machine.replacement
        if now is None or _phase(now) != self._phase:
            return
        still = self._ready(now)
        for group_id, term in ready.items():
            if len(self._changes) >= AT_ONCE:
                break
            if still.get(group_id) == term:
                replica = self._host.groups[group_id]
                change = replica.remove_member if now.leaving else replica.add_member
                self._changes[group_id] = self._loop.create_task(_changed(replica, change(now.node)))

    def _ready(self, present: Replacement) -> dict[int, int]:
        """The groups that this node may change the members of, each with the term it leads it in."""
        found = {}
        for group_id in sorted(present.leaving or self._may_join(present)):
            replica = self._host.groups.get(group_id)
            if (
                replica is not None
                and replica.is_leader
                and group_id not in self._changes
                and (not present.leaving or replica.members_held_without(present.node))
            ):
                found[group_id] = replica.term
        return found

    def _may_join(self, present: Replacement) -> frozenset[int]:
        """Groups that the node may be added to now; the controller's group tells it which others it has.

        The node itself may lead a group before it is reported: the leader that added it lost its leadership
        first. Then it reports itself.
        """
        if self._host.folder_of(present.node) != present.folder:
            return frozenset()  # The entry that adds it would name the folder before.
        if present.node != self._host.node_id and not self._host.connected(present.node):
            return frozenset()
        known = self._controller.machine.nodes.get(present.node)
        serves = known is not None and not known.fenced and known.boot_id != present.boot_id
        return present.joining if serves else present.joining & {CONTROLLER_GROUP}

    async def _report(self, command: ReplicasLeft | ReplicasJoined) -> None:
        result = await self._controller.submit(command, SUBMIT_SECONDS)
        if isinstance(result, Unavailable):
            log.debug("not reported yet: %s", result.reason)
        elif isinstance(result, int):
            done = "left out by" if isinstance(command, ReplicasLeft) else "back in"
            log.info(
                "node %d is %s %d more groups, %d to go", command.node, done, len(command.groups), result
            )


def _phase(present: Replacement) -> tuple[int, int, bool]:
    return present.node, present.folder, bool(present.leaving)


async def _changed(group: RaftGroup, change: asyncio.Future[Outcome]) -> bool:
    """Whether the members are as wanted and committed: an answer without a change says only the first."""
    done = isinstance(await change, Applied)
    return done and group.is_leader and group.configuration.index <= group.commit
