"""/api/compaction and the metrics of removal: local logs, all copies where this node leads, what fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from strandline.node.admin.compaction import FAILING
from strandline.node.compaction.compaction_measures import Reset
from strandline.node.compaction.compaction_upkeep import UnderWay
from strandline.node.compaction.removal_leader import SeenOpen
from strandline.statemachine.partition.holds import Hold
from strandline.statemachine.partition.removal import Removal
from tests.admin.answers import check, refused, samples, schema_of
from tests.admin.compacted import lead, local_log
from tests.admin.small_node import Answer, Client, SmallNode, small_node
from tests.raft.mesh.mesh_nodes import on_loop

PARTITIONS = "/api/compaction/partitions"
HOLDS = "/api/compaction/holds"


async def pages(client: Client, limit: int, more: str = "") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    after = ""
    while True:
        page = await client.get(f"{PARTITIONS}?limit={limit}{more}{after}")
        check(page, schema_of(PARTITIONS))
        found += page["partitions"]
        if page["next"] is None:
            return found
        after = f"&after={page['next']}"


@on_loop
async def test_a_leader_tells_all_copies_and_who_holds_back_what(tmp_path: Path) -> None:
    async with small_node(tmp_path) as (node, _, client):
        replica = node.partitions[0]
        removals = replica.machine.removals
        removals.mtro, removals.mxro, removals.ripe_tombstones = 20, 25, 15
        removals.waiting = [Removal(20, 25, 1_000)]
        replica.machine.holds.put(Hold("table", 12, 9_000))
        node.compaction.logs = {replica.group.id: local_log(replica)}
        lead(node, replica)
        (row,) = await pages(client, 100)
        assert row["local"] == {
            "start_offset": 10, "clean_end": 10, "log_end": 60, "mcco": 40, "mxfo": 60, "segments": 1,
            "bytes": 500, "resets": 2, "reset_for": "a file has 3 bytes in place of 4", "reset_seconds": None,
            "problem": None,
        }  # fmt: skip
        assert row["due"] is False
        assert (row["mtro"], row["mxro"], row["ripe_tombstones"], row["ripe_markers"]) == (20, 25, 15, 0)
        assert (row["waiting_removals"], row["ripens_at_ms"]) == (1, 1_000 + 86_400_000)
        assert row["holds"] == [{"reader": "table", "offset": 12, "until_ms": 9_000}]
        copies = [
            (copy["node"], copy["voter"], copy["mcco"], copy["mxfo"]) for copy in row["leader"]["copies"]
        ]
        assert copies == [(None, False, 20, 25), (1, True, 40, 60), (2, True, 30, 50), (3, False, None, None)]
        held = row["leader"]["tombstones_held"], row["leader"]["markers_held"]
        assert [(one["nodes"], one["level_one"], round(one["seconds"])) for one in held] == [
            ([3], False, 60), ([3], True, 90)
        ]  # fmt: skip
        assert (row["leader"]["error"], row["leader"]["publication_error"]) == (None, None)
        assert (row["leader"]["open_transaction"], row["leader"]["lifting_error"]) == (None, None)

        led = node.removal.leading[replica.group.id]
        led.tombstones_held, led.markers_held = {}, {}
        led.open_transaction = SeenOpen(4_000, 17, node.loop.time() - 30)
        node.compaction.publication_error = "no space"
        (row,) = await pages(client, 100)
        assert row["leader"]["publication_error"] == "no space"
        opened = row["leader"]["open_transaction"]
        assert (opened["producer_id"], opened["first_offset"], round(opened["seconds"])) == (4_000, 17, 30)
        assert (row["leader"]["tombstones_held"], row["leader"]["markers_held"]) == (None, None)
        replica.leader_epoch = 9
        (row,) = await pages(client, 100)
        assert row["leader"] is None, "it was known in another term"


@on_loop
async def test_partitions_come_in_pages_and_of_one_topic(tmp_path: Path) -> None:
    async with small_node(tmp_path, {"a": 3, "b": 2}) as (node, _, client):
        node.compaction.logs = {one.group.id: local_log(one, opened=False) for one in node.partitions}
        rows = await pages(client, 2)
        assert [(row["topic"], row["partition"]) for row in rows] == [
            ("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1)
        ]  # fmt: skip
        assert rows[0]["local"]["clean_end"] is None
        assert [row["topic"] for row in await pages(client, 2, "&topic=b")] == ["b", "b"]
        assert await pages(client, 2, "&topic=c") == []
        refused(await client.ask("GET", f"{PARTITIONS}?group=1"), 400)
        node.partitions.pop()
        assert len(await pages(client, 2)) == 4, "a log whose replica has just left"


@on_loop
async def test_the_summary_counts_all_logs_and_names_the_first_that_fail(tmp_path: Path) -> None:
    async with small_node(tmp_path, {"a": FAILING + 5}) as (node, _, client):
        full = "the local log cannot be changed: No space left on device"
        node.compaction.logs = {
            one.group.id: local_log(one, problem=full if one.number else None) for one in node.partitions
        }
        node.compaction.measures.resets[Reset.DAMAGED] = 3
        node.compaction.counters.update(proposed=7, in_force=5)
        node.compaction.working = [UnderWay("a", 2, "fill", 75.0)]
        told = await client.get("/api/compaction")
        check(told, schema_of("/api/compaction"))
        assert (told["logs"], told["failing_count"], len(told["failing"])) == (
            FAILING + 5, FAILING + 4, FAILING
        )  # fmt: skip
        assert told["failing"][0] == {"topic": "a", "partition": 1, "problem": full}
        assert told["resets"] == {"new": 0, "damaged": 3, "behind": 0}
        assert told["entries"] == {"proposed": 7, "in_force": 5}
        assert told["under_way"] == [{"topic": "a", "partition": 2, "work": "fill", "seconds": 75.0}]
        assert told["clock_trusted"] is True
        refused(await client.ask("GET", "/api/compaction?limit=1"), 400)


@on_loop
async def test_metrics_have_the_offsets_of_removal_and_how_long_they_are_held(tmp_path: Path) -> None:
    async with small_node(tmp_path, {"a": 2}) as (node, _, client):
        first, second = node.partitions
        node.compaction.logs = {
            first.group.id: local_log(first),
            second.group.id: local_log(second, opened=False),
        }
        lead(node, first)
        first.machine.removals.mtro = 20
        first.machine.holds.put(Hold("table", 12, 9_000))
        node.compaction.counters.update(proposed=7, in_force=5, rows=9, heard=4)
        found = samples((await client.ask("GET", "/metrics")).body.decode())
        names = (("partition", "0"), ("topic", "a"))
        assert found["strandline_removal_mtro", names] == 20
        assert found["strandline_removal_log_end", names] == 60
        assert found["strandline_removal_holds", names] == 1
        assert (
            round(found["strandline_removal_held_seconds", (*names[:1], ("records", "markers"), names[1])])
            == 90
        )
        assert found["strandline_removal_entries_total", (("result", "none"),)] == 2
        assert found["strandline_removal_reports_total", (("direction", "heard"),)] == 4
        other = (("partition", "1"), ("topic", "a"))
        assert found["strandline_removal_mtro", other] == 0
        assert ("strandline_removal_log_end", other) not in found


async def post(client: Client, path: str, body: Any) -> Answer:
    return await client.ask("POST", path, json.dumps(body).encode())


def compact(node: SmallNode, name: str) -> None:
    topic = node.machine.topic(name)
    assert topic is not None
    node.machine._state.by_name[name] = topic._replace(configs={"cleanup.policy": "compact"})


@on_loop
async def test_holds_are_renewed_for_the_partitions_that_are_named_or_for_all(tmp_path: Path) -> None:
    async with small_node(tmp_path, {"a": 2, "b": 1}) as (node, _, client):
        compact(node, "a")
        told = await post(client, HOLDS, {"topic": "a", "reader": "table"})
        check(told.json(), schema_of(HOLDS, "post"))
        row = {"partition": 0, "offset": 7, "until_ms": 1_000, "lowest": None, "error": None}
        assert told.json() == {
            "complete": True, "topic": "a", "reader": "table", "partitions": [row, {**row, "partition": 1}],
        }  # fmt: skip
        node.holding.lost = {1}
        asked = {"topic": "a", "reader": "table", "offsets": {"1": 5}, "lease_seconds": 1.5}
        told = await post(client, HOLDS, asked)
        check(told.json(), schema_of(HOLDS, "post"))
        assert (told.json()["complete"], told.json()["partitions"][0]["lowest"]) == (False, 99)
        told = await post(client, f"{HOLDS}/release", {"topic": "a", "reader": "table"})
        check(told.json(), schema_of(f"{HOLDS}/release", "post"))
        assert node.holding.asked == [
            ("a", "table", {0: None, 1: None}, 3_600_000),
            ("a", "table", {1: 5}, 1_500),
            ("a", "table", [0, 1]),
        ]  # fmt: skip
        good = {"topic": "a", "reader": "table"}
        for body, status, why in (
            ({"reader": "table"}, 400, "topic and reader are missing"),
            ({**good, "reader": ""}, 400, "1 to 249 bytes"),
            ({**good, "reader": "\u00e9" * 125}, 400, "1 to 249 bytes"),
            ({**good, "offsets": []}, 400, "by partition"),
            ({**good, "offsets": {}}, 400, "by partition"),
            ({**good, "offsets": {"-1": 5}}, 400, "by partition"),
            ({**good, "offsets": {"0": -5}}, 400, "by partition"),
            ({**good, "offsets": {"0": True}}, 400, "by partition"),
            ({**good, "lease_seconds": 604_801}, 400, "from 1 to 604800"),
            ({**good, "more": 1}, 400, "there is no 'more'"),
            ({**good, "offsets": {"2": 5}}, 404, "a has no partition 2"),
            ({**good, "topic": "c"}, 404, "there is no topic 'c'"),
            ({**good, "topic": "b"}, 409, "b is not compacted"),
        ):
            assert why in refused(await post(client, HOLDS, body), status)
        assert len(node.holding.asked) == 3
