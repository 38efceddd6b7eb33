"""kcat, in the version that Debian has: librdkafka as it was years ago."""

from __future__ import annotations

import json
import subprocess
import uuid

import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.clients.records import CODECS, PARTITIONS, codecs, idempotent
from tests.cluster.real_cluster import RealCluster

COUNT = 120


def run(kcat: str, *arguments: str, stdin: str = "") -> str:
    done = subprocess.run(
        [kcat, *arguments], input=stdin, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done
    assert "ERROR" not in done.stderr, done
    return done.stdout


@pytest.mark.parametrize("codec", CODECS)
def test_every_compression_idempotent(cluster: RealCluster, kcat: str, codec: str) -> None:
    topic = f"kcat-{codec}"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for made in admin.create_topics([NewTopic(topic, PARTITIONS, 3)]).values():
        made.result(60)
    partition = ("-b", cluster.bootstrap, "-t", topic, "-p", "1")
    lines = [f"k{number}:{topic}-{number}" for number in range(COUNT)]
    run(
        kcat,
        *("-P", *partition, "-K:", "-z", codec, "-H", "kind=kcat", "-X", "enable.idempotence=true"),
        stdin="\n".join(lines) + "\n",
    )
    run(kcat, "-P", *partition, "-z", codec, "-X", "enable.idempotence=true", stdin="no key\n" * 5)
    read = run(kcat, "-C", *partition, "-o", "beginning", "-e", "-q", "-f", "%o %k:%s %h\n")
    assert read.splitlines() == [
        *(f"{offset} {line} kind=kcat" for offset, line in enumerate(lines)),
        *(f"{COUNT + number} :no key " for number in range(5)),
    ]
    assert run(kcat, "-C", *partition, "-o", "-2", "-e", "-q") == "no key\n" * 2
    assert codecs(cluster.bootstrap, topic) == {codec}
    assert idempotent(cluster.bootstrap, topic)


def test_metadata_and_offsets(cluster: RealCluster, kcat: str) -> None:
    run(kcat, "-P", "-b", cluster.bootstrap, "-t", "kcat-used", "-X", "acks=1", stdin="made by use\n")
    told = json.loads(run(kcat, "-L", "-J", "-b", cluster.bootstrap))
    assert sorted(node["id"] for node in told["brokers"]) == [1, 2, 3]
    (topic,) = [topic for topic in told["topics"] if topic["topic"] == "kcat-used"]
    assert len(topic["partitions"][0]["isrs"]) == 3
    assert not idempotent(cluster.bootstrap, "kcat-used", partitions=1)
    assert "kcat-used [0] offset 1" in run(kcat, "-Q", "-b", cluster.bootstrap, "-t", "kcat-used:0:-1")
    assert "kcat-used [0] offset 0" in run(kcat, "-Q", "-b", cluster.bootstrap, "-t", "kcat-used:0:1")


def test_a_group_and_a_transaction(bootstrap: str, kcat: str) -> None:
    """What it reads as a member is committed when it ends; what it writes is there as a whole."""
    name = f"kcat-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, PARTITIONS, 3)])[name].result(60)
    transactional = ("-X", f"transactional.id={name}")
    lines = [f"{name}-{number}" for number in range(COUNT)]
    run(kcat, "-P", "-b", bootstrap, "-t", name, *transactional, stdin="\n".join(lines) + "\n")
    member = ("-b", bootstrap, "-X", "auto.offset.reset=earliest", "-X", "session.timeout.ms=6000")
    assert sorted(run(kcat, *member, "-e", "-q", "-G", name, name).splitlines()) == sorted(lines)
    run(kcat, "-P", "-b", bootstrap, "-t", name, stdin="later\n" * 5)
    assert run(kcat, *member, "-e", "-q", "-G", name, name).splitlines() == ["later"] * 5
    described = admin.describe_consumer_groups([name])[name].result(60)
    assert (described.state.name, len(described.members)) == ("EMPTY", 0)
