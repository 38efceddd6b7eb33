"""The rule of the epoch window: the published scenarios, the traps in the published sketch, a plain model.

Of the seven traps the first four concern the rule; the other three concern the lock around it.
"""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from strandline.statemachine.partition.epoch_window import (
    EpochStatus,
    EpochWindow,
    StaleClusterEpoch,
    WindowCounters,
)

TERM = 3


def window(oldest: int, newest: int) -> EpochWindow:
    return EpochWindow(TERM, oldest, newest)


def slid(start: EpochWindow, *epochs: int) -> EpochWindow:
    for epoch in epochs:
        start = start.slide(epoch)
    return start


def accepted(tested: EpochWindow, epochs: range) -> list[int]:
    return [epoch for epoch in epochs if tested.classify(epoch) is EpochStatus.IN_WINDOW]


# The published scenarios.


def test_first_epoch_of_all_makes_a_window_of_one() -> None:
    empty = EpochWindow.recovered(TERM, None)
    assert (empty.oldest, empty.newest, empty.size) == (None, None, 0)
    assert empty.classify(0) is EpochStatus.NEW
    assert empty.slide(7) == window(7, 7)
    assert empty.slide(7).size == 1


def test_window_slides_with_each_new_epoch() -> None:
    empty = EpochWindow.recovered(TERM, None)
    assert slid(empty, 5, 6) == window(5, 6)
    assert slid(empty, 5, 6, 7) == window(6, 7)
    assert slid(empty, 5, 6, 7, 8) == window(7, 8)


def test_concurrent_fences_inside_the_window_share_it() -> None:
    for epoch in (6, 7, 7, 6):
        assert window(6, 7).classify(epoch) is EpochStatus.IN_WINDOW


def test_epoch_below_the_window_is_refused_with_the_window() -> None:
    tested = window(6, 8)
    assert tested.classify(5) is EpochStatus.STALE
    refusal = tested.refusal(4)
    assert refusal == StaleClusterEpoch(epoch=4, oldest=6, newest=8)
    assert refusal.gap == 2
    assert str(refusal) == "stale_cluster_epoch: epoch 4 is below the window [6, 8]"


@pytest.mark.parametrize("epoch", [6, 7, 8, 9])
def test_only_an_epoch_below_the_window_has_a_refusal(epoch: int) -> None:
    with pytest.raises(ValueError, match="not below"):
        window(6, 8).refusal(epoch)


def test_epochs_may_skip_and_the_skipped_ones_are_accepted() -> None:
    wide = slid(window(5, 6), 10)
    assert wide == window(6, 10)
    assert wide.size == 5
    assert accepted(wide, range(12)) == [6, 7, 8, 9, 10]
    assert wide.classify(11) is EpochStatus.NEW


def test_the_later_epoch_first_and_then_the_earlier_refuses_the_earlier() -> None:
    assert slid(EpochWindow.recovered(TERM, None), 8).classify(7) is EpochStatus.STALE


def test_recovery_collapses_the_window_to_the_applied_epoch() -> None:
    assert accepted(EpochWindow.recovered(TERM + 1, 6), range(10)) == [6]


@pytest.mark.parametrize("order", list(permutations([7, 8, 9])))
def test_many_advancing_at_once_each_decide_on_the_window_of_their_turn(order: tuple[int, ...]) -> None:
    """All were judged new on the same window and waited; whoever comes after a higher one slides nothing."""
    start = now = window(5, 6)
    assert {start.classify(epoch) for epoch in order} == {EpochStatus.NEW}
    highest = 6
    for epoch in order:
        status = now.classify(epoch)
        assert (status is EpochStatus.NEW) == (epoch > highest)
        if status is EpochStatus.NEW:
            now = now.slide(epoch)
            highest = epoch
        else:
            assert (status is EpochStatus.IN_WINDOW) == (now.oldest is not None and epoch >= now.oldest)
    assert now.newest == 9


@pytest.mark.parametrize(("applied", "accepts"), [(6, [6]), (7, [7])])
def test_leader_change_in_the_middle_of_a_transition_counts_what_was_applied(
    applied: int, accepts: list[int]
) -> None:
    """The old leader had slid from [5, 6] to [6, 7]; whether the entry that says so was committed decides."""
    assert slid(window(5, 6), 7) == window(6, 7)
    assert accepted(EpochWindow.recovered(TERM + 1, applied), range(10)) == accepts


# The traps in the published sketch.


def test_trap_1_after_recovery_the_applied_epoch_itself_is_accepted() -> None:
    recovered = EpochWindow.recovered(TERM, 6)
    assert recovered == window(6, 6)
    assert recovered.classify(6) is EpochStatus.IN_WINDOW
    assert recovered.classify(5) is EpochStatus.STALE


@pytest.mark.parametrize("epoch", [7, 12])
def test_trap_2_after_recovery_the_next_epoch_keeps_the_applied_one(epoch: int) -> None:
    following = EpochWindow.recovered(TERM, 6).slide(epoch)
    assert following == window(6, epoch)
    assert following.classify(6) is EpochStatus.IN_WINDOW


def test_trap_3_a_window_belongs_to_its_term_even_on_the_same_node() -> None:
    earlier = slid(EpochWindow.recovered(TERM, 5), 6, 9)
    again = EpochWindow.recovered(TERM + 2, 5)
    assert earlier.classify(6) is EpochStatus.IN_WINDOW
    assert (again.term, again.oldest, again.newest) == (TERM + 2, 5, 5)
    assert again.classify(6) is EpochStatus.NEW
    assert again != EpochWindow.recovered(TERM, 5)
    assert earlier.slide(10).term == TERM


def test_trap_4_an_epoch_that_came_to_lie_inside_while_waiting_is_accepted() -> None:
    before = window(5, 6)
    assert before.classify(8) is EpochStatus.NEW
    after = before.slide(10)
    assert after.classify(8) is EpochStatus.IN_WINDOW
    with pytest.raises(ValueError, match="not above"):
        after.slide(8)


def test_sliding_twice_to_one_epoch_is_refused_because_it_would_shut_out_the_older_half() -> None:
    once = window(5, 6).slide(7)
    with pytest.raises(ValueError, match="not above"):
        once.slide(7)
    assert once.classify(6) is EpochStatus.IN_WINDOW


@pytest.mark.parametrize(("oldest", "newest"), [(7, 6), (-1, 3), (None, 3), (3, None)])
def test_what_is_no_window_cannot_be_made(oldest: int | None, newest: int | None) -> None:
    with pytest.raises(ValueError, match="a window"):
        EpochWindow(TERM, oldest, newest)


def test_counters_tell_slides_fences_and_refusals_apart() -> None:
    counters = WindowCounters()
    counters.slid()
    counters.slid()
    counters.granted(EpochStatus.NEW)
    for _ in range(3):
        counters.granted(EpochStatus.IN_WINDOW)
    counters.rejected(window(6, 8).refusal(1))
    counters.rejected(window(6, 8).refusal(4))
    assert counters == WindowCounters(
        slides=2, new_epoch_fences=1, same_epoch_fences=3, rejections=2, last_gap=2
    )


class WindowAgainstPlainModel(RuleBasedStateMachine):
    """The model is the list of new epochs a term has seen, begun by the applied one: the window is from the
    last but one to the last."""

    @initialize(applied=st.none() | st.integers(0, 20))
    def recover(self, applied: int | None) -> None:
        self.term = 1
        self.seen = [] if applied is None else [applied]
        self.tested = EpochWindow.recovered(1, applied)

    @rule(epoch=st.integers(0, 40))
    def absolute_request(self, epoch: int) -> None:
        self.request(epoch)

    @rule(distance=st.integers(-4, 4))
    def near_request(self, distance: int) -> None:
        self.request(max(0, (self.seen[-1] if self.seen else 5) + distance))

    def request(self, epoch: int) -> None:
        before = self.tested
        status = before.classify(epoch)
        if not self.seen or epoch > self.seen[-1]:
            assert status is EpochStatus.NEW
            self.tested = before.slide(epoch)
            self.seen.append(epoch)
            assert before.newest is None or before.newest == self.tested.oldest
        elif epoch >= self.seen[-2:][0]:
            assert status is EpochStatus.IN_WINDOW
        else:
            assert status is EpochStatus.STALE
            assert before.refusal(epoch).gap == self.seen[-2:][0] - epoch

    @rule(back=st.integers(0, 3))
    def lead_another_term(self, back: int) -> None:
        """Anything from the term's start on may be what was applied when the leader changed."""
        if self.seen:
            applied = self.seen[max(0, len(self.seen) - 1 - back)]
            self.term += 1
            self.seen = [applied]
            self.tested = EpochWindow.recovered(self.term, applied)

    @invariant()
    def is_the_last_two(self) -> None:
        assert self.tested.term == self.term
        ends = self.seen[-2:]
        expected = (ends[0], ends[-1]) if ends else (None, None)
        assert (self.tested.oldest, self.tested.newest) == expected
        assert self.tested.size == (ends[-1] - ends[0] + 1 if ends else 0)


TestWindowAgainstPlainModel = WindowAgainstPlainModel.TestCase
TestWindowAgainstPlainModel.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
