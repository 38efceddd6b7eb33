"""The names a node gave to level-one objects, as long as it is open whether a partition will name them.

An object that no state names may be an orphan, or one whose upload or whose command is still under way. Only
the leader that made it can tell, so it remembers; later leaders know by the term in the name.
"""

from __future__ import annotations

import random
from collections.abc import Callable


class PendingObjects:
    """Unique bytes of objects, from before their uploads begin until their fate is definite."""

    def __init__(self, rng: random.Random) -> None:
        """`rng` must have its own seed in every process: names are unique by 80 of its bits and a counter."""
        self._boot = rng.getrandbits(80).to_bytes(10, "big")
        self._made = 0
        self._open: dict[bytes, tuple[int, int]] = {}

    def __contains__(self, unique: object) -> bool:
        return unique in self._open

    def __len__(self) -> int:
        return len(self._open)

    def new(self, group: int, term: int) -> bytes:
        """16 bytes for an object that this node, leading the group in this term, is about to make."""
        self._made += 1
        unique = self._boot + self._made.to_bytes(6, "big")
        self._open[unique] = (group, term)
        return unique

    def settle(self, unique: bytes) -> None:
        """The group's state names it, did so, or never will."""
        self._open.pop(unique, None)

    def prune(self, leads: Callable[[int, int], bool]) -> None:
        """Forget those of terms that have ended: their fate is the next leader's to find out."""
        self._open = {unique: of for unique, of in self._open.items() if leads(*of)}
