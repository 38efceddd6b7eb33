"""What reading level one costs, from memory. `python -m tests.level_one.measure_reading`.

One partition, read in a row: CPU time of the event loop, the store's own left out. Then several, read by one
consumer from a store that takes 5 ms: how much is fetched for what is given.
"""

from __future__ import annotations

import asyncio
import time
from typing import cast

import uvloop

from strandline.node.kafka.handlers.stamped_parts import stamped_parts
from strandline.node.level_one.reader import KIB, MIB, LevelOneReader, LevelOneReaderConfig, Place
from strandline.node.objectstore.store import ObjectStore
from strandline.snapshot.level_one_writer import LevelOneWriter
from strandline.statemachine.partition.level_one import LevelOneExtent, level_one_name
from tests.level_zero.samples import record_batch

FETCH_BYTES = MIB
ROUNDS = 5


class Memory:
    """A store that only gives, after a while."""

    def __init__(self, seconds: float) -> None:
        self.objects: dict[str, memoryview] = {}
        self._seconds = seconds

    async def get_range(self, key: str, start: int, length: int) -> memoryview:
        await asyncio.sleep(self._seconds)
        return self.objects[key][start : start + length]


class Reading:
    """Partitions of one object each, and a reader."""

    def __init__(self, partitions: int, size: int, batch_bytes: int, seconds: float) -> None:
        self.store = Memory(seconds)
        self.reader = LevelOneReader(
            cast(ObjectStore, self.store), LevelOneReaderConfig(), loop=asyncio.get_running_loop()
        )
        self.places = [
            (Place(bytes(16), number), self.made(number, size, batch_bytes)) for number in range(partitions)
        ]

    def made(self, number: int, size: int, batch_bytes: int) -> LevelOneExtent:
        unique = number.to_bytes(16, "big")
        writer = LevelOneWriter(bytes(16), number, 1, unique, 256 * KIB)
        batch = record_batch(bytes(batch_bytes - 61))
        for offset in range(size // batch_bytes):
            writer.add(batch, offset, offset + 1, 1, 0)
        made = writer.finish()
        self.store.objects[level_one_name(bytes(16), number, 1, unique)] = memoryview(b"".join(made.parts))
        return made.extent

    async def all_of(self, place: Place, extent: LevelOneExtent) -> None:
        offset = 0
        while offset < extent.end_offset:
            runs = await self.reader.read(place, [extent], offset, extent.end_offset, FETCH_BYTES)
            stamped_parts([*runs])
            offset = runs[-1].end_offset


async def one(batch_bytes: int) -> None:
    best = 1e9
    for _ in range(ROUNDS):
        reading = Reading(1, 64 * MIB, batch_bytes, 0.0)
        started = time.thread_time()
        await reading.all_of(*reading.places[0])
        best = min(best, (time.thread_time() - started) / reading.reader.measures.bytes_given)
    print(f"one partition, batches of {batch_bytes:>9,} B: {best * 1e9:.2f} s of CPU a GB")


async def beside_each_other(partitions: int, size: int) -> None:
    """As a consumer of all of them does it: in turns, a piece of each."""
    reading = Reading(partitions, size, 16 * KIB, 0.005)
    offsets = [0] * partitions
    end = reading.places[0][1].end_offset

    async def piece(number: int) -> None:
        place, extent = reading.places[number]
        runs = await reading.reader.read(place, [extent], offsets[number], end, FETCH_BYTES)
        offsets[number] = runs[-1].end_offset

    while behind := [number for number in range(partitions) if offsets[number] < end]:
        await asyncio.gather(*map(piece, behind))
    done = reading.reader.measures
    fetched = done.bytes_read / done.bytes_given
    print(f"{partitions:>3} partitions in turns: {fetched:.2f} bytes fetched for each one given")


async def main() -> None:
    for batch_bytes in (200, 16 * KIB, MIB):
        await one(batch_bytes)
    for partitions, size in ((1, 64 * MIB), (16, 8 * MIB), (50, 4 * MIB), (200, 2 * MIB)):
        await beside_each_other(partitions, size)


if __name__ == "__main__":
    uvloop.run(main())
