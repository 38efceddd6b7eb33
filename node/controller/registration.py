"""Registration of a process with the controller, and its heartbeats.

The process registers once its own replica of the controller has caught up. So it names the process that it
replaces by the controller's newest state. From then on it sends a heartbeat twice a second to the leader of
the controller. If the controller comes to know another process under this node's id, this process has been
replaced and must stop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from strandline.node.controller.client import RETRY_SECONDS, ControllerClient, Unavailable
from strandline.node.controller.cluster_epoch import ClusterEpoch
from strandline.node.controller.controller_leader import HEARTBEAT, LEAVING
from strandline.node.rpc import CallFailed, MeshCalls
from strandline.node.runtime.rounds import next_round
from strandline.statemachine.controller import feature_levels
from strandline.statemachine.controller.controller import Result
from strandline.statemachine.controller.controller_commands import RegisterNode
from strandline.statemachine.controller.controller_state import NodeRegistration
from strandline.statemachine.kafka_errors import KafkaError, Refused

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS: Final = 0.5
STEP_SECONDS: Final = 10.0
"""Time limit of one step of registering before it is restarted and logged."""
ATTEMPTS: Final = 3
"""Registrations that may come in between before they count as another process."""


class Displaced(RuntimeError):
    """Another process has this node's id: this one must stop."""


class Registration:
    """One process's registration, kept up until `close`."""

    registered = False
    """Whether the controller knows this process and it serves clients; never false again."""
    fenced = False
    """Whether the last heartbeat's answer said so."""
    leader_index = 0
    """Log index of the controller's leader at the last heartbeat."""

    def __init__(
        self,
        controller: ControllerClient,
        calls: MeshCalls,
        epoch: ClusterEpoch,
        command: RegisterNode,
        *,
        loop: asyncio.AbstractEventLoop,
        may_register: Callable[[], bool],
        why_waiting: Callable[[], str],
        storage_unseen: Callable[[], str],
        on_registered: Callable[[], Awaitable[None]],
        on_fatal: Callable[[Exception], None],
    ) -> None:
        """`command` is the registration but for `replaces`, which is found out here.

        `may_register()` says whether the storage is this cluster's: until then there is nothing to serve;
        `storage_unseen()` why not, and `why_waiting()` what keeps the controller from answering, in one line.
        """
        self._controller = controller
        self._calls = calls
        self._epoch = epoch
        self._command = command
        self._loop = loop
        self._may_register = may_register
        self._why_waiting = why_waiting
        self._storage_unseen = storage_unseen
        self._on_registered = on_registered
        self._on_fatal = on_fatal
        self._told = ""
        """The rack of the last registration."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Register as soon as the controller has a leader."""
        self._task = self._loop.create_task(self._run())
        self._task.add_done_callback(self._ended)

    async def leave(self, seconds: float) -> None:
        """Tell the controller's leader that this process is stopping, best effort; then say no more.

        Call it after leadership was handed over: no other node fences the leader itself.
        """
        self.close()
        deadline = self._loop.time() + seconds
        while self.registered and (left := deadline - self._loop.time()) > 0:
            leader = self._controller.leader
            if leader == self._command.node:
                return
            if leader is not None:
                try:
                    await self._calls.call(leader, LEAVING, [self._command.boot_id], left)
                except CallFailed as failed:
                    log.debug("leaving: %s", failed.reason)
                else:
                    return
            await asyncio.sleep(min(RETRY_SECONDS, left))

    def close(self) -> None:
        """Stop without a word."""
        if self._task is not None:
            self._task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            assert isinstance(error, Exception)
            self._on_fatal(error)

    async def _run(self) -> None:
        await self._register()
        log.info("node %d is registered", self._command.node)
        await self._on_registered()
        self.registered = True
        while True:
            await self._beat()
            if self._told != self._allowed_rack():
                await self._register()
            await next_round(HEARTBEAT_SECONDS)

    def _allowed_rack(self) -> str:
        """The rack as the cluster's feature level lets it be told; a level that rose lets more be told."""
        return feature_levels.as_allowed(self._controller.machine.feature_level, self._command).rack

    async def _register(self) -> None:
        for left in reversed(range(ATTEMPTS)):
            result = await self._replace_whoever_is_known()
            if isinstance(result, NodeRegistration):
                return
            # Between the look and the entry the registration of the process before this one may have come,
            # late on its way: that process is gone all the same, so look again.
            if not (left and isinstance(result, Refused) and result.error == KafkaError.STALE_BROKER_EPOCH):
                raise Displaced(str(getattr(result, "message", result)))

    async def _replace_whoever_is_known(self) -> Result:
        while not await self._controller.catch_up(STEP_SECONDS):
            log.warning("waiting for the controller: %s", self._why_waiting())
        said_at = self._loop.time()
        while not self._may_register():
            if self._loop.time() - said_at > STEP_SECONDS:
                said_at = self._loop.time()
                log.warning("waiting for the storage: %s", self._storage_unseen())
            await asyncio.sleep(RETRY_SECONDS)
        known = self._controller.machine.nodes.get(self._command.node)
        wanted = replace(self._command, replaces=known.boot_id if known is not None else 0)
        command = feature_levels.as_allowed(self._controller.machine.feature_level, wanted)
        while isinstance(result := await self._controller.submit(command, STEP_SECONDS), Unavailable):
            log.warning("not registered yet: %s", result.reason)
        self._told = command.rack
        return result

    async def _beat(self) -> None:
        leader = self._controller.leader
        if leader is None:
            return
        try:
            answer = await self._calls.call(leader, HEARTBEAT, [self._command.boot_id], HEARTBEAT_SECONDS)
        except CallFailed as failed:
            log.debug("heartbeat: %s", failed.reason)
            return
        self.leader_index, epoch, boot_id, self.fenced = answer
        self._epoch.learn(epoch)
        if boot_id != self._command.boot_id:
            raise Displaced(
                f"another process registered as node {self._command.node}: stop one of them, or give it "
                "an id and a data folder of its own"
            )
