"""Views on three nodes: filling, latency, cutovers, the death of a process and of its node."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient as KafkaAdmin
from confluent_kafka.cimpl import NewTopic

from strandline.cluster.admin_client import AdminClient, Unreachable
from strandline.cluster.failure import CommandFailed
from strandline.cluster.kafka_client import client_config
from strandline.cluster.local import LocalCluster
from strandline.cluster.ports import free_ports
from tests.programs.bench import views_peers
from tests.programs.bench.views_memory import Memory, taken
from tests.programs.bench.views_rows import PARTITIONS, TOPIC, Rows
from tests.programs.bench.views_watcher import Watcher

FLOW_SECONDS: Final = 10.0
BETWEEN_SECONDS: Final = 2.0
"""From a cutover to the next filling, where there are several."""
WAIT_SECONDS: Final = 900.0
FAILOVER_SECONDS: Final = 60.0
STATUS_SECONDS: Final = 30.0
LOOK_SECONDS: Final = 0.1
TABLE: Final = f"CREATE TABLE {TOPIC} (auction BIGINT, price BIGINT, sent BIGINT);\n"
FIRST: Final = (
    TABLE
    + "CREATE VIEW totals AS SELECT auction, count(*) AS n, sum(price) AS total FROM bids GROUP BY auction;\n"
    "CREATE VIEW sample AS SELECT _partition, _offset, sent FROM bids WHERE price < 100;\n"
)
CHANGED: Final = (
    FIRST + "CREATE VIEW prices AS SELECT price, count(*) AS n FROM bids WHERE price >= {} GROUP BY price;\n"
)
"""With another number it is another version, of which one view is filled anew."""


class Size(NamedTuple):
    """What is measured."""

    rows: int
    keys: int
    cutovers: int = 1
    beside: int = 0
    """Rows of the work that is compared with peers."""


@dataclass
class Report:
    """Filled in as the run goes. Times in seconds."""

    sizes: list[dict[str, float]] = field(default_factory=list)
    cluster: dict[str, float] = field(default_factory=dict)
    cutovers: list[dict[str, Any]] = field(default_factory=list)
    rates: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


class Run:
    """One cluster in a folder."""

    def __init__(self, folder: Path, report: Report, size: Size) -> None:
        self._cluster = LocalCluster(folder / "cluster")
        self._folder = folder
        self._report = report
        self._size = size
        self._applied = 0
        """The attempt that is live."""

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
        for made in admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)]).values():
            made.result(30)
        rows = Rows(bootstrap, self._size.keys)
        rows.write(self._size.rows)
        memory = Memory(self._nodes)
        try:
            began = time.time()
            self._apply("bench", FIRST)
            found |= {"rows": self._size.rows, "keys": min(self._size.keys, self._size.rows)}
            found["filled"] = self._size.rows / (time.time() - began)
            self._applied = self._live("bench")["attempt"]
            watcher = Watcher(bootstrap)
            try:
                with rows.flowing():
                    self._watched(watcher)
            finally:
                watcher.close()
        finally:
            memory.close()
            found["most_own"], found["most_all"] = memory.most
        if self._size.beside:
            self._committed(admin)

    def _nodes(self) -> list[int]:
        return [node.pid for node in self._cluster.description.nodes.values() if node.pid is not None]

    def _committed(self, admin: KafkaAdmin) -> None:
        topics = [
            NewTopic(name, 2, 3, config={"cleanup.policy": policy})
            for name, policy in views_peers.TOPICS.items()
        ]
        for made in admin.create_topics(topics).values():
            made.result(30)
        for work in views_peers.WORKS:
            whole, coming = views_peers.committed_rate(
                work, self._size.beside, self._cluster.description.bootstrap, self._live, self._apply
            )
            self._report.cluster |= {f"committed_{work}": whole, f"coming_{work}": coming}

    def _watched(self, watcher: Watcher) -> None:
        found = self._report.cluster
        began, filling = time.time(), list[tuple[float, float]]()
        time.sleep(FLOW_SECONDS)
        found["p50"], found["p99"] = watcher.ages((began, time.time()))
        for number in range(self._size.cutovers):
            applied = time.time()
            self._apply("bench", CHANGED.format(number))
            filling.append((applied, time.time()))
            time.sleep(BETWEEN_SECONDS if self._size.cutovers > 1 else FLOW_SECONDS)
            one = self._cut_over()
            pause, parts = one["status"]["pause_seconds"], one["status"]["pause_parts"]
            gap = watcher.gap(applied, time.time())
            self._report.cutovers.append({"pause": pause, "gap": gap, "parts": parts})
        found["p50_filling"], found["p99_filling"] = watcher.ages(*filling)
        found["state"], found["starts"] = one["status"]["bytes"], one["starts"]
        found["own"], found["all"] = taken(one["process"])
        found["failover"] = self._failover(watcher, lambda: os.kill(one["process"], signal.SIGKILL))
        time.sleep(FLOW_SECONDS)  # another state is stored meanwhile
        began_again = self._live("bench")["status"]["start_parts"]
        found |= {f"start_{part}": seconds for part, seconds in began_again.items()}
        node = self._host("bench")
        found["node_failover"] = self._failover(watcher, lambda: self._cluster.kill(node))
        self._cluster.start(node)

    def _cut_over(self) -> dict[str, Any]:
        """The process that has cut over, which is live since, with what it tells of the pause."""

        def is_it(one: dict[str, Any]) -> bool:
            return one["attempt"] != self._applied and "pause_seconds" in one["status"]

        one = self._live("bench", is_it)
        self._applied = one["attempt"]
        return one

    def _failover(self, watcher: Watcher, kill: Callable[[], object]) -> float:
        """The longest time without a change when something is killed."""
        began = time.time()
        kill()
        killed = time.time()  # a change that is seen soon after that is of before
        end = killed + FAILOVER_SECONDS
        while time.time() < end and watcher.seen[-1][0] < killed + 0.2:
            time.sleep(0.01)
        if watcher.seen[-1][0] < killed + 0.2:
            raise TimeoutError(f"no change within {FAILOVER_SECONDS:g} s of a death")
        time.sleep(1.0)
        return watcher.gap(began - 1, time.time())

    def _apply(self, name: str, text: str) -> None:
        file = self._folder / f"{name}.sql"
        file.write_text(text)
        command = [sys.executable, "-m", "strandline", "view", "apply", str(file)]
        command += ["--wait", str(WAIT_SECONDS), "--cluster", str(self._cluster.folder)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS + 60, check=False)
        if done.returncode:
            raise CommandFailed(done.stderr.strip(), "see the nodes' logs")

    def _live(self, name: str, wanted: Callable[[dict[str, Any]], bool] = lambda _: True) -> dict[str, Any]:
        """The process of a program's live version, once it has told of itself, as it does each second."""
        end = time.monotonic() + STATUS_SECONDS
        while time.monotonic() < end:
            for _, one in self._running(name):
                if one["status"] and wanted(one):
                    return one
            time.sleep(LOOK_SECONDS)
        raise TimeoutError(f"no process of {name} told what is wanted within {STATUS_SECONDS:g} s")

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
