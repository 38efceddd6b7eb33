"""Reading a compacted table from offset 0, by the local log and by level one.

`python -m tests.compaction.measure_reading`. Every fourth batch is left, and the files are in the page cache.
A consumer asks for a MiB at a time and goes on behind the last record it got, which is where a hole begins.
Wall time, CPU time of the loop's thread and of the whole process; level one by a store of files, and by one
that takes 5 ms for a get and no processor time.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from strandline.node.compaction.compaction_measures import CompactionMeasures
from strandline.node.compaction.local_log import Floors, LocalLog, View, reset_log
from strandline.node.compaction.local_reader import LocalReader
from strandline.node.compaction.log_folders import log_folder
from strandline.node.compaction.manifest import NONE, LogIdentity, Segment
from strandline.node.compaction.segment_files import TERM, segment_unique, write_made
from strandline.node.kafka.handlers.stamped_parts import stamped_parts
from strandline.node.level_one.reader import KIB, MIB, LevelOneReader, LevelOneReaderConfig, Place
from strandline.node.level_one.stored_run import StoredRun
from strandline.node.objectstore.opening import StorePlace, open_store
from strandline.node.objectstore.retries import RetryPolicy
from strandline.node.objectstore.store import Buffer, ObjectStore
from strandline.node.raft.disk import RealDisk
from strandline.node.runtime.disk_threads import DiskThreads, NodeLoop
from strandline.snapshot.level_one_writer import EncodedObject, LevelOneWriter
from strandline.statemachine.partition.level_one import LevelOneExtent, level_one_name
from tests.level_zero.samples import record_batch

FETCH_BYTES: Final = MIB
ROUNDS: Final = 3
SIZE: Final = 64 * MIB
FILES: Final = 3
KEPT: Final = 4
"""One batch of so many is left."""
WHOSE: Final = LogIdentity("harbour", bytes(16), 0)
Read = Callable[[int], Awaitable[Sequence[StoredRun]]]


class Slow(ObjectStore):
    """A store that gives from memory, after a while."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self._objects = {name: memoryview(data) for name, data in objects.items()}

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        await asyncio.sleep(0.005)
        return self._objects[key][start : start + length]


class Served:
    """A log that is healthy."""

    def __init__(self, log: LocalLog) -> None:
        self._log = log

    def readable(self) -> View:
        return self._log.view

    def damaged(self, reason: str) -> None:
        raise AssertionError(reason)


def made(term: int, number: int, batch_bytes: int) -> EncodedObject:
    """An object, or a segment, of 64 MiB with holes."""
    offsets = SIZE // batch_bytes * KEPT
    writer = LevelOneWriter(WHOSE.topic_id, 0, term, segment_unique(number), 256 * KIB)
    writer.allow_holes(number * offsets, (number + 1) * offsets)
    batch = record_batch(bytes(batch_bytes - 61))
    for offset in range(number * offsets, (number + 1) * offsets, KEPT):
        writer.add(batch, offset, offset + 1, 1, 0)
    return writer.finish()


async def all_of(read: Read, end: int) -> int:
    """Bytes of everything, as a consumer asks for it."""
    offset = size = 0
    while offset < end:
        runs = await read(offset)
        stamped_parts([*runs])
        size += sum(len(run.data) for run in runs)
        # The last record is a multiple of KEPT; what follows is not there.
        offset = (runs[-1].end_offset - 1) // KEPT * KEPT + 1
        if runs[-1].end_offset >= end:
            return size
    return size


async def timed(name: str, batch_bytes: int, new: Callable[[], Read], end: int) -> None:
    best: tuple[float, float, float] | None = None
    for _ in range(ROUNDS):
        read = new()
        wall, thread, process = time.perf_counter(), time.thread_time(), time.process_time()
        size = await all_of(read, end)
        took = time.perf_counter() - wall, time.thread_time() - thread, time.process_time() - process
        assert size == FILES * (SIZE // batch_bytes) * batch_bytes, size
        best = took if best is None else min(best, took)
    assert best is not None
    gb = size / 1e9
    print(
        f"batches of {batch_bytes:>9,} B, {name:<32}: {size / 1e6 / best[0]:>6.0f} MB/s, "
        f"{best[1] / gb:.2f} s of CPU a GB on the loop, {best[2] / gb:.2f} in all",
        flush=True,
    )


async def measure(folder: str, batch_bytes: int) -> None:
    loop, disk = asyncio.get_running_loop(), RealDisk()
    end = FILES * (SIZE // batch_bytes) * KEPT
    path = log_folder(folder, WHOSE.topic_id, 0)
    log = reset_log(disk, path, WHOSE, reset_index=0, start_offset=0, floors=Floors(0, 0), maker="m")
    rows: list[Segment] = []
    for number in range(FILES):
        encoded = made(TERM, log.next_number(), batch_bytes)
        write_made(disk, path, number, "m", encoded.parts)
        base, after = encoded.extent.base_offset, encoded.extent.end_offset
        rows.append(Segment(number, base, after, encoded.size, 1, NONE, NONE, 0))
    log.take(log.replace(rows, end))
    objects: dict[str, bytes] = {}
    extents: list[LevelOneExtent] = []
    threads = DiskThreads(16, "store")
    store = open_store(
        StorePlace(f"{folder}/store", {}, "measure"), RetryPolicy(), loop=loop, disk=disk,
        executor=threads, rng=random.Random(1), make=True,
    )  # fmt: skip
    for number in range(FILES):
        encoded = made(1, number, batch_bytes)
        name = level_one_name(WHOSE.topic_id, 0, 1, segment_unique(number))
        objects[name] = b"".join(encoded.parts)
        await store.put(name, encoded.parts)
        extents.append(encoded.extent)

    served = Served(log)
    local = LocalReader(lambda _: served, CompactionMeasures(), loop=loop, executor=DiskThreads(4, "local"))

    def locally() -> Read:
        return lambda offset: local.read(1, offset, end, FETCH_BYTES)

    def level_one(by: ObjectStore) -> Callable[[], Read]:
        def new() -> Read:
            reader = LevelOneReader(by, LevelOneReaderConfig(), loop=loop)

            def holding(offset: int) -> LevelOneExtent | None:
                return next((one for one in extents if one.base_offset <= offset < one.end_offset), None)

            async def read(offset: int) -> Sequence[StoredRun]:
                first = next(number for number, one in enumerate(extents) if one.end_offset > offset)
                wanted = extents[first : first + 2]
                return await reader.read(Place(WHOSE.topic_id, 0), wanted, offset, end, FETCH_BYTES, holding)

            return read

        return new

    await timed("the local log", batch_bytes, locally, end)
    await timed("level one, files", batch_bytes, level_one(store), end)
    await timed("level one, 5 ms a get", batch_bytes, level_one(Slow(objects)), end)  # type: ignore[abstract]
    log.close()


def main() -> int:
    for batch_bytes in (1_000, 16 * KIB, MIB):
        with tempfile.TemporaryDirectory() as folder, asyncio.Runner(loop_factory=NodeLoop) as runner:
            runner.run(measure(folder, batch_bytes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
