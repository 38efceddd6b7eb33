"""The published divergences of compaction, driven against a real cluster: `scripts/divergence [--kafka]`.

A node is stopped; the others compact past what it does not have; it comes back and is made the leader.
Exits 1 when Strandline served anything wrong, or compacted nothing, so that nothing was shown. With `--kafka`
the same is done to Apache Kafka, and it exits 1 also when fewer than three of the divergences are seen there:
then the drivers show nothing.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaException

from strandline.cluster.failure import CommandFailed
from tests.peers.kafka_jars import NoKafka
from tests.programs.divergence.cases import CASES
from tests.programs.divergence.systems import TOPIC_SETTINGS, KafkaNodes, StrandlineNodes, System
from tests.programs.divergence.walk import WAIT_SECONDS, Found, say, walk
from tests.programs.folder_option import existing_folder

REPRODUCED_AT_LEAST: Final = 3
"""Of the four, on Kafka."""

Results = dict[str, list[Found]]


def run(make: Callable[[Path], System], folder: Path, wait_seconds: float) -> list[Found]:
    """One system from its start to its end. Raises what starting and walking raise."""
    system = make(folder)
    try:
        system.up()
        return walk(system, wait_seconds)
    finally:
        system.down()


def verdict(one: Found) -> str:
    """One case in a few words."""
    if one.wrong:
        return "DIVERGED"
    if one.wrong_later:
        return "DIVERGED later"
    return "right" if one.compacted else "nothing was compacted"


def problems(found: Results, wanted: Sequence[str]) -> list[str]:
    """What makes the run fail, one line each."""
    told = []
    for one in found.get(StrandlineNodes.name, []):
        if one.diverged:
            told.append(f"Strandline: {one.title}: {'; '.join(one.wrong or one.wrong_later)}")
        elif not one.compacted:
            told.append(f"Strandline: {one.title}: nothing was compacted, so this shows nothing")
        elif one.held and len(one.gone_after) < len(one.held):
            left = ", ".join(what for what in one.held if what not in one.gone_after)
            told.append(f"Strandline: {one.title}: still there long after the node came back: {left}")
    if KafkaNodes.name in wanted and KafkaNodes.name in found:
        seen = sum(one.diverged for one in found[KafkaNodes.name])
        if seen < REPRODUCED_AT_LEAST:
            told.append(
                f"{KafkaNodes.name}: only {seen} of {len(CASES)} were seen, so the drivers show little"
            )
    return told


def lines(name: str, found: Sequence[Found]) -> list[str]:
    """One system's part of the answer."""
    told = [f"{name}:"]
    for one in found:
        told.append(f"  {one.title}: {verdict(one)}")
        told.append(f"    while the node was away {one.cleaned} of {one.written} superseded records went")
        told += [f"    the {what} went after {seconds:.1f} s" for what, seconds in one.gone_away.items()]
        for what in one.held:
            after = one.gone_after.get(what)
            then = "and is still there" if after is None else f"and went {after:.1f} s after its return"
            told.append(f"    the {what} was held while the node was away, {then}")
        told += [f"    {wrong}" for wrong in one.wrong or one.wrong_later]
    return told


def side_by_side(found: Results) -> list[str]:
    """The verdicts as a table."""
    names = list(found)
    rows = [["", *names]]
    for place, kind in enumerate(CASES):
        rows.append([kind.title, *(verdict(found[name][place]) for name in names)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def main(arguments: Sequence[str]) -> int:
    """Run and print; the exit status."""
    options = parse(arguments)
    systems: list[tuple[str, type[KafkaNodes] | type[StrandlineNodes]]] = []
    if options.kafka:
        systems.append((KafkaNodes.name, KafkaNodes))
    if options.kafka != "only":
        systems.append((StrandlineNodes.name, StrandlineNodes))
    began = time.monotonic()
    found: Results = {}
    told: list[str] = []
    scratch = Path(tempfile.mkdtemp(prefix="strandline-divergence-", dir=options.folder))
    for name, kind in systems:
        say(f"{name}: logs in {scratch / name.split()[0]}")
        try:
            found[name] = run(kind, scratch / name.split()[0], options.seconds)
        except (NoKafka, CommandFailed, KafkaException, TimeoutError) as error:
            told.append(f"{name}: {error}")
    told += problems(found, [name for name, _ in systems])
    seconds = time.monotonic() - began
    if not (options.keep or told):
        shutil.rmtree(scratch)
    if options.json:
        print(json.dumps(report(found, told, seconds)))
        return 1 if told else 0
    print("Settings of the topics: " + ", ".join(f"{name}={value}" for name, value in TOPIC_SETTINGS.items()))
    for name, kind in systems:
        print(f"Settings of {name}: " + ", ".join(f"{key}={value}" for key, value in kind.settings.items()))
    for name, each in found.items():
        print("\n".join(lines(name, each)))
    if found:
        print("\n".join(side_by_side(found)))
    for problem in told:
        print(f"- FAILED: {problem}")
    print(f"divergence {'failed' if told else 'ok'}: {len(CASES)} cases, {seconds:.0f} s")
    return 1 if told else 0


def report(found: Results, told: Sequence[str], seconds: float) -> dict[str, Any]:
    """The same as plain values."""
    return {
        "ok": not told, "seconds": round(seconds, 1), "problems": list(told),
        "topic settings": dict(TOPIC_SETTINGS),
        "systems": {
            name: [{**asdict(one), "verdict": verdict(one)} for one in each] for name, each in found.items()
        },
    }  # fmt: skip


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="scripts/divergence", description=__doc__)
    parser.add_argument(
        "--kafka", nargs="?", const="beside", choices=("beside", "only"),
        help="do the same to Apache Kafka, beside Strandline or without it",
    )  # fmt: skip
    parser.add_argument(
        "--seconds", type=float, default=WAIT_SECONDS,
        help="how long to wait at most for cleaning while the node is away (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    parser.add_argument("--keep", action="store_true", help="keep logs and data also when all is well")
    parser.add_argument(
        "--folder",
        type=existing_folder,
        default="/var/tmp",
        help="where the data goes (default: %(default)s)",
    )
    return parser.parse_args(arguments)
