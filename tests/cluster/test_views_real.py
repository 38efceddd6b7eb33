"""Views on three real nodes: right under every kind of change, also through the death of their node."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from math import fsum
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from strandline.cluster.admin_client import AdminClient as NodeClient
from strandline.cluster.admin_client import Unreachable
from tests.cluster.command import Done, strandline
from tests.cluster.real_cluster import RealCluster, running_cluster

TABLES: Final = """
CREATE TABLE sales (id STRING NOT NULL PRIMARY KEY, shop STRING, amount BIGINT, rate DOUBLE)
  OPTIONS (mode 'upsert');
CREATE TABLE shops (shop STRING NOT NULL PRIMARY KEY, city STRING) OPTIONS (mode 'upsert');
"""
TOTALS: Final = """
CREATE VIEW totals OPTIONS (partitions 2) AS
  SELECT shop, count(*) AS n, sum(amount) AS amount, sum(rate) AS rate FROM sales GROUP BY shop;
"""
CITIES: Final = """
CREATE VIEW cities AS
  SELECT city, count(*) AS n, sum(amount) AS amount FROM sales JOIN shops USING (shop) GROUP BY city;
"""
LARGE: Final = """
CREATE VIEW large AS SELECT id, shop, amount FROM sales WHERE amount > 500;
"""
QUIET: Final = {"log_level": 0, "log.connection.close": False}
SHOPS: Final = {f"s{number}": f"city{number % 3}" for number in range(8)}
Sale = dict[str, Any]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RealCluster]:
    with running_cluster(tmp_path / "cluster") as running:
        compacted = {"cleanup.policy": "compact"}
        admin = AdminClient({"bootstrap.servers": running.bootstrap})
        topics = [NewTopic(name, 2, 3, config=compacted) for name in ("sales", "shops")]
        for made in admin.create_topics(topics).values():
            made.result(60)
        yield running
        print(running.logs())


class Writer:
    """Changes sales in transactions, and knows what must come of those that were committed."""

    def __init__(self, cluster: RealCluster) -> None:
        self.sales: dict[str, Sale] = {}
        self._chance = random.Random(17)
        self._producer = Producer(
            {"bootstrap.servers": cluster.bootstrap, "transactional.id": "writer", "linger.ms": 1, **QUIET}
        )
        self._producer.init_transactions(30)

    def shops(self) -> None:
        self._producer.begin_transaction()
        for shop, city in SHOPS.items():
            self._producer.produce("shops", json.dumps({"city": city}), shop)
        self._producer.commit_transaction(30)

    def change(self, count: int, *, commit: bool = True) -> None:
        """Insert, update and delete, in one transaction."""
        sales, chance = dict(self.sales), self._chance
        self._producer.begin_transaction()
        for _ in range(count):
            key = f"k{chance.randrange(200)}"
            if chance.random() < 0.25:
                sales.pop(key, None)
                self._producer.produce("sales", None, key)
                continue
            amount, rate = chance.randrange(-50, 1000), chance.choice([1e15, 0.1, -1e15, 0.25])
            sales[key] = {"shop": chance.choice([*SHOPS]), "amount": amount, "rate": rate}
            self._producer.produce("sales", json.dumps(sales[key]), key)
        if commit:
            self._producer.commit_transaction(30)
            self.sales = sales
        else:
            self._producer.flush(30)
            self._producer.abort_transaction(30)

    def totals(self) -> dict[str, Sale]:
        return _grouped(self.sales, "shop", lambda sale: sale["shop"], rates=True)

    def cities(self) -> dict[str, Sale]:
        return _grouped(self.sales, "city", lambda sale: SHOPS[sale["shop"]], rates=False)


def _grouped(sales: dict[str, Sale], name: str, key: Any, *, rates: bool) -> dict[str, Sale]:
    """The plain recomputation: fsum rounds an exact sum once, as a view does."""
    groups: dict[str, list[Sale]] = {}
    for sale in sales.values():
        groups.setdefault(key(sale), []).append(sale)
    return {
        json.dumps([group]): {
            name: group,
            "n": len(rows),
            "amount": sum(row["amount"] for row in rows),
            **({"rate": fsum(row["rate"] for row in rows)} if rates else {}),
        }
        for group, rows in groups.items()
    }


class Reader:
    """Any Kafka client that reads a view: its table, and whether a change was ever told twice."""

    def __init__(self, cluster: RealCluster, topic: str, partitions: int) -> None:
        self.table: dict[str, Sale] = {}
        self.records = 0
        self.repeated: list[str] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": "reader",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                **QUIET,
            }
        )
        self._consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])

    def close(self) -> None:
        self._consumer.close()

    def read(self, seconds: float = 0.2) -> None:
        for message in self._consumer.consume(10_000, seconds):
            error = message.error()
            if error is not None:
                assert error.retriable() or error.code() == KafkaError._TRANSPORT, error
                continue
            key, value = message.key(), message.value()
            assert isinstance(key, bytes)
            row = None if value is None else json.loads(value)
            if row == self.table.get(key.decode()):
                self.repeated.append(f"{key!r}: {row}")
            if row is None:
                del self.table[key.decode()]
            else:
                self.table[key.decode()] = row
            self.records += 1

    def comes_to(self, table: dict[str, Sale], seconds: float = 40.0) -> None:
        end = time.monotonic() + seconds
        while self.table != table and time.monotonic() < end:
            self.read()
        assert self.table == table
        assert not self.repeated


def running(cluster: RealCluster) -> dict[int, list[dict[str, Any]]]:
    """Versions that run, by node."""
    found = {}
    for node in cluster.description.nodes.values():
        with suppress(Unreachable):
            answer = NodeClient(node.admin).request("GET", "/api/views")
            found[node.node] = answer.body["running"]
    return found


def where(cluster: RealCluster) -> tuple[int, str | None]:
    """The node that runs the live version, and the state that it has stored last."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        for node, versions in running(cluster).items():
            for one in versions:
                if one["live"]:
                    return node, one["status"].get("state")
        time.sleep(0.1)
    raise AssertionError(running(cluster))


def process_of(cluster: RealCluster, *, live: bool) -> int:
    """The process of a version."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        for versions in running(cluster).values():
            for one in versions:
                if one["live"] is live and one["process"]:
                    return int(one["process"])
        time.sleep(0.02)
    raise AssertionError(running(cluster))


def live(cluster: RealCluster, number: int) -> None:
    """Wait until this version of the program is live."""
    end = time.monotonic() + 40
    while time.monotonic() < end:
        for address in cluster.admin:
            with suppress(Unreachable):
                # A node that has just begun may know no program yet.
                for program in NodeClient(address).request("GET", "/api/views").body["programs"]:
                    assert not program["ended"], program
                    if program["live"]["number"] == number:
                        return
        time.sleep(0.1)
    raise AssertionError(running(cluster))


# Eight starts of processes that import polars, one after the other, and a machine may be busy.
@pytest.mark.timeout(300)
def test_a_view_is_right_through_all_changes_and_the_death_of_its_node_and_another_joins_it(
    cluster: RealCluster, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def command(*arguments: str) -> Done:
        return strandline(capfd, monkeypatch, *arguments, "--cluster", str(cluster.folder))

    def apply(text: str, *arguments: str) -> Done:
        file = tmp_path / "shops.sql"
        file.write_text(text)
        return command("view", "apply", str(file), *arguments)

    writer = Writer(cluster)
    writer.shops()
    writer.change(300)
    assert apply(TABLES + TOTALS, "--wait", "30") == (0, "program shops: live\n", "")
    totals = Reader(cluster, "totals", 2)
    totals.comes_to(writer.totals())

    writer.change(100)
    writer.change(100, commit=False)
    writer.change(50)
    totals.comes_to(writer.totals())

    # The process that fills a version goes on as the live one: its cutover begins no process.
    host = where(cluster)[0]
    assert apply(TABLES + TOTALS + LARGE).status == 0
    filling = process_of(cluster, live=False)
    live(cluster, 2)
    writer.change(50)
    totals.comes_to(writer.totals())
    if where(cluster)[0] == host:  # otherwise the leader of the version's group was moved meanwhile
        [one] = running(cluster)[host]
        assert (one["live"], one["process"], one["starts"]) == (True, filling, 1)

    # What follows the stored state is committed, so it is replayed in silence; the rest is not even read.
    # By then no other state is stored for some seconds.
    states = set[str]()
    while len(states) < 3:
        writer.change(5)
        died, state = where(cluster)
        states |= {state} if state else set()
    writer.change(50)
    totals.comes_to(writer.totals())
    writer.change(50)
    cluster.kill(died)
    for _ in range(5):
        writer.change(20)
    totals.comes_to(writer.totals())
    assert where(cluster)[0] != died
    cluster.start(died, wait=False)

    # Another view is filled while this one stays, by processes that die: nothing is seen of it before.
    assert apply(TABLES + TOTALS + CITIES).status == 0
    os.kill(process_of(cluster, live=False), signal.SIGKILL)
    assert "cities" not in command("topic", "list").out
    os.kill(process_of(cluster, live=True), signal.SIGKILL)
    writer.change(50)
    live(cluster, 3)
    writer.change(50)
    cities = Reader(cluster, "cities", 1)
    cities.comes_to(writer.cities())
    totals.comes_to(writer.totals())
    assert command("consume", "cities", "--max", "1").status == 0
    listed = command("topic", "list").out
    assert "cities" in listed
    assert "__view." not in listed
    told = command("view", "show", "shops")
    assert told.out.strip() == (TABLES + TOTALS + CITIES).strip()
    totals.close()
    cities.close()
    assert command("view", "drop", "shops") == (0, "program shops: dropped, with 2 topics\n", "")
