"""Kill the workers of a consume-transform-produce program all the while; compare its output with its input.

`scripts/exactly-once --minutes 10 --workers 4`: three nodes on the loopback, every flight of the data set
written into a topic at a steady pace, and workers that read them as one group, make a record of each, and
write it to another topic. Every few seconds one of them is killed, or paused for longer than its session so
that it comes back as a zombie. At the end each flight must be in the output exactly once. `--plain` is the
same program as most people write it, without transactions and idempotence: each flight must be there, and how
many are there twice is told. Exits 1 when it is not so.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaException

from strandline.cluster.demo import flights as data
from strandline.cluster.failure import CommandFailed
from tests.peers.kafka_cluster import KafkaCluster
from tests.peers.kafka_jars import NoKafka
from tests.programs.bench.kafka_compare import Running
from tests.programs.bench.strandline_cluster import StrandlineCluster
from tests.programs.exactly_once.compare import Comparison, compare
from tests.programs.exactly_once.crew import Crew
from tests.programs.exactly_once.flow import Load, Progress, make_topics, read_target
from tests.programs.exactly_once.task import expected
from tests.programs.folder_option import existing_folder

RATE: Final = 561
"""Flights a second, at which the whole data set takes ten minutes."""
_DRAIN_SECONDS: Final = 600.0
_NODE_SECONDS: Final = (8.0, 3.0)
"""With --nodes: so long all of them run, then one is gone."""


@dataclass
class Outcome:
    """What a run has shown."""

    transactions: bool
    workers: int
    seconds: float
    """Of load and faults."""
    drained_seconds: float
    """From the end of the load until the group was done with all of it."""
    written: int
    committed: int
    done: dict[str, int]
    said: dict[str, int]
    nodes_killed: int
    errors: list[str]
    found: Comparison

    @property
    def ok(self) -> bool:
        kept = self.found.exactly_once if self.transactions else self.found.at_least_once
        return kept and not self.errors and self.committed == self.written

    def plain(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self)}

    def lines(self) -> list[str]:
        """For a person."""
        kind = "transactions" if self.transactions else "no transactions, not idempotent"
        found, done = self.found, self.done
        rows = [
            ("flights written", self.written),
            ("records made", found.read),
            ("flights lost", found.lost),
            ("records doubled", found.doubled),
            ("altered, foreign", found.altered + found.foreign),
            ("out of order", found.disordered),
            ("workers killed", done.get("kills", 0)),
            ("workers paused past their session", done.get("pauses", 0)),
            ("rounds aborted", self.said.get("aborted", 0)),
            ("producers fenced", self.said.get("fenced", 0)),
            ("nodes killed", self.nodes_killed),
        ]
        return [
            f"{self.workers} workers, {kind}, {self.seconds:.0f} s, done {self.drained_seconds:.1f} s later",
            *(f"  {name:<34}{number:>9,}" for name, number in rows),
            *(f"  {text}" for text in (*self.errors[:5], *found.examples)),
        ]


def drive(
    bootstrap: str,
    folder: Path,
    *,
    seconds: float,
    workers: int,
    transactions: bool,
    seed: int,
    flights: list[data.Flight],
    nodes: Running | None = None,
) -> Outcome:
    """One run against a cluster that has neither topic yet; kills its nodes too when they are given."""
    make_topics(bootstrap)
    crew = Crew(bootstrap, folder, workers, transactions=transactions, seed=seed)
    load, progress, ended = Load(bootstrap, flights, seconds), Progress(bootstrap), threading.Event()
    killed: list[int] = []
    killer = threading.Thread(target=_kill_nodes, args=(nodes, ended, killed), daemon=True)
    began = time.monotonic()
    try:
        crew.start()
        load.start()
        if nodes is not None:
            killer.start()
        crew.hurt(lambda: time.monotonic() - began >= seconds, ended)
        ended.set()
        if nodes is not None:
            killer.join()
        load.join()
        over = time.monotonic()
        crew.tend(lambda: progress.committed() >= load.written or time.monotonic() - over > _DRAIN_SECONDS)
        drained = time.monotonic() - over
    finally:
        ended.set()
        crew.stop()
    committed = progress.committed()
    found = compare(read_target(bootstrap, _DRAIN_SECONDS), expected(flights))
    return Outcome(
        transactions, workers, seconds, drained, load.written, committed,
        dict(crew.done), dict(crew.said()), len(killed), load.errors, found,
    )  # fmt: skip


def _kill_nodes(nodes: Running, ended: threading.Event, killed: list[int]) -> None:
    up, down = _NODE_SECONDS
    while not ended.wait(up):
        node = len(killed) % 3 + 1
        nodes.kill(node)
        killed.append(node)
        ended.wait(down)
        nodes.start(node)


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0 when it is as promised, 1 when not, 2 for misuse."""
    options = parse(arguments)
    seconds = options.minutes * 60
    folder = Path(tempfile.mkdtemp(prefix="strandline-exactly-once-", dir=options.folder))
    nodes: Running | None = None
    try:
        flights = data.load(max(options.workers, int(RATE * seconds)))
        if options.bootstrap:
            bootstrap = options.bootstrap
        else:
            nodes = (
                KafkaCluster(folder / "kafka") if options.kafka else StrandlineCluster(folder / "nodes", ())
            )
            nodes.up()
            bootstrap = nodes.bootstrap
        outcome = drive(
            bootstrap, folder, seconds=seconds, workers=options.workers, transactions=not options.plain,
            seed=options.seed, flights=flights, nodes=nodes if options.nodes else None,
        )  # fmt: skip
    except (CommandFailed, NoKafka, data.FlightsMissing, KafkaException, TimeoutError) as error:
        if options.json:
            print(json.dumps({"ok": False, "error": str(error)}))
        print(f"exactly-once failed: {error}; logs in {folder}", file=sys.stderr)
        return 1
    finally:
        if nodes is not None:
            nodes.down()
    if outcome.ok:
        shutil.rmtree(folder, ignore_errors=True)
    if options.json:
        print(json.dumps(outcome.plain()))
    else:
        print("\n".join(outcome.lines()))
        print("exactly-once ok" if outcome.ok else f"exactly-once FAILED: logs in {folder}")
    return 0 if outcome.ok else 1


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/exactly-once", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--minutes", type=float, default=10.0, help="of load and faults (default: %(default)g)"
    )
    parser.add_argument("--workers", type=int, default=4, help="default: %(default)s")
    parser.add_argument("--plain", action="store_true", help="without transactions, and not idempotent")
    parser.add_argument("--nodes", action="store_true", help="kill nodes of the cluster, too")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--bootstrap", help="a cluster that runs, without the topics flights and gains")
    where.add_argument("--kafka", action="store_true", help="three nodes of Apache Kafka instead of ours")
    parser.add_argument("--seed", type=int, default=1, help="of the faults (default: %(default)s)")
    parser.add_argument(
        "--folder",
        type=existing_folder,
        default="/var/tmp",
        help="where data and logs go (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="end with one JSON object, not a table")
    options = parser.parse_args(arguments)
    if options.minutes <= 0 or options.workers < 1:
        parser.error("--minutes and --workers must be positive")
    if options.nodes and options.bootstrap:
        parser.error("--nodes is for a cluster of this run: leave --bootstrap out")
    return options
