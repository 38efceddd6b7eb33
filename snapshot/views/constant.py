"""Constant: a row that is there whatever the records are."""

from __future__ import annotations

import numpy as np
import polars as pl

from strandline.snapshot.views import hashing
from strandline.snapshot.views.operator import (
    Operator,
    State,
    StateManifest,
    StatePlan,
    manifest,
    restored,
)
from strandline.snapshot.views.run import HashRange, Layout, run_of
from strandline.snapshot.views.spine import Spine, contents
from strandline.snapshot.views.zset import ZSet, empty


class Constant(Operator):
    """Gives its row in the first step, and keeps it: a state that has it has been given it."""

    def __init__(self, name: str, row: pl.DataFrame) -> None:
        schema = tuple(row.dtypes)
        self._layout = Layout(schema, tuple(range(len(schema))))
        self._run = run_of(self._layout, row, (np.ones(row.height, np.int64),))
        super().__init__(name, State((Spine(self._layout),)))

    def step(self, deltas: tuple[ZSet, ...]) -> tuple[ZSet, State]:
        """Give the row once."""
        (spine,) = self.current.spines
        if len(spine):
            return empty(self._layout.schema), self.current
        digest = hashing.digest(self._run.row_hashes(), self._run.sums[0])
        return ZSet(self._run.rows, self._run.sums[0]), State((spine.with_run(self._run),), digest)

    def state(self) -> StateManifest:
        """Give the row and its digest."""
        return manifest(self.current)

    def load(self, manifest: StateManifest) -> None:
        """Take over the row; raises ViewInvariant for one of another layout."""
        self.install(restored(self, manifest, (Spine(self._layout),))[0])

    def contents(self, inputs: tuple[ZSet, ...], hash_range: HashRange) -> ZSet:
        """Give the row, if its hash is in the range."""
        run = contents(self.current.spines[0], hash_range)
        return ZSet(run.rows, run.sums[0])

    def state_plan(self) -> StatePlan:
        """It has no input; the row is all of its state."""
        return StatePlan(())
