"""Long work on the event loop, cut into slices so that other callbacks run between them."""

from __future__ import annotations

import asyncio
import time
from typing import Final

SLICE_SECONDS: Final = 0.003


class Slices:
    """Interruption points of a long loop; the node may change at each of them."""

    def __init__(self) -> None:
        self._since = time.perf_counter()

    async def breathe(self) -> None:
        """Let the loop run what waits, if this slice is over."""
        if time.perf_counter() - self._since >= SLICE_SECONDS:
            await asyncio.sleep(0)
            self._since = time.perf_counter()
