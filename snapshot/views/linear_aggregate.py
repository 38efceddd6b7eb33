"""LinearAggregate: COUNT, SUM, AVG, MIN and MAX by group, kept up to date from the changes alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from strandline.snapshot.views import exact, hashing
from strandline.snapshot.views.accumulators import Accumulators, Stream, Totals
from strandline.snapshot.views.errors import ViewInvariant
from strandline.snapshot.views.group_values import GroupValues
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
    Weights,
    ZSet,
    check_weights,
    chosen,
    concatenated,
    equal_rows,
    filtered,
    frame,
    gathered,
)
from strandline.statemachine.views.aggregates import Aggregate


class LinearAggregate(Operator):
    """A group has a row while records of it are there; without aggregates it is DISTINCT.

    The first spine has each group's sums. The second, where it is needed, has the bins of sums of DOUBLE:
    rows of group, column and bin. Then come those of values (`group_values.py`): a spine for each column of
    a DISTINCT aggregate, and one for each column of MIN and MAX. The digest is over groups with their exact
    accumulators, and over the values.
    """

    def __init__(self, name: str, schema: Schema, keys: Positions, aggregates: Sequence[Aggregate]) -> None:
        self._keys = keys
        self._accumulators = Accumulators(aggregates)
        key_schema = tuple(schema[position] for position in keys)
        own = tuple(range(len(keys)))
        groups = Layout(key_schema, own, self._accumulators.sums, self._accumulators.wide)
        bins = Layout((*key_schema, pl.Int32(), pl.Int32()), own, 2, (0,))
        columns = dict.fromkeys(each.column for each in self._accumulators.extremes)
        self._distinct = tuple(
            GroupValues.of(key_schema, column, schema[column], ordered=False)
            for column in self._accumulators.distinct
        )
        self._ordered = tuple(
            GroupValues.of(key_schema, column, schema[column], ordered=True) for column in columns
        )
        spines = [Spine(groups)]
        if self._accumulators.doubles:
            spines.append(Spine(bins))
        spines += [Spine(each.layout) for each in (*self._distinct, *self._ordered)]
        super().__init__(name, State(tuple(spines)))

    def step(self, deltas: tuple[ZSet, ...]) -> tuple[ZSet, State]:
        """Give the old and the new row of each group that changes."""
        (delta,) = deltas
        check_weights(delta)
        keys = chosen(delta.rows, self._keys)
        groups, bins, values = self._parts(self.current)
        changes = [each.change(delta, keys) for each in (*self._distinct, *self._ordered)]
        columns = {column: delta.rows.to_series(column) for column in self._accumulators.plain}
        streams = [Stream(keys, columns, delta.weights, rows=True)]
        streams += [
            each.appeared(spine, run)
            for each, spine, run in zip(self._distinct, values, changes, strict=False)
        ]
        change = self._group_changes(groups.layout, streams)
        touched, before, after = change, {}, {}
        added = change.sums
        spines = [groups.with_run(change)]
        if bins is not None or self._ordered:
            # The counts of a group may come out even while its sums and its values change.
            touched = run_of(
                Layout(groups.layout.schema, groups.layout.key), keys, (np.ones(len(delta), np.int64),)
            )
            added = Spine(groups.layout, (change,)).sums_of(touched.hashes, touched.rows)
        if bins is not None:
            parts = self._bins(bins.layout, streams)
            before = self._totals(bins, touched)
            more = self._totals(Spine(bins.layout, (parts,)), touched)
            after = {
                column: [old + new for old, new in zip(before[column], more[column], strict=True)]
                for column in before
            }
            spines.append(bins.with_run(parts))
        values_after = [spine.with_run(run) for spine, run in zip(values, changes, strict=True)]
        old = groups.sums_of(touched.hashes, touched.rows)
        new = exact.carried(
            tuple(one + other for one, other in zip(old, added, strict=True)), groups.layout.wide
        )
        if len(new[0]) and int(new[0].min()) < 0:
            raise ViewInvariant(f"{self.name}: a row was retracted more often than it was added")
        was = self._rows(touched, old, before, values) if old[0].any() else None
        now = self._rows(touched, new, after, values_after)
        digest = self._digest(touched.rows, new, after) - self._digest(touched.rows, old, before)
        digest += sum(
            each.digest(run) for each, run in zip((*self._distinct, *self._ordered), changes, strict=True)
        )
        state = State((*spines, *values_after), (self.current.digest + digest) % hashing.DIGEST_MODULUS)
        return _difference(was, old[0] > 0, now, new[0] > 0), state

    def _parts(self, state: State) -> tuple[Spine, Spine | None, tuple[Spine, ...]]:
        """The spines of groups, of bins and of values."""
        groups, *others = state.spines
        if self._accumulators.doubles:
            return groups, others[0], tuple(others[1:])
        return groups, None, tuple(others)

    def _group_changes(self, layout: Layout, streams: Sequence[Stream]) -> Run:
        sums = [self._accumulators.contributions(stream) for stream in streams]
        if len(streams) == 1:
            return run_of(layout, streams[0].keys, sums[0])
        keys = pl.concat([stream.keys for stream in streams], rechunk=True)
        return run_of(layout, keys, tuple(map(np.concatenate, zip(*sums, strict=True))))

    def _bins(self, layout: Layout, streams: Sequence[Stream]) -> Run:
        rows: list[pl.DataFrame] = []
        high: list[Weights] = []
        low: list[Weights] = []
        for column in self._accumulators.doubles:
            (stream,) = (each for each in streams if column in each.columns)
            # What is null is NaN in numpy's array, and has no bins either.
            values = stream.columns[column].to_numpy()
            spread = exact.bins(np.where(np.isfinite(values), values, 0.0))
            place = pl.Series(np.full(len(spread.bin), column, np.int32))
            of_group = stream.keys[spread.place.astype(np.uint32)].get_columns()
            rows.append(frame([*of_group, place, pl.Series(spread.bin.astype(np.int32))]))
            parts = exact.split(spread.part, stream.weights[spread.place])
            high.append(parts[0])
            low.append(parts[1])
        return run_of(layout, pl.concat(rows, rechunk=True), (np.concatenate(high), np.concatenate(low)))

    def _totals(self, bins: Spine, groups: Run) -> Totals:
        totals = {column: [0] * len(groups) for column in self._accumulators.doubles}
        for mine, run, its in bins.found(groups.hashes, groups.rows):
            *_, columns, numbers = run.rows[its.astype(np.uint32)].get_columns()
            sums = exact.totals(run.sums[0][its], run.sums[1][its])
            for group, column, bin_, number in zip(
                mine.tolist(), columns.to_list(), numbers.to_list(), sums, strict=True
            ):
                totals[column][group] += exact.scaled(bin_, number)
        return totals

    def _rows(
        self, groups: Run, sums: tuple[Weights, ...], totals: Totals, values: Sequence[Spine]
    ) -> pl.DataFrame:
        """The output row of each group, also of those without records: these rows mean nothing."""
        spines = values[len(self._distinct) :]
        extremes = {
            extreme: each.extreme(spine, groups, extreme)
            for each, spine in zip(self._ordered, spines, strict=True)
            for extreme in self._accumulators.extremes
            if extreme.column == each.column
        }
        return frame([*groups.rows.get_columns(), *self._accumulators.results(sums, totals, extremes)])

    def _digest(self, keys: pl.DataFrame, sums: tuple[Weights, ...], totals: Totals) -> int:
        there = np.flatnonzero(sums[0] > 0)
        if len(there) < len(sums[0]):
            keys, sums = gathered(keys, there), tuple(each[there] for each in sums)
            totals = {column: [each[at] for at in there.tolist()] for column, each in totals.items()}
        if not len(there):
            return 0
        doubles = [pl.Series([hex(total) for total in each], dtype=pl.String) for each in totals.values()]
        exact_rows = frame([*keys.get_columns(), *map(pl.Series, sums), *doubles])
        return hashing.digest(hashing.row_hashes(exact_rows), np.ones(len(there), np.int64))

    def state(self) -> StateManifest:
        """Give groups, bins, values and the digest."""
        return manifest(self.current)

    def load(self, manifest: StateManifest) -> None:
        """Take over groups, bins and values; raises ViewInvariant for those of another layout."""
        self.install(restored(self, manifest, self.current.spines)[0])

    def contents(self, inputs: tuple[ZSet, ...], hash_range: HashRange) -> ZSet:
        """Give the rows of a range of groups; raises ViewInvariant for a group of less than no rows."""
        groups, bins, values = self._parts(self.current)
        run = groups.consolidated(hash_range)
        if len(run) and int(run.sums[0].min()) <= 0:
            raise ViewInvariant(f"{self.name}: a group is left without rows")
        totals = self._totals(bins, run) if bins is not None else {}
        return ZSet(self._rows(run, run.sums, totals, values), np.ones(len(run), np.int64))

    def state_plan(self) -> StatePlan:
        """Tell the group columns."""
        return StatePlan((self._keys,))


def _difference(
    was: pl.DataFrame | None, had: np.ndarray[tuple[int], np.dtype[np.bool_]],
    now: pl.DataFrame, has: np.ndarray[tuple[int], np.dtype[np.bool_]],
) -> ZSet:  # fmt: skip
    if was is None:
        return filtered(ZSet(now, np.ones(len(has), np.int64)), has)
    both = np.flatnonzero(had & has)
    same = both[equal_rows(was, both, now, both)]
    had, has = had.copy(), has.copy()
    had[same] = has[same] = False
    every = np.ones(len(had), np.int64)
    return concatenated([filtered(ZSet(was, -every), had), filtered(ZSet(now, every), has)])
