"""Finds the aborted transactional batches of a partition, by the rows of its state."""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

import numpy as np

from strandline.snapshot.extent_rows import ABORTED_ROWS


class Aborted:
    """Aborted transactions of a partition: between the offsets of each, its producer's batches are of it."""

    def __init__(self, rows: bytes) -> None:
        self._spans: dict[int, list[tuple[int, int]]] = {}
        """By producer id, first offset and marker's of each, in that order: one has one open at a time."""
        for producer_id, first, last in np.frombuffer(rows, ABORTED_ROWS).tolist():
            self._spans.setdefault(producer_id, []).append((first, last))

    def has(self, producer_id: int, offset: int) -> bool:
        """Whether a transactional batch at this offset was aborted."""
        spans = self._spans.get(producer_id)
        if spans is None:
            return False
        at = bisect_right(spans, offset, key=lambda span: span[0]) - 1
        return at >= 0 and offset < spans[at][1]


NOTHING_ABORTED: Final = Aborted(b"")
