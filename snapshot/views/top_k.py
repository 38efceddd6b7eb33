"""TopK: the first rows of each group, kept up to date from the changes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from strandline.snapshot.views import hashing
from strandline.snapshot.views.leading import Leading, Order, leading
from strandline.snapshot.views.operator import (
    Operator,
    State,
    StateManifest,
    StatePlan,
    manifest,
    restored,
)
from strandline.snapshot.views.run import HashRange, Layout, Run, run_of
from strandline.snapshot.views.spine import Spine
from strandline.snapshot.views.zset import (
    Positions,
    Schema,
    ZSet,
    check_weights,
    chosen,
    concatenated,
    frame,
)


class TopK(Operator):
    """Keeps all rows of its input, the rows of a group in their order. The digest is that of the integral.

    With `ranked` a row is told with its place in its group, from 1; equal rows have places of their own.
    """

    def __init__(
        self, name: str, schema: Schema, keys: Positions, orders: Sequence[Order], limit: int, *, ranked: bool
    ) -> None:
        self._layout = Layout(schema, keys, order=orders[0].column)
        self._groups = Layout(tuple(schema[position] for position in keys), tuple(range(len(keys))))
        self._orders = tuple(orders)
        self._limit = limit
        self._ranked = ranked
        super().__init__(name, State((Spine(self._layout),)))

    def step(self, deltas: tuple[ZSet, ...]) -> tuple[ZSet, State]:
        """Give what leaves the first rows of each group that changes, and what comes in."""
        (delta,) = deltas
        check_weights(delta)
        run = run_of(self._layout, delta.rows, (delta.weights,))
        before = self.current.spines[0]
        after = before.with_run(run)
        groups = self._groups_of(run)
        was, now = self._first(before, groups), self._first(after, groups)
        both = concatenated([ZSet(was.rows, -was.weights), now])
        schema = tuple(both.rows.dtypes)
        change = run_of(Layout(schema, tuple(range(len(schema)))), both.rows, (both.weights,))
        digest = hashing.digest(run.row_hashes(), run.sums[0])
        state = State((after,), (self.current.digest + digest) % hashing.DIGEST_MODULUS)
        return ZSet(change.rows, change.sums[0]), state

    def _groups_of(self, rows: Run) -> Run:
        return run_of(self._groups, chosen(rows.rows, self._layout.key), (np.ones(len(rows), np.int64),))

    def _first(self, spine: Spine, groups: Run) -> ZSet:
        first = leading(spine, groups, self._orders, self._limit)
        if not self._ranked:
            return ZSet(first.rows, first.times)
        return _ranked(first)

    def state(self) -> StateManifest:
        """Give the rows and their digest."""
        return manifest(self.current)

    def load(self, manifest: StateManifest) -> None:
        """Take over rows; raises ViewInvariant for those of another layout."""
        self.install(restored(self, manifest, (Spine(self._layout),))[0])

    def contents(self, inputs: tuple[ZSet, ...], hash_range: HashRange) -> ZSet:
        """Give the first rows of a range of groups."""
        spine = self.current.spines[0]
        return self._first(spine, self._groups_of(spine.consolidated(hash_range)))

    def state_plan(self) -> StatePlan:
        """Tell the group's columns."""
        return StatePlan((self._layout.key,))


def _ranked(first: Leading) -> ZSet:
    places = np.repeat(np.arange(len(first.group)), first.times)
    groups = first.group[places]
    # The first place of each group among all places, which are in the order of the groups.
    begins = np.searchsorted(groups, groups, "left")
    ranks = pl.Series((np.arange(len(places)) - begins + 1).astype(np.int32))
    rows = frame([*first.rows[places.astype(np.uint32)].get_columns(), ranks])
    return ZSet(rows, np.ones(len(places), np.int64))
