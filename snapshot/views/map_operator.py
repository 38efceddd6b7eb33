"""Map: a condition that chooses rows, and the columns made of those it leaves."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.snapshot.views.evaluate import evaluate
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
from strandline.snapshot.views.zset import ZSet, canonical, filtered, frame
from strandline.statemachine.views.expressions import Expression


class Map(Operator):
    """Linear and without state: what it does to a delta it does to a whole."""

    def __init__(self, name: str, condition: Expression | None, columns: Sequence[Expression]) -> None:
        super().__init__(name, EMPTY)
        self._condition = condition
        self._columns = tuple(columns)

    def step(self, deltas: tuple[ZSet, ...]) -> tuple[ZSet, State]:
        """Apply to each row; raises ViewStopped for a row without an answer."""
        return self._applied(deltas[0]), EMPTY

    def state(self) -> StateManifest:
        """Give the empty state."""
        return manifest(EMPTY)

    def load(self, manifest: StateManifest) -> None:
        """Take over the empty state."""
        self.install(no_state(self, manifest))

    def contents(self, inputs: tuple[ZSet, ...], hash_range: HashRange) -> ZSet:
        """Apply to each row."""
        return self._applied(inputs[0])

    def state_plan(self) -> StatePlan:
        """Nothing is kept."""
        return StatePlan(None)

    def _applied(self, delta: ZSet) -> ZSet:
        if self._condition is not None:
            kept = evaluate(self._condition, delta.rows)
            kept = kept.fill_null(False) if kept.null_count() else kept
            delta = filtered(delta, kept.to_numpy())
        rows = frame([evaluate(column, delta.rows) for column in self._columns])
        return canonical(ZSet(rows, delta.weights))
