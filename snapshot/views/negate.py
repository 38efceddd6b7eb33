"""Negate: the rows of its input with their weights turned round; a union with it takes them away."""

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
from strandline.snapshot.views.zset import ZSet


class Negate(Operator):
    """Linear and without state."""

    def __init__(self, name: str) -> None:
        super().__init__(name, EMPTY)

    def step(self, deltas: tuple[ZSet, ...]) -> tuple[ZSet, State]:
        """Turn the delta round."""
        return _negated(deltas[0]), EMPTY

    def state(self) -> StateManifest:
        """Give the empty state."""
        return manifest(EMPTY)

    def load(self, manifest: StateManifest) -> None:
        """Take over the empty state."""
        self.install(no_state(self, manifest))

    def contents(self, inputs: tuple[ZSet, ...], hash_range: HashRange) -> ZSet:
        """Turn the input's part round."""
        return _negated(inputs[0])

    def state_plan(self) -> StatePlan:
        """Nothing is kept."""
        return StatePlan(None)


def _negated(delta: ZSet) -> ZSet:
    return ZSet(delta.rows, -delta.weights)
