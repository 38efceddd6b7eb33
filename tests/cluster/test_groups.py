"""`strandline group` against three real nodes, with a consumer that comes and goes."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from strandline.cluster.member_protocols import member_protocols
from tests.cluster.command import Done, as_json, strandline
from tests.cluster.real_cluster import RealCluster, running_cluster

Run = Callable[..., Done]
PROTOCOLS = ("classic", "consumer")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    with running_cluster(tmp_path_factory.mktemp("groups") / "cluster") as running:
        yield running


@pytest.fixture
def run(cluster: RealCluster, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    def run(*arguments: str) -> Done:
        return strandline(capfd, monkeypatch, *arguments, "--cluster", str(cluster.folder))

    return run


def consumer(cluster: RealCluster, group: str, **more: Any) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group,
            "client.id": "reader",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **more,
        }
    )


def read(client: Consumer, records: int) -> None:
    """Read so many records and commit what was read."""
    deadline = time.monotonic() + 30
    while records:
        message = client.poll(0.2)
        assert time.monotonic() < deadline, "nothing came"
        if message is not None:
            assert message.error() is None, message.error()
            records -= 1
    client.commit(asynchronous=False)


def test_a_group_from_its_first_member_to_its_end(run: Run, cluster: RealCluster, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text("".join(f"{number}\n" for number in range(20)))
    run("topic", "create", "read")
    run("produce", "read", "--file", str(lines))
    assert run("group", "list").out == "no groups\n"
    client = consumer(cluster, "readers")
    client.subscribe(["read"])
    try:
        read(client, 20)
        listed = as_json(run("group", "list", "--json"))["groups"]
        assert listed == [{"group": "readers", "protocol": "classic", "state": "Stable"}]
        assert "readers  classic   Stable" in run("group", "list").out
        described = as_json(run("group", "describe", "readers", "--json"))
        assert (described["state"], described["assignor"]) == ("Stable", "range")
        (member,) = described["members"]
        assert (member["client_id"], member["protocol"]) == ("reader", "classic")
        assert member["partitions"] == [{"topic": "read", "partition": 0}]
        place = {"topic": "read", "partition": 0}
        assert described["offsets"] == [{**place, "offset": 20, "end": 20, "lag": 0}]
        text = run("group", "describe", "readers").out
        assert "readers: Stable, protocol classic, 1 member, coordinator" in text
        assert member["member_id"] in text

        run("group", "reset-offsets", "idle", "--topic", "read", "--from", "end")
        some = run("group", "delete", "readers", "idle", "nobody")
        assert (some.status, some.out) == (1, "deleted: idle\n")
        assert "NON_EMPTY_GROUP" in some.err
        assert "nobody" in some.err
        assert some.err.count("\n") == 1
        busy = run("group", "delete", "readers")
        assert busy.status == 1
        assert "NON_EMPTY_GROUP" in busy.err
        assert "stop the group's members" in busy.err
        assert busy.err.count("\n") == 1
        refused = run("group", "reset-offsets", "readers", "--topic", "read", "--from", "beginning")
        assert (refused.status, refused.err.count("\n")) == (1, 1)
        assert "stop the group's members" in refused.err
    finally:
        client.close()

    assert as_json(run("group", "describe", "readers", "--json"))["members"] == []
    shown = as_json(
        run("group", "reset-offsets", "readers", "--topic", "read", "--from", "5", "--dry-run", "--json")
    )
    assert shown == {"group": "readers", "dry_run": True, "offsets": [{**place, "offset": 5}]}
    assert as_json(run("group", "describe", "readers", "--json"))["offsets"][0]["offset"] == 20
    for where, offset in (("beginning", 0), ("end", 20), ("99", 20), ("7", 7), ("1h", 0)):
        assert run("group", "reset-offsets", "readers", "--topic", "read", "--from", where).status == 0
        (row,) = as_json(run("group", "describe", "readers", "--json"))["offsets"]
        assert (row["offset"], row["lag"]) == (offset, 20 - offset)

    assert run("group", "delete", "readers").out == "deleted: readers\n"
    gone = run("group", "describe", "readers")
    assert (gone.status, gone.out) == (1, "")
    assert gone.err == (
        "strandline: there is no group readers; see the groups there are with `strandline group list`\n"
    )
    assert run("group", "delete", "readers").status == 1


def test_each_member_of_a_group_on_its_way_is_shown_with_its_protocol(run: Run, cluster: RealCluster) -> None:
    run("topic", "create", "moves", "--partitions", "2")
    clients = [consumer(cluster, "moving", **{"client.id": one, "group.protocol": one}) for one in PROTOCOLS]
    try:
        shown: dict[str, str] = {}
        deadline = time.monotonic() + 60
        for client in clients:
            client.subscribe(["moves"])
        while sorted(shown) != sorted(PROTOCOLS):
            assert time.monotonic() < deadline, shown
            for client in clients:
                client.poll(0.2)
            done = run("group", "describe", "moving", "--json")
            members = json.loads(done.out)["members"] if done.status == 0 else []
            shown = {member["client_id"]: member["protocol"] for member in members}
        assert shown == {protocol: protocol for protocol in PROTOCOLS}
        text = run("group", "describe", "moving").out
        assert "protocol consumer, 2 members" in text
        assert "PROTOCOL" in text
    finally:
        for client in clients:
            client.close()


def test_a_broker_that_cannot_say_which_protocol_is_no_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        ends = threading.Thread(target=lambda: server.accept()[0].close())
        ends.start()
        assert member_protocols("127.0.0.1", port, "g") == {}
        ends.join()
    assert member_protocols("127.0.0.1", port, "g") == {}


def test_a_group_that_never_was_can_be_set(run: Run, cluster: RealCluster) -> None:
    run("topic", "create", "later", "--partitions", "3")
    done = run("group", "reset-offsets", "new", "--topic", "later", "--from", "end", "--partition", "1")
    assert done.status == 0, done.err
    (row,) = as_json(run("group", "describe", "new", "--json"))["offsets"]
    assert (row["partition"], row["offset"]) == (1, 0)
    client = consumer(cluster, "new")
    try:
        (committed,) = client.committed([TopicPartition("later", 1)], 10)
        assert committed.offset == 0
    finally:
        client.close()


def test_mistakes_are_told_in_one_line(run: Run) -> None:
    run("topic", "create", "u")
    for arguments, status, words in (
        (("describe", "nothing"), 1, "strandline group list"),
        (("reset-offsets", "g", "--topic", "no-such", "--from", "end"), 1, "no-such"),
        (("reset-offsets", "g", "--topic", "no-such", "--from", "there"), 2, "not a place in a topic"),
        (("reset-offsets", "g", "--topic", "no-such"), 2, "--from"),
        (
            ("reset-offsets", "g", "--topic", "u", "--from", "end", "--partition", "9"),
            2,
            "there is no u-9",
        ),
    ):
        done = run("group", *arguments)
        assert (done.status, done.out) == (status, "")
        assert done.err.count("\n") == 1
        assert words in done.err
