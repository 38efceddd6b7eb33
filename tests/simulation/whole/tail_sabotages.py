"""Rules of tails and tail points taken out again: what the lists of sabotages open, by name.

Nothing here is ever imported by the product.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final
from unittest.mock import patch

from strandline.node.checkpoints import tail_publishing
from strandline.node.checkpoints.recorder import CheckpointRecorder
from strandline.node.checkpoints.tail_points import TailPoints
from strandline.node.checkpoints.tail_publishing import STORED
from strandline.node.checkpoints.tail_sections import PHASES
from strandline.node.coordinator.decision_hold import DecisionHold
from tests.simulation.sabotage import Sabotage


def _goes_on(self: CheckpointRecorder) -> None:
    """As CheckpointRecorder.close_tail, but what is not known is passed over."""


async def _passes(self: DecisionHold) -> None:
    """As DecisionHold.passed, but nothing is held."""


_each = TailPoints._each


async def _waits_for_no_upload(
    self: TailPoints, nodes: Any, method: str, payload: Any, seconds: float = 1.0
) -> list[Any]:
    """As TailPoints._each, but the tails may be on their way."""
    if payload and payload[1] == STORED:
        return [[0] for _ in nodes]
    return await _each(self, nodes, method, payload, seconds)


async def _dwells(self: TailPoints, nodes: Any, method: str, payload: Any, seconds: float = 1.0) -> list[Any]:
    """As TailPoints._each, with time before each step: what may happen between two of them does. That alone
    breaks nothing."""
    if payload:
        await asyncio.sleep(DWELL_SECONDS)
    return await _each(self, nodes, method, payload, seconds)


DWELL_SECONDS: Final = 0.15
TAILS: Final = (
    Sabotage(
        "tails-never-closed",
        "a tail goes on over entries that it does not have",
        lambda: (patch.object(CheckpointRecorder, "close_tail", _goes_on),),
    ),
)
POINTS: Final = (
    Sabotage(
        "points-without-a-hold",
        "transactions are decided while a tail point's entries are chosen",
        lambda: (
            patch.object(TailPoints, "_each", _dwells),
            patch.object(DecisionHold, "passed", _passes),
            patch.object(DecisionHold, "held", property(lambda self: False)),
        ),
    ),
    Sabotage(
        "points-backwards",
        "a tail point has partitions before groups, and coordinators of transactions before partitions",
        lambda: (
            patch.object(TailPoints, "_each", _dwells),
            patch.object(tail_publishing, "PHASES", PHASES[::-1]),
        ),
    ),
    Sabotage(
        "points-before-tails",
        "a tail point is put while the tails that lead to it are on their way",
        lambda: (patch.object(TailPoints, "_each", _waits_for_no_upload),),
    ),
)
