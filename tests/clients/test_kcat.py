"""kcat, in the version that Debian has: librdkafka as it was years ago."""

from __future__ import annotations

import json
import subprocess

import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.clients.records import CODECS, PARTITIONS, codecs, idempotent
from tests.real_cluster import RealCluster

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
        made.result(10)
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
