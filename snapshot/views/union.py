"""Union: the rows of all inputs, with their weights (UNION ALL)."""

from __future__ import annotations

from strandline.snapshot.views.operator import (
    EMPTY,
    Operator,
    State,
    StateManifest,
    StatePlan,
    manifest,
    no_state,
)
from strandline.snapshot.views.run import HashRange
from strandline.snapshot.views.zset import ZSet, concatenated


class Union(Operator):
    """Linear and without state."""

    def __init__(self, name: str) -> None:
        super().__init__(name, EMPTY)

    def step(self, deltas: tuple[ZSet, ...]) -> tuple[ZSet, State]:
        """Put the deltas together."""
        return concatenated(deltas), EMPTY

    def state(self) -> StateManifest:
        """Give the empty state."""
        return manifest(EMPTY)

    def load(self, manifest: StateManifest) -> None:
        """Take over the empty state."""
        self.install(no_state(self, manifest))

    def contents(self, inputs: tuple[ZSet, ...], hash_range: HashRange) -> ZSet:
        """Put the inputs' parts together: over all ranges each row is there once."""
        return concatenated(inputs)

    def state_plan(self) -> StatePlan:
        """Nothing is kept."""
        return StatePlan(None)
