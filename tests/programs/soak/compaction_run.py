"""Keep a compacted table under kill -9 for a long time, then compare every copy of it with what was written.

`scripts/soak --compaction --minutes 20`: three real nodes, 200,000 keys that are updated and deleted by
idempotent producers and in transactions, of which a quarter is aborted; tombstones and markers ripen within
seconds; kill -9 to a node every 30 s. Then it gets quiet. What a consumer gets from offset 0 with each node
leading each partition, what the files of each local log hold, and what the audits find in level one must be
the table that the writers know; and storage must be within a bound. Exits 1 when any of it does not hold.
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
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient as KafkaAdmin
from confluent_kafka.cimpl import NewTopic

from strandline.cluster.admin_client import AdminClient, Unreachable
from strandline.cluster.failure import CommandFailed
from strandline.cluster.kafka_client import client_config
from strandline.node.compaction.segment_files import LocalLogDamaged
from strandline.snapshot.spark.session import NoJava, check_java
from tests.programs.failover.cluster.auditing import audit
from tests.programs.failover.cluster.nodes import NODES, Nodes, NotWell
from tests.programs.failover.cluster.stores import LocalStorage
from tests.programs.soak.compaction_load import (
    PARTITIONS,
    TOPIC,
    PlainWriter,
    TableWriter,
    TransactionWriter,
)
from tests.programs.soak.compaction_tables import (
    Table,
    consumed,
    differences,
    end_offsets,
    expected,
    local_tables,
)
from tests.programs.soak.settings import EPOCH_SECONDS
from tests.programs.soak.stored import stored
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
RECORD_OVERHEAD: Final = 90
"""Bytes of a record beside key and value, if its batch has no other: the header's 61, and lengths."""
SLACK: Final = 2.0
"""At a dirty ratio of 0.2 a log has up to 1.25 times its table, and level one up to 1.25 times that."""
SLACK_BYTES: Final = 16 << 20
"""Of a copy of a partition: segments, and objects of level one, that are not due for anything yet."""
SETTLE_SECONDS: Final = 180.0
LEAD_ROUNDS: Final = 14
_STILL_SECONDS: Final = 8.0
_DOWN_SECONDS: Final = (0.5, 3.0)
_LOST_LEAD_SECONDS: Final = 2.0


@dataclass
class Report:
    """Filled in as the run goes; what it says at any moment is true so far."""

    seed: int
    load_seconds: float = 0.0
    seconds: float = 0.0
    kills: int = 0
    written: int = 0
    """Records, those of aborted transactions not counted."""
    committed: int = 0
    aborted: int = 0
    doubtful: int = 0
    """Transactions whose end was not known; their keys were written again."""
    offsets: int = 0
    """Of both partitions, markers and aborted records included."""
    live_keys: int = 0
    ripe_tombstones: list[int] = field(default_factory=list)
    """By partition, the offset below which tombstones may go, at the end."""
    settled_seconds: float | None = None
    """From the end of the load until nothing was left to be cleaned."""
    led: int = 0
    """Pairs of a partition and a node that led it while it was read from 0."""
    local_logs: int = 0
    """Local logs whose files were read and compared."""
    local_bytes: int = 0
    """Of the largest local log."""
    local_bound: int = 0
    level_one_bytes: int = 0
    level_one_bound: int = 0
    audited: bool = False
    findings: list[str] = field(default_factory=list)
    folder: str | None = None
    """Where logs, configurations and objects are, if they were kept."""

    def failures(self, *, audits: bool = True) -> list[str]:
        """Why the run did not hold; empty when it did."""
        wanted = PARTITIONS * len(NODES)
        found = [
            (self.settled_seconds is None, "the local logs, or what may be removed, did not come to rest"),
            (not self.live_keys, "the table is empty"),
            (not self.aborted, "no transaction was aborted"),
            (not any(self.ripe_tombstones), "no tombstone ripened"),
            (self.led < wanted, f"{self.led} of {wanted} pairs of partition and leader were read"),
            (self.local_logs < wanted, f"{self.local_logs} of {wanted} local logs were compared"),
            (
                self.local_bytes > self.local_bound,
                f"a local log has {self.local_bytes:,} B, above {self.local_bound:,}",
            ),
            (
                self.level_one_bytes > self.level_one_bound,
                f"level one has {self.level_one_bytes:,} B, above {self.level_one_bound:,}",
            ),
            (audits and not self.audited, "the audits did not all pass"),
        ]
        return [text for wrong, text in found if wrong] + self.findings


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
            self._bounds(model)
            await self._each_leads(model)
            if audits:
                await nodes.healthy()
                found, said = await audit(nodes, self._folder, lease_seconds=3600.0)
                say(said)
                report.findings += found
                report.audited = not found
            ends = await asyncio.to_thread(end_offsets, nodes.bootstrap)
            await nodes.down()
            self._local(model, ends)
        except (NotWell, CommandFailed, TimeoutError, KafkaException, LocalLogDamaged) as error:
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
                await self._nodes.kill(node)
                await asyncio.sleep(self._rng.uniform(*_DOWN_SECONDS))
                await self._nodes.start(node)
                report.kills += 1
                due = max(due + kill_every, time.monotonic())
                written = sum(one.written for one in self._writers)
                say(f"node {node} was killed and is back; {written:,} records written")
        report.load_seconds = time.monotonic() - began
        report.findings += found
        for writer in self._writers:
            if not writer.filled.is_set():
                report.findings.append(
                    "not every key was written once: more minutes, fewer keys, or no kills"
                )

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
            if isinstance(writer, TransactionWriter):
                report.committed += writer.committed
                report.aborted += writer.aborted
                report.doubtful += writer.doubtful
        report.findings += self._problems()
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
            rows = await self._status()
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
        rows = await self._status()
        report.findings += [
            f"node {row['node']}, partition {row['partition']}: {row['local']['problem']}"
            for row in rows
            if row["local"]["problem"] is not None
        ]
        ripe = {row["partition"]: row["ripe_tombstones"] for row in rows}
        report.ripe_tombstones = [ripe[partition] for partition in sorted(ripe)]
        report.local_bytes = max((row["local"]["bytes"] for row in rows), default=0)

    async def _status(self) -> list[dict[str, Any]]:
        """Each replica's compaction, of the nodes that answer."""
        found = []
        for node in self._nodes.ids.values():
            try:
                answer = await asyncio.to_thread(
                    AdminClient(node.admin).request, "GET", f"/api/compaction/partitions?topic={TOPIC}"
                )
            except Unreachable:
                continue
            if answer.status == 200:
                found += [{**row, "node": node.node} for row in answer.body["partitions"]]
        return found

    def _bounds(self, model: Table) -> None:
        report, sizes = self._report, []
        for table in expected(model).values():
            sizes.append(sum(len(key) + len(value) + RECORD_OVERHEAD for key, value in table.items()))
        report.local_bound = int(SLACK * max(sizes)) + SLACK_BYTES
        report.level_one_bytes = stored(self._nodes.storage).level_one.bytes
        report.level_one_bound = int(SLACK * sum(sizes)) + PARTITIONS * SLACK_BYTES

    async def _each_leads(self, model: Table) -> None:
        """Read each partition from 0 with each node leading it; kill -9 moves what a node leads."""
        wanted, seen = expected(model), set[tuple[int, int]]()
        for _ in range(LEAD_ROUNDS):
            leaders = await self._leaders()
            for partition, node in leaders.items():
                if (partition, node) in seen:
                    continue
                table = await asyncio.to_thread(consumed, self._nodes.bootstrap, partition)
                if (await self._leaders())[partition] != node:
                    continue
                seen.add((partition, node))
                where = f"partition {partition} read from 0, led by node {node}"
                self._report.findings += differences(where, table, wanted[partition])
            self._report.led = len(seen)
            if len(seen) == PARTITIONS * len(NODES):
                return
            lacking = [
                partition for partition in wanted if sum(at == partition for at, _ in seen) < len(NODES)
            ]
            node = leaders[lacking[0]]
            await self._nodes.kill(node)
            await asyncio.sleep(_LOST_LEAD_SECONDS)
            await self._nodes.start(node)

    async def _leaders(self) -> dict[int, int]:
        """Raises NotWell if a partition has none for long."""
        for _ in range(200):
            rows = (await self._nodes.ask(f"/api/topics/{TOPIC}"))["partitions"]
            found = {row["partition"]: row["leader"] for row in rows}
            if len(found) == PARTITIONS and None not in found.values():
                return found
            await asyncio.sleep(0.1)
        raise NotWell(f"{TOPIC} has no leaders")

    def _local(self, model: Table, ends: dict[int, int]) -> None:
        """Compare the files of every node's local logs; the nodes do not run."""
        wanted = expected(model)
        for node, described in self._nodes.ids.items():
            for log in local_tables(described.data, self._nodes.cluster_id):
                where = f"local log of partition {log.partition} on node {node}"
                self._report.findings += differences(where, log.table, wanted[log.partition])
                if log.log_end != ends[log.partition]:
                    self._report.findings.append(f"{where} ends at {log.log_end}, not {ends[log.partition]}")
                self._report.local_logs += 1

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


def show(report: Report, failures: list[str]) -> str:
    """Lines for a person."""
    facts = {name: value for name, value in asdict(report).items() if name not in ("findings", "folder")}
    lines = [f"{name.replace('_', ' '):<20}{_shown(value)}" for name, value in facts.items()]
    lines += [f"- FAILED: {failure}" for failure in failures]
    if report.folder is not None:
        lines.append(f"- kept: {report.folder}")
    lines.append(
        f"compaction soak {'failed' if failures else 'ok'}: {report.load_seconds:.0f} s of load,"
        f" {report.kills} kills, {report.written:,} records written, {report.live_keys:,} keys left,"
        f" {report.led} reads and {report.local_logs} local logs compared, {report.seconds:.0f} s"
    )
    return "\n".join(lines)


def _shown(value: Any) -> str:
    return (
        f"{value:,.1f}"
        if isinstance(value, float)
        else f"{value:,}"
        if isinstance(value, int)
        else f"{value}"
    )


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
        "--folder", default="/var/tmp", help="where the data goes, on a real disk (default: %(default)s)"
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
