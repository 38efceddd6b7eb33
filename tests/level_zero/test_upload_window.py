"""The window of uploads, before a model of a store: a link with a length and a width, that may fail."""

from __future__ import annotations

import random
from collections.abc import Callable
from heapq import heappop, heappush

import pytest

from strandline.node.level_zero.upload_window import CROWDED, FIRST, LEAST_ROUND, UploadWindow
from strandline.node.objectstore.store import NotDone, OutcomeUnknown

MB = 1_000_000
SLOW_DOWN = OutcomeUnknown("put", "l0/a", "503 SlowDown")


class Link:
    """Uploads of one size, as many as the window allows, all the time. Times are virtual seconds."""

    def __init__(self, window: UploadWindow | None = None, *, size: int = MB, seed: int = 1) -> None:
        self.now = 0.0
        self.window = window or UploadWindow(64, 64 * MB, lambda: self.now)
        self.length = 0.1
        self.jitter = 0.0
        self.width = 100.0 * MB
        self.fails: Callable[[], bool] = lambda: False
        self.wanted: Callable[[], int] = lambda: 1_000
        self.most = 0
        self.stored = 0
        self._size = size
        self._rng = random.Random(seed)
        self._free = 0.0
        self._uploads: list[tuple[float, float, int]] = []
        self._made = 0

    def run(self, seconds: float) -> float:
        """Let time pass; the bytes stored a second."""
        end, before = self.now + seconds, self.stored
        self._fill()
        while self._uploads and self._uploads[0][0] <= end:
            self.now, began, _ = heappop(self._uploads)
            failed = self.fails()
            self.window.heard(self._size, began, SLOW_DOWN if failed else None)
            self.stored += 0 if failed else self._size
            self._fill()
        self.now = end
        return (self.stored - before) / seconds

    def _fill(self) -> None:
        while len(self._uploads) < self.wanted():
            under_way = len(self._uploads)
            if not self.window.has_room(under_way, under_way * self._size, self._size):
                self.window.in_the_way(under_way)
                return
            self._free = max(self._free, self.now) + self._size / self.width
            late = self.length + (self._rng.expovariate(1 / self.jitter) if self.jitter else 0.0)
            self._made += 1
            heappush(self._uploads, (self._free + late, self.now, self._made))
            self.most = max(self.most, len(self._uploads))


def test_a_link_that_is_long_is_full_within_seconds() -> None:
    link = Link()
    link.run(2.0)
    assert link.run(5.0) > 0.95 * link.width


def test_answers_that_scatter_keep_it_as_full() -> None:
    for seed in range(10):
        link = Link(seed=seed)
        link.length, link.jitter = 0.06, 0.04
        link.run(3.0)
        assert link.run(10.0) > 0.9 * link.width


def test_it_stays_where_more_uploads_only_wait_for_each_other() -> None:
    link = Link()
    link.run(30.0)
    # Eleven fill the link. With 24 each takes twice as long as it did first: seen an answer's time later.
    assert 11 < link.most <= 2 * 24
    assert 11 <= link.window.size <= 33


@pytest.mark.parametrize("most", [1, 3, 8])
def test_it_is_bounded_by_number(most: int) -> None:
    link = Link()
    link.window = UploadWindow(most, 64 * MB, lambda: link.now)
    link.width = 1e12
    link.run(20.0)
    assert link.most == most


def test_it_is_bounded_by_bytes_but_one_upload_may_always_begin() -> None:
    link = Link()
    link.window = UploadWindow(64, 6 * MB, lambda: link.now)
    link.width = 1e12
    link.run(20.0)
    assert link.most == 6
    assert link.window.size <= 8, "it opens no further where bytes are what is in the way"
    assert not link.window.has_room(1, 5 * MB, 2 * MB)
    assert link.window.has_room(0, 0, 100 * MB)


def test_it_opens_only_when_it_was_in_the_way() -> None:
    link = Link()
    link.wanted = lambda: 3
    link.run(60.0)
    assert link.window.size == FIRST
    assert link.window.opened == 0


def test_what_failed_together_halves_it_once() -> None:
    link = Link()
    link.run(5.0)
    before = link.window.size
    began = link.now - 0.1
    for _ in range(10):
        link.window.heard(MB, began, SLOW_DOWN)
    assert link.window.size == before / 2
    link.now += 0.1
    link.window.heard(MB, link.now, SLOW_DOWN)
    assert link.window.size == before / 4
    assert link.window.closed_by_failures == 2


def test_what_trying_again_does_not_help_says_nothing_about_the_store() -> None:
    link = Link()
    link.run(5.0)
    before = link.window.size
    link.window.heard(MB, link.now, NotDone("put", "l0/a", "denied", retriable=False))
    assert link.window.size == before


def test_while_the_store_refuses_one_upload_is_under_way_and_later_the_link_is_full_again() -> None:
    link = Link()
    link.run(5.0)
    link.fails = lambda: True
    link.run(5.0)
    assert link.window.size == 1
    link.fails = lambda: False
    link.run(10.0)
    assert link.run(5.0) > 0.95 * link.width


def test_failures_now_and_then_leave_it_open() -> None:
    """As with a bucket that answers one of three hundred puts with SlowDown."""
    link = Link()
    rng = random.Random(1)
    link.fails = lambda: rng.random() < 1 / 300
    link.run(10.0)
    assert link.run(60.0) > 0.7 * link.width


def test_a_store_that_is_slow_for_minutes_leaves_the_first_uploads_and_gets_all_of_them_back() -> None:
    link = Link()
    link.run(10.0)
    link.length = 2.0
    link.run(30.0)
    assert link.window.size >= FIRST
    link.run(300.0)
    assert link.window.size > 3 * FIRST, "what lasts for minutes is what is usual"
    link.length = 0.1
    link.run(20.0)
    assert link.run(5.0) > 0.9 * link.width


def answers(window: UploadWindow, count: int, began: float) -> None:
    for _ in range(count):
        window.heard(MB, began, None)


def test_slow_answers_alone_leave_the_first_uploads() -> None:
    now = 100.0
    window = UploadWindow(64, 64 * MB, lambda: now)
    window.in_the_way(FIRST)
    answers(window, 1, now - 0.1)
    assert window.size == FIRST + 1
    answers(window, 30, now - 5.0)
    closed = window.closed_by_slowness
    assert (window.size, closed > 0) == (FIRST, True)
    answers(window, 30, now - 500.0)
    assert (window.size, window.closed_by_slowness) == (FIRST, closed)


def test_while_the_window_is_small_slow_answers_become_the_usual_ones() -> None:
    """All within the same moment: no time passes in which the quick ones could be forgotten."""
    now = 100.0
    window = UploadWindow(64, 64 * MB, lambda: now)
    answers(window, 1, now - 0.1)
    answers(window, 100, now - 1.0)
    window.in_the_way(FIRST)
    answers(window, LEAST_ROUND, now - 1.0)
    assert window.size == FIRST + 1


def test_quick_answers_of_long_ago_are_forgotten() -> None:
    now = 100.0
    window = UploadWindow(64, 64 * MB, lambda: now)
    for _ in range(10):
        window.in_the_way(int(window.size))
        answers(window, 1, now - 0.1)
    now = 500.0
    answers(window, 1, now - 1.0)
    before, closed = window.size, window.closed_by_slowness
    answers(window, 100, now - 1.0)
    assert (window.size, window.closed_by_slowness) == (before, closed)


def test_slower_answers_of_larger_objects_are_no_slower_store() -> None:
    """A megabyte takes 0.1 s longer than a kilobyte on this link: that is its size, and not the store."""
    link = Link()
    window = link.window
    for turn in range(400):
        size = 1000 if turn % 2 else MB
        link.now += 1.0
        window.in_the_way(int(window.size))
        window.heard(size, link.now - (0.02 if turn % 2 else 0.02 * 2 * CROWDED), None)
    assert window.closed_by_slowness == 0
    assert window.size == 64


def test_a_window_that_lets_nothing_through_is_refused() -> None:
    with pytest.raises(ValueError, match="lets nothing through"):
        UploadWindow(0, 1, lambda: 0.0)
