"""Requests between nodes, over the one connection the mesh keeps for each pair of them.

Raft repeats a message until it arrives; a request is sent once and must end, with an answer or with the
knowledge that there will be none. Then the caller has to know whether the request may have been carried out:
it was not if it never left, and it may have been if the connection was lost or the time ran out.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final

from strandline.node.raft.bad_message import BadMessage
from strandline.node.raft.host import RaftHost

log = logging.getLogger(__name__)

Handler = Callable[[int, Any], Awaitable[Any]]

FRAME: Final = 5
"""First element of a frame that holds a call; 0 to 4 are Raft's."""
MAX_CALLS: Final = 1024
"""Calls of this node without an answer yet."""
MAX_SERVED: Final = 256
"""Requests of one peer that are being carried out; one more is refused, and was not carried out."""

_REQUEST, _ANSWER, _FAILURE, _TELL = range(4)
_SHAPES: dict[int, tuple[type, ...]] = {
    _REQUEST: (int, str, object),
    _ANSWER: (int, object),
    _FAILURE: (int, str, bool),
    _TELL: (str, object),
}


class CallFailed(Exception):
    """A call had no answer. `unknown`: it may have been carried out, now or later."""

    def __init__(self, reason: str, *, unknown: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.unknown = unknown


class MeshCalls:
    """One node's calls to the others, and its answers to theirs. Everything belongs on `loop`."""

    def __init__(self, host: RaftHost, *, loop: asyncio.AbstractEventLoop) -> None:
        self.counters: Counter[str] = Counter()
        """`calls`, `failed`, `unknown` (a part of failed), `served`, `refused`, `tells`."""
        self._mesh = host.mesh
        self._node_id = host.node_id
        self._loop = loop
        self._handlers: dict[str, Handler] = {}
        self._number = 0
        self._pending: dict[int, tuple[int, asyncio.Future[Any]]] = {}
        self._sessions: Counter[int] = Counter()
        self._heard: dict[int, dict[int, None]] = {}
        self._serving: Counter[int] = Counter()
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._closed = False
        host.take_frames(FRAME, self._on_frame)
        host.watch_peers(self._on_connect, self._on_disconnect)

    def serve(self, method: str, handler: Handler) -> None:
        """Answer `method` with what `handler(peer, payload)` gives, all of msgpack's types.

        A handler refuses by raising CallFailed; any other exception is the caller's CallFailed, unknown.
        """
        assert method not in self._handlers, method
        self._handlers[method] = handler

    async def call(self, node: int, method: str, payload: Any, timeout: float) -> Any:  # noqa: ASYNC109
        """The answer of a node, this one included; raises CallFailed. `timeout` in seconds."""
        self.counters["calls"] += 1
        try:
            if node == self._node_id:
                return await self._call_here(method, payload, timeout)
            return await self._call_peer(node, method, payload, timeout)
        except CallFailed as failed:
            self.counters["failed"] += 1
            self.counters["unknown"] += failed.unknown
            raise

    def tell(self, node: int, method: str, payload: Any) -> bool:
        """Call without an answer, best effort; whether it could be sent."""
        self.counters["tells"] += 1
        if node == self._node_id:
            return self._start(node, method, payload, None)
        return self._mesh.connected(node) and self._mesh.send(node, [FRAME, _TELL, method, payload])

    def close(self) -> None:
        """End every call of this node as unknown, and stop carrying out those of others."""
        self._closed = True
        for _, future in self._pending.values():
            if not future.done():
                future.set_result(CallFailed("this node is stopping", unknown=True))
        for task in self._tasks:
            task.cancel()

    # Calling.

    async def _call_here(self, method: str, payload: Any, timeout: float) -> Any:  # noqa: ASYNC109
        try:
            async with asyncio.timeout(timeout):
                return await self._carry_out(self._node_id, method, payload)
        except TimeoutError as error:
            raise CallFailed(f"{method} took more than {timeout:.3g} s", unknown=True) from error

    async def _call_peer(self, node: int, method: str, payload: Any, timeout: float) -> Any:  # noqa: ASYNC109
        if self._closed or len(self._pending) >= MAX_CALLS:
            reason = "this node is stopping" if self._closed else f"{MAX_CALLS} calls are under way"
            raise CallFailed(reason, unknown=False)
        self._number += 1
        number = self._number
        if not self._mesh.connected(node):
            raise CallFailed(f"node {node} is not connected", unknown=False)
        if not self._mesh.send(node, [FRAME, _REQUEST, number, method, payload]):
            raise CallFailed(f"too much waits for node {node}, or {method} is too large", unknown=False)
        future = self._loop.create_future()
        self._pending[number] = (node, future)
        try:
            async with asyncio.timeout(timeout):
                answer = await future
        except TimeoutError as error:
            reason = f"node {node} did not answer {method} within {timeout:.3g} s"
            raise CallFailed(reason, unknown=True) from error
        finally:
            del self._pending[number]
        if isinstance(answer, CallFailed):
            raise answer
        return answer

    # Being called.

    def _start(self, peer: int, method: str, payload: Any, number: int | None) -> bool:
        """Carry a request out in a task of its own; false when too many of this peer's are under way."""
        if self._closed or self._serving[peer] >= MAX_SERVED:
            self.counters["refused"] += 1
            return False
        self.counters["served"] += 1
        self._serving[peer] += 1
        session = self._sessions[peer]
        task = self._loop.create_task(self._serve(peer, method, payload, number, session))
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return True

    async def _serve(self, peer: int, method: str, payload: Any, number: int | None, session: int) -> None:
        try:
            # A handler may go by the order of one connection, and forgets what came over it when it is lost.
            if number is None and session != self._sessions[peer]:
                return
            try:
                answer = [FRAME, _ANSWER, number, await self._carry_out(peer, method, payload)]
            except CallFailed as failed:
                answer = [FRAME, _FAILURE, number, failed.reason, failed.unknown]
        finally:
            self._serving[peer] -= 1
        # Over the connection it came by and no other: a new process would take it for an answer of its own.
        if number is not None and session == self._sessions[peer] and self._mesh.connected(peer):
            self._answer(peer, number, answer)

    def _answer(self, peer: int, number: int, answer: list[Any]) -> None:
        try:
            if self._mesh.send(peer, answer):
                return
            reason = "the answer is too large, or too much waits for its way back"
        except (TypeError, ValueError) as error:
            log.exception("an answer to node %d cannot be encoded", peer)
            reason = f"the answer cannot be encoded: {error}"
        self._mesh.send(peer, [FRAME, _FAILURE, number, reason, True])

    async def _carry_out(self, peer: int, method: str, payload: Any) -> Any:
        handler = self._handlers.get(method)
        if handler is None:
            raise CallFailed(
                f"this release does not know {method!r}: upgrade node {self._node_id}", unknown=False
            )
        try:
            return await handler(peer, payload)
        except CallFailed:
            raise
        except Exception as error:
            log.exception("%s of node %d failed", method, peer)
            raise CallFailed(f"{method} failed: {error!r}", unknown=True) from error

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if not task.cancelled():
            task.result()

    # The mesh.

    def _on_frame(self, peer: int, frame: list[Any]) -> None:
        shape = _SHAPES.get(frame[1]) if len(frame) > 1 and type(frame[1]) is int else None
        fields = frame[2:]
        if shape is None or len(fields) != len(shape):
            raise BadMessage("frame of a call has a wrong shape")
        for value, kind in zip(fields, shape, strict=True):
            if kind is not object and type(value) is not kind:
                raise BadMessage("frame of a call has a field of a wrong type")
        if frame[1] == _REQUEST:
            number, method, payload = fields
            # The second's answer could pass for the first's: that a topic is gone, which the first deleted.
            if self._came_before(peer, number):
                return
            if not self._start(peer, method, payload, number):
                reason = (
                    f"node {self._node_id} is stopping, or has {MAX_SERVED} calls of this node to carry out"
                )
                self._mesh.send(peer, [FRAME, _FAILURE, number, reason, False])
        elif frame[1] == _TELL:
            self._start(peer, fields[0], fields[1], None)
        elif frame[1] == _ANSWER:
            self._resolve(peer, *fields)
        else:
            number, reason, unknown = fields
            self._resolve(peer, number, CallFailed(reason, unknown=unknown))

    def _came_before(self, peer: int, number: int) -> bool:
        """Whether a peer's request came by this connection before; as far back as calls can be under way."""
        heard = self._heard.setdefault(peer, {})
        if number in heard:
            return True
        heard[number] = None
        if len(heard) > MAX_CALLS:
            del heard[next(iter(heard))]
        return False

    def _resolve(self, peer: int, number: int, answer: Any) -> None:
        node, future = self._pending.get(number, (0, None))
        if future is not None and node == peer and not future.done():
            future.set_result(answer)

    def _on_connect(self, peer: int) -> None:
        self._sessions[peer] += 1
        self._heard.pop(peer, None)

    def _on_disconnect(self, peer: int) -> None:
        self._sessions[peer] += 1
        lost = CallFailed(f"the connection to node {peer} was lost", unknown=True)
        for node, future in self._pending.values():
            if node == peer and not future.done():
                future.set_result(lost)
