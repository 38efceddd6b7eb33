"""Level one read as ranges of open files: checked before they are given, let go of when they are deleted."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from pathlib import Path

import pytest

from strandline.node.level_one import file_chunks, read_ahead
from strandline.node.level_one.reader import LevelOneReader, LevelOneReaderConfig, Place
from strandline.node.level_one.stored_run import StoredRun
from strandline.node.objectstore import object_file
from strandline.node.objectstore.local_store import LocalStore
from strandline.node.objectstore.object_file import Checked, FileRange, ObjectFile
from strandline.snapshot.level_one_format import Block, parse
from strandline.snapshot.level_one_writer import LevelOneWriter
from strandline.snapshot.object_frame import BadObject
from strandline.statemachine.partition.level_one import LevelOneExtent, level_one_name
from tests.kafka.wire.sent_bytes import sent_bytes
from tests.level_zero.samples import TOPIC, record_batch
from tests.objectstore.files import opened_store, stored_file

PLACE = Place(TOPIC, 3)
TERM = 7
END = 1 << 40
CONFIG = LevelOneReaderConfig(cache_bytes=400_000, chunk_bytes=4000, ahead_bytes=8000, max_gets=4)


class Case:
    """A reader on a real folder, with small chunks."""

    def __init__(self, folder: Path, store: LocalStore) -> None:
        self.folder = folder
        self.store = store
        self.reader = LevelOneReader(store, CONFIG, loop=asyncio.get_running_loop())
        self.extents: list[LevelOneExtent] = []
        self.blocks: list[Sequence[Block]] = []
        self.checks = 0
        store.checked = self.checked  # type: ignore[method-assign]

    async def checked(self, file: ObjectFile, ranges: Sequence[tuple[int, int]]) -> list[Checked]:
        self.checks += 1
        return await LocalStore.checked(self.store, file, ranges)

    async def stored(self, count: int, holes: Sequence[int] = ()) -> str:
        """The next object, of batches of 100 bytes with one record, ten in a block; its name."""
        unique = len(self.extents).to_bytes(16, "big")
        start = self.extents[-1].end_offset if self.extents else 0
        writer = LevelOneWriter(*PLACE, TERM, unique, 1000)
        if holes:
            writer.allow_holes(start, start + count)
        for offset in range(start, start + count):
            if offset not in holes:
                writer.add(record_batch(offset.to_bytes(39, "big")), offset, offset + 1, TERM, offset)
        made = writer.finish()
        name = level_one_name(*PLACE, TERM, unique)
        await self.store.put(name, made.parts)
        self.extents.append(made.extent)
        self.blocks.append(parse(name, b"".join(made.parts)).blocks)
        return name

    async def read(self, offset: int, end: int = END, size: int = 1 << 30, *, files: bool) -> list[StoredRun]:
        wanted = [extent for extent in self.extents if extent.end_offset > offset]
        return await self.reader.read(PLACE, wanted, offset, end, size, files=files)

    def damage(self, name: str, position: int) -> None:
        with open(self.folder / name, "r+b") as file:
            file.seek(position)
            byte = file.read(1)
            file.seek(position)
            file.write(bytes([byte[0] ^ 1]))


def on_files(test: Callable[[Case], Awaitable[None]]) -> Callable[..., None]:
    @wraps(test)
    def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(file_chunks, "CHUNK_BYTES", 3000)
        monkeypatch.setattr(read_ahead, "AHEAD_BYTES", 6000)

        async def started() -> None:
            store = opened_store(tmp_path)
            await stored_file(store, "probe", b".")
            case = Case(tmp_path, store)
            try:
                await test(case)
            finally:
                await case.reader.close()

        asyncio.run(started())

    del run.__wrapped__
    return run


def all_files(runs: Sequence[StoredRun]) -> bool:
    return all(isinstance(run.data, FileRange) for run in runs)


@on_files
async def test_whole_blocks_are_ranges_of_files_and_the_same_bytes(case: Case) -> None:
    for count in (100, 95, 61):
        await case.stored(count)
    for offset, end, size in ((0, END, 1 << 30), (20, END, 5500), (0, 200, 1 << 30), (90, 120, 1 << 30)):
        plain = await case.read(offset, end, size, files=False)
        files = await case.read(offset, end, size, files=True)
        assert all_files(files)
        assert not any(isinstance(run.data, FileRange) for run in plain)
        assert (files[0].base_offset, files[-1].end_offset) == (plain[0].base_offset, plain[-1].end_offset)
        assert sent_bytes([run.data for run in files]) == sent_bytes([run.data for run in plain])


@on_files
async def test_parts_of_a_block_and_small_objects_are_bytes(case: Case) -> None:
    await case.stored(100)
    await case.stored(12)
    for offset, end, size in ((3, END, 600), (0, END, 300), (0, 4, 1 << 30), (100, END, 1 << 30)):
        runs = await case.read(offset, end, size, files=True)
        assert not any(isinstance(run.data, FileRange) for run in runs), (offset, end, size)
        assert case.checks == 0


@on_files
async def test_what_was_checked_is_not_checked_again_and_what_comes_next_is_checked_ahead(case: Case) -> None:
    await case.stored(100)
    await case.read(0, size=3000, files=True)
    for _ in range(100):
        if case.checks == 3:
            break
        await asyncio.sleep(0.01)
    assert case.checks == 3, "one chunk, and two ahead"
    await case.read(0, size=9000, files=True)
    await case.read(30, size=3000, files=True)
    await asyncio.sleep(0.05)
    assert case.checks == 4, "one more ahead"


@on_files
async def test_a_damaged_block_is_named_and_never_given(case: Case) -> None:
    name = await case.stored(100)
    bad = case.blocks[0][4]
    case.damage(name, bad.position + 500)
    runs = await case.read(0, files=True)
    assert all_files(runs)
    assert runs[-1].end_offset == bad.base_offset
    for _ in range(2):
        with pytest.raises(BadObject, match="checksum") as error:
            await case.read(bad.base_offset, files=True)
        assert (error.value.name, error.value.start, error.value.end) == (name, bad.position, bad.end)
    assert case.reader.measures.bad == 2 + 1, "each look at a chunk that is not kept"
    assert (await case.read(bad.end_offset, files=True))[-1].end_offset == 100


@on_files
async def test_an_object_that_is_cut_is_named(case: Case) -> None:
    name = await case.stored(100)
    await case.read(3, size=300, files=True)  # so that its index is known
    os.truncate(case.folder / name, case.blocks[0][8].position + 1)
    with pytest.raises(BadObject, match="it ends before this") as error:
        await case.read(80, files=True)
    assert error.value.name == name


@on_files
async def test_a_deleted_object_is_given_to_who_reads_it_and_let_go_of(case: Case) -> None:
    name = await case.stored(100)
    data = sent_bytes([run.data for run in await case.read(0, files=False)])
    runs = await case.read(0, files=True)
    await case.store.delete_many([name])
    assert sent_bytes([run.data for run in await case.read(0, files=True)]) == data
    case.reader.files._let_go()
    assert len(case.reader.files.objects) == len(case.reader.files.chunks) == 0
    assert sent_bytes([run.data for run in runs]) == data, "an answer that is being sent keeps it"
    opened = len(os.listdir("/proc/self/fd"))
    del runs
    await case.store.size("probe")  # so that the threads have let go of their last jobs
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) < opened


@on_files
async def test_damage_behind_a_check_is_seen_by_the_next_one(case: Case) -> None:
    name = await case.stored(100)
    await case.read(0, files=True)
    case.damage(name, case.blocks[0][0].position + 500)
    assert all_files(await case.read(0, size=1000, files=True)), "as with Kafka, the client's check finds it"
    case.reader.files.chunks.drop(lambda _: True)
    with pytest.raises(BadObject):
        await case.read(0, size=1000, files=True)


@on_files
async def test_without_room_for_one_more_file_bytes_are_read(case: Case) -> None:
    await case.stored(100)
    most, object_file.MAX_OPEN_FILES = object_file.MAX_OPEN_FILES, 0  # type: ignore[misc]
    try:
        runs = await case.read(0, files=True)
    finally:
        object_file.MAX_OPEN_FILES = most  # type: ignore[misc]
    assert not any(isinstance(run.data, FileRange) for run in runs)
    assert all_files(await case.read(0, files=True))


@on_files
async def test_open_objects_are_bounded_in_number_and_checked_bytes_in_size(case: Case) -> None:
    files = case.reader.files
    files.objects.max_bytes, files.chunks.max_bytes = 3, 10_000
    for _ in range(8):
        await case.stored(100)
    offset = 0
    while offset < 800:
        runs = await case.read(offset, size=3000, files=True)
        offset = runs[-1].end_offset
        assert len(files.objects) <= 3
        assert files.chunks.bytes <= 10_000


@on_files
async def test_where_compaction_left_holes_offsets_are_those_of_the_batches(case: Case) -> None:
    await case.stored(100, holes=[0, 1, 2, 41, 42, 43, 99])
    plain = await case.read(0, files=False)
    files = await case.read(0, files=True)
    assert all_files(files)
    assert (files[0].base_offset, files[-1].end_offset) == (plain[0].base_offset, plain[-1].end_offset)
    assert files[0].base_offset == 3
    assert sent_bytes([run.data for run in files]) == sent_bytes([run.data for run in plain])
