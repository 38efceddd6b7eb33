"""Is a history of one register linearizable? Wing and Gong's search with Lowe's memory, and a hint.

A history is linearizable if every operation can be given a moment between its call and its return so that
the results are those of one register used by one client at these moments. An operation whose outcome is
unknown may take effect at any moment after its call, or never. The search tries operations in the order of
the log first, where that is known: a history that is right is then proven so without turning back, and one
that is wrong is searched to the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

NEVER = float("inf")
MAX_STEPS = 200_000


@dataclass(slots=True)
class Operation:
    """One operation on one register, as its client saw it. Times are virtual seconds."""

    client: int
    kind: str
    """"set", "cas" or "read"."""

    arguments: tuple[Any, ...]
    called: float
    returned: float = NEVER
    result: Any = None
    place: float = NEVER
    """Where the log has it, for the order of the search only."""

    def __str__(self) -> str:
        end = "never" if self.returned == NEVER else f"{self.returned:.4f}"
        return f"{self.kind}{self.arguments} = {self.result} from {self.called:.4f} to {end}"


def effect(operation: Operation, value: Any) -> tuple[bool, Any]:
    """(whether the operation's result can be seen when the register holds `value`, its value afterwards)."""
    kind, known = operation.kind, operation.returned != NEVER
    if kind == "read":
        return not known or operation.result == value, value
    if kind == "set":
        return True, operation.arguments[0]
    expected, new = operation.arguments
    succeeds = value == expected
    return not known or operation.result == succeeds, new if succeeds else value


class Undecided(RuntimeError):
    """The search took more than MAX_STEPS."""


def is_linearizable(history: list[Operation], initial: Any = None) -> bool:
    """Whether operations on one register have a legal order. Raises Undecided when that takes too long."""
    operations = [op for op in history if op.kind != "read" or op.returned != NEVER]
    operations.sort(key=lambda op: (op.place, op.returned, op.called))
    count = len(operations)
    must = sum(1 << i for i, op in enumerate(operations) if op.returned != NEVER)
    by_return = sorted(range(count), key=lambda i: operations[i].returned)
    by_call = [op.called for op in operations]
    seen: set[tuple[int, Any]] = set()
    # (done, value, position to try next, first undone by place, first undone by return)
    stack: list[tuple[int, Any, int, int, int]] = [(0, initial, 0, 0, 0)]
    steps = 0
    while stack:
        done, value, position, low, first = stack.pop()
        if done & must == must:
            return True
        while done >> by_return[first] & 1:
            first += 1
        while done >> low & 1:
            low += 1
        limit = operations[by_return[first]].returned
        for candidate in range(max(position, low), count):
            steps += 1
            if done >> candidate & 1 or by_call[candidate] > limit:
                continue
            possible, after = effect(operations[candidate], value)
            state = (done | 1 << candidate, after)
            if possible and state not in seen:
                seen.add(state)
                stack.append((done, value, candidate + 1, low, first))
                stack.append((*state, 0, low, first))
                break
        if steps > MAX_STEPS:
            raise Undecided(f"{count} operations, {steps} steps")
    return False


def explain(history: list[Operation]) -> str:
    """The operations in the order of their calls, one a line."""
    return "\n".join(f"  {op}" for op in sorted(history, key=lambda op: op.called))
