"""`strandline export` killed for minutes: is each record in its files once?

    scripts/export-kills --minutes 10 --format delta

A cluster's storage is written by the real state machines, without nodes: three topics, both levels, and more
records with a new checkpoint before each run. Exports run as processes of their own, now and then two at
once. Each is killed with SIGKILL at a random moment after its first change of the target, unless it has
ended. Between them a reader that goes by the files alone, or by the tables, looks for a record that is there
twice. A last run is not killed. Then the files must have each record of the topics once, and
`strandline export --check` must find nothing.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from tests.spark.stored_cluster import StoredCluster, build_cluster

TOPICS = ("orders", "clicks", "visits")
START_SECONDS = 120.0
"""An import of Arrow takes a second, on a busy machine far more."""
MOST_RECORDS = 400_000
"""Of all topics; the comparison at the end has them in memory."""
MOST_BATCHES = 12
"""Batches of a partition between two runs."""
RECORDS = 60
LATEST_KILL_SECONDS = 0.5
"""After the first change; most kills come sooner."""


@dataclass
class Kills:
    """The counts of a series."""

    runs: int = 0
    killed: int = 0
    ended: int = 0
    resumed: int = 0
    doubled: int = 0


def write(cluster: StoredCluster, number: int, batches: int) -> None:
    """More records in every partition, and a checkpoint."""
    value = f"{number}:".encode().ljust(120, b"v")
    for _ in range(batches):
        cluster.upload(*(partition.batch([value] * RECORDS) for partition in cluster.partitions.values()))
    for place, partition in cluster.partitions.items():
        if place[0] == "visits":
            partition.reconcile(len(partition.machine.extents))
    cluster.checkpoint()


def start(cluster: StoredCluster, target: Path, form: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "strandline", "export", *TOPICS, "--to", str(target), "--format", form]
    command += ["--storage", cluster.url, "--partition-by", "day", "--file-mb", "1", "--json"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def changes(target: Path) -> int:
    """Files that there are, but for unfinished ones."""
    return sum(path.is_file() and path.parent.name != "unfinished" for path in target.rglob("*"))


def selected(target: Path, form: str, columns: str) -> list[tuple[Any, ...]]:
    """Columns of all records, as a reader finds them that knows nothing of manifests."""
    if form == "parquet":
        if not any(target.rglob("*.parquet")):
            return []
        files = f"read_parquet('{target}/**/*.parquet', hive_partitioning = true)"
        return duckdb.execute(f"SELECT topic, {columns} FROM {files}").fetchall()
    found: list[tuple[Any, ...]] = []
    for topic in TOPICS:
        rows = table(target, topic, form)
        if rows is not None:
            found += duckdb.execute(f"SELECT '{topic}', {columns} FROM rows").fetchall()
    return found


def table(target: Path, topic: str, form: str) -> Any:
    """A table as its own library reads it, as Arrow has it; None if there is none."""
    if form == "delta":
        place = str(target / f"topic={topic}")
        return DeltaTable(place).to_pyarrow_table() if DeltaTable.is_deltatable(place) else None
    database = target / "_strandline" / "catalog.db"
    if not database.exists():
        return None
    catalog = load_catalog("strandline", type="sql", uri=f"sqlite:///{database}")
    name = ("strandline", topic)
    return catalog.load_table(name).scan().to_arrow() if catalog.table_exists(name) else None


def doubled(target: Path, form: str) -> int:
    """Records that are there twice."""
    found = selected(target, form, '"partition", "offset"')
    return len(found) - len(set(found))


def kill_one(cluster: StoredCluster, target: Path, form: str, chance: random.Random, found: Kills) -> None:
    """Start a run, or two; kill each at a random moment after the first change, unless it has ended."""
    before = changes(target)
    running = [start(cluster, target, form) for _ in range(2 if chance.random() < 0.2 else 1)]
    found.runs += len(running)
    limit = time.monotonic() + START_SECONDS
    while changes(target) == before and time.monotonic() < limit:
        if all(process.poll() is not None for process in running):
            break
        time.sleep(0.01)
    for process in running:
        time.sleep(chance.random() ** 3 * LATEST_KILL_SECONDS)
        process.kill()
        out, problem = process.communicate()
        if process.returncode == 0:
            found.ended += 1
            found.resumed += bool(json.loads(out)["resumed"])
        elif process.returncode == -9:
            found.killed += 1
        else:
            raise AssertionError(f"a run ended with status {process.returncode}: {problem}")


def lost_and_more(cluster: StoredCluster, target: Path, form: str) -> tuple[int, int, int]:
    """Records of the topics, those that the files lack, and those that only the files have."""
    wanted = {
        (*place, one.offset, one.timestamp, one.key, one.value)
        for place, partition in cluster.partitions.items()
        for one in partition.readable
    }
    there = set(selected(target, form, '"partition", "offset", epoch_ms("timestamp"), key, value'))
    return len(wanted), len(wanted - there), len(there - wanted)


def run(minutes: float, seed: int, folder: Path, form: str) -> dict[str, object]:
    """Kill for so many minutes; returns the counts."""
    chance = random.Random(seed)
    cluster, target = build_cluster(folder / "objects"), folder / "lake"
    target.mkdir()
    found = Kills()
    end = time.monotonic() + minutes * 60
    while time.monotonic() < end:
        if sum(len(partition.records) for partition in cluster.partitions.values()) < MOST_RECORDS:
            write(cluster, found.runs, chance.randint(1, MOST_BATCHES))
        kill_one(cluster, target, form, chance, found)
        found.doubled += doubled(target, form)
    last = start(cluster, target, form)
    out, problem = last.communicate()
    assert last.returncode == 0, problem
    found.resumed += bool(json.loads(out)["resumed"])
    check = subprocess.run(
        [sys.executable, "-m", "strandline", "export", "--check", "--to", str(target), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    wanted, lost, more = lost_and_more(cluster, target, form)
    return {
        **vars(found),
        "records": wanted,
        "lost": lost,
        "unknown": more,
        "doubled_at_end": doubled(target, form),
        "check": check.returncode,
    }


def is_bad(result: dict[str, object]) -> bool:
    """Whether a record was lost, doubled or invented, or the check has found something."""
    return any(result[name] for name in ("doubled", "lost", "unknown", "doubled_at_end", "check"))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/export-kills", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--format", choices=("parquet", "delta", "iceberg"), default="parquet")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="export-kills-") as folder:
        result = run(given.minutes, given.seed, Path(folder), given.format)
    bad = is_bad(result)
    if given.json:
        print(json.dumps({"ok": not bad, **result}))
    else:
        told = ", ".join(f"{name} {value}" for name, value in result.items())
        print(f"export-kills {'failed' if bad else 'ok'}: {told}")
    return 1 if bad else 0
