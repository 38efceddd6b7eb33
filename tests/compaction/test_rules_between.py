"""Work on one log beside other work on it: what has to wait, is given up, or leaves nothing behind."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import pytest

from strandline.node.compaction.compactor import Ingested, IngestJob, JobFailed, Why
from strandline.node.compaction.due import Tally, tally
from strandline.node.compaction.local_log import Change, LocalLog
from strandline.node.compaction.log_folders import MANIFEST
from strandline.node.compaction.manifest import NONE, LogIdentity, Manifest, Segment
from strandline.node.compaction.publisher import CompactionPublisher
from strandline.node.compaction.removal_minimum import Ends
from strandline.node.compaction.segment_files import PART
from tests.compaction.filling import ends_of, fill, manifest_of
from tests.compaction.logs import TIME, Plan
from tests.compaction.upkeep_harness import (
    EAGER,
    KIB,
    Node,
    Replica,
    check,
    compaction_node,
    contents,
)

UNTOUCHED = {**EAGER, "min.cleanable.dirty.ratio": "1.0"}
HANGS_SECONDS = 1000.0


def begin_a_round(node: Node, replica: Replica) -> None:
    """Step to where a round has mapped its keys and has several stretches left."""
    for _ in range(60):
        made = node.upkeep._round
        if made is not None and made.replica_log.replica is replica and len(made._groups) > 1:
            return
        node.step()
    raise AssertionError("no round has come so far")


def passed(node: Node, seconds: float) -> None:
    node.world.run(node.world.now + seconds)


def test_a_log_is_not_filled_while_its_round_is_under_way() -> None:
    """The round has planned which segments it makes anew; an ingest may take the last of them."""
    with compaction_node() as node:
        replica = node.add()
        fill(replica, 300, keys=280)
        begin_a_round(node, replica)
        log, under_way = node.log(replica), node.upkeep._round
        end = manifest_of(log).log_end
        fill(replica, 60, keys=280, start=300)
        steps = 0
        while node.upkeep._round is under_way:
            assert manifest_of(log).log_end == end
            node.step()
            steps += 1
        assert steps > 1
        assert manifest_of(log).clean_end == end - 1
        node.settle()
        assert ends_of(log) == Ends(359, 360)
        assert log.problems.first is None
        check(log)


def test_no_round_begins_while_the_log_waits_for_its_ingest() -> None:
    """The ingest writes the last segment again: a round would have others in its place by then."""
    with compaction_node() as node:
        replica = node.add(configs=UNTOUCHED)
        fill(replica, 33)
        node.settle()
        log = node.log(replica)
        before = manifest_of(log)
        assert before.log_end == 33
        node.upkeep.start()
        node.bucket.delay_seconds = (HANGS_SECONDS, HANGS_SECONDS)
        fill(replica, 3, start=33)
        passed(node, 30.0)
        assert node.upkeep._filling is log
        node.topics.configs[replica.topic_id] = EAGER
        passed(node, HANGS_SECONDS / 2)
        assert manifest_of(log) == before
        node.bucket.delay_seconds = (0.001, 0.02)
        passed(node, 3 * HANGS_SECONDS)
        assert ends_of(log) == Ends(35, 36)
        check(log)


def test_a_round_is_given_up_for_a_publication_of_its_log_that_waits_for_the_store() -> None:
    """Its files must not go from under the publication."""
    with compaction_node() as node:
        replica = node.add()
        fill(replica, 40)
        node.settle()
        fill(replica, 300, keys=280, start=40)
        begin_a_round(node, replica)
        log, abandoned = node.log(replica), node.upkeep.measures.abandoned
        before = manifest_of(log)

        async def hangs(*given: Any) -> None:
            await node.sim.loop.create_future()

        with patch.object(CompactionPublisher, "_piece", hangs):
            replica.leads = True
            for _ in range(3):
                node.step()
            assert node.upkeep.publisher.working_on is log
            assert node.upkeep._round is None
        assert node.upkeep.measures.abandoned == abandoned + 1
        assert manifest_of(log) == before


def test_a_change_that_ends_after_its_log_went_removes_no_file_of_the_next_one() -> None:
    """The next one has the same folder, and may have given its files the same numbers."""
    with compaction_node() as node:
        replica = node.add(configs=UNTOUCHED)
        fill(replica, 3)
        node.settle()
        log = node.log(replica)
        change, removed, went = LocalLog.replace, list[tuple[int, ...]](), list[int]()

        def goes(self: LocalLog, segments: Sequence[Segment], clean_end: int) -> Change:
            made = change(self, segments, clean_end)
            if not went:
                went.extend(made.gone)
                log.close()
            return made

        with (
            patch.object(LocalLog, "replace", goes),
            patch.object(LocalLog, "remove", lambda _, change: removed.append(change.gone)),
        ):
            fill(replica, 3, start=3)
            while not went:
                node.step()
        assert removed == [], "the last segment was written again"
        node.settle()
        assert ends_of(node.log(replica)) == Ends(0, 6)


def test_an_end_without_records_is_no_last_batch() -> None:
    """What was aborted makes a segment without any; the batch before it stays, for readers to come to."""
    with compaction_node() as node:
        replica = node.add()
        fill(replica, 19)
        replica.put(Plan(((b"large", bytes(3 * KIB), 0),)))
        replica.lift()
        node.settle()
        for _ in range(20):
            replica.put(Plan(((b"poison", bytes(200), 0),)), producer=7)
        replica.put(Plan(((b"other", b"open", 0),)), producer=8)
        replica.end(7, commit=False)
        replica.lift()
        node.settle()
        log = node.log(replica)
        manifest = manifest_of(log)
        assert manifest.log_end == 40
        assert manifest.segments[-1].records == 0, "it has a segment of its own"
        assert ends_of(log) == Ends(19, 40)
        assert contents(log)[-1].offset == 19
        assert log.problems.first is None
        check(log)
        replica.end(8, commit=True)
        fill(replica, 10, start=43)
        node.settle()
        assert ends_of(log) == Ends(52, 53)
        check(log)


@pytest.mark.parametrize("work", ["ingest", "filter"])
def test_what_a_failed_job_has_made_is_removed(work: str) -> None:
    """A compactor that died may have made its files; a full disk may have had room for the first of two."""
    with compaction_node() as node:
        replica = node.add()
        fill(replica, 60)
        compactor, made = node.compactor, getattr(node.compactor, work)
        left: list[str] = []

        async def lost(job: Any) -> JobFailed:
            await made(job)
            left.extend(name for name in node.disk.listdir(job.place.folder) if name.endswith(PART))
            return JobFailed(Why.LOST, "the compaction worker failed: it was killed")

        with patch.object(compactor, work, lost):
            for _ in range(4):
                node.step()
        assert left, "it had made something"
        log = node.log(replica)
        named = {f"{one.number:020d}.seg" for one in manifest_of(log).segments} | {MANIFEST}
        assert set(node.disk.listdir(log.folder)) == named


def test_what_is_reported_after_a_kill_outlives_a_power_cut() -> None:
    """The process was killed between the change of a name and its sync: the name is seen, and not durable."""
    for seed in range(8):
        with compaction_node(seed=seed) as node:
            replica = node.add()
            fill(replica, 20)
            node.settle()
            fill(replica, 20, start=20)
            with patch.object(node.disk, "sync_dir", lambda path: None):
                node.settle()
            node = node.again()
            node.step(0.1)
            reported = ends_of(node.log(replica))
            assert reported == Ends(39, 40)
            node.sim.crash("power")
            node = node.again()
            node.step(0.1)
            assert ends_of(node.log(replica)) == reported


def test_an_ingest_leaves_the_reserve_to_the_write_ahead_log() -> None:
    with compaction_node() as node:
        replica = node.add()
        fill(replica, 20)
        node.settle()
        log = node.log(replica)
        full = OSError(errno.ENOSPC, "No space left on device but for 1024 MiB", log.folder)
        with patch("strandline.node.compaction.ingest.keep_reserve", side_effect=full):
            fill(replica, 20, start=20)
            node.step()
        assert ends_of(log) == Ends(19, 20)
        assert "but for 1024 MiB" in str(log.problems.first)
        assert [name for name in node.disk.listdir(log.folder) if name.endswith(PART)] == []


def test_level_one_s_blocks_are_verified_also_where_no_batch_s_checksum_looks() -> None:
    """A batch's own checksum leaves out its offset and its leader's epoch."""
    with compaction_node() as node:
        replica = node.add()
        fill(replica, 10)
        node.step()
        [name] = node.bucket.objects
        data = bytearray(node.bucket.objects[name])
        at = data.index(replica.written[3][1][:12])
        data[at + 15] ^= 1
        node.bucket.objects[name] = bytes(data)
        for _ in range(3):
            node.step()
        log = node.log(replica)
        assert manifest_of(log).log_end == 0
        assert "checksum does not match" in str(log.problems.first)
        assert name in str(log.problems.first)


def test_a_segment_without_records_is_not_dirty() -> None:
    """There is nothing in it to clean, and it does not wait for anything."""
    rows = [(1, 0, 10, 100, 5), (2, 10, 20, 900, 0), (3, 20, 30, 50, 1)]
    segments = tuple(Segment(*row, NONE, NONE, TIME + row[0]) for row in rows)
    made = Manifest(LogIdentity("harbour", bytes(16), 0), 0, 0, 0, 10, 30, 4, segments)
    assert tally(made) == Tally(100, 50, TIME + 3, NONE, NONE)


def test_an_object_that_is_lost_is_not_asked_for_all_the_time() -> None:
    """Once the plan may have been overtaken by a merge; the second time it is a failure like any other."""
    with compaction_node() as node:
        replica = node.add()
        fill(replica, 10)
        node.bucket.objects.clear()
        jobs: list[IngestJob] = []
        ingest = node.compactor.ingest

        async def counted(job: IngestJob) -> Ingested | JobFailed:
            jobs.append(job)
            return await ingest(job)

        with patch.object(node.compactor, "ingest", counted):
            for _ in range(120):
                node.step(1.0)
        assert 3 < len(jobs) < 10, "in two minutes"
        assert node.log(replica).problems.lasting


def test_a_disk_that_takes_no_manifest_is_not_given_one_segment_after_the_other() -> None:
    with compaction_node() as node:
        replica = node.add()
        fill(replica, 20)
        node.settle()
        log, jobs = node.log(replica), list[IngestJob]()
        ingest = node.compactor.ingest

        async def counted(job: IngestJob) -> Ingested | JobFailed:
            jobs.append(job)
            return await ingest(job)

        fill(replica, 20, start=20)
        with (
            patch.object(node.compactor, "ingest", counted),
            patch.object(LocalLog, "replace", side_effect=OSError(errno.EIO, "Input/output error")),
        ):
            for _ in range(120):
                node.step(1.0)
        assert 3 < len(jobs) < 10, "in two minutes"
        assert "cannot be changed" in str(log.problems.first)
        for _ in range(6):
            node.step(60.0)
        assert (ends_of(log), log.problems.first) == (Ends(39, 40), None)
