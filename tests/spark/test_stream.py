"""The stream's reader on made-up storage, driven as Spark drives it; no Spark is needed.

`Query` does what Spark's micro-batch execution does: a batch's end is kept before the batch is read, a
restart begins with a new reader and repeats the batch that was not committed.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import re
import subprocess
import sys
import threading
import time
from collections import defaultdict
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from strandline.snapshot import patient_storage
from strandline.snapshot.names import group_prefix
from strandline.snapshot.spark import stream
from strandline.snapshot.spark.newest import NewestCheckpoints, wanted_places
from strandline.snapshot.spark.options import SourceError, parse
from strandline.snapshot.spark.source import SCHEMA, StrandlineSource
from strandline.snapshot.spark.stream import StrandlineStreamReader
from strandline.snapshot.spark.stream_limits import shares, stored_bytes
from strandline.snapshot.spark.stream_offsets import from_json, ranges
from strandline.snapshot.spark.stream_tasks import StreamSplit
from strandline.snapshot.spark.views import PartitionView, partition_views
from strandline.snapshot.storage import StorageError, open_storage
from strandline.snapshot.tail_document import tails_prefix
from strandline.statemachine.controller.controller_commands import ApplyViews, DeleteTopic
from strandline.statemachine.controller.controller_state import CONTROLLER_GROUP
from strandline.statemachine.controller.restored_controller import TERMS
from strandline.statemachine.controller.view_state import is_hidden
from strandline.statemachine.partition.partition_commands import Checkpoint, SetStartOffset
from tests.spark.collected_cluster import build_collected, collect, reconcile_all, write
from tests.spark.planned import TOPICS, Place, readable
from tests.spark.stored_cluster import CLUSTER, LEASE_MS, StoredCluster, StoredRecord, build_cluster
from tests.spark.transactional_cluster import build_transactional
from tests.statemachine.controller_harness import topic_id

BATCHES = 10_000
"""More micro-batches than any query here has."""


class Query:
    """One query: its checkpoint outlives its readers. `found` is what its sink has, each batch once."""

    def __init__(self, cluster: StoredCluster, **options: str) -> None:
        self.options = {"url": cluster.url, **options}
        self.ends: list[str] = []
        """Spark's log of offsets: each batch's end."""
        self.committed = 0
        self.batches: dict[int, list[tuple[Place, StoredRecord]]] = {}
        self.start_reader()

    def start_reader(self) -> None:
        reader = StrandlineSource(self.options).streamReader(SCHEMA)
        self.initial = json.dumps(reader.initialOffset())
        assert isinstance(reader, StrandlineStreamReader)
        self.reader = reader

    def start_of(self, batch: int) -> str:
        return self.ends[batch - 1] if batch else self.initial

    def plan_batch(self) -> bool:
        """Keep the next batch's end; False if there is nothing new. Spark runs the first batch anyway."""
        limit = self.reader.getDefaultReadLimit()
        assert isinstance(limit, ReadMaxRows)
        start = self.start_of(len(self.ends))
        end = json.dumps(self.reader.latestOffset(json.loads(start), limit))
        if self.ends and end == start:
            return False
        self.ends.append(end)
        return True

    def run_batch(self) -> None:
        batch = self.committed
        self.batches[batch] = []
        for split in self.reader.partitions(
            *(json.loads(t) for t in (self.start_of(batch), self.ends[batch]))
        ):
            assert isinstance(split, StreamSplit)
            for rows in self.reader.read(split):
                for row in rows.to_pylist():
                    at = round(row["timestamp"].timestamp() * 1000)
                    record = StoredRecord(row["offset"], at, row["key"], row["value"], row["leader_epoch"])
                    self.batches[batch].append(((row["topic"], row["partition"]), record))

    def restart(self) -> None:
        """The driver was killed: a new reader, and what was not committed is read again."""
        self.start_reader()
        if len(self.ends) > self.committed:
            self.run_batch()
            self.committed += 1

    def run(self, fresh: bool = True) -> int:
        """Batches until nothing is new; returns their number. A look at storage is not waited for."""
        for count in range(BATCHES):
            if fresh:
                self.reader._looked = None
            if not self.plan_batch():
                return count
            self.run_batch()
            self.committed += 1
        raise AssertionError("the query does not come to an end")

    @property
    def found(self) -> dict[Place, list[StoredRecord]]:
        found: dict[Place, list[StoredRecord]] = defaultdict(list)
        for batch in self.batches.values():
            for place, record in batch:
                found[place].append(record)
        return {place: sorted(records) for place, records in found.items()}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> StoredCluster:
    return build_cluster(tmp_path_factory.mktemp("streamed") / "objects")


@pytest.fixture
def own(tmp_path: Path) -> StoredCluster:
    """A cluster that the test may change."""
    return build_cluster(tmp_path / "objects", batches_a_round=2)


@settings(max_examples=25, deadline=None)
@given(
    offsets=st.none() | st.integers(1, 200),
    size=st.none() | st.integers(1, 20_000),
    crashes=st.lists(st.booleans(), min_size=40, max_size=40),
)
def test_every_record_comes_once_whatever_the_limits_and_crashes(
    cluster: StoredCluster, offsets: int | None, size: int | None, crashes: list[bool]
) -> None:
    limits = {"maxOffsetsPerTrigger": offsets, "maxBytesPerTrigger": size}
    query = Query(cluster, topic=TOPICS, **{name: str(one) for name, one in limits.items() if one})
    for crash in crashes:
        if not query.plan_batch():
            break
        query.run_batch()  # its rows may have got to the sink, or some of them
        if crash:
            query.restart()
        else:
            query.committed += 1
    query.run(fresh=False)
    assert query.found == readable(cluster)


def test_a_batch_is_as_large_as_it_may_be(cluster: StoredCluster) -> None:
    total = sum(map(len, readable(cluster).values()))
    query = Query(cluster, topic=TOPICS, maxOffsetsPerTrigger="30")
    query.run(fresh=False)
    sizes = [len(batch) for batch in query.batches.values()]
    # One more for each of the partitions that have less than their share.
    assert max(sizes) <= 30 + len(readable(cluster))
    assert min(sizes) > 0
    assert len(sizes) <= total // 15


def test_bytes_are_bounded_by_blocks_and_batches(cluster: StoredCluster) -> None:
    topics = "clicks,visits"
    views = partition_views(open_storage(cluster.url), parse({"url": cluster.url, "topic": topics}))
    # Shares are at least a piece for each partition.
    pieces = sum(int(view.rows["length"].max()) for view in views if view.rows.size)
    limit = pieces // 2
    query = Query(cluster, topic=topics, maxBytesPerTrigger=str(limit))
    query.run(fresh=False)
    assert query.found == readable(cluster, *topics.split(","))
    sizes = []
    for batch in range(len(query.ends)):
        start, end = from_json(json.loads(query.start_of(batch))), from_json(json.loads(query.ends[batch]))
        wanted, lost = ranges(start, end, {(view.topic, view.number): view for view in views})
        sizes.append(sum(map(stored_bytes, wanted)))
        assert not lost
    assert sum(sizes) == sum(map(stored_bytes, views)) > 3 * (limit + pieces)
    assert limit // 4 < sorted(sizes)[len(sizes) // 2] <= max(sizes) <= limit + pieces


@pytest.mark.parametrize(
    ("sizes", "limit", "shared"),
    [
        ([5, 5], 10, [5, 5]),
        ([90, 10], 10, [9, 1]),
        ([1000, 1], 10, [9, 1]),
        ([], 5, []),
        ([7], 2, [2]),
        ([7, 7, 7], 11, [3, 4, 4]),  # all of the limit, or the last batch is a remainder
    ],
)
def test_shares(sizes: list[int], limit: int, shared: list[int]) -> None:
    assert shares(sizes, limit) == shared


def test_what_later_checkpoints_bring_comes_once(own: StoredCluster) -> None:
    query = Query(own, topic=TOPICS, maxOffsetsPerTrigger="50")
    query.run()
    for epoch in (30, 40):
        own.advance(epoch)
        write(own, *own.partitions.values())
        reconcile_all(own)
        write(own, *own.partitions.values())
        assert query.run() == 0  # written, and in no checkpoint yet
        own.checkpoint()
        assert query.run() > 0
        assert query.found == readable(own)
    assert query.run() == 0


def test_storage_is_not_asked_again_at_once(own: StoredCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query(own, topic=TOPICS)
    query.run()
    write(own, *own.partitions.values())
    own.checkpoint()
    listed: list[str] = []

    def nothing(_: object, prefix: str) -> list[str]:
        listed.append(prefix)
        return []

    monkeypatch.setattr(type(query.reader._storage), "list", nothing)
    assert not query.plan_batch()
    assert listed == []
    monkeypatch.undo()
    monkeypatch.setattr(stream, "LOOK_SECONDS", 0.0)
    assert query.plan_batch()


def test_documents_that_were_seen_are_not_read_again(
    own: StoredCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(own, topic=TOPICS)
    query.run()
    kind = type(query.reader._storage)
    get, read = kind.get, []

    def noted(storage: Any, key: str) -> bytes:
        read.append(key)
        return get(storage, key)

    monkeypatch.setattr(kind, "get", noted)
    assert query.run() == 0
    assert read == []
    own.partitions["clicks", 0].append_inline(own.partitions["clicks", 0].batch([b"one"]))
    own.checkpoint()
    assert query.run() == 1
    assert len(read) == 1 + len(own.partitions)  # the made-up checkpoint is of everything


def test_an_idle_stream_lists_the_controllers_checkpoints_alone(
    own: StoredCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(own, topic=TOPICS)
    query.run()
    monkeypatch.setattr(stream, "LOOK_SECONDS", 0.0)
    kind = type(query.reader._storage)
    list_all, listed = kind.list, []

    def noted(storage: Any, prefix: str) -> list[str]:
        listed.append(prefix)
        return list_all(storage, prefix)

    monkeypatch.setattr(kind, "list", noted)
    assert not query.plan_batch()
    assert len(listed) == 2 + len(own.partitions)  # documents of the last checkpoint may still come
    monkeypatch.setattr(stream, "SETTLING_SECONDS", 0.0)
    listed.clear()
    assert not query.plan_batch()
    assert listed == [tails_prefix(CLUSTER), group_prefix(CLUSTER, CONTROLLER_GROUP)]
    # A partition's document that came long after the controller's is found in the end.
    clicks = own.partitions["clicks", 0]
    write(own, clicks)
    clicks.execute(Checkpoint(LEASE_MS))
    assert not query.plan_batch()
    monkeypatch.setattr(stream, "WHOLE_SECONDS", 0.0)
    assert query.plan_batch()
    monkeypatch.undo()
    # A new one of the controller is enough.
    monkeypatch.setattr(stream, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(stream, "SETTLING_SECONDS", 0.0)
    write(own, clicks)
    own.checkpoint()
    assert query.plan_batch()


def test_latest_is_what_is_there_when_the_query_begins(own: StoredCluster) -> None:
    query = Query(own, topic=TOPICS, startingOffsets="latest")
    assert query.plan_batch()
    # Killed before the first batch was done; meanwhile there is more.
    write(own, *own.partitions.values())
    own.checkpoint()
    before = {place: partition.machine.next_offset - 3 for place, partition in own.partitions.items()}
    query.restart()
    query.run()
    expected = {
        place: [r for r in p.readable if r.offset >= before[place]] for place, p in own.partitions.items()
    }
    assert query.found == expected
    assert all(len(records) == 3 for records in expected.values())


def test_offsets_and_times_say_where_a_query_begins(own: StoredCluster) -> None:
    records = own.partitions["clicks", 0].readable
    middle = records[len(records) // 2]
    by_offset = Query(own, topic="clicks", startingOffsets=json.dumps({"clicks": {"0": middle.offset}}))
    by_time = Query(own, topic="clicks", startingTimestamp=str(middle.timestamp))
    beyond = Query(own, topic="clicks", startingOffsets="100000")
    for query in (by_offset, by_time, beyond):
        query.run()
    assert by_offset.found == {("clicks", 0): [r for r in records if r.offset >= middle.offset]}
    since = next(r.offset for r in records if r.timestamp >= middle.timestamp)
    assert by_time.found == {("clicks", 0): [r for r in records if r.offset >= since]}
    assert beyond.found == {}
    # A stream's end is where another may begin.
    after = Query(own, topic="clicks", startingOffsets=by_time.ends[-1])
    write(own, own.partitions["clicks", 0])
    own.checkpoint()
    after.run()
    assert after.found == {("clicks", 0): own.partitions["clicks", 0].readable[-3:]}


def test_a_query_that_begins_with_an_offset_that_is_gone_says_so(own: StoredCluster) -> None:
    start = own.partitions["orders", 0].machine.start_offset
    assert start > 1
    given = {"topic": "orders", "startingOffsets": json.dumps({"orders": {"0": 1, "1": 0}})}
    with pytest.raises(SourceError, match=rf"orders-0: offsets 1 to {start - 1} were deleted: .*=earliest"):
        Query(own, **given).run()
    query = Query(own, **given, failOnDataLoss="false")
    query.run()
    assert query.found == readable(own, "orders")


def test_topics_that_match_appear_from_their_beginning(own: StoredCluster) -> None:
    query = Query(own, subscribePattern="cl.*|new.*", startingOffsets="latest")
    query.run()
    assert query.found == {}
    own.create_topic("newer", 2)
    own.create_topic("old", 1)
    write(own, *(own.partitions[place] for place in (("newer", 0), ("newer", 1), ("old", 0))))
    own.checkpoint()
    query.run()
    assert query.found == readable(own, "newer")
    assert len(query.found) == 2


def test_a_partition_that_enters_has_the_same_records_when_its_batch_is_repeated(own: StoredCluster) -> None:
    query = Query(own, subscribePattern="clicks|newer")
    query.run()
    own.create_topic("newer", 1)
    newer = own.partitions["newer", 0]
    write(own, newer)
    own.checkpoint()
    query.reader._looked = None
    assert query.plan_batch()
    # Killed before the batch was done; meanwhile there is more.
    first = list(newer.readable)
    write(own, newer)
    own.checkpoint()
    query.restart()
    assert [record for _, record in query.batches[query.committed - 1]] == first
    query.run()
    assert query.found == readable(own, "clicks", "newer")


def test_a_batch_that_an_earlier_release_planned_reads_nothing_of_what_enters(own: StoredCluster) -> None:
    query = Query(own, topic="clicks", startingOffsets="latest")
    kept = {str(number): 0 for topic, number in own.partitions if topic == "clicks"}
    query.ends.append(json.dumps({"clicks": {"topic_id": own.topics["clicks"].topic_id.hex(), **kept}}))
    query.restart()
    assert query.found == {}
    query.run()
    assert query.found == readable(own, "clicks")


def test_a_pattern_may_match_nothing_yet(own: StoredCluster) -> None:
    query = Query(own, subscribePattern="new.*", startingOffsets="latest")
    query.run()
    query.restart()
    own.create_topic("newer", 1)
    write(own, own.partitions["newer", 0])
    own.checkpoint()
    query.run()
    assert query.found == readable(own, "newer")
    with pytest.raises(SourceError, match="'never', and matches no whole name"):
        partition_views(open_storage(own.url), parse({"url": own.url, "subscribePattern": "never"}))


def test_a_topic_that_is_filled_out_of_sight_matches_no_pattern(own: StoredCluster) -> None:
    """It has half a view, and gets another name at the cutover, or goes: the query would end."""
    view = ("totals", "totals", topic_id(99), 1, "a" * 64)
    own.control(ApplyViews("program", 7, "CREATE VIEW ...", (view,), ("orders",), 1, 0))
    own.checkpoint()
    storage = open_storage(own.url)
    state = NewestCheckpoints(storage, None).controller()
    assert [name for name in state.by_name if is_hidden(name)]
    wanted = wanted_places(state, parse({"url": own.url, "subscribePattern": ".*"}))
    assert {topic.name for topic, _ in wanted} == {"orders", "clicks", "visits"}
    with pytest.raises(SourceError, match=r"but there is clicks, orders, visits$"):
        partition_views(storage, parse({"url": own.url, "subscribePattern": "never"}))


def test_available_now_ends_where_the_log_was_when_it_began(own: StoredCluster) -> None:
    query = Query(own, subscribePattern="orders|clicks|newer", maxOffsetsPerTrigger="7")
    query.reader.prepareForTriggerAvailableNow()
    before = {place: list(records) for place, records in readable(own, "orders", "clicks").items()}
    assert query.plan_batch()
    query.run_batch()
    query.committed += 1
    own.create_topic("newer", 1)
    write(own, *own.partitions.values())
    own.checkpoint()
    query.run()
    assert query.found == before
    # The next run takes what came meanwhile.
    query.start_reader()
    query.reader.prepareForTriggerAvailableNow()
    query.run()
    assert query.found == readable(own, "orders", "clicks", "newer")


def test_once_reads_all_there_is_whatever_the_limits(own: StoredCluster) -> None:
    query = Query(own, topic="clicks", maxOffsetsPerTrigger="1", maxBytesPerTrigger="1")
    query.ends.append(json.dumps(query.reader.latestOffset({}, ReadAllAvailable())))
    query.run_batch()
    assert query.found == readable(own, "clicks")


def delete(cluster: StoredCluster, place: Place, below: int) -> None:
    cluster.partitions[place].execute(SetStartOffset(below))


def test_deleted_records_are_an_error_or_a_warning(
    own: StoredCluster, caplog: pytest.LogCaptureFixture
) -> None:
    queries = [Query(own, topic="clicks,orders", failOnDataLoss=fail) for fail in ("true", "false")]
    for query in queries:
        query.run()
    before = own.partitions["clicks", 0].machine.next_offset
    write(own, own.partitions["clicks", 0], count=5)
    delete(own, ("clicks", 0), before + 2)
    own.checkpoint()
    with pytest.raises(
        SourceError, match=f"clicks-0: records below offset {before + 2} were deleted, {before} was"
    ):
        queries[0].run()
    with caplog.at_level(logging.WARNING):
        queries[1].run()
    assert [r.offset for r in queries[1].found["clicks", 0]][-4:] == [
        before - 1,
        *range(before + 2, before + 5),
    ]
    assert len(re.findall("were deleted", caplog.text)) == 1
    # Whichever it was, a query that begins now does not miss them.
    anew = Query(own, topic="clicks")
    anew.run()
    assert anew.found == readable(own, "clicks")


def test_records_that_went_before_a_batch_was_repeated_are_missed(own: StoredCluster) -> None:
    query = Query(own, topic="clicks")
    assert query.plan_batch()
    query.run_batch()
    delete(own, ("clicks", 0), 3)
    own.checkpoint()
    with pytest.raises(SourceError, match="records below offset 3 were deleted, 0 was next"):
        query.restart()


def test_a_topic_that_is_another_now(own: StoredCluster, caplog: pytest.LogCaptureFixture) -> None:
    queries = [Query(own, topic="clicks,orders", failOnDataLoss=fail) for fail in ("true", "false")]
    for query in queries:
        query.run()
    own.control(DeleteTopic(own.topics["clicks"].topic_id))
    own.create_topic("clicks", 1)  # a later number of topics gives another id
    del own.partitions["clicks", 1]
    # Longer than the old one was: its offsets alone would not show it.
    write(own, own.partitions["clicks", 0], count=200)
    own.checkpoint()
    with pytest.raises(SourceError, match="topic 'clicks' was deleted and created again"):
        queries[0].run()
    old = queries[1].found["clicks", 0]
    with caplog.at_level(logging.WARNING):
        queries[1].run()
    assert "created again" in caplog.text
    assert queries[1].found["clicks", 0] == sorted([*old, *own.partitions["clicks", 0].readable])


def test_a_topic_that_is_gone(own: StoredCluster) -> None:
    query = Query(own, topic="clicks,orders", failOnDataLoss="false")
    query.run()
    own.control(DeleteTopic(own.topics.pop("clicks").topic_id))
    own.checkpoint()
    query.restart()
    query.run()
    assert '"clicks"' not in query.ends[-1]
    with pytest.raises(SourceError, match="there is no topic 'clicks'"):
        Query(own, topic="clicks").run()


def test_a_log_that_ends_before_what_was_read(own: StoredCluster) -> None:
    query = Query(own, topic="clicks")
    query.run()
    far = json.loads(query.ends[-1])
    far["clicks"]["0"] += 10
    with pytest.raises(
        SourceError, match=r"clicks-0 ends at offset \d+, \d+ was next: option failOnDataLoss"
    ):
        query.reader.latestOffset(far, ReadMaxRows(5))


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_cluster_that_was_restored_to_before_what_was_read(
    own: StoredCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture, fail: str
) -> None:
    """It has more records by then than were read: the offsets alone would not show it."""
    restored = build_cluster(tmp_path / "restored", batches_a_round=2)
    clicks, kept = restored.partitions["clicks", 0], own.partitions["clicks", 0].machine.next_offset
    write(own, own.partitions["clicks", 0], count=5)
    own.checkpoint()
    query = Query(own, topic="clicks", failOnDataLoss=fail)
    query.run()
    read = query.found["clicks", 0]
    clicks.begin_term(TERMS + clicks.term, 1)
    write(restored, clicks, count=9)
    restored.checkpoint()
    query.options["url"] = restored.url
    if fail == "true":
        message = (
            f"clicks-0: the cluster was restored, and has other records from offset {kept} on, {kept + 5} was"
        )
        query.restart()
        with pytest.raises(SourceError, match=message):
            query.run()
    else:
        query.restart()
        with caplog.at_level(logging.WARNING):
            query.run()
        assert "the cluster was restored" in caplog.text
        assert query.found["clicks", 0] == sorted([*read, *clicks.readable[-9:]])
    # Offsets of a release that kept no terms are taken as they are.
    old = Query(restored, topic="clicks")
    old.ends = [json.dumps({key: one for key, one in json.loads(query.ends[0]).items() if key != "."})]
    old.committed = 1
    old.run()
    assert old.found["clicks", 0] == clicks.readable[kept + 5 - clicks.readable[0].offset :]


@pytest.mark.parametrize("more", [9, 2])
@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_batch_that_is_repeated_after_a_restore_tells_of_it(
    own: StoredCluster, tmp_path: Path, fail: str, more: int
) -> None:
    """The next batch begins with the first record that is another one, so this one ends there."""
    restored = build_cluster(tmp_path / "restored", batches_a_round=2)
    clicks = restored.partitions["clicks", 0]
    kept = clicks.machine.next_offset
    write(own, own.partitions["clicks", 0], count=5)
    own.checkpoint()
    query = Query(own, topic="clicks", failOnDataLoss=fail)
    assert query.plan_batch()
    clicks.begin_term(TERMS + clicks.term, 1)
    write(restored, clicks, count=more)
    restored.checkpoint()
    query.options["url"] = restored.url
    if fail == "true":
        with pytest.raises(SourceError, match=f"has other records from offset {kept} on, and was read up to"):
            query.restart()
        return
    query.restart()
    query.run()
    assert query.found == readable(restored, "clicks")


def test_a_restore_that_lost_nothing_that_was_read_is_no_loss(own: StoredCluster) -> None:
    query = Query(own, topic="clicks")
    query.run()
    clicks = own.partitions["clicks", 0]
    clicks.begin_term(TERMS + clicks.term, 1)
    write(own, clicks, count=9)
    own.checkpoint()
    query.restart()
    query.run()
    assert query.found == readable(own, "clicks")


def test_an_older_state_than_was_read_is_waited_for_and_nothing_is_read_again(
    own: StoredCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As after a restore, before a node has published: the newest checkpoint may be an hour old."""
    older = build_cluster(tmp_path / "older", batches_a_round=2)
    write(own, own.partitions["clicks", 0], count=5)
    own.checkpoint()
    query = Query(own, topic="clicks", failOnDataLoss="false")
    query.run()
    query.options["url"] = older.url
    query.restart()
    with caplog.at_level(logging.WARNING):
        assert query.run() == 0
        assert query.run() == 0
    assert caplog.text.count("a newer state was read, and is waited for") == 1
    query.options["url"] = own.url
    write(own, own.partitions["clicks", 0])
    own.checkpoint()
    query.restart()
    query.run()
    assert query.found == readable(own, "clicks")


def test_a_batch_whose_records_an_older_state_does_not_have_waits_for_them(
    own: StoredCluster, tmp_path: Path
) -> None:
    older = build_cluster(tmp_path / "older", batches_a_round=2)
    write(own, own.partitions["clicks", 0], count=5)
    own.checkpoint()
    query = Query(own, topic="clicks", failOnDataLoss="false")
    assert query.plan_batch()
    query.options["url"] = older.url
    with pytest.raises(
        SourceError, match=r"clicks-0 ends at offset \d+ in what is published now, and a newer"
    ):
        query.restart()
    query.options["url"] = own.url
    query.restart()
    assert query.found == readable(own, "clicks")


def test_offsets_of_another_source_are_refused(own: StoredCluster) -> None:
    reader = Query(own, topic="clicks").reader
    for foreign in (
        {"clicks": {"0": 5}},
        {"index": 3},
        {"clicks": {"topic_id": "x", "0": 1}},
        {"clicks": {"topic_id": "00", "entered": 1}},
    ):
        with pytest.raises(SourceError, match="start the query with another checkpointLocation"):
            reader.latestOffset(foreign, ReadMaxRows(5))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": "nope"}, "there is no topic 'nope' in what is published"),
        (
            {"topic": "clicks", "endingOffsets": "latest"},
            "option 'endingoffset' is for spark.read; a stream that",
        ),
        (
            {"topic": "clicks", "maxBytesPerTrigger": "1m"},
            "'maxbytespertrigger' is '1m', not a positive number",
        ),
        ({"topic": "clicks", "failOnDataLoss": "no"}, "'failondataloss' is 'no', not true or false"),
        ({"subscribePattern": "("}, "not a regular expression over topics' names"),
        ({"topic": "clicks", "subscribePattern": "c"}, "both say which topics"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    cluster: StoredCluster, options: dict[str, str], message: str
) -> None:
    with pytest.raises(SourceError, match=re.escape(message)) as caught:
        Query(cluster, **options).plan_batch()
    assert "\n" not in str(caught.value)


def test_a_batch_read_has_no_limits_of_streams(cluster: StoredCluster) -> None:
    with pytest.raises(SourceError, match="option 'maxoffsetspertrigger' is for "):
        StrandlineSource({"url": cluster.url, "topic": "clicks", "maxOffsetsPerTrigger": "3"}).reader(SCHEMA)


def test_no_checkpoint_yet(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no cluster has published anything there"):
        Query(StoredCluster(tmp_path), topic="clicks").plan_batch()


def test_what_is_committed_comes_once_it_is_stable(tmp_path: Path) -> None:
    made = build_transactional(tmp_path / "objects")
    committed = Query(made.cluster, topic="payments,receipts", maxOffsetsPerTrigger="9")
    committed.run()
    assert committed.found == made.committed()
    everything = Query(made.cluster, topic="payments,receipts", isolationLevel="read_uncommitted")
    everything.run()
    assert everything.found == readable(made.cluster)
    assert everything.found != committed.found


def rows_of(query: Query, splits: Any) -> list[tuple[Any, ...]]:
    """What a batch's tasks read, in order."""
    read = chain.from_iterable(map(query.reader.read, splits))
    return sorted(
        (row["topic"], row["partition"], row["offset"], row["value"])
        for batch in read
        for row in batch.to_pylist()
    )


def test_a_checkpoint_that_is_collected_while_a_batch_is_planned_or_read(tmp_path: Path) -> None:
    """A planner that saw the old one plans by the newer one; a task finds what moved, or says it is gone."""
    cluster = build_collected(tmp_path / "objects")
    query = Query(cluster, topic=TOPICS)
    assert query.plan_batch()
    ends = [json.loads(text) for text in (query.initial, *query.ends)]
    splits = query.reader.partitions(*ends)
    expected, before = readable(cluster), rows_of(query, splits)
    # Level one's objects are merged into others, the lease ends, what it held is deleted.
    reconcile_all(cluster)
    for partition in cluster.partitions.values():
        partition.merge(0, len(partition.machine.level_one))
    cluster.checkpoint()
    cluster.now += LEASE_MS
    cluster.checkpoint()
    assert any(name.startswith("l1/") for name in collect(cluster))
    assert before
    assert rows_of(query, splits) == before
    documents = [path for path in (cluster.root / "snapshots").rglob("*") if path.is_file()]
    hidden = [path.rename(path.with_suffix(".hidden")) for path in documents]
    with pytest.raises((StorageError, SourceError), match="nothing of cluster harbour is published"):
        rows_of(query, splits)
    for path, hid in zip(documents, hidden, strict=True):
        hid.rename(path)
    query.reader._planned = None
    query.reader._looked = 1e12  # it looked just now, it thinks
    assert query.reader.partitions(*ends)
    query.restart()
    query.run()
    assert query.found == expected
    for partition in cluster.partitions.values():
        partition.execute(SetStartOffset(partition.machine.next_offset))
    cluster.checkpoint()
    with pytest.raises(StorageError, match=r"were deleted before they were read.*: start again"):
        rows_of(query, splits)


@pytest.mark.parametrize("step", ["look", "plan", "read"])
def test_a_folder_that_is_away_for_a_while_is_waited_for_once_a_stream_has_begun(
    own: StoredCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, step: str
) -> None:
    """Spark ends a query with its source's first error."""
    away, waits, one = own.root.with_name("away"), [], threading.Lock()

    def sleep(seconds: float) -> None:
        with one:  # a task's threads wait, each for itself
            waits.append(seconds)
            if len(waits) >= 3 and away.exists():
                away.rename(own.root)

    monkeypatch.setattr(patient_storage, "FIRST_WAIT_SECONDS", 4.0)
    monkeypatch.setattr(time, "sleep", sleep)
    query = Query(own, topic="orders", maxOffsetsPerTrigger="20")
    assert query.plan_batch()
    query.run_batch()
    query.committed += 1
    write(own, *own.partitions.values())
    own.checkpoint()
    query.reader._looked = None
    if step == "look":
        own.root.rename(away)
    assert query.plan_batch()
    query.reader._looked = None
    plan = query.reader.partitions

    def planned(*ends: Any) -> Any:
        if step == "plan":
            own.root.rename(away)
        splits = plan(*ends)
        if step == "read":
            own.root.rename(away)
        return splits

    monkeypatch.setattr(query.reader, "partitions", planned)
    query.run_batch()
    query.committed += 1
    monkeypatch.undo()
    query.run()
    assert query.found == readable(own, "orders")
    assert waits[:1] == [4.0]
    assert max(waits) <= patient_storage.LONGEST_WAIT_SECONDS
    told = [record.message for record in caplog.records if record.name == patient_storage.__name__]
    gone = f"{own.url}: the folder is gone, or empty: bring it back, or mount it"
    assert (told[0], told[-1]) == (
        f"{gone}; it is asked again, for up to 600 s",
        f"{own.url} answers again",
    )


def test_a_planner_whose_program_has_ended_waits_no_longer(
    own: StoredCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stayed for the whole ten minutes."""
    waits: list[float] = []
    storage = patient_storage.PatientStorage(open_storage(own.url))
    own.root.rename(own.root.with_name("away"))
    monkeypatch.setattr(time, "sleep", waits.append)
    monkeypatch.setattr(os, "getppid", lambda: 7 if len(waits) < 3 else 1)
    with pytest.raises(StorageError, match="the folder is gone"):
        storage.folders("")
    assert len(waits) == 3


def test_a_folder_that_is_away_for_long_ends_a_stream_and_keeps_another_from_beginning(
    own: StoredCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    query, new = Query(own, topic="orders"), Query(own, topic="orders")
    query.run()
    own.root.rename(own.root.with_name("away"))
    monkeypatch.setattr(time, "sleep", waits.append)
    with pytest.raises(SourceError, match=r"the folder is gone, or empty: bring it back, or mount it$"):
        new.plan_batch()
    assert not waits
    query.reader._looked, query.reader._storage.patience = None, 0.3
    with pytest.raises(SourceError, match=r"the folder is gone, or empty: bring it back, or mount it$"):
        query.plan_batch()
    assert waits
    with pytest.raises(SourceError, match="there is no such folder"):
        StrandlineSource(query.options).streamReader(SCHEMA).initialOffset()


def test_equal_ends_have_equal_tasks(cluster: StoredCluster) -> None:
    query = Query(cluster, topic=TOPICS, minPartitions="4")
    query.run(fresh=False)
    ends = [json.loads(text) for text in (query.initial, *query.ends)]
    first = query.reader.partitions(*ends)
    assert len(first) == 4
    assert query.reader.partitions(*ends) == first
    query.start_reader()
    assert query.reader.partitions(*ends) == first
    assert query.reader.partitions(ends[1], ends[1]) == []


def test_the_tasks_of_a_batch_are_shared_out_to_free_cores(
    cluster: StoredCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(cluster, topic=TOPICS)
    query.run(fresh=False)
    ends = [json.loads(text) for text in (query.initial, *query.ends)]
    query.reader._planned, query.reader._parallelism = None, 2
    assert len(query.reader.partitions(*ends)) == 1
    query.reader._planned = None
    monkeypatch.setattr(stream, "SHARED_BYTES", 1)
    splits = query.reader.partitions(*ends)
    assert len(splits) == 2
    assert len(rows_of(query, splits)) == sum(map(len, readable(cluster).values()))


IMPORTED = """
import gc, pickle, sys
from pathlib import Path
from pyspark import TaskContext
from strandline.snapshot.spark import source
assert not {"pyarrow", "strandline.snapshot.storage"} & set(sys.modules), "to make a source"
source.StrandlineSource({"url": "/objects", "topic": "clicks"}).schema()
assert not {"pyarrow", "strandline.snapshot.storage"} & set(sys.modules), "to tell its columns"
tasks, split = pickle.loads(Path(sys.argv[1]).read_bytes())
print(sum(rows.num_rows for rows in tasks.read(split)))
assert "pandas" not in sys.modules, "to read a task"
assert gc.get_freeze_count() == 0, "outside of a worker"
from strandline.snapshot.spark import python_worker
python_worker.begin.cache_clear()
TaskContext._taskContext = TaskContext()
assert list(tasks.read(split))
assert gc.get_freeze_count() > 10_000
planning = {f"strandline.snapshot.spark.{name}" for name in ("stream", "newest", "views", "plan")}
assert not planning & set(sys.modules), "to read a task"
assert not any(name.startswith("strandline.statemachine.controller") for name in sys.modules)
"""


def test_processes_import_what_their_step_needs(cluster: StoredCluster, tmp_path: Path) -> None:
    query = Query(cluster, topic="clicks")
    assert query.plan_batch()
    (split,) = query.reader.partitions(*map(json.loads, (query.initial, *query.ends)))
    sent = tmp_path / "sent"
    sent.write_bytes(pickle.dumps((query.reader, split)))
    command = [sys.executable, "-c", IMPORTED, str(sent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    assert int(done.stdout) == len(readable(cluster, "clicks")["clicks", 0])


def test_progress_tells_how_far_there_is(cluster: StoredCluster) -> None:
    query = Query(cluster, topic="clicks", maxOffsetsPerTrigger="1")
    assert query.reader.reportLatestOffset() is None
    query.plan_batch()
    told: Any = query.reader.reportLatestOffset()
    assert told["clicks"]["0"] == cluster.partitions["clicks", 0].machine.next_offset
    assert isinstance(next(iter(query.reader._seen())), PartitionView)
