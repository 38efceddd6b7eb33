"""Things in the order of their last change: a look passes over those that stand as they did before.

Most of a node's looks at its partitions find nothing to do, and most of a thousand partitions stand as they
did. What is to be done at a time, changed or not, is for the one that looks to remember.
"""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class ChangeOrder(Generic[T]):
    """Each thing once, with the number of its last change. Any number of looks share one order."""

    def __init__(self) -> None:
        self._numbers: dict[T, int] = {}
        self._last = 0

    def note(self, thing: T) -> None:
        """A thing came, or changed."""
        self._last += 1
        self._numbers.pop(thing, None)
        self._numbers[thing] = self._last

    def forget(self, thing: T) -> None:
        """A thing is gone; KeyError if it never came."""
        del self._numbers[thing]

    def since(self, number: int) -> tuple[int, list[T]]:
        """Number for the next look, and what changed after this one and is still there, the oldest first; 0
        stands for the beginning."""
        changed: list[T] = []
        for thing, changed_at in reversed(self._numbers.items()):
            if changed_at <= number:
                break
            changed.append(thing)
        changed.reverse()
        return self._last, changed
