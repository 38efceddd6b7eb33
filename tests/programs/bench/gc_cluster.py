"""Three real nodes: what is produced is lifted to level one, collected, and read back from level one.

Requests are those the nodes count themselves, with their workers'. In a folder they are as many as they would
be in a bucket: an object is one put there, too, and a listing of up to 1,000 names one request.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import psutil
from prometheus_client.parser import text_string_to_metric_families

from strandline.cluster.admin_client import AdminClient
from tests.programs.bench.gc_price import PER_THOUSAND, dollars
from tests.programs.bench.kafka_measure import Amount, Servers, fill, new_topic, read_back
from tests.programs.bench.measures import Result
from tests.programs.bench.strandline_cluster import StrandlineCluster

SETTINGS: Final = (
    "cluster.epoch_seconds=1",
    "level_one.reconcile_seconds=10",
    "collector.grace_seconds=2",
    "collector.sweep_seconds=1",
    "collector.advance_lag_epochs=2",
    "checkpoints.interval=0",  # the lease of the first would keep what is to be collected
)
"""Times are shorter than usual: a short run shows all of a record's life. Sizes are the usual ones."""
DRAIN_SECONDS: Final = 240.0
SETTLE_SECONDS: Final = 3.0
RECORD_BYTES: Final = 1_000


class Storing(Protocol):
    """The nodes under measurement, and where they keep their objects."""

    name: str

    @property
    def bootstrap(self) -> str: ...
    @property
    def security(self) -> Mapping[str, str]: ...
    @property
    def pids(self) -> list[int]: ...
    def kill(self, node: int) -> None: ...
    def start(self, node: int) -> None: ...
    @property
    def admin(self) -> list[str]: ...
    @property
    def objects(self) -> Path: ...


class Nodes(StrandlineCluster):
    """Strandline with these settings, and a look at its nodes and objects."""

    def __init__(self, folder: Path, settings: Sequence[str] = SETTINGS) -> None:
        super().__init__(folder, settings)

    @property
    def admin(self) -> list[str]:
        return [node.admin for node in self._local.description.nodes.values()]

    @property
    def objects(self) -> Path:
        return Path(self._local.description.storage)


@dataclass(frozen=True, slots=True)
class Counted:
    """What all nodes have done up to a moment."""

    at: float
    nodes_cpu: float
    """Seconds, of the nodes' processes alone."""
    figures: Mapping[str, float]
    """Sums over the nodes, by metric, or by metric and the value of its one label."""

    def since(self, before: Counted, name: str) -> float:
        return self.figures.get(name, 0.0) - before.figures.get(name, 0.0)

    def requests(self, before: Counted) -> dict[str, float]:
        """By operation, the workers' too."""
        made = {name: self.since(before, f"strandline_store_requests_total {name}") for name in PER_THOUSAND}
        made["put"] += self.since(before, "strandline_level_one_builder_puts_total")
        made["get_range"] += self.since(before, "strandline_level_one_builder_gets_total")
        return made


def counted(nodes: Storing) -> Counted:
    """Ask every node."""
    figures: dict[str, float] = {}
    for address in nodes.admin:
        answer = AdminClient(address).request("GET", "/metrics")
        for family in text_string_to_metric_families(str(answer.body)):
            for sample in family.samples:
                values = [value for name, value in sample.labels.items() if name != "le"]
                name = " ".join([sample.name, *values])
                figures[name] = figures.get(name, 0.0) + sample.value
    cpu = 0.0
    for pid in nodes.pids:
        times = psutil.Process(pid).cpu_times()
        cpu += times.user + times.system
    return Counted(time.perf_counter(), cpu, figures)


def life(nodes: Storing, amount: Amount) -> dict[str, Result]:
    """Produce, wait until level zero is empty, rest, read all of it back. A result by section."""
    began = counted(nodes)
    topic, records, filled = fill(nodes, amount, size=RECORD_BYTES)
    produced = counted(nodes)
    drained_in = drain(nodes)
    done = counted(nodes)
    problems = list(filled.problems)
    if drained_in is None:
        problems.append(
            f"level zero was not empty after {DRAIN_SECONDS:g} s: {left(nodes, 'l0')} objects left"
        )
    gigabytes = records * RECORD_BYTES / 1e9
    results = {
        "produce": Result(
            {"rate": filled.figures["rate"], "cpu_gb": (produced.nodes_cpu - began.nodes_cpu) / gigabytes}
        ),
        "reconcile": reconciled(began, produced, done, gigabytes, problems),
    }
    if drained_in is not None:
        results["reconcile"].figures["drained"] = drained_in
    made = done.requests(began)
    listed = made.pop("list")  # by the hour, however much is produced
    results["requests a GB"] = Result(
        {
            **{name: count / gigabytes for name, count in made.items()},
            "dollars": dollars(made) / gigabytes * 1000,
        }
    )
    asked = ", ".join(f"{count:.0f} {name}" for name, count in {**made, "list": listed}.items())
    results["requests a GB"].notes += [
        f"{records:,} records of {RECORD_BYTES} bytes, {left(nodes, 'l1')} objects in level one",
        f"requests in all: {asked} in {done.at - began.at:.0f} s",
    ]
    servers = Servers(nodes)
    cpu = servers.processor()
    rate, problem = read_back(nodes, topic, amount.partitions, records, RECORD_BYTES)
    read = counted(nodes)
    results["catch-up"] = Result(
        {
            "rate": rate,
            "cpu_gb": (servers.processor() - cpu) / gigabytes,
            "gets": read.since(done, "strandline_level_one_reader_gets_total") / gigabytes,
        },
        problems=problem,
    )
    if not read.since(done, "strandline_level_one_reader_gets_total"):
        results["catch-up"].problems.append("nothing was read from level one")
    if zero := read.since(done, "strandline_reader_gets_total"):
        results["catch-up"].notes.append(f"{zero:g} gets went to level zero")
    return results


def reconciled(
    began: Counted, produced: Counted, done: Counted, gigabytes: float, problems: list[str]
) -> Result:
    """What the workers did, and what it cost the nodes besides."""
    cpu = done.since(began, "strandline_level_one_builder_cpu_seconds_total")
    written = sum(
        done.since(began, f"strandline_level_one_written_bytes_total {of}")
        for of in ("level_zero", "level_one")
    )
    seconds = done.since(began, "strandline_level_one_job_seconds_sum")
    result = Result(
        {
            "cpu_gb": cpu / gigabytes,
            "after_cpu_gb": (done.nodes_cpu - produced.nodes_cpu) / gigabytes,
            "objects": done.since(began, "strandline_level_one_objects_total level_zero"),
            "merges": done.since(began, "strandline_level_one_objects_total level_one"),
            "written": written / (gigabytes * 1e9),
        },
        problems=problems,
    )
    if seconds:
        result.figures["rate"] = written / seconds
    return result


def idle(nodes: Storing, amount: Amount, seconds: float) -> Result:
    """What is asked of the store, and what it costs, when nobody produces to the partitions there are."""
    new_topic(nodes, amount.partitions)
    time.sleep(SETTLE_SECONDS)
    before = counted(nodes)
    time.sleep(seconds)
    after = counted(nodes)
    hours = (after.at - before.at) / 3600
    made = {name: count / hours for name, count in after.requests(before).items()}
    return Result({**made, "dollars": dollars(made) * 24 * 30})


def left(nodes: Storing, level: str) -> int:
    """Objects of a level that are there."""
    return sum(1 for path in (nodes.objects / level).rglob("*") if path.is_file())


def drain(nodes: Storing) -> float | None:
    """Wait until level zero is empty; how many seconds that took, None when it took too long."""
    began = time.monotonic()
    while time.monotonic() - began < DRAIN_SECONDS:
        if not left(nodes, "l0"):
            return time.monotonic() - began
        time.sleep(0.2)
    return None
