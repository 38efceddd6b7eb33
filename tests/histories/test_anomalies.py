"""Every anomaly planted in a right history is found by its check, and a right history has none."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.histories.anomalies import CHECKS, anomalies
from tests.histories.history import Ending, History, Place, Poll, Read, Sent, Transaction

A, B = Place("out", 0), Place("out", 1)


def right() -> History:
    """Three transactions of two clients: one commits, one aborts, one commits without an answer."""
    first = Transaction("one/1", 1.0, [Sent(A, "a", 0), Sent(B, "b", 0)], [Read(Place("in", 0), 0, "i")])
    first.ending, first.commit_asked, first.ended = Ending.COMMITTED, 2.0, 2.1
    second = Transaction("two/1", 1.5, [Sent(A, "c", 1), Sent(B, "d", 1)], ended=3.0)
    third = Transaction("one/1", 4.0, [Sent(A, "e", 4), Sent(A, "f", None)], [Read(Place("in", 0), 1, "j")])
    third.ending, third.commit_asked = Ending.UNKNOWN, 5.0
    log = {A: [Read(A, 0, "a"), Read(A, 4, "e"), Read(A, 5, "f")], B: [Read(B, 0, "b")]}
    polls = [Poll("c", 1, 3.0, [log[A][0], log[B][0]]), Poll("c", 1, 6.0, log[A][1:])]
    return History([first, second, third], polls, log, ["c"], ["i", "j"])


def test_a_right_history_has_no_anomaly() -> None:
    assert anomalies(right()) == []


def test_a_transaction_without_an_answer_may_be_wholly_absent() -> None:
    history = right()
    history.committed[A] = history.committed[A][:1]
    history.polls = history.polls[:1]
    history.inputs = ["i"]
    assert anomalies(history) == []


def test_one_that_began_while_another_was_open_may_lie_anywhere() -> None:
    history = right()
    history.transactions[0].ended = 4.5
    history.committed[A] = [replace_offset(read, 9 - read.offset) for read in reversed(history.committed[A])]
    assert "write_cycles" not in {found.kind for found in anomalies(history)}


def replace_offset(read: Read, offset: int) -> Read:
    return read._replace(offset=offset)


def lose(history: History) -> None:
    del history.committed[B][0]


def double(history: History) -> None:
    history.committed[B].append(Read(B, 7, "b"))


def show_aborted(history: History) -> None:
    history.polls[0].read.append(Read(B, 1, "d"))


def invent(history: History) -> None:
    history.committed[B].append(Read(B, 7, "nobody's"))


def show_early(history: History) -> None:
    history.polls[0].ended = 1.9


def tear(history: History) -> None:
    history.committed[A].pop()


def disagree(history: History) -> None:
    history.polls[0].read[0] = Read(A, 4, "a")


def turn_sends(history: History) -> None:
    history.transactions[2].sent[0] = Sent(A, "e", 0)


def poll_again(history: History) -> None:
    history.polls.append(Poll("c", 1, 7.0, [Read(A, 4, "e")]))


def skip(history: History) -> None:
    history.polls[1].read = history.polls[1].read[1:]


def turn_writes(history: History) -> None:
    history.committed[A] = [Read(A, 0, "e"), Read(A, 4, "a"), Read(A, 5, "f")]


def consume_twice(history: History) -> None:
    history.transactions[2].consumed.append(Read(Place("in", 0), 0, "i"))


def misplace(history: History) -> None:
    history.committed[A].append(Read(A, 9, history.committed[B].pop().value))


def consume_aborted(history: History) -> None:
    history.transactions[2].consumed.append(Read(B, 1, "d"))


def consume_another(history: History) -> None:
    history.transactions[2].consumed.append(Read(Place("in", 0), 0, "k"))


def skip_the_first(history: History) -> None:
    history.polls[0].read = [history.committed[B][0]]


def skip_the_last(history: History) -> None:
    history.polls[1].read.pop()


PLANTED: dict[str, Callable[[History], None]] = {
    "lost_writes": lose,
    "duplicates": double,
    "aborted_reads": show_aborted,
    "unwritten_reads": invent,
    "intermediate_reads": show_early,
    "torn_transactions": tear,
    "inconsistent_offsets": disagree,
    "nonmonotonic_sends": turn_sends,
    "nonmonotonic_polls": poll_again,
    "skipped_polls": skip,
    "write_cycles": turn_writes,
    "wrongly_consumed": consume_twice,
}


PLANTED_TOO: tuple[tuple[str, Callable[[History], None]], ...] = (
    ("lost_writes", misplace),
    ("aborted_reads", consume_aborted),
    ("inconsistent_offsets", consume_another),
    ("skipped_polls", skip_the_first),
    ("skipped_polls", skip_the_last),
)


def test_every_check_has_its_plant() -> None:
    assert list(PLANTED) == [check.__name__ for check in CHECKS]


@pytest.mark.parametrize(("kind", "plant"), [*PLANTED.items(), *PLANTED_TOO])
def test_a_planted_anomaly_is_found(kind: str, plant: Callable[[History], None]) -> None:
    history = right()
    plant(history)
    assert kind in {found.kind for found in anomalies(history)}


@pytest.mark.parametrize("kind", ["duplicates", "aborted_reads", "nonmonotonic_polls", "write_cycles"])
def test_what_is_planted_alone_is_found_alone(kind: str) -> None:
    history = right()
    history.followed = []
    if kind == "write_cycles":
        history.transactions[2].sent[0] = Sent(A, "e", None)
        history.transactions[0].sent[0] = Sent(A, "a", None)
        history.polls = []
    PLANTED[kind](history)
    assert {found.kind for found in anomalies(history)} == {kind}
