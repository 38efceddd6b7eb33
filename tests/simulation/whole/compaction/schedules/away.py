"""Schedules of replicas that are away, come back with old files, or join."""

from __future__ import annotations

from strandline.node.compaction.compaction_measures import Reset
from tests.simulation.whole.compaction.schedules import holes
from tests.simulation.whole.compaction.schedules.plan import RETENTION, A, B, C
from tests.simulation.whole.compaction.schedules.play import Hole, Schedule
from tests.simulation.whole.compaction.schedules.stage import K, Stage


def deleted(stage: Stage) -> int:
    """Delete K, and write other keys behind that; the tombstone's offset."""
    tombstone = stage.put((K, None))
    stage.fill()
    stage.fill(1)
    return tombstone


def gone(stage: Stage, tombstone: int, *nodes: int) -> None:
    """Wait until level one, and the logs of these nodes, or of all that are up, have a tombstone no more."""
    stage.removed(tombstone)
    stage.ripened(tombstone)
    stage.fill(1)
    stage.cleaned(*(nodes or stage.brokers))
    stage.published()
    left = [node for node in nodes or stage.brokers if stage.has(node, tombstone)]
    stage.expect(
        not left and not stage.level_one_has(tombstone), "tombstones go", f"{left} have {tombstone}."
    )


def resets(stage: Stage, node: int) -> int:
    """The number of times that a node had to make a log of before anew."""
    counted = stage.brokers[node].compaction.measures.resets
    return counted[Reset.BEHIND] + counted[Reset.DAMAGED]


def a_deleted_key_does_not_come_back(stage: Stage) -> None:
    """A tombstone waits, in level one too, for the replica that is away."""
    stage.all_clean()
    before = stage.machine.removals.mtro
    stage.down(C)
    tombstone = deleted(stage)
    stage.cleaned(A, B)
    stage.published()
    stage.pass_time(3 * RETENTION)
    stage.fill(1)
    stage.cleaned(A, B)
    stage.expect(stage.machine.removals.mtro == before, "removal waits", "C is away.")
    stage.expect(stage.everywhere(tombstone), "tombstones wait", f"{tombstone} is gone.")
    stage.up(C)
    stage.lead(C)
    stage.check_table(C)
    stage.cleaned(C)
    stage.check_table(C)
    gone(stage, tombstone)
    stage.expect(resets(stage, C) == 0, "no reset", "C has lost nothing.")
    stage.check_table(C)


def _left_out(stage: Stage) -> int:
    """C stops, clean past a value of K, and is left out; the others delete K, and are clean past that.

    Returns the tombstone's offset.
    """
    stage.all_clean()
    stage.down(C)
    stage.leave(C)
    tombstone = deleted(stage)
    stage.cleaned(A, B)
    stage.published()
    return tombstone


def old_files_that_come_back_are_made_again(stage: Stage) -> None:
    """A replica that was left out, and comes back with its old files, has never met the tombstone."""
    gone(stage, _left_out(stage))
    stage.cluster.start(C)
    stage.join(C)
    stage.level(C)
    stage.cleaned(C)
    stage.lead(C)
    stage.expect(resets(stage, C) == 1, "one reset", f"there were {resets(stage, C)}.")
    stage.check_table(C)


def old_files_are_not_read_before_they_are_clean(stage: Stage) -> None:
    """The same, before the tombstone is ripe: what C lacks is still to be had, and so its log is in step.

    A reader that begins after all members are clean past the tombstone has `delete.retention.ms` for the
    whole. It must not get the value from C then: the tombstone may be gone when it comes there.
    """
    retention = 10.0
    stage.configure(delete_retention_ms=str(int(1000 * retention)))
    tombstone = _left_out(stage)
    stage.removed(tombstone)
    stage.hold("ingest", C)
    stage.cluster.start(C)
    stage.join(C)
    stage.level(C)
    stage.lead(C)
    stage.pass_time(0.3 * retention)
    began, half = stage.world.now, stage.log_end(C)
    log = stage.log(C)
    stage.expect(half <= tombstone and log is not None and log.in_step(), "the log lags, and is in step")
    read = stage.read(C, until=half, most=1)
    stage.lead(A)
    stage.let("ingest", C)
    gone(stage, tombstone)
    read += stage.read(A, offset=half)
    stage.expect(stage.world.now - began < retention, "the reader is in time", f"it began at {began}.")
    stage.check_table(A, read)
    stage.expect(resets(stage, C) == 0, "no reset", "C has met the tombstone.")


def _left_out_amid_an_ingest(stage: Stage) -> int:
    """C, whose state lags, has the result of an ingest's job; the others go on without it, and let it in.

    Returns the tombstone's offset, which the job's objects do not reach, and which is gone elsewhere.
    """
    stage.hold("ingested", C)
    stage.fill(1)
    stage.wait("C has made a segment", lambda: ("ingested", C) in stage.caught)
    stage.deaf(C)
    stage.leave(C)
    tombstone = deleted(stage)
    stage.cleaned(A, B)
    stage.published()
    gone(stage, tombstone, A, B)
    stage.deaf(C, is_so=False)
    stage.join(C)
    stage.level(C)
    return tombstone


def a_floor_is_not_raised_by_hearsay(stage: Stage) -> None:
    """A replica that was left out has planned an ingest before it hears what was removed meanwhile.

    What the others may remove is no floor of a log that has records: it may lack what deleted them.
    """
    stage.all_clean()
    _left_out_amid_an_ingest(stage)
    stage.let("ingested", C)
    stage.cleaned(C)
    stage.lead(C)
    stage.expect(resets(stage, C) == 1, "one reset", f"there were {resets(stage, C)}.")
    stage.check_table(C)


def an_install_under_a_job_drops_it(stage: Stage) -> None:
    """The same, and the state comes as a snapshot, whose ripe offset is beyond the log's end."""
    stage.all_clean()
    before = stage.partition(C).machine.removals
    _left_out_amid_an_ingest(stage)
    stage.expect(stage.partition(C).machine.removals is not before, "a snapshot is installed")
    abandoned = stage.brokers[C].compaction.measures.abandoned
    stage.let("ingested", C)
    stage.lead(C)
    stage.check_table(C)
    stage.cleaned(C)
    stage.check_table(C)
    stage.expect(stage.brokers[C].compaction.measures.abandoned > abandoned, "the job is dropped")
    stage.expect(resets(stage, C) == 1, "one reset", f"there were {resets(stage, C)}.")


def a_joiner_meets_the_tombstone(stage: Stage) -> None:
    """A copy that is being filled holds removal at its floor, which is there before the first byte."""
    stage.all_clean()
    before = stage.machine.removals.mtro
    stage.down(C)
    stage.lose_log(C)
    stage.hold("ingested", C)
    stage.up(C)
    stage.wait("C has read the value", lambda: ("ingested", C) in stage.caught)
    tombstone = deleted(stage)
    stage.cleaned(A, B)
    stage.published()
    stage.pass_time(3 * RETENTION)
    stage.expect(stage.machine.removals.mtro == before, "removal waits", "C has its floor.")
    stage.expect(stage.level_one_has(tombstone), "tombstones wait", f"{tombstone} is gone.")
    stage.let("ingested", C)
    stage.cleaned(C)
    stage.expect(resets(stage, C) == 0, "no reset", "C has what it needs.")
    gone(stage, tombstone)
    stage.put((K, b"v again"))
    stage.fill(1)
    stage.cleaned()
    stage.hold("ingest", C)
    stage.rot(C)
    stage.let("ingest", C)
    _left_out_amid_an_ingest(stage)
    stage.let("ingested", C)
    stage.lead(C)
    stage.cleaned(C)
    stage.check_table(C)


SCHEDULES = (
    Schedule(
        1,
        a_deleted_key_does_not_come_back,
        (
            Hole("answered", "the minimum is over those that answered", lambda: (holes.answered(),),
                 {"removal overtakes none": "node 3", "needless reset": "node 3"}),
            Hole("answered, in step", "the same, and every log counts as in step",
                 lambda: (holes.answered(), holes.in_step()), {"one table": "b'K': (b'v', None)"}),
        ),
    ),
    Schedule(
        6,
        old_files_that_come_back_are_made_again,
        (Hole("in step", "every log counts as in step", lambda: (holes.in_step(),),
              {"one table": "b'K': (b'v', None)"}),),
    ),
    Schedule(
        6,
        old_files_are_not_read_before_they_are_clean,
        (Hole("not clean", "a log that is in step is read, however clean it is", lambda: (holes.not_clean(),),
              {"one table": "b'K': (b'v', None)"}),),
    ),
    Schedule(
        7,
        a_joiner_meets_the_tombstone,
        (
            Hole("no floors", "floors do not count for being in step", lambda: (holes.no_floors(),),
                 {"it goes on": "nodes (3,) clean"}),
            Hole("filled first", "a copy that is being filled does not hold removal",
                 lambda: (holes.filled_first(),),
                 {"removal waits": "C has its floor", "removal overtakes none": "node 3"}),
            Hole("late floor", "the floor is written after the first byte is read", holes.late_floor,
                 {"one table": "b'K': (b'v again', None)"}),
        ),
    ),
    Schedule(
        8,
        a_floor_is_not_raised_by_hearsay,
        (Hole("hearsay floor", "a log with records takes the floors of what others may remove",
              lambda: (holes.hearsay_floor(),), {"one table": "b'K': (b'v', None)"}),),
    ),
    Schedule(
        14,
        an_install_under_a_job_drops_it,
        (
            Hole("planned only", "whether a log is in step is looked at as work is planned, and not after",
                 holes.planned_only, {"it goes on": "nodes (3,) clean"}),
            Hole("planned only, not clean", "the same, and it is read however clean it is",
                 lambda: (*holes.planned_only(), holes.not_clean()), {"one table": "b'K': (b'v', None)"}),
        ),
        {"snapshots": (8, 0)},
    ),
)  # fmt: skip
