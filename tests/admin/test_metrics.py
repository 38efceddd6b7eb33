"""/metrics: every documented metric and no other, readable by Prometheus' own parser, never in the way."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from strandline.node.admin.exposition import CONTENT_TYPE, Metric, Page, Type, label
from strandline.node.admin.health import REASONS
from strandline.node.admin.loop_lag import LoopLag
from strandline.node.admin.metric_names import METRICS
from strandline.node.admin.metrics import Metrics
from strandline.node.level_zero.batcher import Stored
from strandline.node.level_zero.measures import Histogram
from strandline.node.runtime.slices import Slices
from strandline.statemachine.groups.group_commands import CommitOffsets, PartitionOffset, TopicOffsets
from strandline.statemachine.partition.epoch_window import EpochWindow, StaleClusterEpoch
from strandline.statemachine.partition.partition import PartitionStateMachine
from strandline.statemachine.partition.partition_commands import Append, encode
from strandline.statemachine.partition.placeholder import Placeholder
from tests import ROOT
from tests.admin.answers import samples
from tests.admin.compacted import lead, local_log
from tests.admin.small_node import FakePartition, small_node, until, version_that_runs
from tests.raft.mesh.mesh_nodes import on_loop
from tests.statemachine.groups_harness import Groups

DOCS = (ROOT / "docs" / "operating.md").read_text()
REFERS = re.compile(r"^(Their|Those|These|Its|It)\b|\b(these|them|that (log|number))\b|\b(below|of) it\b")
"""What needs the words of another description."""


def test_the_page_of_the_docs_lists_every_metric_as_it_is() -> None:
    rows = re.findall(r"^[|] `([a-z_]+)` [|] (\w+) [|] (.*) [|] (.*) [|] (.*) [|]$", DOCS, re.MULTILINE)
    expected = [
        (m.name, m.type.value, m.unit, ", ".join(f"`{name}`" for name in m.labels), m.meaning)
        for m in METRICS
    ]
    assert rows == expected
    assert {reason for reason in REASONS if f"`{reason}`" not in DOCS} == set()


def test_a_description_is_understood_without_the_others() -> None:
    """Prometheus and Grafana show one metric at a time."""
    assert [metric.name for metric in METRICS if REFERS.search(metric.meaning)] == []
    assert REFERS.search("Their bytes.")
    assert REFERS.search("Bytes of these objects.")


def test_names_follow_the_rules_of_prometheus() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert re.fullmatch(r"(process|strandline)_[a-z0-9_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.type is Type.COUNTER)
        assert ("_bytes" in metric.name) == (metric.unit == "bytes"), metric.name
        assert ("_seconds" in metric.name) == (metric.unit == "seconds"), metric.name
        assert metric.meaning.endswith(".")


@on_loop
async def test_the_page_has_every_metric_and_the_values_of_the_counters(tmp_path: Path) -> None:
    async with small_node(tmp_path) as (node, server, client):
        result = await node.batcher.stage(bytes(16), 0, b"x" * 100)
        assert isinstance(result, Stored)
        partition = node.partitions[0]
        window = partition.fence.window
        assert window is not None
        placeholder = Placeholder(10, 5, 100, 1, 0, result.object_id, 77, 0, 0)
        command = encode(partition.group.term, 1, [Append(window, [placeholder])])
        await partition.group.replicate(command, partition.group.term)
        partition.fence.window = window.slide(4)
        counters = partition.fence.counters
        counters.slides, counters.new_epoch_fences, counters.same_epoch_fences = 2, 5, 7
        partition.fence.counters.rejected(StaleClusterEpoch(0, 3, 4))
        partition.writer.duplicates = 6
        node.partitions[1].fence.window = None
        node.compaction.logs = {partition.group.id: local_log(partition)}
        lead(node, partition)
        node.registered = False
        assert (await client.ask("GET", "/api/none")).status == 404
        # Two of its kind would be peers, and it has none.
        node.machine._state.put_node(node.machine.nodes[1]._replace(node=2, fenced=True))
        orders, groups = node.machine.topic("orders"), Groups()
        assert orders is not None
        rows = [TopicOffsets(orders.topic_id, "orders", [PartitionOffset(0, 4, -1, "")])]
        groups.do(CommitOffsets("readers", "", -1, None, rows))
        bounds = SimpleNamespace(refused=3)
        node.coordinators.groups = [SimpleNamespace(number=0, machine=groups.machine, bounds=bounds)]
        await until(lambda: server.lag.seconds.count > 0)
        server.lag.held.note(Counter({"raft.host.RaftHost._tick": 1}), 0.25)

        node.throttles.throttled["producer_byte_rate", "user=a"] = 3
        node.throttles.seconds["producer_byte_rate", "user=a"] = 1.5

        listener = SimpleNamespace(not_after=2e9, close=lambda: None)
        node.kafka._keepers["public"] = listener  # type: ignore[assignment]
        node.host.mesh._connector._tls = listener  # type: ignore[assignment]
        node.kafka._tokens["public"] = SimpleNamespace(key_reads={"ok": 3, "failed": 1})  # type: ignore[assignment]

        start = {"orders-0": partition.machine.start_offset}
        node.views.processes = [version_that_runs({"phase": "following", "cut": start})]

        answer = await client.ask("GET", "/metrics")
        assert answer.headers["content-type"] == CONTENT_TYPE
        text = answer.body.decode()
        declared = re.findall("^# TYPE ([a-z_]+) ([a-z]+)$", text, re.MULTILINE)
        # This port is without TLS and tokens; test_token_logins.py has one with them.
        of_tls = {"strandline_http_certificate_end_seconds", "strandline_http_token_key_reads_total"}
        assert declared == [(one.name, one.type.value) for one in METRICS if one.name not in of_tls]
        found = samples(text)
        by_labels = {metric.name: metric.labels for metric in METRICS}
        for name, pairs in found:
            base = re.sub("_(bucket|sum|count)$", "", name) if name not in by_labels else name
            assert tuple(sorted(by_labels[base])) == tuple(n for n, _ in pairs if n != "le"), name

        first = (("partition", "0"), ("topic", "orders"))
        throttled = (("entity", "user=a"), ("quota", "producer_byte_rate"))
        expected = {
            ("strandline_kafka_throttled_total", throttled): 3,
            ("strandline_kafka_throttled_seconds_total", throttled): 1.5,
            ("strandline_coordinator_most_groups", ()): 1,
            ("strandline_coordinator_most_offsets", ()): 1,
            ("strandline_coordinator_most_offset_bytes", ()): 128 + 7 + 64 + 64 + 6,
            ("strandline_coordinator_refused_total", ()): 3,
            ("strandline_batcher_objects_total", (("result", "stored"),)): 1,
            ("strandline_batcher_batches_total", (("result", "stored"),)): 1,
            ("strandline_batcher_upload_seconds_count", ()): 1,
            ("strandline_batcher_upload_seconds_bucket", (("le", "+Inf"),)): 1,
            ("strandline_partition_high_watermark", first): 10,
            ("strandline_partition_extents", first): 1,
            ("strandline_partition_producers", first): 1,
            ("strandline_consumer_group_lag", (("group", "readers"), *first)): 6,
            ("strandline_partition_max_collectable_epoch", first): 0,
            ("strandline_partition_leader", first): 1,
            ("strandline_epoch_window_oldest", first): 1,
            ("strandline_epoch_window_newest", first): 4,
            ("strandline_epoch_window_size", first): 4,
            ("strandline_epoch_window_slides_total", first): 2,
            ("strandline_epoch_fences_total", (("epoch", "new"), *first)): 5,
            ("strandline_epoch_fences_total", (("epoch", "same"), *first)): 7,
            ("strandline_epoch_window_rejections_total", first): 1,
            ("strandline_epoch_window_last_gap", first): 3,
            ("strandline_partition_duplicate_batches_total", first): 6,
            ("strandline_raft_groups", (("role", "leader"),)): 5,
            ("strandline_raft_groups", (("role", "follower"),)): 0,
            ("strandline_raft_elections_total", (("cause", "first"), ("rank", "partition"))): 5,
            ("strandline_raft_elections_total", (("cause", "silence"), ("rank", "controller"))): 0,
            ("strandline_controller_leader", ()): 1,
            ("strandline_controller_partitions", ()): 4,
            ("strandline_controller_nodes", (("state", "fenced"),)): 1,
            ("strandline_mesh_connected", (("peer", "2"),)): 0,
            ("strandline_healthy", ()): 0,
            ("strandline_http_requests_total", (("code", "404"),)): 1,
        }
        assert {key: found[key] for key in expected} == expected
        follower = node.partitions[2]
        follower.leads, follower.fence.window = False, None
        found = samples((await client.ask("GET", "/metrics")).body.decode())
        counted = {name for name, labels in found if labels == (("partition", "2"), ("topic", "orders"))}
        assert len(counted) == 15, "a follower has no windows and no fences, and most replicas follow"
        own = ("strandline_partition_", "strandline_epoch_")
        assert sum(name.startswith(own) and set(first) <= set(labels) for name, labels in found) == 24
        follower.fence.counters.slides = 1
        found = samples((await client.ask("GET", "/metrics")).body.decode())
        assert found["strandline_epoch_window_slides_total", (("partition", "2"), ("topic", "orders"))] == 1
        assert ("strandline_epoch_window_size", (("partition", "1"), ("topic", "orders"))) not in found
        assert found["process_resident_memory_bytes", ()] > 10_000_000
        assert abs(found["process_start_time_seconds", ()] - time.time()) < 7_200


@on_loop
async def test_a_topic_made_anew_while_the_old_one_is_still_here_is_told_once(tmp_path: Path) -> None:
    async with small_node(tmp_path, {"orders": 2}) as (node, _, client):
        old, other = node.partitions
        node.partitions[:] = [FakePartition(other.group, other.machine, "orders", 0, leads=False), old]
        page = (await client.ask("GET", "/metrics")).body.decode()
        assert samples(page)["strandline_partition_leader", (("partition", "0"), ("topic", "orders"))] == 0


@on_loop
async def test_histograms_and_labels_are_written_as_the_format_wants() -> None:
    page = Page(
        [Metric("a", Type.HISTOGRAM, "x", "A \\ and\na line."), Metric("b", Type.GAUGE, "x", "B.", ("c",))]
    )
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.add(value)
    page.add_histogram("a", histogram)
    page.add("b", 1.5, label("c", 'a "b" \\ c\nd'))
    text = (await page.text(Slices())).decode()
    assert samples(text) == {
        ("a_bucket", (("le", "1.0"),)): 2, ("a_bucket", (("le", "2.0"),)): 3,
        ("a_bucket", (("le", "+Inf"),)): 4,
        ("a_sum", ()): 12, ("a_count", ()): 4, ("b", (("c", 'a "b" \\ c\nd'),)): 1.5,
    }  # fmt: skip
    with pytest.raises(KeyError):
        page.add("undeclared", 1)


@on_loop
async def test_a_thousand_partitions_do_not_hold_up_the_loop(tmp_path: Path) -> None:
    """Everything between two steps of another task is what a request would have waited."""
    async with small_node(tmp_path, {}) as (node, _, _):
        node.partitions[:] = [_a_partition(number) for number in range(1000)]
        metrics = Metrics(node, LoopLag(node.host.ticker, time.perf_counter), Counter())
        stop = False
        gaps: list[float] = []

        async def another() -> None:
            while not stop:
                # Time of this thread: other processes of the machine may hold it up as they like.
                before = time.thread_time()
                await asyncio.sleep(0)
                gaps.append(time.thread_time() - before)

        task = asyncio.create_task(another())
        await asyncio.sleep(0)
        page = await metrics.page()
        stop = True
        await task
        assert page.count(b"strandline_partition_high_watermark{") == 1000
        assert max(gaps) < 0.01
        assert len(gaps) >= 3


def _a_partition(number: int) -> FakePartition:
    class Identity:
        id = number + 1

    replica = FakePartition(Identity(), PartitionStateMachine(1, lambda index, state: None), "big", number)
    replica.fence.window = EpochWindow(1, 1, 1)
    return replica
