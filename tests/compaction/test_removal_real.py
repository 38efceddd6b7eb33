"""Three real nodes: deletions go from every copy after their retention; what holds them is named."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from strandline.node.compaction.manifest import NONE
from tests.cluster.command import strandline
from tests.cluster.real_cluster import RealCluster, running_cluster, wait
from tests.compaction.real_logs import manifests

SETTINGS = ("level_one.reconcile_seconds=500ms", "compaction.ingest_seconds=500ms")
CONFIGS = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.0",
    "delete.retention.ms": "3000",
}
KEYS = 20


def write(cluster: RealCluster, records: Sequence[tuple[str, str | None]]) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 1})
    for key, value in records:
        producer.produce("table", value, key, partition=0)
    assert producer.flush(60) == 0


def tombstones(cluster: RealCluster) -> set[int]:
    """The nodes whose local log has a tombstone below its last batch."""
    return {
        node
        for node, found in manifests(cluster).items()
        if any(one.lowest_tombstone != NONE for one in found.segments)
    }


def read(cluster: RealCluster) -> list[tuple[str, str | None]]:
    """Every record of the topic, as a consumer gets it."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap, "group.id": "readers", "auto.offset.reset": "earliest",
            "enable.auto.commit": False, "enable.partition.eof": True,
        }
    )  # fmt: skip
    consumer.subscribe(["table"])
    found = []
    while (message := consumer.poll(20)) is not None and message.error() is None:
        key, value = message.key(), message.value()
        assert key is not None
        found.append((key.decode(), None if value is None else value.decode()))
    consumer.close()
    assert message is not None, "it came to the end"
    return found


def test_deletions_go_from_all_copies_and_a_stopped_replica_holds_them(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_cluster(tmp_path / "cluster", settings=SETTINGS) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        [made] = admin.create_topics([NewTopic("table", 1, 3, config=CONFIGS)]).values()
        made.result(60)

        def status(*, answering: int = 3) -> dict[str, Any]:
            done = strandline(capfd, monkeypatch, "compaction", "status", "table", "--json",
                              "--admin", ",".join(cluster.admin))  # fmt: skip
            assert (done.status == 0) == (answering == 3), done
            (found,) = json.loads(done.out)["partitions"]
            return dict(found)

        keys = [f"key {number}" for number in range(KEYS)]
        write(cluster, [(key, f"value of {key}") for key in keys])
        wait(lambda: len(manifests(cluster)) == 3)
        write(cluster, [(key, None) for key in keys[: KEYS // 2]])
        write(cluster, [("other", "1")])
        seen = set[int]()

        def have_had() -> bool:
            """They go again within seconds, so not all nodes may have one when this looks."""
            seen.update(tombstones(cluster))
            return seen == {1, 2, 3}

        wait(have_had, 60.0)
        wait(lambda: tombstones(cluster) == set(), 60.0)
        told = status()
        assert told["ripe_tombstones"] > KEYS
        assert told["leader"]["tombstones_held"] is None
        left = {key: f"value of {key}" for key in keys[KEYS // 2 :]}
        assert dict(read(cluster)) == {**left, "other": "1"}, "no tombstone is left in level one either"

        away = next(node for node in cluster.pids if node != told["leading_node"])
        cluster.stop(away)
        write(cluster, [(keys[-1], None)])
        write(cluster, [("other", "2")])
        wait(lambda: len(tombstones(cluster) - {away}) == 2)

        def named() -> bool:
            held = (status(answering=2)["leader"] or {}).get("tombstones_held")
            return held is not None and held["nodes"] == [away] and held["seconds"] > 8

        wait(named, 40.0)
        held = status(answering=2)
        assert held["mtro"] == told["mtro"]
        assert len(tombstones(cluster) - {away}) == 2
        cluster.start(away)
        wait(lambda: tombstones(cluster) == set(), 60.0)
        wait(lambda: (status()["leader"] or {}).get("tombstones_held", held) is None)
        del left[keys[-1]]
        assert dict(read(cluster)) == {**left, "other": "2"}

        def holds(command: str, *more: str) -> list[dict[str, Any]]:
            done = strandline(capfd, monkeypatch, "compaction", command, "table", "view", "--json", *more,
                              "--admin", ",".join(reversed(cluster.admin)))  # fmt: skip
            assert done.status == 0, done
            return list(json.loads(done.out)["partitions"])

        (held_here,) = holds("hold", "--for", "60")
        at = held_here["offset"]
        for number in range(3):
            write(cluster, [("other", f"held {number}")])
        wait(lambda: all(one.log_end >= at + 3 for one in manifests(cluster).values()), 30.0)
        told = status()
        assert [(one["reader"], one["offset"]) for one in told["holds"]] == [("view", at)]
        assert {one.clean_end for one in manifests(cluster).values()} <= {at - 1, at}
        assert [value for key, value in read(cluster) if key == "other"][-3:] == [
            "held 0",
            "held 1",
            "held 2",
        ]
        holds("release")
        wait(lambda: all(one.clean_end > at for one in manifests(cluster).values()), 30.0)
        assert dict(read(cluster)) == {**left, "other": "held 2"}
