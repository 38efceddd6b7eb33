"""Three real nodes keep a clean local log each of a compacted topic, made by real workers."""

from __future__ import annotations

from pathlib import Path

import psutil
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from strandline.node.compaction.local_log import open_log
from strandline.node.compaction.log_folders import stored_logs
from strandline.node.compaction.manifest import LogIdentity
from strandline.node.raft.disk import RealDisk
from tests.cluster.real_cluster import running_cluster, wait
from tests.compaction.real_logs import SETTINGS, contents, manifests

KEYS, RECORDS = 20, 2000
LAST_BATCH = 200
"""More records than a batch has, as `batch.size` is: the last one is not cleaned."""


def test_every_replica_keeps_a_clean_log_of_its_own(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "cluster", settings=SETTINGS) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.0"}
        [made] = admin.create_topics([NewTopic("table", 1, 3, config=configs)]).values()
        made.result(60)
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 1, "batch.size": 2000})
        for number in range(RECORDS):
            producer.produce("table", b"value %d" % number, b"key %d" % (number % KEYS), partition=0)
        assert producer.flush(60) == 0

        def all_clean() -> bool:
            there = manifests(cluster)
            return len(there) == 3 and all(
                one.log_end == RECORDS and one.clean_end > RECORDS - LAST_BATCH for one in there.values()
            )

        wait(all_clean, 40.0)
        workers = [
            child
            for pid in cluster.pids.values()
            for child in psutil.Process(pid).children()
            if "strandline.node.compaction.worker" in child.cmdline()
        ]
        assert len(workers) == 3
        tables = []
        for node in cluster.pids:
            cluster.stop(node)
        for node, described in cluster.description.nodes.items():
            [((topic_id, number), folder)] = stored_logs(RealDisk(), str(described.data)).items()
            log = open_log(RealDisk(), folder, LogIdentity(cluster.description.cluster, topic_id, number))
            clean = [one for one in contents(log) if one.offset < log.manifest.clean_end]
            assert len({one.key for one in clean}) == len(clean), f"node {node}"
            tables.append({one.key: one.value for one in contents(log)})
            log.close()
        last = {b"key %d" % (number % KEYS): b"value %d" % number for number in range(RECORDS)}
        assert tables == [last, last, last]
