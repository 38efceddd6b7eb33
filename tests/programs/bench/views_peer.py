"""One peer of views, over files of JSON: `python views_peer.py PEER WORK FOLDER`, which prints JSON.

It imports nothing of the project: a peer has an environment of its own. Its processor time is that of the
work, without imports and the start of the process. Each reads the same lines; what comes out is JSON, and of
DuckDB Arrow's columns.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

STEP: Final = 10_000
"""Rows after which DuckDB works the view out again."""
LEAST_PRICE: Final = 1000
COUNTED: Final = (
    "SELECT bidder, count(*) AS n, sum(price) AS total FROM bids WHERE price > 1000 GROUP BY bidder"
)
JOINED: Final = "SELECT bidder, price, category FROM bids JOIN auctions USING (auction)"


class Worked(NamedTuple):
    """Seconds of processor, and the changes or rows that came out."""

    cpu: float
    made: int


def pathway(work: str, folder: Path) -> Worked:
    import pathway as pw  # type: ignore[import-not-found]

    class Bid(pw.Schema):  # type: ignore[misc]
        auction: int
        bidder: int
        price: int

    class Auction(pw.Schema):  # type: ignore[misc]
        auction: int
        category: str

    bids = pw.io.jsonlines.read(str(folder / "bids"), schema=Bid, mode="static")
    if work == "group":
        wanted = bids.filter(pw.this.price > LEAST_PRICE).groupby(pw.this.bidder)
        made = wanted.reduce(pw.this.bidder, n=pw.reducers.count(), total=pw.reducers.sum(pw.this.price))
    else:
        auctions = pw.io.jsonlines.read(str(folder / "auctions"), schema=Auction, mode="static")
        made = bids.join(auctions, bids.auction == auctions.auction)
        made = made.select(bids.bidder, bids.price, auctions.category)
    out = folder / "pathway.jsonl"
    pw.io.jsonlines.write(made, str(out))
    began = processor()
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)
    return Worked(processor() - began, sum(1 for _ in out.open("rb")))


def bytewax(work: str, folder: Path) -> Worked:
    import bytewax.operators as op  # type: ignore[import-not-found]
    from bytewax.dataflow import Dataflow  # type: ignore[import-not-found]
    from bytewax.outputs import DynamicSink, StatelessSinkPartition  # type: ignore[import-not-found]
    from bytewax.testing import TestingSource, run_main  # type: ignore[import-not-found]

    made = 0

    class Part(StatelessSinkPartition):  # type: ignore[misc]
        def write_batch(self, items: list[Any]) -> None:
            nonlocal made
            made += sum(1 for one in items if json.dumps(one))

    class Out(DynamicSink):  # type: ignore[misc]
        def build(self, *_: Any) -> Part:
            return Part()

    def counted(state: Any, bid: dict[str, Any]) -> tuple[Any, Any]:
        n, total = state or (0, 0)
        now = n + 1, total + bid["price"]
        return now, now

    lines = [line for path in sorted((folder / "bids").iterdir()) for line in path.open("rb")]
    flow = Dataflow("peer")
    stream = op.map("read", op.input("in", flow, TestingSource(lines, batch_size=1000)), json.loads)
    stream = op.filter("filter", stream, lambda bid: bid["price"] > LEAST_PRICE)
    keyed = op.key_on("key", stream, lambda bid: str(bid["bidder"]))
    op.output("out", op.stateful_map("count", keyed, counted), Out())
    began = processor()
    run_main(flow)
    return Worked(processor() - began, made)


def duckdb(work: str, folder: Path) -> Worked:
    import duckdb as db

    began = processor()
    connection = db.connect(config={"threads": 1})
    connection.execute("CREATE TABLE bids (auction BIGINT, bidder BIGINT, price BIGINT)")
    read = "read_json(?, format = 'newline_delimited', columns = {"
    auctions = read + "auction: 'BIGINT', category: 'VARCHAR'})"
    connection.execute(f"CREATE TABLE auctions AS SELECT * FROM {auctions}", [str(folder / "auctions/*")])
    bids = read + "auction: 'BIGINT', bidder: 'BIGINT', price: 'BIGINT'})"
    made = 0
    for path in sorted((folder / "steps").iterdir()):
        connection.execute(f"INSERT INTO bids SELECT * FROM {bids}", [str(path)])
        found: Any = connection.execute(COUNTED if work == "group" else JOINED).to_arrow_table()
        made = found.num_rows
    return Worked(processor() - began, made)


def spark(work: str, folder: Path) -> Worked:
    from pyspark.sql import DataFrame, SparkSession

    session = (
        SparkSession.builder.master("local[1]")
        .config("spark.sql.shuffle.partitions", 1)
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    schema = "auction BIGINT, bidder BIGINT, price BIGINT"
    reader = session.readStream.schema(schema).option("maxFilesPerTrigger", 1)
    bids = reader.json(str(folder / "bids"))
    made = 0

    def write(batch: DataFrame, number: int) -> None:
        nonlocal made
        batch.write.mode("overwrite").json(str(folder / "spark.out"))
        made += batch.count()

    bids.createOrReplaceTempView("bids")
    auctions = session.readStream.schema("auction BIGINT, category STRING").json(str(folder / "auctions"))
    auctions.createOrReplaceTempView("auctions")
    wanted, mode = (COUNTED, "update") if work == "group" else (JOINED, "append")
    began = processor()
    stream = session.sql(wanted).writeStream.outputMode(mode).foreachBatch(write).trigger(availableNow=True)
    stream.option("checkpointLocation", str(folder / f"spark.{work}")).start().awaitTermination()
    worked = Worked(processor() - began, made)
    session.stop()
    return worked


def processor() -> float:
    """Seconds of processor of this process and those that it began."""
    return sum(map(seconds, _tree(os.getpid())))


def _tree(process: int) -> Iterator[int]:
    yield process
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        for child in path.read_text().split():
            yield from _tree(int(child))


def seconds(process: int) -> float:
    """Seconds of processor that a process has taken."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


PEERS: Final = {"pathway": pathway, "bytewax": bytewax, "duckdb": duckdb, "spark": spark}


def main() -> None:
    peer, work, folder = sys.argv[1:]
    print(json.dumps(PEERS[peer](work, Path(folder))._asdict()))


if __name__ == "__main__":
    main()
