"""Three real nodes compact a topic, with transactions that abort and keys that are deleted; audits look."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from strandline.cluster.admin_client import first_answer
from strandline.node.compaction.manifest import Manifest
from strandline.snapshot.spark.audits import AuditRun, ClusterStorage, Verdict
from strandline.snapshot.storage import open_storage
from tests.cluster.real_cluster import RealCluster, running_cluster, wait
from tests.compaction.real_logs import manifests
from tests.spark.verdicts import result

# The cluster is started, and all storages are audited, by the test that comes first.
pytestmark = pytest.mark.timeout(300)

TOPIC: Final = "table"
SETTINGS: Final = (
    "level_one.reconcile_seconds=1",
    "compaction.ingest_seconds=1",
    "compaction.ingest_bytes=16KiB",
    "checkpoints.local_share_bits=0",
)
KEYS: Final = 50
WAIT_SECONDS: Final = 60.0


class Table:
    """A compacted topic and its writers."""

    def __init__(self, cluster: RealCluster) -> None:
        self.cluster = cluster
        servers: dict[str, str | int | float | bool] = {"bootstrap.servers": cluster.bootstrap}
        writers = {**servers, "linger.ms": 1, "batch.size": 600}
        configs = {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0.0",
            "delete.retention.ms": "1000",
        }
        admin = AdminClient(servers)
        admin.create_topics([NewTopic(TOPIC, 1, 3, config=configs)])[TOPIC].result(30)
        self._plain = Producer({**writers, "enable.idempotence": True})
        self._transactional = Producer({**writers, "transactional.id": "transfers"})
        self._transactional.init_transactions(30)

    def write(self, round_: int) -> None:
        """Every key once and some of them twice, some deleted, half of the transactions aborted."""
        for number in range(KEYS + KEYS // 2):
            key = number % KEYS
            self._put(self._plain, key, None if key % 10 == round_ else f"{round_}:{number}")
        assert self._plain.flush(30) == 0
        for number in range(8):
            self._transactional.begin_transaction()
            for key in (number, KEYS + number):
                self._put(self._transactional, key, f"{round_}:transaction {number}")
            end = (
                self._transactional.abort_transaction
                if number % 2
                else self._transactional.commit_transaction
            )
            end(30)
        for number in range(KEYS // 2):
            self._put(self._plain, number, f"{round_}:last {number}")
        assert self._plain.flush(30) == 0

    def _put(self, producer: Producer, key: int, value: str | None) -> None:
        producer.produce(TOPIC, value, f"key {key}", partition=0)

    def wait_for_logs(self, beyond: int) -> int:
        """Wait until all three local logs are clean beyond an offset; returns where the lowest is clean."""

        def clean() -> Mapping[int, Manifest]:
            there = manifests(self.cluster)
            done = len(there) == 3 and all(one.clean_end > beyond for one in there.values())
            return there if done else {}

        wait(clean, WAIT_SECONDS)
        return min(one.clean_end for one in manifests(self.cluster).values())

    def wait_for_ripe(self) -> None:
        """Wait until level one is published, every copy is clean past some tombstones, and they may go."""

        def ripe() -> int:
            said = first_answer(self.cluster.admin, "GET", f"/api/compaction/partitions?topic={TOPIC}")
            return max(int(one["ripe_tombstones"]) for one in said["partitions"])

        wait(lambda: ripe() > 0, WAIT_SECONDS)

    def checkpoint(self, number: int) -> None:
        """Take the next one, and wait for the local documents, too."""
        asked: dict[str, Any] = {"lease_seconds": 3600, "timeout_seconds": 60}
        taken = first_answer(self.cluster.admin, "POST", "/api/checkpoints", asked, timeout=70)
        assert taken["complete"], taken
        store = Path(self.cluster.description.storage)
        wait(lambda: len(list(store.glob("snapshots/*/*/*/*.local"))) == 3 * number, WAIT_SECONDS)


def storages(root: Path) -> dict[str, ClusterStorage]:
    """What the cluster has left when all of its nodes are stopped."""
    with running_cluster(root / "cluster", settings=SETTINGS) as cluster:
        table = Table(cluster)
        table.write(0)
        clean = table.wait_for_logs(0)
        table.wait_for_ripe()
        table.checkpoint(1)
        table.write(1)
        table.wait_for_logs(clean)
        table.checkpoint(2)
        for pid in cluster.pids.values():
            assert "/numpy/" not in Path(f"/proc/{pid}/maps").read_text(), "a worker's library"
        described = cluster.description
    return {"real": ClusterStorage(open_storage(described.storage), described.cluster)}


@pytest.fixture(scope="module")
def run(audited: dict[str, dict[str, AuditRun]]) -> AuditRun:
    return audited[__name__]["real"]


def test_audits_of_a_real_compacted_topic_find_nothing(run: AuditRun) -> None:
    found = {one.name: one.evidence for one in run.results if one.verdict is Verdict.FINDING}
    assert not found, found


def test_all_that_compaction_leaves_was_looked_at(run: AuditRun) -> None:
    looked = {one.name for one in run.results if one.verdict is Verdict.PASSED}
    assert looked >= {
        "removal_offsets_monotone",
        "level_one_is_clean",
        "latest_value_survives",
        "nothing_resurrected",
        "local_logs_agree",
        "offsets_contiguous",
        "producer_sequences",
    }
    agree = result(run, "local_logs_agree")
    assert not agree.remarks
    # Three local documents; a key that only aborted transactions wrote to is none.
    assert agree.counts["keys compared"] == 3 * (KEYS + 4)
