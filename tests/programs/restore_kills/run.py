"""All nodes killed and all data folders deleted, again and again: is what was restored whole?

    scripts/restore-kills --rounds 10
    scripts/restore-kills --rounds 10 --s3
    scripts/restore-kills --rounds 10 --documents

Three real nodes with 302 partitions, of which the first and the last take records of transactions, each in
both. In each round all nodes and clients are killed at a random moment, the data folders are deleted, and the
cluster is restored, from what the nodes publish by themselves: a tail point may be some seconds old. Then
everything is read: each transaction must be in both partitions or in none, each acknowledged record below the
stated offset in its place, none twice, whatever was acknowledged before the point was taken there, and the
group's offsets at or below what it committed last and the restored ends.

With `--documents` restore points of documents are taken one after the other instead, and no tails are
published. With 302 partitions the documents of one point are taken far apart, and a point that did not hold
decisions still would have a part of a transaction.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from strandline.cluster.admin_client import AdminClient as Http
from strandline.cluster.admin_client import Unreachable
from strandline.cluster.local_restore import restore
from strandline.cluster.ports import free_ports
from tests.cluster.real_cluster import RealCluster, running_cluster
from tests.peers.s3_server import S3Server
from tests.programs.restore_kills.writing import GROUP, SECONDS, TOPICS

BETWEEN: Final = 300
"""Partitions between the two that are written to."""
BETWEEN_IN_A_BUCKET: Final = 30
"""A server of one process stores the documents of more of them too slowly for a restore point under load."""
LEAST_SECONDS: Final = 10.0
MOST_SECONDS: Final = 16.0
"""Of load before the nodes are killed."""
LEAST_POINTS: Final = 2
"""Of a round: the first may have begun before the load."""
PAUSE_SECONDS: Final = 1.0
"""Between two restore points; no transaction ends while one is taken."""
OLDEST_SECONDS: Final = 15.0
"""Longest time from the tail point to the kills. A point is put twice in `publish.seconds`, 5 s, where the
machine has nothing else to do."""
BEFORE_POINT_SECONDS: Final = 0.05
"""What was acknowledged so long before the point is in it: clients and nodes have one clock, of ms."""
SETTINGS: Final = ("coordinator.partitions=2", "inline.seconds=2", "level_one.reconcile_seconds=2")
Rows = dict[str, dict[int, str]]
"""By topic, value by offset."""


@dataclass
class Found:
    """The counts of a run; those from `torn` on are faults."""

    rounds: int = 0
    points: int = 0
    transactions: int = 0
    """Acknowledged before the kills."""
    kept: int = 0
    """Of these, restored."""
    records: int = 0
    beyond: int = 0
    """Acknowledged records without a transaction, and those at or above the stated offsets."""
    torn: int = 0
    doubled: int = 0
    missing: int = 0
    late_offsets: int = 0
    """Committed offsets of the group that are above what it committed, or above the restored ends."""
    lost_early: int = 0
    """Acknowledged before the point was taken, and not restored."""
    too_old: int = 0
    """Points from more than OLDEST_SECONDS before the kills, where nodes published tails."""
    understated: int = 0
    """Restores that told of less missing time than there was from the point to the kills."""
    oldest_seconds: float = 0.0
    """Longest time from a point to the kills; no fault by itself."""

    @property
    def is_bad(self) -> bool:
        faults = (self.torn, self.doubled, self.missing, self.late_offsets, self.lost_early)
        return any((*faults, self.too_old, self.understated)) or not self.kept


def judge(
    found: Found,
    ledger: Sequence[Sequence[Any]],
    rows: Rows,
    ends: Mapping[str, int],
    offsets: Mapping[str, int],
    judged: set[str],
    taken_at: float,
) -> None:
    """Count what the ledger of a round and the restored cluster say; those `judged` were torn before.

    `taken_at` is the Unix time of the point that was restored.
    """
    before = taken_at - BEFORE_POINT_SECONDS
    in_topics = Counter(value for topic in TOPICS for value in set(rows[topic].values()) if "-t" in value)
    torn = {value for value, count in in_topics.items() if count < len(TOPICS)} - judged
    judged |= torn
    found.torn += len(torn)
    found.doubled += sum(len(values) - len(set(values.values())) for values in rows.values())
    last: dict[str, int] = {}
    for kind, *what in ledger:
        if kind == "transaction":
            found.transactions += 1
            found.kept += what[0] in in_topics
            found.lost_early += what[0] not in in_topics and what[1] < before
        elif kind == "record":
            topic, offset, value, acknowledged_at = what
            found.lost_early += offset >= ends[topic] and acknowledged_at < before
            found.records += 1
            if offset >= ends[topic]:
                found.beyond += 1
            else:
                found.missing += rows[topic].get(offset) != value
        else:
            last[what[0]] = max(last.get(what[0], 0), what[1])
    for topic, offset in offsets.items():
        found.late_offsets += offset > min(ends[topic], last.get(topic, offset))


def run(
    rounds: int, seed: int, folder: Path, bucket: S3Server | None = None, *, documents: bool = False
) -> Found:
    """Kill and restore so often; returns the counts. The objects are in `bucket`, or in a folder.

    With `documents` restore points of documents are taken all the time, and no tails are published.
    """
    chance, found = random.Random(seed), Found()
    judged: set[str] = set()
    storage = None if bucket is None else f"{bucket.url}/restored"
    more = () if bucket is None else bucket.options(bucket.port)
    more = (*SETTINGS, *more, "checkpoints.interval=0", *(["publish.seconds=0"] if documents else []))
    with running_cluster(folder / "cluster", settings=more, storage=storage) as cluster:
        client = AdminClient({"bootstrap.servers": cluster.bootstrap})
        between = BETWEEN if bucket is None else BETWEEN_IN_A_BUCKET
        for name, partitions in ((TOPICS[0], 1), ("between", between), (TOPICS[1], 1)):
            client.create_topics([NewTopic(name, partitions, 3)])[name].result(timeout=SECONDS)
        for number in range(rounds):
            ledger, points, killed_at = _until_killed(
                cluster, f"{number}", folder / f"ledger-{number}", chance, documents=documents
            )
            told = _restored(cluster)
            ends = {row["topic"]: row["end_offset"] for row in told["partitions"] if row["topic"] in TOPICS}
            taken_at = told["taken_ms"] / 1000
            rows, offsets = _read(cluster.bootstrap), _offsets(cluster.bootstrap)
            judge(found, ledger, rows, ends, offsets, judged, taken_at)
            if not documents:
                assert told["of_tails"], told
                found.too_old += killed_at - taken_at > OLDEST_SECONDS
                found.understated += killed_at - taken_at > told["missing_seconds"]
            found.oldest_seconds = max(found.oldest_seconds, round(killed_at - taken_at, 1))
            found.points += points
            found.rounds += 1
            print(f"round {found.rounds}: point {told['point']}: {_line(found)}", file=sys.stderr)
    return found


def _until_killed(
    cluster: RealCluster, name: str, ledger: Path, chance: random.Random, *, documents: bool
) -> tuple[list[list[Any]], int, float]:
    """Load, and restore points of documents if wanted, then SIGKILL for all.

    Gives the ledger, the number of points, and the Unix time of the kills.
    """
    module = "tests.programs.restore_kills.writing"
    clients = subprocess.Popen(
        [sys.executable, "-m", module, cluster.bootstrap, name, str(ledger)], stderr=subprocess.DEVNULL
    )
    stopping, taken = threading.Event(), [0]

    def take() -> None:
        while not stopping.is_set():
            try:
                report = Http(cluster.admin[0]).request("POST", "/api/checkpoints", {}, timeout=90.0).body
            except (Unreachable, OSError):
                return
            stopping.wait(PAUSE_SECONDS)
            taken[0] += isinstance(report, dict) and report.get("restore_point") is not None

    taking = threading.Thread(target=take)
    if documents:
        taking.start()
    try:
        least = time.monotonic() + LEAST_SECONDS + chance.random() * (MOST_SECONDS - LEAST_SECONDS)
        limit = least + SECONDS
        while time.monotonic() < least or (
            documents and taken[0] < LEAST_POINTS and time.monotonic() < limit
        ):
            time.sleep(0.01)
        assert taken[0] or not documents, "no restore point was taken in time"
    finally:
        stopping.set()
        killed_at = time.time()
        for pid in cluster.pids.values():
            os.kill(pid, signal.SIGKILL)
        clients.kill()
        clients.wait()
        if documents:
            taking.join()
    lines = ledger.read_text().split("\n")[:-1]
    return [json.loads(line) for line in lines], taken[0], killed_at


def _restored(cluster: RealCluster) -> dict[str, Any]:
    """Delete the data folders and restore; what the restore said before it began."""
    for node in cluster.description.nodes.values():
        while node.pid is not None:
            time.sleep(0.01)
        shutil.rmtree(node.data)
    told: list[dict[str, Any]] = []
    restore(
        cluster.folder,
        storage=None,
        options={},
        settings=(),
        point=None,
        choose_ports=free_ports,
        secure=False,
        tell=told.append,
        progress=lambda _: None,
    )
    cluster.local.up(timeout=90.0)
    return told[0]


def _read(bootstrap: str) -> Rows:
    """All committed records of both partitions."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0) for topic in TOPICS])
    found: Rows = {topic: {} for topic in TOPICS}
    ended: set[str] = set()
    limit = time.monotonic() + 3 * SECONDS
    while len(ended) < len(TOPICS):
        assert time.monotonic() < limit, f"only {ended} could be read to the end"
        for message in consumer.consume(500, 1.0):
            topic, value = message.topic() or "", message.value()
            if message.error() is not None:
                ended.add(topic)
            elif value is not None:
                found[topic][message.offset() or 0] = value.decode()
    consumer.close()
    return found


def _offsets(bootstrap: str) -> dict[str, int]:
    client = AdminClient({"bootstrap.servers": bootstrap})
    asked = client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(GROUP)])[GROUP]
    return {
        one.topic: one.offset for one in asked.result(timeout=SECONDS).topic_partitions if one.offset >= 0
    }


def _line(found: Found) -> str:
    return ", ".join(f"{getattr(found, one.name)} {one.name.replace('_', ' ')}" for one in fields(found))


def main(arguments: Sequence[str]) -> int:
    """Run it; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(prog="scripts/restore-kills", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="kills of the whole cluster (default: 10)")
    parser.add_argument("--seed", type=int, default=1, help="of the moments of the kills")
    parser.add_argument("--s3", action="store_true", help="objects in a bucket of moto's server, in memory")
    parser.add_argument("--documents", action="store_true", help="restore points of documents, and no tails")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="strandline-restore-") as folder, ExitStack() as ends:
        bucket = None
        if options.s3:
            bucket = S3Server(Path(folder) / "bucket", None)
            ends.callback(bucket.close)
        found = run(options.rounds, options.seed, Path(folder), bucket, documents=options.documents)
    said = "failed" if found.is_bad else "ok"
    print(json.dumps({**asdict(found), "ok": not found.is_bad}) if options.json else
          f"restore-kills {said}: {_line(found)}")  # fmt: skip
    return int(found.is_bad)
