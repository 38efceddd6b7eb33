"""Rules of views that are taken out on purpose, each with the check that must find it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Final
from unittest import mock

import numpy as np
import polars as pl

from strandline.snapshot.views import accumulators, exact, hashing, join, leading, run, spine, zset
from strandline.snapshot.views.constant import Constant
from strandline.snapshot.views.group_values import GroupValues
from strandline.snapshot.views.linear_aggregate import LinearAggregate
from strandline.snapshot.views.negate import Negate
from strandline.snapshot.views.operator import EMPTY, State, StateManifest, manifest
from strandline.snapshot.views.run import Run
from strandline.snapshot.views.spine import Spine
from strandline.snapshot.views.top_k import TopK
from strandline.snapshot.views.upsert import Upsert
from tests.snapshot.views.checks import Check, check_cuts, check_fork
from tests.snapshot.views.collisions import four_bit_hashes


@dataclass(frozen=True, slots=True)
class Sabotage:
    """One rule, how it is taken out, and the test that must fail then."""

    name: str
    rule: str
    opened: Callable[[], AbstractContextManager[Any]]
    found_by: Check
    circuit: str
    """The circuit of the registry that the check looks at."""


def _state_without_digest(owner: LinearAggregate) -> StateManifest:
    whole = owner.current
    return StateManifest(tuple(spine.runs for spine in whole.spines), manifest(EMPTY).value)


_WITH_RUN: Final = Spine.with_run


def _shared(spine_: Spine, added: Run) -> Spine:
    """The runs are a list, which changes in place."""
    made = _WITH_RUN(spine_, added)
    runs: Any = spine_.runs
    if isinstance(runs, list):
        runs[:] = made.runs
        return spine_
    shared: Any = list(made.runs)
    return Spine(made.layout, shared)


@contextmanager
def _no_comparison() -> Iterator[None]:
    def all_equal(*frames: Any) -> Any:
        return np.ones(len(frames[1]), np.bool_)

    def keys_equal(ours: list[pl.Series], theirs: list[pl.Series]) -> Any:
        there = [~one.is_null() & ~other.is_null() for one, other in zip(ours, theirs, strict=True)]
        return np.logical_and.reduce([each.to_numpy() for each in there])

    with (
        four_bit_hashes(),
        mock.patch.object(run, "equal_rows", all_equal),
        mock.patch.object(spine, "equal_rows", all_equal),
        mock.patch.object(join, "_equal_keys", keys_equal),
    ):
        yield


def _float_totals(owner: LinearAggregate, bins: Spine, groups: Run) -> accumulators.Totals:
    """Sums as a float accumulator has them: what comes in later is added to a number that was rounded."""
    totals = {column: [0.0] * len(groups) for column in owner._accumulators.doubles}
    for mine, found, its in bins.found(groups.hashes, groups.rows):
        *_, columns, numbers = found.rows[its.astype(np.uint32)].get_columns()
        sums = exact.totals(found.sums[0][its], found.sums[1][its])
        for group, column, bin_, number in zip(
            mine.tolist(), columns.to_list(), numbers.to_list(), sums, strict=True
        ):
            totals[column][group] += exact.rounded(exact.scaled(bin_, number))
    return {column: [_units(number) for number in each] for column, each in totals.items()}


def _units(number: float) -> int:
    whole, parts = number.as_integer_ratio()
    return whole * (1 << (-exact.LOWEST_BIN * exact.BIN_BITS)) // parts


_KNOWN: Final = leading._known


def _known_at_once(*args: Any, **options: Any) -> Any:
    """What the first look at each run shows is taken for all there is."""
    found = _KNOWN(*args, **options)
    return found._replace(complete=np.ones(len(found.complete), np.bool_))


def _hashed(column: pl.Series) -> hashing.Hashes:
    return hashing.row_hashes(zset.frame([column])).high


def _every_value(owner: GroupValues, before: Spine, change: Run) -> accumulators.Stream:
    """Each row's value counts, as often as it is there."""
    *keys, values = change.rows.get_columns()
    return accumulators.Stream(zset.frame(keys), {~owner.column: values}, change.sums[0], rows=False)


_TOP_STEP: Final = TopK.step


def _only_the_new(owner: TopK, deltas: tuple[zset.ZSet, ...]) -> tuple[zset.ZSet, State]:
    change, state = _TOP_STEP(owner, deltas)
    return zset.filtered(change, change.weights > 0), state


SABOTAGES: Final = (
    Sabotage(
        "state-forgets-a-value",
        "S7: state() is complete, also in its small value",
        lambda: mock.patch.object(LinearAggregate, "state", _state_without_digest),
        check_fork,
        "aggregate",
    ),
    Sabotage(
        "fork-shares-a-list",
        "S8: a fork shares nothing that can change",
        lambda: mock.patch.object(Spine, "with_run", _shared),
        check_fork,
        "arrange",
    ),
    Sabotage(
        "hash-is-proof",
        "S10: rows and keys of one hash are compared",
        _no_comparison,
        check_cuts,
        "join",
    ),
    Sabotage(
        "every-change-of-a-key",
        "S11: of several changes of a key in one step the last counts",
        lambda: mock.patch.object(Upsert, "_last_changes", lambda _, log: log),
        check_cuts,
        "upsert",
    ),
    Sabotage(
        "float-accumulator",
        "S12: a sum of DOUBLE is rounded once",
        lambda: mock.patch.object(LinearAggregate, "_totals", _float_totals),
        check_cuts,
        "aggregate",
    ),
    Sabotage(
        "first-look-is-all",
        "MIN and MAX: rows behind the first ones of each run are looked at when those cancel out",
        lambda: mock.patch.multiple(leading, _known=_known_at_once, FIRST_LOOK=0),
        check_cuts,
        "values",
    ),
    Sabotage(
        "every-value-counts",
        "DISTINCT: a value counts when it appears, not each time that it comes",
        lambda: mock.patch.object(GroupValues, "appeared", _every_value),
        check_cuts,
        "values",
    ),
    Sabotage(
        "order-is-a-hash",
        "MIN and MAX: the rows of a group are kept in the order of their values",
        lambda: mock.patch.multiple(
            hashing, order_of=lambda column: hashing.row_hashes(zset.frame([column])).high
        ),
        check_cuts,
        "values",
    ),
    Sabotage(
        "negate-adds",
        "what Negate takes away is gone",
        lambda: mock.patch.object(Negate, "step", lambda _, deltas: (deltas[0], EMPTY)),
        check_cuts,
        "difference",
    ),
    Sabotage(
        "first-without-retractions",
        "TopK: a row that another one drives out is retracted",
        lambda: mock.patch.object(TopK, "step", _only_the_new),
        check_cuts,
        "first",
    ),
    Sabotage(
        "constant-again",
        "a constant's row is there once, also after a restart",
        lambda: mock.patch.object(Constant, "load"),
        check_fork,
        "constant",
    ),
)
