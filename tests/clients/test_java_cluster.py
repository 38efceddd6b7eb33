"""Kafka's tools for disks, features and plans of moves: kafka-log-dirs, -features, -reassign-partitions."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from strandline.statemachine.controller.controller_commands import FEATURE_LEVEL
from tests.cluster.real_cluster import RealCluster
from tests.peers.kafka_tools import TOOLS, KafkaTools, Ran, Run, ran

LOG_DIRS: Final = f"{TOOLS}.LogDirsCommand"
FEATURES: Final = f"{TOOLS}.FeatureCommand"
REASSIGN: Final = f"{TOOLS}.reassign.ReassignPartitionsCommand"
TOPIC: Final = "java-disks"


def replica_sizes(tools: KafkaTools) -> dict[tuple[int, int], int]:
    """Bytes of each replica of the topic, by partition and node."""
    described = tools.run(tools.tool(LOG_DIRS, "--describe", "--topic-list", TOPIC))
    sizes: dict[tuple[int, int], int] = {}
    for broker in json.loads(ran(described)[-1])["brokers"]:
        (folder,) = broker["logDirs"]
        assert folder["error"] is None
        assert folder["logDir"].endswith(f"node-{broker['broker']}")
        for row in folder["partitions"]:
            number = int(row["partition"].removeprefix(f"{TOPIC}-"))
            assert (row["offsetLag"], row["isFuture"]) == (0, False)
            sizes[number, broker["broker"]] = row["size"]
    return sizes


def test_log_dirs_and_a_plan_of_moves(cluster: RealCluster, tools: KafkaTools, tmp_path: Path) -> None:
    made = ("--create", "--topic", TOPIC, "--partitions", "3", "--replication-factor", "2")
    ran(tools.run(tools.topics(*made)))
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for number in range(30):
        producer.produce(TOPIC, b"x" * 100, partition=number % 3)
    assert producer.flush(30) == 0
    wanted = tmp_path / "topics.json"
    wanted.write_text(json.dumps({"version": 1, "topics": [{"topic": TOPIC}]}))
    plan = ("--topics-to-move-json-file", str(wanted), "--broker-list", "1,2,3", "--generate")
    nowhere = tmp_path / "nowhere.json"
    lost = {"topic": TOPIC, "partition": 0, "replicas": [1, 77]}
    nowhere.write_text(json.dumps({"version": 1, "partitions": [lost]}))
    unknown, generated, refused = tools.together(
        [
            tools.tool(LOG_DIRS, "--describe", "--broker-list", "1,77"),
            tools.tool(REASSIGN, *plan),
            tools.tool(REASSIGN, "--reassignment-json-file", str(nowhere), "--execute"),
        ]
    )
    topic = AdminClient({"bootstrap.servers": cluster.bootstrap}).list_topics(TOPIC, 10).topics[TOPIC]
    replicas = {number: partition.replicas for number, partition in topic.partitions.items()}

    everywhere = {(number, node) for number, nodes in replicas.items() for node in nodes}
    deadline = time.monotonic() + 60
    # A follower hears a moment later what is committed.
    while not ((sizes := replica_sizes(tools)).keys() == everywhere and min(sizes.values()) > 300):
        assert time.monotonic() < deadline, sizes
        time.sleep(0.1)
    # Records lie in the object storage once, so both replicas refer to the same bytes.
    assert len({(number, size) for (number, _), size in sizes.items()}) == 3
    assert "The given brokers do not exist from --broker-list: 77" in unknown.out + unknown.err

    lines = [line for line in ran(generated) if line.startswith("{")]
    current, proposed = (_replicas(json.loads(line)) for line in lines)
    assert current == replicas
    assert all(len(set(nodes)) == 2 and set(nodes) <= {1, 2, 3} for nodes in proposed.values())
    assert refused.code == 1
    assert "Unknown broker id 77" in refused.out + refused.err


def _replicas(plan: Any) -> dict[int, list[int]]:
    return {row["partition"]: row["replicas"] for row in plan["partitions"]}


def test_the_feature_level_by_the_tool_for_it(tools: KafkaTools) -> None:
    def asked(verb: str, *options: str) -> Run:
        return Run(FEATURES, ("--bootstrap-server", tools.bootstrap, verb, *options))

    described, same, later, back, other, release = tools.together(
        [
            asked("describe"),
            asked("upgrade", "--feature", f"strandline.version={FEATURE_LEVEL}"),
            asked("upgrade", "--feature", "strandline.version=99"),
            asked("downgrade", "--feature", "strandline.version=1"),
            asked("upgrade", "--feature", "nonsense.version=1"),
            asked("upgrade", "--release-version", "4.1"),
        ]
    )
    rows = {}
    for line in ran(described):
        cells = dict(cell.split(": ") for cell in line.split("\t"))
        rows[cells["Feature"]] = (cells["SupportedMaxVersion"], cells["FinalizedVersionLevel"])
    assert rows["strandline.version"] == (str(FEATURE_LEVEL), str(FEATURE_LEVEL))
    assert {"group.version", "transaction.version"} <= rows.keys()
    assert ran(same) == [f"strandline.version was upgraded to {FEATURE_LEVEL}."]
    assert "Feature level 99 is unknown to this release" in _refused(later)
    assert f"is at feature level {FEATURE_LEVEL}, it cannot go back to 1" in _refused(back)
    assert "has no feature nonsense.version" in _refused(other)
    assert "metadata.version" in _refused(release)


def _refused(done: Ran) -> str:
    assert done.code != 0
    return done.out + done.err
