"""A cluster is operated under load: what an operator does to it, one thing after the other.

    scripts/operations
    scripts/operations --settle 20 --away 60 --rounds 2

Three real nodes in three racks with a topic of 12 partitions, into which an idempotent producer of librdkafka
writes all the while. Two more nodes join, in two of the racks, and replicas are balanced over the five. Then,
each round: the nodes of a rack are killed for a minute; a node is killed, its data folder deleted, and the
node replaced; all nodes are restarted by a rolling restart. At last a founder and a node that joined are
drained and removed. Everything that was acknowledged is read back, and the storage is audited.

For each event the longest time in which any one partition acknowledged nothing is told, from its beginning
until some seconds after its end.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from strandline.cluster.admin_client import first_answer
from strandline.cluster.local import NODE_PROGRAM, LocalCluster
from strandline.cluster.ports import free_ports
from tests.programs.failover.verdict import percentile
from tests.programs.operations.load import PARTITIONS, TOPIC, Load, read

COMMAND: Final = (NODE_PROGRAM[0], "-m", "strandline")
RACKS: Final = {1: "a", 2: "b", 3: "c", 4: "a", 5: "b"}
LOST_RACK: Final = "a"
REPLACED: Final = 2
REMOVED: Final = (3, 4)
LIMIT_SECONDS: Final = 1.5
"""The 95th percentile of the events' gaps must stay below it."""
COMMAND_SECONDS: Final = 300.0
BALANCED_SECONDS: Final = 180.0


@dataclass
class Found:
    """The counts of a run."""

    acknowledged: int = 0
    failed: int = 0
    """Deliveries that librdkafka gave up."""
    read: int = 0
    lost: int = 0
    doubled: int = 0
    strange: int = 0
    """Values that were never written."""
    unread: int = 0
    """Partitions that could not be read to their end."""
    gaps: dict[str, float] = field(default_factory=dict)
    """Of each event the longest gap of any partition, in seconds."""
    members: dict[str, str] = field(default_factory=dict)
    """After each event, each node with its part in the controller's group, replicas and leaderships."""
    audit: str = ""

    @property
    def p95(self) -> float:
        """Of the events' gaps, in seconds."""
        return percentile(list(self.gaps.values()), 0.95)

    @property
    def faults(self) -> list[str]:
        """What is wrong; nothing when all is well."""
        names = ("lost", "doubled", "strange", "failed", "unread")
        told = [f"{getattr(self, name)} {name}" for name in names if getattr(self, name)]
        if not self.p95 < LIMIT_SECONDS:
            told.append(f"the 95th percentile of the gaps is {self.p95:.2f} s")
        return told + ([] if self.audit == "ok" else [f"audit: {self.audit}"])


class Operator:
    """Does one thing after the other to a cluster, and measures each."""

    def __init__(self, cluster: LocalCluster, load: Load, found: Found, settle: float) -> None:
        self._cluster = cluster
        self._load = load
        self._found = found
        self._settle = settle

    def all(self, rounds: int, away: float) -> None:
        """Everything, in the order of the script's description."""
        with self._event("load alone"):
            pass
        with self._event("two nodes join"):
            self.command("cluster", "up", "--nodes", "5", "--free-ports")
        with self._event("the two get racks"):
            give_racks(self._cluster, 4, 5)
        with self._event("replicas are balanced"):
            self.command("cluster", "balance", "on")
            self._balanced()
        for number in range(1, rounds + 1):
            self._round(f"{number}: " if rounds > 1 else "", away)
        self.command("cluster", "balance", "off")
        for node in REMOVED:
            with self._event(f"node {node} drained"):
                self.command("node", "drain", str(node))
            with self._event(f"node {node} removed"):
                self.command("cluster", "stop", str(node))
                self.command("node", "remove", str(node))

    def _round(self, name: str, away: float) -> None:
        lost = [node for node, rack in RACKS.items() if rack == LOST_RACK]
        with self._event(f"{name}rack {LOST_RACK} killed"):
            for node in lost:
                self._cluster.kill(node)
            time.sleep(away)
        with self._event(f"{name}rack {LOST_RACK} back"):
            self.command("cluster", "start", *map(str, lost))
            self._well()
        with self._event(f"{name}node {REPLACED}'s disk lost and replaced"):
            self._cluster.kill(REPLACED)
            data = self._cluster.description.nodes[REPLACED].data
            shutil.rmtree(data)
            data.mkdir(mode=0o700)
            self.command("cluster", "start", str(REPLACED), "--timeout", "0")
            self.command("node", "replace", str(REPLACED))
            self._well()
        with self._event(f"{name}rolling restart"):
            self.command("cluster", "restart", "--rolling")

    @contextmanager
    def _event(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        ended = time.monotonic()
        time.sleep(self._settle)
        gap = self._load.gap(began, time.monotonic())
        self._found.gaps[name] = round(gap, 3)
        self._found.members[name] = members(self._cluster)
        told = f"{name}: {ended - began:.1f} s, longest gap {gap:.2f} s; {self._found.members[name]}"
        print(told, file=sys.stderr, flush=True)

    def _well(self) -> None:
        self.command("cluster", "status", "--wait", "120")

    def _balanced(self) -> None:
        """Until no replica has a better place; a move is begun every few seconds."""
        deadline = time.monotonic() + BALANCED_SECONDS
        while first_answer(addresses(self._cluster), "GET", "/api/balance")["steps"]:
            if time.monotonic() > deadline:
                raise RuntimeError(f"replicas are not balanced after {BALANCED_SECONDS:g} s")
            time.sleep(1.0)

    def command(self, *words: str) -> None:
        """Run `strandline` for this cluster."""
        command(self._cluster, *words)


def run(folder: Path, rounds: int, settle: float, away: float) -> Found:
    """Everything, in a new folder."""
    found = Found()
    cluster = LocalCluster(folder / "cluster")
    try:
        cluster.up(3, choose_ports=free_ports)
        give_racks(cluster, 1, 2, 3)
        command(cluster, "topic", "create", TOPIC, "--partitions", str(PARTITIONS))
        load = Load(cluster.description.bootstrap)
        load.start()
        try:
            Operator(cluster, load, found, settle).all(rounds, away)
        finally:
            load.stop()
        counts, found.unread = read(cluster.description.bootstrap)
        judge(load, counts, found)
        command(cluster, "checkpoint")
        audited = command(cluster, "audit", check=False)
        found.audit = "ok" if audited.returncode == 0 else audited.stdout[-2000:] + audited.stderr[-500:]
    finally:
        if cluster.folder.is_dir():
            cluster.down()
    return found


def judge(load: Load, counts: dict[bytes, int], found: Found) -> None:
    """Compare what was acknowledged with what is there."""
    found.acknowledged, found.failed = len(load.acked), load.failed
    found.read = sum(counts.values())
    found.lost = len(load.acked - counts.keys())
    found.doubled = sum(count - 1 for count in counts.values())
    found.strange = sum(not value.isdigit() for value in counts)


def give_racks(cluster: LocalCluster, *nodes: int) -> None:
    """Write these nodes' racks into their files, and restart them for it."""
    for node in nodes:
        config = cluster.description.nodes[node].config
        config.write_text(config.read_text().replace("[node]\n", f'[node]\nrack = "{RACKS[node]}"\n', 1))
    command(cluster, "cluster", "restart", "--rolling", *map(str, nodes))


def addresses(cluster: LocalCluster) -> list[str]:
    """Each node's HTTP address."""
    return [node.admin for node in cluster.description.nodes.values()]


def members(cluster: LocalCluster) -> str:
    """Each node with its part in the controller's group, its replicas and its leaderships."""
    rows = first_answer(addresses(cluster), "GET", "/api/nodes")["nodes"]
    return ", ".join(
        f"{one['node']} {one['controller_role']} {one['replicas']}/{one['leads']}" for one in rows
    )


def command(cluster: LocalCluster, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run `strandline` for this cluster; RuntimeError if it fails."""
    done = subprocess.run(
        [*COMMAND, *words, "--cluster", str(cluster.folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=COMMAND_SECONDS,
    )
    if check and done.returncode:
        raise RuntimeError(f"strandline {' '.join(words)}: {done.stdout}{done.stderr}")
    return done


def main(arguments: Sequence[str] | None = None) -> int:
    """Run once; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(
        prog="scripts/operations", description="Operate a cluster under load: grow, lose, replace, restart."
    )
    parser.add_argument("--rounds", type=int, default=1, help="of rack lost, disk lost, rolling restart")
    parser.add_argument("--settle", type=float, default=8.0, help="seconds of load after each event")
    parser.add_argument("--away", type=float, default=60.0, help="seconds for which the rack is away")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="operations-") as folder:
        found = run(Path(folder), options.rounds, options.settle, options.away)
    if options.json:
        print(json.dumps({**asdict(found), "p95": found.p95, "faults": found.faults}))
    else:
        told = ", ".join(found.faults) or "nothing lost, nothing doubled"
        print(
            f"operations {'failed' if found.faults else 'ok'}: {found.acknowledged:,} acknowledged,"
            f" {found.read:,} read, {len(found.gaps)} events, gaps p95 {found.p95:.2f} s, longest"
            f" {max(found.gaps.values()):.2f} s; {told}"
        )
    return 1 if found.faults else 0
