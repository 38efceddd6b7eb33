"""Holds the decisions on transactions for a moment, so that a restore point has no transaction in part.

While decisions are held on a node, none of its coordinators lets a producer commit or abort, ends a
transaction that took too long, or says that one is complete. What was decided before goes on: its markers
are written. So a transaction is decided before the first document of a restore point, and then all of its
records are in the documents, or it is open in all of them (docs/restore.md, "Transactions").

A hold ends by itself, since the node that asked for it may be gone. The node that asked is told then that it
did not last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final, Protocol

from strandline.node.rpc import CallFailed, MeshCalls

HOLD: Final = "transactions.hold"
RELEASE: Final = "transactions.release"
MAX_HOLD_SECONDS: Final = 10.0
"""The longest hold. A client's request waits for that long, and Kafka's clients wait 30 s for an answer."""
SHORT_HOLD_SECONDS: Final = 1.0
"""The longest hold for a tail point. There is one every few seconds, so another hold waits for its end."""
SETTLE_SECONDS: Final = 3.0
"""Time limit for the commands that are in the logs when a hold begins."""


class HeldReplica(Protocol):
    """A coordinator's replica on this node."""

    @property
    def term(self) -> int:
        """The term in which this node leads it, having applied all of earlier terms; 0 if it does not."""

    async def settle(self) -> None:
        """Wait for the outcome of every command that is in its log now."""

    async def confirm(self) -> bool:
        """Whether a majority says that this node leads now."""


class HeldCoordinators(Protocol):
    """The coordinators of transactions on this node, by Raft group."""

    def transaction_replicas(self) -> Iterable[tuple[int, HeldReplica]]: ...


class DecisionHold:
    """The hold of one node. Everything belongs on `loop`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._token = 0
        """Of the hold that lasts, or of none: 0."""
        self._timer: asyncio.TimerHandle | None = None
        self._ends_at = 0.0
        """The loop's time at which the hold ends by itself."""
        self._free = asyncio.Event()
        self._free.set()

    def serve(self, calls: MeshCalls, coordinators: HeldCoordinators) -> None:
        """Answer the calls of the node that takes a restore point."""

        async def hold(peer: int, payload: Any) -> list[list[int]]:
            match payload:
                case [int(token), int(milliseconds)] if (
                    token > 0 and 0 < milliseconds <= MAX_HOLD_SECONDS * 1000
                ):
                    await self._short_one_ended(token)
                    self.begin(token, milliseconds / 1000)
                case _:
                    raise CallFailed("that is not a token and milliseconds", unknown=False)
            async with asyncio.timeout(SETTLE_SECONDS):
                await asyncio.gather(*(one.settle() for _, one in coordinators.transaction_replicas()))
            return await _led(coordinators)

        async def release(peer: int, payload: Any) -> list[list[int]]:
            match payload:
                case [int(token)]:
                    async with asyncio.timeout(SETTLE_SECONDS):
                        led = await _led(coordinators)
                    if not self.end(token):
                        raise CallFailed("the hold is over", unknown=False)
                    return led
                case _:
                    raise CallFailed("that is not a token", unknown=False)

        calls.serve(HOLD, hold)
        calls.serve(RELEASE, release)

    @property
    def held(self) -> bool:
        """Whether no decision may be made now."""
        return self._token != 0

    async def passed(self) -> None:
        """Return once decisions may be made; the caller makes its own before it awaits anything else."""
        while self._token:
            await self._free.wait()

    def end(self, token: int) -> bool:
        """End the hold of this token; whether it lasted until now."""
        if token != self._token:
            return False
        self._token = 0
        if self._timer is not None:
            self._timer.cancel()
        self._free.set()
        return True

    def begin(self, token: int, seconds: float) -> None:
        """Hold for this time unless `end` comes first; raises CallFailed while another hold lasts."""
        if self._token and token != self._token:
            raise CallFailed("another restore point is being taken", unknown=False)
        if not self._token:
            self._token = token
            self._free.clear()
            self._ends_at = self._loop.time() + seconds
            self._timer = self._loop.call_later(seconds, self.end, token)

    async def _short_one_ended(self, token: int) -> None:
        """Wait for the end of another hold that ends soon."""
        while self._token not in (0, token) and self._ends_at - self._loop.time() <= SHORT_HOLD_SECONDS:
            await self._free.wait()


async def _led(coordinators: HeldCoordinators) -> list[list[int]]:
    """Group and term of the coordinators that this node leads, as a majority of each confirms: another node
    may have been elected meanwhile, and have decided."""
    replicas = [(group, one.term, one) for group, one in coordinators.transaction_replicas() if one.term]
    leads = await asyncio.gather(*(one.confirm() for _, _, one in replicas))
    return [
        [group, term]
        for (group, term, one), yes in zip(replicas, leads, strict=True)
        if yes and one.term == term
    ]
