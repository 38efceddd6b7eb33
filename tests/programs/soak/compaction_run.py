"""Keep a compacted table under kill -9 for a long time, then compare every copy of it with what was written.

`scripts/soak --compaction --minutes 20`: three real nodes, 200,000 keys that are updated and deleted by
idempotent producers and in transactions, of which a quarter is aborted; tombstones and markers ripen within
seconds; kill -9 to a node every 30 s. Then it gets quiet. What a consumer gets from offset 0 with each node
leading each partition, what the files of each local log and the objects of level one hold, and what the Spark
source reads must be the table that the writers know, record by record. What was aborted must have been in the
log and be gone, tombstones that are ripe must be gone, storage must be within a bound, and the audits must
pass.
Exits 1 when any of it does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient as KafkaAdmin
from confluent_kafka.cimpl import NewTopic

from strandline.cluster.failure import CommandFailed
from strandline.cluster.kafka_client import client_config
from strandline.node.compaction.segment_files import LocalLogDamaged
from strandline.snapshot.object_frame import BadObject
from strandline.snapshot.spark.no_spark import NoJava
from strandline.snapshot.spark.session import check_java
from strandline.snapshot.storage import StorageError
from tests.programs.failover.cluster.auditing import audit
from tests.programs.failover.cluster.nodes import NODES, Nodes, NotWell
from tests.programs.failover.cluster.stores import LocalStorage
from tests.programs.folder_option import existing_folder
from tests.programs.soak.compaction_comparison import LEASE_SECONDS, Comparison, status_of
from tests.programs.soak.compaction_load import (
    PARTITIONS,
    TOPIC,
    Place,
    PlainWriter,
    TableWriter,
    TransactionWriter,
)
from tests.programs.soak.compaction_report import Report, show
from tests.programs.soak.compaction_tables import Table, end_offsets
from tests.programs.soak.settings import EPOCH_SECONDS
from tests.programs.soak.watch import say

KEYS: Final = 200_000
CONFIGS: Final = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.2",
    "delete.retention.ms": "3000",
}
INGEST_BYTES: Final = 1 << 20
SETTINGS: Final = (
    "level_one.reconcile_seconds=1",
    "level_one.target_bytes=4MiB",
    "collector.sweep_seconds=2",
    "collector.grace_seconds=5",
    "compaction.ingest_seconds=1",
    f"compaction.ingest_bytes={INGEST_BYTES}",
    "compaction.segment_bytes=8MiB",
    "topics.auto_create=false",
    "log.format=json",
)
SETTLE_SECONDS: Final = 180.0
_STILL_SECONDS: Final = 8.0
_DOWN_SECONDS: Final = (0.5, 3.0)


class CompactionSoak:
    """One run. Every wait in it has a limit; what goes wrong is in the report."""

    def __init__(self, nodes: Nodes, folder: Path, report: Report, *, keys: int, rate: float) -> None:
        """`rate`: records a second of all writers together."""
        self._nodes = nodes
        self._folder = folder
        self._report = report
        self._rng = random.Random(report.seed)
        numbers = list(range(keys))
        kinds: list[tuple[type[TableWriter], list[int]]] = [
            (PlainWriter, numbers[: keys // 2]),
            (TransactionWriter, numbers[keys // 2 : keys * 3 // 4]),
            (TransactionWriter, numbers[keys * 3 // 4 :]),
        ]
        self._writers = [
            kind(nodes.bootstrap, f"writer-{place}", own, rate * len(own) / keys, report.seed + place)
            for place, (kind, own) in enumerate(kinds)
        ]
        self._aborted: set[Place] = set()
        self._graves: dict[bytes, Place] = {}

    async def go(self, seconds: float, kill_every: float, *, audits: bool) -> None:
        """All of it, up to the first thing that goes wrong."""
        report, nodes = self._report, self._nodes
        try:
            await nodes.up(EPOCH_SECONDS)
            await asyncio.to_thread(self._create)
            await self._load(seconds, kill_every)
            say("quiet: the load ends")
            model = await self._ended()
            if report.findings:
                return
            await self._settle()
            compared = Comparison(nodes, report, model, self._aborted, self._graves)
            compared.bounds()
            await compared.each_leads()
            await nodes.healthy()
            await compared.level_one()
            if audits:
                found, said = await audit(nodes, self._folder, lease_seconds=LEASE_SECONDS)
                say(said)
                report.findings += found
                report.audited = not found
                await compared.spark()
            ends = await asyncio.to_thread(end_offsets, nodes.bootstrap)
            await nodes.down()
            compared.local(ends)
        except (
            NotWell, CommandFailed, TimeoutError, KafkaException, LocalLogDamaged, BadObject, StorageError
        ) as error:  # fmt: skip
            report.findings.append(f"{error!r}")
        finally:
            for writer in self._writers:
                writer.stop()

    def _create(self) -> None:
        admin = KafkaAdmin(client_config(self._nodes.bootstrap))
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, len(NODES), config=CONFIGS)])[TOPIC].result(30)

    async def _load(self, seconds: float, kill_every: float) -> None:
        report, began = self._report, time.monotonic()
        for writer in self._writers:
            writer.start()
        due = began + kill_every
        while time.monotonic() < began + seconds and not (found := self._problems()):
            await asyncio.sleep(0.2)
            if kill_every and time.monotonic() >= due:
                node = self._rng.choice(NODES)
                before = self._pid(node)
                await self._nodes.kill(node)
                await asyncio.sleep(self._rng.uniform(*_DOWN_SECONDS))
                await self._nodes.start(node)
                report.kills += self._pid(node) not in (before, None)
                due = max(due + kill_every, time.monotonic())
                written = sum(one.written for one in self._writers)
                say(f"node {node} was killed and is back; {written:,} records written")
        report.load_seconds = time.monotonic() - began
        report.kills_due = int(seconds / kill_every) if kill_every else 0
        report.findings += found
        for writer in self._writers:
            if not writer.filled.is_set():
                report.findings.append(
                    "not every key was written once: more minutes, fewer keys, or no kills"
                )

    def _pid(self, node: int) -> int | None:
        """Of the node's process; None if there is none."""
        return self._nodes.local.description.nodes[node].pid

    async def _ended(self) -> Table:
        """End the writers; what the table must be."""
        report = self._report
        model: Table = {}
        for writer in self._writers:
            writer.stop()
        for writer in self._writers:
            if not await asyncio.to_thread(writer.wait):
                report.findings.append("a writer does not come to its end")
            model |= writer.table
            report.written += writer.written
            report.written_bytes += writer.written_bytes
            report.tombstones += writer.tombstones
            self._graves |= writer.graves
            if isinstance(writer, TransactionWriter):
                self._aborted |= writer.aborted_places
                report.committed += writer.committed
                report.aborted += writer.aborted
                report.doubtful += writer.doubtful
        report.findings += self._problems()
        report.aborted_records, report.deleted_keys = len(self._aborted), len(self._graves)
        report.live_keys = len(model)
        return model

    async def _settle(self) -> None:
        """Wait until every local log has all there is, what may go is ripe, and nothing changes any more."""
        report, began = self._report, time.monotonic()
        await self._nodes.healthy()
        ends = await asyncio.to_thread(end_offsets, self._nodes.bootstrap)
        report.offsets = sum(ends.values())
        last, since = None, began
        while time.monotonic() < began + SETTLE_SECONDS:
            rows = await status_of(self._nodes)
            now = [
                (row["node"], row["partition"], row["local"], row["mtro"], row["ripe_tombstones"])
                for row in rows
            ]
            if now != last:
                last, since = now, time.monotonic()
            whole = len(rows) == PARTITIONS * len(NODES) and all(
                row["local"]["log_end"] == ends[row["partition"]]
                and 0 < row["ripe_tombstones"] == row["mtro"]
                and row["waiting_removals"] == 0
                for row in rows
            )
            if whole and time.monotonic() > since + _STILL_SECONDS:
                report.settled_seconds = since - began
                break
            await asyncio.sleep(0.5)
        rows = await status_of(self._nodes)
        report.findings += [
            f"node {row['node']}, partition {row['partition']}: {row['local']['problem']}"
            for row in rows
            if row["local"]["problem"] is not None
        ]
        ripe = {row["partition"]: row["ripe_tombstones"] for row in rows}
        report.ripe_tombstones = [ripe[partition] for partition in sorted(ripe)]
        report.local_bytes = max((row["local"]["bytes"] for row in rows), default=0)

    def _problems(self) -> list[str]:
        return [f"{type(one).__name__}: {one.problem}" for one in self._writers if one.problem is not None]


async def drive(
    folder: Path, seed: int, *, seconds: float, keys: int, rate: float, kill_every: float, audits: bool
) -> Report:
    """A whole run in `folder`; nothing of it runs any more at the end. SIGTERM ends it as Ctrl-C does."""
    run = asyncio.current_task()
    assert run is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, run.cancel)
    report, began = Report(seed), time.monotonic()
    storage = LocalStorage(folder / "objects", small_disk=False)
    storage.settings = SETTINGS
    nodes = Nodes(folder / "cluster", storage, small_disk=False)
    nodes.links.clear()
    try:
        soak = CompactionSoak(nodes, folder, report, keys=keys, rate=rate)
        await soak.go(seconds, kill_every, audits=audits)
    finally:
        try:
            await nodes.close(None)
        except CommandFailed as error:
            report.findings.append(f"at the end: {error}")
        report.seconds = time.monotonic() - began
    return report


def main(arguments: list[str], run: Callable[..., Any] = drive) -> int:
    """Exit status: 0 when all held, 1 when something did not."""
    parser = argparse.ArgumentParser(prog="scripts/soak --compaction", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=20.0, help="of load (default: %(default)g)")
    parser.add_argument("--keys", type=int, default=KEYS, help="default: %(default)s")
    parser.add_argument("--rate", type=float, default=3000.0, help="records a second (default: %(default)g)")
    parser.add_argument(
        "--kill-every", type=float, default=30.0, help="seconds between kills, 0: none (default: %(default)g)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of what is done when (default: %(default)s)")
    parser.add_argument("--no-audits", action="store_true", help="leave Spark's audits out, and say so")
    parser.add_argument("--keep", action="store_true", help="keep logs and objects also when all is well")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    parser.add_argument(
        "--folder",
        type=existing_folder,
        default="/var/tmp",
        help="where the data goes, on a real disk (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    if not 0 < options.minutes <= 24 * 60 or options.rate <= 0 or options.kill_every < 0 or options.keys < 8:
        parser.error("--minutes and --rate are above 0, --kill-every is not below, --keys is at least 8")
    audits = not options.no_audits
    if audits:
        try:
            check_java()
        except NoJava as error:
            parser.error(str(error))
    folder = Path(tempfile.mkdtemp(prefix="strandline-soak-", dir=options.folder))
    say(f"logs, configurations and objects: {folder}")
    report = asyncio.run(
        run(
            folder, options.seed, seconds=options.minutes * 60, keys=options.keys, rate=options.rate,
            kill_every=options.kill_every, audits=audits,
        )
    )  # fmt: skip
    failures = report.failures(audits=audits)
    if options.keep or failures:
        report.folder = str(folder)
    else:
        shutil.rmtree(folder)
    print(
        json.dumps({"ok": not failures, **asdict(report), "failures": failures})
        if options.json
        else show(report, failures)
    )
    return 1 if failures else 0
