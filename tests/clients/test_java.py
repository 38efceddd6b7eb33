"""The Java client, as Kafka's own tools use it: what they print, and that they complain of nothing."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from tests.clients.records import CODECS, PARTITIONS, codecs, idempotent, read_by_librdkafka
from tests.cluster.real_cluster import RealCluster
from tests.peers.kafka_tools import TOOLS, KafkaTools, Run, ran

COUNT = 200
CONSUMER = f"{TOOLS}.consumer.ConsoleConsumer"


def create(tools: KafkaTools, topic: str, *options: str) -> list[str]:
    made = tools.topics("--create", "--topic", topic, "--partitions", str(PARTITIONS), *options)
    return ran(tools.run(made))


def test_topics_and_configs(tools: KafkaTools) -> None:
    settings = ("--replication-factor", "3", "--config", "retention.ms=60000")
    assert create(tools, "java-made", *settings) == ["Created topic java-made."]
    described, listed, wide, unknown = tools.together(
        [
            tools.topics("--describe", "--topic", "java-made"),
            tools.topics("--list"),
            tools.topics("--create", "--topic", "java-wide", "--replication-factor", "9"),
            tools.topics("--describe", "--topic", "java-unknown"),
        ]
    )
    title, *lines = ran(described)
    assert re.fullmatch(
        r"Topic: java-made\tTopicId: [\w-]{22}\tPartitionCount: 3\tReplicationFactor: 3"
        r"\tConfigs: retention.ms=60000",
        title,
    )
    for number, line in enumerate(lines):
        assert re.fullmatch(
            rf"\tTopic: java-made\tPartition: {number}\tLeader: [123]\tReplicas: ([123,]+)\tIsr: \1"
            r"\tElr: N/A\tLastKnownElr: N/A",
            line,
        )
    assert len(lines) == PARTITIONS
    assert "java-made" in ran(listed)
    for refused, reason in (
        (wide, "InvalidReplicationFactorException: Unable to replicate the partition 9 time(s)"),
        (unknown, "IllegalArgumentException: Topic 'java-unknown' does not exist as expected"),
    ):
        assert refused.code == 1
        assert reason in refused.err

    topic = ("--entity-type", "topics", "--entity-name", "java-made")
    grown, altered = tools.together(
        [
            tools.topics("--alter", "--topic", "java-made", "--partitions", "5"),
            tools.configs(*topic, "--alter", "--add-config", "segment.ms=7000,cleanup.policy=[compact]"),
        ]
    )
    assert (ran(grown), ran(altered)) == ([], ["Completed updating config for topic java-made."])
    shrunk, dynamic, node, refused = tools.together(
        [
            tools.topics("--alter", "--topic", "java-made", "--partitions", "4"),
            tools.configs(*topic, "--describe"),
            tools.configs("--entity-type", "brokers", "--entity-name", "2", "--describe", "--all"),
            tools.configs("--entity-type", "brokers", "--entity-name", "1", "--alter", "--add-config", "x=1"),
        ]
    )
    assert "currently has 5 partition(s); 4 would not be an increase" in shrunk.err
    assert [line.split(" sensitive=")[0].strip() for line in ran(dynamic)] == [
        "Dynamic configs for topic java-made are:",
        "cleanup.policy=compact",
        "retention.ms=60000",
        "segment.ms=7000",
    ]
    assert any(line.startswith("  node.id=2 sensitive=false") for line in ran(node))
    assert refused.code == 1
    assert "edit its file and start it again" in refused.err
    deleted = tools.run(tools.configs(*topic, "--alter", "--delete-config", "retention.ms"))
    assert ran(deleted) == ["Completed updating config for topic java-made."]
    assert ran(tools.run(tools.topics("--delete", "--topic", "java-made"))) == []


def test_every_compression_idempotent(cluster: RealCluster, tools: KafkaTools) -> None:
    """The console's producer and consumer, with keys and headers."""
    topics = [f"java-{codec}" for codec in CODECS]
    parse = ("parse.key=true", "parse.headers=true", "key.separator=|", "headers.delimiter=|")
    properties = [word for each in parse for word in ("--property", each)]
    written = {
        codec: "".join(f"kind:{codec}|k{number % 20}|{codec}-{number}\n" for number in range(COUNT))
        for codec in CODECS
    }
    made = tools.together(
        [tools.topics("--create", "--topic", topic, "--partitions", str(PARTITIONS)) for topic in topics]
    )
    assert [ran(one) for one in made] == [[f"Created topic {topic}."] for topic in topics]
    produced = tools.together(
        [
            tools.tool(
                f"{TOOLS}.ConsoleProducer",
                *("--topic", topic, "--compression-codec", codec, *properties),
                stdin=written[codec],
            )
            for topic, codec in zip(topics, CODECS, strict=True)
        ]
    )
    # It prompts when it can be talked to, and here nobody talks.
    assert [(one.code, one.err) for one in produced] == [(0, "")] * len(CODECS)
    counted: dict[str, list[int]] = {}
    for topic, codec in zip(topics, CODECS, strict=True):
        got = read_by_librdkafka(cluster.bootstrap, topic, COUNT)
        assert {(message.key(), message.value(), *(message.headers() or [])) for message in got.values()} == {
            (b"k%d" % (number % 20), f"{codec}-{number}".encode(), ("kind", codec.encode()))
            for number in range(COUNT)
        }
        assert codecs(cluster.bootstrap, topic) == {codec}
        assert idempotent(cluster.bootstrap, topic)
        counted[topic] = [sum(place[0] == number for place in got) for number in range(PARTITIONS)]
    shows = ("print.key=true", "print.headers=true", "print.offset=true", "print.timestamp=true")
    shown = [word for each in shows for word in ("--property", each)]
    read = tools.together(
        [
            tools.tool(
                CONSUMER,
                *("--topic", topic, "--partition", "1", "--offset", "3"),
                *("--max-messages", str(counted[topic][1] - 3), *shown),
            )
            for topic in topics
        ]
    )
    for topic, codec, one in zip(topics, CODECS, read, strict=True):
        count = counted[topic][1] - 3
        assert (one.code, one.err) == (0, f"Processed a total of {count} messages\n")
        assert len(one.lines) == count
        for offset, line in enumerate(one.lines, 3):
            assert re.fullmatch(rf"CreateTime:\d+\tOffset:{offset}\tkind:{codec}\tk\d+\t{codec}-\d+", line)


def test_offsets_leaders_and_the_cluster(cluster: RealCluster, tools: KafkaTools) -> None:
    create(tools, "java-offsets")
    performance = tools.together(
        [
            tools.tool(f"{TOOLS}.VerifiableProducer", "--topic", "java-offsets", "--max-messages", "90"),
            *(
                # It is the one that takes no --bootstrap-server.
                Run(
                    f"{TOOLS}.ProducerPerformance",
                    (
                        *("--topic", "java-offsets", "--num-records", "3000", "--record-size", "200"),
                        *("--throughput", "-1", "--producer-props", f"bootstrap.servers={tools.bootstrap}"),
                        *settings,
                    ),
                )
                for settings in (("compression.type=zstd",), ("acks=1", "enable.idempotence=false"))
            ),
        ]
    )
    verified, *measured = [ran(one) for one in performance]
    told = [json.loads(line) for line in verified]
    assert [(one["sent"], one["acked"]) for one in told if one["name"] == "tool_data"] == [(90, 90)]
    assert all(lines[-1].startswith("3000 records sent, ") for lines in measured)
    offsets = f"{TOOLS}.GetOffsetShell"
    topic = ("--topic", "java-offsets")
    ended, began, newest, tiered, moved, kept, identity, endpoints, versions = tools.together(
        [
            tools.tool(offsets, *topic),
            tools.tool(offsets, *topic, "--time", "earliest"),
            tools.tool(offsets, *topic, "--time", "max-timestamp"),
            tools.tool(offsets, *topic, "--time", "latest-tiered"),
            tools.tool(
                f"{TOOLS}.LeaderElectionCommand", "--election-type", "preferred", "--all-topic-partitions"
            ),
            tools.tool(
                f"{TOOLS}.LeaderElectionCommand", "--election-type", "unclean", *topic, "--partition", "0"
            ),
            tools.tool(f"{TOOLS}.ClusterTool", "cluster-id"),
            tools.tool(f"{TOOLS}.ClusterTool", "list-endpoints"),
            tools.tool(f"{TOOLS}.BrokerApiVersionsCommand"),
        ]
    )
    ends = [int(line.rpartition(":")[2]) for line in ran(ended)]
    assert sum(ends) == 6090
    assert ran(began) == [f"java-offsets:{number}:0" for number in range(PARTITIONS)]
    assert all(0 <= int(line.rpartition(":")[2]) < end for line, end in zip(ran(newest), ends, strict=True))
    # Whatever has been lifted by now: nothing, unless the machine is slow.
    assert all(line.startswith("java-offsets:") for line in ran(tiered))
    assert all(
        line.startswith(
            ("Successfully completed leader election (PREFERRED)", "Valid replica already elected")
        )
        for line in ran(moved)
    )
    assert ran(kept) == ["Valid replica already elected for partitions java-offsets-0"]
    assert ran(identity) == [f"Cluster ID: {cluster.description.cluster}"]
    assert [line.split()[0] for line in ran(endpoints)] == ["ID", "1", "2", "3"]
    assert sum("Produce(0): 0 to 13 [usable: 13]" in line for line in ran(versions)) == 3


def test_partitions_are_moved_by_the_tool_for_it(
    cluster: RealCluster, tools: KafkaTools, tmp_path: Path
) -> None:
    create(tools, "java-moved", "--replication-factor", "1")
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for number in range(COUNT):
        producer.produce("java-moved", str(number), f"k{number}")
    assert producer.flush(30) == 0
    reassign = f"{TOOLS}.reassign.ReassignPartitionsCommand"
    wanted: list[dict[str, Any]] = [
        {"topic": "java-moved", "partition": number, "replicas": [1 + (number + 1) % 3, 1 + (number + 2) % 3]}
        for number in range(PARTITIONS)
    ]
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": wanted}))
    file = ("--reassignment-json-file", str(plan), "--preserve-throttles")
    (begun,) = tools.together([tools.tool(reassign, *file[:2], "--execute")])
    assert "Successfully started partition reassignments for java-moved-0" in "\n".join(ran(begun))
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})

    def there() -> bool:
        topic = admin.list_topics("java-moved", 5).topics["java-moved"]
        return all(topic.partitions[one["partition"]].replicas == one["replicas"] for one in wanted)

    deadline = time.monotonic() + 60
    while not there():
        assert time.monotonic() < deadline, "all partitions are where they shall be"
        time.sleep(0.2)
    assert len(read_by_librdkafka(cluster.bootstrap, "java-moved", COUNT)) == COUNT
    verify = tools.tool(reassign, *file, "--verify")
    while ran(verified := tools.run(verify)) and verified.out.count("is completed.") != PARTITIONS:
        assert time.monotonic() < deadline, verified
        time.sleep(0.2)
    assert ran(tools.run(tools.tool(reassign, "--list"))) == ["No partition reassignments found."]


def test_a_cluster_without_authorization_says_so_to_kafka_acls(tools: KafkaTools) -> None:
    (acls,) = tools.together([tools.tool(f"{TOOLS}.AclCommand", "--list")])
    assert "No Authorizer is configured: set authorization.enabled = true" in acls.out + acls.err


def test_quotas_set_by_the_tool_throttle_a_client(cluster: RealCluster, tools: KafkaTools) -> None:
    app = ("--entity-type", "clients", "--entity-name", "java-quota")
    both = ("--entity-type", "users", "--entity-name", "ada", "--entity-type", "clients", "--entity-default")
    ip = ("--entity-type", "ips", "--entity-name", "10.9.8.7")
    every_ip = ("--entity-type", "ips", "--entity-default")
    rate = "connection_creation_rate"
    set_, other, faulty, one_ip, all_ips, no_ip, not_of_ips = tools.together(
        [
            tools.configs("--alter", "--add-config", "producer_byte_rate=100000", *app),
            tools.configs("--alter", "--add-config", "request_percentage=12.5", *both),
            tools.configs("--alter", "--add-config", "producer_byte_rate=0", *app[:3], "java-faulty"),
            tools.configs("--alter", "--add-config", f"{rate}=20", *ip),
            tools.configs("--alter", "--add-config", f"{rate}=5000", *every_ip),
            tools.configs("--alter", "--add-config", f"{rate}=0", *ip[:3], "10.9.8.6"),
            tools.configs("--alter", "--add-config", "producer_byte_rate=1", *ip[:3], "10.9.8.6"),
        ]
    )
    assert ran(one_ip) == ["Completed updating config for ip 10.9.8.7."]
    assert ran(all_ips) == ["Completed updating default config for ips in the cluster."]
    assert f"Quota {rate} must be greater than 0" in no_ip.out + no_ip.err
    assert (not_of_ips.code, "producer_byte_rate" in not_of_ips.out + not_of_ips.err) == (1, True)
    assert ran(set_) == ["Completed updating config for client java-quota."]
    assert (other.code, other.err) == (0, "")
    assert "Quota producer_byte_rate must be greater than 0" in faulty.out + faulty.err
    told: list[float] = []
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "client.id": "java-quota",
            "batch.num.messages": 1,
            "throttle_cb": lambda event: told.append(event.throttle_time),
        }
    )
    create(tools, "java-quota")
    for _ in range(22):
        producer.produce("java-quota", bytes(50_000), partition=0)
    assert producer.flush(60) == 0  # 1.1 MB, of which 1 MB may come at once
    assert max(told, default=0.0) > 0.5
    began = time.monotonic()
    producer.produce("java-quota", b"one more", partition=0)
    assert producer.flush(60) == 0
    assert time.monotonic() - began > 0.3  # it was not read while the connection was muted
    shown, one, ips, default, node = tools.together(
        [
            tools.configs("--describe", "--entity-type", "clients"),
            tools.configs("--describe", *both),
            tools.configs("--describe", "--entity-type", "ips"),
            tools.configs("--describe", *every_ip),
            tools.configs("--describe", "--entity-type", "brokers", "--entity-name", "1", "--all"),
        ]
    )
    assert sorted(ran(ips)) == [
        f"Quota configs for ip '10.9.8.7' are {rate}=20.0",
        f"Quota configs for the default ip are {rate}=5000.0",
    ]
    assert ran(default) == [f"Quota configs for the default ip are {rate}=5000.0"]
    assert any(line.strip().startswith("max.connections=10000 ") for line in ran(node))
    assert ran(shown) == ["Quota configs for client-id 'java-quota' are producer_byte_rate=100000.0"]
    assert "request_percentage=12.5" in one.out
    gone = tools.together(
        [
            tools.configs("--alter", "--delete-config", "request_percentage", *both),
            tools.configs("--alter", "--delete-config", "producer_byte_rate", *app),
            tools.configs("--alter", "--delete-config", rate, *ip),
            tools.configs("--alter", "--delete-config", rate, *every_ip),
        ]
    )
    assert [(done.code, done.err) for done in gone] == [(0, "")] * 4
    left = tools.together([tools.configs("--describe", "--entity-type", kind) for kind in ("clients", "ips")])
    assert [ran(done) for done in left] == [[], []]
