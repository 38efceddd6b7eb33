"""Hashes so short that different keys and different rows have the same in any small test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from unittest import mock

import numpy as np
import polars as pl

from strandline.snapshot.views import hashing
from strandline.snapshot.views.hashing import RowHashes

_ROW_HASHES: Final = hashing.row_hashes


@contextmanager
def four_bit_hashes(there: bool = True) -> Iterator[None]:
    """Hash to sixteen values, key and row alike."""
    if not there:
        yield
        return

    def few(rows: pl.DataFrame) -> RowHashes:
        low, high = _ROW_HASHES(rows)
        bits = np.uint64(60)
        return RowHashes((low >> bits) << bits, (high >> bits) << bits)

    with mock.patch.object(hashing, "row_hashes", few):
        yield
