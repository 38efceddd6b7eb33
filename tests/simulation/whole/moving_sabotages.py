"""Rules of moving partitions taken out again: what sabotages.py opens, by name.

Nothing here is ever imported by the product.
"""

from __future__ import annotations

from typing import Final
from unittest.mock import patch

from strandline.node.controller import replica_moves
from strandline.node.controller.departures import Departures
from strandline.node.raft.group import RaftGroup
from strandline.statemachine.controller import replica_moves as moves_in_the_log
from strandline.statemachine.controller.controller_state import ControllerState, Move
from tests.simulation.sabotage import Sabotage


def _is_there_at_once(group: RaftGroup, move: Move) -> bool:
    """As _arrived, but the members do not matter."""
    return True


def _is_there_when_added(group: RaftGroup, move: Move) -> bool:
    """As _arrived, but those that shall go may still be members."""
    return set(move.target) <= set(group.voters)


async def _leaves_unasked(self: Departures) -> None:
    """As Departures._look, but what the local replica of the controller says is enough."""
    machine, node = self._controller.machine, self._host.node_id
    for group_id in list(self._host.groups):
        if machine.moved_away(node, group_id):
            self._leave(group_id)


def _founds_what_moved(state: ControllerState, group: int, node: int) -> bool:
    """As joins, but every node begins the group with the replicas that it has now."""
    return False


def _founders_of_the_target(
    state: ControllerState, group: int, replicas: tuple[int, ...]
) -> tuple[int, ...]:
    """As founders, but a group that moves begins with all its replicas."""
    return replicas


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
    Sabotage(
        "leaves-unasked",
        "a replica goes though its node may be a member again",
        lambda: (patch.object(Departures, "_look", _leaves_unasked),),
    ),
    Sabotage(
        "founds-what-moved",
        "a node that a partition moves to begins the group itself",
        lambda: (
            patch.object(moves_in_the_log, "joins", _founds_what_moved),
            patch.object(moves_in_the_log, "founders", _founders_of_the_target),
        ),
    ),
)
