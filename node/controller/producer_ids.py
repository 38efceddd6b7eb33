"""Producer ids to hand out, taken from the controller in blocks so that a client seldom waits for it.

A block belongs to the process that got it, in memory alone: the ids that are left when the process ends are
never used. The next block is fetched when half of the present one is gone.
"""

from __future__ import annotations

import asyncio
from typing import Final

from strandline.node.controller.client import ControllerClient, Unavailable
from strandline.statemachine.controller.controller_commands import AllocateProducerIds, ProducerIdBlock
from strandline.statemachine.kafka_errors import Refused

BLOCK: Final = 1000
"""Kafka's ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE."""
FETCH_SECONDS: Final = 10.0


class ProducerIds:
    """Unique producer ids, one at a time."""

    def __init__(
        self, controller: ControllerClient, node_id: int, *, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._controller = controller
        self._node_id = node_id
        self._loop = loop
        self._next = 0
        self._end = 0
        self._following: ProducerIdBlock | None = None
        self._fetching: asyncio.Task[Unavailable | None] | None = None

    async def next(self) -> int | Unavailable:
        """An id never given out before, by any node; waits for a block up to 10 s."""
        while self._next == self._end:
            if self._following is not None:
                self._next, size = self._following
                self._end = self._next + size
                self._following = None
                break
            # Shielded: a client that goes away must not cancel the block that other requests wait for.
            failed = await asyncio.shield(self._fetch())
            if failed is not None:
                return failed
        number = self._next
        self._next += 1
        if self._following is None and self._end - self._next < BLOCK // 2:
            self._fetch()
        return number

    def close(self) -> None:
        """Stop fetching."""
        if self._fetching is not None:
            self._fetching.cancel()

    def _fetch(self) -> asyncio.Task[Unavailable | None]:
        if self._fetching is None:
            self._fetching = self._loop.create_task(self._allocate())
            self._fetching.add_done_callback(self._fetched)
        return self._fetching

    def _fetched(self, _: asyncio.Task[Unavailable | None]) -> None:
        self._fetching = None

    async def _allocate(self) -> Unavailable | None:
        result = await self._controller.submit(AllocateProducerIds(self._node_id, BLOCK), FETCH_SECONDS)
        if isinstance(result, ProducerIdBlock):
            self._following = result
            return None
        if isinstance(result, Refused):
            return Unavailable(result.message, unknown=False)
        assert isinstance(result, Unavailable)
        return result
