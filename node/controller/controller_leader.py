"""Work of the controller's leader: it names the cluster, fences silent nodes, and advances the cluster epoch
as long as any node has objects that wait for that.

The leader decides by its own clock, from the heartbeats that it received, whether a node is alive. Only
decisions go into the log, each with its grounds (docs/controller.md, "Nodes"). A new leader does not know the
heartbeats before its term, so it gives each node the full time again, and so does a leader that was paused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from strandline.node.config.first_user import FirstUser
from strandline.node.raft.group import RaftGroup
from strandline.node.raft.outcome import Applied
from strandline.node.rpc import CallFailed, MeshCalls
from strandline.statemachine.controller.controller import Controller, Result
from strandline.statemachine.controller.controller_commands import (
    FEATURE_LEVEL,
    AdvanceClusterEpoch,
    AlterScramCredentials,
    Bootstrap,
    Command,
    FenceNode,
    Heartbeat,
    encode,
)
from strandline.statemachine.controller.controller_state import NodeRegistration
from strandline.statemachine.kafka_errors import Refused

log = logging.getLogger(__name__)

HEARTBEAT: Final = "controller.heartbeat"
LEAVING: Final = "controller.leaving"
EPOCH_NEEDED: Final = "controller.epoch_needed"
TICK_SECONDS: Final = 0.25
SILENT_SECONDS: Final = 3.0
"""A node not heard for this long is fenced: six heartbeats."""
FRESH_SECONDS: Final = 1.5
"""A fence ends for a node that was heard within this time."""
GAP_SECONDS: Final = 1.0
"""A tick so late means that this process did not run, and has not read the heartbeats of that time."""
GONE: Final = float("-inf")


class ControllerLeader:
    """At work while this node leads the controller. Everything belongs on `loop`."""

    def __init__(
        self,
        calls: MeshCalls,
        cluster_id: str,
        incarnation: Callable[[], str],
        epoch_seconds: float,
        first_user: FirstUser | None = None,
        *,
        loop: asyncio.AbstractEventLoop,
        wall_ms: Callable[[], int],
    ) -> None:
        self._calls = calls
        self._cluster_id = cluster_id
        self._incarnation = incarnation
        self._epoch_seconds = epoch_seconds
        self._first_user = first_user
        self._loop = loop
        self._wall_ms = wall_ms
        self._machine: Controller | None = None
        self._group: RaftGroup | None = None
        self._task: asyncio.Task[None] | None = None
        self._ready = False
        self._since = 0.0
        self._last_heard: dict[int, tuple[int, float]] = {}
        calls.serve(HEARTBEAT, self._on_heartbeat)
        calls.serve(LEAVING, self._on_leaving)

    def attach(self, machine: Controller, group: RaftGroup) -> None:
        """Work for this replica of the controller whenever it leads."""
        self._machine, self._group = machine, group
        group.on_leadership(self._on_leadership)

    def close(self) -> None:
        """Stop working."""
        self._ready = False
        if self._task is not None:
            self._task.cancel()

    def silent_seconds(self, node: int) -> float | None:
        """Seconds since a node was heard; None if this node does not lead the controller."""
        if not self._ready:
            return None
        return self._loop.time() - max(self._last_heard.get(node, (0, GONE))[1], self._since)

    def _on_leadership(self, leading: bool, term: int) -> None:
        self.close()
        if leading:
            self._task = self._loop.create_task(self._lead(term))
            self._task.add_done_callback(_report)

    async def _lead(self, term: int) -> None:
        machine, group = self._machine, self._group
        assert machine is not None
        assert group is not None
        if not isinstance(await group.barrier(), Applied):
            return
        self._last_heard.clear()
        self._since = now = self._loop.time()
        self._ready = True
        log.info("node %d leads the controller in term %d", machine.leader, term)
        advance_at = now + self._epoch_seconds
        named = machine.cluster_id == self._cluster_id
        while group.is_leader and group.term == term:
            if not named:
                # A disk that hangs, or a transfer that comes to nothing, refuses it without ending the term.
                result = await self._propose(
                    term, Bootstrap(self._cluster_id, self._incarnation(), FEATURE_LEVEL)
                )
                named = result is not None
            if self._first_user is not None and not machine.credentials:
                first = self._first_user
                if await self._propose(term, AlterScramCredentials(first.name, (), (first.upsertion,))) == 1:
                    log.info("there was no user: %s is made, as cluster.first_user says", first.name)
            # A period may be shorter than a tick.
            await asyncio.sleep(max(0.0, min(TICK_SECONDS, advance_at - self._loop.time())))
            last, now = now, self._loop.time()
            if now - last > TICK_SECONDS + GAP_SECONDS:
                self._since = now
            for registration in list(machine.nodes.values()):
                command = self._judge(registration, now)
                if command is not None:
                    await self._propose(term, command)
            if now >= advance_at:
                advance_at = now + self._epoch_seconds
                if await self._newer_epoch_is_needed(machine):
                    await self._propose(term, AdvanceClusterEpoch(machine.cluster_epoch + 1))

    async def _newer_epoch_is_needed(self, machine: Controller) -> bool:
        """Whether a node has objects that can go only under a newer epoch. One that does not say may have."""
        nodes = [node for node, known in machine.nodes.items() if not known.fenced]
        calls = [self._calls.call(node, EPOCH_NEEDED, [], TICK_SECONDS) for node in nodes]
        tasks = [self._loop.create_task(call) for call in calls]
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        return any(answer is not False for answer in answers)

    def _judge(self, registration: NodeRegistration, now: float) -> Command | None:
        """The command that a node's state calls for, if any."""
        node = registration.node
        boot_id, heard = self._last_heard.get(node, (0, self._since))
        if boot_id != registration.boot_id and not registration.fenced:
            # Its registration is the first word of a process: it has the full time for the next.
            boot_id, heard = self._last_heard[node] = (registration.boot_id, now)
        if (
            not registration.fenced
            and now - (heard if heard == GONE else max(heard, self._since)) > SILENT_SECONDS
        ):
            log.warning("node %d is fenced: it is leaving, or was silent for %.0f s", node, SILENT_SECONDS)
            return FenceNode(node, registration.heard_index, self._wall_ms())
        if registration.fenced and boot_id == registration.boot_id and now - heard < FRESH_SECONDS:
            log.info("node %d is heard again", node)
            return Heartbeat(node, boot_id, self._wall_ms())
        return None

    async def _propose(self, term: int, command: Command) -> Result | None:
        """Propose one command if this node still leads. After any outcome the next tick decides again."""
        assert self._group is not None
        outcome = await self._group.replicate(encode(command), term)
        if not isinstance(outcome, Applied):
            return None
        result: Result = outcome.value
        if isinstance(result, Refused):
            log.error("%s: %s", type(command).__name__, result.message)
        return result

    # What nodes say.

    async def _on_heartbeat(self, peer: int, payload: Any) -> list[Any]:
        """`[boot id]` gives `[applied index, cluster epoch, registered boot id, fenced]`."""
        machine = self._leading()
        (boot_id,) = payload
        self._hear(peer, boot_id, self._loop.time())
        known = machine.nodes.get(peer)
        return [
            machine.applied_index,
            machine.cluster_epoch,
            known.boot_id if known else 0,
            known is not None and known.fenced,
        ]

    async def _on_leaving(self, peer: int, payload: Any) -> None:
        """The process `[boot id]` is stopping, so it is fenced at once."""
        self._leading()
        (boot_id,) = payload
        self._hear(peer, boot_id, GONE)

    def _hear(self, node: int, boot_id: int, at: float) -> None:
        """A late word of a process that was replaced says nothing of the one that took its place."""
        assert self._machine is not None
        known = self._machine.nodes.get(node)
        if known is not None and known.boot_id == boot_id:
            self._last_heard[node] = (boot_id, at)

    def _leading(self) -> Controller:
        if not self._ready or self._machine is None:
            raise CallFailed("this node does not lead the controller, or not yet", unknown=False)
        return self._machine


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("the controller's leader failed", exc_info=task.exception())
