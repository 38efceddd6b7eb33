"""Real nodes that lose all their data folders, and the cluster that is made of what the bucket holds.

The tests share one cluster and run in their order: each begins where the one before ended.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewTopic
from pyspark.sql.streaming.datasource import ReadAllAvailable

from strandline.cluster.admin_client import AdminClient as Http
from strandline.cluster.failure import CommandFailed
from strandline.cluster.local import LocalCluster
from strandline.cluster.local_files import RESTORING
from strandline.node.objectstore.storage_owner import KEY
from strandline.node.restore import take_over
from strandline.snapshot.spark.options import SourceError
from strandline.snapshot.spark.source import SCHEMA, StrandlineSource
from strandline.statemachine.controller.restored_controller import TERMS
from tests.cluster.command import Done, as_json, strandline
from tests.cluster.real_cluster import RealCluster, running_cluster, wait

TOPIC: Final = "orders"
PARTITIONS: Final = 3
GROUP: Final = "shippers"
SECONDS: Final = 30.0
TRANSACTIONAL: Final = "billing"
SETTINGS: Final = ("coordinator.partitions=2", "inline.seconds=600")
"""Some batches are to be in the logs only, and so in the published states."""

LATEST: Final[OffsetSpec] = OffsetSpec.latest()  # type: ignore[no-untyped-call]
Records = dict[int, list[tuple[int, bytes]]]


class Told:
    """What the tests tell each other."""

    acknowledged: Records
    point: int
    incarnation: str
    epochs: dict[int, int]
    open_transaction: Producer


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    folder = tmp_path_factory.mktemp("restore") / "cluster"
    with running_cluster(folder, settings=SETTINGS) as cluster:
        client = AdminClient({"bootstrap.servers": cluster.bootstrap})
        topic = NewTopic(TOPIC, PARTITIONS, 3, config={"retention.ms": "604800000"})
        client.create_topics([topic])[TOPIC].result(timeout=SECONDS)
        yield cluster


def produce(cluster: RealCluster, words: list[str]) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True})
    failed: list[object] = []
    for number, word in enumerate(words):
        producer.produce(
            TOPIC,
            word,
            partition=number % PARTITIONS,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
    assert producer.flush(SECONDS) == 0
    assert not failed


def transactional(cluster: RealCluster) -> Producer:
    settings = {"bootstrap.servers": cluster.bootstrap, "transactional.id": TRANSACTIONAL}
    # One is kept from test to test, so it outlives the cluster, and would write into the stderr of others.
    producer = Producer({**settings, "transaction.timeout.ms": 600_000, "log_level": 0})
    producer.init_transactions(SECONDS)
    return producer


def in_transaction(producer: Producer, word: str) -> None:
    """Records in all partitions, in the producer's open transaction."""
    producer.begin_transaction()
    for partition in range(PARTITIONS):
        producer.produce(TOPIC, word, partition=partition)
    assert producer.flush(SECONDS) == 0


def read(cluster: RealCluster) -> Records:
    """What a read-committed consumer finds, with offsets; fails if a partition's end cannot be reached."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)])
    found: Records = {number: [] for number in range(PARTITIONS)}
    ended: set[int] = set()
    try:
        while len(ended) < PARTITIONS:
            message = consumer.poll(SECONDS)
            assert message is not None, f"only partitions {ended} came to their ends"
            error, partition = message.error(), message.partition()
            assert partition is not None
            if error is None:
                found[partition].append((message.offset() or 0, message.value() or b""))
            else:
                assert error.code() == -191, error  # _PARTITION_EOF
                ended.add(partition)
    finally:
        consumer.close()
    return found


def ends(cluster: RealCluster, isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED) -> dict[int, int]:
    """High watermarks of the partitions, or their last stable offsets; after an election, if one is on."""
    client = AdminClient({"bootstrap.servers": cluster.bootstrap})
    asked = {TopicPartition(TOPIC, number): LATEST for number in range(PARTITIONS)}
    deadline = time.monotonic() + SECONDS
    while True:
        answers = client.list_offsets(asked, isolation_level=isolation)
        try:
            return {place.partition: one.result(timeout=SECONDS).offset for place, one in answers.items()}
        except KafkaException as error:
            passing = (KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION)
            if error.args[0].code() not in passing or time.monotonic() > deadline:
                raise
        time.sleep(0.1)


def committed(cluster: RealCluster) -> dict[int, int]:
    client = AdminClient({"bootstrap.servers": cluster.bootstrap})
    asked = client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(GROUP)])
    answer: Future[Any] = asked[GROUP]
    return {one.partition: one.offset for one in answer.result(timeout=SECONDS).topic_partitions}


def commit(cluster: RealCluster, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": GROUP})
    places = [TopicPartition(TOPIC, number, offset) for number in range(PARTITIONS)]
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()


def checkpoint(cluster: RealCluster) -> dict[str, Any]:
    answer = Http(cluster.admin[0]).request("POST", "/api/checkpoints", {}, timeout=SECONDS)
    assert answer.status == 200, answer
    report: dict[str, Any] = answer.body
    assert report["complete"], report
    return report


def lose(cluster: RealCluster, kept: Path | None = None) -> None:
    """kill -9 of all nodes, and their data folders deleted; that of node 3 is moved to `kept`."""
    for node in list(cluster.pids):
        cluster.kill(node)
    for each in cluster.description.nodes.values():
        if kept is not None and each.node == 3:
            each.data.rename(kept)
        else:
            shutil.rmtree(each.data)


def owner(cluster: RealCluster) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((Path(cluster.description.storage) / KEY).read_text())
    return told


@pytest.fixture
def run(cluster: RealCluster, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    def restore(*arguments: str) -> Done:
        folder = ("--cluster", str(cluster.folder))
        return strandline(capfd, monkeypatch, "cluster", "restore", *folder, *arguments)

    return restore


def test_what_a_restore_would_bring_back_is_said_and_not_done_while_the_cluster_runs(
    cluster: RealCluster, run: Any
) -> None:
    produce(cluster, [f"plain {number}" for number in range(60)])
    producer = transactional(cluster)
    in_transaction(producer, "committed")
    producer.commit_transaction(SECONDS)
    in_transaction(producer, "aborted")
    producer.abort_transaction(SECONDS)
    commit(cluster, 7)
    Told.acknowledged = read(cluster)
    in_transaction(producer, "open at the point")
    Told.open_transaction = producer
    Told.incarnation = owner(cluster)["incarnation"]

    report = checkpoint(cluster)
    assert report["no_restore_point"] is None
    Told.point = report["restore_point"]
    told = as_json(run("--dry-run", "--json", "--point", str(Told.point)))
    assert not told["of_tails"]
    assert (told["point"], told["restored"], told["incarnation"]) == (Told.point, False, Told.incarnation)
    assert told["nodes"] == [1, 2, 3]
    assert {one["partition"]: one["end_offset"] for one in told["partitions"]} == ends(cluster)
    refused = run()
    assert refused.status != 0
    assert "still runs: node 1, 2, 3" in refused.err
    assert owner(cluster)["incarnation"] == Told.incarnation


def test_everything_up_to_the_point_is_there_again_and_no_transaction_is_open(
    cluster: RealCluster, run: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    produce(cluster, ["after the point"] * 6)
    commit(cluster, 9)
    kept = tmp_path_factory.mktemp("kept") / "node-3"
    lose(cluster, kept)
    said = run("--point", str(Told.point))
    assert said.status == 0, said.err
    assert "orders" in said.out
    assert owner(cluster)["incarnation"] != Told.incarnation

    assert read(cluster) == Told.acknowledged
    wait(lambda: ends(cluster) == ends(cluster, IsolationLevel.READ_COMMITTED))
    assert committed(cluster) == dict.fromkeys(range(PARTITIONS), 7)
    configs = Http(cluster.admin[0]).request("GET", f"/api/topics/{TOPIC}").body
    assert "604800000" in json.dumps(configs)

    # The producer from before is fenced: its transaction may have had more than was restored.
    with pytest.raises(KafkaException):
        Told.open_transaction.commit_transaction(SECONDS)
    assert read(cluster) == Told.acknowledged
    Told.epochs = _leader_epochs(cluster)
    assert min(Told.epochs.values()) > TERMS

    produce(cluster, ["of the restored cluster"] * 3)
    producer = transactional(cluster)
    in_transaction(producer, "again")
    producer.commit_transaction(SECONDS)
    found = read(cluster)
    for number, before in Told.acknowledged.items():
        assert [word for _, word in found[number][len(before) :]] == [b"of the restored cluster", b"again"]

    # A node with a data folder from before is refused, and the others go on.
    node = cluster.description.nodes[3]
    cluster.stop(3)
    restored = node.data.with_name("restored")
    node.data.rename(restored)
    shutil.copytree(kept, node.data)
    with contextlib.suppress(CommandFailed):
        cluster.start(3, wait=False)
    wait(lambda: node.log.read_text().rstrip().endswith("in the log") or 3 not in cluster.pids)
    assert Told.incarnation in node.last_words()
    shutil.rmtree(node.data)
    restored.rename(node.data)
    cluster.start(3)
    Told.acknowledged = read(cluster)


def test_a_restore_that_breaks_off_is_repeated_and_numbers_never_come_twice(
    cluster: RealCluster, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The point is that of the first cluster, and the cluster that was restored from it wrote more."""
    lose(cluster)

    async def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(take_over, "take_over", dies)
        assert run("--point", str(Told.point)).status != 0
    assert (cluster.folder / RESTORING).exists()
    with pytest.raises(CommandFailed, match=r"a restore into .* broke off"):
        cluster.start(1)
    told = as_json(run("--json", "--point", str(Told.point)))
    assert (told["point"], told["restored"]) == (Told.point, True)
    assert not (cluster.folder / RESTORING).exists()
    epochs = _leader_epochs(cluster)
    assert all(epochs[number] > Told.epochs[number] + TERMS for number in range(PARTITIONS))
    found = read(cluster)
    assert all(
        word not in (b"again", b"of the restored cluster") for rows in found.values() for _, word in rows
    )
    assert checkpoint(cluster)["restore_point"] > Told.point


def _leader_epochs(cluster: RealCluster) -> dict[int, int]:
    found: dict[int, int] = {}
    for address in cluster.admin:
        for row in Http(address).request("GET", "/api/partitions").body["partitions"]:
            if row["topic"] == TOPIC:
                found[row["partition"]] = max(found.get(row["partition"], 0), row["leader_epoch"])
    return found


def objects(storage: Path) -> dict[str, tuple[int, int, int]]:
    """What there is in a storage: for each object what changes when it is written again."""
    return {
        str(path.relative_to(storage)): (found.st_ino, found.st_mtime_ns, found.st_size)
        for path in storage.rglob("*")
        if path.is_file() and (found := path.stat())
    }


def test_a_clone_is_another_cluster_and_its_source_is_only_read(
    cluster: RealCluster,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    produce(cluster, ["x" * 200_000] * 6)  # too large for the logs: these are objects
    commit(cluster, 11)
    report = checkpoint(cluster)
    source, before = Path(cluster.description.storage), read(cluster)
    folder = tmp_path_factory.mktemp("clone") / "cluster"

    def clone(*arguments: str, name: str = "trial", where: Path = folder) -> Done:
        return strandline(
            capfd, monkeypatch, "cluster", "restore", "--storage", str(source), "--as", name, "--cluster",
            str(where), "--free-ports", *arguments,
        )  # fmt: skip

    for wrong, why in (("objects", "is the source itself"), ("no/name", "cannot stand in an object's name")):
        assert why in clone(name=wrong).err
    made = as_json(
        clone("--json", "--set", "collector.grace_seconds=1", "--set", "collector.sweep_seconds=1",
              "--set", "cluster.epoch_seconds=1", "--set", "level_one.reconcile_seconds=1")
    )  # fmt: skip
    copied = LocalCluster(folder)
    try:
        assert (made["cluster"], made["point"]) == ("trial", report["restore_point"])
        assert made["new_incarnation"] != owner(cluster)["incarnation"] == made["incarnation"]
        trial = RealCluster(copied)
        assert trial.description.storage == str(source.parent / "trial")
        assert read(trial) == before
        assert committed(trial) == dict.fromkeys(range(PARTITIONS), 11)
        again = clone(where=folder.with_name("again"))
        assert "was restored from this clone already" in again.err

        # The source's own nodes write and delete, so they rest while the clone does what it can.
        for node in list(cluster.pids):
            cluster.stop(node)
        there = objects(source)
        copy = source.parent / "trial"
        first = set(objects(copy))
        produce(trial, ["y" * 200_000] * 6)
        written = {name for name in objects(copy).keys() - first if name.startswith("l0/")}
        assert written
        client = AdminClient({"bootstrap.servers": trial.bootstrap})
        client.delete_topics([TOPIC])[TOPIC].result(timeout=SECONDS)
        wait(lambda: not written & set(objects(copy)), 60.0)
        assert objects(source) == there, "its collector knows no storage but its own"
    finally:
        copied.down(10.0)
    for number in (1, 2, 3):
        cluster.start(number, wait=number == 3)
    assert read(cluster) == before


def test_what_was_acknowledged_seconds_ago_is_restored_without_any_checkpoint(
    cluster: RealCluster, run: Any
) -> None:
    produce(cluster, ["published by the nodes"] * 9)
    producer = transactional(cluster)
    in_transaction(producer, "committed at the end")
    producer.commit_transaction(SECONDS)
    commit(cluster, 12)
    acknowledged, at = read(cluster), ends(cluster)
    told: dict[str, Any] = {}

    def is_published() -> bool:
        told.update(as_json(run("--dry-run", "--json")))
        return {one["partition"]: one["end_offset"] for one in told["partitions"]} == at

    wait(is_published, 20.0)
    lose(cluster)
    restored = as_json(run("--json"))
    assert restored["of_tails"]
    assert restored["missing_seconds"] < 3600
    assert read(cluster) == acknowledged
    assert committed(cluster) == dict.fromkeys(range(PARTITIONS), 12)


def test_a_stream_and_an_export_notice_that_what_they_read_is_gone(
    cluster: RealCluster,
    run: Any,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """The restored cluster has more records by then than they have read."""
    storage = cluster.description.storage

    def reader(fail: str) -> Any:
        given = {"url": storage, "topic": TOPIC, "failOnDataLoss": fail}
        return StrandlineSource(given).streamReader(SCHEMA)

    def at(offsets: dict[str, Any]) -> dict[int, int]:
        return {int(number): offset for number, offset in offsets[TOPIC].items() if number.isdigit()}

    def is_published() -> bool:
        return at(reader("true").latestOffset({}, ReadAllAvailable())) == ends(cluster)

    def export() -> Done:
        target = ("--to", str(tmp_path / "lake"), "--storage", storage)
        return strandline(capfd, monkeypatch, "export", TOPIC, *target)

    point, kept = checkpoint(cluster)["restore_point"], ends(cluster)
    produce(cluster, ["read and lost"] * 9)
    wait(is_published, 20.0)
    begun = reader("true").latestOffset({}, ReadAllAvailable())
    assert export().status == 0
    lose(cluster)
    assert run("--point", str(point)).status == 0
    assert ends(cluster) == kept
    produce(cluster, ["another"] * 18)
    wait(is_published, 20.0)
    with pytest.raises(SourceError, match="the cluster was restored, and has other records from offset"):
        reader("true").latestOffset(begun, ReadAllAvailable())
    going_on = reader("false")
    back = going_on.latestOffset(begun, ReadAllAvailable())
    assert at(back) == kept
    assert at(going_on.latestOffset(back, ReadAllAvailable())) == ends(cluster)
    refused = export()
    assert refused.status == 1
    assert "the cluster was restored, and has other records from offset" in refused.err


def test_what_cannot_be_cloned_is_refused_before_anything_is_copied(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def clone(*arguments: str) -> str:
        done = strandline(
            capfd, monkeypatch, "cluster", "restore", "--cluster", str(tmp_path / "new"), *arguments
        )
        assert done.status != 0
        return done.err

    assert "--as needs the storage to clone" in clone("--as", "trial")
    assert "s3://bucket has no prefix" in clone("--storage", "s3://bucket", "--as", "trial")
    (tmp_path / "empty").mkdir()
    assert "empty is empty: there is nothing to restore" in clone(
        "--storage", str(tmp_path / "empty"), "--as", "trial"
    )
    assert not (tmp_path / "trial").exists()
    assert not (tmp_path / "new").exists()
