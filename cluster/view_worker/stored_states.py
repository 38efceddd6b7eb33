"""The states that a version has stored: the newest two stay, what no state needs is deleted."""

from __future__ import annotations

from collections.abc import Mapping

from strandline.cluster.view_worker.fetched import Cut
from strandline.cluster.view_worker.state_objects import StateObjects
from strandline.snapshot.views.operator import StateManifest


class StoredStates:
    """Calls raise StoreError."""

    def __init__(self, objects: StateObjects, program: int, attempt: int) -> None:
        self._objects = objects
        self._program, self._attempt = program, attempt
        self._needed: list[frozenset[str]] = []
        """Objects of the newest states, oldest first."""
        self._leftovers: frozenset[str] = frozenset()
        self._looked = False

    def load(self, name: str) -> tuple[dict[str, StateManifest], Cut]:
        """Read a state, which counts as the newest; raises StateDamaged."""
        states, cut, needed = self._objects.load(name)
        self._needed.append(needed)
        return states, cut

    def save(self, states: Mapping[str, StateManifest], cut: Cut, other: int) -> str:
        """Store a state and give its name; the caller is to commit it, and then to call `remove_older`.

        The first call looks for what earlier processes and ended attempts have left, but for the attempt
        `other`, which runs. What later processes write is not among it where the commit succeeds.
        """
        name, needed = self._objects.save(states, cut)
        self._needed.append(needed)
        if not self._looked:
            self._looked = True
            known = frozenset[str]().union(*self._needed)
            self._leftovers = self._objects.leftovers(self._program, self._attempt, known, other)
        return name

    def look_again(self) -> None:
        """Have the next `save` look for leftovers once more."""
        self._looked = False

    def remove_older(self) -> None:
        """Delete what none of the newest two states needs, and leftovers.

        Only after a commit that has shown that this process was not shut out.
        """
        self._objects.delete(self._leftovers)
        self._leftovers = frozenset()
        while len(self._needed) > 2:
            self._objects.delete(self._needed.pop(0) - self._needed[-2] - self._needed[-1])
