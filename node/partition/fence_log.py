"""Logs the work of a node's fences: each slide and each refusal (debug), and now and then the number of
refusals (info)."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from strandline.statemachine.partition.epoch_window import EpochWindow, StaleClusterEpoch

log = logging.getLogger(__name__)

TELL_SECONDS: Final = 10.0
"""Least time between two lines (info) about refusals: a node that lags has one for each of its batches."""


class FenceLog:
    """One for all partitions of a node; belongs to its loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._unlogged = 0
        self._logged_at = float("-inf")

    def slid(self, partition: str, before: EpochWindow, after: EpochWindow) -> None:
        """A leader's window moved up."""
        log.debug("%s: the epoch window slides from %s to %s", partition, _shown(before), _shown(after))

    def refused(self, partition: str, refusal: StaleClusterEpoch) -> None:
        """A request's epoch was below the window; its batch is uploaded once more."""
        what = (refusal.epoch, refusal.gap, refusal.oldest, refusal.newest)
        log.debug("%s: epoch %d is refused, %d below the window [%d, %d]", partition, *what)
        self._unlogged += 1
        now = self._loop.time()
        if now - self._logged_at >= TELL_SECONDS:
            log.info(
                "%d batches since the last such line came below the epoch window and are uploaded again; the "
                "last: %s, epoch %d is %d below the window [%d, %d]",
                self._unlogged, partition, *what,
            )  # fmt: skip
            self._unlogged, self._logged_at = 0, now


def _shown(window: EpochWindow) -> str:
    return "nothing" if window.newest is None else f"[{window.oldest}, {window.newest}]"
