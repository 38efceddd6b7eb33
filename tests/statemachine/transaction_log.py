"""A coordinator of transactions and its log, driven by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strandline.statemachine.coordinator_machine import encode
from strandline.statemachine.transactions.transaction_commands import (
    Abort,
    Complete,
    End,
    Enlist,
    ExpireIds,
    InitializeProducer,
    TransactionCommand,
)
from strandline.statemachine.transactions.transaction_state import Transaction
from strandline.statemachine.transactions.transactions import TransactionsMachine

TOPIC = bytes(range(16))
P0, P1, P2 = ((TOPIC, number) for number in range(3))
DAY = 24 * 3600 * 1000


class Log:
    """One machine; every command is one entry. Times are ms."""

    def __init__(self) -> None:
        self.machine = TransactionsMachine(lambda index, state: None)
        self.index = 1
        self.term = 1
        self.now = 1000
        self.next_id = 4000
        self.machine.begin_term(1, 1, 1)

    def apply(self, command: TransactionCommand) -> Any:
        self.index += 1
        return self.machine.apply(self.index, self.term, encode(self.term, self.now, command))

    def new_id(self) -> int:
        self.next_id += 1
        return self.next_id

    def init(self, tid: str = "t", of: tuple[int, int] = (-1, -1), timeout: int = 60_000) -> Any:
        return self.apply(InitializeProducer(tid, timeout, *of, self.new_id()))

    def add(
        self, of: tuple[int, int], *partitions: tuple[bytes, int], groups: Sequence[str] = (), tid: str = "t"
    ) -> Any:
        return self.apply(Enlist(tid, *of, partitions, groups))

    def end(self, of: tuple[int, int], commit: bool = True, *, raises: bool, tid: str = "t") -> Any:
        return self.apply(End(tid, *of, commit, raises, self.new_id()))

    def abort(self, number: int, tid: str = "t") -> Any:
        return self.apply(Abort(tid, number))

    def complete(self, number: int, tid: str = "t") -> Any:
        return self.apply(Complete(tid, number))

    def expire(self, ms: int = 7 * DAY) -> Any:
        return self.apply(ExpireIds(ms, self.now))

    def row(self, tid: str = "t") -> Transaction:
        return self.machine.transactions[tid]

    def restored(self) -> TransactionsMachine:
        """Another machine with this one's snapshot."""
        other = TransactionsMachine(lambda index, state: None)
        other.restore(self.machine.snapshot())
        return other
