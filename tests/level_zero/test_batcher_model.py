"""The batcher beside a plain model of its rule, under random arrivals, completions, failures and pauses."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from strandline.node.level_zero.batcher import Batcher, Result, Stored
from strandline.node.level_zero.batcher_config import BatcherConfig
from strandline.node.objectstore.store import OutcomeUnknown
from strandline.node.refusal import Reason, Refusal
from tests.level_zero.samples import TOPIC, started
from tests.objectstore.hand_store import HandStore, Put
from tests.simulation.world import World

TARGET, LINGER, UPLOADS, BOUND = 1000, 0.02, 3, 4000
CONFIG = BatcherConfig(
    target_bytes=TARGET,
    max_object_bytes=BOUND,
    linger_seconds=LINGER,
    max_uploads=UPLOADS,
    max_staged_bytes=BOUND,
)


@dataclass
class Model:
    """What the rule says, as simply as it can be said: batches are (number, size, time staged)."""

    gathered: list[tuple[int, int, float]] = field(default_factory=list)
    under_way: list[list[int]] = field(default_factory=list)
    begun: list[list[int]] = field(default_factory=list)
    sizes: dict[int, int] = field(default_factory=dict)

    def staged_bytes(self) -> int:
        waiting = [number for number, _, _ in self.gathered]
        return sum(self.sizes[n] for n in [*waiting, *(n for upload in self.under_way for n in upload)])

    def leave(self) -> None:
        taken: list[int] = []
        size = 0
        while self.gathered and (not taken or size + self.gathered[0][1] <= TARGET):
            number, more, _ = self.gathered.pop(0)
            taken.append(number)
            size += more
        self.under_way.append(taken)
        self.begun.append(taken)

    def settle(self, now: float) -> None:
        """Whatever may leave leaves: nothing is under way, enough is gathered, or it waited long enough."""
        while self.gathered and len(self.under_way) < UPLOADS:
            full = sum(size for _, size, _ in self.gathered) >= TARGET
            lingered = now - self.gathered[0][2] >= LINGER
            if not (full or lingered or not self.under_way):
                return
            self.leave()

    def returned(self, upload: int, now: float) -> list[int]:
        batches = self.under_way.pop(upload)
        if self.gathered:
            self.leave()
        self.settle(now)
        return batches


class BatcherRule(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.world = World(1)
        self.node = started(self.world)
        self.store = HandStore(self.node.loop)
        self.batcher = Batcher(
            self.store,
            CONFIG,
            loop=self.node.loop,
            rng=random.Random(1),
            node=1,
            shard=0,
            epoch=lambda: 1,
        )
        self.model = Model()
        self.futures: list[asyncio.Future[Result]] = []
        self.failed: dict[int, Put] = {}
        self.stored: dict[int, Put] = {}
        self.refused: list[int] = []
        self.ended: list[int] = []

    def turn(self) -> None:
        self.world.run(self.world.now)
        self.model.settle(self.world.now)

    def stage(self, size: int) -> None:
        number = len(self.futures)
        fits = self.model.staged_bytes() + size <= BOUND
        future = self.batcher.stage(TOPIC, number, number.to_bytes(4, "big") + bytes(size - 4))
        future.add_done_callback(lambda _: self.ended.append(number))
        self.futures.append(future)
        if fits:
            self.model.sizes[number] = size
            self.model.gathered.append((number, size, self.world.now))
        else:
            self.refused.append(number)
        if self.model.under_way:
            self.model.settle(self.world.now)

    @rule(sizes=st.lists(st.integers(4, 1200), min_size=1, max_size=6))
    def stage_in_one_turn(self, sizes: list[int]) -> None:
        for size in sizes:
            self.stage(size)
        self.turn()

    @precondition(lambda self: self.model.under_way)
    @rule(data=st.data(), ok=st.booleans())
    def an_upload_returns(self, data: st.DataObject, ok: bool) -> None:
        chosen = data.draw(st.integers(0, len(self.model.under_way) - 1))
        put = self.store.under_way[chosen]
        before = len(self.ended)
        if ok:
            put.succeed()
        else:
            put.fail(OutcomeUnknown("put", put.name, "no answer"))
        batches = self.model.returned(chosen, self.world.now)
        (self.stored if ok else self.failed).update(dict.fromkeys(batches, put))
        self.turn()
        assert self.ended[before:] == batches, "exactly the upload's batches end, in order"

    @rule(seconds=st.sampled_from([0.001, 0.005, 0.0125, 0.04]))
    def time_passes(self, seconds: float) -> None:
        end = self.world.now + seconds
        while self.model.gathered and (due := self.model.gathered[0][2] + LINGER) <= end:
            if due <= self.world.now:
                break
            self.world.run(due + 1e-9)
            self.model.settle(self.world.now)
        self.world.run(end)
        self.model.settle(self.world.now)

    @invariant()
    def the_same_objects_left(self) -> None:
        begun = [[section.partition for section in put.footer.sections] for put in self.store.begun]
        assert begun == self.model.begun
        assert self.batcher.uploads == len(self.model.under_way) <= UPLOADS
        assert self.batcher.gathered_bytes == sum(size for _, size, _ in self.model.gathered)
        assert self.batcher.staged_bytes == self.model.staged_bytes() <= BOUND

    @invariant()
    def batches_know_what_became_of_them(self) -> None:
        for number, future in enumerate(self.futures):
            if number in self.stored:
                result = future.result()
                assert isinstance(result, Stored)
                data = self.stored[number].data[result.position : result.position + result.length]
                assert data == number.to_bytes(4, "big") + bytes(self.model.sizes[number] - 4)
            elif number in self.failed:
                assert future.result() == Refusal(
                    Reason.STORAGE_FAILED, f"object {self.failed[number].name}: no answer"
                )
            elif number in self.refused:
                result = future.result()
                assert isinstance(result, Refusal)
                assert result.reason is Reason.NOT_NOW
            else:
                assert not future.done()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.check()
            self.world.close()


TestBatcherRule = BatcherRule.TestCase
TestBatcherRule.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
