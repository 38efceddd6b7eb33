"""Arrange: the integral of a stream, by a key; what joins probe."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.snapshot.views import hashing
from strandline.snapshot.views.operator import (
    Operator,
    State,
    StateManifest,
    StatePlan,
    manifest,
    restored,
)
from strandline.snapshot.views.run import HashRange, Layout, Run, run_of
from strandline.snapshot.views.spine import Spine, contents
from strandline.snapshot.views.zset import Positions, Schema, ZSet, check_weights


@dataclass(frozen=True, slots=True)
class Arranged(ZSet):
    """A consolidated delta, as a run, with the integral before and after it."""

    run: Run
    before: Spine
    after: Spine


class Arrange(Operator):
    """Keeps all rows of its input. The digest is that of the integral."""

    def __init__(self, name: str, schema: Schema, key: Positions) -> None:
        self._layout = Layout(schema, key)
        super().__init__(name, State((Spine(self._layout),)))

    def step(self, deltas: tuple[ZSet, ...]) -> tuple[ZSet, State]:
        """Consolidate the delta and add it; raises ViewLimit for one of too much weight."""
        (delta,) = deltas
        check_weights(delta)
        run = run_of(self._layout, delta.rows, (delta.weights,))
        before = self.current.spines[0]
        after = before.with_run(run)
        change = hashing.digest(run.row_hashes(), run.sums[0])
        digest = (self.current.digest + change) % hashing.DIGEST_MODULUS
        return Arranged(run.rows, run.sums[0], run, before, after), State((after,), digest)

    def state(self) -> StateManifest:
        """Give the rows and their digest."""
        return manifest(self.current)

    def load(self, manifest: StateManifest) -> None:
        """Take over rows; raises ViewInvariant for those of another layout."""
        self.install(restored(self, manifest, (Spine(self._layout),))[0])

    def contents(self, inputs: tuple[ZSet, ...], hash_range: HashRange) -> ZSet:
        """Give the rows of a range of keys, arranged, as a delta from nothing."""
        run = contents(self.current.spines[0], hash_range)
        nothing = Spine(self._layout)
        return Arranged(run.rows, run.sums[0], run, nothing, nothing.with_run(run))

    def state_plan(self) -> StatePlan:
        """Tell the key; the rows are the state."""
        return StatePlan((self._layout.key,))
