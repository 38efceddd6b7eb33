"""/api/compaction and the metrics of removal: local logs, all copies where this node leads, what fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from strandline.node.admin.compaction import FAILING
from strandline.node.compaction.compaction_measures import Reset
from strandline.node.compaction.removal_minimum import HeldBy
from strandline.statemachine.partition.removal import Removal
from tests.admin.answers import check, refused, samples, schema_of
from tests.admin.compacted import lead, local_log
from tests.admin.small_node import Client, small_node
from tests.raft.mesh.mesh_nodes import on_loop

PARTITIONS = "/api/compaction/partitions"


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
        node.compaction.logs = {replica.group.id: local_log(replica)}
        lead(node, replica)
        (row,) = await pages(client, 100)
        assert row["local"] == {
            "start_offset": 10, "clean_end": 10, "log_end": 60, "mcco": 40, "mxfo": 60, "segments": 1,
            "bytes": 500, "resets": 2, "reset_for": "a file has 3 bytes in place of 4", "problem": None,
        }  # fmt: skip
        assert (row["mtro"], row["mxro"], row["ripe_tombstones"], row["ripe_markers"]) == (20, 25, 15, 0)
        assert (row["waiting_removals"], row["ripens_at_ms"]) == (1, 1_000 + 86_400_000)
        copies = [
            (copy["node"], copy["voter"], copy["mcco"], copy["mxfo"]) for copy in row["leader"]["copies"]
        ]
        assert copies == [(None, False, 20, 25), (1, True, 40, 60), (2, True, 30, 50), (3, False, None, None)]
        held = row["leader"]["tombstones_held"], row["leader"]["markers_held"]
        assert [(one["nodes"], one["level_one"], round(one["seconds"])) for one in held] == [
            ([3], False, 60), ([3], True, 90)
        ]  # fmt: skip
        assert (row["leader"]["error"], row["leader"]["publication_error"]) == (None, None)

        node.removal.leading[replica.group.id].held = HeldBy((), ())
        node.compaction.publication_error = "no space"
        (row,) = await pages(client, 100)
        assert row["leader"]["publication_error"] == "no space"
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
        told = await client.get("/api/compaction")
        check(told, schema_of("/api/compaction"))
        assert (told["logs"], told["failing_count"], len(told["failing"])) == (
            FAILING + 5, FAILING + 4, FAILING
        )  # fmt: skip
        assert told["failing"][0] == {"topic": "a", "partition": 1, "problem": full}
        assert told["resets"] == {"new": 0, "damaged": 3, "behind": 0}
        assert told["entries"] == {"proposed": 7, "in_force": 5}
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
        node.compaction.counters.update(proposed=7, in_force=5, rows=9, heard=4)
        found = samples((await client.ask("GET", "/metrics")).body.decode())
        names = (("partition", "0"), ("topic", "a"))
        assert found["strandline_removal_mtro", names] == 20
        assert found["strandline_removal_log_end", names] == 60
        assert (
            round(found["strandline_removal_held_seconds", (*names[:1], ("records", "markers"), names[1])])
            == 90
        )
        assert found["strandline_removal_entries_total", (("result", "none"),)] == 2
        assert found["strandline_removal_reports_total", (("direction", "heard"),)] == 4
        other = (("partition", "1"), ("topic", "a"))
        assert found["strandline_removal_mtro", other] == 0
        assert ("strandline_removal_log_end", other) not in found
