"""The fence beside a plain model, under random requests, releases, cancellations and changes of term."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from strandline.node.partition.fence import Fence, Grant, Permit
from strandline.node.refusal import Refusal
from strandline.statemachine.partition.epoch_window import EpochWindow, StaleClusterEpoch
from tests.partition import fence_sabotages
from tests.runtime.manual_loop import manual_loop

HELD, STALE, CLOSED, CANCELLED = "held", "stale", "closed", "cancelled"


@dataclass
class Model:
    """What the rule says: requests by number, those that wait in order, permits, how all ended."""

    window: list[int] = field(default_factory=list)
    """The last two new epochs; empty while closed."""
    waiting: list[tuple[int, int]] = field(default_factory=list)
    holding: list[int] = field(default_factory=list)
    ended: dict[int, str] = field(default_factory=dict)

    def ask(self, number: int, epoch: int) -> None:
        if not self.window:
            self.ended[number] = CLOSED
        elif epoch < self.window[0]:
            self.ended[number] = STALE
        else:
            self.waiting.append((number, epoch))
            if len(self.waiting) == 1:
                self.serve()

    def serve(self) -> None:
        while self.waiting:
            number, epoch = self.waiting[0]
            if epoch > self.window[-1] and self.holding:
                return
            self.waiting.pop(0)
            if epoch > self.window[-1]:
                self.window = [self.window[-1], epoch]
            if epoch < self.window[0]:
                self.ended[number] = STALE
            else:
                self.holding.append(number)
                self.ended[number] = HELD

    def gone(self, number: int) -> None:
        """Released, or cancelled while it waited."""
        if number in self.holding:
            self.holding.remove(number)
        self.waiting = [asked for asked in self.waiting if asked[0] != number]
        self.serve()

    def close(self) -> None:
        self.ended.update({number: CLOSED for number, _ in self.waiting})
        self.window, self.waiting, self.holding = [], [], []


def someone_waits(rule: FenceRule) -> bool:
    return bool(rule.model.waiting)


def someone_holds(rule: FenceRule) -> bool:
    return bool(rule.held())


class FenceRule(RuleBasedStateMachine):
    fence_class: type[Fence] = Fence

    @initialize(applied=st.integers(3, 6))
    def start(self, applied: int) -> None:
        self.loop = manual_loop()
        self.fence = self.fence_class(self.loop)
        self.model = Model()
        self.tasks: dict[int, asyncio.Task[Grant]] = {}
        self.released: set[int] = set()
        self.term = 0
        self.lead(applied)

    def lead(self, applied: int) -> None:
        self.term += 1
        self.fence.open(EpochWindow.recovered(self.term, applied))
        self.model.window = [applied]
        self.newest = applied

    @rule(distance=st.integers(-3, 3), at_once=st.booleans())
    def request(self, distance: int, at_once: bool) -> None:
        epoch = max(0, self.newest + distance)
        number = len(self.tasks)
        if at_once:
            # As `acquire`, but for a request that does not want to wait.
            granted = self.fence.try_acquire(epoch)
            if granted is None:
                assert self.model.waiting or (epoch > self.model.window[-1] and self.model.holding)
                return

            async def known() -> Grant:
                return granted

            self.tasks[number] = asyncio.Task(known(), loop=self.loop)
        else:
            self.tasks[number] = asyncio.Task(self.fence.acquire(epoch), loop=self.loop)
        self.loop.run()
        self.model.ask(number, epoch)

    def held(self) -> list[int]:
        """Permits that are out, those of earlier terms among them."""
        return [
            number
            for number, task in self.tasks.items()
            if number not in self.released
            and task.done()
            and not task.cancelled()
            and isinstance(task.result(), Permit)
        ]

    @precondition(someone_holds)
    @rule(data=st.data(), cancel=st.booleans())
    def release(self, data: st.DataObject, cancel: bool) -> None:
        """Also: one that waits is cancelled in the very turn in which the release may have granted it."""
        number = data.draw(st.sampled_from(self.held()))
        permit = self.tasks[number].result()
        assert isinstance(permit, Permit)
        permit.release()
        self.released.add(number)
        victims = [asked for asked, _ in self.model.waiting]
        self.model.gone(number)
        if cancel and victims:
            victim = data.draw(st.sampled_from(victims))
            self.cancel_now(victim)
        self.loop.run()

    @precondition(someone_waits)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.cancel_now(data.draw(st.sampled_from([number for number, _ in self.model.waiting])))
        self.loop.run()

    def cancel_now(self, number: int) -> None:
        self.tasks[number].cancel()
        self.model.gone(number)
        self.model.ended[number] = CANCELLED

    @rule(back=st.integers(0, 2), cancel=st.booleans(), data=st.data())
    def change_term(self, back: int, cancel: bool, data: st.DataObject) -> None:
        victims = [number for number, _ in self.model.waiting]
        self.fence.close("lost")
        self.model.close()
        if cancel and victims:
            victim = data.draw(st.sampled_from(victims))
            self.tasks[victim].cancel()
            self.model.ended[victim] = CANCELLED
        self.lead(max(0, self.newest - back))
        self.loop.run()

    @invariant()
    def as_the_model_says(self) -> None:
        window = self.fence.window
        assert window is not None
        assert (window.term, window.oldest, window.newest) == (
            self.term,
            self.model.window[0],
            self.model.window[-1],
        )
        self.newest = self.model.window[-1]
        assert self.fence.permits == len(self.model.holding)
        assert self.fence.waiting == len(self.model.waiting)
        for number, task in self.tasks.items():
            expected = self.model.ended.get(number)
            assert task.done() == (expected is not None), number
            if expected == CANCELLED:
                assert task.cancelled()
            elif expected is not None:
                kind = {HELD: Permit, STALE: StaleClusterEpoch, CLOSED: Refusal}[expected]
                assert isinstance(task.result(), kind), number

    @invariant()
    def all_who_hold_have_the_present_window(self) -> None:
        for number in self.model.holding:
            permit = self.tasks[number].result()
            assert isinstance(permit, Permit)
            assert permit.window == self.fence.window

    def teardown(self) -> None:
        if hasattr(self, "fence"):
            self.fence.close("end")
            self.loop.run()


TestFenceRule = FenceRule.TestCase
TestFenceRule.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


# The model can fail.


def model_passes(tested: type[Fence]) -> bool:
    rule = type("Sabotaged", (FenceRule,), {"fence_class": tested})
    quick = settings(
        max_examples=300, stateful_step_count=20, deadline=None, database=None, derandomize=True,
        phases=[Phase.generate], print_blob=False,
    )  # fmt: skip
    try:
        run_state_machine_as_test(rule, settings=quick)
    except (Exception, ExceptionGroup):
        return False
    return True


@pytest.mark.parametrize("name", sorted(fence_sabotages.FENCE))
def test_the_model_finds(name: str) -> None:
    with fence_sabotages.FENCE[name]:
        assert not model_passes(Fence)


@pytest.mark.parametrize("name", sorted(fence_sabotages.FENCE_CLASSES))
def test_the_model_finds_a_fence_that(name: str) -> None:
    assert not model_passes(fence_sabotages.FENCE_CLASSES[name])
