"""Every batch a partition ever got, with its offset and where it lay, as logs and checkpoints tell.

A state forgets where a batch lay in level zero once level one has it, or once it is below the start offset.
The log that put it there does not, nor does an older checkpoint. Each batch is told once.
"""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np
from pyspark.sql.types import BinaryType, LongType, StringType, StructField

from strandline.snapshot.document import SnapshotDocument
from strandline.snapshot.extent_rows import EXTENT_ROWS
from strandline.statemachine.object_names import object_name
from strandline.statemachine.partition.extent import INLINE_ROW, StoredInline
from strandline.statemachine.partition.partition import PartitionStateMachine
from strandline.statemachine.partition.partition_commands import (
    Appended,
    EntryResult,
    PartitionOpcode,
    TransactionEnded,
)
from strandline.statemachine.partition.placeholder import InlineBatch, Placeholder

WRITTEN_FIELDS = [
    StructField("base_offset", LongType()),
    StructField("record_count", LongType()),
    StructField("leader_epoch", LongType()),
    StructField("length", LongType()),
    StructField("epoch", LongType()),
    StructField("position", LongType()),
    StructField("object", StringType()),
    StructField("inline", BinaryType()),
]
"""`base_offset` is null for a batch that was refused: its object is named all the same; and for one that was
told when it came, with its bytes, and has a place in an object since."""

Batch = tuple[int | None, int, int, int, int | None, int | None, str | None, bytes | None]


class WrittenBatches:
    """One partition's batches, in the order of its checkpoints and the logs between them."""

    def __init__(self) -> None:
        self._found: list[Batch] = []
        self._end = 0
        """All known batches below this offset were told."""

    def found(self) -> list[Batch]:
        """New findings since the last call."""
        found, self._found = self._found, []
        return found

    def applied(self, term: int, entry: bytes, result: Any) -> None:
        """An entry was applied in a term, with this result."""
        answers: EntryResult = result
        _, _, commands = msgpack.unpackb(entry)
        for number, (kind, *fields) in enumerate(commands):
            if kind == PartitionOpcode.APPEND:
                for place, row in enumerate(fields[2]):
                    self._append(term, Placeholder(*row), _offset(answers, number, place))
            elif kind == PartitionOpcode.APPEND_INLINE:
                for place, row in enumerate(fields[0]):
                    offset = _offset(answers, number, place)
                    if offset is not None:
                        self._append(term, InlineBatch(*row), offset)
            elif kind == PartitionOpcode.STORE_INLINE:
                for stored in map(StoredInline._make, fields[2]):
                    name = object_name(stored.epoch, stored.object_id)
                    where = (stored.epoch, stored.position, name, None)
                    self._found.append((None, 0, term, stored.length, *where))
            elif kind == PartitionOpcode.END_TRANSACTION:
                offset = _marker_offset(answers, number)
                if offset is not None:
                    self._append(term, InlineBatch(1, fields[5], fields[6]), offset)

    def _append(self, term: int, batch: Placeholder | InlineBatch, offset: int | None) -> None:
        if offset is not None:
            self._end = offset + batch.record_count
        if isinstance(batch, InlineBatch):
            where = (None, None, None, batch.data)
            self._found.append((offset, batch.record_count, term, len(batch.data), *where))
        else:
            name = object_name(batch.epoch, batch.object_id)
            self._found.append(
                (offset, batch.record_count, term, batch.length, batch.epoch, batch.position, name, None)
            )

    def in_state(self, document: SnapshotDocument) -> None:
        """A checkpoint was read: what only it still tells is added."""
        if document.kind != PartitionStateMachine.kind:
            return
        try:
            state = msgpack.unpackb(document.state)
            rows = np.frombuffer(state["extents"], EXTENT_ROWS)
            inline = dict(state["inline"])
        except Exception:
            return  # the audit of the documents names it
        for row in rows[rows["base_offset"] >= self._end].tolist():
            kind, base, count, term, _, length, epoch, position, identity = row
            if kind == INLINE_ROW:
                self._found.append((base, count, term, length, None, None, None, inline.get(base)))
            else:
                name = object_name(epoch, identity)
                self._found.append((base, count, term, length, epoch, position, name, None))
            self._end = base + count


def _marker_offset(answers: EntryResult, number: int) -> int | None:
    answer = answers[number] if isinstance(answers, list) else None
    return answer.base_offset if isinstance(answer, TransactionEnded) else None


def _offset(answers: EntryResult, number: int, place: int) -> int | None:
    """The offset that a batch got in this very entry; None when it was refused, or was there already."""
    if not isinstance(answers, list):
        return None
    answer = answers[number]
    one = answer[place] if isinstance(answer, list) else None
    return one.base_offset if isinstance(one, Appended) and not one.duplicate else None
