"""Epochs on real processes: uploads that end late, epochs that move fast, a leader lost between two windows.

The cluster epoch advances every 30 ms, and the object store's requests go through a proxy that holds up those
a test names. Named after the integration tests of the published design of epoch windows.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, Producer

from strandline.cluster.admin_client import AdminClient
from strandline.cluster.kafka_client import client_config
from strandline.statemachine.object_names import PREFIX
from tests.programs.failover.cluster.load import Load, value_of
from tests.programs.failover.cluster.nodes import PARTITIONS, TOPIC, Nodes
from tests.programs.failover.cluster.reading import compare, read_all
from tests.programs.failover.cluster.store_proxy import StoreProxy
from tests.programs.failover.cluster.stores import S3Storage

pytestmark = [pytest.mark.s3, pytest.mark.timeout(240)]

EPOCH_SECONDS = 0.03
SECONDS = 30.0
PARTITION = 0


class Bench:
    """The cluster of this module, and its leader of partition 0 as its HTTP API tells."""

    def __init__(self, nodes: Nodes, proxy: StoreProxy) -> None:
        self.nodes = nodes
        self.proxy = proxy
        self._numbers = itertools.count(100)

    def senders(self) -> tuple[Sender, Sender]:
        """Two producers whose records differ from all others of this module."""
        bootstrap = self.nodes.bootstrap
        return Sender(bootstrap, next(self._numbers)), Sender(bootstrap, next(self._numbers))

    async def leader(self, term: int = 0) -> Mapping[str, Any]:
        """The row of the replica that leads, in a term after this one; waits until there is one."""

        async def leading() -> list[Mapping[str, Any]]:
            rows = await self.nodes.partitions()
            return [row for row in rows if row["partition"] == PARTITION and row["leads"]]

        def good(rows: list[Mapping[str, Any]]) -> bool:
            return any(row["leader_epoch"] > term for row in rows)

        rows = await until_async(leading, good)
        return max(rows, key=lambda row: int(row["leader_epoch"]))

    async def epoch(self, node: int) -> int:
        answer = await asyncio.to_thread(
            AdminClient(self.nodes.ids[node].admin).request, "GET", "/api/cluster"
        )
        return int(answer.body["cluster_epoch"])

    async def epoch_above(self, node: int, epoch: int) -> None:
        await until_async(lambda: self.epoch(node), lambda now: now > epoch)

    def hold_next_upload(self) -> None:
        """The next batches to be uploaded wait on their way, and only these."""
        left = [1]

        def rule(line: str) -> bool:
            return bool(left) and is_upload(line) and left.pop() == 1

        self.proxy.hold = rule

    async def held_epoch(self) -> int:
        """The epoch in the name of the object whose upload waits."""
        await until(lambda: bool(self.proxy.held))
        (line,) = self.proxy.held
        return int(line.split(f"/{PREFIX}")[1].split("/")[1])


def is_upload(line: str) -> bool:
    return line.startswith("PUT ") and f"/{PREFIX}" in line


class Sender:
    """A producer with one record under way at a time, most often."""

    def __init__(self, bootstrap: str, number: int) -> None:
        self.offsets: list[int] = []
        self.errors: list[KafkaError] = []
        self._number = number
        self._sent = 0
        self._producer = Producer(client_config(bootstrap, enable_idempotence=True, acks="all", linger_ms=0))

    def send(self) -> None:
        self._producer.produce(
            TOPIC, value_of(self._number, self._sent), partition=PARTITION, on_delivery=self._delivered
        )
        self._sent += 1

    async def acknowledged(self) -> None:
        """Wait until all that was sent is."""
        left = await asyncio.to_thread(self._producer.flush, SECONDS)
        assert not left
        assert not self.errors
        assert len(self.offsets) == self._sent

    def waiting(self) -> int:
        self._producer.poll(0)
        return len(self._producer)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(error)
            return
        offset = message.offset()
        assert offset is not None
        self.offsets.append(offset)


async def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not done():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def until_async(ask: Callable[[], Any], good: Callable[[Any], bool]) -> Any:
    deadline = time.monotonic() + SECONDS
    while not good(told := await ask()):
        assert time.monotonic() < deadline, told
        await asyncio.sleep(0.02)
    return told


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def bench(runner: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("epochs")
    storage = runner.run(S3Storage.start(random.Random(1), folder / "s3.log"))
    nodes = Nodes(folder / "cluster", storage, small_disk=False)

    async def start() -> None:
        for node in nodes.ids.values():
            # A batch in the log itself is not uploaded, and has no epoch.
            node.config.write_text(f"{node.config.read_text()}\n[inline]\nmax_batch_bytes = 0\n")
        await nodes.up(EPOCH_SECONDS)
        await nodes.create_topic()

    try:
        runner.run(start())
        assert storage.proxy is not None
        yield Bench(nodes, storage.proxy)
    finally:
        runner.run(nodes.close(None))
        runner.run(storage.close(None))


def test_mixed_epochs_the_slow_upload_of_an_old_epoch_still_succeeds(
    bench: Bench, runner: asyncio.Runner
) -> None:
    async def check() -> None:
        slow, fast = bench.senders()
        fast.send()
        await fast.acknowledged()
        before = await bench.leader()
        bench.hold_next_upload()
        slow.send()
        old = await bench.held_epoch()
        await bench.epoch_above(before["node"], old)
        fast.send()
        await fast.acknowledged()
        window = (await bench.leader())["window"]
        assert window["oldest"] <= old < window["newest"]
        assert slow.waiting() == 1
        bench.proxy.release()
        await slow.acknowledged()
        after = await bench.leader()
        assert after["node"] == before["node"]
        assert after["fences"]["slides"] > before["fences"]["slides"]
        assert after["fences"]["rejections"] == before["fences"]["rejections"], "it was uploaded once"
        assert slow.offsets == [fast.offsets[1] + 1]

    runner.run(check())


def test_an_upload_that_two_epochs_have_overtaken_is_repeated_and_succeeds(
    bench: Bench, runner: asyncio.Runner
) -> None:
    async def check() -> None:
        slow, fast = bench.senders()
        fast.send()
        await fast.acknowledged()
        before = await bench.leader()
        bench.hold_next_upload()
        slow.send()
        epoch = old = await bench.held_epoch()
        for _ in range(2):
            await bench.epoch_above(before["node"], epoch)
            fast.send()
            await fast.acknowledged()
            epoch = (await bench.leader())["window"]["newest"]
        assert (await bench.leader())["window"]["oldest"] > old
        bench.proxy.release()
        await slow.acknowledged()
        after = await bench.leader()
        assert after["fences"]["rejections"] == before["fences"]["rejections"] + 1
        assert slow.offsets == [fast.offsets[2] + 1]

    runner.run(check())


def test_epochs_that_move_fast_under_load_lose_nothing(bench: Bench, runner: asyncio.Runner) -> None:
    async def check() -> None:
        node = (await bench.leader())["node"]
        first, began = await bench.epoch(node), time.monotonic()
        rejected = sum(row["fences"]["rejections"] for row in await bench.nodes.partitions())
        load = Load(bench.nodes.bootstrap, TOPIC, PARTITIONS, rate=200.0)
        bench.proxy.delays = (0.0, 0.1)
        load.start()
        try:
            for _ in range(5):
                bench.hold_next_upload()
                await asyncio.sleep(0.6)
                bench.proxy.release()
                await asyncio.sleep(0.2)
            moved = (await bench.epoch(node) - first) / (time.monotonic() - began)
            bench.proxy.calm()
            assert await asyncio.to_thread(load.pause) == 0
        finally:
            await asyncio.to_thread(load.stop)
        assert not load.told.errors
        assert load.told.count == sum(load.told.sent.values()) > 500
        # Not 33 on a machine with other things to do, and far above the controller's four ticks a second.
        assert moved > 8
        repeated = sum(row["fences"]["rejections"] for row in await bench.nodes.partitions()) - rejected
        assert repeated > 0
        read = await asyncio.to_thread(read_all, bench.nodes.bootstrap, TOPIC, PARTITIONS, SECONDS)
        compared = compare(load.told, read)
        assert (compared.lost, compared.doubled) == (0, 0)

    runner.run(check())


def test_leader_lost_in_the_middle_of_a_window_transition(bench: Bench, runner: asyncio.Runner) -> None:
    async def check() -> None:
        slow, fast = bench.senders()
        fast.send()
        await fast.acknowledged()
        before = await bench.leader()
        bench.hold_next_upload()
        slow.send()
        old = await bench.held_epoch()
        await bench.epoch_above(before["node"], old)
        fast.send()
        await fast.acknowledged()
        # One batch of the new epoch is there, and one of the old is on its way: now the leader dies.
        slid = (await bench.leader())["window"]
        assert slid["oldest"] <= old < slid["newest"]
        bench.proxy.hold = is_upload
        await bench.nodes.kill(before["node"])
        try:
            # Nothing gets into the new leader yet: its term begins with what was applied, and with nothing of
            # the window of the old one.
            after = await bench.leader(before["leader_epoch"])
            assert after["window"]["term"] == after["leader_epoch"]
            assert (after["window"]["oldest"], after["window"]["newest"]) == (slid["newest"],) * 2
            bench.proxy.release()
            await slow.acknowledged()
            fast.send()
            await fast.acknowledged()
        finally:
            bench.proxy.release()
            await bench.nodes.start(before["node"])
        await bench.nodes.healthy()
        read = await asyncio.to_thread(read_all, bench.nodes.bootstrap, TOPIC, PARTITIONS, SECONDS)
        assert sorted(slow.offsets + fast.offsets) == list(
            range(fast.offsets[0], fast.offsets[0] + len(slow.offsets + fast.offsets))
        )
        assert read.place[PARTITION] == max(slow.offsets + fast.offsets) + 1

    runner.run(check())
