"""Compares every copy of a compacted table with what its writers know, when nothing is written any more."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Set
from typing import Any, Final

from strandline.cluster.admin_client import AdminClient, Unreachable
from strandline.node.compaction.log_folders import stored_logs
from strandline.node.raft.disk import RealDisk
from tests.programs.failover.cluster.nodes import NODES, Nodes, NotWell
from tests.programs.soak.compaction_load import PARTITIONS, TOPIC, Place
from tests.programs.soak.compaction_report import Report
from tests.programs.soak.compaction_tables import (
    Table,
    consumed,
    differences,
    end_offsets,
    expected,
    left_over,
    level_one_copy,
    local_copies,
    removed,
    spark_table,
    unripe,
)
from tests.programs.soak.stored import stored

RECORD_OVERHEAD: Final = 90
"""Bytes of a record beside key and value, if its batch has no other: the header's 61, and lengths."""
SLACK: Final = 2.0
"""At a dirty ratio of 0.2 a log has up to 1.25 times its table, and level one up to 1.25 times that."""
SLACK_BYTES: Final = 16 << 20
"""Of a copy of a partition: segments, and objects of level one, that are not due for anything yet."""
LEAD_ROUNDS: Final = 14
CHECKPOINT_SECONDS: Final = 60.0
LEASE_SECONDS: Final = 3600.0
"""Of the checkpoints that are read: longer than all that is looked at takes."""
_SILENT_SECONDS: Final = 2.0
"""A leader hands over to no follower that was silent for so long."""


async def status_of(nodes: Nodes) -> list[dict[str, Any]]:
    """Each replica's compaction, of the nodes that answer."""
    found = []
    for node in nodes.ids.values():
        try:
            answer = await asyncio.to_thread(
                AdminClient(node.admin).request, "GET", f"/api/compaction/partitions?topic={TOPIC}"
            )
        except Unreachable:
            continue
        if answer.status == 200:
            found += [{**row, "node": node.node} for row in answer.body["partitions"]]
    return found


class Comparison:
    """What is found goes into the report."""

    def __init__(
        self,
        nodes: Nodes,
        report: Report,
        model: Table,
        aborted: Collection[Place],
        graves: Mapping[bytes, Place],
    ) -> None:
        """`aborted`: records of aborted transactions that were acknowledged; `graves`: tombstones of the
        keys that are deleted."""
        self._nodes = nodes
        self._report = report
        self._wanted = expected(model)
        self._aborted = aborted
        self._graves = graves

    def bounds(self) -> None:
        """Note what storage holds, and may hold."""
        report, sizes = self._report, []
        for table in self._wanted.values():
            sizes.append(sum(len(key) + len(value) + RECORD_OVERHEAD for key, value in table.items()))
        report.local_bound = int(SLACK * max(sizes)) + SLACK_BYTES
        report.level_one_bytes = stored(self._nodes.storage).level_one.bytes
        report.level_one_bound = int(SLACK * sum(sizes)) + PARTITIONS * SLACK_BYTES

    async def each_leads(self) -> None:
        """Read each partition from 0 with each node leading it."""
        wanted, seen = self._wanted, set[tuple[int, int]]()
        for _ in range(LEAD_ROUNDS):
            leaders = await self._leaders()
            for partition, node in leaders.items():
                if (partition, node) in seen:
                    continue
                copies = {
                    isolation: await asyncio.to_thread(consumed, self._nodes.bootstrap, partition, isolation)
                    for isolation in ("read_committed", "read_uncommitted")
                }
                if (await self._leaders())[partition] != node:
                    continue
                seen.add((partition, node))
                for isolation, copy in copies.items():
                    where = f"partition {partition} read from 0 ({isolation}), led by node {node}"
                    self._report.findings += differences(where, copy.table, wanted[partition])
                    self._report.findings += left_over(where, copy, self._aborted, copy.end_offset)
            self._report.led = len(seen)
            if len(seen) == PARTITIONS * len(NODES):
                return
            lacking = [
                partition for partition in wanted if sum(at == partition for at, _ in seen) < len(NODES)
            ]
            await self._move(leaders[lacking[0]], {at for one, at in seen if one == lacking[0]})

    async def _move(self, leader: int, seen: Set[int]) -> None:
        """Stop the leader, which hands over to a node outside of `seen` if there is one.

        A node that has led already stands still meanwhile: two would hand a partition to and fro.
        """
        paused = sorted(seen - {leader})[:1]
        for node in paused:
            self._nodes.pause(node)
        try:
            if paused:
                await asyncio.sleep(_SILENT_SECONDS)
            await self._nodes.stop(leader)
        finally:
            for node in paused:
                self._nodes.resume(node)
        await self._nodes.start(leader)

    async def _leaders(self) -> dict[int, int]:
        """Raises NotWell if a partition has none for long."""
        for _ in range(200):
            rows = (await self._nodes.ask(f"/api/topics/{TOPIC}"))["partitions"]
            found = {row["partition"]: row["leader"] for row in rows}
            if len(found) == PARTITIONS and None not in found.values():
                return found
            await asyncio.sleep(0.1)
        raise NotWell(f"{TOPIC} has no leaders")

    async def level_one(self) -> None:
        """Take a checkpoint, and compare the objects of level one that it names."""
        body = {"timeout_seconds": CHECKPOINT_SECONDS, "lease_seconds": LEASE_SECONDS}
        await self._nodes.ask("/api/checkpoints", "POST", body, seconds=CHECKPOINT_SECONDS + 10)
        ends = await asyncio.to_thread(end_offsets, self._nodes.bootstrap)
        groups = {row["partition"]: row["group"] for row in await status_of(self._nodes)}
        wanted, storage = self._wanted, self._nodes.storage
        for topic_id, partition in stored_logs(RealDisk(), str(self._nodes.ids[NODES[0]].data)):
            found = await asyncio.to_thread(
                level_one_copy, storage, self._nodes.cluster_id, partition, groups[partition], topic_id
            )
            where = f"level one of partition {partition}"
            self._report.findings += differences(where, found.copy.table, wanted[partition])
            self._report.findings += left_over(where, found.raw, self._aborted, found.settled)
            there = [place for place in self._aborted if place.partition == partition]
            self._report.level_one_aborted += sum(place.offset in found.raw.offsets for place in there)
            if found.copy.end_offset != ends[partition]:
                self._report.findings.append(
                    f"{where} ends at {found.copy.end_offset}, not {ends[partition]}"
                )
            self._report.level_one += 1

    async def spark(self) -> None:
        """Compare what the Spark source reads of the newest checkpoint, which the audits took."""
        tables = await asyncio.to_thread(spark_table, self._nodes.storage)
        for partition, wanted in self._wanted.items():
            self._report.findings += differences(f"Spark, partition {partition}", tables[partition], wanted)
            self._report.spark += 1

    def local(self, ends: dict[int, int]) -> None:
        """Compare the files of every node's local logs; the nodes do not run."""
        report, wanted, fewest = self._report, self._wanted, list[int]()
        for node, described in self._nodes.ids.items():
            fewest.append(0)
            for copy in local_copies(described.data, self._nodes.cluster_id):
                where = f"local log of partition {copy.partition} on node {node}"
                report.findings += differences(where, copy.table, wanted[copy.partition])
                report.findings += left_over(where, copy, self._aborted, copy.end_offset)
                report.findings += unripe(where, copy, report.ripe_tombstones[copy.partition])
                fewest[-1] += removed(copy, self._graves)
                if copy.end_offset != ends[copy.partition]:
                    report.findings.append(f"{where} ends at {copy.end_offset}, not {ends[copy.partition]}")
                report.local_logs += 1
        report.removed_tombstones = min(fewest)
