"""Schedules of leaders that know less than the last one, or are not leaders any more; and of the clock."""

from __future__ import annotations

import asyncio
from typing import Any

from strandline.node.compaction.compaction_measures import Reset
from strandline.node.partition.partition import Partition
from tests.simulation.whole.compaction.schedules import holes
from tests.simulation.whole.compaction.schedules.plan import RETENTION, A, B, C
from tests.simulation.whole.compaction.schedules.play import Hole, Schedule
from tests.simulation.whole.compaction.schedules.stage import K, Stage

DAY_MS = 86_400_000


def a_less_clean_leader_publishes_nothing(stage: Stage) -> None:
    """B leads, and still has what level one has lost in favour of a newer value.

    B has removed ripe tombstones, so its log is the smaller one, which is what makes a publication due.
    """
    stage.put(*((b"deleted %d" % number + bytes(100), None) for number in range(8)))
    older = stage.all_clean()
    stage.hold("ingest", B)
    newer = stage.put((K, b"newer"))
    stage.fill()
    stage.fill(1)
    stage.cleaned(A, C)
    stage.published()
    stage.hold("publish", A)
    clean = stage.machine.removals.level_one_clean
    stage.ripened(older)
    stage.wait("B removes tombstones", lambda: not stage.has(B, 0))
    stage.hold("round", B)
    stage.let("ingest", B)
    stage.wait("B is filled", lambda: stage.has(B, newer))
    stage.expect(stage.clean_end(B) < newer < clean, "B is less clean")
    stage.lead(B)
    stage.pass_time(3.0)
    stage.check_copies()
    stage.expect(stage.machine.removals.level_one_clean == clean, "level one stays as it is")
    stage.let("round", B)
    stage.put((K, None))
    stage.fill(1)
    stage.cleaned()
    stage.published()
    stage.expect(stage.machine.removals.level_one_clean > clean, "B publishes once it is cleaner")


def tombstones_wait_from_when_all_are_clean(stage: Stage) -> None:
    """The clock of `delete.retention.ms` begins when MTRO passes the tombstone, however old that is."""
    value = stage.all_clean()
    tombstone = stage.put((K, None), time=stage.time_ms - DAY_MS)
    stage.fill(1)
    stage.cleaned()
    stage.removed(tombstone)
    until = stage.world.now + 0.8 * RETENTION
    while stage.world.now < until:
        stage.fill(1)
        stage.cleaned()
        stage.expect(stage.everywhere(tombstone), "tombstones wait", f"{tombstone} is gone.")
    # A consumer that has read the value, and rested since.
    read = [one.offset for one in stage.read(stage.leader, offset=value + 1)]
    stage.expect(tombstone in read, "a slow consumer meets the tombstone", f"it got {read}.")
    stage.ripened(tombstone)
    stage.fill(1)
    stage.cleaned()
    stage.published()
    stage.expect(stage.nowhere(tombstone), "tombstones go", f"{tombstone} is there.")


def _staged(partition: Partition) -> tuple[list[int], asyncio.Event]:
    """Have what a leader proposes on removal wait before it comes to the log; the terms of what waits."""
    advance, waiting, go_on = partition._advance_removal, list[int](), asyncio.Event()

    async def staged(command: Any, term: int) -> Any:
        waiting.append(term)
        await go_on.wait()
        return await advance(command, term)

    partition._advance_removal = staged  # type: ignore[method-assign]
    return waiting, go_on


def _less_than_before(stage: Stage) -> None:
    """C makes its log anew, which is not filled, while B leads; A, which leads again, does not hear of it."""
    stage.lead(B)
    stage.hold("ingest", C)
    stage.rot(C)
    stage.pass_time(1.5)
    stage.hold("report", C)
    stage.lead(A)


def a_deposed_leader_changes_nothing(stage: Stage) -> None:
    """A leader's entry, and what it has heard, count in its term only, also if the same node leads again."""
    stage.all_clean()
    before = stage.machine.removals.mtro
    waiting, go_on = _staged(stage.partition(A))
    stage.put((K, None))
    stage.fill(1)
    stage.cleaned()
    stage.wait("A's entry waits", lambda: bool(waiting))
    _less_than_before(stage)
    stage.world.nodes[A].call(go_on.set)
    stage.pass_time(2.0)
    stage.expect(stage.machine.removals.mtro == before, "removal waits", "C has nothing.")
    stage.let("report", C)
    stage.let("ingest", C)
    stage.cleaned()
    stage.removed(stage.last_base - 1)
    behind = stage.brokers[C].compaction.measures.resets[Reset.BEHIND]
    stage.expect(behind == 0, "no reset", "C has been overtaken.")


def words_of_an_earlier_term_do_not_count(stage: Stage) -> None:
    """The same without an entry that waits: A computes anew, and has C's words of its last term."""
    stage.all_clean()
    stage.hold("publish", A, B)
    before = stage.machine.removals.mtro
    stage.put((K, None))
    stage.fill(1)
    stage.cleaned()
    stage.pass_time(1.5)
    _less_than_before(stage)
    stage.let("publish", A)
    stage.published()
    stage.pass_time(2.0)
    stage.expect(stage.machine.removals.mtro == before, "removal waits", "C has nothing.")
    stage.let("report", C)
    stage.let("ingest", C)
    stage.let("publish", B)


SCHEDULES = (
    Schedule(
        5,
        a_less_clean_leader_publishes_nothing,
        (Hole("less clean", "any leader publishes, and no state refuses it", holes.less_clean,
              {"clean is clean: C1": "level one"}),),
    ),
    Schedule(
        17,
        tombstones_wait_from_when_all_are_clean,
        (Hole("own time", "a tombstone's own time begins its wait", lambda: (holes.own_time(),),
              {"tombstones wait": "is gone", "a slow consumer meets the tombstone": ""}),),
    ),
    Schedule(
        20,
        a_deposed_leader_changes_nothing,
        (Hole("no term", "an entry has no term of its own", lambda: (holes.no_term(),),
              {"removal waits": "C has nothing"}),),
    ),
    Schedule(
        20,
        words_of_an_earlier_term_do_not_count,
        (Hole("any term", "a report counts in any term", lambda: (holes.any_term(),),
              {"removal waits": "C has nothing", "removal overtakes none": "node 3"}),),
    ),
)  # fmt: skip
