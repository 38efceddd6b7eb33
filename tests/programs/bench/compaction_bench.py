"""`scripts/bench compaction`: compaction, and Kafka's log cleaner at the same work."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException

from strandline.cluster.failure import CommandFailed
from tests.peers.kafka_cluster import KafkaCluster
from tests.peers.kafka_jars import NoKafka
from tests.programs.bench import compaction_parts
from tests.programs.bench.compaction_parts import KAFKA_KEY_BYTES
from tests.programs.bench.compaction_systems import (
    KAFKA_SETTINGS,
    STRANDLINE_SETTINGS,
    Cleaner,
    KafkaCleaner,
    StrandlineCleaner,
)
from tests.programs.bench.compaction_topics import SCALES, SHAPES, Scale
from tests.programs.bench.measures import Result
from tests.programs.bench.report import Row, lines, plain, table
from tests.programs.divergence.systems import TOPIC_SETTINGS
from tests.programs.folder_option import existing_folder

PARTS: Final = ("cleaning", "memory", "amplification", "tombstone", "reading", "produce")
KAFKA, STRANDLINE = "kafka", "strandline"
MEMORY: Final = "memory of the keys"
MANY: Final = "a table of many keys"
TOMBSTONE: Final = "tombstone, retention of 1 s"
READING: Final = "read a cleaned table from 0"
PRODUCE: Final = "200 a second to another topic"
NOTES: Final = (
    "a CPU-second: of Kafka's thread kafka-log-cleaner-thread-0, without JIT and collector, and of our worker"
    " while it cleans; both as the scheduler counts them",
    "all servers: all processes of three nodes, JIT, collector and publishing too, until all is quiet again,"
    " less what they take idle",
    "bytes: what a round reads, clean and dirty, each once, as it lies in the log",
)
AMPLIFICATION: Final = {False: "ratio 0.5, uniform keys", True: "ratio 0.5, skewed keys"}
Results = dict[str, Result]
Work = Callable[[Cleaner], Result]


def rows() -> list[Row]:
    """What the table shows."""
    made = []
    for shape in SHAPES:
        made += [
            Row(shape.title, "a CPU-second, first round", "first", "B", True),
            Row(shape.title, "a CPU-second, best later round", "later", "B", True),
            Row(shape.title, "a CPU-second of all servers, best", "whole", "B", True),
        ]
    made += [
        Row(MEMORY, "a key", "key", ""),
        Row(MEMORY, "100 million keys in one round, calculated", "many", "B"),
        Row(MANY, "rounds", "rounds", ""),
        Row(MANY, "processor of the cleaner", "cpu", "s"),
        Row(MANY, "process with the cleaner, most memory", "memory", "B"),
    ]
    for title in AMPLIFICATION.values():
        made += [
            Row(title, "written by cleaning, a byte produced", "cleaned", ""),
            Row(title, "published to level one, a byte produced", "published", ""),
        ]
    return [
        *made,
        Row(TOMBSTONE, "until it is removed", "seconds", "s"),
        Row(READING, "read", "rate", "B/s", True),
        Row(READING, "servers' processor a GB", "cpu_gb", "s"),
        Row(PRODUCE, "p50, no cleaning", "still50", "s"),
        Row(PRODUCE, "p50, while cleaning goes on", "busy50", "s"),
        Row(PRODUCE, "p99, no cleaning", "still", "s"),
        Row(PRODUCE, "p99, while cleaning goes on", "busy", "s"),
        Row(PRODUCE, "p99 with, times p99 without", "worse", ""),
        Row(PRODUCE, "p99.9, no cleaning", "still999", "s"),
        Row(PRODUCE, "p99.9, while cleaning goes on", "busy999", "s"),
    ]


def works(scale: Scale, parts: Sequence[str]) -> dict[str, Work]:
    """What is done to each cluster, by its title, in order."""
    todo: dict[str, Work] = {}
    if "cleaning" in parts:
        for shape in SHAPES:
            todo[shape.title] = partial(compaction_parts.cleaning, scale=scale, shape=shape)
    if "amplification" in parts:
        for skewed, title in AMPLIFICATION.items():
            todo[title] = partial(compaction_parts.amplification, scale=scale, skewed=skewed)
    if "tombstone" in parts:
        todo[TOMBSTONE] = partial(compaction_parts.tombstone, settings=TOPIC_SETTINGS)
    if "reading" in parts:
        todo[READING] = partial(compaction_parts.reading, scale=scale)
    if "produce" in parts:
        todo[PRODUCE] = partial(compaction_parts.produce, scale=scale)
    if "memory" in parts:
        todo[MANY] = partial(compaction_parts.many_keys, scale=scale)
    return todo


def measure(peer: Cleaner, todo: dict[str, Work]) -> Results:
    """All of it on one cluster, which is taken down again; what goes wrong is told and ends its section."""
    results: Results = {}
    try:
        peer.up()
        for title, work in todo.items():
            print(f"{peer.name}: {title} ...", file=sys.stderr, flush=True)
            try:
                results[title] = work(peer)
            except (KafkaException, TimeoutError, CommandFailed, ValueError) as error:
                results[title] = Result(problems=[repr(error)])
    except (NoKafka, CommandFailed) as error:
        results["start"] = Result(problems=[str(error)])
    finally:
        peer.down()
    return results


def main(arguments: Sequence[str]) -> int:
    """Run the comparison; exits 1 when something of ours went wrong, or Kafka could not be started."""
    options = parse(arguments)
    scale, parts = SCALES[options.scale], options.only or PARTS
    if options.keys is not None:
        scale = replace(scale, keys=options.keys, table_keys=options.keys)
    found: dict[str, Results] = {KAFKA: {}, STRANDLINE: {}}
    began = time.monotonic()
    if todo := works(scale, parts):
        for system, kind in ((KAFKA, KafkaCleaner), (STRANDLINE, StrandlineCleaner)):
            if system == KAFKA and options.no_kafka:
                continue
            with tempfile.TemporaryDirectory(prefix="strandline-bench-", dir=options.folder) as scratch:
                try:
                    peer: Cleaner = kind(Path(scratch) / "cluster")
                except NoKafka as error:
                    found[system]["start"] = Result(problems=[str(error)])
                    continue
                found[system] = measure(peer, todo)
    if "memory" in parts:
        found[STRANDLINE][MEMORY] = compaction_parts.memory(scale.keys)
        found[KAFKA][MEMORY] = Result({"key": KAFKA_KEY_BYTES, "many": KAFKA_KEY_BYTES * 1e8})
    return tell(options, found, time.monotonic() - began)


def tell(options: argparse.Namespace, found: dict[str, Results], seconds: float) -> int:
    """Print the table or the JSON; the exit status."""
    problems = [
        f"{system}: {title}: {problem}"
        for system, results in found.items()
        for title, result in results.items()
        for problem in result.problems
    ]
    ours = [problem for problem in problems if problem.startswith(STRANDLINE) or ": start: " in problem]
    machine, load = f"{os.cpu_count()} cores, Python {platform.python_version()}", os.getloadavg()[0]
    report = {
        "ok": not ours, "seconds": round(seconds, 1), "scale": options.scale, "machine": machine,
        "load_average": round(load, 2), "problems": problems,
        **{system: plain(results) for system, results in found.items()},
    }  # fmt: skip
    if options.write is not None:
        options.write.write_text(json.dumps(report, indent=2) + "\n")
    if options.json:
        print(json.dumps(report))
        return 1 if ours else 0
    print(f"Three nodes each and their client on {machine}, load average {load:.1f}.\n")
    header = ["", "", KafkaCluster.name, "Strandline", "better by"]
    print(table(header, lines(rows(), found[KAFKA], found[STRANDLINE])))
    print(f"- Kafka ran with {', '.join(KAFKA_SETTINGS)}, Strandline with {', '.join(STRANDLINE_SETTINGS)}")
    for note in NOTES:
        print(f"- {note}")
    for system, results in found.items():
        for title, result in results.items():
            for note in result.notes:
                print(f"- {system}: {title}: {note}")
    for problem in problems:
        print(f"- FAILED: {problem}")
    print(
        f"bench compaction {'failed' if ours else 'ok'}: {len(found[STRANDLINE])} sections, {seconds:.0f} s"
    )
    return 1 if ours else 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="scripts/bench compaction", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--no-kafka", action="store_true", help="measure ours alone")
    parser.add_argument(
        "--keys", type=int, metavar="N", help="fill a map of so many keys, and clean a table of as many"
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
    options = parser.parse_args(arguments)
    if options.keys is not None and not 1 <= options.keys <= 100_000_000:
        parser.error("--keys is between 1 and 100000000")
    return options
