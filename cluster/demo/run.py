"""One command that shows what the product promises: three nodes, real records, a dead leader, nothing lost.

`scripts/demo` starts a cluster, writes every flight of the data set into it, kills a leader without warning
half-way and starts it again, reads everything back and compares it record by record, takes a checkpoint and
lets Spark audit what lies in storage. It ends with a table, and with 1 when anything in it is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.console import Console

from strandline.cluster.admin_client import first_answer
from strandline.cluster.demo import flights as data
from strandline.cluster.demo import report
from strandline.cluster.demo.produce import Produced, produce
from strandline.cluster.demo.stage import Stage, new_cluster, table
from strandline.cluster.demo.verify import Comparison, read_back
from strandline.cluster.demo.views_show import show_views
from strandline.cluster.failure import CommandFailed
from strandline.cluster.kafka_client import client_config
from strandline.cluster.local import LocalCluster
from strandline.snapshot.extras import ExtraMissing, require
from strandline.snapshot.spark.audits import AuditRun, Verdict, run_audits, write_report
from strandline.snapshot.spark.session import session

TOPIC = "flights"
PARTITIONS = 12
NODES = 3
DEAD_SECONDS = 3.0
"""The killed leader stays down for this long, even if the load is over before."""
_READ_SECONDS = 120.0
_REQUEST_SECONDS = 30.0
_CHECKPOINT_SECONDS = 60.0

T = TypeVar("T")


@dataclass
class Killing:
    """The death of a leader, and its return."""

    cluster: LocalCluster
    admin: AdminClient
    events: list[tuple[float, str]] = field(default_factory=list)
    node: int = 0
    problem: BaseException | None = None
    _return: threading.Thread | None = None

    def kill(self) -> None:
        """SIGKILL to the leader of partition 0, and start it again DEAD_SECONDS later, in the background."""
        self.node = self.admin.list_topics(TOPIC, timeout=_REQUEST_SECONDS).topics[TOPIC].partitions[0].leader
        self.cluster.kill(self.node)
        self.events.append((time.perf_counter(), f"kill -9 node {self.node}"))
        self._return = threading.Thread(target=self._start_again, daemon=True)
        self._return.start()

    def _start_again(self) -> None:
        time.sleep(DEAD_SECONDS)
        try:
            self.cluster.start(self.node)
            self.events.append((time.perf_counter(), f"node {self.node} healthy again"))
        except BaseException as error:  # told by `returned`, in the thread that waits
            self.problem = error

    def returned(self) -> None:
        """Wait until the node is back; raises what kept it from coming."""
        assert self._return is not None
        self._return.join()
        if self.problem is not None:
            raise self.problem


@dataclass
class Outcome:
    """Everything a run found out."""

    produced: Produced
    comparison: Comparison
    audits: AuditRun
    killing: Killing
    expected: int
    seconds: float = 0.0

    def rows(self) -> list[tuple[str, str, bool]]:
        """(what, figure, whether it is as it should be)."""
        produced, found = self.produced, self.comparison
        gap = produced.longest_gap()
        rate = len(produced.acknowledged) / produced.seconds
        verdicts = [result.verdict for result in self.audits.results]
        rows = [
            ("records in", f"{len(produced.acknowledged):,}", len(produced.acknowledged) == self.expected),
            ("records out", f"{found.read:,}", found.read == self.expected),
            ("lost", f"{found.lost:,}", not found.lost),
            ("doubled", f"{found.doubled:,}", not found.doubled),
            (
                "altered, moved or out of order",
                f"{found.altered + found.moved + found.disordered + found.foreign:,}",
                not (found.altered or found.moved or found.disordered or found.foreign),
            ),
            ("longest gap of a partition, leader killed", f"{gap:.2f} s", True),
            ("written", f"{rate:,.0f} records/s", True),
            ("read", f"{found.read / found.seconds:,.0f} records/s", True),
        ]
        for result in self.audits.results:
            good = result.verdict is not Verdict.FINDING
            rows.append((f"audit: {result.name}", result.verdict.value, good))
        rows.append(("audits that had something to look at", str(_count(verdicts)), _count(verdicts) > 0))
        return rows

    @property
    def good(self) -> bool:
        return not self.produced.errors and all(good for _, _, good in self.rows())


def _count(verdicts: list[Verdict]) -> int:
    return sum(verdict is not Verdict.NOTHING for verdict in verdicts)


def run(cluster: LocalCluster, out: Path, count: int | None, console: Console) -> Outcome:
    """The whole demonstration on a cluster that is up; leaves its report in `out`."""
    stage = Stage(console)
    with stage.step("flights of 2013 out of the data set"):
        flights = data.load(count)
    bootstrap = cluster.description.bootstrap
    admin = AdminClient(client_config(bootstrap))
    with stage.step(f"topic {TOPIC}, {PARTITIONS} partitions, replication factor {NODES}"):
        _create_topic(admin)
    killing = Killing(cluster, admin)
    with stage.step("writing, killing a leader half-way", len(flights)) as progress:
        produced = produce(
            bootstrap, TOPIC, flights, after={len(flights) // 2: killing.kill}, progress=progress
        )
        killing.returned()
    warm = _in_background(lambda: session("strandline-demo", short_jobs=True))
    with stage.step("reading back and comparing", len(flights)) as progress:
        comparison = read_back(
            bootstrap,
            TOPIC,
            flights,
            produced.acknowledged,
            timeout=_READ_SECONDS,
            progress=progress,
        )
    with stage.step("checkpoint"):
        taken = first_answer(
            [node.admin for node in cluster.description.nodes.values()],
            "POST",
            "/api/checkpoints",
            {"timeout_seconds": _CHECKPOINT_SECONDS},
            timeout=_CHECKPOINT_SECONDS + 10,
        )
        (out / "checkpoint.json").write_text(json.dumps(taken, indent=1))
    with stage.step("audits in Spark"):
        description = cluster.description
        audits = run_audits(description.storage, {}, description.cluster, spark=warm())
        write_report(audits, json=out / "audits.json", html=out / "audits.html")
    return Outcome(produced, comparison, audits, killing, len(flights))


def _create_topic(admin: AdminClient) -> None:
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, NODES)])[TOPIC].result(_REQUEST_SECONDS)
    deadline = time.monotonic() + _REQUEST_SECONDS
    while time.monotonic() < deadline:
        partitions = admin.list_topics(TOPIC, timeout=_REQUEST_SECONDS).topics[TOPIC].partitions
        if len(partitions) == PARTITIONS and all(each.leader >= 0 for each in partitions.values()):
            return
        time.sleep(0.05)
    raise CommandFailed(f"topic {TOPIC} has no leaders after {_REQUEST_SECONDS:g} s", "see the nodes' logs")


def _in_background(make: Callable[[], T]) -> Callable[[], T]:
    """Start making something slow; the result waits for it, and raises what it raised."""
    made: list[T] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            made.append(make())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()

    def result() -> T:
        thread.join()
        if failed:
            raise failed[0]
        return made[0]

    return result


def _plain(outcome: Outcome, out: Path) -> dict[str, Any]:
    produced, found = outcome.produced, outcome.comparison
    return {
        "ok": outcome.good,
        "records_in": len(produced.acknowledged),
        "records_out": found.read,
        "lost": found.lost,
        "doubled": found.doubled,
        "altered": found.altered,
        "moved": found.moved,
        "out_of_order": found.disordered,
        "foreign": found.foreign,
        "errors": produced.errors[:5],
        "longest_gap_seconds": round(produced.longest_gap(), 3),
        "write_seconds": round(produced.seconds, 2),
        "read_seconds": round(found.seconds, 2),
        "audits": {result.name: result.verdict.value for result in outcome.audits.results},
        "report": str(out / "report.html"),
        "seconds": round(outcome.seconds, 2),
    }


def main() -> int:
    """Exit status: 0 when all is as promised, 1 when something is wrong, 2 for misuse."""
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("strandline-demo"), help="default: %(default)s")
    parser.add_argument("--keep", action="store_true", help="leave the cluster up")
    parser.add_argument("--records", type=int, help="only the first of the 336,776 flights, this many")
    parser.add_argument("--views", action="store_true", help="show views over topics instead")
    parser.add_argument("--json", action="store_true", help="end with one JSON object, not a table")
    arguments = parser.parse_args()
    if arguments.records is not None and arguments.records < 2:
        parser.error("--records must be at least 2: a leader dies half-way")
    console = Console(stderr=True, highlight=False)
    started = time.perf_counter()
    try:
        require("report")  # what would be missed last is said first
        if arguments.views:
            require("views")
            return show_views(arguments.folder.absolute(), arguments.records, arguments.keep, console)
        outcome = _whole(arguments.folder.absolute(), arguments.records, arguments.keep, console)
    except (CommandFailed, ExtraMissing, data.FlightsMissing, KafkaException, TimeoutError) as error:
        if arguments.json:
            print(json.dumps({"ok": False, "error": str(error)}))
        print(f"demo failed: {error}", file=sys.stderr)
        return 1
    outcome.seconds = time.perf_counter() - started
    out = arguments.folder.absolute()
    report.write(
        out / "report.html",
        title=f"Strandline: {outcome.expected:,} flights through three nodes, one of them killed",
        rows=outcome.rows(),
        produced=outcome.produced,
        events=outcome.killing.events,
        comparison=outcome.comparison,
        audits=out / "audits.html",
    )
    if arguments.json:
        print(json.dumps(_plain(outcome, out)))
    else:
        Console(highlight=False).print(table(outcome.rows()))
        for problem in (*outcome.produced.errors[:5], *outcome.comparison.examples):
            print(f"  {problem}")
        print(f"report {out / 'report.html'}")
        print(f"audits {out / 'audits.html'}, {out / 'audits.json'}")
        print(f"nodes' logs, configuration, objects {out / 'cluster'}")
        if arguments.keep:
            print(f"the cluster is up: {LocalCluster(out / 'cluster').description.bootstrap}; end it with")
            print(f"  .venv/bin/strandline cluster down --cluster {out / 'cluster'}")
        print(f"demo {'ok' if outcome.good else 'FAILED'}: {outcome.seconds:.1f} s")
    return 0 if outcome.good else 1


def _whole(out: Path, records: int | None, keep: bool, console: Console) -> Outcome:
    with new_cluster(out, NODES, keep, console) as cluster:
        return run(cluster, out, records, console)


if __name__ == "__main__":
    sys.exit(main())
