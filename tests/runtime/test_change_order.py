"""What changed since a look, for any number of looks at the same things."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.node.runtime.change_order import ChangeOrder


def test_each_look_is_told_of_what_changed_since_its_own_last_one() -> None:
    order: ChangeOrder[str] = ChangeOrder()
    assert order.since(0) == (0, [])
    for thing in ("a", "b", "a"):
        order.note(thing)
    first, changed = order.since(0)
    assert changed == ["b", "a"], "each once, the oldest change first"
    assert order.since(first) == (first, [])
    order.note("c")
    order.note("b")
    second, changed = order.since(first)
    assert changed == ["c", "b"]
    assert order.since(0) == (second, ["a", "c", "b"]), "another look begins at the beginning"
    order.forget("b")
    assert order.since(first) == (second, ["c"])
    with pytest.raises(KeyError):
        order.forget("b")


@given(
    st.lists(st.one_of(st.integers(0, 5), st.just("look"), st.tuples(st.just("forget"), st.integers(0, 5))))
)
def test_no_change_is_missed_and_none_is_told_twice(steps: list[object]) -> None:
    order: ChangeOrder[int] = ChangeOrder()
    there: set[int] = set()
    open_changes: set[int] = set()
    number = 0
    for step in steps:
        match step:
            case int(thing):
                order.note(thing)
                there.add(thing)
                open_changes.add(thing)
            case ("forget", int(thing)) if thing in there:
                order.forget(thing)
                there.discard(thing)
                open_changes.discard(thing)
            case "look":
                number, changed = order.since(number)
                assert sorted(changed) == sorted(open_changes)
                open_changes.clear()
