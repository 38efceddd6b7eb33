"""Records that lie elsewhere by the time at which a task reads them, or were compacted away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strandline.snapshot.spark.fetch import ObjectGone
from strandline.snapshot.spark.options import parse
from strandline.snapshot.spark.plan import plan
from strandline.snapshot.spark.source import SCHEMA, Split, StrandlineReader, arrow_schema
from strandline.snapshot.spark.stream import StrandlineStreamReader, StreamSplit
from strandline.snapshot.storage import open_storage
from tests.spark.compacted_cluster import TOPIC, CompactedCluster
from tests.spark.stored_cluster import Producer


@pytest.mark.parametrize("again", ["", "a", "ab", "abl"])
def test_a_key_that_was_written_again_is_not_missing_from_a_read_that_ends_before(
    tmp_path: Path, again: str
) -> None:
    made, plain = CompactedCluster(tmp_path / "objects"), Producer(7)
    made.put(0, [("a", "1"), ("b", "1"), ("l", "1")], plain)
    made.checkpoint()
    storage = open_storage(made.cluster.url)
    options, schema = parse({"url": storage.url, "topic": TOPIC}), arrow_schema(SCHEMA)
    (windows,) = plan(storage, options, 1)
    made.put(0, [(key, "2") for key in again or "x"], plain)
    made.put(0, [("end", "1")], plain)
    made.reconcile(0)
    if again:  # otherwise it is lifted as it is
        made.compact(0)
    made.checkpoint()
    for path in (made.cluster.root / "l0").rglob("*"):
        if path.is_file():
            path.unlink()

    def keys(batches: Iterator[Any]) -> str:
        return "".join(key.decode() for batch in batches for key in batch.column("key").to_pylist())

    stream = StrandlineStreamReader(storage, options, schema, 1)
    read = StrandlineReader(storage, options, schema, 1)
    assert keys(stream.read(StreamSplit(windows))) == "abl".removeprefix(again)
    if not again:
        assert keys(read.read(Split(windows))) == "abl"
        return
    with pytest.raises(ObjectGone, match=f"{TOPIC}-0: records from offset 0 on were compacted .* checkpoint"):
        keys(read.read(Split(windows)))
