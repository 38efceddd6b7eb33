"""What must hold when it is quiet: an empty level zero, a level one that is named, and all that is retained.

Bounds are stated where they are used, with what they come from.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Any

from strandline.cluster.admin_client import AdminClient, Unreachable
from tests.programs.failover.cluster.nodes import Nodes, NotWell
from tests.programs.soak.ledger import Compared, TopicRead, compare, newest_below, oldest_from
from tests.programs.soak.life import Life
from tests.programs.soak.reading import read_back
from tests.programs.soak.report import Report
from tests.programs.soak.settings import (
    CHECK_SECONDS,
    EPOCH_SECONDS,
    GRACE_SECONDS,
    KEPT_CHECKPOINTS,
    RECONCILE_SECONDS,
    SWEEP_SECONDS,
    TARGET_BYTES,
)
from tests.programs.soak.stored import stored
from tests.programs.soak.topics import RETENTION_BYTES, RETENTION_SECONDS, Goes
from tests.programs.soak.watch import collection, say

DRAIN_SECONDS = 60.0 + RECONCILE_SECONDS + 12 * EPOCH_SECONDS + GRACE_SECONDS + 2 * SWEEP_SECONDS
"""How long level zero may take to drain: the last reconciling, idle partitions following the epoch, grace and
sweep; and a minute for leases that still run, elections, and a machine that is busy."""
SETTLE_SECONDS = 60.0
"""How long level one may take to hold what is named and nothing else."""
RECORD_OVERHEAD = 110
"""Bytes of a record that is a batch of its own, beside its value: the header of the batch (61), the record's
fields (up to 30), its part of an object's index and frame."""
OBJECT_BYTES = 2 * TARGET_BYTES
"""More than a level-one object takes."""
LATE_SECONDS = 2 * CHECK_SECONDS + RECONCILE_SECONDS + 30.0
"""How much older than retention.ms the oldest record may be: checks, and the time that an object spans."""
_READ_SECONDS = 600.0
_POLL_SECONDS = 1.0


async def judge(nodes: Nodes, report: Report, lives: Sequence[Life], began: float) -> None:
    """All of it, into the report. `began`: when the load ended, on the monotonic clock."""
    await _drained(nodes, report, began)
    say(f"level zero is empty after {report.drained_seconds} s")
    await _settled(nodes, report)
    say("everything again from the disks: all nodes are stopped and started")
    await nodes.down()
    await nodes.up(EPOCH_SECONDS)
    compared, reads = Compared(), []
    for life in lives:
        read = TopicRead(life.topic.name, life.streams)
        await asyncio.to_thread(read_back, nodes.bootstrap, read, life.topic.partitions, _READ_SECONDS)
        compared.add(await asyncio.to_thread(compare, read))
        reads.append(read)
        say(f"read back {life.topic.name}: {read.records:,} records")
    report.expected, report.read_back = compared.expected, compared.read
    report.lost, report.moved, report.doubled = compared.lost, compared.moved, compared.doubled
    report.findings += compared.findings
    for life, read in zip(lives, reads, strict=True):
        report.findings += retention_findings(life, read, time.time())
    rows = await _settled(nodes, report)
    lows = {(row["topic"], row["partition"]): row["start_offset"] for row in rows}
    for read in reads:
        for partition in read.partitions:
            records, size = read.retained(partition, lows[read.topic, partition])
            report.retained_records += records
            report.retained_bytes += size
    # Retention takes whole objects, DeleteRecords any offset: the object that holds it stays.
    cut = sum(life.topic.partitions for life in lives if life.topic.goes is Goes.TRIMMED)
    report.bound_bytes = RECORD_OVERHEAD * report.retained_records + OBJECT_BYTES * cut


async def _drained(nodes: Nodes, report: Report, began: float) -> None:
    """Wait until level zero holds nothing."""
    while True:
        there = await asyncio.to_thread(stored, nodes.storage)
        if not there.level_zero.objects:
            report.drained_seconds = round(time.monotonic() - began, 1)
            return
        if time.monotonic() - began > DRAIN_SECONDS:
            told = await collection(nodes)
            raise NotWell(
                f"{DRAIN_SECONDS:g} s after the load ended level zero holds {there.level_zero.objects} "
                f"objects; the nodes say: {json.dumps(told)[:6_000]}"
            )
        await asyncio.sleep(_POLL_SECONDS)


async def _settled(nodes: Nodes, report: Report) -> list[Any]:
    """Wait until level one is what the leaders name, or as long as that may take; then note what there is.

    What the leaders say of their partitions, at a moment when nothing changed.
    """
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        rows = await _led(nodes)
        there = await asyncio.to_thread(stored, nodes.storage)
        report.level_zero_objects = there.level_zero.objects
        report.level_one_objects, report.level_one_bytes = there.level_one
        report.checkpoint_documents, report.checkpoint_bytes = there.checkpoints
        report.named_objects = sum(row["level_one"]["objects"] for row in rows)
        report.named_bytes = sum(row["level_one"]["bytes"] for row in rows)
        same = there.level_one == (report.named_objects, report.named_bytes)
        if same and not there.level_zero.objects and _starts(await _led(nodes)) == _starts(rows):
            return rows
        if time.monotonic() > deadline:
            return rows
        await asyncio.sleep(_POLL_SECONDS)


def _starts(rows: Sequence[Any]) -> list[tuple[Any, ...]]:
    return sorted((row["group"], row["start_offset"], row["level_one"]["objects"]) for row in rows)


async def _led(nodes: Nodes) -> list[Any]:
    """What each partition's leader tells of it."""
    return await _led_of(nodes, "partitions")


async def _led_of(nodes: Nodes, kind: str) -> list[Any]:
    """Rows of a page of the HTTP API, `partitions` or `coordinators`, from each one's leader."""
    rows = []
    for node in nodes.ids.values():
        try:
            answer = await asyncio.to_thread(
                AdminClient(node.admin).request, "GET", f"/api/{kind}?limit=1000"
            )
        except Unreachable as error:
            raise NotWell(f"node {node.node} does not answer: {error}") from error
        rows += [row for row in answer.body[kind] if row["leads"]]
    return rows


async def judge_checkpoints(nodes: Nodes, report: Report) -> None:
    """Documents only of groups there are, and no more of each than are kept, leased and just taken.

    To be asked once a checkpoint was taken: restarted nodes publish again those that they apply again, and
    the next checkpoint removes what is not retained.
    """
    present = {row["group"] for row in [*await _led(nodes), *await _led_of(nodes, "coordinators")]} | {0}
    there = await asyncio.to_thread(stored, nodes.storage)
    gone = sorted(set(there.checkpoint_groups) - present)
    if gone:
        report.findings.append(f"there are documents of groups {gone[:20]}, whose topics are gone")
    # A document from each node and one log for each; one leased and one just taken beside those kept.
    most = (KEPT_CHECKPOINTS + 2) * (len(nodes.ids) + 1)
    for group, count in sorted(there.checkpoint_groups.items()):
        if count > most:
            report.findings.append(f"group {group} has {count} documents of checkpoints, {most} is the most")


def retention_findings(life: Life, read: TopicRead, now: float) -> list[str]:
    """Whether what went had to go, and what had to go went; `now` is the wall clock, in seconds."""
    found = []
    for partition, kept in sorted(read.partitions.items()):
        name, low = f"{life.topic.name}-{partition}", kept.low
        match life.topic.goes:
            case Goes.NEVER | Goes.RENEWED:
                if low:
                    found.append(f"{name} begins at {low}, and nothing was to be deleted")
            case Goes.TRIMMED:
                told, asked = life.low_told.get(partition, 0), life.low_asked.get(partition, 0)
                if not told <= low <= asked:
                    found.append(f"{name} begins at {low}; DeleteRecords: asked {asked}, answered {told}")
            case Goes.SIZE:
                whole = kept.bytes + RECORD_OVERHEAD * kept.records
                if low and whole < RETENTION_BYTES:
                    found.append(f"{name} keeps {whole:,} B at most; retention.bytes is {RETENTION_BYTES:,}")
                # The oldest object goes when what remains is as much as is kept.
                if kept.bytes > RETENTION_BYTES + OBJECT_BYTES:
                    found.append(
                        f"{name} keeps {kept.bytes:,} B; retention.bytes and one object are "
                        f"{RETENTION_BYTES + OBJECT_BYTES:,}"
                    )
            case Goes.TIME:
                gone = newest_below(life.streams.values(), partition, low)
                if gone is not None and now - gone < RETENTION_SECONDS:
                    found.append(f"{name}: a record of {now - gone:.1f} s ago is deleted already")
                oldest = oldest_from(life.streams.values(), partition, low)
                if oldest is not None and now - oldest > RETENTION_SECONDS + LATE_SECONDS:
                    found.append(f"{name}: a record of {now - oldest:.1f} s ago is still there")
    return found
