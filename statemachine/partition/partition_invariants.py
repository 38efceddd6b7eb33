"""Invariants of a partition, one function each; docs/partition.md has the reasons why they hold.

The first eight check a state, and a restored state must pass them before it replaces another. The others
check a command against the state that it meets. Each raises Corruption: no log that correct leaders wrote
leads there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from operator import sub

from strandline.statemachine.machine import Corruption
from strandline.statemachine.partition.level_one import LevelOneExtent
from strandline.statemachine.partition.partition_state import PartitionState
from strandline.statemachine.partition.removal import Removal


def epochs_are_in_order(state: PartitionState) -> None:
    """A window's lower end lies at or above the creation epoch, its upper end at or above the lower."""
    epochs = (state.creation_epoch, state.previous_applied_epoch, state.max_applied_epoch)
    if list(epochs) != sorted(epochs):
        raise Corruption(f"epochs {', '.join(map(str, epochs))} are out of order")


def levels_meet(state: PartitionState) -> None:
    """Level one ends at the last reconciled offset, where level zero begins; the first extent of the two
    has the start offset, unless there are no records."""
    level_one, extents = state.level_one, state.extents
    if len(level_one) and level_one.end_offset != extents.first_offset:
        raise Corruption(
            f"level one ends at offset {level_one.end_offset}, level zero begins at {extents.first_offset}"
        )
    first = next(iter(level_one), None) or next(iter(extents), None)
    if first is None:
        if state.start_offset != state.next_offset:
            raise Corruption(f"no extent from {state.start_offset} to {state.next_offset}")
    elif not first.base_offset <= state.start_offset < first.end_offset:
        raise Corruption(f"the first extent, at {first.base_offset}, has no record {state.start_offset}")


def an_entry_brought_the_last_reconciled_offset(state: PartitionState) -> None:
    """Level zero begins at offset 0 until an entry moves it, and then that entry is known."""
    if (state.last_reconciled_offset >= 0) != (state.last_reconciled_log_index > 0):
        raise Corruption(
            f"offsets up to {state.last_reconciled_offset} are reconciled, by entry "
            f"{state.last_reconciled_log_index}"
        )


def removed_objects_are_not_named(state: PartitionState) -> None:
    """No removed object is named by level one; removed objects are unique and in log order."""
    for earlier, later in pairwise(state.removed):
        if later.log_index < earlier.log_index:
            raise Corruption(
                f"removed objects are out of order: {earlier.log_index} before {later.log_index}"
            )
    if len({one.unique for one in state.removed}) != len(state.removed):
        raise Corruption("an object is removed twice")
    for one in state.removed:
        if one.unique in state.level_one:
            raise Corruption(f"object {one.unique.hex()} is removed and named")


def transactions_lie_in_the_log(state: PartitionState) -> None:
    """The batches and markers of producers are below the next offset, and so are the markers of aborted
    transactions; those of the aborted transactions are not below the start offset either."""
    written = state.producers.last_offset
    first, last = state.aborted.first_marker, state.aborted.last_marker
    if max(written, -1 if last is None else last) >= state.next_offset:
        raise Corruption(
            f"a producer wrote at offset {written}, or a transaction was aborted at {last}, and the "
            f"partition ends at {state.next_offset}"
        )
    if first is not None and first < state.start_offset:
        raise Corruption(f"a transaction that was aborted at {first} lies below {state.start_offset}")


def removal_waits_for_level_one(state: PartitionState) -> None:
    """Nothing may be removed for good that level one might still have an older value of, and level one is
    clean only where it is settled, settled only below its end and where all is decided."""
    one = state.removals
    if not 0 <= one.ripe_tombstones <= one.mtro <= one.level_one_clean:
        raise Corruption(
            f"tombstones may go below {one.ripe_tombstones}, soon below {one.mtro}, and level one is clean "
            f"below {one.level_one_clean}"
        )
    if not 0 <= one.ripe_markers <= one.mxro <= one.level_one_settled:
        raise Corruption(
            f"markers may go below {one.ripe_markers}, soon below {one.mxro}, and level one is settled below "
            f"{one.level_one_settled}"
        )
    end = state.level_one_decided_end
    if not one.level_one_clean <= one.level_one_settled <= end:
        raise Corruption(
            f"level one is clean below {one.level_one_clean}, settled below {one.level_one_settled}, and "
            f"cannot be above {end}"
        )


def nothing_held_is_cleaned(state: PartitionState) -> None:
    """Level one is not clean beyond what a reader holds, unless that was deleted."""
    lowest, clean = state.holds.lowest, state.removals.level_one_clean
    if lowest is not None and clean > max(lowest, state.start_offset):
        raise Corruption(f"level one is clean below {clean}, and a reader holds what lies from {lowest} on")


def removals_rise(state: PartitionState) -> None:
    """The waiting removals rise in offsets and time, from the ripe offsets to the ones in force."""
    ends = state.removals
    before = Removal(ends.ripe_tombstones, ends.ripe_markers, 0)
    for row in ends.waiting:
        if min(map(sub, row, before)) < 0 or row[:2] == before[:2]:
            raise Corruption(f"removal {tuple(row)} waits behind {tuple(before)}")
        before = row
    if before[:2] != (ends.mtro, ends.mxro):
        raise Corruption(f"{tuple(before)} was the last removal, and {ends.mtro}, {ends.mxro} are in force")
    first = state.aborted.first_marker
    if first is not None and first < ends.mxro:
        raise Corruption(f"a transaction that was aborted at {first} lies below {ends.mxro}")


def check(state: PartitionState) -> None:
    """All that is about a state."""
    epochs_are_in_order(state)
    levels_meet(state)
    an_entry_brought_the_last_reconciled_offset(state)
    removed_objects_are_not_named(state)
    transactions_lie_in_the_log(state)
    removal_waits_for_level_one(state)
    nothing_held_is_cleaned(state)
    removals_rise(state)


def window_comes_in_order(state: PartitionState, oldest: int, newest: int) -> None:
    """Windows of appends only rise: a fence is held until its entry is in the leader's log."""
    if oldest < state.previous_applied_epoch or newest < state.max_applied_epoch:
        raise Corruption(
            f"window [{oldest}, {newest}] comes after "
            f"[{state.previous_applied_epoch}, {state.max_applied_epoch}]"
        )


def epoch_lies_in_its_window(epoch: int, oldest: int, newest: int) -> None:
    """So it lies above M(p), which is below every window that is still to come."""
    if not oldest <= epoch <= newest:
        raise Corruption(f"epoch {epoch} was never inside its fence's window [{oldest}, {newest}]")


def reconciled_batches_are_whole(state: PartitionState, objects: Sequence[LevelOneExtent]) -> None:
    """Objects that take over from level zero begin where it does, and each ends where a batch ends."""
    if not objects or objects[0].base_offset != state.extents.first_offset:
        raise Corruption(
            f"objects {objects[:1]} do not begin at offset {state.extents.first_offset}, as level zero does"
        )
    for one in objects:
        if not state.extents.is_boundary(one.end_offset):
            raise Corruption(f"object {one.unique.hex()} ends inside a batch, at offset {one.end_offset}")


def objects_are_not_of_a_later_term(state: PartitionState, objects: Sequence[LevelOneExtent]) -> None:
    """A leader writes objects in the name of its own term."""
    if any(one.term > state.term for one in objects):
        raise Corruption(f"objects are of a later term than {state.term}")


def what_is_leased_is_not_forgotten(state: PartitionState, uniques: Collection[bytes]) -> None:
    """Only objects that no leased checkpoint names are deleted, then forgotten."""
    leased = state.checkpoints.oldest_leased(state.time)
    for one in state.removed:
        if leased is not None and one.log_index > leased and one.unique in uniques:
            raise Corruption(
                f"object {one.unique.hex()} is said to be deleted, and checkpoint {leased} is leased"
            )
