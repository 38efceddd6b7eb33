"""A small real state machine to drive the log with: named registers with compare-and-set.

It counts how often each command id was applied, which is how a test knows that none was applied twice.
"""

from __future__ import annotations

from typing import Any

import msgpack

from strandline.statemachine.machine import Captured, ReadAttributes, ReadState


class RegisterMap:
    """Registers of integers or bytes; commands are msgpack arrays, see the functions below."""

    kind = "register-map"

    def __init__(self) -> None:
        self.registers: dict[str, Any] = {}
        self.term = 0
        self.leader = 0
        self.applied: dict[int, int] = {}
        """Log index at which each command id was applied."""
        self.doubled: list[int] = []

    def begin_term(self, index: int, term: int, node: int) -> None:
        if term <= self.term:
            raise ValueError(f"entry {index} begins term {term} after term {self.term}")
        self.term, self.leader = term, node

    def apply(self, index: int, term: int, command: bytes) -> Any:
        if term < self.term:
            raise ValueError(f"entry {index} of term {term} comes after term {self.term} began")
        command_id, operation, key, *values = msgpack.unpackb(command)
        if command_id in self.applied:
            self.doubled.append(command_id)
        self.applied[command_id] = index
        if operation == "set":
            self.registers[key] = values[0]
            return True
        if operation == "cas":
            expected, new = values
            if self.registers.get(key) != expected:
                return False
            self.registers[key] = new
            return True
        raise ValueError(f"unknown operation {operation!r} at entry {index}")

    def capture(self) -> Captured:
        state = self.snapshot()
        return lambda: state

    def snapshot(self) -> bytes:
        state = [
            self.term,
            self.leader,
            sorted(self.registers.items()),
            sorted(self.applied.items()),
            self.doubled,
        ]
        packed: bytes = msgpack.packb(state)
        return packed

    def read(self, state: bytes) -> ReadState:
        term, leader, registers, applied, doubled = msgpack.unpackb(state, strict_map_key=False)
        return ReadAttributes(
            self,
            {
                "term": term,
                "leader": leader,
                "registers": dict(registers),
                "applied": dict(applied),
                "doubled": doubled,
            },
        )

    def restore(self, state: bytes) -> None:
        self.read(state).adopt()


def set_register(command_id: int, key: str, value: Any) -> bytes:
    """The command that sets a register; its result is True."""
    packed: bytes = msgpack.packb([command_id, "set", key, value])
    return packed


def compare_and_set(command_id: int, key: str, expected: Any, new: Any) -> bytes:
    """The command that sets a register if it holds `expected` (None: is unset); its result says whether."""
    packed: bytes = msgpack.packb([command_id, "cas", key, expected, new])
    return packed
