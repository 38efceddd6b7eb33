"""Hashes so short that different keys and different rows have the same in any small test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from unittest import mock

import numpy as np
import polars as pl

from strandline.snapshot.views import hashing
from strandline.snapshot.views.hashing import Hashes

_HALVES: Final = hashing.halves


@contextmanager
def four_bit_hashes(there: bool = True) -> Iterator[None]:
    """Hash to sixteen values, key and row alike."""
    if not there:
        yield
        return

    def few(rows: pl.DataFrame, wanted: tuple[int, ...]) -> tuple[Hashes, ...]:
        bits = np.uint64(60)
        return tuple((half >> bits) << bits for half in _HALVES(rows, wanted))

    with mock.patch.object(hashing, "halves", few):
        yield
