"""The soak of compaction: its judges can fail, and a short run of it holds."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.cluster.forked_nodes import ForkedCluster
from tests.programs.failover.cluster import nodes
from tests.programs.failover.cluster.nodes import NODES
from tests.programs.soak.compaction_load import (
    PARTITIONS,
    Place,
    PlainWriter,
    TransactionWriter,
    key_of,
    partition_of,
)
from tests.programs.soak.compaction_report import Report, show
from tests.programs.soak.compaction_run import drive
from tests.programs.soak.compaction_tables import (
    Copy,
    differences,
    expected,
    left_over,
    removed,
    taken,
    unripe,
)


def whole() -> Report:
    """A run in which all held."""
    pairs = PARTITIONS * len(NODES)
    return Report(
        1, kills=20, kills_due=40, settled_seconds=1.0, live_keys=1, aborted=1, aborted_records=2,
        level_one_aborted=1, ripe_tombstones=[1, 0], removed_tombstones=1, written_bytes=1, led=pairs,
        local_logs=pairs, level_one=PARTITIONS, spark=PARTITIONS, audited=True,
    )  # fmt: skip


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
        ("kills", 19, "19 kills in a time for 40"),
        ("aborted_records", 0, "no aborted record is known"),
        ("level_one_aborted", 2, "level one has every aborted record still"),
        ("removed_tombstones", 0, "a node has the tombstones of all deleted keys still"),
        ("level_one", 1, "1 of 2 partitions of level one"),
        ("level_one_bound", 1, "1 B were written, below the bound"),
        ("spark", 1, "Spark read 1 of 2"),
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
    told = next(line for line in report.failures() if word in line)
    assert f"- FAILED: {told}" in show(report, [told])


def test_aborted_records_and_ripe_tombstones_that_are_left_are_found() -> None:
    copy = Copy(1, 10, [(3, b"a", b"1"), (5, b"b", None), (8, b"c", None)])
    assert copy.table == {b"a": b"1"}
    assert not left_over("here", copy, {Place(1, 2), Place(0, 3), Place(1, 5)}, 5)
    [told] = left_over("here", copy, {Place(1, 2), Place(0, 3), Place(1, 5)}, 6)
    assert told == "here: 1 aborted records are there, the first at offset 5"
    assert not unripe("here", copy, 5)
    assert unripe("here", copy, 9) == ["here: 2 tombstones below 9 are there, the first at offset 5"]
    graves = {b"b": Place(1, 5), b"d": Place(1, 6), b"e": Place(0, 6)}
    assert removed(copy, graves) == 1


class Told:
    """A record as a producer's callback gets it."""

    def __init__(self, key: bytes, value: bytes | None, offset: int | None) -> None:
        self._fields = key, value, offset

    def key(self) -> bytes:
        return self._fields[0]

    def value(self) -> bytes | None:
        return self._fields[1]

    def offset(self) -> int | None:
        return self._fields[2]

    def partition(self) -> int:
        return 0


def test_a_writer_knows_where_its_tombstones_lie() -> None:
    writer = PlainWriter("127.0.0.1:1", "w", [0], 1.0, 1)
    told = [(b"a", None, 3), (b"b", None, 4), (b"b", b"1", 5), (b"c", None, None)]  # the last one came twice
    for key, value, offset in told:
        writer._delivered(None, Told(key, value, offset))  # type: ignore[arg-type]
    assert writer.graves == {b"a": Place(0, 3)}
    assert writer.tombstones == 3
    assert writer.written_bytes == 5


class Fails:
    """A producer whose commit fails for good, with its outcome unknown, so many times."""

    def __init__(self, times: int) -> None:
        self.times = times

    def begin_transaction(self) -> None: ...
    def produce(self, *_: object, **__: object) -> None: ...
    def poll(self, _: float) -> None: ...
    def flush(self, _: float) -> None: ...

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


class Acknowledges(Fails):
    """A producer whose records lie at offsets from 0 on, and whose transactions end as asked."""

    def __init__(self) -> None:
        super().__init__(0)
        self._offset = 0

    def produce(self, *told: object, **more: object) -> None:
        _, value, key = told
        more["on_delivery"](None, Told(key, value, self._offset))  # type: ignore[operator, arg-type]
        self._offset += 1

    def abort_transaction(self, _: float) -> None: ...


def test_places_of_what_is_aborted_and_of_what_is_deleted_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = TransactionWriter("127.0.0.1:1", "w", [0, 1], 1.0, 1)
    producer = Acknowledges()
    monkeypatch.setattr(writer, "_ready", lambda: producer)
    records = {key_of(0): b"v", key_of(1): None}
    assert not writer._transact(records, commit=False)
    assert writer.aborted_places == {Place(0, 0), Place(0, 1)}
    assert not writer.graves
    assert writer._transact(records, commit=True)
    assert writer.aborted_places == {Place(0, 0), Place(0, 1)}
    assert writer.graves == {key_of(1): Place(0, 3)}


@pytest.mark.timeout(300)
def test_a_short_run_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "LocalCluster", ForkedCluster)
    report = asyncio.run(
        drive(tmp_path, 1, seconds=6.0, keys=2000, rate=2000.0, kill_every=4.0, audits=False)
    )
    assert report.failures(audits=False, bounds=False) == []
    assert report.kills == 1
