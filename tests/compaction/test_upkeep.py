"""The upkeep of local logs on one node: filled, cleaned, reset, trimmed, removed, as states and topics
say."""

from __future__ import annotations

import errno
import re
from dataclasses import replace
from os.path import dirname
from unittest.mock import patch

import pytest
from crc32c import crc32c

from strandline.node.compaction.compaction_measures import Reset
from strandline.node.compaction.compactor import Filtered, FilterJob, IngestJob, JobFailed, MapJob, Why
from strandline.node.compaction.key_map import KeyHash, KeyMap
from strandline.node.compaction.log_folders import MANIFEST, log_folder, remove_log
from strandline.node.compaction.log_sweep import SWEEP_SECONDS
from strandline.node.compaction.removal_minimum import Ends
from strandline.node.compaction.replica_log import ReplicaLog
from strandline.node.compaction.segment_files import LocalLogDamaged, write_made
from strandline.node.compaction.store_compactor import StoreCompactor
from strandline.statemachine.partition.partition_commands import ReplaceLevelOne, SetStartOffset
from tests.compaction.filling import ends_of, fill, manifest_of
from tests.compaction.logs import TIME, Plan
from tests.compaction.upkeep_harness import (
    CONFIG,
    EAGER,
    KIB,
    Replica,
    check,
    compaction_node,
    contents,
)


def offsets(log: ReplicaLog) -> list[int]:
    return [one.offset for one in contents(log)]


# Filling and cleaning.


def test_a_log_is_filled_and_cleaned_up_to_its_last_batch() -> None:
    with compaction_node() as node:
        replica = node.add()
        fill(replica, 100)
        node.settle()
        log = node.log(replica)
        assert ends_of(log) == Ends(99, 100)
        check(log)
        # The last batch is not cleaned: its key's record before it stays.
        assert offsets(log) == [94, 95, 96, 97, 98, 99]
        assert (node.upkeep.measures.resets[Reset.NEW], log.resets) == (1, 0)
        fill(replica, 7)
        node.settle()
        assert ends_of(log) == Ends(106, 107)
        check(log)
        assert offsets(log) == [101, 102, 103, 104, 105, 106]
        assert len(manifest_of(log).segments) == 3, "what was clean, what is, the rest: others are joined"
        assert node.upkeep.states() == {"open": 1, "closed": 0, "stuck": 0}


def test_a_log_ends_at_the_last_stable_offset_and_has_no_transactional_data() -> None:
    with compaction_node() as node:
        replica = node.add()
        replica.put(Plan(((b"a", b"committed", 0),)), producer=7)
        replica.put(Plan(((b"b", b"aborted", 0),)), producer=8)
        replica.put(Plan(((b"c", b"plain", 0),)))
        replica.end(7, commit=True)
        replica.end(8, commit=False)
        opened = replica.put(Plan(((b"c", b"open", 0),)), producer=7)
        replica.put(Plan(((b"a", b"plain", 0),)))
        replica.lift()
        node.settle()
        log = node.log(replica)
        assert ends_of(log) == Ends(4, opened)
        assert [(one.key, one.value) for one in contents(log) if not one.marker] == [
            (b"a", b"committed"),
            (b"c", b"plain"),
        ]
        check(log)
        replica.end(7, commit=False)
        replica.lift()
        node.settle()
        assert ends_of(log) == Ends(7, 8)
        # The aborted value superseded nothing, and the committed one is superseded.
        assert [(one.key, one.value) for one in contents(log) if not one.marker] == [
            (b"c", b"plain"),
            (b"a", b"plain"),
        ]
        check(log)
        it = log.log
        assert it is not None
        for one in it.view.segments:
            for block in one.footer.blocks:
                data, spans = one.batches(block)
                for span in spans:
                    attributes = data[span.position - block.position + 22]
                    assert attributes & 0x30 in (0x00, 0x30), "only markers have the bit"


def test_small_amounts_wait_and_large_ones_do_not() -> None:
    with compaction_node() as node:
        replica = node.add()
        node.step(0.1)
        fill(replica, 3)
        for _ in range(8):
            assert not node.step(1.0)
            assert not node.upkeep.due(replica.id), "the status does not call what waits due"
        node.world.run(node.world.now + 3.0)
        assert node.upkeep.due(replica.id)
        assert node.step(0.0), "ten seconds"
        assert manifest_of(node.log(replica)).log_end == 3
        fill(replica, 40)
        for _ in range(4):
            node.step(0.1)
        assert manifest_of(node.log(replica)).log_end > 3, "there is more than ingest_bytes"


@pytest.mark.parametrize(
    ("configs", "rounds"),
    [
        ({"min.cleanable.dirty.ratio": "0.9"}, [1, 1, 1]),
        ({"min.cleanable.dirty.ratio": "0.2"}, [1, 2, 2]),
        ({"min.cleanable.dirty.ratio": "1.0", "max.compaction.lag.ms": "60000"}, [0, 0, 1]),
    ],
)
def test_a_round_is_due_by_ratio_or_by_age(configs: dict[str, str], rounds: list[int]) -> None:
    """All of it is dirty at first; then a third of it is; then that is two minutes old."""
    with compaction_node() as node:
        replica = node.add(configs={**EAGER, **configs})
        fill(replica, 40, keys=30)
        node.settle()
        found = [node.upkeep.measures.rounds]
        node.now_ms += 30_000
        for each in range(12):
            replica.put(Plan(((b"key %d" % each, b"v", 30_000),)))
        replica.lift()
        node.settle()
        found.append(node.upkeep.measures.rounds)
        node.now_ms += 120_000
        node.settle()
        found.append(node.upkeep.measures.rounds)
        assert found == rounds
        check(node.log(replica))


def test_what_is_too_young_is_not_cleaned_until_it_is_old_enough() -> None:
    with compaction_node() as node:
        replica = node.add(configs={**EAGER, "min.compaction.lag.ms": "60000"})
        for each in range(10):
            replica.put(Plan(((b"k", b"%d" % each, 10_000 * each),)))
        replica.lift()
        node.now_ms = TIME + 100_000
        node.settle()
        log = node.log(replica)
        # 100 s - 60 s: records up to 40 s may go.
        assert ends_of(log) == Ends(5, 10)
        assert offsets(log) == [4, 5, 6, 7, 8, 9]
        steps = node.upkeep.measures.rounds
        node.settle()
        assert node.upkeep.measures.rounds == steps, "it is not tried in vain"
        node.now_ms += 20_001
        node.settle()
        assert ends_of(log) == Ends(7, 10)
        check(log)


def test_the_end_of_a_log_that_gets_little_at_a_time_is_overdue_by_its_own_time() -> None:
    """The last batch is never cleaned, and is written again with what comes: each had a round of its own."""
    hour = 3_600_000
    config = replace(CONFIG, segment_bytes=64 * KIB, ingest_bytes=64 * KIB)
    with compaction_node(config) as node:
        configs = {**EAGER, "min.cleanable.dirty.ratio": "1.0", "max.compaction.lag.ms": f"{hour}"}
        replica = node.add(configs=configs)
        fill(replica, 40)
        for tenths in range(1, 61):
            node.now_ms = TIME + tenths * hour // 10
            replica.put(Plan(((b"key %d" % (tenths % 5), b"v", tenths * hour // 10),)))
            replica.lift()
            node.settle()
        assert node.upkeep.measures.rounds == 6, "once an hour"
        # A time that is to come yet lets it wait no longer than one that is not known: from the round on.
        replica.put(Plan(((b"key 1", b"later", 1_000 * hour),)))
        replica.lift()
        node.now_ms += hour
        node.settle()
        [rest] = [one for one in manifest_of(node.log(replica)).segments if one.end_offset == 101]
        assert (rest.base_offset, rest.ingested_at) == (100, node.now_ms)


def test_what_was_too_young_is_cleaned_when_the_topic_says_so() -> None:
    with compaction_node() as node:
        replica = node.add(configs={**EAGER, "min.compaction.lag.ms": "86400000"})
        for each in range(10):
            replica.put(Plan(((b"k", b"%d" % each, 0),)))
        replica.lift()
        node.settle()
        log = node.log(replica)
        assert (ends_of(log), node.upkeep.measures.rounds) == (Ends(0, 10), 0)
        node.topics.configs[replica.topic_id] = {**EAGER, "min.compaction.lag.ms": "0"}
        node.settle()
        assert ends_of(log) == Ends(9, 10), "the log is the same, and a day has not passed"
        check(log)


def test_ripe_tombstones_and_markers_go_from_what_is_clean_already() -> None:
    with compaction_node() as node:
        replica = node.add()
        replica.put(Plan(((b"a", b"v", 0),)))
        replica.put(Plan(((b"a", None, 0),)))
        replica.put(Plan(((b"b", b"v", 0),)), producer=7)
        replica.end(7, commit=True)
        replica.put(Plan(((b"b", b"w", 0),)))
        replica.put(Plan(((b"c", b"w", 0),)))
        replica.lift()
        node.settle()
        log = node.log(replica)
        assert offsets(log) == [1, 3, 4, 5]
        replica.removal(5, 5, ripe=False)
        node.settle()
        assert offsets(log) == [1, 3, 4, 5], "they wait"
        replica.now_ms += 3_600_000
        replica.removal(5, 6)
        node.settle()
        assert offsets(log) == [4, 5]
        check(log, ripe=(5, 6))
        assert node.upkeep.measures.resets == {Reset.NEW: 1, Reset.DAMAGED: 0, Reset.BEHIND: 0}


def test_ripe_markers_alone_go_from_what_is_clean_already() -> None:
    with compaction_node() as node:
        replica = node.add()
        replica.put(Plan(((b"a", b"v", 0),)), producer=7)
        replica.end(7, commit=True)
        fill(replica, 5, start=2)
        node.settle()
        log = node.log(replica)
        assert 1 in offsets(log)
        replica.removal(0, 2)
        node.settle()
        assert 1 not in offsets(log)
        check(log, ripe=(0, 2))
        done = node.upkeep.measures.rounds
        node.settle()
        assert node.upkeep.measures.rounds == done, "nothing that went is due again"


def test_a_map_that_is_full_makes_several_rounds() -> None:
    small = CONFIG.__class__(
        map_bytes=4 * KIB, segment_bytes=8 * KIB, ingest_bytes=2 * KIB, ingest_seconds=10
    )
    with compaction_node(small) as node:
        replica = node.add()
        fill(replica, 600, keys=300)
        node.settle(300)
        log = node.log(replica)
        assert ends_of(log) == Ends(599, 600)
        assert node.upkeep.measures.rounds >= 600 // 127
        check(log)


# Logs that cannot be relied on.


def test_damage_of_the_manifest_or_a_segment_is_a_reset_and_the_table_is_the_same() -> None:
    with compaction_node() as node:
        replica = node.add()
        fill(replica, 60)
        node.settle()
        expected = offsets(node.log(replica))
        folder = node.log(replica).folder
        node.disk.flip_bit(f"{folder}/{MANIFEST}", 30)
        node = node.again()
        node.settle()
        log = node.log(replica)
        assert offsets(log) == expected
        assert node.upkeep.measures.resets == {Reset.NEW: 0, Reset.DAMAGED: 1, Reset.BEHIND: 0}
        # A block, which only a job or a reader meets.
        segment = manifest_of(log).segments[0]
        node.disk.flip_bit(f"{folder}/{segment.number:020d}.seg", 40)
        fill(replica, 20, start=60)
        node.settle()
        check(log)
        assert ends_of(log) == Ends(79, 80)
        assert node.upkeep.measures.resets[Reset.DAMAGED] == 2
        assert log.reset_for is not None
        assert f"{segment.number:020d}.seg, bytes 16 to " in log.reset_for, "the file is named"


@pytest.mark.parametrize("what", ["manifest", "segment", "block"])
def test_bytes_that_the_disk_does_not_give_back_are_lost_and_the_log_is_made_anew(what: str) -> None:
    """To wait for them would hold removal back until somebody removes the file."""
    with compaction_node() as node:
        replica = node.add()
        fill(replica, 60)
        node.settle()
        log = node.log(replica)
        expected, folder = offsets(log), log.folder
        segment = f"{folder}/{manifest_of(log).segments[0].number:020d}.seg"
        name = f"{folder}/{MANIFEST}" if what == "manifest" else segment
        node.disk.lose_sectors(name)
        if what == "block":
            fill(replica, 20, start=60, keys=10)  # the next round reads what is clean
        else:
            node = node.again()
        for _ in range(12):
            node.step(70.0)
        node.settle()
        log = node.log(replica)
        assert node.upkeep.measures.resets[Reset.DAMAGED] == 1
        assert log.reset_for == f"{name} cannot be read: Input/output error"
        assert log.problems.first is None
        check(log)
        if what != "block":
            assert offsets(log) == expected


def test_a_folder_that_somebody_removed_is_a_reset() -> None:
    with compaction_node() as node:
        replica = node.add()
        fill(replica, 20)
        node.settle()
        log = node.log(replica)
        for name in node.disk.listdir(log.folder):
            node.disk.unlink(f"{log.folder}/{name}")
        node.disk.rmdir(log.folder)
        fill(replica, 20, start=20)
        node.settle()
        assert log.reset_for is not None
        assert "is not there" in log.reset_for
        with pytest.raises(LocalLogDamaged, match="/data/gone is not there any more"):
            write_made(node.disk, "/data/gone", 1, "1-1", [b"bytes"])
        assert ends_of(log) == Ends(39, 40)
        check(log)


def test_a_log_that_lacks_tombstones_which_are_gone_elsewhere_is_made_anew() -> None:
    """It was away, and was left out: schedule 6 and 14 of the specification."""
    with compaction_node() as node:
        replica = node.add()
        fill(replica, 20)
        node.settle()
        log = node.log(replica)
        assert offsets(log)[0] == 14
        # Key 0 is deleted; all others are clean past it, and level one has lost its deletion.
        replica.put(Plan(((b"key 0", None, 0),)))
        for each in range(20):
            replica.put(Plan(((b"key %d" % (1 + each % 4), b"later", 0),)))
        replica.lift()
        kept = [data for base, data, _ in replica.written if base > 36]
        clean = replica.object_of(kept, bytes([9]) * 16, (0, 41))
        old = [(one.term, one.unique) for one in replica.machine.level_one]
        replica.apply(ReplaceLevelOne(old, [clean], 40, 40, 40))
        replica.removal(40, 40)
        assert log.readable() is None, "it is not read from this moment on"
        assert ends_of(log) == Ends(19, 20)
        node.settle()
        assert node.upkeep.measures.resets[Reset.BEHIND] == 1
        assert offsets(log) == [37, 38, 39, 40]
        assert manifest_of(log).floor == 40
        assert ends_of(log) == Ends(40, 41)


def test_the_floor_of_an_empty_log_is_that_of_the_state_before_anything_is_read() -> None:
    with compaction_node() as node:
        replica = node.add()
        node.step()
        log = node.log(replica)
        assert (manifest_of(log).floor, ends_of(log)) == (0, Ends(0, 0))
        fill(replica, 30)
        replica.removal(20, 25, ripe=False)
        asked: list[tuple[int, int]] = []
        compactor = node.compactor
        ingest = compactor.ingest

        async def watched(job: IngestJob):  # type: ignore[no-untyped-def]
            asked.append(manifest_of(log)[2:4])
            return await ingest(job)

        with patch.object(compactor, "ingest", watched):
            node.settle()
        assert asked[0] == (20, 25), "durable before the first byte"
        replica.removal(25, 25, ripe=False)
        node.settle()
        assert manifest_of(log)[2:4] == (20, 25), "and never risen while the log holds something"


# What comes between.


def test_a_job_of_a_state_that_was_replaced_by_a_snapshot_is_dropped() -> None:
    with compaction_node() as node:
        replica = node.add()
        fill(replica, 20)
        node.step()
        compactor, ingest = node.compactor, node.compactor.ingest

        async def meanwhile(job: IngestJob):  # type: ignore[no-untyped-def]
            made = await ingest(job)
            replica.machine.restore(replica.machine.snapshot())
            return made

        with patch.object(compactor, "ingest", meanwhile):
            node.step()
        assert node.upkeep.measures.abandoned == 1
        log = node.log(replica)
        assert manifest_of(log).log_end == 0
        left = [name for name in node.disk.listdir(log.folder) if name != MANIFEST]
        assert left == [], "what was made in vain is removed"
        node.settle()
        assert ends_of(log) == Ends(19, 20)


@pytest.mark.parametrize("what", ["snapshot", "damage"])
def test_a_step_of_a_round_counts_for_nothing_if_the_state_or_the_log_is_another_meanwhile(what: str) -> None:
    with compaction_node() as node:
        replica = node.add()
        fill(replica, 40)
        compactor, clean = node.compactor, node.compactor.filter

        async def meanwhile(job: FilterJob) -> Filtered | JobFailed:
            made = await clean(job)
            if what == "snapshot":
                replica.machine.restore(replica.machine.snapshot())
            else:
                node.log(replica).damaged("a reader says so")
            return made

        with patch.object(compactor, "filter", meanwhile):
            while not node.upkeep.measures.abandoned:
                assert node.upkeep.measures.rounds == 0
                node.step()
        log = node.log(replica)
        assert manifest_of(log).clean_end == 0
        named = {f"{one.number:020d}.seg" for one in manifest_of(log).segments} | {MANIFEST}
        assert set(node.disk.listdir(log.folder)) == named, "what was made in vain is removed"
        node.settle()
        assert ends_of(log) == Ends(39, 40)
        assert node.upkeep.measures.resets[Reset.DAMAGED] == (what == "damage")
        check(log)


def test_an_object_that_is_gone_when_it_is_read_is_planned_anew() -> None:
    with compaction_node() as node:
        replica = node.add()
        fill(replica, 20)
        node.step()
        compactor, ingest = node.compactor, node.compactor.ingest

        async def merged(job: IngestJob):  # type: ignore[no-untyped-def]
            for name in replica.merge():
                del node.bucket.objects[name]
            return await ingest(job)

        with patch.object(compactor, "ingest", merged):
            node.step()
            assert node.upkeep.measures.failed == 1
            assert node.log(replica).problems.first is None, "the next plan is by the state of then"
        node.settle()
        assert ends_of(node.log(replica)) == Ends(19, 20)
        check(node.log(replica))


def test_an_object_that_stays_gone_is_told() -> None:
    with compaction_node() as node:
        replica = node.add()
        fill(replica, 20)
        node.step()
        there = dict(node.bucket.objects)
        node.bucket.objects.clear()
        node.step()
        log = node.log(replica)
        assert log.problems.first is None
        node.step()
        assert str(log.problems.first).endswith("there is no such object (offsets 0 to 10)")
        node.bucket.objects |= there
        node.settle()
        assert (ends_of(log), log.problems.first) == (Ends(19, 20), None)


def test_the_start_moves_through_a_log_and_past_its_end() -> None:
    with compaction_node() as node:
        replica = node.add()
        fill(replica, 100, keys=90)
        node.settle()
        log = node.log(replica)
        replica.apply(SetStartOffset(45))
        node.settle()
        assert manifest_of(log).start_offset <= 45
        assert ends_of(log) == Ends(99, 100)
        check(log)
        replica.apply(SetStartOffset(100))
        assert ends_of(log) == Ends(100, 100), "below the start nothing is to be done"
        fill(replica, 10, start=100)
        replica.apply(SetStartOffset(105))
        replica.removal(105, 105)
        assert log.in_step(), "below the start nothing is needed"
        node.settle()
        assert 100 < manifest_of(log).start_offset <= 105, "it begins with the block that has the start"
        assert manifest_of(log).log_end == 110
        assert ends_of(log) == Ends(109, 110)
        assert node.upkeep.measures.resets == {Reset.NEW: 1, Reset.DAMAGED: 0, Reset.BEHIND: 0}


def test_the_start_moves_while_a_round_is_under_way() -> None:
    with compaction_node() as node:
        replica = node.add()
        fill(replica, 300, keys=280)
        steps = 0
        while node.upkeep._round is None or not node.upkeep._round._groups:
            node.step()
            steps += 1
            assert steps < 50
        replica.apply(SetStartOffset(250))
        node.settle()
        log = node.log(replica)
        assert ends_of(log) == Ends(299, 300)
        assert manifest_of(log).segments[0].end_offset > 250
        check(log)


def test_delete_then_compact_then_delete() -> None:
    with compaction_node() as node:
        replica = node.add(configs={"cleanup.policy": "delete"})
        fill(replica, 20)
        node.settle()
        assert node.upkeep.log_of(replica.id) is None
        assert not node.disk.exists("/data/compacted")
        node.topics.configs[replica.topic_id] = EAGER
        node.settle()
        log = node.log(replica)
        assert ends_of(log) == Ends(19, 20)
        node.topics.configs[replica.topic_id] = {"cleanup.policy": "delete"}
        node.step()
        assert node.upkeep.logs == {}
        assert not node.disk.exists(log.folder)
        node.topics.configs[replica.topic_id] = {**EAGER, "cleanup.policy": "compact,delete"}
        node.settle()
        assert node.log(replica) is not log
        assert ends_of(node.log(replica)) == Ends(19, 20)
        assert node.upkeep.measures.resets[Reset.NEW] == 2


def test_the_log_of_a_replica_that_leaves_goes_and_what_nobody_has_any_more_is_swept_at_the_start() -> None:
    with compaction_node() as node:
        replicas = [node.add(number) for number in range(3)]
        for replica in replicas:
            fill(replica, 10)
        node.settle()
        folders = [node.log(replica).folder for replica in replicas]
        node.partitions.remove(replicas[0])
        node.step()
        assert [node.disk.exists(folder) for folder in folders] == [False, True, True]
        del node.topics.configs[replicas[1].topic_id]
        node.partitions.remove(replicas[1])
        node = node.again()
        node.step()
        assert [node.disk.exists(folder) for folder in folders] == [False, False, True]
        assert node.upkeep.measures.resets[Reset.NEW] == 0, "and the third goes on"


def test_a_log_that_waits_for_its_replica_goes_when_its_topic_is_compacted_no_more() -> None:
    """A node that comes back late knows the topics of then: it has to look again."""
    with compaction_node() as node:
        replica = node.add()
        fill(replica, 10)
        node.settle()
        folder = node.log(replica).folder
        node = node.again()
        node.partitions.remove(replica)
        node.step(SWEEP_SECONDS)
        assert node.disk.exists(folder), "its replica is still to come"
        node.topics.configs[replica.topic_id] = {"cleanup.policy": "delete"}
        node.step(SWEEP_SECONDS / 2)
        assert node.disk.exists(folder), "it is not looked for all the time"
        node.step(SWEEP_SECONDS / 2)
        assert not node.disk.exists(folder)


def test_a_topic_s_folder_that_a_crash_left_empty_goes_with_the_next_start() -> None:
    with compaction_node() as node:
        gone, stays = node.add(0), node.add(1)
        fill(gone, 10)
        fill(stays, 10)
        node.settle()
        folder = node.log(gone).folder
        node.partitions.remove(gone)
        removed = node.disk.rmdir

        def crashes(path: str) -> None:
            removed(path)
            if path == folder:
                raise OSError("the machine went down")

        with patch.object(node.disk, "rmdir", crashes):
            node.step()
        assert not node.disk.exists(folder)
        assert node.disk.exists(dirname(folder)), "as a crash between the two leaves it"
        node = node.again()
        node.step(SWEEP_SECONDS)
        assert not node.disk.exists(dirname(folder))
        assert node.disk.exists(node.log(stays).folder)


def test_a_log_that_could_not_be_removed_is_removed_later() -> None:
    with compaction_node() as node:
        replica, other = node.add(0), node.add(1)
        fill(replica, 10)
        fill(other, 10)
        node.settle()
        folders = [node.log(each).folder for each in (replica, other)]
        node.topics.configs[replica.topic_id] = {"cleanup.policy": "delete"}
        node.partitions.remove(replica)
        with patch("strandline.node.compaction.replica_log.remove_log", side_effect=OSError("no")):
            node.step()
        assert node.disk.exists(folders[0])
        node.step(SWEEP_SECONDS)
        assert not node.disk.exists(folders[0])
        assert node.disk.exists(folders[1]), "its replica is here"


def test_a_log_that_cannot_be_removed_keeps_no_other_and_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Somebody made a folder in it, which is not ours to remove."""
    with compaction_node() as node:
        gone = [node.add(number) for number in range(3)]
        for each in gone:
            fill(each, 10)
        node.settle()
        folders = [node.log(each).folder for each in gone]
        node.disk.mkdir(f"{folders[0]}/snapshots")
        node = node.again()
        node.partitions.clear()
        node.topics.configs.clear()
        for _ in range(10):
            node.step(SWEEP_SECONDS)
        assert [node.disk.exists(each) for each in folders] == [True, False, False]
        told = [one for one in caplog.messages if "is not needed any more" in one]
        assert len(told) == 1
        assert f"the local log in {folders[0]} is not needed any more, and stays: " in told[0]
        node.disk.rmdir(f"{folders[0]}/snapshots")
        node.step(SWEEP_SECONDS)
        assert not node.disk.exists(folders[0])


# Which log comes first.


def test_a_busy_topic_keeps_no_other_from_being_cleaned() -> None:
    """One log is overdue again after each of its rounds; the others are a little dirty, have a ripe
    tombstone, or are overdue by an hour."""
    busy_configs = {**EAGER, "max.compaction.lag.ms": "1000"}
    with compaction_node() as node:
        busy, dirty, ripe, late = (
            node.add(0, busy_configs),
            node.add(1, {**EAGER, "min.cleanable.dirty.ratio": "0.01"}),
            node.add(2, {**EAGER, "min.cleanable.dirty.ratio": "0.9"}),
            node.add(3, {**EAGER, "min.cleanable.dirty.ratio": "1", "max.compaction.lag.ms": "3600000"}),
        )
        for each in (dirty, late):
            fill(each, 200, keys=150)
        ripe.put(Plan(((b"gone", None, 0),)))
        fill(ripe, 50, keys=40)
        node.settle()
        assert node.upkeep.log_of(late.id) is not None
        before = {each.id: manifest_of(node.log(each)).clean_end for each in (dirty, late)}
        fill(dirty, 10, start=200)
        fill(late, 10, start=200)
        assert 0 in offsets(node.log(ripe))
        ripe.removal(40, 40)
        began = node.now_ms
        node.now_ms += 3_600_000
        done: dict[str, int] = {}
        cleaned = 0
        for turn in range(400):
            start = busy.machine.next_offset
            fill(busy, 10, keys=1_000_000, start=start)
            node.now_ms += 12_000
            at = manifest_of(node.log(busy)).clean_end if node.log(busy).log is not None else 0
            node.step(12.0)
            cleaned += manifest_of(node.log(busy)).clean_end > at
            seconds = (node.now_ms - began) // 1000 - 3_600
            for name, there in (
                ("dirty", manifest_of(node.log(dirty)).clean_end > before[dirty.id]),
                ("late", manifest_of(node.log(late)).clean_end > before[late.id]),
                ("ripe", 0 not in offsets(node.log(ripe))),
            ):
                if there:
                    done.setdefault(name, seconds)
            if len(done) == 3 and turn > 60:
                break
        assert done.keys() == {"dirty", "late", "ripe"}, done
        assert cleaned > 2, "the busy one is cleaned, too"
        assert max(done.values()) < 400, done


# Disks and stores.


def test_a_full_disk_stops_the_work_and_loses_nothing() -> None:
    with compaction_node() as node:
        replica = node.add()
        fill(replica, 60)
        node.settle()
        log = node.log(replica)
        before = offsets(log)
        fill(replica, 60, start=60)
        node.disk.fill(100)
        for _ in range(10):
            node.step()
        assert offsets(log) == before
        assert "No space left" in str(log.problems.first)
        assert log.readable() is not None
        node.disk.empty()
        for _ in range(10):
            node.step(60.0)
        assert ends_of(log) == Ends(119, 120)
        assert log.problems.first is None
        check(log)


@pytest.mark.parametrize("operation", ["create", "datasync", "rename", "sync_dir", "open"])
def test_an_error_of_the_disk_is_got_over(operation: str) -> None:
    for nth in range(6):
        with compaction_node() as node:
            replica = node.add()
            fill(replica, 40)
            for _ in range(nth):
                node.step()
            node.disk.fail_next(operation, errno.EIO)
            for _ in range(12):
                node.step(70.0)
            node.disk.forget_faults()
            node.settle()
            assert ends_of(node.log(replica)) == Ends(39, 40)
            check(node.log(replica))
            assert node.upkeep.measures.resets[Reset.DAMAGED] == 0


def test_an_error_of_the_disk_without_a_cure_of_its_own_is_told_with_the_way_out() -> None:
    with compaction_node() as node:
        replica = node.add()
        fill(replica, 40)
        node.settle()
        node = node.again()
        folder = log_folder("/data", replica.topic_id, replica.number)
        node.disk.fail_next("read", errno.EISDIR, 100)
        node.step()
        log = node.log(replica)
        why = f"the local log cannot be opened: Is a directory ({folder}/manifest)"
        cure = f"if that stays, remove {folder}: the log is then made of level one again"
        assert str(log.problems.first) == f"{why}: {cure}"
        remove_log(node.disk, folder)
        for _ in range(6):
            node.step(70.0)
        node.settle()
        assert (ends_of(log), log.problems.first) == (Ends(39, 40), None)
        check(log)


def test_a_store_that_is_gone_for_an_hour_costs_the_hour() -> None:
    with compaction_node() as node:
        replica, other = node.add(0), node.add(1)
        fill(replica, 20)
        node.settle()
        node.bucket.refused = 1.0
        fill(replica, 20, start=20)
        fill(other, 20)
        for _ in range(60):
            node.step(60.0)
        assert ends_of(node.log(replica)) == Ends(19, 20)
        assert node.upkeep.measures.failed < 150, "attempts are bounded"
        node.bucket.refused = 0.0
        for _ in range(10):
            node.step(60.0)
        assert ends_of(node.log(replica)) == Ends(39, 40)
        assert ends_of(node.log(other)) == Ends(19, 20)


def test_a_failed_round_is_told_until_one_works_also_where_nothing_else_is_to_do() -> None:
    with compaction_node() as node:
        replica = node.add()
        fill(replica, 20)
        compactor = node.compactor

        async def died(job: MapJob) -> JobFailed:
            return JobFailed(Why.LOST, "the compaction worker failed: it was killed")

        with patch.object(compactor, "map", died):
            node.step()
            node.step()
            log = node.log(replica)
            assert log.problems.first == (
                "the local log cannot be cleaned: the compaction worker failed: it was killed"
            )
        node.settle()
        assert ends_of(log) == Ends(19, 20)
        assert log.problems.first is None, "the idle topic has no ingest that would say so"


def test_a_log_that_cannot_be_filled_is_cleaned_and_what_fails_is_told() -> None:
    with compaction_node() as node:
        replica = node.add(0, {**EAGER, "min.compaction.lag.ms": "600000"})
        node.now_ms = TIME
        fill(replica, 20)
        node.settle()
        assert ends_of(node.log(replica)) == Ends(0, 20), "all are too young"
        node.bucket.refused = 1.0
        fill(replica, 20, start=20)
        node.now_ms += 700_000
        for _ in range(6):
            node.step(10.0)
        assert ends_of(node.log(replica)) == Ends(19, 20)
        assert "level one cannot be read into the local log: " in (node.log(replica).problems.first or "")
        assert node.log(replica).problems.lasting


# Records that are hard.


def put_bad(replica: Replica, position: int, bits: int) -> int:
    """Write a batch of one record with these bits set at a position, and a checksum that fits; its offset."""
    base = replica.put(Plan(((b"key 1", b"v", 0),)))
    bad = bytearray(replica.written[-1][1])
    assert bad[position] & bits == 0
    bad[position] |= bits
    bad[17:21] = crc32c(memoryview(bad)[21:]).to_bytes(4, "big")
    replica.written[-1] = (base, bytes(bad), None)
    return base


def test_a_batch_that_cannot_be_read_ends_the_rounds_below_it_and_is_told() -> None:
    with compaction_node() as node:
        replica = node.add()
        fill(replica, 10)
        base = put_bad(replica, 22, 0x04)  # it says zstd
        fill(replica, 10, start=11)
        node.settle()
        log = node.log(replica)
        assert ends_of(log) == Ends(base, 21)
        assert log.problems.stuck is not None
        assert f"the batch of offset {base} cannot be read" in log.problems.stuck
        assert node.upkeep.states() == {"open": 0, "closed": 0, "stuck": 1}
        done = node.upkeep.measures.rounds
        node.settle()
        assert node.upkeep.measures.rounds == done


@pytest.mark.parametrize("delta", [1, 0x7E])
def test_a_record_that_claims_an_offset_outside_of_its_batch_ends_the_rounds_below_it(delta: int) -> None:
    """As zigzag: before the batch, and behind later records of its key, which it would outlive."""
    with compaction_node() as node:
        replica = node.add()
        fill(replica, 10)
        base = put_bad(replica, 64, delta)
        fill(replica, 10, start=11)
        node.settle()
        log = node.log(replica)
        assert ends_of(log) == Ends(base, 21)
        assert log.problems.stuck is not None
        assert f"the batch of offset {base} cannot be read" in log.problems.stuck
        assert "the offsets of its records do not rise" in log.problems.stuck


def test_a_batch_with_more_keys_than_the_map_is_told() -> None:
    tiny = replace(CONFIG, map_bytes=KIB)
    with compaction_node(tiny) as node:
        replica = node.add()
        fill(replica, 10)
        replica.put(Plan(tuple((b"key %d" % each, b"v", 0) for each in range(50))))
        fill(replica, 10, start=60)
        node.settle()
        log = node.log(replica)
        assert ends_of(log) == Ends(10, 70)
        assert log.problems.stuck is not None
        assert "has 50 records" in log.problems.stuck
        told = re.search(r"compaction\.map_bytes .* raise it to (\d+) bytes at least", log.problems.stuck)
        assert told is not None
        enough = int(told.group(1))
        assert KeyMap(enough, KeyHash()).capacity >= 50 > KeyMap(enough - 24, KeyHash()).capacity
        node.config.compaction = replace(tiny, map_bytes=enough)  # type: ignore[misc]
        node = node.again()
        node.settle()
        assert ends_of(node.log(replica)) == Ends(69, 70)


def test_a_key_of_ten_megabytes() -> None:
    with compaction_node() as node:
        replica = node.add()
        large = b"k" * 10_000_000
        for value in (b"v", b"w", None):
            replica.put(Plan(((large, value, 0),)))
        replica.put(Plan(((large + b"!", b"other", 0),)))
        fill(replica, 1)
        node.settle()
        log = node.log(replica)
        assert ends_of(log) == Ends(4, 5)
        assert [(len(one.key or b""), one.value) for one in contents(log)] == [
            (10_000_000, None),
            (10_000_001, b"other"),
            (5, b"value 0"),
        ]


def test_a_log_that_gets_little_at_a_time_is_not_written_over_and_over() -> None:
    config = replace(CONFIG, segment_bytes=64 * KIB, ingest_bytes=16 * KIB)
    with compaction_node(config) as node:
        replica = node.add(configs={**EAGER, "min.cleanable.dirty.ratio": "1.0"})
        for number in range(60):
            replica.put(Plan(((b"key", b"v" * 900, number),)))
            replica.lift()
            node.step()
            node.step()
        manifest = manifest_of(node.log(replica))
        assert manifest.log_end == 60
        size = sum(one.size for one in manifest.segments)
        # At most a quarter of ingest_bytes is written again with each of them, half of that on average.
        assert node.upkeep.measures.ingest_written_bytes < 60 * 3 * KIB
        assert len(manifest.segments) <= size // (4 * KIB) + 1


def test_a_node_that_stops_amid_a_job_stops() -> None:
    """Found by seeds: the end of the job under way passed for the compactor's, and the task went on."""
    with compaction_node() as node:
        replica = node.add()
        node.bucket.delay_seconds = (5.0, 5.0)
        fill(replica, 30)
        node.upkeep.start()
        compactor = node.compactor
        assert isinstance(compactor, StoreCompactor)
        assert node.world.run_until(lambda: bool(compactor._tasks), timeout=60.0, step=0.1)
        closed = node.sim.spawn(node.upkeep.close())
        assert node.world.run_until(closed.done, timeout=10.0, step=0.1)


def test_a_leader_with_an_empty_log_waits_for_its_records() -> None:
    """Found by a seed: its log is less clean than level one, so rounds of nothing followed each other."""
    with compaction_node() as node:
        replica = node.add()
        fill(replica, 3)
        replica.apply(ReplaceLevelOne([], [], 2, 2, 3))
        replica.leads = True
        assert [node.run(node.upkeep.step()) for _ in range(5)].count(True) <= 1
