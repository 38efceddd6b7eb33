"""Hashes of rows: 64 bits of the key for the order of a run, 128 bits of a row for digests.

Both depend on the values alone, on no version of a library: polars' own hash changes between releases.
Numbers are mixed by numpy, strings by XXH3; NaN is one value and -0.0 is 0.0 (`zset.canonical` sees to it
before). A hash that hits is followed by a comparison of the values, so a collision costs time and is never an
error.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl
import xxhash

Hashes = npt.NDArray[np.uint64]

KIND: Final = "xxh3-murmur-1"
"""The name of this way of hashing in stored runs. Runs of another kind are hashed again at load."""
DIGEST_MODULUS: Final = 1 << 128
LOW: Final = 0
HIGH: Final = 1
"""The halves of a row's hash."""
_STRINGS: Final = (pl.String, pl.Binary)
_NULL: Final = (np.uint64(0x9AE16A3B2F90404F), np.uint64(0xC949D7C7509E6557))
_STEP: Final = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93))
_MIX: Final = (
    (np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)),
    (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)),
)
"""The multipliers of MurmurHash3's and of SplitMix64's last step."""
_TOP: Final = np.uint64(1 << 63)
_LIMB: Final = np.uint64(0xFFFFFFFF)
_BLOCK_WEIGHT: Final = 1 << 31
"""The sum of weights up to which a sum of 32-bit limbs stays within 63 bits."""


class RowHashes(NamedTuple):
    """The two halves of each row's 128 bits."""

    low: Hashes
    high: Hashes


def key_hash(keys: pl.DataFrame) -> Hashes:
    """Hash each row of key columns to 64 bits. No columns: every row has the hash 0."""
    (low,) = halves(keys, (LOW,))
    return low


def row_hashes(rows: pl.DataFrame) -> RowHashes:
    """Hash each row to 128 bits; their low half is the key hash of the same columns."""
    low, high = halves(rows, (LOW, HIGH))
    return RowHashes(low, high)


def halves(rows: pl.DataFrame, wanted: tuple[int, ...]) -> tuple[Hashes, ...]:
    """Hash each row to the halves that are wanted: each one takes as long as the other."""
    found = tuple(np.zeros(rows.height, np.uint64) for _ in wanted)
    for column in rows.get_columns():
        bits = _column(column)
        for hashes, half in zip(found, wanted, strict=True):
            hashes *= _STEP[half]
            hashes += bits[half]
            _mix(hashes, half)
    return found


def order_of(column: pl.Series) -> Hashes:
    """Give numbers that are ordered as the values are: null lowest, then numbers, NaN highest.

    A lower value never has a higher number. Texts have that of their first 8 bytes, and null that of the
    lowest value, so values of one number are told apart by themselves.
    """
    if column.dtype in _STRINGS:
        texts = [(value or b"")[:8].ljust(8, b"\0") for value in column.cast(pl.Binary).to_list()]
        return np.frombuffer(b"".join(texts), dtype=">u8").astype(np.uint64)
    bits = _bits(column)
    bits = np.where(bits & _TOP, ~bits, bits | _TOP) if column.dtype == pl.Float64 else bits ^ _TOP
    return np.where(column.is_null().to_numpy(), np.uint64(0), bits) if column.null_count() else bits


def digest(hashes: RowHashes, weights: npt.NDArray[np.int64]) -> int:
    """Σ weight · H(row) mod 2¹²⁸: the same for equal contents in any order and any grouping of weights."""
    heaviest = int(np.abs(weights).max(initial=0))
    if heaviest * len(weights) < _BLOCK_WEIGHT:
        return _digest(hashes, weights)
    # Few rows of large weights, or very many rows: Python's integers have no bound.
    pairs = zip(hashes.low.tolist(), hashes.high.tolist(), weights.tolist(), strict=True)
    return int(sum((low + (high << 64)) * weight for low, high, weight in pairs)) % DIGEST_MODULUS


def _digest(hashes: RowHashes, weights: npt.NDArray[np.int64]) -> int:
    total: int = 0
    for place, half in ((0, hashes.low), (64, hashes.high)):
        total += int(np.dot((half & _LIMB).astype(np.int64), weights)) << place
        total += int(np.dot((half >> np.uint64(32)).astype(np.int64), weights)) << (place + 32)
    return int(total % DIGEST_MODULUS)


def _column(column: pl.Series) -> tuple[Hashes, Hashes]:
    missing = column.is_null().to_numpy() if column.null_count() else None
    if column.dtype in _STRINGS:
        first, second = _of_strings(column)
    else:
        first = second = _bits(column)
    if missing is not None:
        first = np.where(missing, _NULL[0], first)
        second = np.where(missing, _NULL[1], second)
    return first, second


def _bits(column: pl.Series) -> Hashes:
    """The 64 bits of each number, date or time. A Boolean is 0 or 1."""
    if column.null_count():
        column = column.to_physical().fill_null(False if column.dtype == pl.Boolean else 0)
    values = column.to_numpy()
    return (values if values.dtype == np.float64 else values.astype(np.int64)).view(np.uint64)


def _of_strings(column: pl.Series) -> tuple[Hashes, Hashes]:
    values = column.cast(pl.Binary).to_list()
    if column.null_count():
        values = [value or b"" for value in values]
    pairs = np.frombuffer(b"".join(map(xxhash.xxh3_128_digest, values)), dtype=">u8").reshape(-1, 2)
    return pairs[:, 1].astype(np.uint64), pairs[:, 0].astype(np.uint64)


def _mix(bits: Hashes, mixer: int) -> None:
    """Mix in place: the arrays of a step are too large to be made again for each operation."""
    first, second = _MIX[mixer]
    moved = bits >> np.uint64(33)
    bits ^= moved
    bits *= first
    np.right_shift(bits, np.uint64(29), out=moved)
    bits ^= moved
    bits *= second
    np.right_shift(bits, np.uint64(32), out=moved)
    bits ^= moved
