"""A disk that is full under the real worker process: the round waits, and all goes on by itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import psutil
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
)
from confluent_kafka.cimpl import NewTopic

from strandline.cluster.admin_client import AdminClient as NodeClient
from strandline.node.compaction.local_log import open_log
from strandline.node.compaction.log_folders import stored_logs
from strandline.node.compaction.manifest import LogIdentity
from strandline.node.compaction.segment_files import RESERVE_PART
from strandline.node.raft.disk import RealDisk
from tests.cluster.real_cluster import RealCluster, running_cluster, wait
from tests.compaction.real_logs import SETTINGS, contents
from tests.programs.failover.cluster.small_disk import SmallDisk

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(not SmallDisk.possible(), reason="needs root, to mount a small disk"),
]
FULL, OTHERS = 1, (2, 3)
KEYS, RECORDS, MORE = 20, 1000, 200
DISK = 64 << 20
RESERVE = DISK // RESERVE_PART
LAZY = {"cleanup.policy": "compact", "min.compaction.lag.ms": str(10**10)}
"""Of a topic that is filled and not cleaned yet."""
EAGER = {"min.compaction.lag.ms": "0", "min.cleanable.dirty.ratio": "0.0"}
WAIT_SECONDS = 60.0


class FullDisk:
    """A cluster whose first node has the local logs on a small disk of their own."""

    def __init__(self, cluster: RealCluster) -> None:
        self.cluster = cluster
        self.folder = cluster.description.nodes[FULL].data / "compacted"
        self.disk = SmallDisk(self.folder, DISK)
        self._admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        self._admin.create_topics([NewTopic("table", 1, 3, config=LAZY)])["table"].result(60)

    def write(self, first: int, count: int) -> None:
        producer = Producer({"bootstrap.servers": self.cluster.bootstrap, "linger.ms": 1, "batch.size": 2000})
        for number in range(first, first + count):
            producer.produce("table", b"value %d" % number, b"key %d" % (number % KEYS), partition=0)
        assert producer.flush(60) == 0

    def configure(self, settings: Mapping[str, str]) -> None:
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in settings.items()
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, "table", incremental_configs=entries)
        for answer in self._admin.incremental_alter_configs([resource]).values():
            answer.result(60)

    def rows(self, node: int) -> Any:
        address = self.cluster.description.nodes[node].admin
        return NodeClient(address).request("GET", "/api/compaction/partitions").body["partitions"]

    def status(self, node: int) -> Any:
        """Once the node has found out that it is to keep a log."""
        wait(lambda: self.rows(node), WAIT_SECONDS)
        [row] = self.rows(node)
        return row

    def local(self, node: int) -> Any:
        return self.status(node)["local"]

    def problem(self) -> str:
        return self.local(FULL)["problem"] or ""

    def health(self) -> str | None:
        return NodeClient(self.cluster.description.nodes[FULL].admin).health()

    def worker(self) -> int:
        """Process id of the full node's worker."""
        [pid] = [
            child.pid
            for child in psutil.Process(self.cluster.pids[FULL]).children()
            if "strandline.node.compaction.worker" in child.cmdline()
        ]
        return pid

    def unfinished(self) -> list[str]:
        """Files of segments that no log has."""
        return [path.name for path in self.folder.rglob("*.part")]

    def told(self) -> str:
        """The words of `strandline compaction status`."""
        command = [sys.executable, "-P", "-m", "strandline", "compaction", "status", "table"]
        command += ["--admin", ",".join(self.cluster.admin)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FullDisk]:
    with running_cluster(tmp_path_factory.mktemp("full") / "cluster", settings=SETTINGS) as cluster:
        made = FullDisk(cluster)
        try:
            yield made
        finally:
            for node in list(cluster.pids):
                cluster.stop(node)
            made.disk.free()
            made.disk.unmount()


def test_a_round_and_the_filling_wait_for_room_and_go_on_by_themselves(full: FullDisk) -> None:
    full.write(0, RECORDS)
    wait(lambda: all(full.local(node)["log_end"] == RECORDS for node in (FULL, *OTHERS)), WAIT_SECONDS)
    assert full.local(FULL)["clean_end"] == 0
    worker = full.worker()

    # What a log would grow by leaves the node's own log its part of the disk.
    free = os.statvfs(full.folder)
    left = free.f_bavail * free.f_frsize
    filler = full.folder / "filler"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, left - RESERVE // 2)
    full.write(RECORDS, MORE)
    wait(full.problem, WAIT_SECONDS)
    kept = "No space left on device but for 3 MiB, which are left to the write-ahead log"
    assert full.problem().startswith(f"the local log cannot be filled: {kept}")
    assert full.local(FULL)["log_end"] == RECORDS
    filler.unlink()
    filled = RECORDS + MORE
    wait(lambda: full.local(FULL)["log_end"] == filled and not full.problem(), WAIT_SECONDS)

    # A round meets the full disk, and nothing is to be filled.
    full.disk.fill()
    full.configure(EAGER)
    wait(full.problem, WAIT_SECONDS)
    assert full.problem().startswith("the local log cannot be cleaned: No space left on device")
    assert str(full.folder) in full.problem()
    assert full.problem().endswith("make room there; the node goes on by itself")
    wait(lambda: "the local log cannot be cleaned: No space left" in (full.health() or ""), WAIT_SECONDS)
    assert "the local log cannot be cleaned: No space left on device" in full.told()
    wait(lambda: all(full.local(node)["clean_end"] > 0 for node in OTHERS), WAIT_SECONDS)
    assert (full.local(FULL)["clean_end"], full.local(FULL)["log_end"]) == (0, filled)
    assert {full.status(node)["mtro"] for node in (FULL, *OTHERS)} == {0}, "its copy holds removal back"
    assert not full.unfinished(), "what could not be written is given back"
    full.disk.free()
    wait(lambda: full.local(FULL)["clean_end"] == full.local(OTHERS[0])["clean_end"], WAIT_SECONDS)
    wait(lambda: not full.problem() and full.health() is None, WAIT_SECONDS)

    # The next that is to be filled meets it.
    full.disk.fill()
    full.write(filled, MORE)
    wait(full.problem, WAIT_SECONDS)
    assert full.problem().startswith("the local log cannot be filled: No space left on device")
    wait(lambda: full.local(OTHERS[0])["log_end"] == filled + MORE, WAIT_SECONDS)
    assert full.local(FULL)["log_end"] == filled
    full.disk.free()
    wait(lambda: full.local(FULL)["log_end"] == filled + MORE and not full.problem(), WAIT_SECONDS)

    assert full.local(FULL)["resets"] == 0
    assert full.worker() == worker, "the process lives on"
    cluster = full.cluster
    cluster.stop(FULL)
    [((topic_id, number), folder)] = stored_logs(
        RealDisk(), str(cluster.description.nodes[FULL].data)
    ).items()
    log = open_log(RealDisk(), folder, LogIdentity(cluster.description.cluster, topic_id, number))
    table = {one.key: one.value for one in contents(log)}
    log.close()
    total = filled + MORE
    assert table == {
        b"key %d" % (number % KEYS): b"value %d" % number for number in range(total - KEYS, total)
    }
