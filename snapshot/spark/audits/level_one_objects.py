"""The batches of one level-one object, compared with what partitions say of it.

Every byte of the object is checked. What is damaged stands for the batches in it: a block that cannot be
believed is one row, an object that is not there is one row, and the rest is looked at all the same.
"""

from __future__ import annotations

from typing import NamedTuple

from strandline.snapshot.level_one_format import BODY_AT, Block, batches_of, parse, parse_footer, verify_block
from strandline.snapshot.object_frame import BadObject
from strandline.snapshot.spark.audits.batch_check import Header, check_batch
from strandline.snapshot.storage import ObjectMissing, Storage, StorageError


class Said(NamedTuple):
    """A partition's record of one of its objects; `newest` is its newest timestamp, in ms."""

    base_offset: int
    end_offset: int
    newest: int
    size: int
    index_bytes: int


class Found(NamedTuple):
    """Offsets of the object: a batch with its header, or a part that cannot be read."""

    base_offset: int
    end_offset: int
    records: int
    """Number of records it should have."""
    newest: int
    position: int
    length: int
    problem: str | None
    header: Header | None


def found_batches(storage: Storage, name: str, said: Said, clean: int) -> list[Found]:
    """The batches of an object within the offsets that the partition records for it, in offset order.

    Records may be missing in batches below the offset `clean`, if the object's format allows for holes.
    """
    try:
        data = storage.get(name)
    except StorageError as error:
        missing = isinstance(error, ObjectMissing)
        return [_whole(said, "there is no such object" if missing else str(error))]
    bad = None
    try:
        footer = parse(name, data)
    except BadObject as error:
        bad = error.reason
        try:
            footer = parse_footer(name, data, len(data))
        except BadObject as worse:
            return [_whole(said, worse.reason)]
    index_bytes = len(data) - (footer.blocks[-1].end if footer.blocks else BODY_AT)
    actual = Said(footer.base_offset, footer.end_offset, footer.max_timestamp, len(data), index_bytes)
    if actual != said:
        differs = [field for field in Said._fields if getattr(actual, field) != getattr(said, field)]
        said_there = ", ".join(
            f"{field.replace('_', ' ')} {getattr(actual, field)} in place of {getattr(said, field)}"
            for field in differs
        )
        return [_whole(said, f"the object has {said_there}")]
    parts = [part for block in footer.blocks for part in _of_block(name, block, data, footer.holes, clean)]
    if bad is not None and not any(part.problem for part in parts):
        parts = [part._replace(problem=bad) for part in parts]
    return parts


def _of_block(name: str, block: Block, data: bytes, holes: bool, clean: int) -> list[Found]:
    content = memoryview(data)[block.position : block.end]
    found = []
    try:
        verify_block(name, block, content)
        for span in batches_of(name, block, content, holes):
            start = span.position - block.position
            count = span.end_offset - span.base_offset
            whole = not holes or span.base_offset >= clean
            problem, header = check_batch(
                name,
                span.position,
                span.length,
                count,
                span.max_timestamp,
                content[start : start + span.length],
                whole=whole,
            )
            found.append(
                Found(
                    span.base_offset,
                    span.end_offset,
                    count if whole or header is None else header.records,
                    span.max_timestamp,
                    span.position,
                    span.length,
                    problem,
                    header,
                )
            )
    except BadObject as error:
        base, end, position, length, _, newest, _ = block
        return [Found(base, end, end - base, newest, position, length, error.reason, None)]
    return found


def _whole(said: Said, problem: str) -> Found:
    records = said.end_offset - said.base_offset
    return Found(said.base_offset, said.end_offset, records, said.newest, 0, said.size, problem, None)
