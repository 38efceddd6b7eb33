"""Hurt a whole cluster again and again under librdkafka's load; show what clients notice and what is kept.

`scripts/failover cluster --rounds 100`: three real nodes on the loopback, a topic of six partitions with
three replicas each, two idempotent producers and a consumer that follows. Each round one fault, drawn from
the seed. After every ten rounds the load stops, everything is read back and compared with what was
acknowledged, a checkpoint is taken and Spark audits the storage; then the whole cluster is stopped and
started again with another period of the cluster epoch. Exits 1 when anything was lost, doubled, out of order
or not well in time, an audit found something, or the 95th percentile of the gaps after a leader was lost is
1.5 s or more.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from strandline.cluster.failure import CommandFailed
from strandline.snapshot.spark.no_spark import NoJava
from strandline.snapshot.spark.session import check_java
from tests.programs.failover.cluster.auditing import audit
from tests.programs.failover.cluster.faults import FAULTS, impossible, schedule
from tests.programs.failover.cluster.load import Load
from tests.programs.failover.cluster.nodes import PARTITIONS, TOPIC, Nodes, NotWell
from tests.programs.failover.cluster.reading import Follower, compare, read_all
from tests.programs.failover.cluster.report import Report, Round, plain, show
from tests.programs.failover.cluster.stores import LocalStorage, S3Storage, Storage
from tests.programs.failover.verdict import longest_gap
from tests.programs.folder_option import existing_folder

ROUNDS_BETWEEN_CHECKS = 10
EPOCH_SECONDS = (0.5, 0.03, 10.0, 0.1)
"""Periods of the cluster epoch, one after the other: usual ones, and some as short as an upload."""
RATE = 400.0
_CALM_SECONDS = (0.5, 1.0)
_ROUND_SECONDS = 150.0
_ACKNOWLEDGED_SECONDS = 30.0
_READ_SECONDS = 120.0
_POLL_SECONDS = 0.02


class Run:
    """One run. Every wait in it has a limit; what goes wrong is in the report."""

    def __init__(self, nodes: Nodes, report: Report, rng: random.Random, *, audits: bool) -> None:
        self._nodes = nodes
        self._report = report
        self._rng = rng
        self._audits = audits
        self._load = Load(nodes.bootstrap, TOPIC, PARTITIONS, rate=RATE)
        self._follower = Follower(nodes.bootstrap, TOPIC, PARTITIONS)

    async def rounds(self, count: int, wanted: Sequence[str]) -> None:
        """Everything, with these kinds of faults, up to the first thing that goes wrong."""
        nodes, report = self._nodes, self._report
        report.left_out = {kind: why for kind, why in impossible(nodes).items() if kind in wanted}
        kinds = [kind for kind in wanted if kind not in report.left_out]
        if not kinds:
            report.findings.append("none of the faults can be done here")
            return
        drawn = schedule(count, kinds, self._rng)
        try:
            for block, first in enumerate(range(0, count, ROUNDS_BETWEEN_CHECKS)):
                epoch_seconds = EPOCH_SECONDS[block % len(EPOCH_SECONDS)]
                await self._begin(block, epoch_seconds)
                for kind in drawn[first : first + ROUNDS_BETWEEN_CHECKS]:
                    done = await asyncio.wait_for(self._round(kind, epoch_seconds), _ROUND_SECONDS)
                    report.rounds.append(done)
                    _say(
                        f"[{len(report.rounds)}/{count}] {kind}: gap {done.gap * 1e3:.0f} ms, longest wait "
                        f"{done.wait * 1e3:.0f} ms, epoch of {epoch_seconds:g} s"
                    )
                    if self._load.told.errors or self._follower.read.findings:
                        return
                await self._check()
                if report.findings:
                    return
        except (NotWell, CommandFailed, TimeoutError) as error:
            report.findings.append(f"round {len(report.rounds) + 1}: {error!r}")
        finally:
            await asyncio.to_thread(self._load.stop)
            await asyncio.to_thread(self._follower.stop)
            report.acknowledged = self._load.told.count
            report.findings += self._load.told.errors + self._follower.read.findings

    async def _begin(self, block: int, epoch_seconds: float) -> None:
        """The cluster with this period of the epoch, and the load on it."""
        if block:
            await self._nodes.down()
        await self._nodes.up(epoch_seconds)
        if block:
            self._load.resume()
        else:
            await self._nodes.create_topic()
            self._load.start()
            self._follower.start()
        await self._acknowledged()

    async def _round(self, kind: str, epoch_seconds: float) -> Round:
        """One fault, its end, and everything well again."""
        nodes, told = self._nodes, self._load.told
        await nodes.spread_leaders()
        await self._acknowledged()
        await asyncio.sleep(self._rng.uniform(*_CALM_SECONDS))
        began = time.monotonic()
        await FAULTS[kind].do(nodes, self._rng)
        await nodes.healthy()
        await self._acknowledged()
        await asyncio.sleep(_CALM_SECONDS[0])
        ended = time.monotonic()
        gap = max(longest_gap(times, began, ended) for times in told.times.values())
        return Round(kind, gap, told.slowest(began, ended), epoch_seconds)

    async def _acknowledged(self) -> None:
        """Wait until every partition has acknowledged something from now on; NotWell if one does not."""
        since = time.monotonic()
        times = self._load.told.times
        while True:
            silent = [
                number
                for number in range(PARTITIONS)
                if not times.get(number) or times[number][-1] <= since
            ]  # fmt: skip
            if not silent:
                return
            if time.monotonic() - since > _ACKNOWLEDGED_SECONDS:
                leaders = await self._nodes.leaders()
                raise NotWell(
                    f"partitions {silent} acknowledged nothing for {_ACKNOWLEDGED_SECONDS:g} s; "
                    f"they are led by {[leaders[number] for number in silent]}"
                )
            await asyncio.sleep(_POLL_SECONDS)

    async def _check(self) -> None:
        """Stop the load, read everything back and compare; then a checkpoint and the audits."""
        report, told = self._report, self._load.told
        left = await asyncio.to_thread(self._load.pause)
        if left:
            report.findings.append(f"{left} records have no answer though all nodes are well")
        read = await asyncio.to_thread(read_all, self._nodes.bootstrap, TOPIC, PARTITIONS, _READ_SECONDS)
        compared = compare(told, read)
        report.checks += 1
        report.read_back, report.lost, report.doubled = read.records, compared.lost, compared.doubled
        report.findings += compared.findings
        if not await asyncio.to_thread(self._follower.caught_up, read.place, _READ_SECONDS):
            report.findings.append(
                f"the consumer that follows is at {self._follower.read.place} of {read.place}"
            )
        report.restaged += sum(each["fences"]["rejections"] for each in await self._nodes.partitions())
        _say(f"read back {read.records:,} records, {compared.lost} lost, {compared.doubled} doubled")
        if self._audits and not report.findings:
            await self._audit()

    async def _audit(self) -> None:
        findings, said = await audit(self._nodes, self._nodes.folder)
        self._report.findings += findings
        self._report.audited += not findings
        _say(said)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


async def drive(
    folder: Path,
    rounds: int,
    seed: int,
    storage: str,
    *,
    kinds: Sequence[str] = tuple(FAULTS),
    audits: bool = True,
    small_disks: bool = True,
) -> Report:
    """A whole run in `folder`, which is left with the nodes' logs; nothing of it runs any more at the end."""
    rng = random.Random(seed)
    report = Report(seed, storage)
    began = time.monotonic()
    place: Storage = (
        await S3Storage.start(random.Random(rng.getrandbits(64)), folder / "s3.log")
        if storage == "s3"
        else LocalStorage(folder / "objects", small_disk=small_disks)
    )
    try:
        nodes = Nodes(folder / "cluster", place, small_disk=small_disks)
        try:
            await Run(nodes, report, rng, audits=audits).rounds(rounds, kinds)
        finally:
            failed = bool(report.failures()) or sys.exc_info()[0] is not None
            try:
                await nodes.close(folder / "small-disk" if failed else None)
            except CommandFailed as error:
                report.findings.append(f"at the end: {error}")
    finally:
        await place.close(folder / "stored" if report.findings else None)
        report.seconds = time.monotonic() - began
    return report


def main(arguments: list[str]) -> int:
    """Exit status: 0 when all held, 1 when something did not."""
    parser = argparse.ArgumentParser(prog="scripts/failover cluster", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20, help="faults, one after another (default: 20)")
    parser.add_argument("--seed", type=int, default=1, help="of kinds and times of the faults (default: 1)")
    parser.add_argument("--storage", choices=("local", "s3"), default="local", help="default: %(default)s")
    parser.add_argument(
        "--fault", choices=FAULTS, action="append", help="only this kind; may be given again (default: all)"
    )
    parser.add_argument("--keep", action="store_true", help="keep logs and objects also when all is well")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    parser.add_argument(
        "--folder",
        type=existing_folder,
        default="/var/tmp",
        help="where the data goes, on a real disk (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error("give at least one round")
    try:
        check_java()
    except NoJava as error:
        parser.error(str(error))
    folder = Path(tempfile.mkdtemp(prefix="strandline-failover-", dir=options.folder))
    _say(f"logs, configurations and objects: {folder}")
    kinds = options.fault or tuple(FAULTS)
    report = asyncio.run(drive(folder, options.rounds, options.seed, options.storage, kinds=kinds))
    if options.keep or report.failures():
        report.folder = str(folder)
    else:
        shutil.rmtree(folder)
    print(json.dumps(plain(report)) if options.json else show(report))
    return 1 if report.failures() else 0
