"""`strandline export` killed for minutes: is each record in its files once?

    scripts/export-kills --minutes 10 --format delta
    scripts/export-kills --minutes 10 --format delta --nodes

A cluster's storage is written by the real state machines, without nodes: three topics, both levels, and more
records with a new checkpoint before each run. With `--nodes` it is a cluster of three nodes to which flights
are written all the time, and of which one is killed every few seconds and started again. Exports run as
processes of their own, now and then two at once; an export has no other process. Each is killed with SIGKILL
at a random moment after its first change of the target, unless it has ended.

Between them a reader that goes by the files alone, or by the tables, looks for a record that is there twice.
A last run is not killed. Then the files must have each record of the topics once, and `strandline export
--check` must find nothing.
"""

from __future__ import annotations

import argparse
import contextlib
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

from tests.programs.export_kills.sources import Source, live_source, stored_source

START_SECONDS = 120.0
"""An import of Arrow takes a second, on a busy machine far more."""
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


def start(source: Source, target: Path, form: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "strandline", "export", *source.topics, "--to", str(target)]
    command += ["--format", form]
    command += ["--storage", source.url, "--partition-by", "day", "--file-mb", "1", "--json"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def changes(target: Path) -> int:
    """Files that there are, but for unfinished ones."""
    return sum(path.is_file() and path.parent.name != "unfinished" for path in target.rglob("*"))


def selected(source: Source, target: Path, form: str, columns: str) -> list[tuple[Any, ...]]:
    """Columns of all records, as a reader finds them that knows nothing of manifests."""
    if form == "parquet":
        if not any(target.rglob("*.parquet")):
            return []
        files = f"read_parquet('{target}/**/*.parquet', hive_partitioning = true)"
        return duckdb.execute(f"SELECT topic, {columns} FROM {files}").fetchall()
    found: list[tuple[Any, ...]] = []
    for topic in source.topics:
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


def doubled(source: Source, target: Path, form: str) -> int:
    """Records that are there twice."""
    found = selected(source, target, form, '"partition", "offset"')
    return len(found) - len(set(found))


def kill_one(source: Source, target: Path, form: str, chance: random.Random, found: Kills) -> None:
    """Start a run, or two; kill each at a random moment after the first change, unless it has ended."""
    before = changes(target)
    running = [start(source, target, form) for _ in range(2 if chance.random() < 0.2 else 1)]
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


def lost_and_more(source: Source, target: Path, form: str) -> tuple[int, int, int]:
    """Records of the topics, those that the files lack, and those that only the files have."""
    return source.compared(selected(source, target, form, ", ".join(source.columns)))


def run(source: Source, minutes: float, seed: int, folder: Path, form: str) -> dict[str, object]:
    """Kill for so many minutes; returns the counts."""
    chance = random.Random(seed)
    target = folder / "lake"
    target.mkdir()
    found = Kills()
    end = time.monotonic() + minutes * 60
    while time.monotonic() < end:
        source.write(found.runs, chance)
        kill_one(source, target, form, chance, found)
        found.doubled += doubled(source, target, form)
    source.finish()
    last = start(source, target, form)
    out, problem = last.communicate()
    assert last.returncode == 0, problem
    found.resumed += bool(json.loads(out)["resumed"])
    check = subprocess.run(
        [sys.executable, "-m", "strandline", "export", "--check", "--to", str(target), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    wanted, lost, more = lost_and_more(source, target, form)
    return {
        **vars(found),
        "nodes_killed": source.killed,
        "records": wanted,
        "lost": lost,
        "unknown": more,
        "doubled_at_end": doubled(source, target, form),
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
    parser.add_argument("--nodes", action="store_true", help="from nodes that are killed, too")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    with contextlib.ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="export-kills-")))
        made = live_source(given.seed) if given.nodes else stored_source(folder / "objects")
        result = run(running.enter_context(made), given.minutes, given.seed, folder, given.format)
    bad = is_bad(result)
    if given.json:
        print(json.dumps({"ok": not bad, **result}))
    else:
        told = ", ".join(f"{name} {value}" for name, value in result.items())
        print(f"export-kills {'failed' if bad else 'ok'}: {told}")
    return 1 if bad else 0
