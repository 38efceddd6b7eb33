"""Schedules of reports and of the files that they are about: what is told is on the disk, or taken back."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.disk import OPERATIONS
from tests.simulation.whole.compaction.faults import FOLDER
from tests.simulation.whole.compaction.schedules import holes
from tests.simulation.whole.compaction.schedules.away import deleted, resets
from tests.simulation.whole.compaction.schedules.plan import RETENTION, A, B, C
from tests.simulation.whole.compaction.schedules.play import Hole, Schedule
from tests.simulation.whole.compaction.schedules.stage import K, Stage


def _power_cut_before_the_sync(stage: Stage, node: int) -> None:
    """Cut a node's power when a manifest of its logs has its name, and its folder is not synced."""
    disk = stage.world.nodes[node].disk
    begin, renamed = disk.begin, [False]

    def begun(operation: str, name: str, torn: Callable[[], None] | None = None) -> None:
        if operation == "sync_dir" and FOLDER in name and renamed[0]:
            disk.begin = begin  # type: ignore[method-assign]
            disk.crash_at(1, "power")
        elif operation == "rename" and FOLDER in name and name.endswith("/manifest"):
            renamed[0] = True
        begin(operation, name, torn)

    disk.begin = begun  # type: ignore[method-assign]


def what_is_reported_is_durable(stage: Stage) -> None:
    """C's power is cut while the manifest that says how clean it is has its name, and is not synced."""
    stage.all_clean()
    stage.hold("round", C)
    deleted(stage)
    stage.cleaned(A, B)
    stage.published()
    _power_cut_before_the_sync(stage, C)
    stage.let("round", C)
    stage.wait("C cleans, or dies", lambda: C not in stage.brokers or stage.clean_end(C) >= stage.last_base)
    stage.hold("round", C)
    stage.pass_time(3 * RETENTION)
    stage.forget_unsynced(C)
    stage.down(C, "power")
    stage.up(C)
    stage.lead(C)
    stage.check_table(C)
    stage.let("round", C)
    stage.cleaned(C)
    stage.expect(resets(stage, C) == 0, "no reset", "C has lost nothing that it told.")


def the_newest_word_counts(stage: Stage) -> None:
    """C loses its files twice at one entry of the log, so nothing but their order tells its words apart."""
    stage.all_clean()
    before = stage.machine.removals.mtro
    stage.hold("publish")
    tombstone = deleted(stage)
    stage.cleaned()
    stage.deaf(C)
    stage.rot(C)
    stage.cleaned(C)
    stage.pass_time(1.0)
    stage.hold("ingest", C)
    stage.rot(C)
    stage.pass_time(1.0)
    stage.deaf(C, is_so=False)
    stage.let("publish")
    stage.published()
    stage.pass_time(3 * RETENTION)
    stage.expect(stage.machine.removals.mtro == before, "removal waits", "C has nothing.")
    stage.expect(stage.level_one_has(tombstone), "tombstones wait", f"{tombstone} is gone.")
    stage.let("ingest", C)
    stage.cleaned(C)


def _crash_at(stage: Stage, node: int, operation: int, kind: str) -> Callable[[], None]:
    """Have a node die in the n-th operation from now that changes files of its logs; how to call that off."""
    disk = stage.world.nodes[node].disk
    begin, left = disk.begin, [operation]

    def begun(operation: str, name: str, torn: Callable[[], None] | None = None) -> None:
        if FOLDER in name and operation in OPERATIONS:
            left[0] -= 1
            if not left[0]:
                call_off()
                disk.crash_at(1, kind)
        begin(operation, name, torn)

    def call_off() -> None:
        disk.begin = begin  # type: ignore[method-assign]

    disk.begin = begun  # type: ignore[method-assign]
    return call_off


def a_torn_swap_leaves_one_view(stage: Stage) -> None:
    """C dies in every other operation of an ingest and the round behind it, killed or without power.

    `tests/compaction/test_upkeep_crashes.py` has all operations, on one node without the rest of a broker.
    """
    stage.all_clean()
    operation = 1
    while True:
        call_off = _crash_at(stage, C, operation, "kill" if operation % 4 == 1 else "power")
        stage.put((K, b"%d" % operation), (b"other", None))
        stage.wait("C dies, or is through", lambda: C not in stage.brokers or stage.is_clean(C))
        call_off()
        if C in stage.brokers:
            break
        stage.up(C)
        stage.cleaned(C)
        stage.expect(resets(stage, C) == 0, "no reset", f"C died in operation {operation}.")
        operation += 2
    stage.expect(operation > 15, "there are many operations to die in", f"{operation}")
    stage.lead(C)
    stage.check_table(C)


SCHEDULES = (
    Schedule(
        9,
        what_is_reported_is_durable,
        (Hole("unsynced", "a manifest counts before its folder is synced", lambda: (holes.unsynced(),),
              {"reports are durable": "node 3", "removal overtakes none": "node 3"}),),
    ),
    Schedule(
        13,
        a_torn_swap_leaves_one_view,
        (
            Hole("unlinks first", "files go before the manifest names them no more",
                 lambda: (holes.unlinks_first(),), {"needless reset": "is not there"}),
            Hole("unsynced segment", "the manifest is written before its segments are synced",
                 holes.unsynced_segment, {"needless reset": "node 3"}),
        ),
    ),
    Schedule(
        10,
        the_newest_word_counts,
        (
            Hole("greatest", "the greatest word counts", lambda: (holes.greatest(),),
                 {"removal waits": "C has nothing", "removal overtakes none": "node 3"}),
            Hole("greatest of a reset", "of words with one reset index the greatest counts",
                 lambda: (holes.greatest_of_a_reset(),),
                 {"removal waits": "C has nothing", "removal overtakes none": "node 3"}),
        ),
    ),
)  # fmt: skip
