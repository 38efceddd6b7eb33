"""What meets nodes that join and leave in one run: the part of a plan that tells it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Upheaval:
    """What goes on while nodes join and leave, beside folders that are wiped and replicas that move."""

    replaces_disks: bool
    """Whether the controller lets empty folders in without an operator (`cluster.replace_lost_disks`)."""
    balancing: bool
    """Whether the background balancer is on."""
    returns: Literal["never", "as it was", "empty"]
    """How the node that was removed comes back: with its folder, or as a machine that joins by its id."""
    late: bool
    """Whether it comes back after minutes, if `away_seconds` is not 0."""
    away_seconds: float
    """The time for which the last joiner is away amid its joining; 0: it is not."""


def drawn(rng: random.Random) -> Upheaval:
    """One upheaval."""
    return Upheaval(
        replaces_disks=rng.random() < 0.5,
        balancing=rng.random() < 0.6,
        returns=rng.choice(("never", "as it was", "as it was", "empty", "empty")),
        late=rng.random() < 0.5,
        away_seconds=rng.choice((0.0, 0.0, 0.0, 30.0, 60.0, 150.0)),
    )
