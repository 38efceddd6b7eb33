"""`scripts/bench gc`: the cost of lifting records to level one, of collecting level zero, of reading back."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException

from strandline.cluster.failure import CommandFailed
from tests.peers.kafka_cluster import KafkaCluster
from tests.peers.kafka_jars import NoKafka
from tests.programs.bench import gc_cluster, gc_parts, kafka_measure
from tests.programs.bench.gc_price import ASSUMED
from tests.programs.bench.kafka_measure import FULL, QUICK, TINY, Amount
from tests.programs.bench.measures import Result
from tests.programs.bench.report import Row, lines, plain, table
from tests.programs.folder_option import existing_folder

Results = dict[str, Result]


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of everything."""

    cluster: Amount
    megabytes: float
    """Of each size of batches, through one worker."""
    objects: int
    """To be collected."""
    live: tuple[int, ...]
    """Objects that stay, for the cost of looking."""
    partitions: tuple[int, ...]
    """For the gossip; thousands."""
    idle_seconds: float
    """Of nodes with their usual settings."""


SCALES: Final = {
    "full": Scale(FULL, 256.0, 20_000, (1_000, 10_000, 100_000), (1_000, 10_000), 120.0),
    "quick": Scale(QUICK, 64.0, 5_000, (1_000, 10_000), (1_000, 10_000), 45.0),
    "tiny": Scale(TINY, 4.0, 300, (100, 1_000), (1_000,), 5.0),
}
BATCHES: Final = {"16 KiB batches": 16 * 1024, "1 KiB batches": 1024}
PARTS: Final = ("worker", "collector", "listing", "gossip", "idle", "cluster")
_REQUESTS: Final[tuple[tuple[str, str], ...]] = (
    ("put", "PUT"),
    ("get_range", "GET, ranges"),
    ("get", "GET, whole"),
    ("list", "LIST"),
    ("delete", "DELETE, up to 1,000 names"),
)


def rows(scale: Scale) -> list[Row]:
    """What the table shows."""
    made: list[Row] = []
    for title in BATCHES:
        made += [
            Row(f"worker, {title}", "level zero to one", "rate", "B/s", True),
            Row(f"worker, {title}", "worker's processor a GB", "cpu_gb", "s"),
            Row(f"worker, {title}", "worker's processor a batch", "cpu_batch", "s"),
            Row(f"worker, {title}", "node's processor a GB", "node_cpu_gb", "s"),
            Row(f"worker, {title}", "merging", "merge_rate", "B/s", True),
            Row(f"worker, {title}", "merging, processor a GB", "merge_cpu_gb", "s"),
        ]
    made += [
        Row("collector", "objects deleted", "rate", "/s", True),
        Row("collector", "processor an object", "cpu", "s"),
        Row("collector", "LIST for 1,000 objects", "lists", ""),
        Row("collector", "DELETE for 1,000 objects", "deletes", ""),
    ]
    for live in scale.live:
        made += [
            Row(f"nothing to delete, {live:,} live", "a sweep", "seconds", "s"),
            Row(f"nothing to delete, {live:,} live", "LIST", "lists", ""),
        ]
    for partitions in scale.partitions:
        made += [
            Row(f"gossip, {partitions:,} partitions", "an epoch's news: sent a node", "risen_bytes", "B"),
            Row(f"gossip, {partitions:,} partitions", "an epoch's news: processor", "risen_cpu", "s"),
            Row(f"gossip, {partitions:,} partitions", "a second without: sent", "still_bytes", "B"),
            Row(f"gossip, {partitions:,} partitions", "a second without: processor", "still_cpu", "s"),
            Row(f"gossip, {partitions:,} partitions", "everything, every 30 s: sent", "all_bytes", "B"),
            Row(f"gossip, {partitions:,} partitions", "everything, every 30 s: processor", "all_cpu", "s"),
            Row(f"gossip, {partitions:,} partitions", "M from the table", "m_cpu", "s"),
        ]
    made += [
        Row("produce", "written", "rate", "B/s", True),
        Row("produce", "nodes' processor a GB", "cpu_gb", "s"),
        Row("reconcile", "a node, while it works", "rate", "B/s", True),
        Row("reconcile", "workers' processor a GB", "cpu_gb", "s"),
        Row("reconcile", "nodes' processor a GB, after the last produce", "after_cpu_gb", "s"),
        Row("reconcile", "level-one objects made", "objects", ""),
        Row("reconcile", "merges", "merges", ""),
        Row("reconcile", "bytes written to level one, a byte", "written", ""),
        Row("reconcile", "from the last produce until level zero is empty", "drained", "s"),
    ]
    for section in ("requests a GB", "idle, an hour"):
        wanted = [each for each in _REQUESTS if each[0] != "list" or section == "idle, an hour"]
        made += [Row(section, what, name, "") for name, what in wanted]
        what = "price of a TB produced" if section == "requests a GB" else "price of 30 days"
        made.append(Row(section, what, "dollars", "$"))
    made += [
        Row("catch-up", "read from level one", "rate", "B/s", True),
        Row("catch-up", "servers' processor a GB", "cpu_gb", "s"),
        Row("catch-up", "GETs a GB", "gets", ""),
    ]
    return made


def main(arguments: Sequence[str]) -> int:
    """Run the measures; exits 1 when something of ours went wrong."""
    options = parse(arguments)
    scale = SCALES[options.scale]
    ours: Results = {}
    kafka: Results = {}
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="strandline-bench-", dir=options.folder) as scratch:
        folder = Path(scratch)
        for title, work in parts(scale, folder, options.only or PARTS).items():
            print(f"{title} ...", file=sys.stderr, flush=True)
            ours[title] = work()
        if "idle" in (options.only or PARTS):
            print("three nodes, idle ...", file=sys.stderr, flush=True)
            ours.update(cluster(partial(idle, scale), folder / "idle", ()))
        if "cluster" in (options.only or PARTS):
            print("three nodes ...", file=sys.stderr, flush=True)
            life = partial(gc_cluster.life, amount=scale.cluster)
            ours.update(cluster(life, folder / "nodes", gc_cluster.SETTINGS))
            if options.kafka:
                print("Kafka ...", file=sys.stderr, flush=True)
                kafka = beside(scale.cluster, folder / "kafka")
    return tell(options, scale, ours, kafka, time.monotonic() - began)


def parts(scale: Scale, folder: Path, only: Sequence[str]) -> dict[str, Callable[[], Result]]:
    """The work by its title, in order."""
    todo: dict[str, Callable[[], Result]] = {}
    if "worker" in only:
        for title, size in BATCHES.items():
            todo[f"worker, {title}"] = partial(
                gc_parts.build, folder / f"worker-{size}", scale.megabytes, size
            )
    if "collector" in only:
        todo["collector"] = partial(gc_parts.collect, folder / "collector", scale.objects)
    if "listing" in only:
        for live in scale.live:
            title = f"nothing to delete, {live:,} live"
            todo[title] = partial(gc_parts.listing, folder / f"live-{live}", live)
    if "gossip" in only:
        for partitions in scale.partitions:
            todo[f"gossip, {partitions:,} partitions"] = partial(gc_parts.gossip, partitions)
    return todo


def idle(scale: Scale, nodes: gc_cluster.Nodes) -> Results:
    return {"idle, an hour": gc_cluster.idle(nodes, scale.cluster, scale.idle_seconds)}


def cluster(work: Callable[[gc_cluster.Nodes], Results], folder: Path, settings: tuple[str, ...]) -> Results:
    """Some work on three nodes, which are taken down again."""
    nodes = gc_cluster.Nodes(folder, settings)
    try:
        nodes.up()
        return work(nodes)
    except (KafkaException, TimeoutError, CommandFailed, ValueError) as error:
        return {"produce": Result(problems=[repr(error)])}
    finally:
        nodes.down()


def beside(amount: Amount, folder: Path) -> Results:
    """Apache Kafka, at what both do."""
    try:
        peer = KafkaCluster(folder)
    except NoKafka as error:
        return {"produce": Result(problems=[str(error)])}
    try:
        peer.up()
        _, _, filled = kafka_measure.fill(peer, amount, size=gc_cluster.RECORD_BYTES)
        return {"produce": filled, "catch-up": kafka_measure.consume(peer, amount)}
    except (NoKafka, KafkaException, TimeoutError, ValueError) as error:
        return {"produce": Result(problems=[repr(error)])}
    finally:
        peer.down()


def tell(options: argparse.Namespace, scale: Scale, ours: Results, kafka: Results, seconds: float) -> int:
    """Print the table or the JSON; the exit status."""
    problems = [f"{title}: {problem}" for title, result in ours.items() for problem in result.problems]
    machine = f"{os.cpu_count()} cores, Python {platform.python_version()}"
    load = os.getloadavg()[0]
    report = {
        "ok": not problems, "seconds": round(seconds, 1), "scale": options.scale, "machine": machine,
        "load_average": round(load, 2), "assumed": ASSUMED, "settings": gc_cluster.SETTINGS,
        "problems": problems, "strandline": plain(ours), "kafka": plain(kafka),
    }  # fmt: skip
    if options.write is not None:
        options.write.write_text(json.dumps(report, indent=2) + "\n")
    if options.json:
        print(json.dumps(report))
        return 1 if problems else 0
    print(
        f"Three nodes, three replicas, acks=all, and their client, on {machine}, load average {load:.1f}.\n"
    )
    cells = lines(rows(scale), kafka, ours)
    header = ["", "", KafkaCluster.name, "Strandline", "better by"]
    if not kafka:
        header, cells = ["", "", "Strandline"], [[*line[:2], line[3]] for line in cells]
    print(table(header, cells))
    print(f"- {ASSUMED}")
    print(f"- three nodes, but the idle ones, ran with {', '.join(gc_cluster.SETTINGS)}")
    for name, results in (("Strandline", ours), (KafkaCluster.name, kafka)):
        for title, result in results.items():
            for note in result.notes:
                print(f"- {name}: {title}: {note}")
            for problem in result.problems:
                print(f"- FAILED: {name}: {title}: {problem}")
    print(f"bench gc {'failed' if problems else 'ok'}: {len(ours)} sections, {seconds:.0f} s")
    return 1 if problems else 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench gc", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument(
        "--kafka", action="store_true", help="Apache Kafka as well, at writing and reading back"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the JSON object there as well")
    size = parser.add_mutually_exclusive_group()
    for name, text in (("quick", "a quarter of everything"), ("tiny", "only shows that it works")):
        size.add_argument(
            f"--{name}", dest="scale", action="store_const", const=name, default="full", help=text
        )
    parser.add_argument(
        "--folder",
        type=existing_folder,
        default="/var/tmp",
        help="where the data goes, on a real disk (default: %(default)s)",
    )
    return parser.parse_args(arguments)
