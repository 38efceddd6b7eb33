"""Partitions of many large keys: hashing takes little more memory than the keys have."""

from __future__ import annotations

import tracemalloc
import warnings

import pyarrow as pa  # type: ignore[import-untyped]

from strandline.snapshot.producing.partitioning import places_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # its import reads resources in an old way
    from kafka.partitioner.default import murmur2  # type: ignore[import-untyped]


def test_keys_of_one_length_are_hashed_some_at_a_time() -> None:
    keys = [b"%d" % at * 2000 for at in range(1000, 9000, 2)]
    column = pa.array(keys, pa.large_binary())
    tracemalloc.start()
    try:
        found = places_of(column, 7)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < column.nbytes, "eight bytes for each of theirs, of all of them"
    for at in (0, 1, 130, 131, 132, 262, 2000, 3999):
        assert found[at] == (murmur2(keys[at]) & 0x7FFFFFFF) % 7
