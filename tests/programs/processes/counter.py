"""The cheapest honest state machine: it counts commands, and can be made to weigh what a test needs."""

from __future__ import annotations

import random

from strandline.statemachine.machine import Captured, ReadAttributes, ReadState

_GROW = 1


class Counter:
    """Counts; its snapshot holds `ballast` beside the count, so that it has a size."""

    kind = "counter"

    def __init__(self) -> None:
        self.count = 0
        self.ballast = b""

    def begin_term(self, index: int, term: int, node: int) -> None:
        pass

    def apply(self, index: int, term: int, command: bytes) -> int:
        self.count += 1
        if command[0] == _GROW:
            self.ballast = incompressible(int.from_bytes(command[1:], "big"))
        return self.count

    def capture(self) -> Captured:
        state = self.snapshot()
        return lambda: state

    def snapshot(self) -> bytes:
        """Count and ballast, in the time that one copy takes."""
        return self.count.to_bytes(8, "big") + self.ballast

    def read(self, state: bytes) -> ReadState:
        return ReadAttributes(self, {"count": int.from_bytes(state[:8], "big"), "ballast": state[8:]})

    def restore(self, state: bytes) -> None:
        self.read(state).adopt()


def count(size: int) -> bytes:
    """A command of `size` bytes that only counts."""
    return bytes(1) + random.Random(size).randbytes(size - 1)


def grow(size: int) -> bytes:
    """The command that makes the state `size` bytes large."""
    return bytes([_GROW]) + size.to_bytes(8, "big")


def incompressible(size: int) -> bytes:
    """The same bytes on every node, and no help to one that compresses."""
    return random.Random(size).randbytes(size)
