"""A cluster grows from three nodes to five and shrinks back, under load: is anything lost, or there twice?

    scripts/growth --seconds 15

Three real nodes with a topic of 12 partitions; an idempotent producer of librdkafka writes all the while. Two
more nodes join, all replicas of one founder move away and it is removed, then the same is done with one of
the nodes that joined. Then everything that was acknowledged is read back, and the storage is audited.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition

from strandline.cluster.admin_client import first_answer
from strandline.cluster.local import NODE_PROGRAM
from tests.cluster.real_cluster import RealCluster, running_cluster

TOPIC: Final = "growth"
PARTITIONS: Final = 12
PAUSE_SECONDS: Final = 0.002
"""Between two records."""
COMMAND: Final = (NODE_PROGRAM[0], "-m", "strandline")


@dataclass
class Found:
    """The counts of a run; lost, doubled and strange are faults."""

    acknowledged: int = 0
    failed: int = 0
    """Deliveries that librdkafka gave up."""
    read: int = 0
    lost: int = 0
    doubled: int = 0
    strange: int = 0
    """Values that were never written."""
    longest_gap_seconds: float = 0.0
    """Longest time in which no record was acknowledged."""
    steps: str = ""
    """Each step with the voters after it."""
    audit: str = ""

    @property
    def faults(self) -> list[str]:
        names = ("lost", "doubled", "strange", "failed")
        told = [f"{getattr(self, name)} {name}" for name in names if getattr(self, name)]
        return told + ([] if self.audit == "ok" else [f"audit: {self.audit}"])


class Load:
    """One producer that writes numbered records until it is told to stop."""

    def __init__(self, bootstrap: str, found: Found) -> None:
        self.acked: set[bytes] = set()
        self._found = found
        self._last = time.monotonic()
        self._stop = threading.Event()
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5}
        )
        self._thread = threading.Thread(target=self._run, name="load")

    def start(self) -> None:
        self._last = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            self._producer.produce(
                TOPIC, value=b"%d" % number, partition=number % PARTITIONS, on_delivery=self._delivered
            )
            number += 1
            self._producer.poll(0)
            time.sleep(PAUSE_SECONDS)
        self._producer.flush(60)

    def _delivered(self, error: Any, message: Any) -> None:
        now = time.monotonic()
        if error is not None:
            self._found.failed += 1
            return
        self._found.longest_gap_seconds = max(self._found.longest_gap_seconds, now - self._last)
        self._last = now
        self.acked.add(message.value())


def run(seconds: float, folder: Path) -> Found:
    """The whole way, in a new folder."""
    found = Found()
    with running_cluster(folder / "cluster", nodes=3) as cluster:
        command(cluster, "topic", "create", TOPIC, "--partitions", str(PARTITIONS))
        load = Load(cluster.bootstrap, found)
        load.start()
        try:
            for step in steps(cluster):
                time.sleep(seconds)
                print(f"{step}: {members(cluster)}", file=sys.stderr, flush=True)
                found.steps += f"{step}: {members(cluster)}; "
            time.sleep(seconds)
        finally:
            load.stop()
        found.acknowledged = len(load.acked)
        judge(cluster, load.acked, found)
        command(cluster, "checkpoint")
        audited = command(cluster, "audit", check=False)
        found.audit = "ok" if audited.returncode == 0 else audited.stdout[-2000:] + audited.stderr[-500:]
    return found


def steps(cluster: RealCluster) -> Any:
    """Do one thing after the other, and name it."""
    yield "three nodes"
    command(cluster, "cluster", "up", "--nodes", "5", "--free-ports")
    yield "two joined"
    for node in (3, 4):
        command(cluster, "node", "drain", str(node))
        yield f"node {node} drained"
        command(cluster, "cluster", "stop", str(node))
        command(cluster, "node", "remove", str(node))
        yield f"node {node} removed"


def members(cluster: RealCluster) -> str:
    """Each node with its part in the controller's group."""
    rows = first_answer(cluster.admin, "GET", "/api/nodes")["nodes"]
    return ", ".join(f"{one['node']} {one['controller_role']} {one['replicas']}" for one in rows)


def judge(cluster: RealCluster, acked: set[bytes], found: Found) -> None:
    """Read every partition to its end, and count."""
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "judge", "enable.auto.commit": False}
    )
    counts: Counter[bytes] = Counter()
    for number in range(PARTITIONS):
        place = TopicPartition(TOPIC, number, 0)
        _, end = consumer.get_watermark_offsets(place, timeout=30)
        consumer.assign([place])
        while (message := consumer.poll(30)) is not None and message.error() is None:
            counts[message.value() or b""] += 1
            if (message.offset() or 0) + 1 >= end:
                break
    consumer.close()
    found.read = sum(counts.values())
    found.lost = len(acked - counts.keys())
    found.doubled = sum(count - 1 for count in counts.values())
    found.strange = sum(not value.isdigit() for value in counts)


def command(cluster: RealCluster, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run `strandline` for this cluster."""
    done = subprocess.run(
        [*COMMAND, *words, "--cluster", str(cluster.folder)], capture_output=True, text=True, check=False
    )
    if check and done.returncode:
        raise RuntimeError(f"strandline {' '.join(words)}: {done.stdout}{done.stderr}")
    return done


def main(arguments: Sequence[str] | None = None) -> int:
    """Run once; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(prog="scripts/growth", description="Grow and shrink a cluster.")
    parser.add_argument("--seconds", type=float, default=10.0, help="of load between two steps")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="growth-") as folder:
        found = run(options.seconds, Path(folder))
    if options.json:
        print(json.dumps(asdict(found)))
    else:
        told = ", ".join(found.faults) or "nothing lost, nothing doubled"
        print(
            f"growth {'failed' if found.faults else 'ok'}: {found.acknowledged:,} acknowledged, "
            f"{found.read:,} read, longest gap {found.longest_gap_seconds:.2f} s; {told}"
        )
    return 1 if found.faults else 0
