"""A job of compaction rests for nineteen times what it took, every few milliseconds of it, within bounds."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from strandline.node.compaction import segment_cleaning
from strandline.node.compaction.breath import MAX_JOB_REST_SECONDS, MAX_WRITE_REST_SECONDS, Breath
from strandline.node.compaction.compactor import Filtered, FilterJob, LogPlace, MapJob, Mapped
from strandline.node.compaction.local_log import Floors, reset_log
from strandline.node.compaction.log_folders import log_folder
from strandline.node.compaction.segment_cleaning import SegmentCleaning
from strandline.node.raft.disk import RealDisk
from tests.compaction import measure_jobs
from tests.compaction.logs import TIME, Plan, log_of
from tests.compaction.measure_jobs import WHOSE


@dataclass
class Played:
    """A thread: its processor time goes on where a test says so."""

    spent: float = 0.0
    rests: list[float] = field(default_factory=list)

    def breath(self) -> Breath:
        return Breath(self.rests.append, lambda: self.spent)


def test_a_job_rests_for_each_piece_of_it() -> None:
    played = Played(spent=100.0)
    breath = played.breath()
    with breath.job(19.0):
        for _ in range(3):
            played.spent += 0.002
            breath.take()
        breath.take()
    assert played.rests == [pytest.approx(0.038)] * 3


def test_what_was_spent_between_jobs_is_not_rested_for() -> None:
    played = Played()
    breath = played.breath()
    for _ in range(2):
        with breath.job(19.0):
            played.spent += 0.01
            breath.take()
        played.spent += 5.0
    assert played.rests == [pytest.approx(0.19)] * 2


def test_a_job_rests_for_ten_seconds_at_most() -> None:
    played = Played()
    breath = played.breath()
    for _ in range(2):
        played.rests.clear()
        with breath.job(19.0):
            for _ in range(100):
                played.spent += 0.1
                breath.take()
        assert sum(played.rests) == pytest.approx(MAX_JOB_REST_SECONDS)


def test_writes_rest_too_and_always_for_as_long_as_they_took() -> None:
    played = Played()
    breath = played.breath()
    with breath.job(19.0):
        breath.after_write(0.001)
        breath.after_write(0.05)
    breath.after_write(0.001)
    with breath.job(0.0):
        breath.after_write(0.002)
        breath.after_write(3.0)
    assert played.rests == pytest.approx(
        [0.019, MAX_WRITE_REST_SECONDS, 0.001, 0.002, MAX_WRITE_REST_SECONDS]
    )


def test_a_job_that_has_rested_enough_writes_for_half_of_the_time() -> None:
    played = Played()
    breath = played.breath()
    with breath.job(19.0):
        played.spent += 100.0
        breath.take()
        breath.after_write(0.004)
    assert played.rests == pytest.approx([MAX_JOB_REST_SECONDS, 0.004])


def test_where_others_need_the_thread_nothing_rests() -> None:
    breath = Breath(None)
    with breath.job(1e9):
        breath.take()
        breath.after_write(1e9)


@pytest.mark.parametrize("rests", [19.0, 0.0])
def test_mapping_and_filtering_rest_after_each_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rests: float
) -> None:
    """Each look at the processor's time finds a millisecond more; a chunk is a block."""
    monkeypatch.setattr(segment_cleaning, "CHUNK_BYTES", 1)
    monkeypatch.setattr(measure_jobs, "BLOCK_BYTES", 400)
    played, ticks = Played(), itertools.count()
    breath = Breath(played.rests.append, lambda: next(ticks) * 0.001)
    disk, folder = RealDisk(), log_folder(str(tmp_path), WHOSE.topic_id, 0)
    log = reset_log(disk, folder, WHOSE, reset_index=1, start_offset=0, floors=Floors(0, 0), maker="1-1")
    batches = log_of([Plan(((b"key %d" % (number % 4), b"v", 0),)) for number in range(30)])
    made = measure_jobs.segment(log, LogPlace(WHOSE, folder, log.maker), b"".join(batches), 0, 30)
    log.take(log.replace([made], 0))
    chunks = len(log.view.segments[0].footer.blocks)
    assert chunks > 2
    cleaning, place = SegmentCleaning(disk, breath), LogPlace(WHOSE, folder, log.maker)
    with breath.job(rests):
        mapped = cleaning.map(MapJob(place, 1, made, True, True, None, 1 << 40, 1 << 16, 30, rests))
    assert mapped == Mapped(4, 29)
    assert played.rests == [pytest.approx(0.001 * rests)] * (chunks if rests else 0)
    played.rests.clear()
    numbers = (log.next_number(), log.next_number())
    with breath.job(rests):
        filtered = cleaning.filter(FilterJob(place, 1, [made], numbers, 29, 0, 0, 400, TIME, rests))
    assert isinstance(filtered, Filtered), filtered
    assert filtered.removed_records == 25
    assert played.rests == [pytest.approx(0.001 * rests)] * (chunks if rests else 0)
    log.close()
