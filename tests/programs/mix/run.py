"""Thousands of partitions under all kinds of work, in too little memory: no leader may change.

`scripts/mix --minutes 10`: three real nodes in a memory cgroup of their own, a topic of 2,093 partitions with
three replicas, a producer, members that come to 40 consumer groups and go, topics that are created and
deleted. After a while without a limit the group gets one that leaves little beside what the processes wrote
to, so that the kernel takes pages of programs, libraries and logs back over and over. No group may have an
election without a fault; then all is read back. Exits 1 when any of it does not hold.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient as KafkaAdmin

from strandline.cluster.admin_client import AdminClient, Unreachable
from strandline.cluster.failure import CommandFailed
from strandline.cluster.kafka_client import client_config
from strandline.cluster.local import NODE_PROGRAM, LocalCluster
from strandline.cluster.local_files import Description
from strandline.cluster.ports import free_ports
from tests.programs.bench.report import shown, table
from tests.programs.failover.cluster.report import found, word_for
from tests.programs.folder_option import existing_folder
from tests.programs.mix.leading import create_topic, seconds_until_led
from tests.programs.mix.load import TOPIC, Load
from tests.programs.mix.memory import MemoryGroup, NoGroup, Use
from tests.programs.mix.private_python import private_python
from tests.programs.mix.squeeze import Squeeze
from tests.programs.mix.watch import LONG_SECONDS, Told, told

_NODES: Final = 3
_SETTINGS: Final = (
    "topics.auto_create=false",
    "log.format=json",
    # What is held comes to rest within a minute.
    "level_one.job_bytes=16MiB",
    "level_one.target_bytes=8MiB",
    "level_one.reconcile_seconds=10s",
    "cache.written_bytes=16MiB",
    "cache.fetched_bytes=8MiB",
    "cache.level_one_bytes=8MiB",
)
LEAST_BEFORE_MINUTES: Final = 0.25
"""With 60 partitions, 0.1 had the nodes read their own programs again and again (3,469,376 pages in 12 s);
0.25 had not."""
_WELL_SECONDS: Final = 60.0
_READ_SECONDS: Final = 300.0
_LOOK_SECONDS: Final = 0.5
_SAY_SECONDS: Final = 15.0


@dataclass
class Report:
    """Filled in as the run goes."""

    partitions: int
    files: int = 0
    limits: tuple[int, int] = (0, 0)
    led_seconds: float = 0.0
    load_seconds: float = 0.0
    most_held: int = 0
    before: Use | None = None
    """Just before the limit."""
    after: Use | None = None
    counts: dict[str, int] = field(default_factory=dict)
    slowest: float = 0.0
    acknowledged: int = 0
    lost: int = 0
    doubled: int = 0
    told: Told = field(default_factory=Told)
    findings: list[str] = field(default_factory=list)
    folder: str | None = None

    def failures(self) -> list[str]:
        """Why the run did not hold; empty when it did."""
        said = [
            f"{count} elections of the rank {rank} without a fault"
            for rank, count in self.told.unwanted().items()
        ]
        if self.lost or self.doubled or not self.acknowledged:
            said.append(
                f"of {self.acknowledged} acknowledged records {self.lost} are lost, {self.doubled} doubled"
            )
        return said + self.findings


class Starved(Exception):
    """The kernel ended a process, as there was nothing to take back."""


class Mix:
    """One run in a folder."""

    def __init__(self, folder: Path, report: Report, rate: float, rng: random.Random) -> None:
        self._report = report
        python = private_python(folder / "python")
        self._group = MemoryGroup.make()
        self._cluster = LocalCluster(folder / "cluster", program=(str(python), *NODE_PROGRAM[1:]))
        self._rate = rate
        self._rng = rng
        self._said = time.monotonic()
        self._squeeze = Squeeze(self._group)

    def go(self, free_seconds: float, seconds: float, files: int) -> None:
        """Load for a while without a limit, and then with one."""
        report = self._report
        try:
            with self._group.entered():
                self._cluster.up(_NODES, choose_ports=free_ports, settings=_SETTINGS)
            self._create()
            load = Load(self._cluster.description.bootstrap, report.partitions, _NODES, self._rate, self._rng)
            load.start()
            try:
                self._watch(load, free_seconds)
                report.before = self._group.use()
                before = self._told()
                began = time.monotonic()
                report.files = files
                self._squeeze.begin(files)
                self._watch(load, seconds)
                report.load_seconds = time.monotonic() - began
            finally:
                load.stop()
            report.after = self._group.use()
            report.most_held = self._squeeze.most_held
            report.limits = (self._squeeze.lowest, self._squeeze.highest)
            if report.after.killed:
                raise Starved(f"the kernel killed {report.after.killed} processes for want of memory")
            report.told = self._told().since(before)
            self._judge(load)
        except (CommandFailed, KafkaException, Unreachable, Starved, TimeoutError) as error:
            report.findings.append(f"{error!r}")

    def close(self) -> None:
        """Nothing of it runs any more."""
        try:
            self._squeeze.stop()
            if Description.load(self._cluster.folder) is not None:
                self._cluster.down()
        finally:
            self._group.close()

    def _create(self) -> None:
        admin = KafkaAdmin(client_config(self._cluster.description.bootstrap))
        began = time.monotonic()
        create_topic(admin, TOPIC, self._report.partitions, _NODES)
        self._report.led_seconds = seconds_until_led(admin, TOPIC, self._report.partitions, began)

    def _watch(self, load: Load, seconds: float) -> None:
        """Let time pass; ends early when something is wrong already."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not load.problems:
            use = self._group.use()
            if use.killed:
                return
            if time.monotonic() - self._said > _SAY_SECONDS:
                self._said = time.monotonic()
                now = self._told()
                say(
                    f"{use.total / 1e6:.0f} MB, {use.held / 1e6:.0f} MB held, {use.refaults:,} refaults, "
                    f"{use.major_faults:,} major faults; {dict(load.counts)}, slowest {load.slowest:.1f} s; "
                    f"elections {now.unwanted()}; late {now.lag_seconds:.0f} s, {now.long_lags} times long"
                )
            time.sleep(_LOOK_SECONDS)

    def _told(self) -> Told:
        return told([node.admin for node in self._cluster.description.nodes.values()])

    def _judge(self, load: Load) -> None:
        """All nodes are well, and hold every record once."""
        report = self._report
        report.counts, report.slowest = dict(load.counts), load.slowest
        deadline = time.monotonic() + _WELL_SECONDS
        nodes = self._cluster.description.nodes.values()
        while sick := {node.node: why for node in nodes if (why := AdminClient(node.admin).health())}:
            if time.monotonic() > deadline:
                report.findings.append(f"not well {_WELL_SECONDS:g} s after the load: {sick}")
                break
            time.sleep(0.2)
        seen = load.read_back(_READ_SECONDS)
        report.acknowledged = len(load.acknowledged)
        report.lost = len(load.acknowledged - seen.keys())
        report.doubled = sum(count > 1 for count in seen.values())
        report.findings += load.problems


def show(report: Report) -> str:
    """The table, and one line that sums it up."""
    before, after, now = report.before, report.after, report.told
    seconds = report.load_seconds or 1.0
    rows = [["partitions", "all led after", shown(report.led_seconds, "s")]]
    if before is not None and after is not None:
        rows += [
            ["memory", "of the nodes, without a limit", shown(before.total, "B")],
            ["", "of it held, at most: no page of a file", shown(report.most_held, "B")],
            ["", "limit, at least and at most", " to ".join(shown(each, "B") for each in report.limits)],
            ["", "of it for pages of files", shown(report.files, "B")],
            ["", "pages taken back and needed again", f"{after.refaults - before.refaults:,}"],
            ["", "waits of a process for such a page", f"{after.major_faults - before.major_faults:,}"],
        ]
    rows += [["work", what, f"{count:,}"] for what, count in sorted(report.counts.items())]
    rows += [
        ["", "longest wait for an acknowledgement", shown(report.slowest, "s")],
        ["loops", f"more than {LONG_SECONDS:g} s late", f"{now.long_lags:,}"],
        ["", "late in all, three nodes", shown(now.lag_seconds, "s")],
        ["", "processor of one core", shown(now.processor_seconds / seconds, "core")],
    ]
    longest = sorted(now.held.items(), key=lambda item: -item[1])[:6]
    rows += [["held up longest by", part, shown(value, "s")] for part, value in longest]
    rows += [["elections", f"{rank}, {cause}", f"{count:,}"]
             for (rank, cause), count in sorted(now.elections.items()) if count]  # fmt: skip
    failures = report.failures()
    lines = [table(["", "", ""], rows), "", *found(failures, report.folder)]
    unwanted = sum(now.unwanted().values())
    lines.append(
        f"mix {word_for(failures)} {report.partitions:,} partitions, {report.load_seconds:.0f} s with "
        f"{report.files / 1e6:.1f} MB for files, {unwanted} elections without a fault, "
        f"{report.acknowledged:,} records acknowledged, {report.lost} lost, {report.doubled} doubled"
    )
    return "\n".join(lines)


def plain(report: Report) -> dict[str, Any]:
    """For JSON."""
    failures = report.failures()
    elections = {f"{rank} {cause}": count for (rank, cause), count in report.told.elections.items()}
    told_plain = {**asdict(report.told), "elections": elections}
    return {"ok": not failures, **asdict(report), "told": told_plain, "failures": failures}


def say(text: str) -> None:
    """A line for the one who waits."""
    print(text, file=sys.stderr, flush=True)


def main(arguments: list[str]) -> int:
    """Exit status: 0 when all held, 1 when something did not, 2 when it cannot be run here."""
    parser = argparse.ArgumentParser(prog="scripts/mix", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="with the limit (default: %(default)g)")
    parser.add_argument("--before", type=float, default=1.0, help="minutes without (default: %(default)g)")
    parser.add_argument("--partitions", type=int, default=2093, help="default: %(default)s")
    parser.add_argument("--rate", type=float, default=200.0, help="records a second (default: %(default)g)")
    parser.add_argument("--files", type=float, default=6.0, metavar="MB",
                        help="what the limit leaves for files' pages (default: %(default)g)")  # fmt: skip
    parser.add_argument("--seed", type=int, default=1, help="of what is done when (default: %(default)s)")
    parser.add_argument("--keep", action="store_true", help="keep logs and objects also when all is well")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    parser.add_argument(
        "--folder", type=existing_folder, default="/var/tmp", help="on a real disk (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    if options.before < LEAST_BEFORE_MINUTES:
        parser.error(
            f"--before {options.before:g}: give {LEAST_BEFORE_MINUTES:g} or more; nodes that have just "
            "started are still reading their programs and libraries, and the limit would starve them"
        )
    folder = Path(tempfile.mkdtemp(prefix="strandline-mix-", dir=options.folder))
    say(f"logs, configurations and objects: {folder}")
    report = Report(options.partitions)
    try:
        mix = Mix(folder, report, options.rate, random.Random(options.seed))
    except NoGroup as error:
        parser.error(str(error))
    for number in (signal.SIGINT, signal.SIGTERM):  # also where a shell has the first ignored
        signal.signal(number, signal.default_int_handler)
    try:
        mix.go(options.before * 60, options.minutes * 60, round(options.files * 1e6))
    finally:
        mix.close()
    if options.keep or report.failures():
        report.folder = str(folder)
    else:
        shutil.rmtree(folder)
    print(json.dumps(plain(report)) if options.json else show(report))
    return 1 if report.failures() else 0
