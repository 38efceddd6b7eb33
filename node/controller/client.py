"""Client of the controller: reads and changes it from any node.

A read uses the local replica, without a round trip. A change goes to the leader, as the same bytes until its
outcome is known or the time is over. A command that is applied twice answers as docs/controller.md,
"Retries", says, and this module translates that answer into the first application's.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from strandline.node.controller import results
from strandline.node.raft.group import RaftGroup
from strandline.node.raft.outcome import Applied, Unknown
from strandline.node.rpc import CallFailed, MeshCalls
from strandline.statemachine.controller import feature_levels, scram_credentials
from strandline.statemachine.controller.controller import Controller, Result
from strandline.statemachine.controller.controller_commands import (
    AlterScramCredentials,
    Command,
    CreatePartitions,
    DeleteTopic,
    ViewCommand,
    decode,
    encode,
)
from strandline.statemachine.controller.controller_state import Topic
from strandline.statemachine.kafka_errors import KafkaError, Refused
from strandline.statemachine.machine import Corruption

RETRY_SECONDS: Final = 0.05
"""Pause before the leader is looked for again."""
ATTEMPT_SECONDS: Final = 3.0
"""Time limit for one node's answer; a leader that is cut off steps down within a second."""
SUBMIT: Final = "controller.submit"
CATCH_UP: Final = "controller.catch_up"


@dataclass(frozen=True, slots=True)
class Unavailable:
    """No answer in time. `unknown`: the command may have been applied, or may yet be."""

    reason: str
    unknown: bool


class ControllerClient:
    """The local replica, and the way to the leader. Everything belongs on `loop`."""

    machine: Controller
    """The local replica, to be read and not to be driven."""

    def __init__(self, calls: MeshCalls, node_id: int, *, loop: asyncio.AbstractEventLoop) -> None:
        self._calls = calls
        self._node_id = node_id
        self._loop = loop
        self._group: RaftGroup | None = None
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._waits = 0
        self._callbacks: list[Callable[[], None]] = []
        self._version = 0
        self._telling = False
        calls.serve(SUBMIT, self._submitted)
        calls.serve(CATCH_UP, self._asked_to_catch_up)

    def attach(self, machine: Controller, group: RaftGroup) -> None:
        """Give it the local replica, once there is one."""
        self.machine = machine
        self._group = group
        self.applied()

    @property
    def leader(self) -> int | None:
        """The node this one believes leads the controller."""
        group = self._group
        if group is None:
            return None
        return self._node_id if group.is_leader else group.leader

    @property
    def group(self) -> RaftGroup | None:
        """The local replica's Raft group, once there is one."""
        return self._group

    async def submit(self, command: Command, timeout: float) -> Result | Unavailable:  # noqa: ASYNC109
        """Have a command applied; once it returns, the local replica has applied it too.

        `timeout` in seconds. Refusals are values (`Refused`). A command that was tried more than once gives
        what its first application gave.
        """
        entry = encode(command)
        before = self._topic_of(command)
        deadline = self._loop.time() + timeout
        failed = CallFailed("the controller has no leader", unknown=False)
        unknown = False
        while (left := deadline - self._loop.time()) > 0:
            leader = self.leader
            if leader is None:
                await asyncio.sleep(min(RETRY_SECONDS, left))
                continue
            try:
                seconds = min(left, ATTEMPT_SECONDS)
                index, packed = await self._calls.call(leader, SUBMIT, entry, seconds)
                result = results.unpack(packed)
                if not await self._wait_applied(index, deadline - self._loop.time()):
                    return Unavailable("it was applied, and this node is behind", unknown=True)
            except CallFailed as error:
                failed = error
                unknown = unknown or error.unknown
                await asyncio.sleep(min(RETRY_SECONDS, max(0.0, deadline - self._loop.time())))
            else:
                return self._settled(command, result, before) if unknown else result
        return Unavailable(failed.reason, unknown)

    async def catch_up(self, timeout: float) -> bool:  # noqa: ASYNC109
        """Wait until the local replica has everything that was committed before the call; seconds."""
        deadline = self._loop.time() + timeout
        while (left := deadline - self._loop.time()) > 0:
            leader = self.leader
            if leader is not None:
                try:
                    index = await self._calls.call(leader, CATCH_UP, None, min(left, ATTEMPT_SECONDS))
                except CallFailed:
                    pass
                else:
                    return await self._wait_applied(index, deadline - self._loop.time())
            await asyncio.sleep(min(RETRY_SECONDS, max(0.0, deadline - self._loop.time())))
        return False

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call back after `machine.version` moved, at most once a loop turn."""
        self._callbacks.append(callback)

    def applied(self) -> None:
        """The local replica applied something; called by it."""
        if self._group is None:
            return
        index = self.machine.applied_index
        while self._waiting and self._waiting[0][0] <= index:
            future = heapq.heappop(self._waiting)[2]
            if not future.done():
                future.set_result(None)
        if self.machine.version != self._version and not self._telling:
            self._telling = True
            self._loop.call_soon(self._tell)

    def _tell(self) -> None:
        self._telling = False
        self._version = self.machine.version
        for callback in self._callbacks:
            callback()

    async def _wait_applied(self, index: int, seconds: float) -> bool:
        if self.machine.applied_index >= index:
            return True
        future: asyncio.Future[None] = self._loop.create_future()
        self._waits += 1
        heapq.heappush(self._waiting, (index, self._waits, future))
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await future
        except TimeoutError:
            return False
        finally:
            if not future.done() or future.cancelled():
                # Remove the entry, so that entries do not pile up while the replica stays behind.
                self._waiting = [waiting for waiting in self._waiting if waiting[2] is not future]
                heapq.heapify(self._waiting)
        return True

    # What a retry answers.

    def _topic_of(self, command: Command) -> Topic | None:
        """The topic a command is about, as it was before."""
        if isinstance(command, CreatePartitions | DeleteTopic):
            return self.machine.topic_by_id(command.topic_id)
        return None

    def _settled(self, command: Command, result: Result, before: Topic | None) -> Result:
        """The answer of a command that an earlier attempt may have applied already."""
        if not isinstance(result, Refused):
            return result
        if isinstance(command, AlterScramCredentials) and result.error == KafkaError.RESOURCE_NOT_FOUND:
            count = scram_credentials.in_force(self.machine.credentials, command)
            return result if count is None else count
        if before is None:
            return result
        if isinstance(command, DeleteTopic) and result.error == KafkaError.UNKNOWN_TOPIC_ID:
            return before
        if isinstance(command, CreatePartitions) and result.error == KafkaError.INVALID_PARTITIONS:
            now = self.machine.topic_by_id(command.topic_id)
            if now is not None and len(now.partitions) == command.count > len(before.partitions):
                return now
        return result

    # At the leader.

    async def _submitted(self, peer: int, entry: Any) -> Any:
        group = self._group
        if group is None or not group.is_leader:
            raise CallFailed(f"node {self._node_id} does not lead the controller", unknown=False)
        try:
            command = decode(entry)
            refused = feature_levels.refusal(self.machine.feature_level, command)
            if refused is not None:
                return [self.machine.applied_index, results.pack(refused)]
            outcome = await group.replicate(entry, group.term)
        except (Corruption, TypeError, ValueError) as error:
            raise CallFailed(f"the command is refused: {error}", unknown=False) from error
        if isinstance(outcome, Applied):
            if isinstance(command, ViewCommand):
                # A cutover has four entries, one after the other, and readers wait for it: at a node that
                # does not lead, each would take a heartbeat's time.
                group.tell_commit()
            return [outcome.index, results.pack(outcome.value)]
        raise CallFailed(outcome.reason, unknown=isinstance(outcome, Unknown))

    async def _asked_to_catch_up(self, peer: int, _: Any) -> int:
        group = self._group
        if group is None or not isinstance(await group.barrier(), Applied):
            raise CallFailed(f"node {self._node_id} does not lead the controller", unknown=False)
        return self.machine.applied_index
