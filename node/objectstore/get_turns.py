"""Turns of gets: what a reader waits for has one at once, however much is read ahead for others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class GetTurns:
    """The gets under way of one reader of the object store. Belongs to one event loop."""

    def __init__(self, most: int) -> None:
        """`most` gets at a time may be ahead of their readers, at least 1; of all, a quarter more."""
        self._all = asyncio.Semaphore(most + max(most // 4, 1))
        self._ahead = asyncio.Semaphore(most)

    @asynccontextmanager
    async def one(self, *, ahead: bool) -> AsyncIterator[None]:
        """For one get, `ahead` if no reader had asked for it when it was begun."""
        if not ahead:
            async with self._all:
                yield
            return
        async with self._ahead, self._all:
            yield
