"""Rules of transactions that set pieces take out. Nothing here is ever imported by the product."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from strandline.node.compaction import ingest, ingest_plan, log_filling, log_upkeep
from strandline.node.compaction.ingest_plan import WaitingOffsets
from strandline.node.compaction.manifest import Manifest
from strandline.node.compaction.removal_leader import Copies, RemovalLeader
from strandline.node.compaction.removal_minimum import Ends
from strandline.node.compaction.rewriting import Rewritten, settled
from strandline.node.partition.partition import Partition
from strandline.node.partition.stored_batches import CommittedRead, StoredBatches
from strandline.statemachine.partition import partition as partition_state
from strandline.statemachine.partition import partition_invariants
from strandline.statemachine.partition.aborted_transactions import AbortedTransactions
from strandline.statemachine.partition.partition import PartitionStateMachine
from strandline.statemachine.partition.partition_commands import PartitionOpcode
from tests.simulation.sabotage import Broken

TRANSACTIONAL, CONTROL = 0x10, 0x20


def _settled_everywhere(self: RemovalLeader, replica: Any) -> Copies:
    found = _copies(self, replica)
    return found._replace(level_one=Ends(found.level_one.mcco, replica.machine.last_stable_offset))


_copies = RemovalLeader.copies


def rows_early() -> tuple[Broken, ...]:
    """MXRO does not wait for level one, and no state asserts that it does."""
    return (
        patch.object(RemovalLeader, "copies", _settled_everywhere),
        patch.object(partition_invariants, "removal_waits_for_level_one", lambda state: None),
    )


def next_marker() -> tuple[Broken, ...]:
    """A replica notes the markers that it applies: each decides on all that is before it, of its producer."""
    seen: dict[int, dict[int, list[tuple[int, int, int]]]] = {}
    """By the object that has a replica's rows, and by producer: from the marker before to each ABORT."""
    marks: dict[tuple[int, int], int] = {}
    alive: list[Any] = []

    def end(self: PartitionStateMachine, index: int, producer_id: int, *fields: Any) -> Any:
        offset, commit, key = self.next_offset, fields[2], (id(self.aborted), producer_id)
        result = _end(self, index, producer_id, *fields)
        if self.next_offset > offset:
            alive.append(self.aborted)
            if not commit:
                row = (producer_id, marks.get(key, -1) + 1, offset)
                seen.setdefault(key[0], {}).setdefault(producer_id, []).append(row)
            marks[key] = offset
        return result

    def frozen(self: AbortedTransactions) -> AbortedTransactions:
        taken = _frozen(self)
        alive.append(taken)
        seen[id(taken)] = seen.get(id(self), {})
        return taken

    def packed(aborted: AbortedTransactions, first: int, end: int) -> bytes:
        rows = [row for rows in seen[id(aborted)].values() for row in rows]
        return b"".join(ingest_plan._ABORTED_ROW.pack(*row) for row in rows)

    return (
        patch.dict(partition_state._HANDLERS, {PartitionOpcode.END_TRANSACTION: end}),
        patch.object(AbortedTransactions, "frozen", frozen),
        patch.object(log_filling, "packed_rows", packed),
    )


_end = PartitionStateMachine._end_transaction
_frozen = AbortedTransactions.frozen


def _settled_but_the_bit(data: bytes, aborted: Any) -> Iterator[Rewritten]:
    """As `settled`, but what is committed stays as it is."""
    before = {int.from_bytes(one[:8], "big"): one for one in _batches(data)}
    for one in settled(data, aborted):
        yield one._replace(data=before[one.base_offset])


def _batches(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        size = 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        yield bytes(data[at : at + size])
        at += size


def _first_open(self: Partition) -> int:
    """The base offset of the first transactional batch of the local log with no marker behind it."""
    stable: int = _last_stable(self)
    local = self._batches._local
    log = None if local is None else local._log_of(self.group.id)
    view = None if log is None else log.readable()
    opened: dict[bytes, int] = {}
    for segment in () if view is None else view.segments:
        for block in segment.footer.blocks:
            for batch in _batches(segment.batches(block)[0]):
                producer = batch[43:51]
                if batch[22] & CONTROL:
                    opened.pop(producer, None)
                elif batch[22] & TRANSACTIONAL:
                    opened.setdefault(producer, int.from_bytes(batch[:8], "big"))
    return min([stable, *opened.values()])


_last_stable = Partition.last_stable_offset.fget  # type: ignore[attr-defined]


def open_batches() -> tuple[Broken, ...]:
    """The last stable offset is that of the local log's batches, which keep the transactional bit."""
    return (
        patch.object(ingest, "settled", _settled_but_the_bit),
        patch.object(Partition, "last_stable_offset", property(_first_open)),
    )


async def _rows_after(
    self: StoredBatches, offset: int, end: int, max_bytes: int, *, files: bool = False
) -> CommittedRead:
    local = await self._locally(offset, end, max_bytes)
    if local:
        return CommittedRead(local, [])
    batches, _ = await self._planned(offset, end, max_bytes, files)
    rows = self._machine.aborted
    return CommittedRead(batches, rows.between(offset, batches[-1].end_offset) if batches else [])


def late_rows() -> Broken:
    """The aborted transactions of a read are those of the state when its bytes have come."""
    return patch.object(StoredBatches, "read_committed", _rows_after)


class _AllIsStable:
    """A state whose last stable offset is the high watermark."""

    def __init__(self, machine: Any) -> None:
        self._machine = machine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._machine, "high_watermark" if name == "last_stable_offset" else name)


def _to_the_high_watermark(manifest: Manifest, machine: Any, most_bytes: int) -> WaitingOffsets | None:
    return _waiting(manifest, _AllIsStable(machine), most_bytes)  # type: ignore[arg-type]


_waiting = ingest_plan.waiting


def high_watermark() -> tuple[Broken, ...]:
    """Logs are filled up to the high watermark."""
    return tuple(
        patch.object(module, "waiting", _to_the_high_watermark) for module in (log_filling, log_upkeep)
    )
