"""What Spark's side of a cluster costs, beside Spark's Kafka source and sink, and what the cost grows with.

`scripts/bench spark` writes storage of three sizes (1, 4 and 16 times a unit) by the real formats, in which
no node takes part, and runs each job at each size in processes of its own. Times say how long a user waits;
processor time is of all processes together, and can be compared between runs beside other work. Growth is
between the two largest sizes: what a further gigabyte costs. What is left of the largest run is paid once.
The part `beside` has real clusters, Kafka's and Strandline's, at the same work, by turns (`spark_beside.py`).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final

from tests.programs.bench import processor
from tests.programs.bench.processor import Taken
from tests.programs.bench.report import shown, table
from tests.programs.bench.spark_beside import (
    FIRST_READ,
    MEGABYTES,
    NEXT_READ,
    PAIRS,
    SLOWEST_FIRST,
    TURNS,
    WAYS,
    Beside,
    NotHere,
)  # fmt: skip
from tests.programs.bench.spark_driver import JOBS, STAGES, START, Given
from tests.programs.bench.spark_storage import BATCH_BYTES, TOPIC, GrowingStorage, Stored
from tests.programs.bench.spark_turns import HEADER, Broken, Measured, firsts, ratios
from tests.programs.bench.spark_turns import cells as cells_of_turns
from tests.programs.folder_option import existing_folder

TIMES: Final = (1, 4, 16)
UNITS: Final = {"full": 128_000_000, "quick": 16_000_000, "tiny": 500_000}
"""Bytes of values of the smallest size: at 16 times 2 GB."""
PARTITIONS: Final = 6
SIZES: Final = ("read", "stream", "export", "audit")
"""Parts that are run at each size."""
PARTS: Final = (*SIZES, "batches", "partitions", "beside")
BATCHES: Final = {"full": (10_000, 100_000, 1_000_000), "quick": (10_000, 100_000), "tiny": (100, 400)}
TOPIC_PARTITIONS: Final = {"full": (100, 1_000, 10_000), "quick": (100, 1_000), "tiny": (2, 20)}
_SECONDS: Final = 1800.0
"""Longest time of one run."""


@dataclass
class Line:
    """One run of one job. Times in seconds."""

    job: str
    what: str
    """The size, in words."""
    bytes: int = 0
    records: int = 0
    batches: int = 0
    seconds: float = 0.0
    """As a user waits, from the command to its end."""
    start: float | None = None
    """Of these until the session was there."""
    work: float | None = None
    """Of the job alone."""
    cpu: float = 0.0
    memory: int = 0
    problem: str | None = None


@dataclass
class Report:
    """Filled in as the run goes."""

    scale: str
    lines: list[Line] = field(default_factory=list)
    measured: list[Measured] = field(default_factory=list)
    """Of `beside`."""

    @property
    def problems(self) -> list[str]:
        return [f"{line.job}, {line.what}: {line.problem}" for line in self.lines if line.problem]


@dataclass(frozen=True)
class Turns:
    """How much of `beside` is run; None for what its scale has."""

    jobs: Sequence[str] | None = None
    turns: int | None = None
    megabytes: float | None = None


class Run:
    """All jobs at all sizes, below one folder."""

    def __init__(
        self,
        folder: Path,
        report: Report,
        record_bytes: Sequence[int],
        parts: Sequence[str],
        turns: Turns = Turns(),
    ) -> None:
        self._folder = folder
        self._report = report
        self._record_bytes = record_bytes
        self._parts = parts
        self._turns = turns

    def go(self) -> None:
        scale = self._report.scale
        unit = UNITS[scale]
        # A growth is told by two sizes; the smallest is for the curve.
        growing = self._record_bytes[:1] if scale == "quick" else self._record_bytes
        for size in growing if {*SIZES} & {*self._parts} else ():
            root = self._folder / f"records-{size}"
            storage = GrowingStorage(root / "objects", size, max(1, BATCH_BYTES // size), PARTITIONS)
            for times in TIMES[1:] if scale == "quick" else TIMES:
                stored = storage.grow(max(1, unit * times // BATCH_BYTES))
                what = f"{size:,} B a record, {stored.bytes / 1e6:,.0f} MB"
                for part in self._parts:
                    if part in JOBS:
                        self._stored(part, what, stored, root)
                    elif part == "export":
                        self._export(what, stored, root / f"export-{times}")
                    elif part == "audit":
                        self._audit(what, stored)
        if "batches" in self._parts:
            storage = GrowingStorage(self._folder / "batches" / "objects", 100, 1, PARTITIONS)
            for count in BATCHES[self._report.scale]:
                stored = storage.grow(count)
                what = f"{count:,} batches of a record"
                self._stored("read", what, stored, self._folder / "batches")
                self._audit(what, stored)
        for count in TOPIC_PARTITIONS[scale] if "partitions" in self._parts else ():
            root = self._folder / f"partitions-{count}"
            stored = GrowingStorage(root / "objects", 100, 1, count).grow(count)
            what = f"{count:,} partitions of a batch"
            self._stored("read", what, stored, root)
            self._audit(what, stored)
        for size in self._record_bytes if "beside" in self._parts else ():
            self._beside(size)

    def _stored(self, job: str, what: str, stored: Stored, root: Path) -> None:
        given = Given("strandline", TOPIC, {"url": stored.url}, records=stored.records)
        with tempfile.TemporaryDirectory(dir=root) as kept:
            driver = [sys.executable, "-m", "tests.programs.bench.spark_driver", job]
            taken = self._run([*driver, json.dumps(asdict(given)), kept, *STAGES[job]])
        self._done(self._line(job, what, stored, taken), taken, stored.records)

    def _beside(self, size: int) -> None:
        """Everything at the first size; of further ones what is read, where it is to be quick."""
        scale, root, asked = self._report.scale, self._folder / f"beside-{size}", self._turns
        root.mkdir()
        jobs = ["read"] if scale == "quick" and size != self._record_bytes[0] else list(WAYS)
        try:
            Beside(root, asked.megabytes or MEGABYTES[scale], size).go(
                asked.jobs or jobs, asked.turns or TURNS[scale], self._report.measured.append
            )
        except (NotHere, Broken) as error:
            line = Line("beside", f"{size:,} B a record", problem=f"{error}")
            self._report.lines.append(line)

    def _done(self, line: Line, taken: Taken, records: int) -> None:
        if line.problem is not None:
            return
        told = {stage["stage"]: stage for stage in map(json.loads, taken.output.strip().splitlines())}
        self._report.lines.remove(line)
        for name in STAGES[line.job]:
            # The first one with the session that was started for it.
            start = told[START] if name == STAGES[line.job][0] else None
            each = replace(line, job=f"{line.job}, {name}", work=told[name]["seconds"])
            stages = [told[name], start] if start else [told[name]]
            each.seconds, each.cpu = (sum(one[what] for one in stages) for what in ("seconds", "spark"))
            each.start = start["seconds"] if start else None
            if told[name]["records"] != records:
                each.problem = f"{told[name]['records']:,} records of {records:,} were there"
            self._report.lines.append(each)

    def _export(self, what: str, stored: Stored, target: Path) -> None:
        command = ["export", TOPIC, "--storage", stored.url, "--cluster-id", stored.cluster, "--json"]
        line = self._line("export", what, stored, self._strandline(*command, "--to", str(target)))
        if line.problem is None and not any(target.rglob("*.parquet")):
            line.problem = "there is no file"

    def _audit(self, what: str, stored: Stored) -> None:
        """Everything, and once more with nothing new."""
        command = ["audit", "--storage", stored.url, "--cluster-id", stored.cluster, "--json"]
        self._line("audit --full", what, stored, self._strandline(*command, "--full"))
        self._line("audit again", what, stored, self._strandline(*command))

    def _strandline(self, *command: str) -> Taken:
        return self._run([sys.executable, "-m", "strandline", *command])

    def _run(self, command: Sequence[str]) -> Taken:
        print(" ".join(command[2:5]), "...", file=sys.stderr, flush=True)
        return processor.run(command, _SECONDS)

    def _line(self, job: str, what: str, stored: Stored, taken: Taken) -> Line:
        line = Line(job, what, stored.bytes, stored.records, stored.batches, taken.seconds)
        line.cpu, line.memory = taken.cpu, taken.memory
        if taken.status:
            line.problem = (taken.errors or taken.output).strip()[-300:] or f"exit code {taken.status}"
        self._report.lines.append(line)
        return line


def cells(lines: Sequence[Line]) -> Iterator[list[str]]:
    """The rows of the table."""
    before = ""
    for line in lines:
        speed = line.work or line.seconds
        yield [
            line.job if line.job != before else "",
            line.what,
            shown(line.seconds, "s"),
            shown(line.start, "s"),
            shown(line.bytes / speed if speed else None, "B/s"),
            shown(line.records / speed if speed else None, "/s"),
            shown(line.cpu, "s"),
            shown(line.memory, "B"),
        ]
        before = line.job


def growth(lines: Sequence[Line]) -> Iterator[str]:
    """What a job's processor time grows with, by its two largest runs of a kind."""
    kinds: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        if line.problem is None:
            per = f"GB at {line.what.partition(' a record')[0]} a record"
            if line.what.endswith(("batches of a record", "partitions of a batch")):
                per = "batch" if "batches" in line.what else "partition"
            kinds.setdefault((line.job, per), []).append(line)
    for (job, per), some in kinds.items():
        if len(some) < 2:
            continue
        first, last = some[-2:]
        sizes = [line.bytes / 1e9 if per.startswith("GB") else line.batches for line in (first, last)]
        each = (last.cpu - first.cpu) / (sizes[1] - sizes[0])
        start = last.cpu - each * sizes[1]
        grows, once = (shown(max(0.0, value), "s") for value in (each, start))
        yield f"{job}: {grows} of processor a {per}, and {once} once"


def main(argv: Sequence[str]) -> int:
    """Run it; exits 1 when a job went wrong. Progress goes to stderr, the table to stdout."""
    parser = argparse.ArgumentParser(prog="scripts/bench spark", description=__doc__.partition("\n")[0])
    size = parser.add_mutually_exclusive_group()
    for name, text in (("quick", "an eighth of everything"), ("tiny", "only shows that it works")):
        size.add_argument(
            f"--{name}", dest="scale", action="store_const", const=name, default="full", help=text
        )
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--record-bytes", nargs="+", type=int, default=[1000, 100], metavar="N")
    parser.add_argument(
        "--jobs", nargs="+", choices=list(WAYS), metavar="JOB", help="of beside: read, stream, sink"
    )
    parser.add_argument("--turns", type=int, metavar="N", help="of beside, in which each way works once; 3")
    parser.add_argument("--megabytes", type=float, metavar="N", help="of beside: values of its topic; 2000")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    parser.add_argument("--folder", type=existing_folder, default="/var/tmp", help="where the storage goes")
    arguments = parser.parse_args(argv)
    report, began, load = Report(arguments.scale), time.monotonic(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="strandline-bench-", dir=arguments.folder) as folder:
        turns = Turns(arguments.jobs, arguments.turns, arguments.megabytes)
        Run(Path(folder), report, arguments.record_bytes, arguments.only or PARTS, turns).go()
    seconds = time.monotonic() - began
    if arguments.json:
        print(
            json.dumps(
                {"ok": not report.problems, "seconds": round(seconds, 1), "load": load, **asdict(report)}
            )
        )
    else:
        print(f"Spark and exports on {os.cpu_count()} cores, load average {load:.1f} before\n")
        header = ["", "", "whole run", "start", "bytes", "records", "processor", "largest process"]
        if report.lines:
            print(table(header, list(cells(report.lines))))
            print("\n" + "\n".join(f"- {line}" for line in growth(report.lines)))
        if report.measured:
            print("\nBy turns: medians, processor of Spark and of the servers that it asked\n")
            print(table(HEADER, list(cells_of_turns(report.measured))))
            compared = [
                *ratios(report.measured, PAIRS),
                *firsts(report.measured, FIRST_READ, NEXT_READ, SLOWEST_FIRST),
            ]
            print("\n" + "\n".join(f"- {line}" for line in compared))
        print("\n".join(f"- FAILED: {problem}" for problem in report.problems))
        runs = len(report.lines) + len(report.measured)
        word = f"failed: {len(report.problems)} went wrong" if report.problems else "ok"
        print(f"bench spark {word}: {runs} runs, {seconds:.0f} s")
    return 1 if report.problems else 0
