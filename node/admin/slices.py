"""Long work on the event loop, cut into slices so that nobody waits for all of it."""

from __future__ import annotations

import asyncio
import time
from typing import Final

SLICE_SECONDS: Final = 0.003


class Slices:
    """Where a long loop says that it may be interrupted; it sees the node change in between."""

    def __init__(self) -> None:
        self._since = time.perf_counter()

    async def breathe(self) -> None:
        """Let the loop run what waits, if this slice is over."""
        if time.perf_counter() - self._since >= SLICE_SECONDS:
            await asyncio.sleep(0)
            self._since = time.perf_counter()
