"""Join: pairs of rows with equal keys, by ΔA ⋈ B + (A + ΔA) ⋈ ΔB. Null equals nothing."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from strandline.snapshot.views.arrange import Arranged
from strandline.snapshot.views.errors import ViewInvariant, ViewLimit
from strandline.snapshot.views.operator import (
    EMPTY,
    Operator,
    State,
    StateManifest,
    StatePlan,
    manifest,
    no_state,
)
from strandline.snapshot.views.run import HashRange, Places, Run, extents, pairs
from strandline.snapshot.views.spine import Spine
from strandline.snapshot.views.zset import (
    Schema,
    Weights,
    ZSet,
    concatenated,
    empty,
    filtered,
    frame,
    gathered,
)

STEP_PAIRS: Final = 1 << 24
"""The pairs that one step may make: about 1 GB of rows.

A key that many rows share on both sides makes many.
"""
_WEIGHT: Final = 1 << 31


class Join(Operator):
    """Inner join of two arrangements by their keys; a row has the left's columns, then the right's.

    The arrangements keep the rows, so the join itself keeps nothing.
    """

    def __init__(self, name: str, left: Schema, right: Schema) -> None:
        super().__init__(name, EMPTY)
        self._schema = (*left, *right)

    def step(self, deltas: tuple[ZSet, ...]) -> tuple[ZSet, State]:
        """Give the change of the pairs; raises ViewLimit when they are too many for one step."""
        left, right = _arranged(deltas)
        return self._put_together([(left.run, right.before, False), (right.run, left.after, True)]), EMPTY

    def state(self) -> StateManifest:
        """Give the empty state."""
        return manifest(EMPTY)

    def load(self, manifest: StateManifest) -> None:
        """Take over the empty state."""
        self.install(no_state(self, manifest))

    def contents(self, inputs: tuple[ZSet, ...], hash_range: HashRange) -> ZSet:
        """Join the arrangements' parts, which have the same keys."""
        left, right = _arranged(inputs)
        return self._put_together([(left.run, right.after, False)])

    def state_plan(self) -> StatePlan:
        """Nothing is kept."""
        return StatePlan(None)

    def _put_together(self, sides: list[tuple[Run, Spine, bool]]) -> ZSet:
        probes: list[_Probe] = []
        for rows, spine, swapped in sides:
            delta = _without_nulls(rows)
            probes += [_Probe(delta, run, swapped, *extents(run, delta.hashes)) for run in spine.runs]
        made = sum(int(probe.counts.sum()) for probe in probes)
        if made > STEP_PAIRS:
            raise ViewLimit(
                f"{self.name} makes {made} pairs in a step, above {STEP_PAIRS}: take smaller steps"
            )
        parts = [_pairs(probe) for probe in probes]
        return concatenated([part for part in parts if len(part)] or [empty(self._schema)])


class _Probe(NamedTuple):
    """A delta against one run. `swapped`: the delta is the right side."""

    delta: Run
    run: Run
    swapped: bool
    starts: Places
    counts: Places


def _arranged(deltas: tuple[ZSet, ...]) -> tuple[Arranged, Arranged]:
    left, right = deltas
    if not isinstance(left, Arranged) or not isinstance(right, Arranged):
        raise ViewInvariant("a join takes arrangements")
    return left, right


def _without_nulls(run: Run) -> Run:
    """The rows that can meet others. An outer join keeps those with a null, too, and they have one hash."""
    keys = [run.rows.to_series(place) for place in run.layout.key]
    missing = [each.is_null().to_numpy() for each in keys if each.null_count()]
    if not missing:
        return run
    kept = np.flatnonzero(~np.logical_or.reduce(missing))
    ties = None if run.ties is None else run.ties[kept]
    sums = tuple(each[kept] for each in run.sums)
    return Run(run.layout, run.hashes[kept], ties, gathered(run.rows, kept), sums)


def _pairs(probe: _Probe) -> ZSet:
    delta, run = probe.delta, probe.run
    mine, its = pairs(probe.starts, probe.counts)
    first, second = mine.astype(np.uint32), its.astype(np.uint32)
    ours = delta.rows[first].get_columns()
    theirs = run.rows[second].get_columns()
    equal = _equal_keys(
        [ours[place] for place in delta.layout.key], [theirs[place] for place in run.layout.key]
    )
    weights = _product(delta.sums[0][mine], run.sums[0][its])
    rows = frame([*theirs, *ours] if probe.swapped else [*ours, *theirs])
    return filtered(ZSet(rows, weights), equal)


def _equal_keys(ours: list[pl.Series], theirs: list[pl.Series]) -> npt.NDArray[np.bool_]:
    """A hash that hits is no proof; and null is equal to nothing."""
    equal = np.ones(len(ours[0]), np.bool_)
    for our_key, their_key in zip(ours, theirs, strict=True):
        same = our_key == their_key
        equal &= (same.fill_null(False) if same.null_count() else same).to_numpy()
    return equal


def _product(left: Weights, right: Weights) -> Weights:
    if max(int(np.abs(left).max(initial=0)), int(np.abs(right).max(initial=0))) >= _WEIGHT:
        raise ViewLimit(f"a row of a join is there {_WEIGHT} times or more")
    return left * right
