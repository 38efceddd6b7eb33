"""The demonstration of views: flights flow in, views follow, another version joins them, and Spark agrees.

Delays by carrier and by airport are live while flights come. Then a program is applied that leaves the
first view, changes the second and adds a join with planes and weather: it is filled beside the old one and
cuts over. The first view is watched by a Kafka client all the time. At restore points, one of them amid the
filling, Spark SQL works out the programs over the same records.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import quantiles
from typing import Any, Final

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from strandline.cluster.admin_client import AdminClient as NodeClient
from strandline.cluster.admin_client import Unreachable, first_answer
from strandline.cluster.demo import flights as data
from strandline.cluster.demo import views_sql
from strandline.cluster.demo.flow import Flow, Seen, Watcher
from strandline.cluster.failure import CommandFailed
from strandline.cluster.kafka_client import client_config
from strandline.cluster.local import LocalCluster
from strandline.snapshot.spark.audits import ClusterStorage, Verdict
from strandline.snapshot.spark.audits.result import AuditResult
from strandline.snapshot.spark.audits.view_audit import views_equal_their_sql
from strandline.snapshot.spark.session import session
from strandline.snapshot.storage import open_storage

PROGRAM: Final = "delays"
RATE: Final = 1500.0
"""Flights a second that flow in."""
SETTLED_SECONDS: Final = 6.0
"""The flow goes on for this long before the second version is applied, and after it is live."""
APPLY_SECONDS: Final = 120.0
CATCH_UP_SECONDS: Final = 60.0
_REQUEST_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.05


@dataclass
class ViewsOutcome:
    """Everything a run found out. Moments are seconds of the performance counter."""

    flights: int
    counted: int
    seen: list[Seen]
    applied: float
    live: float
    phases: list[tuple[float, str]]
    audit: AuditResult
    began: float
    pause_told: float | None
    """Of the cutover, as the process tells it; None: another process is live by now."""
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)

    def ages(self, first: float, last: float) -> str:
        """p50 and p99 of the ages that were seen between two moments."""
        ages = [one.age for one in self.seen if first <= one.moment < last]
        if len(ages) < 2:
            return "none seen"
        cuts = quantiles(ages, n=100)
        return f"{cuts[49] * 1000:,.0f} / {cuts[98] * 1000:,.0f} ms"

    @property
    def pause(self) -> float:
        """The longest time without a change of the unchanged view, around the cutover."""
        moments = [one.moment for one in self.seen]
        around = [moment for moment in moments if self.live - SETTLED_SECONDS < moment]
        return max((later - one for one, later in pairwise(around)), default=0.0)

    def rows(self) -> list[tuple[str, str, bool]]:
        """(what, figure, whether it is as it should be)."""
        end, counts = self.seen[-1].moment if self.seen else self.live, self.audit.counts
        return [
            ("flights in", f"{self.flights:,}", True),
            (f"flights in {views_sql.UNCHANGED}", f"{self.counted:,}", self.counted == self.flights),
            ("second version applied until live", f"{self.live - self.applied:.1f} s", True),
            ("age of what is seen (p50 / p99), before", self.ages(self.began, self.applied), True),
            ("while the second version is filled", self.ages(self.applied, self.live), True),
            ("after the cutover", self.ages(self.live, end + 1), True),
            (f"longest time without a change of {views_sql.UNCHANGED}, cutover", f"{self.pause:.2f} s", True),
            (
                "the cutover's pause, as the process tells it",
                "not told" if self.pause_told is None else f"{self.pause_told:.2f} s",
                self.pause_told is not None,
            ),
            ("restore points for Spark SQL", str(counts["restore points"]), counts["restore points"] > 1),
            ("views that it compared", str(counts["views compared"]), counts["views compared"] > 0),
            ("rows that it compared", f"{counts['rows']:,}", counts["rows"] > 0),
            ("rows that differ", str(self.audit.findings), self.audit.verdict is Verdict.PASSED),
        ]  # fmt: skip

    @property
    def good(self) -> bool:
        return not self.problems and all(good for _, _, good in self.rows())


def run(cluster: LocalCluster, out: Path, count: int | None, stage: Any) -> ViewsOutcome:
    """The whole demonstration on a cluster that is up; raises CommandFailed."""
    bootstrap = cluster.description.bootstrap
    with stage.step("flights, planes and weather of 2013 out of the data set"):
        flights = data.load(count)
    with stage.step("topics, planes and weather"):
        _create_topics(bootstrap)
        _tables(bootstrap)
    flow = Flow(bootstrap, "flights", flights, RATE)
    with stage.step("a first part of the flights"):
        flow.at_once(len(flights) // 4)
    with stage.step("delays by carrier and by airport"):
        _apply(cluster, out, views_sql.FIRST)
    watcher = Watcher(bootstrap, views_sql.UNCHANGED, flow)
    began = time.perf_counter()
    try:
        flow.start()
        with stage.step("flights flow in"):
            time.sleep(SETTLED_SECONDS)
        with (
            stage.step("a view is changed, a join with planes and weather is added"),
            _phases(cluster) as phases,
        ):
            applied = time.perf_counter()
            taken = threading.Thread(target=_checkpoint, args=(cluster,), daemon=True)
            taken.start()
            _apply(cluster, out, views_sql.SECOND)
            live = time.perf_counter()
        with stage.step("flights flow on"):
            time.sleep(SETTLED_SECONDS)
            flow.stop()
            _until(lambda: watcher.counted() >= flow.sent)
        taken.join()
        told = _pause(cluster)
    finally:
        watcher.close()
    with stage.step("restore point"):
        _checkpoint(cluster)
    with stage.step("Spark SQL works everything out"):
        described = cluster.description
        stored = ClusterStorage(open_storage(described.storage), described.cluster)
        audit = views_equal_their_sql(session("strandline-demo", short_jobs=True), stored)
    return ViewsOutcome(flow.sent, watcher.counted(), watcher.seen, applied, live, phases, audit, began, told)


def _create_topics(bootstrap: str) -> None:
    compacted = {"cleanup.policy": "compact"}
    topics = [NewTopic("flights", 3, 3)]
    topics += [NewTopic(name, 1, 3, config=compacted) for name in ("planes", "weather")]
    admin = AdminClient(client_config(bootstrap))
    for made in admin.create_topics(topics).values():
        made.result(_REQUEST_SECONDS)


def _tables(bootstrap: str) -> None:
    producer = Producer(client_config(bootstrap, enable_idempotence=True, linger_ms=5))
    for name, columns in (("planes", ("tailnum",)), ("weather", ("origin", "time_hour"))):
        for row in data.table(name):
            key = json.dumps([row[column] for column in columns], separators=(",", ":"))
            producer.produce(name, json.dumps(row), key)
            producer.poll(0)
    if producer.flush(_REQUEST_SECONDS):
        raise CommandFailed("planes and weather are not there", "see the nodes' logs")


def _apply(cluster: LocalCluster, out: Path, text: str) -> None:
    file = out / f"{PROGRAM}.sql"
    file.write_text(text)
    command = [sys.executable, "-m", "strandline", "view", "apply", str(file), "--wait", str(APPLY_SECONDS)]
    done = subprocess.run(
        [*command, "--cluster", str(cluster.folder)],
        capture_output=True,
        text=True,
        timeout=APPLY_SECONDS + 60,
    )
    if done.returncode:
        raise CommandFailed(
            f"`strandline view apply` ended with {done.returncode}: {done.stderr.strip()}", "see it"
        )


@contextmanager
def _phases(cluster: LocalCluster) -> Iterator[list[tuple[float, str]]]:
    """When the next version's process came to each of its phases, as the nodes tell."""
    found: list[tuple[float, str]] = []
    stop = threading.Event()
    nodes = [NodeClient(node.admin) for node in cluster.description.nodes.values()]

    def look() -> None:
        while not stop.wait(_LOOK_SECONDS):
            for node in nodes:
                with suppress(Unreachable):
                    for one in node.request("GET", "/api/views").body["running"]:
                        phase = None if one["live"] else one["status"].get("phase")
                        if phase and (not found or found[-1][1] != phase):
                            found.append((time.perf_counter(), phase))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()


def _pause(cluster: LocalCluster) -> float | None:
    """The cutover's pause, as the process says that has cut over."""
    for node in cluster.description.nodes.values():
        for one in NodeClient(node.admin).request("GET", "/api/views").body["running"]:
            if one["live"] and "pause_seconds" in one["status"]:
                return float(one["status"]["pause_seconds"])
    return None


def _checkpoint(cluster: LocalCluster) -> None:
    """Take a restore point, as soon as there can be one; raises CommandFailed."""
    addresses: Sequence[str] = [node.admin for node in cluster.description.nodes.values()]
    body = {"timeout_seconds": _REQUEST_SECONDS}
    end = time.monotonic() + _REQUEST_SECONDS
    while time.monotonic() < end:
        told = first_answer(addresses, "POST", "/api/checkpoints", body, timeout=_REQUEST_SECONDS)
        if told.get("restore_point") is not None:
            return
        time.sleep(1)
    raise CommandFailed(f"no restore point came about: {told.get('no_restore_point')}", "see the nodes' logs")


def _until(done: Any) -> None:
    end = time.monotonic() + CATCH_UP_SECONDS
    while not done() and time.monotonic() < end:
        time.sleep(_LOOK_SECONDS)
