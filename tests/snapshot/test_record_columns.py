"""Record batches from columns are those that are made record by record."""

from __future__ import annotations

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.snapshot.compression import Compression
from strandline.snapshot.producing.record_batch import HEADER_BYTES, framed, record_batch, tails
from strandline.snapshot.producing.record_columns import RECORD_BYTES, packed
from strandline.snapshot.producing.transactions import Producer

PRODUCER = Producer("id", 1 << 40, 7)
TIME = 1_700_000_000_000
KEYS = st.binary(max_size=9) | st.sampled_from([b"x" * 63, b"y" * 64, b"z" * 8192])
VALUES = st.none() | KEYS
Records = list[tuple[bytes, bytes | None]]


def batches(records: Records, most: int, first: int = 0) -> list[tuple[bytes, int]]:
    """Batches of records from a number on: Arrow's arrays may begin within a buffer."""
    keys = pa.array([key for key, _ in records], pa.large_binary())[first:]
    values = pa.array([value for _, value in records], pa.large_binary())[first:]
    return [
        (framed(data, count, TIME, TIME, PRODUCER, 5, Compression.NONE), count)
        for data, count in packed(keys, values, most)
    ]


def one_by_one(records: Records) -> bytes:
    found = tails([key for key, _ in records], [value for _, value in records], None)
    return record_batch(found, [TIME] * len(records), PRODUCER, 5, Compression.NONE)


@settings(deadline=None)
@given(st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=9), st.sampled_from([1, 70]), st.integers(0, 3))
def test_a_batch_is_what_is_made_record_by_record(records: Records, times: int, first: int) -> None:
    records = records * times
    first = min(first, len(records) - 1)
    assert batches(records, 1 << 30, first) == [(one_by_one(records[first:]), len(records) - first)]


@pytest.mark.parametrize("most", [100, 1000, 20_000])
def test_batches_are_cut_by_their_bytes_and_a_record_that_is_larger_goes_alone(most: int) -> None:
    records: Records = [(b"k%d" % at, b"v" * (at * 37 % 300)) for at in range(500)]
    made = batches(records, most)
    assert sum(count for _, count in made) == len(records)
    first = 0
    for at, (batch, count) in enumerate(made):
        assert batch == one_by_one(records[first : first + count])
        assert len(batch) <= most or count == 1
        if at + 1 < len(made):
            key, value = records[first + count]
            assert (
                len(batch) + len(key) + len(value or b"") + RECORD_BYTES * (count + 1) + HEADER_BYTES > most
            )
        first += count


def test_nothing_makes_no_batch() -> None:
    assert batches([], 1000) == []
