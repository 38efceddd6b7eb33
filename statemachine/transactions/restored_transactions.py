"""The state of a coordinator of transactions as a restored cluster begins with it."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgpack

from strandline.statemachine.transactions.transaction_commands import NO_EPOCH, NO_PRODUCER_ID
from strandline.statemachine.transactions.transaction_state import TransactionState, transaction_from
from strandline.statemachine.transactions.transactions import TransactionsMachine


class Resumed(NamedTuple):
    """A state, and the number of producer ids that it took."""

    state: bytes
    producer_ids: int


def resumed(state: bytes, first_id: int) -> Resumed:
    """The state that a restore point's becomes; raises ValueError for one that cannot be read.

    Open transactions are decided as aborted: their producers may have written more than was restored. Each
    transactional id gets a new producer id, from `first_id` on, so that no process from before is listened to
    again. What was decided and is not complete stays so: its markers are written once more.
    """
    TransactionsMachine(lambda index, captured: None).read(state)
    fields: dict[str, Any] = msgpack.unpackb(state)
    rows = []
    for number, row in enumerate(fields["transactions"]):
        one = transaction_from(row)
        if one.state is TransactionState.ONGOING:
            one.raise_epoch(NO_PRODUCER_ID)
            one.state = TransactionState.PREPARE_ABORT
        one.producer_id, one.epoch = first_id + number, 0
        one.remember((NO_PRODUCER_ID, NO_EPOCH))
        rows.append(one.row())
    packed: bytes = msgpack.packb({**fields, "transactions": rows})
    return Resumed(packed, len(rows))
