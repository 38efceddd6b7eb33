"""Schedules of a log's ends: its last batch, a full map, a start offset that moves, a policy that changes."""

from __future__ import annotations

from strandline.statemachine.partition.partition_commands import Appended, ReleaseHold, RenewHold
from tests.simulation.whole.compaction.schedules import end_holes as holes
from tests.simulation.whole.compaction.schedules.away import gone, resets
from tests.simulation.whole.compaction.schedules.plan import RETENTION, A, B, C
from tests.simulation.whole.compaction.schedules.play import Hole, Schedule
from tests.simulation.whole.compaction.schedules.stage import K, Stage

PID = 7
MAP_KEYS = 100
_SLOT_BYTES = 32


def every_consumer_comes_to_the_end(stage: Stage) -> None:
    """The newest records are superseded, aborted, or ripe tombstones, so that the end is full of holes."""
    stage.all_clean()
    for number in range(4):
        stage.put((b"last", b"%d" % number))
    stage.put((b"first", b"aborted"), (b"second", b"aborted"), producer=PID)
    marker = stage.end(PID, commit=False)
    tombstone = stage.put((K, None))
    stage.cleaned()
    stage.published()
    stage.pass_time(2 * RETENTION)
    stage.put((b"last", b"5"))
    last = stage.put((b"last", None))
    stage.wait("the log is clean", lambda: all(stage.clean_end(node) >= last for node in stage.brokers))
    stage.removed(tombstone)
    stage.ripened(tombstone)
    stage.pass_time(3 * RETENTION)
    stage.expect(stage.nowhere(marker), "markers go", f"{marker} is there.")
    for node in (A, C, B):
        stage.lead(node)
        if node == B:
            stage.hold("ingest", B)
            stage.rot(B)  # so that level one answers
        for offset in range(last + 1):
            stage.read(node, offset=offset, most=1)
    stage.let("ingest", B)
    stage.filled()
    stage.expect(stage.everywhere(last), "the newest batch stays", f"{last} is gone.")


def a_producer_is_known_without_its_batches(stage: Stage) -> None:
    """A producer's last batch is superseded and gone from every copy; it sends that again, and goes on."""
    stage.all_clean()
    first = stage.put((K, b"1"), producer=PID, transactional=False)
    sent = stage.last_sent
    stage.put((K, b"2"))
    stage.fill(1)
    stage.cleaned()
    stage.published()
    stage.expect(stage.nowhere(first), "what is superseded goes", f"{first} is there.")
    stage.down(C)
    stage.up(C)
    stage.lead(C)
    again = stage.send(sent)
    stage.expect(again == Appended(first, True), "retries are found", f"it was appended: {again}.")
    stage.put((K, b"3"), producer=PID, transactional=False)


def a_full_map_ends_the_round(stage: Stage) -> None:
    """Ten times as many keys as the map has room for: each round ends where it was full."""
    stage.fill(1)
    stage.cleaned(A)
    stage.hold("round")
    rounds = stage.brokers[A].compaction.measures.rounds
    for number in range(20):
        first = number % 10 * 100
        stage.put(*((b"key %d" % key, b"%d" % number) for key in range(first, first + 50)))
    stage.let("round")
    stage.cleaned()
    done = stage.brokers[A].compaction.measures.rounds - rounds
    stage.expect(done >= 5, "a round ends where its map is full", f"there were {done}.")


def the_start_moves_under_a_round(stage: Stage) -> None:
    """DeleteRecords into what a round is cleaning, then beyond the end of a log that lags."""
    stage.configure(cleanup_policy="compact,delete")
    stage.all_clean()
    stage.hold("round")
    for number in range(12):
        stage.put((K, bytes(200)), (b"key %d" % number, bytes(200)))
    stage.filled()
    stage.hold("filtered", A)
    stage.let("round")
    stage.wait("a step of A's round is done", lambda: ("filtered", A) in stage.caught)
    middle = stage.machine.next_offset - 7
    stage.begin_at(middle)
    stage.cleaned(B, C)
    stage.let("filtered", A)
    stage.fill(1)
    stage.cleaned()
    for node in stage.brokers:
        base = min(one.offset for one in stage.records(node))
        stage.expect(base >= middle - 2, "what lies below the start goes", f"{base} is in log {node}.")
    stage.check_copies()
    stage.published()
    stage.hold("ingested", C)
    stage.fill(1)
    stage.wait("C has made a segment", lambda: ("ingested", C) in stage.caught)
    stage.fill()
    stage.fill(1)
    stage.begin_at(stage.last_base - 1)
    stage.cleaned(A, B)
    stage.ripened(stage.last_base - 2)
    stage.let("ingested", C)
    stage.cleaned()
    stage.rot(B)
    stage.cleaned()
    stage.lead(C)
    stage.check_table(C)
    stage.expect(resets(stage, C) == 0, "no reset", "C has lost nothing.")


def a_policy_changes_twice(stage: Stage) -> None:
    """The topic is not compacted for a while, and a key is deleted, while C is away with its log."""
    stage.all_clean()
    stage.ripened(stage.last_base - 1)
    stage.down(C)
    stage.configure(cleanup_policy="delete")
    stage.wait("logs go", lambda: stage.log(A) is None and stage.log(B) is None)
    tombstone = stage.put((K, None))
    stage.fill()
    stage.fill(1)
    stage.pass_time(1.0)
    stage.configure(cleanup_policy="compact")
    stage.cleaned(A, B)
    stage.published()
    stage.pass_time(2 * RETENTION)
    stage.expect(stage.everywhere(tombstone), "tombstones wait", f"{tombstone} is gone.")
    stage.up(C)
    stage.cleaned(C)
    stage.lead(C)
    stage.check_table(C)
    gone(stage, tombstone)
    stage.check_table(C)
    stage.expect(resets(stage, A) + resets(stage, B) == 0, "no reset", "a log is made once.")


def what_a_reader_holds_stays(stage: Stage) -> None:
    """K has two values behind a hold. B fills its log anew, C restarts and has not heard of the hold again.

    C's log has what lies behind the hold all the same.
    """
    stage.all_clean()
    held = stage.machine.lowest_holdable
    stage.execute(RenewHold("a view", held, 3_600_000))
    first = stage.put((K, b"first"))
    stage.fill(1)
    stage.put((K, b"second"))
    stage.fill()
    stage.fill(1)
    stage.filled()
    stage.rot(B)
    stage.filled()
    stage.down(C)
    stage.deaf(C)
    stage.cluster.start(C)
    stage.wait("C has its log", lambda: stage.log_end(C) == stage.machine.next_offset)
    stage.expect(not stage.partition(C).machine.holds, "C has not heard of the hold")
    stage.pass_time(2.0)
    stage.expect(stage.everywhere(first), "what is held stays", f"{first} is gone.")
    stage.deaf(C, is_so=False)
    stage.level(C)
    stage.lead(C)
    stage.fill(1)
    stage.filled()
    stage.pass_time(2.0)
    stage.expect(stage.everywhere(first), "what is held stays", f"{first} is gone.")
    stage.execute(ReleaseHold("a view"))
    stage.fill(1)
    stage.cleaned()
    stage.published()
    stage.expect(stage.nowhere(first), "what is superseded goes", f"{first} is there.")


SCHEDULES = (
    Schedule(
        15,
        every_consumer_comes_to_the_end,
        (
            Hole("last batch", "a round cleans the last batch too", holes.last_batch,
                 {"the newest batch stays": "is gone"}),
            Hole("removed end", "the same, and level one is published to a removed end", holes.removed_end,
                 {"a consumer comes to the end": "from 27"}),
            Hole("empty batch", "a marker that goes leaves an empty batch", lambda: (holes.empty_batch(),),
                 {"exception": "no batch is empty"}),
        ),
    ),
    Schedule(
        15,
        a_producer_is_known_without_its_batches,
        (Hole("producers", "a producer goes with its last batch", lambda: (holes.forgets_producers(),),
              {"retries are found": "it was appended"}),),
    ),
    Schedule(
        16,
        a_full_map_ends_the_round,
        (Hole("planned bound", "a log counts as clean to where its round was to end",
              lambda: (holes.planned_bound(),), {"clean is clean: C1": "the log of node 1"}),),
        {"map_bytes": MAP_KEYS * _SLOT_BYTES},
    ),
    Schedule(
        18,
        the_start_moves_under_a_round,
        (
            Hole("blind swap", "the front of a log is cut amid a round", lambda: (holes.blind_swap(),),
                 {"needless reset": "is not there"}),
            Hole("start ignored", "a log does not follow the start offset", lambda: (holes.start_ignored(),),
                 {"what lies below the start goes": ""}),
            Hole("start not in step", "a log that ends below the start offset is not in step",
                 lambda: (holes.start_not_in_step(),), {"needless reset": "node 3"}),
        ),
        {"segment_bytes": 600},
    ),
    Schedule(
        19,
        a_policy_changes_twice,
        (Hole("floors of before", "a log that is made again has no new floors", lambda: (holes.old_floors(),),
              {"it goes on": "clean"}),),
    ),
    Schedule(
        22,
        what_a_reader_holds_stays,
        (
            Hole("no holds", "a round does not end at holds", lambda: (holes.no_holds(),),
                 {"what is held stays": "is gone"}),
            Hole("by the log alone", "a replica cleans what its log has, whatever its state has heard of",
                 lambda: (holes.by_the_log_alone(),), {"what is held stays": "is gone"}),
        ),
    ),
)  # fmt: skip
