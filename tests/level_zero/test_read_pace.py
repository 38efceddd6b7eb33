"""How far is read ahead: by a consumer's pace and the store's latency, and within the budget of all."""

from __future__ import annotations

import pytest

from strandline.node.level_zero.read_pace import FORGOTTEN_SECONDS, MAX_READERS, Pace, ReadPaces

KB = 1000
LEAST = 100 * KB
BUDGET = 10_000 * KB


class Case:
    def __init__(self, latency: float = 0.1) -> None:
        self.now = 100.0
        self.budget = BUDGET
        self.paces = ReadPaces(least=LEAST, budget=lambda: self.budget, now=lambda: self.now)
        self.paces.get_took(latency)

    def reads(self, count: int, size: int, pause: float, *, place: str = "a", offset: int = 0) -> Pace:
        """A consumer that reads so often, and pauses between an answer and the next request."""
        pace = Pace()
        for number in range(offset, offset + count):
            pace = self.paces.begin(place, number)
            self.paces.end(place, pace, number + 1, size)
            self.now += pause
        return pace


def test_the_first_read_is_not_read_ahead_for() -> None:
    case = Case()
    assert case.reads(1, KB, 0.01).window == 0
    assert case.paces.readers == 0
    assert case.paces.begin("a", 5).window == 0, "another place in the log"
    assert case.paces.begin("b", 1).window == 0, "another log"
    assert case.paces.begin("a", 1).window == LEAST


def test_the_window_is_what_the_consumer_takes_in_twice_the_latency() -> None:
    case = Case(latency=0.1)
    pace = case.reads(40, 100 * KB, 0.01)
    assert pace.window == pytest.approx(2 * 0.1 * 10_000 * KB, rel=0.05)
    assert case.paces.window_bytes == pace.window


@pytest.mark.parametrize("latency", [0.0001, 0.02])
def test_a_store_that_is_near_needs_no_more_than_the_least(latency: float) -> None:
    assert Case(latency).reads(40, 10 * KB, 0.01).window == LEAST


def test_a_read_that_failed_costs_a_consumer_nothing_and_makes_none() -> None:
    case = Case()
    window = case.reads(30, 100 * KB, 0.01).window
    pace = case.paces.begin("a", 30)
    case.paces.failed("a", pace, 30)
    case.now += 0.01
    assert case.paces.begin("a", 30).window > window // 2
    unknown = case.paces.begin("b", 7)
    case.paces.failed("b", unknown, 7)
    assert case.paces.begin("b", 7).window == 0


def test_it_doubles_at_most() -> None:
    case = Case()
    windows = [case.reads(1, 1000 * KB, 0.0, offset=number).window for number in range(6)]
    assert windows == [0, LEAST, 2 * LEAST, 4 * LEAST, 8 * LEAST, 16 * LEAST]


def test_a_consumer_that_slows_down_gets_less() -> None:
    case = Case()
    quick = case.reads(30, 100 * KB, 0.01).window
    slow = case.reads(10, 100 * KB, 1.0, offset=30).window
    assert slow == LEAST < quick


def test_a_long_wait_of_this_nodes_own_is_not_the_consumers() -> None:
    """Only the time between an answer and the next request counts, however long an answer took."""
    case = Case()
    for number in range(40):
        pace = case.paces.begin("a", number)
        case.now += 5.0
        case.paces.end("a", pace, number + 1, 100 * KB)
        case.now += 0.01
    assert pace.window == pytest.approx(2 * 0.1 * 10_000 * KB, rel=0.05)


def test_consumers_share_the_budget() -> None:
    case = Case()
    for place in "abcd":
        case.reads(2, 10, 0.0, place=place)
    assert case.paces.readers == 4
    pace = case.reads(40, 1000 * KB, 0.001, place="e")
    assert pace.window == BUDGET // 5
    case.budget = 50 * KB
    assert case.reads(1, 10, 0.0, place="e", offset=40).window == 10 * KB


def test_no_budget_means_nothing_ahead() -> None:
    case = Case()
    case.budget = 0
    assert case.reads(5, KB, 0.01).window == 0


def test_a_consumer_that_stays_away_is_forgotten_with_its_share() -> None:
    case = Case()
    case.reads(3, KB, 0.0)
    case.now += FORGOTTEN_SECONDS / 2
    case.reads(3, KB, 0.0, place="b")
    assert case.paces.readers == 2
    case.now += FORGOTTEN_SECONDS / 2 + 0.1
    assert case.paces.readers == 1
    assert case.paces.begin("a", 3).window == 0
    assert case.paces.begin("b", 3).window == LEAST


def test_two_consumers_side_by_side_have_one_window() -> None:
    case = Case()
    for number in range(20):
        first, second = case.paces.begin("a", number), case.paces.begin("a", number)
        for pace in (second, first):
            case.paces.end("a", pace, number + 1, 100 * KB)
        case.now += 0.01
    assert case.paces.readers == 1
    assert case.paces.window_bytes > 10 * LEAST


def test_what_is_remembered_is_bounded() -> None:
    case = Case()
    for number in range(MAX_READERS + 10):
        case.reads(1, KB, 0.0, place=str(number))
    assert case.paces.begin("0", 1).window == 0
    assert case.paces.begin(str(MAX_READERS + 9), 1).window == LEAST
