"""Objects go by the M of a grace period ago."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.node.gc.grace import EPOCHS, Grace


def test_the_bound_is_m_as_it_was() -> None:
    grace = Grace(60.0)
    assert grace.observe(5, 10, 100.0) == 0
    assert grace.observe(7, 12, 130.0) == 0
    assert grace.observe(7, 12, 159.9) == 0
    assert grace.observe(9, 14, 160.0) == 5
    assert grace.observe(9, 14, 189.9) == 5
    assert grace.observe(9, 14, 190.0) == 7
    assert grace.observe(9, 14, 500.0) == 9


def test_without_a_grace_it_is_m() -> None:
    grace = Grace(0.0)
    assert [grace.observe(m, m + 1, 1.0 * m) for m in (0, 3, 3, 8)] == [0, 3, 3, 8]


def test_an_m_that_goes_down_is_not_taken() -> None:
    grace = Grace(0.0)
    grace.observe(8, 9, 0.0)
    with pytest.raises(AssertionError, match="while M is 7"):
        grace.observe(7, 9, 1.0)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40)), max_size=60), st.integers(0, 50))
def test_against_the_whole_history(steps: list[tuple[int, int]], seconds: int) -> None:
    grace, history, now, m = Grace(float(seconds)), [(0, 0)], 0, 0
    for rise, passed in steps:
        now, m = now + passed, m + rise
        history.append((now, m))
        expected = max(value for at, value in history if now - at >= seconds or value == 0)
        # What rose before this process looked counts from when it looked.
        assert grace.observe(m, m + 1, float(now)) <= expected
        assert len(grace._risen) <= m + 1
    assert grace.observe(m, m + 1, float(now + seconds)) == m


def test_the_lag_is_since_the_oldest_epoch_that_waits_was_closed() -> None:
    grace = Grace(0.0)
    for epoch in range(1, 21):
        grace.observe(0, epoch, 10.0 * epoch)
    assert grace.lag_seconds(200.0) == 200.0 - 20.0, "epoch 1 was closed when 2 began"
    grace.observe(15, 20, 200.0)
    assert grace.lag_seconds(205.0) == 205.0 - 170.0
    grace.observe(18, 20, 205.0)
    assert grace.lag_seconds(205.0) == 205.0 - 200.0
    grace.observe(19, 20, 205.0)
    assert grace.lag_seconds(999.0) == 0.0


def test_what_is_remembered_is_bounded_and_the_oldest_stays() -> None:
    grace = Grace(0.0)
    for epoch in range(1, 3 * EPOCHS):
        grace.observe(0, epoch, float(epoch))
    assert len(grace._begun) == EPOCHS
    assert grace.lag_seconds(3.0 * EPOCHS) == 3.0 * EPOCHS - 2.0
