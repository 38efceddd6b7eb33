"""The soak of compaction: its judges can fail, and a short run of it holds."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.programs.failover.cluster.nodes import NODES
from tests.programs.soak.compaction_load import PARTITIONS, TransactionWriter, key_of, partition_of
from tests.programs.soak.compaction_run import Report, drive, show
from tests.programs.soak.compaction_tables import differences, expected, taken


def whole() -> Report:
    """A run in which all held."""
    pairs = PARTITIONS * len(NODES)
    return Report(1, settled_seconds=1.0, live_keys=1, aborted=1, ripe_tombstones=[1, 0], led=pairs,
                  local_logs=pairs, audited=True)  # fmt: skip


def test_a_table_is_made_of_records_in_order() -> None:
    assert taken([(b"a", b"1"), (b"b", b"1"), (b"a", None), (b"b", b"2"), (None, b"x")]) == {b"b": b"2"}
    model = {key_of(number): b"" for number in range(5)}
    parts = expected(model)
    assert sum(len(part) for part in parts.values()) == 5
    assert all(partition_of(key) == number for number, part in parts.items() for key in part)


@pytest.mark.parametrize(
    ("there", "word"),
    [
        ({b"a": b"1"}, "1 are missing, 0 hold"),
        ({b"a": b"1", b"b": b"old"}, "0 are missing, 1 hold"),
        ({b"a": b"1", b"b": b"2", b"gone": b"3"}, "and 1 are there that were deleted"),
    ],
)
def test_each_difference_is_found(there: Mapping[bytes, bytes], word: str) -> None:
    model = {b"a": b"1", b"b": b"2"}
    [told] = differences("here", there, model)
    assert word in told
    assert differences("here", model, model) == []


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        ("settled_seconds", None, "did not come to rest"),
        ("live_keys", 0, "the table is empty"),
        ("aborted", 0, "no transaction was aborted"),
        ("ripe_tombstones", [0, 0], "no tombstone ripened"),
        ("led", 5, "5 of 6 pairs"),
        ("local_logs", 5, "5 of 6 local logs"),
        ("local_bytes", 1, "a local log has 1 B"),
        ("level_one_bytes", 1, "level one has 1 B"),
        ("audited", False, "the audits did not all pass"),
        ("findings", ["a finding"], "a finding"),
    ],
)
def test_each_failure_is_told(name: str, value: object, word: str) -> None:
    report = whole()
    assert report.failures() == []
    setattr(report, name, value)
    [told] = report.failures()
    assert word in told
    assert f"- FAILED: {told}" in show(report, [told])


class Fails:
    """A producer whose commit fails for good, with its outcome unknown, so many times."""

    def __init__(self, times: int) -> None:
        self.times = times

    def begin_transaction(self) -> None: ...
    def produce(self, *_: object, **__: object) -> None: ...
    def poll(self, _: float) -> None: ...

    def commit_transaction(self, _: float) -> None:
        if self.times:
            self.times -= 1
            raise KafkaException(KafkaError(KafkaError._FENCED))


def test_keys_of_a_commit_that_is_not_known_are_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = TransactionWriter("127.0.0.1:1", "w", [0, 1], 1.0, 1)
    producer = Fails(1)
    monkeypatch.setattr(writer, "_ready", lambda: producer)
    writer.filled.set()
    monkeypatch.setattr("tests.programs.soak.compaction_load.ABORTED", 0.0)
    writer._write({key_of(0): b"old", key_of(1): None})
    assert writer.doubtful == 1
    assert writer.committed == 1
    assert set(writer.table) == {key_of(0), key_of(1)}, "both have a new value, whatever became of the first"
    assert b"old" not in writer.table.values()


def test_a_short_run_holds(tmp_path: Path) -> None:
    report = asyncio.run(drive(tmp_path, 1, seconds=6.0, keys=400, rate=1000.0, kill_every=4.0, audits=False))
    assert report.failures(audits=False) == []
    assert report.kills == 1
