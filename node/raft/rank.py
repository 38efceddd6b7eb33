"""Order of the groups on an overloaded node."""

from __future__ import annotations

from enum import IntEnum


class Rank(IntEnum):
    """The lower one's timers, work and elections come first."""

    CONTROLLER = 0
    COORDINATOR = 1
    PARTITION = 2
