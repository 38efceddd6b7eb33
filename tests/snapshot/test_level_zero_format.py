"""The bytes of an object: what goes in comes out, and no damaged byte does."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from strandline.snapshot.level_zero_format import (
    FORMAT_VERSION,
    HEADER,
    TAIL,
    BadObject,
    Batch,
    NewerFormat,
    batches_of,
    encode,
    footer_bytes,
    overhead,
    parse,
    parse_footer,
    patched,
    verify_batch,
    verify_section,
)
from strandline.statemachine.object_names import object_name
from tests.level_zero.samples import IDENTITY, OTHER_TOPIC, TOPIC, record_batch

NAME = object_name(7, IDENTITY)
BATCHES = [
    Batch(TOPIC, 0, record_batch(b"first")),
    Batch(OTHER_TOPIC, 3, record_batch(b"of another topic")),
    Batch(TOPIC, 0, record_batch(b"second")),
    Batch(TOPIC, 1, record_batch(b"")),
]


def stored(batches: list[Batch] = BATCHES) -> bytes:
    return b"".join(encode(7, IDENTITY, batches).parts)


batches = st.builds(
    Batch,
    st.sampled_from([TOPIC, OTHER_TOPIC]),
    st.integers(0, 3),
    st.binary(max_size=80).map(record_batch),
)


@given(st.lists(batches, min_size=1, max_size=30), st.integers(0, 2**64 - 1))
def test_every_batch_is_where_the_writer_says_and_exactly_as_sent(sent: list[Batch], epoch: int) -> None:
    encoded = encode(epoch, IDENTITY, sent)
    data = b"".join(encoded.parts)
    name = object_name(epoch, IDENTITY)
    assert len(data) == encoded.size
    for batch, position in zip(sent, encoded.positions, strict=True):
        assert data[position : position + len(batch.data)] == batch.data
        verify_batch(name, position, len(batch.data), data[position : position + len(batch.data)])
    footer = parse(name, data)
    assert (footer.epoch, footer.object_id, footer.size) == (epoch, IDENTITY, len(data))
    assert len(data) == sum(len(batch.data) for batch in sent) + overhead(len(footer.sections))


@given(st.lists(batches, min_size=1, max_size=30))
def test_a_section_holds_one_partition_in_the_order_of_sending(sent: list[Batch]) -> None:
    data = stored(sent)
    sections = parse(NAME, data).sections
    partitions = list(dict.fromkeys((batch.topic_id, batch.partition) for batch in sent))
    assert [(section.topic_id, section.partition) for section in sections] == partitions
    for section in sections:
        mine = [b.data for b in sent if (b.topic_id, b.partition) == (section.topic_id, section.partition)]
        content = data[section.position : section.end]
        verify_section(NAME, section, content)
        found = [data[at : at + length] for at, length in batches_of(NAME, section, content)]
        assert found == mine


def test_the_writer_copies_no_batch() -> None:
    parts = encode(7, IDENTITY, BATCHES).parts
    assert [id(part) for part in parts[1:-1]] == [id(BATCHES[i].data) for i in (0, 2, 1, 3)]


def test_one_flipped_bit_anywhere_in_an_object_is_found() -> None:
    data = stored()
    for at in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            with pytest.raises(BadObject) as raised:
                parse(NAME, damaged)
            assert raised.value.name == NAME
            assert not isinstance(raised.value, NewerFormat), f"byte {at}: damage was taken for a new format"


def test_one_flipped_bit_anywhere_in_a_batch_is_found_but_where_it_is_overwritten() -> None:
    data = record_batch(b"payload")
    unseen = set()
    messages = set()
    for at in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            try:
                verify_batch(NAME, 100, len(data), damaged)
            except BadObject as error:
                messages.add(str(error).partition(": ")[0])
            else:
                unseen.add(at)
    assert unseen == {*range(8), *range(12, 16)}
    assert messages == {f"object {NAME}, bytes 100 to {100 + len(data)}"}


def test_offset_and_leader_epoch_are_overwritten_on_the_way_out() -> None:
    sent = record_batch(b"payload", base_offset=3, leader_epoch=-1)
    head, rest = patched(sent, 2**40, 9)
    assert head + bytes(rest) == record_batch(b"payload", base_offset=2**40, leader_epoch=9)


def test_a_cut_object_is_found_wherever_it_was_cut() -> None:
    data = stored()
    for length in range(len(data)):
        with pytest.raises(BadObject):
            parse(NAME, data[:length])


def test_bytes_under_another_name_are_found() -> None:
    with pytest.raises(BadObject, match=r"these are the bytes of l0/0001/0{19}7/2-"):
        parse(object_name(8, IDENTITY), stored())


def test_the_footer_alone_is_read_from_the_end() -> None:
    data = stored()
    needed = footer_bytes(NAME, data[-TAIL.size :], len(data))
    assert parse_footer(NAME, data[-needed:], len(data)) == parse(NAME, data)
    with pytest.raises(ValueError, match=f"needs {needed} bytes"):
        parse_footer(NAME, data[-needed + 1 :], len(data))


def newer(data: bytes, version: int) -> bytes:
    """The same object as a writer of another version would sign it."""
    length = footer_bytes(NAME, data, len(data))
    footer = bytearray(data[-length:])
    footer[-12:-10] = struct.pack("<H", version)
    footer[-16:-12] = struct.pack("<I", crc32c(footer[-12:], crc32c(footer[:-16])))
    return data[:-length] + footer


def test_a_newer_format_is_named_and_not_taken_for_damage() -> None:
    assert newer(stored(), FORMAT_VERSION) == stored()
    with pytest.raises(NewerFormat, match=r"version 2, this reader knows up to 1: upgrade"):
        parse(NAME, newer(stored(), 2))
    header = HEADER.pack(b"strandL0", 2, 0, 0)[:-4]
    with pytest.raises(NewerFormat):
        parse(NAME, header + struct.pack("<I", crc32c(header)) + stored()[HEADER.size :])


def test_a_version_that_never_was_is_damage() -> None:
    with pytest.raises(BadObject, match="no format version 0"):
        parse(NAME, newer(stored(), 0))


def test_something_else_is_said_to_be_no_object() -> None:
    with pytest.raises(BadObject, match="no magic at the end"):
        parse(NAME, b"PAR1" * 100)
    with pytest.raises(BadObject, match="too short"):
        parse(NAME, b"")


def test_a_batch_of_another_length_or_kind_is_refused() -> None:
    data = record_batch(b"payload")
    with pytest.raises(BadObject, match=r"in place of"):
        verify_batch(NAME, 0, len(data) + 1, data)
    with pytest.raises(BadObject, match="too few for a batch"):
        verify_batch(NAME, 0, 60, data[:60])
    with pytest.raises(BadObject, match="in place of 68 with 2"):
        verify_batch(NAME, 0, 68, record_batch(b"longer than that")[:68])


def test_an_empty_batch_or_a_wrong_topic_id_is_a_callers_mistake() -> None:
    with pytest.raises(ValueError, match="batch 0 has 0 bytes"):
        encode(7, IDENTITY, [Batch(TOPIC, 0, b"")])
    with pytest.raises(ValueError, match="topic id ab"):
        encode(7, IDENTITY, [Batch(b"\xab", 0, b"x")])
