"""Z-sets: rows with weights. A delta adds rows with positive weights and retracts them with negative ones.

Columns go by their position, `c0`, `c1`, …: names are the SQL's affair.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from strandline.snapshot.views.errors import ViewInvariant, ViewLimit

Weights = npt.NDArray[np.int64]
Positions = tuple[int, ...]
Schema = tuple[pl.DataType, ...]

STEP_WEIGHT: Final = 1 << 31
"""The bound on the sum of a delta's absolute weights: products with 32-bit limbs then stay within 63 bits."""

FREE_BYTES: Final = 1 << 16
"""Text of other rows that a column may keep, beside as much as its own."""
MOST_BUFFERS: Final = 256
"""Pieces of memory that the text of a column lies in: each merge adds those of both runs."""


@dataclass(frozen=True, slots=True)
class ZSet:
    """Rows in no order that counts, and the weight of each; equal rows may come several times."""

    rows: pl.DataFrame
    weights: Weights

    def __post_init__(self) -> None:
        if self.rows.height != len(self.weights) and self.rows.width:
            raise ViewInvariant(f"{self.rows.height} rows have {len(self.weights)} weights")

    def __len__(self) -> int:
        return len(self.weights)


def frame(columns: Sequence[pl.Series]) -> pl.DataFrame:
    """Put columns of one length together under the names of their positions."""
    return pl.DataFrame([column.alias(f"c{number}") for number, column in enumerate(columns)])


def empty(schema: Schema) -> ZSet:
    """Make the Z-set without rows."""
    return ZSet(frame([pl.Series([], dtype=kind) for kind in schema]), np.empty(0, np.int64))


def zset(schema: Schema, rows: Sequence[Sequence[Any]], weights: Iterable[int] | None = None) -> ZSet:
    """Make a Z-set of Python values, each row of weight 1 unless told otherwise."""
    columns = [
        pl.Series([row[position] for row in rows], dtype=kind, strict=True)
        for position, kind in enumerate(schema)
    ]
    given = np.ones(len(rows), np.int64) if weights is None else np.array([*weights], np.int64)
    return canonical(ZSet(frame(columns), given))


def canonical(delta: ZSet) -> ZSet:
    """Make one NaN of all and 0.0 of -0.0, in every DOUBLE column: what is equal has then equal bits."""
    columns = delta.rows.get_columns()
    if all(column.dtype != pl.Float64 for column in columns):
        return delta
    return ZSet(
        frame([_canonical(each) if each.dtype == pl.Float64 else each for each in columns]), delta.weights
    )


def _canonical(doubles: pl.Series) -> pl.Series:
    # What is null is NaN in numpy's array.
    values = doubles.to_numpy()
    exact = pl.Series(np.where(np.isnan(values), np.nan, np.where(values == 0, 0.0, values)))
    return exact.set(doubles.is_null(), None) if doubles.null_count() else exact


def concatenated(parts: Sequence[ZSet]) -> ZSet:
    """Put Z-sets of one schema together."""
    if len(parts) == 1:
        return parts[0]
    rows = pl.concat([part.rows for part in parts], rechunk=True)
    return ZSet(rows, np.concatenate([part.weights for part in parts]))


def chosen(rows: pl.DataFrame, positions: Positions) -> pl.DataFrame:
    """Give some columns, under the names of their new positions."""
    columns = rows.get_columns()
    return frame([columns[position] for position in positions])


def filtered(delta: ZSet, kept: npt.NDArray[np.bool_]) -> ZSet:
    """Give the rows for which `kept` is true."""
    if kept.all():
        return delta
    return ZSet(gathered(delta.rows, np.flatnonzero(kept)), delta.weights[kept])


def gathered(rows: pl.DataFrame, places: npt.NDArray[np.intp]) -> pl.DataFrame:
    """Give the rows at some places."""
    return rows[places.astype(np.uint32)]


def own_text(rows: pl.DataFrame) -> pl.DataFrame:
    """Give the same rows with their text in memory of their own, where much more is kept for it.

    Rows that were gathered share all text of the columns that they came from. So a run would keep, and its
    file would have, the text of every row that was ever merged into it.
    """
    return rows.with_columns([_copied(column) for column in rows.get_columns() if _shares_much(column)])


def _shares_much(column: pl.Series) -> bool:
    if column.dtype != pl.String:
        return False
    # The validity and the places of texts come first.
    kept = column.rechunk().to_arrow(compat_level=pl.CompatLevel.newest()).buffers()[2:]
    return (
        len(kept) > MOST_BUFFERS
        or sum(buffer.size for buffer in kept) > 2 * column.estimated_size() + FREE_BYTES
    )


def _copied(column: pl.Series) -> pl.Series:
    # polars copies text when it puts several together.
    return pl.select(pl.concat_str([pl.lit(column), pl.lit("")]).alias(column.name)).to_series()


def equal_rows(
    left: pl.DataFrame, at: npt.NDArray[np.intp], right: pl.DataFrame, other: npt.NDArray[np.intp]
) -> npt.NDArray[np.bool_]:
    """Compare the rows of one frame at some places with those of another; null equals null here."""
    same = np.ones(len(at), np.bool_)
    mine, its = at.astype(np.uint32), other.astype(np.uint32)
    for a, b in zip(left.get_columns(), right.get_columns(), strict=True):
        same &= _equal(a[mine], b[its])
    return same


def _equal(left: pl.Series, right: pl.Series) -> npt.NDArray[np.bool_]:
    if left.null_count() or right.null_count():
        return left.eq_missing(right).to_numpy()
    return (left == right).to_numpy()


def check_weights(delta: ZSet) -> None:
    """Raise ViewLimit for a delta whose weights are too large to be multiplied."""
    heaviest = int(np.abs(delta.weights).max(initial=0))
    if heaviest >= STEP_WEIGHT or int(np.abs(delta.weights).sum()) >= STEP_WEIGHT:
        raise ViewLimit(f"a step has rows of a total weight above {STEP_WEIGHT}; take smaller steps")
