"""The budget of money: puts keep to it, other requests are paid first, and nothing is ever refused."""

from __future__ import annotations

from itertools import pairwise

import pytest

from strandline.node.level_zero.money_budget import (
    BURST_SECONDS,
    FIRST_SECONDS,
    LONGEST_PUT_SECONDS,
    MONTH_SECONDS,
    OWN_SHARE,
    MoneyBudget,
    Prices,
)
from strandline.node.objectstore.requests import Requests

PUT, GET = 5e-6, 4e-7
RATE = 10.0
"""Puts a second that the budget pays for."""


class Case:
    def __init__(self, rate: float = RATE) -> None:
        self.now = 50.0
        self.other = Requests(0, 0)
        self.budget = MoneyBudget(
            lambda: rate * PUT * MONTH_SECONDS, Prices(PUT, GET), lambda: self.other, lambda: self.now
        )

    def begun(self, seconds: float, step: float = 0.01) -> int:
        """Puts that begin in this time if one always waits."""
        count, until = 0, self.now + seconds
        while self.now < until:
            while not self.budget.seconds_to_next():
                self.budget.spend()
                count += 1
            self.now += step
        return count

    def requests(self, puts: int = 0, gets: int = 0) -> None:
        """Requests that are none of level-zero puts."""
        self.other = Requests(self.other.puts + puts, self.other.gets + gets)


def test_puts_keep_to_the_rate_after_what_a_node_begins_with() -> None:
    case = Case()
    assert case.begun(FIRST_SECONDS) == pytest.approx(2 * RATE * FIRST_SECONDS, rel=0.12)
    rate = case.begun(1000.0) / 1000
    assert rate == pytest.approx(RATE, rel=0.02)
    assert case.budget.spent < case.budget.per_month * 1200 / MONTH_SECONDS


def test_what_is_not_spent_is_saved_up_to_the_burst() -> None:
    case = Case()
    case.now += 30 * BURST_SECONDS
    assert case.begun(0.01) == pytest.approx(RATE * BURST_SECONDS, abs=3)


def test_the_wait_is_until_the_next_put_may_begin() -> None:
    case = Case()
    case.begun(0.01)
    wait = case.budget.seconds_to_next()
    assert 0 < wait <= 2 / RATE
    case.now += wait
    assert case.budget.seconds_to_next() == 0


def test_other_requests_are_paid_from_the_same_budget() -> None:
    case = Case()
    case.begun(FIRST_SECONDS)
    count = 0
    for _ in range(1000):
        case.requests(puts=5, gets=25)
        count += case.begun(1.0)
    others = 5 * PUT + 25 * GET
    assert count / 1000 == pytest.approx(RATE - others / PUT, rel=0.05)
    assert case.budget.exceeded == 0


def test_batches_have_a_share_whatever_else_is_requested() -> None:
    case = Case()
    case.begun(FIRST_SECONDS)
    count = 0
    for _ in range(1000):
        case.requests(puts=100)
        count += case.begun(1.0)
    assert count / 1000 == pytest.approx(OWN_SHARE * RATE, rel=0.05)
    assert case.budget.exceeded == pytest.approx((100 - 10 + 1) * 1000 * PUT, rel=0.1)
    assert case.budget.left == pytest.approx(-RATE * PUT * BURST_SECONDS, rel=0.02)


@pytest.mark.parametrize("rate", [1 / LONGEST_PUT_SECONDS, 0.2, 0.9])
def test_a_small_budget_too_lets_no_batch_wait_longer_than_clients_do(rate: float) -> None:
    """A tenth of the least budget that is accepted would be a put in 100 s."""
    case = Case(rate)
    case.begun(FIRST_SECONDS, step=1.0)
    begun = []
    for _ in range(600):
        case.requests(gets=100)
        wait = case.budget.seconds_to_next()
        assert wait <= LONGEST_PUT_SECONDS
        if case.begun(1.0, step=1.0):
            begun.append(case.now)
    gaps = [after - before for before, after in pairwise(begun)]
    assert max(gaps) <= LONGEST_PUT_SECONDS + 1
    assert len(gaps) == pytest.approx(600 / LONGEST_PUT_SECONDS, abs=3), "and takes no more than that"


def test_what_is_owed_beyond_the_burst_is_forgotten() -> None:
    """Else one large read back would hold batches up for days."""
    case = Case()
    case.requests(gets=10_000_000)
    assert case.budget.seconds_to_next() <= 1 / (RATE * OWN_SHARE)
    case.now += BURST_SECONDS + 2 / RATE
    assert case.budget.left >= PUT


def test_requests_that_are_counted_late_are_counted_once() -> None:
    case = Case()
    case.requests(puts=10)
    before = case.budget.left
    case.other = Requests(8, 0)
    assert case.budget.left == pytest.approx(before)
    case.other = Requests(11, 0)
    assert case.budget.left == pytest.approx(before - PUT)
