"""The lock around the epoch window: the published scenarios, the traps, and that it gives everything back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from itertools import permutations

import pytest

from strandline.node.partition.fence import Permit
from strandline.node.refusal import Reason, Refusal
from strandline.statemachine.partition.epoch_window import EpochWindow, StaleClusterEpoch, WindowCounters
from tests.partition.fences import TERM, Bench, granted


@pytest.fixture(autouse=True)
def _end() -> Iterator[None]:
    yield
    Bench.end_all()


# The published scenarios.


def test_window_slides_with_each_new_epoch() -> None:
    bench = Bench(5)
    bench.slide(6)
    assert bench.ends == (5, 6)
    bench.slide(7)
    assert bench.ends == (6, 7)
    bench.slide(8)
    assert bench.ends == (7, 8)


def test_concurrent_fences_inside_the_window_share_it() -> None:
    bench = Bench(5)
    bench.slide(6)
    permits = [bench.permit(epoch) for epoch in (5, 6, 6, 5)]
    assert bench.fence.permits == 4
    assert {(permit.window.oldest, permit.window.newest, permit.window.term) for permit in permits} == {
        (5, 6, TERM)
    }
    bench.release(*permits)
    assert bench.fence.permits == 0


def test_epoch_below_the_window_is_refused_with_the_window() -> None:
    bench = Bench(5)
    bench.slide(6, 8)
    assert bench.fence.try_acquire(5) == StaleClusterEpoch(5, 6, 8)
    assert bench.ask(4).result() == StaleClusterEpoch(4, 6, 8)
    assert bench.fence.permits == 0


def test_epochs_may_skip_and_the_skipped_ones_are_accepted() -> None:
    bench = Bench(5)
    bench.slide(6, 10)
    assert bench.ends == (6, 10)
    bench.release(*(bench.permit(epoch) for epoch in (7, 8, 9)))


def test_the_later_epoch_first_and_then_the_earlier_refuses_the_earlier() -> None:
    bench = Bench(5)
    bench.slide(7, 8)
    assert isinstance(bench.fence.try_acquire(6), StaleClusterEpoch)


def test_recovery_collapses_to_the_applied_epoch() -> None:
    bench = Bench(5)
    bench.slide(6, 9)
    bench.fence.close("lost")
    bench.fence.open(EpochWindow.recovered(TERM + 2, 6))
    assert bench.ends == (6, 6)


@pytest.mark.parametrize("order", list(permutations([7, 8, 9])))
def test_many_advancing_at_once_slide_one_at_a_time(order: tuple[int, ...]) -> None:
    bench = Bench(5)
    bench.slide(6)
    inside = bench.permit(6)
    tasks = [bench.ask(epoch) for epoch in order]
    assert not any(task.done() for task in tasks)
    bench.release(inside)
    windows = [(5, 6)]
    for task, epoch in zip(tasks, order, strict=True):
        oldest, newest = windows[-1]
        if epoch < oldest:
            assert task.result() == StaleClusterEpoch(epoch, oldest, newest)
            continue
        if epoch > newest:
            windows.append((newest, epoch))
        permit = granted(task)
        assert (permit.window.oldest, permit.window.newest) == windows[-1]
        bench.release(permit)
    assert bench.ends == windows[-1]
    assert bench.fence.counters.slides == len(windows)  # and the one from 5 to 6


def test_leader_change_in_the_middle_of_a_transition() -> None:
    """A slide waits for a permit; the term ends. The slide never happens, the permit is its term's alone."""
    bench = Bench(5)
    bench.slide(6)
    inside = bench.permit(6)
    slide = bench.ask(7)
    bench.fence.close("another node leads")
    bench.loop.run()
    assert slide.result() == Refusal(Reason.NOT_LEADER, "another node leads")
    assert bench.fence.try_acquire(6) == Refusal(Reason.NOT_LEADER, "another node leads")
    bench.fence.open(EpochWindow.recovered(TERM + 1, 6))
    mine = bench.permit(6)
    bench.release(inside)
    assert (bench.fence.permits, bench.ends) == (1, (6, 6))
    assert (inside.window.term, mine.window.term) == (TERM, TERM + 1)
    waits = bench.ask(7)
    assert not waits.done()
    bench.release(mine)
    assert granted(waits).window == EpochWindow(TERM + 1, 6, 7)


# The traps of the published sketch. The first four concern the rule; here they are met through the lock.


def test_trap_1_after_recovery_the_applied_epoch_itself_is_accepted() -> None:
    bench = Bench(6)
    assert bench.permit(6).window == EpochWindow(TERM, 6, 6)
    assert isinstance(bench.fence.try_acquire(5), StaleClusterEpoch)


def test_trap_2_after_recovery_the_next_epoch_keeps_the_applied_one() -> None:
    bench = Bench(6)
    bench.slide(12)
    assert bench.ends == (6, 12)
    bench.permit(6)


def test_trap_3_a_window_belongs_to_its_term_even_on_the_same_node() -> None:
    bench = Bench(5)
    bench.slide(6, 9)
    old = bench.permit(9)
    bench.fence.close("lost")
    bench.fence.open(EpochWindow.recovered(TERM + 1, 5))
    assert bench.ends == (5, 5)
    bench.slide(9)
    assert bench.ends == (5, 9)
    bench.release(old)
    assert bench.fence.permits == 0


def test_trap_4_an_epoch_that_came_to_lie_inside_while_waiting_is_accepted() -> None:
    bench = Bench(5)
    bench.slide(6)
    inside = bench.permit(6)
    ten, eight, five = bench.ask(10), bench.ask(8), bench.ask(5)
    bench.release(inside)
    assert granted(ten).window == granted(eight).window == EpochWindow(TERM, 6, 10)
    assert five.result() == StaleClusterEpoch(5, 6, 10), "what was inside may have come to lie below"
    assert bench.fence.counters == WindowCounters(
        slides=2, new_epoch_fences=2, same_epoch_fences=2, rejections=1, last_gap=1
    )


def test_trap_5_cancelled_while_waiting_it_gives_everything_back() -> None:
    bench = Bench(5)
    inside = bench.permit(5)
    slide, behind = bench.ask(6), bench.ask(5)
    slide.cancel()
    bench.loop.run()
    assert slide.cancelled()
    assert granted(behind).window == EpochWindow(TERM, 5, 5), "what waited behind it goes on at once"
    bench.release(inside, granted(behind))
    assert (bench.fence.permits, bench.fence.waiting) == (0, 0)
    bench.slide(6)


def test_trap_5_cancelled_in_the_turn_of_its_grant_it_gives_the_hold_back_once() -> None:
    bench = Bench(5)
    inside = bench.permit(5)
    slide = bench.ask(6)
    inside.release()
    assert bench.fence.permits == 1, "granted, though its task has not run yet"
    slide.cancel()
    bench.loop.run()
    assert slide.cancelled()
    assert (bench.fence.permits, bench.ends) == (0, (5, 6))
    counters = bench.fence.counters
    assert (counters.slides, counters.new_epoch_fences) == (1, 0)
    bench.slide(7)


def test_trap_5_a_second_release_is_an_error_and_takes_nothing() -> None:
    bench = Bench(5)
    first, second = bench.permit(5), bench.permit(5)
    first.release()
    with pytest.raises(AssertionError, match="once"):
        first.release()
    assert bench.fence.permits == 1
    second.release()


def test_trap_6_a_slide_does_not_starve_behind_holds_that_never_end_together() -> None:
    bench = Bench(5)
    present = bench.permit(5)
    slide = bench.ask(6)
    late = []
    for _ in range(3):
        assert bench.fence.try_acquire(5) is None, "what comes after a waiting slide waits behind it"
        late.append(bench.ask(5))
    assert not any(task.done() for task in late)
    bench.release(present)
    assert granted(slide).window == EpochWindow(TERM, 5, 6)
    assert [granted(task).window for task in late] == [EpochWindow(TERM, 5, 6)] * 3


# The rest.


def test_in_order_a_slide_behind_others_waits_for_them_too() -> None:
    bench = Bench(5)
    present = bench.permit(5)
    first, inside, second, last = bench.ask(6), bench.ask(5), bench.ask(7), bench.ask(6)
    bench.release(present)
    assert [task.done() for task in (first, inside, second, last)] == [True, True, False, False]
    bench.release(granted(first))
    assert not second.done(), "one permit is still out"
    bench.release(granted(inside))
    assert granted(second).window == granted(last).window == EpochWindow(TERM, 6, 7)


def test_what_is_below_the_window_does_not_wait_for_its_refusal() -> None:
    bench = Bench(5)
    bench.permit(5)
    bench.ask(6)
    assert isinstance(bench.fence.try_acquire(4), StaleClusterEpoch)


def test_closing_answers_all_who_wait_in_order() -> None:
    bench = Bench(5)
    bench.permit(5)
    order: list[int] = []
    tasks = [bench.ask(epoch) for epoch in (6, 5, 7)]
    for number, task in enumerate(tasks):
        task.add_done_callback(partial(lambda number, _: order.append(number), number))
    bench.fence.close("the node is stopping")
    bench.loop.run()
    assert order == [0, 1, 2]
    assert {task.result() for task in tasks} == {Refusal(Reason.NOT_LEADER, "the node is stopping")}
    assert (bench.fence.window, bench.fence.permits, bench.fence.waiting) == (None, 0, 0)


def test_cancelled_and_closed_in_one_turn() -> None:
    bench = Bench(5)
    inside = bench.permit(5)
    slide = bench.ask(6)
    bench.fence.close("lost")
    slide.cancel()
    bench.fence.open(EpochWindow.recovered(TERM + 1, 5))
    bench.loop.run()
    assert slide.cancelled()
    bench.release(inside)
    assert (bench.fence.permits, bench.ends) == (0, (5, 5))


def test_closed_before_it_was_ever_open() -> None:
    bench = Bench()
    assert isinstance(bench.fence.try_acquire(5), Refusal)
    assert isinstance(bench.ask(5).result(), Refusal)
    bench.fence.close("again")
    assert bench.fence.try_acquire(5) == Refusal(Reason.NOT_LEADER, "again")


def test_opening_an_open_fence_is_an_error() -> None:
    with pytest.raises(AssertionError, match="still open"):
        Bench(5).fence.open(EpochWindow.recovered(TERM + 1, 5))


def test_a_request_cancelled_before_it_began_leaves_nothing() -> None:
    bench = Bench(5)
    inside = bench.permit(5)
    task = asyncio.Task(bench.fence.acquire(6), loop=bench.loop)
    task.cancel()
    bench.loop.run()
    bench.release(inside)
    assert (bench.fence.waiting, bench.ends) == (0, (5, 5))
    assert isinstance(bench.fence.try_acquire(6), Permit)
