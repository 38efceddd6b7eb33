"""Figures of a view's state of some size, as JSON: what a step, a stored state and a start cost one process.

.venv/bin/python -m tests.programs.bench.views_state KEYS STEPS FOLDER

The whole way of a record is gone but for Kafka: JSON in, a group-by with COUNT and SUM, JSON out.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, cast

import duckdb
import numpy as np

from strandline.cluster.view_worker.memory import own_memory
from strandline.cluster.view_worker.state_objects import StateObjects
from strandline.cluster.view_worker.store_thread import StoreThread
from strandline.node.objectstore.opening import StorePlace
from strandline.node.objectstore.unfinished_files import PARTIAL
from strandline.snapshot.views import json_rows
from strandline.snapshot.views.building import circuit_of
from strandline.snapshot.views.circuit import Circuit
from strandline.snapshot.views.json_records import Record, RecordReader, batch_of
from strandline.snapshot.views.run import Run
from strandline.snapshot.views.sink import Phase, Sink
from strandline.snapshot.views.sql.programs import program_of
from strandline.statemachine.views.plan import Sink as SinkPlan
from strandline.statemachine.views.plan import Source

PROGRAM: Final = """
CREATE TABLE bids (auction BIGINT, bidder BIGINT, price BIGINT, channel STRING);
CREATE VIEW totals AS SELECT auction, count(*) AS n, sum(price) AS total FROM bids GROUP BY auction;
"""
STEP: Final = 10_000
LOOK_SECONDS: Final = 0.01
FILL: Final = 20_000
"""Records of a step while the state is filled: as a process's."""


class Work:
    """A circuit with its reader and its sink."""

    def __init__(self, keep: Callable[[Run], Run]) -> None:
        plan = program_of(PROGRAM)
        operators = plan.operators()
        [(self.source, self.table)] = [(n, one) for n, one in operators.items() if isinstance(one, Source)]
        [(self.sink, self.view)] = [(n, one) for n, one in operators.items() if isinstance(one, SinkPlan)]
        self.circuit: Circuit = circuit_of(plan, ThreadPoolExecutor(1), keep)
        self.reader = RecordReader(self.table, None)
        cast(Sink, self.circuit.operators[self.sink]).move(Phase.FOLLOWING)

    def step(self, batch: Any) -> int:
        """Take records; the number of rows that are written."""
        said = self.circuit.step({self.source: self.reader.rows(batch)})
        return len(json_rows.columns(self.view, said[self.sink])[0])


def records(auctions: Any, first: int) -> Any:
    """Bids as they come from a topic, about 100 bytes each."""
    return batch_of(
        Record(0, first + at, 0, None, (
            b'{"auction":%d,"bidder":%d,"price":%d,"channel":"channel-%d","url":"https://www.example/item"}'
            % (auction, at, at % 1000, at % 10)
        ))
        for at, auction in enumerate(auctions.tolist())
    )  # fmt: skip


def batches(keys: int, size: int, rng: Any) -> Iterator[Any]:
    order = rng.permutation(keys)
    for first in range(0, keys, size):
        yield order[first : first + size]


def recompute(keys: int) -> float:
    """Seconds in which DuckDB works the view out again, from columns that it has in memory."""
    connection = duckdb.connect(config={"threads": 1})
    connection.execute(
        f"CREATE TABLE bids AS SELECT range AS auction, range % 1000 AS price FROM range({keys})"
    )
    began = time.process_time()
    connection.execute(
        "CREATE TABLE totals AS SELECT auction, count(*) AS n, sum(price) AS total FROM bids GROUP BY auction"
    )
    return time.process_time() - began


class Peak:
    """Looks at the memory of this process in a thread."""

    def __init__(self) -> None:
        self.most = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            self.most = max(self.most, own_memory())

    def stop(self) -> int:
        """End; the most that was seen."""
        self._stop.set()
        self._thread.join()
        return self.most


def started(store: StoreThread, files: Path, name: str, wanted: dict[str, int]) -> float:
    """Seconds of a start from a stored state; raises ValueError where it has other digests."""
    began = time.perf_counter()
    states, _, _ = StateObjects(store, files, 1, 1, 2).load(name)
    loaded = circuit_of(program_of(PROGRAM))
    loaded.load(states)
    took = time.perf_counter() - began
    if loaded.digests() != wanted:
        raise ValueError("a state that was read has other digests")
    return took


def measure(keys: int, steps: int, folder: Path) -> dict[str, float]:
    """The figures of one size."""
    rng = np.random.default_rng(7)
    (folder / PARTIAL).mkdir(parents=True)
    store, files, peak = (
        StoreThread(StorePlace(str(folder), {}, "bench")),
        folder.with_suffix(".files"),
        Peak(),
    )
    objects, peak = StateObjects(store, files, 1, 1, 1), Peak()
    work, rows, spent = Work(objects.keep), 0, 0.0
    for batch in batches(keys, FILL, rng):
        given = records(batch, rows)
        before = time.process_time()
        work.step(given)
        spent += time.process_time() - before
        rows += given.num_rows
    fill = rows / spent
    before_all = time.perf_counter()
    objects.save(work.circuit.state(), {("bids", 0): rows})
    save = time.perf_counter() - before_all
    stored = sum(one.stat().st_size for one in folder.rglob("*.run"))
    cpu, wall = [], []
    for _ in range(steps):
        given = records(rng.integers(0, keys, STEP), rows)
        began, used = time.perf_counter(), time.process_time()
        work.step(given)
        cpu.append(time.process_time() - used)
        wall.append(time.perf_counter() - began)
        rows += STEP
    began = time.perf_counter()
    name, _ = objects.save(work.circuit.state(), {("bids", 0): rows})
    again = time.perf_counter() - began
    kept, size = work.circuit.size()
    digests = work.circuit.digests()
    return {
        "keys": keys,
        "fill": fill,
        "steps": steps * STEP / sum(cpu),
        "step": float(np.median(wall)),
        "longest": max(wall),
        "rows": kept,
        "state": size,
        "stored": stored,
        "save": save,
        "again": again,
        "map": started(store, files, name, digests),
        "fetch": started(store, folder.with_suffix(".other"), name, digests),
        "memory": own_memory(),
        "peak": peak.stop(),
        "recompute": recompute(keys),
    }


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))), flush=True)
