"""Kafka Streams, exactly once: a node killed, the application killed, and its state restored from nothing."""

from __future__ import annotations

import random
import subprocess
import threading
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.clients.programs import STREAMS, Missing
from tests.cluster.real_cluster import RealCluster
from tests.ecosystem.compacting import TOPIC_SETTINGS, leader_of, wait_compacted
from tests.ecosystem.reading import Record, read_until

PARTITIONS: Final = 2
_WAIT_SECONDS: Final = 60.0


class Application:
    """One instance of tests/clients/streams/Totals.java with its own state folder."""

    def __init__(self, command: list[str], state: Path) -> None:
        self.lines: list[str] = []
        self._said = threading.Condition()
        with state.with_suffix(".log").open("wb") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.log = state.with_suffix(".log")

    def wait_for(self, holds: Callable[[list[str]], bool]) -> None:
        """Until what it has printed is so; fails with its log otherwise."""
        with self._said:
            told = self._said.wait_for(lambda: holds(self.lines), _WAIT_SECONDS)
        assert told, f"{self.lines}\n{self.log.read_text(errors='replace')[-3000:]}"

    def restored(self, store: str) -> int:
        """Records that this store was made of when the instance started."""
        told = [line.split() for line in self.lines if line.startswith(f"restored {store} ")]
        return sum(int(words[3]) for words in told)

    def close(self) -> int:
        """Have it end well; its exit status."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._process.wait(_WAIT_SECONDS)

    def kill(self) -> None:
        """SIGKILL, also where it has ended."""
        self._process.kill()
        self._process.wait(_WAIT_SECONDS)
        self._reader.join(_WAIT_SECONDS)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._said:
                self.lines.append(line.strip())
                self._said.notify_all()


class Accounts:
    """The input, and a model of what becomes of it."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 2}
        )
        self._topic = topic
        self._rng = random.Random(11)
        self.amounts: dict[str, list[int]] = defaultdict(list)
        """Of each account in their order."""
        self.written = 0

    def write(self, count: int) -> None:
        """Write more records, all acknowledged when it returns."""
        for _ in range(count):
            account, amount = f"a{self._rng.randrange(30)}", self._rng.randrange(10)
            self._producer.produce(self._topic, key=account, value=str(amount))
            self.amounts[account].append(amount)
        assert self._producer.flush(_WAIT_SECONDS) == 0
        self.written += count

    def groups(self) -> dict[str, list[int]]:
        """Amounts of each group, sorted: accounts' records reach it in no order of their own."""
        found: dict[str, list[int]] = defaultdict(list)
        for account, amounts in self.amounts.items():
            found[f"group-{int(account[1:]) % 5}"] += amounts
        return {group: sorted(amounts) for group, amounts in found.items()}


@pytest.fixture
def start(cluster: RealCluster, tmp_path: Path) -> Iterator[Callable[[str, list[str]], Application]]:
    """Starts an instance: the state folder's name, and the arguments behind it."""
    started: list[Application] = []
    try:
        command = STREAMS.command()
    except Missing as error:
        pytest.skip(str(error))

    def run(state: str, topics: list[str]) -> Application:
        settings = ",".join(f"{name}={value}" for name, value in TOPIC_SETTINGS.items())
        application, *names = topics
        arguments = [cluster.bootstrap, application, str(tmp_path / state), *names, settings]
        started.append(Application([*command, *arguments], tmp_path / state))
        return started[-1]

    yield run
    for one in started:
        one.kill()


def by_key(records: list[Record]) -> dict[str, list[str | None]]:
    """The values of each key in their order; a key's records are in one partition."""
    found: dict[str, list[str | None]] = defaultdict(list)
    for record in sorted(records):
        assert record.key is not None
        found[record.key].append(record.value)
    return found


def test_totals_are_those_of_a_model(
    cluster: RealCluster, start: Callable[[str, list[str]], Application]
) -> None:
    mark = uuid.uuid4().hex[:8]
    application, source, totals, newest = (f"{what}-{mark}" for what in ("app", "in", "totals", "newest"))
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for made in admin.create_topics(
        [NewTopic(one, PARTITIONS, 3) for one in (source, totals, newest)]
    ).values():
        made.result(60)
    accounts = Accounts(cluster.bootstrap, source)

    def reached(topic: str) -> list[Record]:
        got = read_until(
            cluster.bootstrap, topic, PARTITIONS, lambda records: len(records) >= accounts.written
        )
        assert len(got) == accounts.written, f"{topic}: {len(got)} committed updates of {accounts.written}"
        return got

    first = start("state-1", [application, source, totals, newest])
    accounts.write(400)
    first.wait_for(lambda lines: "state RUNNING" in lines)
    reached(totals)
    changelog = f"{application}-totals-changelog"
    killed = leader_of(cluster, changelog)
    accounts.write(200)
    cluster.kill(killed)
    accounts.write(200)
    reached(totals)
    cluster.start(killed)
    wait_compacted(cluster, changelog, PARTITIONS, accounts.written)
    accounts.write(200)
    first.kill()
    before = accounts.written

    second = start("state-2", [application, source, totals, newest])
    accounts.write(200)
    updates = by_key(reached(totals))
    kept = by_key(reached(newest))
    assert 0 < second.restored("totals") < before
    assert second.restored("newest") > 0
    assert second.close() == 0

    # Each group's totals grow by each of its amounts, once.
    steps = {
        group: sorted(
            int(now or 0) - int(before or 0) for before, now in zip([None, *values], values, strict=False)
        )
        for group, values in updates.items()
    }
    assert steps == accounts.groups()
    assert kept == {
        account: [str(amount) if amount else None for amount in amounts]
        for account, amounts in accounts.amounts.items()
    }
    described = admin.list_topics(timeout=20).topics
    assert {changelog, f"{application}-newest-changelog", f"{application}-by-group-repartition"} <= set(
        described
    )
