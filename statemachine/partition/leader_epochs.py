"""Leader epochs: the offsets that each term wrote, as an answer to Kafka's OffsetForLeaderEpoch.

A follower or consumer that read under an old leader asks where that leader's records end, to find out
whether its own were truncated (KIP-101, KIP-320). Kafka's partition leader epoch is the term here.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import NamedTuple


class LeaderEpoch(NamedTuple):
    """A term and the offset of the first record it could write."""

    term: int
    first_offset: int


class EpochEnd(NamedTuple):
    """A term and the offset after the last record it wrote."""

    term: int
    end_offset: int


class LeaderEpochs:
    """Terms with records, oldest first, and the present one; both fields strictly grow."""

    def __init__(self, entries: list[LeaderEpoch]) -> None:
        self.entries = entries
        for earlier, later in pairwise(entries):
            if later.term <= earlier.term or later.first_offset <= earlier.first_offset:
                raise ValueError(f"terms are out of order: {earlier} before {later}")

    def begin(self, term: int, next_offset: int) -> None:
        """A term begins; one that wrote nothing is forgotten, so history grows with records only."""
        if self.entries and self.entries[-1].first_offset == next_offset:
            self.entries.pop()
        self.entries.append(LeaderEpoch(term, next_offset))

    def trim(self, start_offset: int) -> None:
        """Records below an offset are gone: forget the terms that wrote nothing above."""
        entries = self.entries
        gone = bisect_right(entries, start_offset, key=lambda entry: entry.first_offset) - 1
        if gone > 0:
            del entries[:gone]
        if entries and entries[0].first_offset < start_offset:
            entries[0] = LeaderEpoch(entries[0].term, start_offset)

    def end_of(self, term: int, next_offset: int) -> EpochEnd | None:
        """The largest known term at or below the one asked for, with the offset where its records end.

        None when the term lies ahead of all that is known (Kafka answers epoch -1, offset -1). A term
        older than all that is known ends where the oldest known one begins.
        """
        entries = self.entries
        after = bisect_right(entries, term, key=lambda entry: entry.term)
        if after == len(entries):
            return EpochEnd(term, next_offset) if entries and entries[-1].term == term else None
        end = entries[after].first_offset
        return EpochEnd(entries[after - 1].term if after else term, end)
