"""`scripts/bench kafka`: Apache Kafka and Strandline, one after the other, at the same work here."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from confluent_kafka import KafkaException

from strandline.cluster.failure import CommandFailed
from tests.peers.kafka_cluster import KafkaCluster
from tests.peers.kafka_jars import NoKafka
from tests.programs.bench import kafka_cold, kafka_coordinate, kafka_measure
from tests.programs.bench.kafka_measure import FULL, QUICK, TINY, Amount, Servers
from tests.programs.bench.kafka_wanted import KAFKA, STRANDLINE, Run, medians, verdicts
from tests.programs.bench.measures import Result
from tests.programs.bench.report import Row, lines, plain, table
from tests.programs.bench.secured import SecuredKafka, SecuredStrandline
from tests.programs.bench.strandline_cluster import StrandlineCluster
from tests.programs.folder_option import existing_folder

SCALES = {"full": FULL, "quick": QUICK, "tiny": TINY}


class Running(kafka_cold.Kept, Protocol):
    """A cluster that can be started and taken down."""

    def up(self) -> None: ...
    def down(self) -> None: ...


Work = Callable[[Running, Amount], Result]
PLAIN = KafkaCluster, StrandlineCluster
SECURED = SecuredKafka, SecuredStrandline
ENCRYPTED = ("throughput", "small", "consume", "single", "latency", "e2e", "connects")
"""Cases whose clients log in."""

WORK: dict[str, tuple[str, Work]] = {
    "throughput": ("1 kB records", kafka_measure.throughput),
    "small": ("100 B records", partial(kafka_measure.throughput, size=100)),
    "consume": ("read back, 1 kB", kafka_measure.consume),
    "cold": ("read far behind, 1 kB", kafka_cold.cold),
    "single": ("one at a time", kafka_measure.single),
    "latency": ("200 a second", kafka_measure.latency),
    "e2e": ("produce to consume", kafka_measure.end_to_end),
    "lifting": ("produce to consume beside lifting", kafka_measure.beside_lifting),
    "transactions": ("transactions of 100 records", kafka_coordinate.transactions),
    "commits": ("offset commits", kafka_coordinate.commits),
    "joins": ("members join", kafka_coordinate.joins),
    "connects": ("connections", kafka_measure.connects),
    "idle": ("idle", kafka_measure.idle),
    "failover": ("leader killed", kafka_measure.failover),
    "coordinator": ("coordinator killed", kafka_coordinate.coordinator),
}
"""By the word for --cases: the section's title and what is done. In this order: idle is measured loaded."""


def rows(cases: Sequence[str], amount: Amount) -> list[Row]:
    """What the table shows."""
    start = "start, empty"
    made = [
        Row(start, "to three nodes up", "seconds", "s"),
        Row(start, "memory, 3 nodes", "rss", "B"),
    ]
    for case in cases:
        title = WORK[case][0]
        match case:
            case "throughput" | "small":
                made += [
                    Row(title, "written, cold", "rate_cold", "B/s", True),
                    Row(title, "written, warm", "rate", "B/s", True),
                    Row(title, "servers' processor a GB, cold", "cpu_gb_cold", "s"),
                    Row(title, "servers' processor a GB, warm", "cpu_gb", "s"),
                    Row(title, "memory, 3 nodes", "rss", "B"),
                ]
            case "consume":
                made += [
                    Row(title, "read", "rate", "B/s", True),
                    Row(title, "servers' processor a GB", "cpu_gb", "s"),
                ]
            case "cold":
                made += [
                    Row(title, "written before", "rate_written", "B/s", True),
                    Row(title, "servers' processor a GB written", "cpu_gb_written", "s"),
                    Row(title, "most memory meanwhile, 3 nodes", "rss_written", "B"),
                    Row(title, "read, as writing left it", "rate", "B/s", True),
                    Row(title, "servers' processor a GB", "cpu_gb", "s"),
                    Row(title, "read, all from the disk", "rate_disk", "B/s", True),
                    Row(title, "servers' processor a GB, from the disk", "cpu_gb_disk", "s"),
                    Row(title, "memory, 3 nodes, before", "rss_filled", "B"),
                    Row(title, "memory, 3 nodes, after", "rss", "B"),
                ]
            case "connects":
                made += [
                    Row(title, "one after the other", "rate", "/s", True),
                    Row(title, "servers' processor each", "cpu", "s"),
                ]
            case "idle":
                made += [
                    Row(title, "processor, of one core, 3 nodes", "cpu", "core"),
                    Row(title, "memory, 3 nodes", "rss", "B"),
                ]
            case "transactions":
                made += [
                    Row(title, "one in flight", "rate", "/s", True),
                    Row(title, "ten in flight", "rate_together", "/s", True),
                    Row(title, "commit, p50", "p50", "s"),
                    Row(title, "commit, p99", "p99", "s"),
                ]
            case "commits":
                made += [
                    Row(title, "one at a time", "rate", "/s", True),
                    Row(title, "p50", "p50", "s"),
                    Row(title, "p99", "p99", "s"),
                ]
            case "joins":
                made += [
                    Row(title, f"{count} to a stable group", f"join_{count}", "s") for count in amount.members
                ]
            case "failover" | "coordinator":
                made += [
                    Row(title, "longest gap, median of rounds", "gap", "s"),
                    Row(title, "longest gap, worst round", "gap_max", "s"),
                ]
            case _:
                made += [Row(title, name, name, "s") for name in ("p50", "p99", "p999")]
                made += [Row(title, "processor, of one core, 3 nodes", "cpu", "core")]
    return made


def measure(peer: Running, cases: Sequence[str], amount: Amount) -> dict[str, Result]:
    """All cases on one cluster, which is taken down again; what goes wrong is told and ends its case."""
    results: dict[str, Result] = {}
    began = time.monotonic()
    try:
        peer.up()
        results["start, empty"] = Result({"seconds": time.monotonic() - began, "rss": Servers(peer).memory()})
        for case in cases:
            title, work = WORK[case]
            print(f"{peer.name}: {title} ...", file=sys.stderr, flush=True)
            try:
                results[title] = work(peer, amount)
            except (KafkaException, TimeoutError, CommandFailed, ValueError) as error:
                results[title] = Result(problems=[repr(error)])
    except (NoKafka, CommandFailed) as error:
        results["start, empty"] = Result(problems=[str(error)])
    finally:
        peer.down()
    return results


def main(arguments: Sequence[str]) -> int:
    """Run the comparison; exits 1 when something of ours went wrong, or Kafka could not be started."""
    options = parse(arguments)
    amount = SCALES[options.scale]
    cases = tuple(case for case in WORK if case in (options.cases or WORK))
    systems = [options.only] if options.only else [KAFKA, STRANDLINE]
    began = time.monotonic()
    runs = []
    for number in range(options.runs):
        if options.runs > 1:
            load = os.getloadavg()[0]
            print(f"run {number + 1} of {options.runs}, load average {load:.1f}", file=sys.stderr, flush=True)
        runs.append({system: _one(system, options, cases, amount) for system in systems})
    return tell(options, runs, cases, systems, time.monotonic() - began)


def _one(system: str, options: argparse.Namespace, cases: Sequence[str], amount: Amount) -> dict[str, Result]:
    """All cases on one system, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="strandline-bench-", dir=options.folder) as scratch:
        folder = Path(scratch) / "cluster"
        kafka, strandline = SECURED if options.secure else PLAIN
        try:
            peer: Running = (
                kafka(folder, options.kafka_settings)
                if system == KAFKA
                else strandline(folder, options.settings)
            )
        except NoKafka as error:
            return {"start, empty": Result(problems=[str(error)])}
        return measure(peer, cases, amount)


def tell(
    options: argparse.Namespace,
    runs: Sequence[Run],
    cases: Sequence[str],
    systems: Sequence[str],
    seconds: float,
) -> int:
    """Print the table or the JSON, of several runs the medians; the exit status."""
    found = {system: medians(runs, system) if system in systems else {} for system in (KAFKA, STRANDLINE)}
    judged = [] if options.scale == "tiny" else verdicts(runs, full=options.scale == "full")
    problems = [
        f"{system}: {title}: {problem}"
        for system in systems
        for title, result in found[system].items()
        for problem in result.problems
    ]
    ours = [problem for problem in problems if problem.startswith(STRANDLINE) or "start, empty" in problem]
    report = {
        "ok": not ours, "seconds": round(seconds, 1), "scale": options.scale,
        "machine": f"{os.cpu_count()} cores, Python {platform.python_version()}",
        "load_average": round(os.getloadavg()[0], 2), "problems": problems,
        "wanted": judged,
        "runs": [{system: plain(run[system]) for system in systems} for run in runs],
        **{system: plain(found[system]) for system in systems},
    }  # fmt: skip
    if options.write is not None:
        options.write.write_text(json.dumps(report, indent=2) + "\n")
    if options.json:
        print(json.dumps(report))
        return 1 if ours else 0
    print(f"Three nodes each, three replicas, acks=all, client on the same {os.cpu_count()} cores.")
    print("Kafka acknowledges what is in memory; Strandline what a majority has synced to its disks.\n")
    header = ["", "", KafkaCluster.name, StrandlineCluster.name, "better by"]
    print(table(header, lines(rows(cases, SCALES[options.scale]), found[KAFKA], found[STRANDLINE])))
    if judged:
        print("\n" + table(["", "", "wanted", "is", ""], judged))
    for system in systems:
        for title, result in found[system].items():
            for note in result.notes:
                print(f"- {system}: {title}: {note}")
    for problem in problems:
        print(f"- FAILED: {problem}")
    print(f"bench kafka {'failed' if ours else 'ok'}: {len(cases)} cases, {seconds:.0f} s")
    return 1 if ours else 0


def _runs(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 20:
        raise argparse.ArgumentTypeError(f"1 to 20, not {text}")
    return int(text)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench kafka", description=__doc__)
    parser.add_argument("--only", choices=(KAFKA, STRANDLINE), help="measure only this one")
    parser.add_argument("--cases", nargs="+", choices=WORK, metavar="CASE", help=f"of {', '.join(WORK)}")
    parser.add_argument(
        "--secure", action="store_true", help="with TLS and logins on both sides; not all cases can be had so"
    )
    parser.add_argument(
        "--runs", type=_runs, default=1, help="so many runs, of which the medians are told (default: 1)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the JSON object there as well")
    parser.add_argument(
        "--set", dest="settings", action="append", default=[], metavar="SECTION.KEY=VALUE",
        help="for Strandline's nodes",
    )  # fmt: skip
    parser.add_argument(
        "--kafka-set", dest="kafka_settings", action="append", default=[], metavar="NAME=VALUE",
        help="for Kafka's nodes",
    )  # fmt: skip
    size = parser.add_mutually_exclusive_group()
    for name, text in (("quick", "a quarter of everything"), ("tiny", "only shows that it works")):
        size.add_argument(
            f"--{name}", dest="scale", action="store_const", const=name, default="full", help=text
        )
    parser.add_argument(
        "--folder",
        type=existing_folder,
        default="/var/tmp",
        help="where the data goes, on a real disk (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    if options.secure:
        options.cases = options.cases or list(ENCRYPTED)
        if refused := [case for case in options.cases if case not in ENCRYPTED]:
            parser.error(f"--secure has no {', '.join(refused)}, but {', '.join(ENCRYPTED)}")
    return options
