"""Rules of transactions in a restored cluster taken out again: what sabotages.py opens, by name.

Nothing here is ever imported by the product.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch

import msgpack

from strandline.node.restore import restored_states
from strandline.statemachine.groups.groups import GroupsMachine
from strandline.statemachine.transactions.restored_transactions import Resumed, resumed
from strandline.statemachine.transactions.transaction_state import (
    PREPARED,
    Transaction,
    TransactionState,
    transaction_from,
)
from tests.simulation.sabotage import Sabotage


def _changed(state: bytes, change: Any) -> bytes:
    """The state of a coordinator, with each transaction changed."""
    fields: dict[str, Any] = msgpack.unpackb(state)
    rows = [transaction_from(row) for row in fields["transactions"]]
    for one in rows:
        change(one)
    packed: bytes = msgpack.packb({**fields, "transactions": [one.row() for one in rows]})
    return packed


def _forgets(one: Transaction) -> None:
    if one.state in (TransactionState.ONGOING, *PREPARED):
        one.state, one.partitions, one.groups = TransactionState.EMPTY, {}, {}


def _commits(one: Transaction) -> None:
    if one.state is TransactionState.PREPARE_ABORT:
        one.state = TransactionState.PREPARE_COMMIT


def _resumed_without_any(state: bytes, first_id: int) -> Resumed:
    """As resumed, but what is open or decided is forgotten."""
    return resumed(_changed(state, _forgets), first_id)


def _resumed_committed(state: bytes, first_id: int) -> Resumed:
    """As resumed, but all transactions are decided as committed."""
    made = resumed(state, first_id)
    return Resumed(_changed(made.state, _commits), made.producer_ids)


_moved = restored_states._moved


def _with_pending(stored: Any, group: int, kind: str, far: int) -> Any:
    """As _moved, but offsets of open transactions count as committed."""
    document = _moved(stored, group, kind, far)
    if kind != GroupsMachine.kind or not document.state:
        return document
    machine = GroupsMachine(lambda *_: None)
    machine.restore(document.state)
    for known in machine.groups.values():
        for rows in known.offsets.pending.values():
            for (topic_id, partition), row in rows.items():
                known.offsets._commit(topic_id, partition, row)
    return replace(document, state=machine.snapshot())


RESTORES: Final = (
    Sabotage(
        "restored-forgotten",
        "a restored coordinator forgets the transactions that were open or decided",
        lambda: (patch.object(restored_states, "resumed", _resumed_without_any),),
    ),
    Sabotage(
        "restored-open-committed",
        "a restored coordinator commits what was open",
        lambda: (patch.object(restored_states, "resumed", _resumed_committed),),
    ),
    Sabotage(
        "restored-pending-committed",
        "a restored group goes on behind what an open transaction has read",
        lambda: (patch.object(restored_states, "_moved", _with_pending),),
    ),
)
