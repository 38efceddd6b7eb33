"""The bytes of a level-one object: what goes in comes out stamped, and no damaged byte does."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.snapshot.level_one_format import (
    BODY_AT,
    WITHOUT_HOLES,
    batches_of,
    body_bytes,
    parse,
    parse_footer,
    verify_block,
)
from strandline.snapshot.level_one_writer import LevelOneWriter
from strandline.snapshot.level_zero_format import encode
from strandline.snapshot.object_frame import TAIL, BadObject, NewerFormat
from strandline.statemachine.object_names import object_name
from strandline.statemachine.partition.extent import InlineExtent
from strandline.statemachine.partition.level_one import level_one_name
from tests.level_one.stamped import UNIQUE, Sent, encoded, sent, stamped
from tests.level_zero.samples import IDENTITY, OTHER_TOPIC, TOPIC, record_batch

NAME = level_one_name(TOPIC, 0, 3, UNIQUE)
BATCHES = [sent(b"first"), sent(b"second" * 30, 7, 5000, 2), sent(b"", 3), sent(b"fourth" * 50)]

batches = st.lists(
    st.builds(
        sent,
        st.binary(max_size=300),
        st.integers(1, 2**31 - 1),
        st.integers(-(2**63), 2**63 - 1),
        st.integers(0, 2**31 - 1),
    ),
    min_size=1,
    max_size=40,
)
block_sizes = st.integers(1, 2000)


def stored(given: list[Sent] = BATCHES) -> bytes:
    return b"".join(encoded(given, 40).parts)


@settings(deadline=None)
@given(batches, st.integers(0, 2**40), block_sizes)
def test_every_batch_comes_out_whole_and_stamped(given: list[Sent], base: int, block_bytes: int) -> None:
    parts, size, extent = encoded(given, base, block_bytes=block_bytes)
    data = b"".join(parts)
    footer = parse(NAME, data)
    assert len(data) == size == footer.size == extent.size
    assert (footer.topic_id, footer.partition, footer.term, footer.unique) == (TOPIC, 0, 3, UNIQUE)
    assert parse_footer(NAME, data[-extent.index_bytes :], size) == footer
    found = []
    for block in footer.blocks:
        content = data[block.position : block.end]
        verify_block(NAME, block, content)
        spans = list(batches_of(NAME, block, content))
        assert block.max_timestamp == max(span.max_timestamp for span in spans)
        assert len(spans) == block.batches
        found += spans
    offset = base
    for span, batch in zip(found, given, strict=True):
        after = offset + batch.records
        assert span[2:] == (offset, after, batch.term, batch.max_timestamp)
        assert data[span.position : span.position + span.length] == stamped(batch, offset)
        offset = after
    assert (
        (extent.base_offset, extent.end_offset) == (footer.base_offset, footer.end_offset) == (base, offset)
    )
    assert extent.max_timestamp == footer.max_timestamp == max(batch.max_timestamp for batch in given)
    assert body_bytes(extent) == sum(len(batch.data) for batch in given)


@settings(deadline=None)
@given(batches, block_sizes)
def test_blocks_are_as_large_as_they_may_be_and_no_larger(given: list[Sent], block_bytes: int) -> None:
    blocks = parse(NAME, b"".join(encoded(given, block_bytes=block_bytes).parts)).blocks
    assert all(block.length <= block_bytes or block.batches == 1 for block in blocks)
    sizes = [len(batch.data) for batch in given]
    counted = 0
    for block, after in pairwise(blocks):
        counted += block.batches
        assert block.length + sizes[counted] > block_bytes, "the next batch would have had room"
        assert after.position == block.end
        assert after.base_offset == block.end_offset


@settings(deadline=None)
@given(batches, block_sizes, st.lists(st.integers(0, 40), max_size=4))
def test_batches_sealed_in_place_make_the_same_object(
    given: list[Sent], block_bytes: int, cuts: list[int]
) -> None:
    extents, base = [], 40
    for batch in given:
        length = len(batch.data)
        extents.append(InlineExtent(base, batch.records, batch.term, batch.max_timestamp, length, b""))
        base += batch.records
    writer = LevelOneWriter(TOPIC, 0, 3, UNIQUE, block_bytes, sum(len(batch.data) for batch in given))
    at = sum(len(batch.data) for batch in given)
    for batch in reversed(given):
        at -= len(batch.data)
        writer.place(at, len(batch.data))[:] = batch.data
    for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(extents)], strict=True):
        assert writer.seal(extents[begin:end]) is None
    assert b"".join(writer.finish().parts) == b"".join(encoded(given, 40, block_bytes=block_bytes).parts)


@settings(deadline=None)
@given(batches, block_sizes, block_sizes)
def test_blocks_sealed_as_they_are_are_joined(given: list[Sent], small: int, large: int) -> None:
    data = b"".join(encoded(given, 40, block_bytes=min(small, large)).parts)
    blocks = parse(NAME, data).blocks
    writer = LevelOneWriter(TOPIC, 0, 3, UNIQUE, max(small, large), blocks[-1].end - BODY_AT)
    writer.place(0, blocks[-1].end - BODY_AT)[:] = data[BODY_AT : blocks[-1].end]
    for block in blocks:
        writer.seal_block(block)
    parts, _, extent = writer.finish()
    joined = parse(NAME, b"".join(parts))
    assert parts[0] == data[: blocks[-1].end]
    assert extent.max_timestamp == max(batch.max_timestamp for batch in given)
    assert sum(block.batches for block in joined.blocks) == len(given)
    lengths = [block.length for block in joined.blocks]
    assert all(a + b > max(small, large) for a, b in pairwise(lengths)) or small != large
    assert all(block.length <= max(small, large) or block.batches == 1 for block in joined.blocks)


def test_one_flipped_bit_anywhere_is_found() -> None:
    data = stored()
    for at in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            with pytest.raises(BadObject) as raised:
                parse(NAME, damaged)
            assert raised.value.name == NAME
            assert raised.value.start <= at < raised.value.end or at >= len(data) - TAIL.size
            assert not isinstance(raised.value, NewerFormat), f"byte {at}: damage was taken for a new format"


def test_a_cut_object_is_found_wherever_it_was_cut() -> None:
    data = stored()
    for length in range(len(data)):
        with pytest.raises(BadObject):
            parse(NAME, data[:length])


@pytest.mark.parametrize(
    "name",
    [
        level_one_name(OTHER_TOPIC, 0, 3, UNIQUE),
        level_one_name(TOPIC, 1, 3, UNIQUE),
        level_one_name(TOPIC, 0, 4, UNIQUE),
        level_one_name(TOPIC, 0, 3, UNIQUE[::-1]),
    ],
)
def test_bytes_under_another_name_are_found(name: str) -> None:
    with pytest.raises(BadObject, match=f"these are the bytes of {NAME}"):
        parse(name, stored())


def test_a_level_zero_object_is_none_of_level_one() -> None:
    data = b"".join(encode(7, IDENTITY, []).parts) + bytes(200)
    with pytest.raises(BadObject, match="no magic at the end"):
        parse(NAME, data)
    whole = b"".join(encode(7, IDENTITY, []).parts)
    with pytest.raises(BadObject):
        parse(object_name(7, IDENTITY), whole)


def resigned(data: bytes, fields: bytes, version: int = WITHOUT_HOLES) -> bytes:
    """The object with another footer, signed as a writer would."""
    extent = encoded(BATCHES, 40).extent
    footer = fields + struct.pack("<IIHH8s", len(fields) + 20, 0, version, 0, b"strandL1")
    crc = crc32c(footer[-12:], crc32c(footer[:-16]))
    return data[: -extent.index_bytes] + footer[:-16] + struct.pack("<I", crc) + footer[-12:]


def fields_of(data: bytes) -> bytes:
    return data[-encoded(BATCHES, 40).extent.index_bytes : -20]


def test_a_newer_version_is_told_from_damage() -> None:
    data = stored()
    assert resigned(data, fields_of(data)) == data
    with pytest.raises(NewerFormat, match="version 3, this reader knows up to 2: upgrade"):
        parse(NAME, resigned(data, fields_of(data), 3))
    with pytest.raises(BadObject, match="the header says another format version"):
        parse(NAME, resigned(data, fields_of(data), 2))
    with pytest.raises(BadObject, match="no format version 0"):
        parse(NAME, resigned(data, fields_of(data), 0))


@pytest.mark.parametrize(
    ("at", "reason"),
    [
        (0, "a block begins at 16 with offset 41, not at 16 with 40"),
        (8, "a block begins at"),
        (16, "a block begins at 17 with offset 40, not at 16 with 40"),
        (24, "a block begins at"),
        (-36, "a block begins at 16 with offset 40, not at 16 with 41"),
        (-28, "blocks end at 745 with offset 52, not at 745 with 53"),
        (-12, "4 blocks in 1038 bytes"),
        (-4, "5 blocks in 1037 bytes"),
    ],
)
def test_a_signed_footer_that_contradicts_itself_is_refused(at: int, reason: str) -> None:
    data = stored()
    fields = bytearray(fields_of(data))
    fields[at] += 1
    with pytest.raises(BadObject, match=reason):
        parse(NAME, resigned(data, bytes(fields)))


def test_batches_that_contradict_the_index_are_found() -> None:
    data = stored([sent(b"a", 2), sent(b"b", 3)])
    [block] = parse(NAME, data).blocks
    content = bytearray(data[block.position : block.end])
    assert len(list(batches_of(NAME, block, content))) == 2
    for changed, reason in [
        (block._replace(batches=3), "2 batches up to offset 45 in place of 3 up to 45"),
        (block._replace(end_offset=46), "2 batches up to offset 45 in place of 2 up to 46"),
        (block._replace(base_offset=41), "a batch of offset 40 where 41 follows"),
    ]:
        with pytest.raises(BadObject, match=reason):
            list(batches_of(NAME, changed, content))
    for at, reason in [(11, "no batch begins here"), (16, "no batch begins here"), (23, "a batch of offset")]:
        damaged = bytearray(content)
        damaged[at] ^= 0x80
        with pytest.raises(BadObject, match=reason):
            list(batches_of(NAME, block, damaged))
    with pytest.raises(BadObject, match="no batch begins here"):
        list(batches_of(NAME, block, content[:-1]))
    with pytest.raises(BadObject, match="in place of"):
        verify_block(NAME, block, content[:-1])


def test_a_damaged_batch_is_not_sealed() -> None:
    good, other = record_batch(b"good"), record_batch(b"other")
    length = len(good)
    extents = [InlineExtent(n, 1, 3, 1000, len(b), b"") for n, b in enumerate([good, other])]
    for at in [*range(8, 12), *range(16, len(other))]:
        writer = LevelOneWriter(TOPIC, 0, 3, UNIQUE, 256, length + len(other))
        writer.place(0, length)[:] = good
        writer.place(length, len(other))[:] = other
        writer.place(length + at, 1)[0] ^= 1
        assert writer.seal(extents) is extents[1], f"byte {at}"
        assert writer.sealed_bytes == length


def test_a_writer_refuses_what_makes_no_object() -> None:
    batch = record_batch(b"x")

    def writer(room: int = 0) -> LevelOneWriter:
        return LevelOneWriter(TOPIC, 0, 3, UNIQUE, 256, room)

    with pytest.raises(ValueError, match="without batches"):
        writer().finish()
    with pytest.raises(ValueError, match="unique bytes"):
        LevelOneWriter(TOPIC, 0, 3, b"short", 256)
    with pytest.raises(ValueError, match="no 5 bytes here"):
        writer().add(b"12345", 0, 1, 3, 0)
    with pytest.raises(ValueError, match="hold offsets 4 to 4"):
        writer().add(batch, 4, 4, 3, 0)
    holes = writer()
    holes.add(batch, 0, 2, 3, 0)
    with pytest.raises(ValueError, match="offset 3 comes after"):
        holes.add(batch, 3, 4, 3, 0)
    for block_bytes in (1, 1000):
        holes = LevelOneWriter(TOPIC, 0, 3, UNIQUE, block_bytes)
        holes.add(batch, 0, 2, 3, 0)
        with pytest.raises(ValueError, match="offset 1 comes after"):
            holes.add(batch, 1, 4, 3, 0)
    unused = writer(room=2 * len(batch))
    unused.place(0, len(batch))[:] = batch
    assert unused.seal([InlineExtent(0, 1, 3, 0, len(batch), b"")]) is None
    with pytest.raises(ValueError, match="of the room were not used"):
        unused.finish()
