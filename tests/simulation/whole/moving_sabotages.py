"""Rules of moving partitions taken out again: what sabotages.py opens, by name.

Nothing here is ever imported by the product.
"""

from __future__ import annotations

from typing import Final
from unittest.mock import patch

from strandline.node.controller import replica_moves
from strandline.node.raft.group import RaftGroup
from strandline.statemachine.controller.controller_state import Move
from tests.simulation.sabotage import Sabotage


def _is_there_at_once(group: RaftGroup, move: Move) -> bool:
    """As _arrived, but the members do not matter."""
    return True


def _is_there_when_added(group: RaftGroup, move: Move) -> bool:
    """As _arrived, but those that shall go may still be members."""
    return set(move.target) <= set(group.voters)


MOVING: Final = (
    Sabotage(
        "moved-at-once",
        "a move is reported before the group has the target's members",
        lambda: (patch.object(replica_moves, "_arrived", _is_there_at_once),),
    ),
    Sabotage(
        "moved-when-added",
        "a move is reported while nodes that shall go are members",
        lambda: (patch.object(replica_moves, "_arrived", _is_there_when_added),),
    ),
)
