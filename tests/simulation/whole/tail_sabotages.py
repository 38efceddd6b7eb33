"""Rules of tails taken out again: what sabotages.py opens, by name.

Nothing here is ever imported by the product.
"""

from __future__ import annotations

from typing import Final
from unittest.mock import patch

from strandline.node.checkpoints.recorder import CheckpointRecorder
from tests.simulation.sabotage import Sabotage


def _goes_on(self: CheckpointRecorder) -> None:
    """As CheckpointRecorder.close_tail, but what is not known is passed over."""


TAILS: Final = (
    Sabotage(
        "tails-never-closed",
        "a tail goes on over entries that it does not have",
        lambda: (patch.object(CheckpointRecorder, "close_tail", _goes_on),),
    ),
)
