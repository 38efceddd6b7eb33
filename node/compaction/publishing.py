"""Makes a level-one object of a local log's batches, in place of objects that hold more than the log.

Objects at both ends of what is to be replaced stay if their bytes would be the same, block by block: in a
topic where little is superseded most would be written again for nothing. docs/compaction.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import NamedTuple

from crc32c import crc32c

from strandline.node.compaction.compactor import JobFailed, Published, PublishJob, Why
from strandline.node.compaction.segment_files import (
    LocalLogDamaged,
    OpenSegment,
    disk_reason,
    file_name,
    open_segment,
)
from strandline.node.objectstore.store import ObjectNotFound, ObjectStore, RangeNotFound, StoreError
from strandline.node.raft.disk import Disk
from strandline.snapshot.level_one_format import Block, body_bytes, parse_footer
from strandline.snapshot.level_one_writer import EncodedObject, LevelOneWriter
from strandline.snapshot.object_frame import BadObject
from strandline.statemachine.partition.level_one import LevelOneExtent, level_one_name


class _Piece(NamedTuple):
    """A block of a segment, or those of its batches that one object has."""

    segment: OpenSegment
    block: Block

    def read(self) -> bytes:
        """Its bytes; raises BadObject and OSError."""
        return self.segment.read(self.block)


class _Content(NamedTuple):
    """The log's batches of the offsets of one level-one object."""

    source: LevelOneExtent
    pieces: list[_Piece]

    @property
    def bytes(self) -> int:
        return sum(piece.block.length for piece in self.pieces)

    @property
    def ends_with_a_batch(self) -> bool:
        """Whether its last offset has a record."""
        if not self.pieces:
            return False
        segment, block = self.pieces[-1]
        _, spans = segment.batches(block)
        return spans[-1].end_offset == self.source.end_offset


async def publish(
    job: PublishJob,
    *,
    store: ObjectStore,
    disk: Disk,
    loop: asyncio.AbstractEventLoop,
    executor: Executor | None,
) -> Published | JobFailed:
    """Make the object; what blocks, and what takes long, goes to the executor."""
    opened: list[OpenSegment] = []
    try:
        contents = await loop.run_in_executor(executor, _contents, job, disk, opened)
        first, end = 0, len(contents)
        while first < end and await _same(job, contents[first], store, loop, executor):
            first += 1
        while first < end and await _same(job, contents[end - 1], store, loop, executor):
            end -= 1
        if first == end:
            return Published(len(contents), 0, 0, None)
        made = await loop.run_in_executor(executor, _made, job, contents[first:end])
        identity = job.place.identity
        await store.put(
            level_one_name(identity.topic_id, identity.partition, job.term, job.unique), made.parts
        )
        return Published(first, end - first, len(contents) - end, made.extent)
    except StoreError as error:
        return JobFailed(Why.STORE, str(error))
    except (LocalLogDamaged, BadObject) as error:
        return JobFailed(Why.DAMAGED, str(error))
    except OSError as error:
        return JobFailed(Why.DISK, disk_reason(error, job.place.folder))
    finally:
        for one in opened:
            one.release()


def _contents(job: PublishJob, disk: Disk, opened: list[OpenSegment]) -> list[_Content]:
    """The log's batches for each object, as far as they may be replaced; opens the segments.

    A reader of committed records must find a batch up to the last stable offset, or it waits there. The log
    may end with aborted batches that it has left out, so an object that ends with it stays until the log goes
    on behind it.
    """
    for row in job.segments:
        opened.append(open_segment(disk, job.place.folder, job.place.identity, row))
        opened[-1].hold()
    found = [_Content(source, _pieces(opened, source)) for source in job.sources]
    if found and found[-1].source.end_offset == job.log_end and not found[-1].ends_with_a_batch:
        del found[-1]
    return found


def _pieces(opened: Sequence[OpenSegment], source: LevelOneExtent) -> list[_Piece]:
    """The batches of the log that an object's offsets hold; raises BadObject, OSError."""
    base, end = source.base_offset, source.end_offset
    found = []
    for segment in opened:
        for block in segment.footer.blocks:
            if block.end_offset <= base or block.base_offset >= end:
                continue
            if base <= block.base_offset and block.end_offset <= end:
                found.append(_Piece(segment, block))
            elif (part := _part(segment, block, base, end)) is not None:
                found.append(_Piece(segment, part))
    return found


def _part(segment: OpenSegment, block: Block, base: int, end: int) -> Block | None:
    """The batches of a block that lie in `[base, end)`, as a block of their own."""
    data, spans = segment.batches(block)
    inside = [one for one in spans if one.end_offset > base and one.base_offset < end]
    if not inside:
        return None
    if inside[0].base_offset < base or inside[-1].end_offset > end:
        reason = f"a batch of it lies across an edge of the level-one object of offsets {base} to {end}"
        raise BadObject(file_name(segment.segment.number), block.position, block.end, reason)
    position, after = inside[0].position, inside[-1].position + inside[-1].length
    return Block(
        inside[0].base_offset,
        inside[-1].end_offset,
        position,
        after - position,
        crc32c(memoryview(data)[position - block.position : after - block.position]),
        max(one.max_timestamp for one in inside),
        len(inside),
    )


async def _same(
    job: PublishJob,
    content: _Content,
    store: ObjectStore,
    loop: asyncio.AbstractEventLoop,
    executor: Executor | None,
) -> bool:
    """Whether an object has the very bytes that the log has. Raises StoreError, BadObject, OSError.

    One that is lost, or whose index is damaged, has not: the log has what it should hold.
    """
    source, identity = content.source, job.place.identity
    if source.unique in job.unreadable:
        return False
    if content.bytes != body_bytes(source):
        return False
    name = level_one_name(identity.topic_id, identity.partition, source.term, source.unique)
    try:
        tail = await store.get_range(name, source.size - source.index_bytes, source.index_bytes)
        blocks = parse_footer(name, tail, source.size).blocks
    except (ObjectNotFound, RangeNotFound, BadObject):
        return False
    return await loop.run_in_executor(executor, _is, content.pieces, blocks)


def _is(pieces: Sequence[_Piece], blocks: Sequence[Block]) -> bool:
    """Whether as many bytes, cut as these blocks are, have the checksums of the blocks."""
    number = crc = taken = 0
    for piece in pieces:
        rest = memoryview(piece.read())
        while rest:
            part = rest[: blocks[number].length - taken]
            crc, taken, rest = crc32c(part, crc), taken + len(part), rest[len(part) :]
            if taken == blocks[number].length:
                if crc != blocks[number].crc:
                    return False
                number, crc, taken = number + 1, 0, 0
    return True


def _made(job: PublishJob, contents: Sequence[_Content]) -> EncodedObject:
    """One object of several contents; raises BadObject, OSError."""
    identity = job.place.identity
    room = sum(content.bytes for content in contents)
    writer = LevelOneWriter(
        identity.topic_id, identity.partition, job.term, job.unique, job.block_bytes, room
    )
    writer.allow_holes(contents[0].source.base_offset, contents[-1].source.end_offset)
    for content in contents:
        for piece in content.pieces:
            with writer.place(writer.sealed_bytes, piece.block.length) as place:
                place[:] = piece.read()
            writer.seal_block(piece.block)
    return writer.finish()
