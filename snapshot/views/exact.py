"""Exact sums: what a sum is does not depend on the order of its rows, nor on what was taken back.

A whole number is two 64-bit columns, high · 2³² + low, with 0 ≤ low < 2³² after `carried`. A DOUBLE is spread
over bins of 32 bits: its mantissa falls into three, and each bin of a group is such a pair. Only the total is
rounded, once, so 1e20 + 1 - 1e20 is 1 (a float accumulator says 0).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

Whole = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]

BIN_BITS: Final = 32
LOWEST_BIN: Final = -36
"""The bin of the lowest bits of the smallest DOUBLE: its 53-bit mantissa stands at 2⁻¹¹²⁶."""
_SCALE: Final = 1 << (-LOWEST_BIN * BIN_BITS)
_LOW: Final = (1 << BIN_BITS) - 1
_MANTISSA_BITS: Final = 53


class Bins(NamedTuple):
    """Parts of DOUBLEs: the number's place in what was given, the bin, and a signed number of 32 bits."""

    place: npt.NDArray[np.intp]
    bin: Whole
    part: Whole


def split(numbers: Whole, weights: Whole) -> tuple[Whole, Whole]:
    """Give number · weight as high and low columns; weights are below 2³¹ (`zset.check_weights`)."""
    return (numbers >> BIN_BITS) * weights, (numbers & _LOW) * weights


def carried(sums: tuple[Whole, ...], wide: tuple[int, ...]) -> tuple[Whole, ...]:
    """Bring the low columns of wide numbers into 0 … 2³² - 1, so that equal numbers have equal columns."""
    if not wide:
        return sums
    result = list(sums)
    for high in wide:
        result[high] = sums[high] + (sums[high + 1] >> BIN_BITS)
        result[high + 1] = sums[high + 1] & _LOW
    return tuple(result)


def totals(high: Whole, low: Whole) -> list[int]:
    """Give the numbers that pairs of columns hold."""
    if len(high) and int(np.abs(high).max()) < 1 << 30:
        return ((high << BIN_BITS) + low).tolist()  # type: ignore[no-any-return]
    return [(one << BIN_BITS) + two for one, two in zip(high.tolist(), low.tolist(), strict=True)]


def ratio(total: int, count: int) -> float:
    """Divide whole numbers to the nearest DOUBLE (Python's division of integers rounds correctly)."""
    return total / count


def bins(numbers: Doubles) -> Bins:
    """Spread finite DOUBLEs over bins; parts of value 0 are left out."""
    mantissa, exponent = np.frexp(numbers)
    whole = np.ldexp(mantissa, _MANTISSA_BITS).astype(np.int64)
    exponent = exponent.astype(np.int64) - _MANTISSA_BITS
    lowest = exponent >> 5
    shift = (exponent & 31).astype(np.uint64)
    sign = np.sign(whole)
    size = np.abs(whole).astype(np.uint64)
    mask, bits = np.uint64(_LOW), np.uint64(BIN_BITS)
    low = (size & mask) << shift
    high = ((size >> bits) << shift) + (low >> bits)
    parts = [(low & mask), (high & mask), (high >> bits)]
    place = np.tile(np.arange(len(numbers)), 3)
    spread = np.concatenate([part.astype(np.int64) * sign for part in parts])
    bin_ = np.concatenate([lowest, lowest + 1, lowest + 2])
    kept = spread != 0
    return Bins(place[kept], bin_[kept], spread[kept])


def scaled(bin_: int, number: int) -> int:
    """Give a bin's number in units of the lowest bin's."""
    return number << ((bin_ - LOWEST_BIN) * BIN_BITS)


def rounded(total: int, count: int = 1) -> float:
    """Give total / count as the nearest DOUBLE; `total` is in units of the lowest bin.

    Infinite beyond the largest.
    """
    try:
        return total / (_SCALE * count)
    except OverflowError:
        return float("inf") if total > 0 else float("-inf")
