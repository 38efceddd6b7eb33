"""One node's way to a store that is far away and behaves as S3 does: its window, and what is sent twice.

The store is 100 ms away. For a while each it is well, eight times as slow, refuses what is above a rate,
loses answers, and is well again. What was called stored must be there, whole, whatever duplicates still come
late; the window keeps its bounds, and opens again. Each rule is taken out once, and the run finds it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import pytest

from strandline.node.level_zero.batcher import Batcher, Result, Stored
from strandline.node.level_zero.batcher_config import BatcherConfig
from strandline.node.level_zero.upload_window import FIRST, UploadWindow
from strandline.node.objectstore.hedging import EARNED, SAVED, Hedging
from strandline.node.objectstore.retries import RetryingStore, RetryPolicy
from strandline.node.objectstore.store import Buffer
from strandline.statemachine.object_names import object_name
from tests.level_zero.samples import TOPIC, record_batch, started
from tests.simulation.store import SimStore
from tests.simulation.world import SimulationFailed, World

CONFIG = BatcherConfig(
    target_bytes=2_000, max_object_bytes=4_000, max_uploads=32, max_upload_bytes=60_000,
    max_staged_bytes=400_000,
)  # fmt: skip
POLICY = RetryPolicy(attempts=4, attempt_seconds=2.0, total_seconds=8.0)
NEEDED = 8
"""Uploads that the load has to have in parallel: a batch of half an object each 5 ms, and 0.1 s for a put."""


@dataclass
class Seen:
    """What a run showed, and what of it was wrong."""

    digest: str = ""
    windows: list[int] = field(default_factory=list)
    """At the end of each phase."""
    hedges: int = 0
    wrong: list[str] = field(default_factory=list)


class FarStore:
    """One run. The phases come one after the other, and each ends with what must hold then."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.seen = Seen()
        self.node = started(self.world)
        self.bucket = SimStore(self.world)
        self.bucket.delay_seconds = (0.03, 0.07)
        self.bucket.tail, self.bucket.tail_seconds = 0.03, 1.0
        self.hedging = Hedging(loop=self.node.loop, puts=True)
        self.store = RetryingStore(
            self.bucket.client(self.node), POLICY,
            loop=self.node.loop, rng=self.node.rng("retries"), hedging=self.hedging,
        )  # fmt: skip
        self.batcher = Batcher(
            self.store, CONFIG,
            loop=self.node.loop, rng=random.Random(seed), node=1, shard=0, epoch=lambda: 1,
        )  # fmt: skip
        self.store.on_put = self.batcher.window.heard
        self.chance = self.world.rng("arrivals")
        self.staged: list[tuple[bytes, asyncio.Future[Result]]] = []
        self.reads: list[asyncio.Task[Buffer]] = []

    def load(self, seconds: float) -> None:
        """Batches at a rate that needs `NEEDED` uploads in parallel, and a read now and then."""
        end = self.world.now + seconds
        while self.world.now < end:
            batch = record_batch(self.chance.randbytes(850) + b"%d" % len(self.staged))
            future = self.batcher.stage(TOPIC, len(self.staged) % 3, batch)
            self.staged.append((batch, future))
            if self.chance.random() < 0.2:
                self.read(self.chance.choice(self.staged)[1])
            self.world.run(self.world.now + 0.01 * self.chance.random())
            self.hold("uploads within the window", self.batcher.uploads <= CONFIG.max_uploads)

    def read(self, future: asyncio.Future[Result]) -> None:
        if future.done() and isinstance(stored := future.result(), Stored):
            name = object_name(stored.epoch, stored.object_id)
            get = self.store.get_range(name, stored.position, stored.length)
            self.reads.append(self.node.loop.create_task(get))

    def hold(self, rule: str, holds: bool) -> None:
        if not holds and rule not in self.seen.wrong:
            self.seen.wrong.append(rule)

    def phase(self, seconds: float) -> int:
        """Load for so long; the hedges in it."""
        before, requests = sum(self.hedging.sent.values()), sum(self.store.requests.values())
        self.load(seconds)
        self.seen.windows.append(int(self.batcher.window.size))
        hedges = sum(self.hedging.sent.values()) - before
        sent = sum(self.store.requests.values()) - requests
        self.hold("one request of twenty is sent twice", hedges <= EARNED * sent + SAVED)
        return hedges

    def run(self) -> Seen:
        bucket, seen = self.bucket, self.seen
        self.phase(8.0)
        self.hold("the window opens", seen.windows[-1] >= NEEDED)
        self.hold("slow ones are sent twice", self.hedging.sent["get_range"] + self.hedging.sent["put"] > 0)
        bucket.slow = 8.0
        self.phase(15.0)
        self.hold("a slow store keeps its first uploads", seen.windows[-1] >= FIRST)
        bucket.slow, bucket.most_per_second, bucket.tail = 1.0, 20.0, 0.3
        self.phase(3.0)
        self.hold("a store that refuses is left alone", self.phase(4.0) == 0)
        closed = self.batcher.window.closed_by_failures
        self.hold("a refusal closes the window", closed > 0 and seen.windows[-1] < NEEDED)
        bucket.most_per_second, bucket.tail = float("inf"), 0.03
        bucket.lost, bucket.late_puts, bucket.silent = 0.05, 0.05, 0.02
        self.phase(8.0)
        bucket.lost = bucket.late_puts = bucket.silent = 0.0
        self.phase(15.0)
        self.hold("the window opens again", seen.windows[-1] >= NEEDED)
        bucket.land_within(5.0)
        self.world.run(self.world.now + 20.0)
        self._look_back()
        seen.hedges = sum(self.hedging.sent.values())
        seen.digest = self.world.digest()
        return seen

    def _look_back(self) -> None:
        stored = 0
        for batch, future in self.staged:
            if future.done() and isinstance(result := future.result(), Stored):
                data = self.bucket.objects[object_name(result.epoch, result.object_id)]
                stored += 1
                self.hold(
                    "what is stored is whole",
                    data[result.position : result.position + result.length] == batch,
                )
        self.hold("most is stored", stored > len(self.staged) / 4)
        self.hold("reads of the first phase succeed", all(not one.exception() for one in self.reads[:50]))
        self.hold("nothing is left", self.batcher.uploads == self.batcher.staged_bytes == 0)
        try:
            self.world.check()
        except SimulationFailed as error:
            self.hold("no object is overwritten", "overwritten" not in str(error))
            self.world.failures.clear()


def go(seed: int) -> Seen:
    far = FarStore(seed)
    with far.world:
        return far.run()


@pytest.mark.parametrize("seed", range(2))
def test_a_store_far_away_that_is_slow_refuses_and_loses_answers(seed: int) -> None:
    seen = go(seed)
    assert seen.wrong == []
    assert seed or go(seed) == seen, "the same seed gives the same run"


async def _latest_bytes(self: RetryingStore, key: str, parts: Sequence[Buffer]) -> None:
    """As RetryingStore.put, but what is sent again are the bytes of the latest put."""
    _latest[:] = parts
    sent: list[str] = []

    async def send() -> None:
        sent.append(key)
        await self._store.put(key, parts if len(sent) == 1 else list(_latest))

    await self._retry("put", key, send, sum(map(len, parts)))


_latest: list[Buffer] = []


def _never_again(self: UploadWindow) -> None:
    """As UploadWindow._open, but a window that a failure has closed stays as it is."""
    if not self.closed_by_failures:
        _open(self)


_open = UploadWindow._open


def _hears_no_failure(self: UploadWindow, size: int, began: float, error: Any) -> None:
    if error is None:
        _heard(self, size, began, None)


_heard = UploadWindow.heard

SABOTAGES: dict[str, tuple[Callable[[], AbstractContextManager[Any]], str]] = {
    "hedge-of-other-bytes": (lambda: patch.object(RetryingStore, "put", _latest_bytes), "overwritten"),
    "window-stays-closed": (
        lambda: patch.object(UploadWindow, "_open", _never_again), "the window opens again",
    ),
    "window-without-bound": (
        lambda: patch.object(UploadWindow, "has_room", lambda *_: True), "uploads within the window",
    ),
    "window-deaf-to-failures": (
        lambda: patch.object(UploadWindow, "heard", _hears_no_failure), "a refusal closes the window",
    ),
    "hedges-without-pause": (lambda: patch.object(Hedging, "pause", lambda _: None), "a store that refuses"),
    "hedges-without-bound": (lambda: patch.object(Hedging, "_may", lambda _: True), "one request of twenty"),
}  # fmt: skip
"""Rules taken out, and the words of what the run finds then."""


@pytest.mark.parametrize("name", SABOTAGES)
def test_the_run_finds(name: str) -> None:
    hole, words = SABOTAGES[name]
    with hole():
        wrong = go(1).wrong
    assert [one for one in wrong if words in one], wrong
