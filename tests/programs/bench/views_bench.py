"""Views: what a step costs by the size of its state, and on three nodes filling, latency, a cutover, a death.

`scripts/bench views`: first one process without a cluster, for states of more and more keys (a group-by with
COUNT and SUM; JSON in and out). Beside it DuckDB works the same view out from columns in memory, once: what
stands in the place of a step where nothing is kept. Then a cluster: rows are filled into a view, then flow
at a rate while another view is added, and at last the view's process is killed, and then its node. Then a
group-by and a join take the same rows there, without Kafka, and in Pathway, Bytewax, DuckDB and Spark
(`views_peers.py`).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient as KafkaAdmin
from confluent_kafka.cimpl import NewTopic

from strandline.cluster.admin_client import AdminClient, Unreachable
from strandline.cluster.failure import CommandFailed
from strandline.cluster.kafka_client import client_config
from strandline.cluster.local import LocalCluster
from strandline.cluster.ports import free_ports
from tests.programs.bench import views_peers
from tests.programs.bench.report import shown, table
from tests.programs.bench.views_watcher import Watcher
from tests.programs.folder_option import existing_folder

SIZES: Final = {"full": (10_000, 100_000, 1_000_000, 10_000_000), "quick": (10_000, 100_000, 1_000_000)}
ROWS: Final = {"full": 2_000_000, "quick": 100_000}
"""Of the view on a cluster, a tenth as many keys."""
PEER_ROWS: Final = {"full": 1_000_000, "quick": 100_000}
STEPS: Final = 20
RATE: Final = 1000.0
"""Rows a second that flow in on a cluster."""
FLOW_SECONDS: Final = 10.0
WAIT_SECONDS: Final = 900.0
FAILOVER_SECONDS: Final = 60.0
STATUS_SECONDS: Final = 30.0
WANTED_PAUSE: Final = 0.5
WANTED_FAILOVER: Final = 15.0
UV: Final = Path(".tools/uv/bin/uv")
"""As `scripts/setup` puts it there."""
TABLE: Final = "CREATE TABLE bids (auction BIGINT, price BIGINT, sent BIGINT);\n"
FIRST: Final = (
    TABLE
    + "CREATE VIEW totals AS SELECT auction, count(*) AS n, sum(price) AS total FROM bids GROUP BY auction;\n"
    "CREATE VIEW sample AS SELECT _partition, _offset, sent FROM bids WHERE price < 100;\n"
)
SECOND: Final = FIRST + "CREATE VIEW prices AS SELECT price, count(*) AS n FROM bids GROUP BY price;\n"


@dataclass
class Report:
    """Filled in as the run goes. Times in seconds."""

    sizes: list[dict[str, float]] = field(default_factory=list)
    cluster: dict[str, float] = field(default_factory=dict)
    rates: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


class Run:
    """One cluster in a folder."""

    def __init__(self, folder: Path, report: Report, rows: int, beside: int = 0) -> None:
        self._cluster = LocalCluster(folder / "cluster")
        self._folder = folder
        self._report = report
        self._rows = rows
        self._beside = beside
        self._sent = 0

    def go(self) -> None:
        """All of it; what went wrong is in the report, and nothing runs any more."""
        try:
            self._cluster.up(3, choose_ports=free_ports, settings=["topics.auto_create=false"])
            try:
                self._all()
            finally:
                self._cluster.down()
        except (CommandFailed, KafkaException, Unreachable, TimeoutError, StopIteration) as error:
            self._report.problems.append(f"{error!r}")

    def _all(self) -> None:
        found, bootstrap = self._report.cluster, self._cluster.description.bootstrap
        admin = KafkaAdmin(client_config(bootstrap))
        for made in admin.create_topics([NewTopic("bids", 2, 3)]).values():
            made.result(30)
        self._producer = Producer(client_config(bootstrap, linger_ms=5, enable_idempotence=True))
        for _ in range(self._rows):
            self._one()
        if self._producer.flush(WAIT_SECONDS):
            raise TimeoutError("rows are not acknowledged")
        began = time.time()
        self._apply("bench", FIRST)
        found["rows"], found["filled"] = self._rows, self._rows / (time.time() - began)
        watcher = Watcher(bootstrap)
        try:
            with self._flowing():
                self._watched(watcher)
        finally:
            watcher.close()
        if self._beside:
            self._committed(admin)

    def _committed(self, admin: KafkaAdmin) -> None:
        topics = [
            NewTopic(name, 2, 3, config={"cleanup.policy": policy})
            for name, policy in views_peers.TOPICS.items()
        ]
        for made in admin.create_topics(topics).values():
            made.result(30)
        for work in views_peers.WORKS:
            whole, coming = views_peers.committed_rate(
                work, self._beside, self._cluster.description.bootstrap, self._live, self._apply
            )
            self._report.cluster |= {f"committed_{work}": whole, f"coming_{work}": coming}

    def _watched(self, watcher: Watcher) -> None:
        found = self._report.cluster
        began = time.time()
        time.sleep(FLOW_SECONDS)
        applied = time.time()
        self._apply("bench", SECOND)
        live = time.time()
        time.sleep(FLOW_SECONDS)
        one = self._live("bench")
        found["p50"], found["p99"] = watcher.ages(began, applied)
        found["p50_filling"], found["p99_filling"] = watcher.ages(applied, live)
        found["pause"], found["gap"] = one["status"]["pause_seconds"], watcher.gap(applied, time.time())
        found["state"], found["starts"] = one["status"]["bytes"], one["starts"]
        found["failover"] = self._failover(watcher, lambda: os.kill(one["process"], signal.SIGKILL))
        time.sleep(FLOW_SECONDS)  # another state is stored meanwhile
        node = self._host("bench")
        found["node_failover"] = self._failover(watcher, lambda: self._cluster.kill(node))
        self._cluster.start(node)

    def _failover(self, watcher: Watcher, kill: Callable[[], object]) -> float:
        """The longest time without a change when something is killed."""
        killed = time.time()
        kill()
        end = killed + FAILOVER_SECONDS
        while time.time() < end and watcher.seen[-1][0] < killed + 0.2:
            time.sleep(0.01)
        if watcher.seen[-1][0] < killed + 0.2:
            raise TimeoutError(f"no change within {FAILOVER_SECONDS:g} s of a death")
        time.sleep(1.0)
        return watcher.gap(killed - 1, time.time())

    def _one(self) -> None:
        keys = max(1, self._rows // 10)
        row = {
            "auction": self._sent * 7919 % keys,
            "price": self._sent * 617 % 1000,  # a row in ten is a change of `sample`, and none in a burst
            "sent": int(time.time() * 1e6),
        }
        self._sent += 1
        while True:
            try:
                self._producer.produce("bids", json.dumps(row))
                return
            except BufferError:
                self._producer.poll(0.1)

    @contextmanager
    def _flowing(self) -> Iterator[None]:
        stop = threading.Event()

        def flow() -> None:
            while not stop.wait(0.02):
                for _ in range(int(RATE * 0.02)):
                    self._one()
                self._producer.poll(0)

        thread = threading.Thread(target=flow, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            self._producer.flush(30)

    def _apply(self, name: str, text: str) -> None:
        file = self._folder / f"{name}.sql"
        file.write_text(text)
        command = [sys.executable, "-m", "strandline", "view", "apply", str(file)]
        command += ["--wait", str(WAIT_SECONDS), "--cluster", str(self._cluster.folder)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS + 60, check=False)
        if done.returncode:
            raise CommandFailed(done.stderr.strip(), "see the nodes' logs")

    def _live(self, name: str) -> dict[str, Any]:
        """A program's live version, once its process has told of itself, as it does each second."""
        end = time.monotonic() + STATUS_SECONDS
        while time.monotonic() < end:
            for _, one in self._running(name):
                if one["status"]:
                    return one
            time.sleep(0.1)
        raise TimeoutError(f"no process of {name} told its status within {STATUS_SECONDS:g} s")

    def _host(self, name: str) -> int:
        """The node that runs a program's live version."""
        return next(node for node, _ in self._running(name))

    def _running(self, name: str) -> list[tuple[int, dict[str, Any]]]:
        return [
            (node.node, one)
            for node in self._cluster.description.nodes.values()
            for one in AdminClient(node.admin).request("GET", "/api/views").body["running"]
            if one["live"] and one["program"] == name
        ]


def size(keys: int, folder: Path) -> dict[str, float]:
    """The figures of one size, from a process of its own."""
    command = [sys.executable, "-m", "tests.programs.bench.views_state", str(keys), str(STEPS), str(folder)]
    print(f"{keys:,} keys ...", file=sys.stderr, flush=True)
    environment = {**os.environ, "POLARS_MAX_THREADS": "1"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def lines(sizes: Sequence[dict[str, float]]) -> list[list[str]]:
    """The curve: a row for each figure, a column for each size."""
    figures = (
        ("filled", "rows a second of processor", "fill", "/s"),
        ("steps of 10,000 rows", "rows a second of processor", "steps", "/s"),
        ("", "a step, median", "step", "s"),
        ("", "a step, longest", "longest", "s"),
        ("state", "runs", "state", "B"),
        ("", "stored", "stored", "B"),
        ("memory of the process", "without mapped files", "memory", "B"),
        ("", "at most", "peak", "B"),
        ("a stored state", "the whole", "save", "s"),
        ("", "after those steps, as in a cutover's pause", "again", "s"),
        ("a start", "files that are here are mapped", "map", "s"),
        ("", "on another machine: fetched", "fetch", "s"),
        ("DuckDB", "the view worked out once, processor", "recompute", "s"),
    )
    return [[title, what, *(shown(one[name], unit) for one in sizes)] for title, what, name, unit in figures]


def cluster_lines(found: dict[str, float]) -> list[list[str]]:
    figures = (
        (f"{found.get('rows', 0):,.0f} rows", "filled, with apply and start", "filled", "/s"),
        (f"{RATE:,.0f} rows a second", "produced to seen, p50", "p50", "s"),
        ("", "p99", "p99", "s"),
        ("while another view is filled", "p50", "p50_filling", "s"),
        ("", "p99", "p99_filling", "s"),
        ("the cutover", "pause as the process tells it", "pause", "s"),
        ("", "longest time without a change, to a reader", "gap", "s"),
        ("", "processes started for the version that is live", "starts", ""),
        ("its process killed", "longest time without a change", "failover", "s"),
        ("its node killed", "longest time without a change", "node_failover", "s"),
    )
    return [[title, what, shown(found.get(name), unit)] for title, what, name, unit in figures]


def main(arguments: Sequence[str]) -> int:
    """Exits 1 when something went wrong; times above those wanted are only remarked."""
    parser = argparse.ArgumentParser(prog="scripts/bench views", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="smaller states, fewer rows")
    parser.add_argument("--keys", type=int, nargs="+", help="sizes of the state, in keys")
    parser.add_argument("--rows", type=int, help="of the view on a cluster; 0: no cluster")
    parser.add_argument("--peer-rows", type=int, help="of the work beside peers; 0: none")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the tables")
    parser.add_argument(
        "--folder", type=existing_folder, default="/var/tmp", help="on a real disk (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    scale = "quick" if options.quick else "full"
    rows = ROWS[scale] if options.rows is None else options.rows
    beside = PEER_ROWS[scale] if options.peer_rows is None else options.peer_rows
    report, load = Report(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="strandline-bench-", dir=options.folder) as scratch:
        for keys in options.keys or SIZES[scale]:
            report.sizes.append(size(keys, Path(scratch, f"{keys}")))
        if rows:
            Run(Path(scratch), report, rows, beside).go()
        if beside:
            report.rates, missing = views_peers.measure(Path(scratch, "peers"), beside, UV)
            report.problems += missing
    if options.json:
        print(json.dumps({"ok": not report.problems, "load_average": load, **asdict(report)}))
        return 1 if report.problems else 0
    print(table(["", "", *(f"{one['keys']:,.0f} keys" for one in report.sizes)], lines(report.sizes)))
    if rows:
        print("\n" + table(["", "", "three nodes"], cluster_lines(report.cluster)))
    if beside:
        head = [
            "",
            f"{beside:,} rows",
            "rows a second of processor",
            "times, whole",
            "without Kafka",
            "wanted",
        ]
        print("\n" + table(head, views_peers.lines(report.rates, report.cluster)))
    if report.cluster.get("pause", 0) > WANTED_PAUSE:
        print(f"- the pause was {report.cluster['pause']:.2f} s, wanted are {WANTED_PAUSE:g}")
    for name, what in (("failover", "process"), ("node_failover", "node")):
        if report.cluster.get(name, 0) > WANTED_FAILOVER:
            seconds = f"{report.cluster[name]:.2f} s, wanted are {WANTED_FAILOVER:g}"
            print(f"- the first output after the {what}'s death came after {seconds}")
    for one in report.problems:
        print(f"- FAILED: {one}")
    print(f"bench views {'failed' if report.problems else 'ok'}, load average before {load:.1f}")
    return 1 if report.problems else 0
