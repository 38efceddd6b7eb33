"""`scripts/bench inline`: small batches in the log itself beside objects only, by turns, and beside Kafka.

Two Strandline clusters run at the same time, one with `inline.max_batch_bytes` as given and one with 0, and
take turns at each case, so what else the machine does hits both. A figure is the median of its rounds. Kafka
comes afterwards, alone: its three processes would take memory and processor from the others while they idle.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from confluent_kafka import KafkaException

from strandline.cluster.failure import CommandFailed
from strandline.node.config.node_config import InlineSection
from tests.peers.kafka_cluster import KafkaCluster
from tests.peers.kafka_jars import NoKafka
from tests.programs.bench import kafka_measure
from tests.programs.bench.kafka_compare import Running
from tests.programs.bench.kafka_measure import Amount, Peer, Servers
from tests.programs.bench.measures import Result, middle
from tests.programs.bench.report import plain, shown, table
from tests.programs.bench.strandline_cluster import StrandlineCluster
from tests.programs.folder_option import existing_folder

Work = Callable[[Peer, Amount], Result]
ON, OFF = "inline", "objects only"
LIFTED_MEGABYTES = 200.0

WORK: dict[str, tuple[str, Work]] = {
    "single": ("one at a time", kafka_measure.single),
    "latency": ("200 a second", kafka_measure.latency),
    "e2e": ("produce to consume", kafka_measure.end_to_end),
    "lifting": ("produce to consume, after 200 MB", kafka_measure.beside_lifting),
}
FIGURES = (
    ("p50", "p50", "s"), ("p99", "p99", "s"),
    ("processor a record, 3 nodes", "cpu_record", "s"),
)  # fmt: skip

WANTED: dict[tuple[str, str], Callable[[float | None], float]] = {
    ("single", "p50"): lambda kafka: float("nan") if kafka is None else kafka,
    ("single", "p99"): lambda kafka: float("nan") if kafka is None else kafka / 3,
    ("latency", "p50"): lambda _: 0.002,
    ("latency", "p99"): lambda _: 0.010,
    ("e2e", "p50"): lambda _: 0.002,
    ("e2e", "p99"): lambda _: 0.015,
    ("lifting", "p50"): lambda _: 0.002,
    ("lifting", "p99"): lambda _: 0.015,
}
"""The most that each may be, given Kafka's figure if it was measured."""


def by_turns(
    peers: Mapping[str, Running], cases: Sequence[str], amount: Amount, rounds: int
) -> dict[str, dict[str, Result]]:
    """For each peer the middle of its rounds in each case; the one that begins changes with the round."""
    found: dict[str, dict[str, list[Result]]] = {name: {case: [] for case in cases} for name in peers}
    for number in range(rounds):
        for case in cases:
            names = list(peers)[:: 1 if number % 2 == 0 else -1]
            for name in names:
                title, work = WORK[case]
                print(f"round {number + 1}: {title}: {name} ...", file=sys.stderr, flush=True)
                servers = Servers(peers[name])
                before = servers.processor()
                try:
                    result = work(peers[name], amount)
                    if case != "lifting":
                        used = servers.processor() - before
                        result.figures["cpu_record"] = used / max(result.figures.pop("records", 1.0), 1.0)
                except (KafkaException, TimeoutError, CommandFailed, ValueError) as error:
                    result = Result(problems=[repr(error)])
                found[name][case].append(result)
    return {
        name: {case: middle(results) for case, results in cases_of.items()}
        for name, cases_of in found.items()
    }


def measure(
    makers: Mapping[str, Callable[[Path], Running]],
    cases: Sequence[str],
    amount: Amount,
    rounds: int,
    folder: str,
) -> dict[str, dict[str, Result]]:
    """Start these clusters together, measure them by turns, and take them down."""
    with ExitStack() as stack:
        peers: dict[str, Running] = {}
        for name, make in makers.items():
            scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="strandline-bench-", dir=folder))
            peers[name] = make(Path(scratch) / "cluster")
            stack.callback(peers[name].down)
            peers[name].up()
        return by_turns(peers, cases, amount, rounds)


def lines(cases: Sequence[str], found: Mapping[str, Mapping[str, Result]]) -> list[list[str]]:
    """The cells of the table: Kafka, what is wanted, objects only, inline."""
    made = []
    for case in cases:
        title = WORK[case][0]
        for what, figure, unit in FIGURES:
            values = {name: found[name][case].figures.get(figure) for name in found}
            if not any(values.values()):
                continue
            kafka = values.get(KafkaCluster.name)
            wanted = WANTED[case, figure](kafka) if (case, figure) in WANTED else None
            shown_values = [shown(one, unit) for one in (kafka, wanted, values.get(OFF), values.get(ON))]
            made.append([title if figure == "p50" else "", what, *shown_values])
    return made


def main(arguments: Sequence[str]) -> int:
    """Run the comparison; exits 1 when something of ours went wrong."""
    parser = argparse.ArgumentParser(prog="scripts/bench inline", description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", nargs="+", choices=WORK, metavar="CASE", help=f"of {', '.join(WORK)}")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=4.0, help="for each case and turn (%(default)g)")
    parser.add_argument("--no-kafka", action="store_true", help="measure Strandline alone")
    parser.add_argument(
        "--max-batch-bytes", type=int, default=InlineSection().max_batch_bytes,
        help="inline.max_batch_bytes of the one cluster (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    parser.add_argument(
        "--folder", type=existing_folder, default="/var/tmp", help="on a real disk (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    cases = tuple(case for case in WORK if case in (options.cases or WORK))
    amount = Amount(lifted_megabytes=LIFTED_MEGABYTES, seconds=options.seconds)
    began, load = time.monotonic(), os.getloadavg()[0]

    def strandline(size: int) -> Callable[[Path], Running]:
        return partial(_strandline, settings=(f"inline.max_batch_bytes={size}",))

    makers = {OFF: strandline(0), ON: strandline(options.max_batch_bytes)}
    found = measure(makers, cases, amount, options.rounds, options.folder)
    notes = []
    if not options.no_kafka:
        try:
            kafka = {KafkaCluster.name: lambda folder: KafkaCluster(folder, [])}
            found |= measure(kafka, cases, amount, options.rounds, options.folder)
        except (NoKafka, CommandFailed) as error:
            notes.append(f"Kafka was not measured: {error}")
    problems = [
        f"{name}: {WORK[case][0]}: {problem}"
        for name, results in found.items()
        for case, result in results.items()
        for problem in result.problems
    ]
    ours = [problem for problem in problems if not problem.startswith(KafkaCluster.name)]
    seconds = time.monotonic() - began
    if options.json:
        report = {name: plain(results) for name, results in found.items()}
        print(json.dumps({"ok": not ours, "seconds": seconds, "load_average": load, **report}))
        return 1 if ours else 0
    print(f"Three nodes each, three replicas, acks=all, records of 1 kB, {options.rounds} rounds by turns.")
    print(f"Load average before {load:.1f}. inline.max_batch_bytes = {options.max_batch_bytes} or 0.\n")
    print(table(["", "", KafkaCluster.name, "wanted", OFF, ON], lines(cases, found)))
    for note in [*notes, *(f"FAILED: {one}" for one in problems)]:
        print(f"- {note}")
    print(f"bench inline {'failed' if ours else 'ok'}: {len(cases)} cases, {seconds:.0f} s")
    return 1 if ours else 0


def _strandline(folder: Path, settings: Sequence[str]) -> Running:
    return StrandlineCluster(folder, settings)
