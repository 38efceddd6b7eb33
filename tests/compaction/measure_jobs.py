"""MB of a local log that a CPU-second cleans as the worker does it: read, map, filter, write segments.

    python -m tests.compaction.measure_jobs

The log is that of `tests.compaction.measure`: a clean and a dirty segment of 20 MB. All is this process's
own CPU time, the kernel's for reading and writing files included. The first round is told apart.
"""

from __future__ import annotations

import os
import struct
import tempfile
import time

from strandline.node.compaction.breath import Breath
from strandline.node.compaction.compactor import Filtered, FilterJob, LogPlace, MapJob, Mapped
from strandline.node.compaction.local_log import Floors, LocalLog, reset_log
from strandline.node.compaction.log_folders import log_folder
from strandline.node.compaction.manifest import LogIdentity, Segment
from strandline.node.compaction.segment_cleaning import SegmentCleaning
from strandline.node.compaction.segment_files import TERM, made_name, segment_unique, write_made
from strandline.node.raft.disk import RealDisk
from strandline.node.runtime.allocator import keep_freed_memory
from strandline.snapshot.compression import Compression
from strandline.snapshot.level_one_writer import LevelOneWriter
from tests.compaction.logs import TIME
from tests.compaction.measure import MAP_BYTES, made

ROUNDS = 7
BLOCK_BYTES = 1 << 18
WHOSE = LogIdentity("harbour", bytes(range(16)), 0)


def segment(log: LocalLog, place: LogPlace, data: bytes, base: int, end: int) -> Segment:
    """Make a segment of these batches."""
    number = log.next_number()
    writer = LevelOneWriter(WHOSE.topic_id, 0, TERM, segment_unique(number), BLOCK_BYTES)
    writer.allow_holes(base, end)
    at = records = 0
    while at < len(data):
        first, length = struct.unpack_from(">qi", data, at)
        last, time_ms, count = struct.unpack_from(">i8xq14xi", data, at + 23)
        writer.add(memoryview(data)[at : at + length + 12], first, first + last + 1, 0, time_ms)
        at += length + 12
        records += count
    encoded = writer.finish()
    write_made(RealDisk(), place.folder, number, place.maker, encoded.parts)
    return Segment(number, base, end, encoded.size, records, -1, -1, 0)


def measure(folder: str, value_bytes: int, distinct: int, codec: Compression) -> str:
    """Some rounds over the same log, as a line."""
    disk, place_folder = RealDisk(), log_folder(folder, WHOSE.topic_id, 0)
    log = reset_log(
        disk, place_folder, WHOSE, reset_index=1, start_offset=0, floors=Floors(0, 0), maker="1-1"
    )
    place = LogPlace(WHOSE, place_folder, log.maker)
    clean, base = made(value_bytes, distinct, codec, 1, 0)
    dirty, end = made(value_bytes, distinct, codec, 2, base)
    segments = [segment(log, place, clean, 0, base), segment(log, place, dirty, base, end)]
    log.take(log.replace(segments, base))
    cleaning, rates = SegmentCleaning(disk, Breath(None)), []
    for number in range(ROUNDS):
        began = time.process_time()
        mapped = cleaning.map(
            MapJob(place, number, segments[1], True, True, None, end, MAP_BYTES, segments[1].records, 0.0)
        )
        assert isinstance(mapped, Mapped), mapped
        numbers = (log.next_number(), log.next_number())
        bound = end if mapped.bound is None else mapped.bound
        filtered = cleaning.filter(
            FilterJob(place, number, segments, numbers, bound, 0, 0, BLOCK_BYTES, TIME, 0.0)
        )
        assert isinstance(filtered, Filtered), filtered
        rates.append(filtered.read_bytes / 1e6 / (time.process_time() - began))
        for one in filtered.segments:
            os.unlink(os.path.join(place_folder, made_name(one.number, place.maker)))
    log.close()
    return (
        f"{value_bytes} B values, {distinct} keys, {codec.name}: MB a CPU-second: first round {rates[0]:.0f},"
        f" best of {ROUNDS - 1} later {max(rates[1:]):.0f}, worst {min(rates[1:]):.0f}"
    )


def main() -> None:
    keep_freed_memory(large=True)
    for value_bytes, distinct, codec in (
        (100, 90_000, Compression.NONE),
        (1000, 11_000, Compression.NONE),
        (100, 90_000, Compression.ZSTD),
        (1000, 11_000, Compression.ZSTD),
    ):
        with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
            print(measure(folder, value_bytes, distinct, codec), flush=True)


if __name__ == "__main__":
    main()
