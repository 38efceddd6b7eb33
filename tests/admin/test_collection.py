"""/api/gc: what is told of garbage, the switches, and what holds a partition back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from strandline.node.admin.collection import FAILING
from strandline.node.controller.client import Unavailable
from strandline.node.controller.cluster_clock import ClockEstimate
from strandline.node.gc.collectable_epochs import Maximum, ReportedEpoch
from strandline.node.gc.collector import DryRun
from strandline.node.level_one.level_one_upkeep import PartitionUpkeep
from strandline.node.objectstore.store import NotDone
from strandline.statemachine.partition.level_one import LevelOneExtent, RemovedObject
from strandline.statemachine.partition.partition_commands import Append, encode
from strandline.statemachine.partition.placeholder import Placeholder
from tests.admin.answers import check, refused, samples, schema_of
from tests.admin.small_node import Client, SmallNode, small_node, until
from tests.raft.mesh.mesh_nodes import on_loop

SWITCHES = ("/api/gc/pause", "/api/gc/resume", "/api/gc/reset")


def upkeep(number: int, waits: float = 0.0, *errors: str) -> PartitionUpkeep:
    return PartitionUpkeep(number + 1, "orders", number, 1, -1, 10, 1000, waits, 0, 0, 0, 0, errors)


@on_loop
async def test_status_tells_m_and_who_holds_it_back(tmp_path: Path) -> None:
    async with small_node(tmp_path) as (node, _, client):
        answer = await client.get("/api/gc")
        check(answer, schema_of("/api/gc"))
        assert (answer["max_collectable_epoch"], answer["cluster_epoch"]) == (3, 5)
        assert answer["held_back"] == {
            "topic": "orders", "partition": 0, "group": 1, "leader": 1,
            "reason": "unreconciled", "since_ms": 1_700_000_000_000,
        }  # fmt: skip
        assert (answer["collector"]["bound"], answer["collector"]["shards"]) == (2, [1, 4])
        node.collectable.top = Maximum(4, 5, None, None, None, None)
        node.collectable.agreed = ClockEstimate(-20_000, trusted=False)
        answer = await client.get("/api/gc")
        check(answer, schema_of("/api/gc"))
        assert answer["held_back"] is None
        assert answer["clock"] == {"trusted": False, "offset_ms": -20_000}
        node.collectable.top = Maximum(2, 5, 99, "gone", 0, None)
        assert (await client.get("/api/gc"))["held_back"]["leader"] is None


@on_loop
async def test_status_tells_where_level_one_fails_the_longest_first_and_no_more_than_a_few(
    tmp_path: Path,
) -> None:
    async with small_node(tmp_path, {}) as (node, _, client):
        node.level_one.partitions = (upkeep(0, 2.0), upkeep(1, 3.0, "no object"), upkeep(2, 7.0, "a", "b"))
        told = (await client.get("/api/gc"))["level_one"]
        assert [(each["partition"], each["errors"]) for each in told["failing"]] == [
            (2, ["a", "b"]), (1, ["no object"])
        ]  # fmt: skip
        assert (told["failing_count"], told["unreconciled_bytes"], told["unreconciled_seconds"]) == (
            2, 3000, 7.0
        )  # fmt: skip
        node.level_one.partitions = tuple(upkeep(number, 1.0, "x") for number in range(FAILING + 5))
        told = (await client.get("/api/gc"))["level_one"]
        assert (len(told["failing"]), told["failing_count"]) == (FAILING, FAILING + 5)


@on_loop
async def test_partitions_come_in_pages_with_what_was_heard_of_each(tmp_path: Path) -> None:
    async with small_node(tmp_path, {"a": 3, "b": 2}) as (node, _, client):
        node.collectable.table = {2: ReportedEpoch(7, 4, 0.0), 3: ReportedEpoch(-5, 4, 0.0)}
        seen = []
        after = ""
        while True:
            page = await client.get(f"/api/gc/partitions?limit=2{after}")
            check(page, schema_of("/api/gc/partitions"))
            seen += page["partitions"]
            if page["next"] is None:
                break
            after = f"&after={page['next']}"
        rows = [(row["topic"], row["partition"], row["max_collectable_epoch"]) for row in seen]
        created = node.machine.topics[0].creation_epoch
        low = created - 1
        assert rows == [("a", 0, low), ("a", 1, 7), ("a", 2, low), ("b", 0, low), ("b", 1, low)]
        assert [row["heard_from_term"] for row in seen] == [None, 4, 4, None, None]
        assert all(row["leader"] == 1 for row in seen)


@on_loop
async def test_pausing_goes_by_the_controller_and_holds_until_it_is_resumed(tmp_path: Path) -> None:
    async with small_node(tmp_path, {}) as (node, _, client):
        for path, paused in (("/api/gc/pause", True), ("/api/gc/pause", True), ("/api/gc/resume", False)):
            answer = await client.ask("POST", path, b"{}")
            check(answer.json(), schema_of(path, "post"))
            assert answer.json() == {"paused": paused}
            assert node.machine.collection_paused is paused
        node.unavailable = Unavailable("no leader", unknown=False)
        assert "nothing was done" in refused(await client.ask("POST", "/api/gc/pause", b"{}"), 503)
        node.unavailable = Unavailable("no answer", unknown=True)
        assert "may have been done" in refused(await client.ask("POST", "/api/gc/pause", b"{}"), 503)
        assert not node.machine.collection_paused


@on_loop
async def test_reset_is_of_this_nodes_collector(tmp_path: Path) -> None:
    async with small_node(tmp_path, {}) as (node, _, client):
        answer = await client.ask("POST", "/api/gc/reset", b"{}")
        check(answer.json(), schema_of("/api/gc/reset", "post"))
        assert node.collector.resets == 1


@on_loop
async def test_what_switches_nothing_is_refused(tmp_path: Path) -> None:
    """A page in an operator's browser can send a form, or no body at all, unasked."""
    async with small_node(tmp_path, {}) as (node, _, client):
        for path in SWITCHES:
            refused(await client.ask("POST", path), 415)
            refused(await client.ask("POST", path, b"{}", "text/plain"), 415)
            assert "empty object" in refused(await client.ask("POST", path, b'{"paused": true}'), 400)
            assert "empty object" in refused(await client.ask("POST", path, b"[]"), 400)
            assert "no parameter" in refused(await client.ask("POST", f"{path}?now=1", b"{}"), 400)
            refused(await client.ask("GET", path), 405)
        assert not node.machine.collection_paused
        assert node.collector.resets == 0


@on_loop
async def test_a_dry_run_shows_what_would_go_one_at_a_time(tmp_path: Path) -> None:
    async with small_node(tmp_path, {}) as (node, _, client):
        answer = await client.get("/api/gc/dry-run")
        check(answer, schema_of("/api/gc/dry-run"))
        assert (answer["epoch"], answer["objects"], answer["shards"]) == (2, 2, {"1": 2, "4": 0})
        assert (await client.get("/api/gc/dry-run?limit=1"))["names"] == ["l0/a"]
        refused(await client.ask("GET", "/api/gc/dry-run?limit=1001"), 400)
        node.collector.gate = asyncio.Event()
        first = asyncio.create_task(client.get("/api/gc/dry-run"))
        await until(lambda: bool(node.collector.gate and node.collector.gate._waiters))
        assert "wait for it" in refused(await client.ask("GET", "/api/gc/dry-run"), 409)
        node.collector.gate.set()
        await first
        node.collector.dry = NotDone("list", "l0/", "the bucket is away", retriable=True)
        assert "the bucket is away" in refused(await client.ask("GET", "/api/gc/dry-run"), 503)
        node.collector.dry = DryRun(2, {1: 0}, [], False)
        assert (await client.get("/api/gc/dry-run"))["objects"] == 0


async def held_back_by(node: SmallNode, client: Client) -> str:
    rows = (await client.get("/api/partitions"))["partitions"]
    return str(rows[0]["held_back_by"])


@on_loop
async def test_a_partition_says_what_holds_it_back_and_what_it_has_in_each_level(tmp_path: Path) -> None:
    async with small_node(tmp_path, {"orders": 1}) as (node, _, client):
        (partition,) = node.partitions
        machine = partition.machine
        assert await held_back_by(node, client) == "idle"
        window = partition.fence.window
        assert window is not None
        placeholder = Placeholder(10, 5, 100, 1, 0, bytes(20), 77, 0, 0)
        command = encode(partition.group.term, 1, [Append(window, [placeholder])])
        await partition.group.replicate(command, partition.group.term)
        assert await held_back_by(node, client) == "unreconciled"
        partition.readers_hold = 1
        assert await held_back_by(node, client) == "reader"
        (row,) = (await client.get("/api/partitions"))["partitions"]
        assert row["max_collectable_epoch"] == machine.max_collectable_epoch - 1
        found = samples((await client.ask("GET", "/metrics")).body.decode())
        name = ("strandline_partition_max_collectable_epoch", (("partition", "0"), ("topic", "orders")))
        assert found[name] == machine.max_collectable_epoch - 1
        partition.leads = False
        assert await held_back_by(node, client) == "unreconciled", "who does not lead holds nothing back"
        partition.leads = True
        machine.level_one.append([LevelOneExtent(0, 10, 5, 300, 20, 1, b"u" * 16)])
        machine.removed += [RemovedObject(4, 1, b"r" * 16, 70), RemovedObject(5, 1, b"s" * 16, 7)]
        (row,) = (await client.get("/api/partitions"))["partitions"]
        check(row, schema_of("/api/partitions")["properties"]["partitions"]["items"])
        assert (row["last_reconciled_offset"], row["extents"], row["level_zero_bytes"]) == (-1, 1, 100)
        assert row["level_one"] == {
            "objects": 1, "bytes": 300, "removed_objects": 2, "removed_bytes": 77
        }  # fmt: skip
        page = samples((await client.ask("GET", "/metrics")).body.decode())
        by_state = {
            (name, dict(labels)["state"]): value
            for (name, labels), value in page.items()
            if name.startswith("strandline_storage_")
        }
        assert by_state == {
            ("strandline_storage_objects", "level_one"): 1, ("strandline_storage_objects", "removed"): 2,
            ("strandline_storage_bytes", "level_zero"): 100, ("strandline_storage_bytes", "level_one"): 300,
            ("strandline_storage_bytes", "removed"): 77,
        }  # fmt: skip
        partition.leads = False
        page = samples((await client.ask("GET", "/metrics")).body.decode())
        assert page["strandline_storage_bytes", (("state", "level_one"),)] == 0, "the leader counts it"


@pytest.mark.parametrize("broken", [None, "an object too many"])
def test_metrics_of_the_collector_are_its_own_numbers(tmp_path: Path, broken: str | None) -> None:
    @on_loop
    async def run() -> None:
        async with small_node(tmp_path, {}) as (node, _, client):
            collector = node.collector
            collector.broken, collector.paused = broken, broken is None
            measures = collector.measures
            measures.sweeps, measures.lists, measures.listed = 11, 12, 13
            measures.deleted, measures.foreign, measures.errors = 14, 15, 16
            node.level_one.measures.reconciled_bytes = 21
            node.level_one.measures.merged_bytes = 22
            node.level_one.measures.orphans_deleted = 23
            node.level_one.measures.removed_deleted = 24
            node.level_one_builder.measures.bytes_read = 25
            node.level_one_reader.measures.bytes_given = 26
            node.clock.agreed = ClockEstimate(1500, trusted=True)
            found = samples((await client.ask("GET", "/metrics")).body.decode())
            told = {
                name.removeprefix("strandline_"): value
                for (name, labels), value in found.items()
                if name.startswith(("strandline_collector", "strandline_clock")) and not labels
            }
            assert told == {
                "collector_max_collectable_epoch": 3, "collector_bound_epoch": 2, "collector_lag_epochs": 2,
                "collector_lag_seconds": 1.5, "collector_paused": broken is None,
                "collector_broken": broken is not None, "collector_sweeps_total": 11,
                "collector_lists_total": 12, "collector_listed_objects_total": 13,
                "collector_deleted_objects_total": 14, "collector_foreign_names": 15,
                "collector_errors_total": 16, "clock_trusted": 1, "clock_offset_seconds": 1.5,
            }  # fmt: skip
            one = "strandline_level_one_"
            assert found[f"{one}written_bytes_total", (("from", "level_zero"),)] == 21
            assert found[f"{one}written_bytes_total", (("from", "level_one"),)] == 22
            assert found[f"{one}deleted_objects_total", (("reason", "orphan"),)] == 23
            assert found[f"{one}deleted_objects_total", (("reason", "removed"),)] == 24
            assert found[f"{one}builder_read_bytes_total", ()] == 25
            assert found[f"{one}reader_given_bytes_total", ()] == 26

    run()
