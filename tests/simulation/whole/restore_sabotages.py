"""Rules of a restored cluster taken out again: what sabotages.py opens, by name.

Nothing here is ever imported by the product.
"""

from __future__ import annotations

from typing import Final
from unittest.mock import patch

from strandline.node.broker import hosted_replicas
from strandline.node.controller import folder_keeper
from strandline.node.level_one.sweeper import Sweeping
from strandline.node.objectstore import storage_owner
from strandline.node.objectstore.storage_owner import Owner
from strandline.node.raft.data_folder import Folder, Standing
from strandline.node.restore import restored_states
from strandline.statemachine.controller import restored_controller
from strandline.statemachine.controller.controller_state import ControllerState
from tests.simulation.sabotage import Sabotage


def _any_owner(found: Owner, cluster: str, incarnation: str) -> None:
    """As check_owner, but the storage may be of another incarnation."""


def _lets_anything_in(self: Folder, peer: int, claim: Standing) -> str | None:
    return None


def _at_once(self: Sweeping, newest: int, now: float, grace_seconds: float) -> int:
    """As Sweeping.past_grace, without any."""
    return newest


def _from_the_start(state: ControllerState, steps: int) -> int:
    """As first_producer_id, but the count begins again."""
    return 0


RESTORES: Final = (
    Sabotage(
        "old-incarnation-let-in",
        "neither the storage's owner nor a folder's incarnation is looked at",
        lambda: (
            patch.object(folder_keeper, "check_owner", _any_owner),
            patch.object(storage_owner, "check_owner", _any_owner),
            patch.object(Folder, "reason_to_refuse", _lets_anything_in),
            patch.object(Folder, "is_foreign", lambda self, claim: False),
        ),
    ),
    Sabotage(
        "restored-terms-again",
        "a restored group goes on in its point's term",
        lambda: (patch.object(restored_states, "TERMS", 0),),
    ),
    Sabotage(
        "added-terms-again",
        "a partition that is added again after a restore begins at term 1",
        lambda: (patch.object(hosted_replicas, "earlier_terms", lambda group: 0),),
    ),
    Sabotage(
        "restored-epochs-again",
        "a restored cluster goes on at its point's cluster epoch",
        lambda: (patch.object(restored_controller, "EPOCHS", 0),),
    ),
    Sabotage(
        "restored-ids-too-low",
        "a restored cluster counts producer ids from the start",
        lambda: (patch.object(restored_controller, "first_producer_id", _from_the_start),),
    ),
    Sabotage(
        "point-objects-collected",
        "removed level-one objects go at once, whatever tail point names them",
        lambda: (patch.object(Sweeping, "past_grace", _at_once),),
    ),
)
