"""Measure the product against what it replaces, in one run on one machine.

`scripts/bench raft` compares the replicated log with stock PySyncObj 0.3.17: three processes each on the
loopback, real disks, the load inside the leader's process. Times are as the proposer of a command sees them.

`scripts/bench kafka` compares a whole cluster with Apache Kafka, `scripts/bench gc` tells what level one and
collecting cost, `scripts/bench compaction` compares compaction with Kafka's log cleaner, `scripts/bench
inline` compares small batches in the log with objects only, `scripts/bench partitions` tells what thousands
of partitions cost, `scripts/bench sizes` what the controller's state costs in clusters of any size,
`scripts/bench far` what a store does that is far away, and `scripts/bench spark` what Spark and exports cost
and grow with; their options are their own (kafka_compare.py, gc_bench.py, compaction_bench.py,
inline_bench.py, partitions_bench.py, cluster_sizes.py, far_bench.py, spark_bench.py, views_bench.py).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from tests.programs.bench import (
    cluster_sizes,
    compaction_bench,
    far_bench,
    gc_bench,
    inline_bench,
    kafka_compare,
    measures,
    partitions_bench,
    spark_bench,
    views_bench,
)
from tests.programs.bench.measures import FULL, QUICK, TINY, Result, Scale
from tests.programs.bench.report import Row, lines, plain, table
from tests.programs.bench.systems import StockPySyncObj, Strandline, System
from tests.programs.folder_option import existing_folder
from tests.programs.processes.control import NodeDied, NodeFailed

SCALES = {"full": FULL, "quick": QUICK, "tiny": TINY}
PARTS = ("load", "groups", "idle", "start", "recovery", "snapshot")
_MEASURE_SECONDS = 400.0

Measure = Callable[[System, Path, Scale], Awaitable[Result]]


def plan(scale: Scale, parts: tuple[str, ...], profile: int) -> tuple[dict[str, Measure], list[Row]]:
    """The measures by the title of their section, and the rows that show their figures."""
    todo: dict[str, Measure] = {}
    rows: list[Row] = []
    if "load" in parts:
        for in_flight in scale.in_flight:
            title = f"{in_flight:,} in flight, one group"
            todo[title] = partial(measures.load, in_flight=in_flight, profile=profile)
            rows += _load_rows(title)
    if "groups" in parts:
        title = f"{scale.groups} groups together"
        todo[title] = measures.many_groups
        rows += _load_rows(title)
    if "idle" in parts:
        title = f"{scale.idle_groups:,} idle groups"
        todo[title] = measures.idle
        rows += [
            Row(title, "processor, of one core, a node", "cpu", "core"),
            Row(title, "memory a node", "rss", "B"),
            Row(title, "memory a group", "each", "B"),
        ]
    if "start" in parts:
        title = "start, empty folders"
        todo[title] = measures.start
        rows += [
            Row(title, "processes to first commit", "start", "s"),
            Row(title, "all ready to first commit", "commit", "s"),
        ]
    if "recovery" in parts:
        title = f"recovery, {scale.entries:,} entries"
        todo[title] = measures.recovery
        rows += [
            Row(title, "log read and checked", "open", "s"),
            Row(title, "process start to serving", "serving", "s"),
            Row(title, "memory", "rss", "B"),
        ]
    if "snapshot" in parts:
        title = f"snapshot of {scale.snapshot_bytes / 1e6:.0f} MB"
        todo[title] = measures.snapshot
        rows += [
            Row(title, "sent and installed", "seconds", "s"),
            Row(title, "throughput", "rate", "B/s", True),
            Row(title, "leader's longest stall, sending", "stall", "s"),
            Row(title, "leader's longest stall, taking it", "taking_stall", "s"),
        ]
    return todo, rows


def _load_rows(title: str) -> list[Row]:
    return [
        Row(title, "commands", "rate", "/s", True),
        Row(title, "p50", "p50", "s"),
        Row(title, "p99", "p99", "s"),
        Row(title, "processor a command, 3 nodes", "cpu", "s"),
    ]


def measure(system: System, title: str, work: Measure, folder: Path, scale: Scale) -> Result:
    """Run one measure; what goes wrong with it is told, and does not end the run."""
    print(f"{title}: {system.name} ...", file=sys.stderr, flush=True)
    began = time.monotonic()
    try:
        result = asyncio.run(_bounded(work(system, folder, scale)))
    except (NodeDied, NodeFailed, TimeoutError, ExceptionGroup) as error:
        words = [log.read_text(errors="replace").strip() for log in sorted(folder.rglob("*.log"))]
        last = "; ".join(text.splitlines()[-1] for text in words if text)
        result = Result(problems=[f"{error!r}" + (f" (last in the logs: {last})" if last else "")])
    finally:
        measures.empty(folder)
    print(f"{title}: {system.name} {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
    return result


async def _bounded(work: Awaitable[Result]) -> Result:
    return await asyncio.wait_for(work, _MEASURE_SECONDS)


def main() -> int:
    """Run the measures; exits 1 when one of ours went wrong. Progress goes to stderr, the table to stdout."""
    if sys.argv[1:2] == ["kafka"]:
        return kafka_compare.main(sys.argv[2:])
    if sys.argv[1:2] == ["gc"]:
        return gc_bench.main(sys.argv[2:])
    if sys.argv[1:2] == ["compaction"]:
        return compaction_bench.main(sys.argv[2:])
    if sys.argv[1:2] == ["inline"]:
        return inline_bench.main(sys.argv[2:])
    if sys.argv[1:2] == ["partitions"]:
        return partitions_bench.main(sys.argv[2:])
    if sys.argv[1:2] == ["far"]:
        return far_bench.main(sys.argv[2:])
    if sys.argv[1:2] == ["views"]:
        return views_bench.main(sys.argv[2:])
    if sys.argv[1:2] == ["sizes"]:
        return cluster_sizes.main(sys.argv[2:])
    if sys.argv[1:2] == ["spark"]:
        return spark_bench.main(sys.argv[2:])
    arguments = parse()
    scale = SCALES[arguments.scale]
    if arguments.in_flight:
        scale = replace(scale, in_flight=tuple(arguments.in_flight))
    todo, rows = plan(scale, tuple(arguments.only or PARTS), arguments.profile)
    systems: list[System] = [Strandline()] if arguments.no_stock else [StockPySyncObj(), Strandline()]
    began = time.monotonic()
    results: dict[str, dict[str, Result]] = {system.name: {} for system in (StockPySyncObj(), Strandline())}
    with tempfile.TemporaryDirectory(prefix="strandline-bench-", dir=arguments.folder) as scratch:
        sync = measures.sync_milliseconds(Path(scratch))
        for title, work in todo.items():
            for system in systems:
                folder = Path(scratch) / "measure"
                results[system.name][title] = measure(system, title, work, folder, scale)
    stock, ours = results[StockPySyncObj.name], results[Strandline.name]
    problems = [f"{title}: {problem}" for title, result in ours.items() for problem in result.problems]
    seconds = time.monotonic() - began
    if arguments.json:
        report = {
            "ok": not problems, "seconds": round(seconds, 1), "scale": arguments.scale,
            "machine": machine(), "fdatasync_p50_ms": sync, "stock": plain(stock), "ours": plain(ours),
        }  # fmt: skip
        print(json.dumps(report))
    else:
        print(f"The replicated log: three processes on {machine()}, load average {os.getloadavg()[0]:.1f}")
        print(f"Disk under {arguments.folder}: fdatasync p50 {sync:.2f} ms. Commands of 200 bytes.\n")
        print(table(["", "", StockPySyncObj.name, Strandline.name, "better by"], lines(rows, stock, ours)))
        print("\n" + "\n".join(remarks(stock, ours)))
        word = f"failed: {len(problems)} of ours went wrong" if problems else "ok"
        print(f"bench raft {word}: {len(todo)} measures, {seconds:.0f} s")
    return 1 if problems else 0


def machine() -> str:
    return f"one machine with {os.cpu_count()} cores, Python {platform.python_version()}"


def remarks(stock: dict[str, Result], ours: dict[str, Result]) -> list[str]:
    """What a reader must know to judge the figures."""
    notes = [
        f"{StockPySyncObj.name} runs with its default settings, a journal file and a dump file: the journal"
        f" is an mmap that is never synced. {Strandline.name} acknowledges only what a majority has synced."
    ]
    for name, results in ((StockPySyncObj.name, stock), (Strandline.name, ours)):
        for title, result in results.items():
            notes += [f"{title}, {name}: {note}" for note in result.notes]
            notes += [f"{title}, {name} FAILED: {problem}" for problem in result.problems]
    return [f"- {note}" for note in notes]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "what",
        choices=[
            "raft",
            "kafka",
            "gc",
            "compaction",
            "inline",
            "partitions",
            "far",
            "spark",
            "views",
            "sizes",
        ],
        help="the replicated log beside stock PySyncObj (the options below), a cluster beside Apache Kafka"
        " (see scripts/bench kafka --help), reconciling and collecting (scripts/bench gc --help),"
        " compaction beside Kafka's log cleaner (scripts/bench compaction --help), small batches in the log"
        " beside objects only (scripts/bench inline --help), thousands of partitions"
        " (scripts/bench partitions --help), a store that is far away (scripts/bench far --help), Spark's"
        " reads and audits, and exports (scripts/bench spark --help), or views (scripts/bench views --help)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    size = parser.add_mutually_exclusive_group()
    for name, text in (("quick", "a tenth of everything"), ("tiny", "only shows that it works")):
        size.add_argument(
            f"--{name}", dest="scale", action="store_const", const=name, default="full", help=text
        )
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--in-flight", nargs="+", type=int, metavar="N", help="for the part `load`")
    parser.add_argument("--no-stock", action="store_true", help="measure ours alone")
    parser.add_argument(
        "--profile", nargs="?", type=int, const=30, default=0, metavar="LINES",
        help="profile our leader and a follower during `load` (to stderr; it slows them)",
    )  # fmt: skip
    parser.add_argument(
        "--folder",
        type=existing_folder,
        default="/var/tmp",
        help="where the data goes, on a real disk (default: %(default)s)",
    )
    arguments = parser.parse_args()
    if arguments.profile and not arguments.no_stock:
        parser.error("--profile is for ours: add --no-stock")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
