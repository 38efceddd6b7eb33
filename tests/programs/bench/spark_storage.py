"""A cluster's storage of any size, made by the real state machines and formats without a running node.

A batch is built once and stored again and again, since only its place says which offsets it has. Three
quarters of each partition are in level one, and all of it in level zero, as soon after a reconciliation.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from strandline.statemachine.controller.controller_commands import Bootstrap
from tests.kafka.wire.batches import Record, build
from tests.spark.stored_cluster import CLUSTER, NODES, START_MS, StoredCluster, Upload
from tests.statemachine.controller_harness import registration

TOPIC: Final = "records"
BATCH_BYTES: Final = 256 * 1024
OBJECT_BYTES: Final = 8 * 1024 * 1024
BLOCK_BYTES: Final = 256 * 1024
"""As the nodes' `level_one.block_bytes`."""
EXTENTS: Final = 64
"""Level-zero batches that become one object of level one."""


@dataclass(frozen=True)
class Stored:
    """What is there to be read: bytes of values, records and batches."""

    url: str
    cluster: str
    bytes: int
    records: int
    batches: int


class GrowingStorage:
    """A topic that grows from size to size, with a checkpoint after each."""

    def __init__(self, root: Path, record_bytes: int, batch_records: int, partitions: int) -> None:
        self._cluster = StoredCluster(root, block_bytes=BLOCK_BYTES, keeps_records=False)
        self._cluster.controller.begin_term(1, 1)
        self._cluster.control(Bootstrap(CLUSTER, "first"))
        for node in NODES:
            self._cluster.control(registration(node))
        self._cluster.create_topic(TOPIC, partitions)
        self._cluster.put("cluster", b'{"cluster": "harbour", "incarnation": "first"}')
        rng = random.Random(1)
        self._records = tuple(Record(_text(rng, record_bytes), START_MS + n) for n in range(batch_records))
        self._batch = build(list(self._records))
        self._record_bytes = record_bytes
        self._batches = 0

    def grow(self, batches: int) -> Stored:
        """Let the topic have so many batches in all, each partition as many as the next."""
        cluster, partitions = self._cluster, list(self._cluster.partitions.values())
        an_object = max(1, OBJECT_BYTES // len(self._batch))
        while self._batches < batches:
            some = min(an_object, batches - self._batches)
            cluster.upload(
                *(
                    Upload(
                        partitions[(self._batches + number) % len(partitions)], self._records, self._batch,
                        (-1, -1, -1),
                    )
                    for number in range(some)
                )
            )  # fmt: skip
            self._batches += some
        for partition in partitions:
            lifted = len(partition.machine.extents) * 3 // 4 // EXTENTS
            partition.reconcile(*[EXTENTS] * lifted)
        cluster.checkpoint()
        records = self._batches * len(self._records)
        return Stored(cluster.url, CLUSTER, records * self._record_bytes, records, self._batches)


def _text(rng: random.Random, size: int) -> bytes:
    """A JSON object of this size, about."""
    start = f'{{"carrier": "{rng.choice(["AA", "DL", "UA"])}", "delay": {rng.randrange(500)}, "text": "'
    return (start + "".join(rng.choices("abcdefghij", k=max(0, size - len(start) - 2))) + '"}').encode()
