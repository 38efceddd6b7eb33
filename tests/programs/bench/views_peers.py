"""Views beside Pathway, Bytewax, DuckDB and Spark Structured Streaming: the same lines of JSON, in one run.

Rows a second of processor. The peers read files and write none to Kafka, so views stand there three times:
without Kafka, as the peers; from Fetch to the committed transaction where all rows are there at once, as they
are in the peers' files; and the same while rows are being written, in as many small steps as that makes.
Pathway and Bytewax are put into a throw-away environment; what cannot be installed is named with the reason.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, Final, cast

from confluent_kafka import Producer

from strandline.cluster.kafka_client import client_config
from strandline.snapshot.views import json_rows
from strandline.snapshot.views.building import circuit_of
from strandline.snapshot.views.json_records import Record, RecordReader, batch_of
from strandline.snapshot.views.sink import Phase, Sink
from strandline.snapshot.views.sql.programs import program_of
from strandline.statemachine.views.identity import digest
from strandline.statemachine.views.plan import Sink as SinkPlan
from strandline.statemachine.views.plan import Source, Upsert
from tests.programs.bench.report import shown
from tests.programs.bench.views_peer import STEP, seconds

PACKAGES: Final = {"pathway": "pathway==0.33.0", "bytewax": "bytewax==0.21.1"}
WORKS: Final = {"group": ("pathway", "bytewax", "duckdb", "spark"), "join": ("pathway", "duckdb", "spark")}
"""Bytewax has no join that keeps both sides up to date."""
WANTED: Final = {("group", "pathway"): 3.0, ("group", "bytewax"): 6.0, ("join", "pathway"): 2.0}
PARTS: Final = 8
"""Files of bids, and so batches of Spark."""
FILL: Final = 20_000
PEER_SECONDS: Final = 900.0
WAIT_SECONDS: Final = 600.0
REQUEST_SECONDS: Final = 60.0
TRANSACTION_MS: Final = 900_000
BIDS: Final = "CREATE TABLE bids (auction BIGINT, bidder BIGINT, price BIGINT) OPTIONS (topic '{}_bids');\n"
PROGRAMS: Final = {
    "group": BIDS.format("group")
    + """CREATE VIEW counted AS
  SELECT bidder, count(*) AS n, sum(price) AS total FROM bids WHERE price > 1000 GROUP BY bidder;
""",
    "join": BIDS.format("join")
    + """CREATE TABLE auctions (auction BIGINT NOT NULL PRIMARY KEY, category STRING)
  OPTIONS (topic 'join_auctions', mode 'upsert');
CREATE VIEW joined AS
  SELECT b._partition, b._offset, b.auction, bidder, price, category
  FROM bids b JOIN auctions a ON b.auction = a.auction;
""",
}
TOPICS: Final = {"group_bids": "delete", "join_bids": "delete", "join_auctions": "compact"}
"""With their cleanup.policy."""


def bids(rows: int, first: int = 0) -> Iterator[bytes]:
    """Bids of about 137 bytes, uniformly spread over as many keys as there are rows at most."""
    for at in range(first, first + rows):
        yield (
            b'{"auction":%d,"bidder":%d,"price":%d,"channel":"channel-%d",'
            b'"url":"https://www.nexmark.com/%d/item.htm","date_time":%d}'
            % (
                at * 2654435761 % (rows // 2 + 1),
                at * 40503 % 1_000_003,
                at * 31 % 10_000,
                at % 50,
                at % 997,
                1436918400000 + at,
            )
        )


def auctions(rows: int) -> Iterator[bytes]:
    for at in range(rows // 2 + 1):
        yield b'{"auction":%d,"category":"category-%d"}' % (at, at % 20)


def write_inputs(folder: Path, rows: int) -> None:
    """Write the lines as files: in parts, and for DuckDB in steps."""
    folder.mkdir(parents=True)
    for name, size in (("bids", -(-rows // PARTS)), ("steps", STEP)):
        (folder / name).mkdir()
        lines, number = bids(rows), 0
        while part := [*islice(lines, size)]:
            (folder / name / f"{number:04d}.json").write_bytes(b"\n".join(part) + b"\n")
            number += 1
    (folder / "auctions").mkdir()
    (folder / "auctions/0.json").write_bytes(b"\n".join(auctions(rows)) + b"\n")


def install(peer: str, folder: Path, uv: Path) -> tuple[Path | None, str]:
    """Put a peer into an environment of its own; its Python, or why there is none."""
    python = folder / peer / "bin/python"
    made = [str(uv), "venv", "-q", "--python", sys.executable, str(folder / peer)]
    got = [str(uv), "pip", "install", "-q", "--python", str(python), PACKAGES[peer]]
    for command in (made, got):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PEER_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return None, f"{PACKAGES[peer]} cannot be installed: {error}"
        if done.returncode:
            return None, f"{PACKAGES[peer]} cannot be installed: {' '.join(done.stderr.split())[-300:]}"
    return python, ""


def peer_rate(python: Path, peer: str, work: str, folder: Path, rows: int) -> tuple[float | None, str]:
    """Rows a second of a peer's processor, or why it has none."""
    script = str(Path(__file__).with_name("views_peer.py"))
    command = [str(python), script, peer, work, str(folder)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PEER_SECONDS, check=False, env=_alone()
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, f"{peer} {work}: {error}"
    if done.returncode:
        return None, f"{peer} {work} failed: {' '.join(done.stderr.split())[-300:]}"
    said = json.loads(done.stdout.strip().splitlines()[-1])
    return (rows / said["cpu"], "") if said["made"] else (None, f"{peer} {work} made nothing")


def _alone() -> dict[str, str]:
    return {**os.environ, "POLARS_MAX_THREADS": "1", "PATHWAY_THREADS": "1", "PYTHONPATH": ""}


class Worked:
    """A program in this process, as a version's process works it, but for Kafka."""

    def __init__(self, text: str) -> None:
        program = program_of(text)
        plans = program.operators()
        keys = {digest(each.input): each.key for each in plans.values() if isinstance(each, Upsert)}
        self._readers = {
            each.topic: (name, RecordReader(each, keys.get(name)))
            for name, each in plans.items()
            if isinstance(each, Source)
        }
        [(self._sink, self._view)] = [(n, each) for n, each in plans.items() if isinstance(each, SinkPlan)]
        self._circuit = circuit_of(program, ThreadPoolExecutor(1))
        cast(Sink, self._circuit.operators[self._sink]).move(Phase.FOLLOWING)

    def take(self, topic: str, records: Any) -> int:
        """Take a step's records; the number of those that are written."""
        name, reader = self._readers[topic]
        said = self._circuit.step({name: reader.rows(records)})
        return len(json_rows.columns(self._view, said[self._sink])[0])


def own_rate(work: str, rows: int) -> float:
    """Rows a second of this process's processor, without Kafka."""
    worked = Worked(PROGRAMS[work])
    if work == "join":
        keyed = batch_of(Record(0, at, 0, b"%d" % at, value) for at, value in enumerate(auctions(rows)))
        for first in range(0, keyed.num_rows, FILL):
            worked.take("join_auctions", keyed.slice(first, FILL))
    given = batch_of(Record(0, at, 0, None, value) for at, value in enumerate(bids(rows)))
    before, made = time.process_time(), 0
    for first in range(0, rows, FILL):
        made += worked.take(f"{work}_bids", given.slice(first, FILL))
    assert made
    return rows / (time.process_time() - before)


def committed_rate(
    work: str,
    rows: int,
    bootstrap: str,
    running: Callable[[str], dict[str, Any]],
    apply: Callable[[str, str], None],
) -> tuple[float, float]:
    """Rows a second of a version's process, from Fetch to the committed transaction; topics are empty.

    First of rows that are there at once, since they are in one transaction, then of as many that are written
    meanwhile.
    """
    plain = Producer(client_config(bootstrap, linger_ms=20, enable_idempotence=True))
    whole = Producer(
        client_config(
            bootstrap, linger_ms=20, transactional_id=f"bench.{work}", transaction_timeout_ms=TRANSACTION_MS
        )
    )

    def send(producer: Producer, topic: str, lines: Iterator[bytes], *, keyed: bool = False) -> int:
        count = 0
        for at, value in enumerate(lines):
            while True:
                try:
                    producer.produce(topic, value, b"%d" % at if keyed else None)
                    break
                except BufferError:
                    producer.poll(0.1)
            count += 1
        if producer.flush(WAIT_SECONDS):
            raise TimeoutError(f"{topic}: records are not acknowledged")
        return count

    def wait(count: int) -> None:
        end = time.monotonic() + WAIT_SECONDS
        while running(work)["status"].get("records", 0) < count:
            if time.monotonic() > end:
                raise TimeoutError(f"{work}: not all records were taken within {WAIT_SECONDS:g} s")
            time.sleep(0.1)

    apply(work, PROGRAMS[work])
    known = send(plain, "join_auctions", auctions(rows), keyed=True) if work == "join" else 0
    wait(known)
    process = running(work)["process"]
    whole.init_transactions(REQUEST_SECONDS)
    whole.begin_transaction()
    known += send(whole, f"{work}_bids", bids(rows))
    began = seconds(process)
    whole.commit_transaction(REQUEST_SECONDS)
    wait(known)
    between = seconds(process)
    wait(known + send(plain, f"{work}_bids", bids(rows, rows)))
    if running(work)["process"] != process:
        raise TimeoutError(f"{work}: its process ended meanwhile")
    return rows / (between - began), rows / (seconds(process) - between)


def measure(folder: Path, rows: int, uv: Path) -> tuple[dict[str, float], list[str]]:
    """Rows a second of processor by work and system, without Kafka; and what could not be measured."""
    write_inputs(folder, rows)
    pythons = {peer: Path(sys.executable) for peer in ("duckdb", "spark")}
    missing: list[str] = []
    for peer in PACKAGES:
        python, why = install(peer, folder, uv)
        if python is None:
            missing.append(why)
        else:
            pythons[peer] = python
    rates = {}
    for work, peers in WORKS.items():
        print(f"{work} ...", file=sys.stderr, flush=True)
        rates[f"{work} strandline"] = own_rate(work, rows)
        for peer in peers:
            if peer in pythons:
                rate, why = peer_rate(pythons[peer], peer, work, folder, rows)
                if rate is None:
                    missing.append(why)
                else:
                    rates[f"{work} {peer}"] = rate
    return rates, missing


def lines(rates: dict[str, float], committed: dict[str, float]) -> list[list[str]]:
    """A row for each system; how many times its rate a view has, from Fetch to commit and without Kafka."""
    rows = []
    for work, peers in WORKS.items():
        whole, alone = committed.get(f"committed_{work}"), rates.get(f"{work} strandline")
        coming = committed.get(f"coming_{work}")
        rows.append([work, "Strandline, from Fetch to commit", shown(whole, "/s"), "", "", ""])
        rows.append(["", "the same, rows as they are written", shown(coming, "/s"), "", "", ""])
        rows.append(["", "Strandline, without Kafka", shown(alone, "/s"), "", "", ""])
        for peer in peers:
            rate = rates.get(f"{work} {peer}")
            times = [f"{one / rate:.1f}" if one and rate else "-" for one in (whole, alone)]
            wanted = WANTED.get((work, peer))
            rows.append(["", peer, shown(rate, "/s"), *times, f"{wanted:g}" if wanted else ""])
    return rows
