"""The worker process: the same logs as in the node's own process, and its death costs a job."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.node.compaction.compactor import (
    BEGAN_ANEW,
    BEHIND_STORE,
    Filtered,
    FilterJob,
    Ingested,
    IngestJob,
    JobFailed,
    LogPlace,
    MapJob,
    Mapped,
    Shared,
    ShareJob,
    Why,
)
from strandline.node.compaction.job_frames import (
    BATCHES_BYTES,
    ROWS_BYTES,
    filter_of,
    ingest_messages,
    ingest_of,
    map_of,
    plain,
    result_of,
    share_messages,
)
from strandline.node.compaction.local_log import Floors, open_log, reset_log
from strandline.node.compaction.log_folders import log_folder
from strandline.node.compaction.manifest import LogIdentity, Segment
from strandline.node.compaction.segment_files import write_made
from strandline.node.compaction.shared_rows import shared_rows
from strandline.node.compaction.worker import NICENESS
from strandline.node.compaction.worker_compactor import WorkerCompactor
from strandline.node.objectstore.opening import StorePlace
from strandline.node.objectstore.unfinished_files import PARTIAL
from strandline.node.raft.disk import RealDisk
from strandline.node.worker.worker_frames import LENGTH, BadFrame, framed, message_of
from strandline.node.worker.worker_link import WorkerLimits
from strandline.snapshot.level_one_writer import LevelOneWriter
from strandline.statemachine.partition.level_one import LevelOneExtent, level_one_name
from tests.compaction.logs import TIME, Plan, bytes_of, read
from tests.level_one.workers import gone, run, stands_back

TOPIC = bytes(range(16))
WHOSE = LogIdentity("harbour", TOPIC, 0)

numbers = st.integers(0, 2**62)
rests = st.floats(0.0, 1e6)
places = st.builds(LogPlace, st.just(WHOSE), st.text(max_size=20), st.text(max_size=9))
segments = st.builds(Segment, *[numbers] * 8)
extents = st.builds(LevelOneExtent, *[numbers] * 6, st.binary(min_size=16, max_size=16))
ingests = st.builds(
    IngestJob,
    places,
    numbers,
    st.none() | segments,
    numbers,
    st.booleans(),
    numbers,
    st.lists(extents, max_size=4),
    st.integers(0, 3 * ROWS_BYTES // 24).map(lambda rows: bytes(24 * rows)),
    *[numbers] * 3,
)
maps = st.builds(
    MapJob,
    places,
    numbers,
    segments,
    st.booleans(),
    st.booleans(),
    st.none() | numbers,
    numbers,
    numbers,
    numbers,
    rests,
)
filters = st.builds(
    FilterJob,
    places,
    numbers,
    st.lists(segments, max_size=4),
    st.tuples(numbers, numbers),
    *[numbers] * 5,
    rests,
)
shares = st.builds(ShareJob, st.integers(0, 3 * BATCHES_BYTES).map(bytes), st.integers(0, 64))
results = st.one_of(
    st.builds(Ingested, segments, numbers),
    st.builds(Mapped, numbers, st.none() | numbers, st.none() | numbers, st.none() | st.text()),
    st.builds(Filtered, st.lists(segments).map(tuple), numbers, numbers, numbers),
    st.builds(Shared, st.binary()),
    st.builds(JobFailed, st.sampled_from(Why), st.text()),
)


def sent(message: list[Any]) -> list[Any]:
    return message_of(framed(message)[LENGTH.size :])


@given(ingests, maps, filters, shares, results)
def test_jobs_and_results_come_out_as_they_went_in(
    ingest: IngestJob, map_job: MapJob, filter_job: FilterJob, share: ShareJob, result: Any
) -> None:
    *rows, last = [sent(message) for message in ingest_messages(ingest)]
    assert ingest_of(last, b"".join(one[1] for one in rows)) == ingest
    assert map_of(sent(["map", *map_job])) == map_job
    assert filter_of(sent(["filter", *filter_job])) == filter_job
    *batches, last = [sent(message) for message in share_messages(share)]
    assert ShareJob(b"".join(one[1] for one in batches), last[1]) == share
    assert result_of(sent(["done", plain(result)])[1]) == result


@pytest.mark.parametrize(
    "values", [[], ["Ingested"], ["Nothing", []], ["Mapped", [1] * 9], ["JobFailed", ["?", ""]]]
)
def test_no_other_answer_is_taken(values: list[Any]) -> None:
    with pytest.raises(BadFrame, match="no result is like"):
        result_of(values)


def stored(folder: Path) -> tuple[LevelOneExtent, list[bytes]]:
    """A level-one object in a store's folder, and its batches."""
    batches = [bytes_of(Plan(((b"key %d" % (number % 4), b"v", 0),)), number) for number in range(30)]
    writer = LevelOneWriter(TOPIC, 0, 1, bytes(16), 400)
    for number, data in enumerate(batches):
        writer.add(data, number, number + 1, 4, 5)
    made = writer.finish()
    path = folder / level_one_name(TOPIC, 0, 1, bytes(16))
    path.parent.mkdir(parents=True)
    path.write_bytes(b"".join(bytes(part) for part in made.parts))
    (folder / PARTIAL).mkdir(exist_ok=True)
    return made.extent, batches


def test_a_log_is_made_by_a_process_that_may_die(tmp_path: Path) -> None:
    async def scenario() -> None:
        source, batches = stored(tmp_path / "objects")
        disk, folder = RealDisk(), log_folder(str(tmp_path), TOPIC, 0)
        log = reset_log(disk, folder, WHOSE, reset_index=1, start_offset=0, floors=Floors(0, 0), maker="1-1")
        place = LogPlace(WHOSE, folder, log.maker)
        worker = WorkerCompactor(
            StorePlace(str(tmp_path / "objects"), {}, "worker"), loop=asyncio.get_running_loop()
        )
        try:
            job = IngestJob(place, log.next_number(), None, 0, True, 30, [source], b"", 9, 1 << 20, 400)
            made = await worker.ingest(job)
            assert isinstance(made, Ingested), made
            log.take(log.replace([made.segment], 0))
            assert worker.process_id is not None
            assert stands_back(worker.process_id, NICENESS)
            mapped = await worker.map(
                MapJob(place, 1, made.segment, True, True, None, 1 << 40, 1 << 16, 30, 0.0)
            )
            assert mapped == Mapped(4, 29)
            # The keys go with the process, and the round with them.
            first = worker.process_id
            os.kill(first, signal.SIGKILL)
            await gone(first)
            numbers = (log.next_number(), log.next_number())
            job_2 = FilterJob(place, 1, [made.segment], numbers, 29, 0, 0, 400, TIME, 0.0)
            failed = [await worker.filter(job_2) for _ in range(2)][-1]
            assert failed == JobFailed(Why.LOST, BEGAN_ANEW)
            later = MapJob(place, 1, made.segment, False, True, None, 1 << 40, 1 << 16, 30, 0.0)
            assert await worker.map(later) == JobFailed(Why.LOST, BEGAN_ANEW)
            assert await worker.map(later._replace(round=2, is_first=True)) == Mapped(4, 29)
            filtered = await worker.filter(job_2._replace(round=2))
            assert isinstance(filtered, Filtered), filtered
            assert filtered.removed_records == 25
            log.take(log.replace(filtered.segments, 29))
            missing = job._replace(sources=[source._replace(unique=bytes(15) + b"x")])
            gone_object = await worker.ingest(missing)
            assert isinstance(gone_object, JobFailed)
            assert gone_object.why is Why.GONE
            log_bytes = b"".join(batches)
            assert await worker.share(ShareJob(log_bytes, 1)) == Shared(shared_rows(log_bytes, 1))
            cut = await worker.share(ShareJob(log_bytes[:-1], 1))
            assert isinstance(cut, JobFailed)
            assert cut.why is Why.SOURCE
            assert worker.measures.starts == 2
            assert all(0 < worker.measures.cpu_seconds[work] < 30 for work in ("ingest", "clean"))
            assert worker.measures.cpu_seconds["publish"] == 0
            assert worker.measures.gets >= 1, "level one was read"
            assert worker.measures.puts == 0
        finally:
            await worker.close()
        assert (await worker.ingest(job)) == JobFailed(Why.LOST, "the node is stopping")
        log.close()
        again = open_log(disk, folder, WHOSE)
        found = []
        for one in again.view.segments:
            for block in one.footer.blocks:
                data, spans = one.batches(block)
                found += [data[span.position - block.position :][: span.length] for span in spans]
        assert [one.offset for one in read(found)] == [25, 26, 27, 28, 29]
        assert set(found) <= set(batches)
        again.close()

    run(scenario())


FAILS = """
from strandline.node.compaction.worker import CompactorJobs
from strandline.node.worker.worker_process import serve

class Fails(CompactorJobs):
    async def _done(self, job):
        job.close()
        raise MemoryError("the job is too large")

serve(Fails, 0)
"""


EARLIER = """
from strandline.node.compaction.worker import CompactorJobs
from strandline.node.worker.worker_process import serve

class Earlier(CompactorJobs):
    def take(self, message):
        return super().take([*message, "a field that this build does not know"])

serve(Earlier, 0)
"""


def test_a_worker_of_another_build_is_told_as_such_with_the_cure(tmp_path: Path) -> None:
    """A worker starts with its first job after a while, so with what an upgrade has brought by then."""

    async def scenario() -> None:
        (tmp_path / "objects" / PARTIAL).mkdir(parents=True)
        worker = WorkerCompactor(
            StorePlace(str(tmp_path / "objects"), {}, "worker"),
            loop=asyncio.get_running_loop(),
            limits=WorkerLimits(job_seconds=20.0),
            program=(sys.executable, "-P", "-c", EARLIER),
        )
        try:
            place = LogPlace(WHOSE, str(tmp_path), "1-1")
            told = await worker.ingest(IngestJob(place, 1, None, 0, True, 30, [], b"", 9, 1 << 20, 400))
            assert isinstance(told, JobFailed)
            assert told.why is Why.LOST
            assert "it is of another build than this node" in told.reason
            assert told.reason.endswith(": restart the node")
        finally:
            await worker.close()

    run(scenario())


def test_a_job_that_fails_in_a_way_that_was_not_foreseen_does_not_keep_the_node_waiting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        (tmp_path / "objects" / PARTIAL).mkdir(parents=True)
        worker = WorkerCompactor(
            StorePlace(str(tmp_path / "objects"), {}, "worker"),
            loop=asyncio.get_running_loop(),
            limits=WorkerLimits(job_seconds=20.0),
            program=(sys.executable, "-P", "-c", FAILS),
        )
        try:
            place = LogPlace(WHOSE, str(tmp_path), "1-1")
            told = await worker.ingest(IngestJob(place, 1, None, 0, True, 30, [], b"", 9, 1 << 20, 400))
            assert told == JobFailed(Why.LOST, "the compaction worker failed: it ended with code 4")
        finally:
            await worker.close()

    run(scenario())
    assert "MemoryError: the job is too large" in caplog.text


def test_what_a_late_worker_writes_is_no_part_of_the_next_nodes_log(tmp_path: Path) -> None:
    """It was killed with its node, but not at once: the same number was given again meanwhile."""
    disk, folder = RealDisk(), log_folder(str(tmp_path), TOPIC, 0)
    log = reset_log(disk, folder, WHOSE, reset_index=1, start_offset=0, floors=Floors(0, 0), maker="1-1")
    number = log.next_number()
    log.close()
    again = open_log(disk, folder, WHOSE, "2-1")
    assert again.next_number() == number
    writer = LevelOneWriter(TOPIC, 0, 0, number.to_bytes(16, "big"), 400)
    writer.allow_holes(0, 5)
    made = writer.finish()
    write_made(disk, folder, number, "2-1", made.parts)
    write_made(disk, folder, number, "1-1", [random.Random(1).randbytes(1000)])
    segment = Segment(number, 0, 5, made.size, 0, -1, -1, 0)
    again.take(again.replace([segment], 0))
    again.close()
    last = open_log(disk, folder, WHOSE)
    assert last.manifest.segments == (segment,)
    assert len(disk.listdir(folder)) == 2, "and it is swept"
    last.close()


def test_rounds_have_another_process_while_a_job_waits_for_the_store(tmp_path: Path) -> None:
    """A process that is stopped stands for one whose store does not answer."""

    async def scenario() -> None:
        source, _ = stored(tmp_path / "objects")
        folder = log_folder(str(tmp_path), TOPIC, 0)
        log = reset_log(
            RealDisk(), folder, WHOSE, reset_index=1, start_offset=0, floors=Floors(0, 0), maker="1-1"
        )
        place = LogPlace(WHOSE, folder, log.maker)
        worker = WorkerCompactor(
            StorePlace(str(tmp_path / "objects"), {}, "worker"), loop=asyncio.get_running_loop()
        )
        try:
            job = IngestJob(place, log.next_number(), None, 0, True, 30, [source], b"", 9, 1 << 20, 400)
            made = await worker.ingest(job)
            assert isinstance(made, Ingested), made
            log.take(log.replace([made.segment], 0))
            first = MapJob(place, 1, made.segment, True, True, None, 1 << 40, 1 << 16, 30, 0.0)
            assert await worker.map(first) == Mapped(4, 29)
            assert worker.process_id is not None
            os.kill(worker.process_id, signal.SIGSTOP)
            waits = asyncio.create_task(worker.ingest(job._replace(number=log.next_number())))
            await asyncio.sleep(0)
            numbers = (log.next_number(), log.next_number())
            rest = FilterJob(place, 1, [made.segment], numbers, 29, 0, 0, 400, TIME, 0.0)
            assert await worker.filter(rest) == JobFailed(Why.BUSY, BEHIND_STORE)
            assert await worker.map(first._replace(round=2)) == Mapped(4, 29)
            filtered = await worker.filter(rest._replace(round=2))
            assert isinstance(filtered, Filtered), filtered
            assert filtered.removed_records == 25
            assert not waits.done()
            os.kill(worker.process_id, signal.SIGCONT)
            assert isinstance(await waits, Ingested)
            # The next round is with the first process again.
            assert await worker.map(first._replace(round=3)) == Mapped(4, 29)
            assert worker.measures.starts == 2
        finally:
            await worker.close()

    run(scenario())
