"""The verdict of `scripts/export-kills`; a run of it takes minutes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from strandline.snapshot.spark.export.run import Export
from strandline.snapshot.spark.export.running import in_threads
from strandline.snapshot.spark.export.target import open_target
from strandline.snapshot.spark.options import parse
from strandline.snapshot.storage import open_storage
from tests.programs.export_kills.run import doubled, is_bad, lost_and_more
from tests.programs.export_kills.sources import LiveSource, StoredSource
from tests.spark.stored_cluster import build_cluster

RIGHT = {"runs": 9, "killed": 5, "doubled": 0, "lost": 0, "unknown": 0, "doubled_at_end": 0, "check": 0}


@pytest.mark.parametrize("wrong", ["doubled", "lost", "unknown", "doubled_at_end", "check"])
def test_anything_but_each_record_once_is_bad(wrong: str) -> None:
    assert not is_bad({**RIGHT})
    assert is_bad({**RIGHT, wrong: 1})


def test_a_file_too_many_or_too_few_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda file: None)
    cluster, target = build_cluster(tmp_path / "objects", batches_a_round=2), tmp_path / "lake"
    source = StoredSource(cluster)
    read = parse({"url": cluster.url, "topic": ",".join(source.topics)})
    Export(open_storage(cluster.url), read, open_target(str(target)), in_threads(1)).run()
    there, lost, unknown = lost_and_more(source, target, "parquet")
    assert (there > 100, lost, unknown, doubled(source, target, "parquet")) == (True, 0, 0, 0)
    file = min(target.rglob("*.parquet"))
    file.with_name("again.parquet").write_bytes(file.read_bytes())
    assert doubled(source, target, "parquet") > 10
    file.unlink()
    file.with_name("again.parquet").unlink()
    assert lost_and_more(source, target, "parquet")[1] > 10
    cluster.partitions["visits", 0].records.pop()
    assert lost_and_more(source, target, "parquet")[2] == 1


def test_a_flight_too_many_or_too_few_or_another_one_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [b"one", b"two", b"three"]
    source = object.__new__(LiveSource)
    load = SimpleNamespace(acknowledged=len(rows) + 2, failed=0, flights=rows)
    monkeypatch.setattr(source, "_load", load, raising=False)
    right = [("flights", b"%d %s" % (number, rows[number % len(rows)])) for number in range(len(rows) + 2)]
    assert source.compared([*right]) == (len(rows) + 2, 0, 0)
    assert source.compared([*right, right[0]]) == (len(rows) + 2, 0, 1)
    assert source.compared(right[1:]) == (len(rows) + 2, 1, 0)
    assert source.compared([*right[1:], ("flights", b"0 " + rows[1])]) == (len(rows) + 2, 1, 1)
    assert source.compared([*right, ("flights", b"%d %s" % (len(right), rows[2]))])[2] == 1
