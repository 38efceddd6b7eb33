"""Schedules of transactions: what was aborted, what was committed, and what is open."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tests.simulation.whole.compaction.schedules import transaction_holes as holes
from tests.simulation.whole.compaction.schedules.plan import A, B, C
from tests.simulation.whole.compaction.schedules.play import Hole, Schedule
from tests.simulation.whole.compaction.schedules.stage import K, Stage

PID = 7
OTHER = 8


def aborted_is_not_served_as_committed(stage: Stage) -> None:
    """C is away when the transaction ends; it comes back, and later fills its log anew from what is raw."""
    stage.all_clean()
    stage.put((K, b"poison"), producer=PID)
    stage.fill()
    stage.pass_time(0.5)
    stage.down(C)
    stage.end(PID, commit=False)
    stage.put((b"good", b"of the next one"), producer=PID)
    stage.end(PID, commit=True)
    stage.fill(1)
    stage.hold("publish")
    stage.cleaned(A, B)
    stage.up(C)
    stage.cleaned(C)
    stage.lead(C)
    stage.check_table(C)
    stage.pass_time(2.0)
    stage.expect(len(stage.machine.aborted) == 1, "rows wait for level one", "it is raw.")
    stage.rot(C)
    stage.check_table(C)
    stage.cleaned(C)
    stage.check_table(C)
    stage.let("publish")
    stage.published()
    stage.wait("rows go", lambda: not len(stage.machine.aborted))
    stage.rot(C)
    stage.cleaned(C)
    stage.check_table(C)


def committed_is_not_dropped_as_aborted(stage: Stage) -> None:
    """C gets the end of one transaction with a snapshot, so the next marker it sees is another one's."""
    stage.all_clean()
    stage.put((K, b"good"), producer=PID)
    stage.pass_time(0.5)
    stage.hold("publish")
    stage.hold("ingest", C)
    stage.down(C)
    stage.end(PID, commit=True)
    for _ in range(12):
        stage.fill(1)
    stage.pass_time(0.5)
    stage.up(C)
    stage.put((b"bad", b"bad"), producer=PID)
    stage.end(PID, commit=False)
    stage.fill(1)
    stage.level(C)
    stage.let("ingest", C)
    stage.cleaned()
    stage.lead(C)
    stage.check_table(C)


def the_last_stable_offset_does_not_stick(stage: Stage) -> None:
    """The COMMIT marker is gone from every copy; what was committed is there."""
    stage.all_clean()
    stage.put((K, b"committed"), producer=PID)
    stage.fill()
    marker = stage.end(PID, commit=True)
    stage.fill()
    stage.fill(1)
    stage.down(C)
    stage.cleaned(A, B)
    stage.up(C)
    stage.cleaned(C)
    stage.published()
    stage.removed(marker)
    stage.ripened(marker)
    stage.fill(1)
    stage.cleaned()
    stage.published()
    stage.expect(stage.nowhere(marker), "markers go", f"{marker} is there.")
    stage.down(C)
    stage.fill(1)
    stage.up(C)
    stage.lead(C)
    partition = stage.partition(C)
    stage.expect(
        partition.last_stable_offset == partition.high_watermark, "the last stable offset moves",
        f"it is {partition.last_stable_offset} of {partition.high_watermark}.",
    )  # fmt: skip
    stage.check_table(C)


def what_is_open_supersedes_nothing(stage: Stage) -> None:
    """A transaction that is open, and will be aborted, has a newer value."""
    value = stage.all_clean()
    stage.put((K, b"not committed"), producer=PID)
    stage.fill()
    stage.fill(1)
    stage.pass_time(2.0)
    stage.expect(stage.everywhere(value), "the committed value stays", f"{value} is gone.")
    stage.check_table(stage.leader)
    stage.end(PID, commit=False)
    stage.fill(1)
    stage.cleaned()
    stage.expect(stage.everywhere(value), "the committed value stays", f"{value} is gone.")
    stage.check_table(stage.leader)


def rows_are_those_of_the_plan(stage: Stage) -> None:
    """A fetch was planned over aborted data; while its bytes come, level one is published and the rows go."""
    stage.all_clean()
    stage.hold("ingest", A)
    stage.put((K, b"poison"), producer=PID)
    stage.end(PID, commit=False)
    stage.fill(1)
    end = stage.machine.next_offset
    stage.wait("it is in level one", lambda: stage.machine.last_reconciled_offset + 1 == end)
    go_on, begun = _slow_reads(stage, A)
    task = stage.world.nodes[A].spawn(_committed(stage, A, stage.log_end(A), end))
    stage.wait("the bytes are on the way", lambda: bool(begun))
    stage.let("ingest", A)
    stage.cleaned()
    stage.published()
    stage.wait("rows go", lambda: not len(stage.machine.aborted))
    stage.world.nodes[A].call(go_on)
    stage.wait("the read ends", task.done)
    passed = [one.value for one in task.result()]
    stage.expect(b"poison" not in passed, "aborted reads", f"it got {passed}.")


def _slow_reads(stage: Stage, node: int) -> tuple[Callable[[], None], list[None]]:
    """Have what a node reads from level one come late; how it goes on, and whether a read has begun."""
    reader, begun, event = stage.brokers[node].level_one_reader, list[None](), asyncio.Event()
    read = reader.read

    async def late(*args: Any, **more: Any) -> Any:
        found = await read(*args, **more)
        begun.append(None)
        await event.wait()
        return found

    reader.read = late  # type: ignore[method-assign]
    return event.set, begun


async def _committed(stage: Stage, node: int, offset: int, end: int) -> list[Any]:
    """What a client takes for committed of one answer."""
    found: list[Any] = []
    stage.taken(await stage.partition(node).read_committed(offset, end, 1 << 20), offset, found)
    return found


SCHEDULES = (
    Schedule(
        2,
        aborted_is_not_served_as_committed,
        (Hole("rows early", "rows of aborted transactions go although level one is not settled",
              holes.rows_early, {"rows wait for level one": "it is raw", "one table": "b'poison'"}),),
    ),
    Schedule(
        3,
        committed_is_not_dropped_as_aborted,
        (Hole("next marker", "a batch is committed or not by the next marker that its replica sees",
              holes.next_marker, {"one table": "b'good'"}),),
        {"snapshots": (8, 0)},
    ),
    Schedule(
        4,
        the_last_stable_offset_does_not_stick,
        (Hole("open batches", "the transactional bit stays, and the last stable offset is that of what has "
              "no marker in the local log", holes.open_batches, {"the last stable offset moves": ""}),),
    ),
    Schedule(
        11,
        rows_are_those_of_the_plan,
        (Hole("late rows", "rows are taken when the bytes have come", lambda: (holes.late_rows(),),
              {"aborted reads": "poison"}),),
    ),
    Schedule(
        12,
        what_is_open_supersedes_nothing,
        (Hole("high watermark", "logs are filled up to the high watermark, not the last stable offset",
              holes.high_watermark, {"the committed value stays": "is gone"}),),
    ),
)  # fmt: skip
