"""The judge of histories must itself be right: it takes what is legal, and nothing else."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.histories import linearizability
from tests.histories.linearizability import NEVER, Operation, Undecided, is_linearizable


def op(
    kind: str, *arguments: Any, at: tuple[float, float], result: Any = True, place: float = NEVER
) -> Operation:
    return Operation(0, kind, arguments, *at, result, place)


def test_a_read_sees_the_write_before_it() -> None:
    history = [op("set", 1, at=(0, 1)), op("read", at=(2, 3), result=1)]
    assert is_linearizable(history)


def test_a_stale_read_is_refused() -> None:
    history = [op("set", 1, at=(0, 1)), op("set", 2, at=(2, 3)), op("read", at=(4, 5), result=1)]
    assert not is_linearizable(history)


def test_a_lost_write_is_refused() -> None:
    assert not is_linearizable([op("set", 1, at=(0, 1)), op("read", at=(2, 3), result=None)])


def test_concurrent_operations_may_take_any_order() -> None:
    for seen in (None, 1):
        assert is_linearizable([op("set", 1, at=(0, 10)), op("read", at=(1, 2), result=seen)])


def test_reads_may_not_go_back_and_forth() -> None:
    write = op("set", 1, at=(0, 10))
    assert not is_linearizable([write, op("read", at=(1, 2), result=1), op("read", at=(3, 4), result=None)])


@pytest.mark.parametrize("seen", [1, None])
def test_an_unknown_write_happens_later_or_never(seen: Any) -> None:
    unknown = op("set", 1, at=(0, NEVER), result=None)
    assert is_linearizable(
        [unknown, op("read", at=(50, 51), result=None), op("read", at=(60, 61), result=seen)]
    )


def test_an_unknown_write_happens_not_before_its_call() -> None:
    unknown = op("set", 1, at=(5, NEVER), result=None)
    assert not is_linearizable([op("read", at=(0, 1), result=1), unknown])


def test_an_unknown_write_happens_once() -> None:
    history = [
        op("set", 1, at=(0, NEVER), result=None),
        op("read", at=(1, 2), result=1),
        op("set", 2, at=(3, 4)),
        op("read", at=(5, 6), result=1),
    ]
    assert not is_linearizable(history)


def test_compare_and_set_tells_what_was_there() -> None:
    write = op("set", 1, at=(0, 1))
    assert is_linearizable([write, op("cas", 1, 2, at=(2, 3)), op("read", at=(4, 5), result=2)])
    assert not is_linearizable([write, op("cas", 7, 2, at=(2, 3), result=True)])
    assert not is_linearizable([write, op("cas", 1, 2, at=(2, 3), result=False)])


def test_a_wrong_hint_costs_time_only() -> None:
    history = [
        op("set", 1, at=(0, 1), place=9),
        op("set", 2, at=(2, 3), place=1),
        op("read", at=(4, 5), result=2, place=0),
    ]
    assert is_linearizable(history)


def test_random_histories_of_one_register_are_legal_until_a_result_is_changed() -> None:
    rng = random.Random(3)
    for _ in range(60):
        history = _history(rng)
        assert is_linearizable(history)
        reads = [operation for operation in history if operation.kind == "read"]
        if reads:
            rng.choice(reads).result = "never written"
            assert not is_linearizable(history)


def _history(rng: random.Random) -> list[Operation]:
    """Operations that took effect one after the other, seen through overlapping calls and returns."""
    value: Any = None
    history = []
    for moment in range(rng.randint(1, 9)):
        at = (moment - rng.random() * 3, moment + rng.random() * 3)
        if rng.random() < 0.4:
            history.append(op("read", at=at, result=value))
        elif rng.random() < 0.5:
            value = moment
            history.append(op("set", moment, at=at))
        else:
            expected = rng.choice((value, "other"))
            history.append(op("cas", expected, moment, at=at, result=expected == value))
            value = moment if expected == value else value
    return history


def test_a_search_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linearizability, "MAX_STEPS", 10)
    history = [op("set", i, at=(0, 100)) for i in range(10)] + [op("read", at=(200, 201), result="never")]
    with pytest.raises(Undecided):
        is_linearizable(history)
