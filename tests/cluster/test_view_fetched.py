"""What is read of a Fetch answer: committed records alone, from the offset on that was asked for."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from strandline.cluster.view_worker import fetched
from strandline.cluster.view_worker.fetched import Fetched, Part
from strandline.node.kafka.wire.control_batch import control_batch
from strandline.snapshot.compression import Compression
from strandline.snapshot.level_zero_format import BadObject
from strandline.snapshot.views.json_records import Record, records_of
from tests.kafka.wire import batches

PLACE = ("t", 3)
TRANSACTIONAL = 0x10
TIME = 1_700_000_000_000


def decoded(parts: Sequence[Part]) -> list[Fetched]:
    found, left = fetched.decoded(parts, 1 << 40)
    assert not left
    return found


def batch(base: int, count: int, producer: int = -1, codec: Compression = Compression.NONE) -> bytes:
    attributes = TRANSACTIONAL if producer >= 0 else 0
    records = [batches.Record(b"v%d" % (base + at), TIME + at, b"k" if at else None) for at in range(count)]
    return batches.build(
        records, base_offset=base, attributes=attributes, producer=(producer, 0, 0), compression=codec
    )


def marker(base: int, producer: int, *, commit: bool) -> bytes:
    return struct.pack(">q", base) + control_batch(producer, 0, commit, 1, TIME)[8:]


class Log:
    """A partition with transactions, and what a broker tells of it."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, bytes]] = []
        self.end = 0
        self.open: dict[int, tuple[int, list[int]]] = {}
        self.wanted: list[int] = []
        self.aborted: list[tuple[int, int, int]] = []
        """First offset, marker's offset and producer."""

    def add(self, producer: int, count: int, codec: Compression) -> None:
        self.batches.append((self.end, batch(self.end, count, producer, codec)))
        offsets = [*range(self.end, self.end + count)]
        if producer < 0:
            self.wanted += offsets
        else:
            self.open.setdefault(producer, (self.end, []))[1].extend(offsets)
        self.end += count

    def finish(self, producer: int, *, commit: bool) -> None:
        if producer in self.open:
            first, offsets = self.open.pop(producer)
            if commit:
                self.wanted += offsets
            else:
                self.aborted.append((first, self.end, producer))
            self.batches.append((self.end, marker(self.end, producer, commit=commit)))
            self.end += 1

    def part(self, offset: int, cut: int) -> Part:
        stable = min([first for first, _ in self.open.values()], default=self.end)
        starts = [base for base, _ in self.batches if base <= offset]
        data = b"".join(one for base, one in self.batches if base >= starts[-1] and base < stable)
        aborted = [(first, producer) for first, last, producer in self.aborted if last >= offset]
        return Part(PLACE, offset, data[: len(data) - cut], aborted, stable)


ACTS = st.lists(
    st.tuples(st.sampled_from(["add", "commit", "abort"]), st.integers(-1, 3), st.integers(1, 3)), min_size=1
)


@example([("add", 1, 2), ("abort", 1, 1), ("add", 1, 2), ("commit", 1, 1)], 0, 0, Compression.NONE)
@given(ACTS, st.integers(0, 40), st.integers(0, 50), st.sampled_from(Compression))
def test_only_committed_records_are_read_from_an_offset_on(
    acts: list[tuple[str, int, int]], offset: int, cut: int, codec: Compression
) -> None:
    log = Log()
    for act, producer, count in acts:
        if act == "add":
            log.add(producer, count, codec)
        else:
            log.finish(producer, commit=act == "commit")
    if not log.batches:
        return
    offset = min(offset, log.end - 1)
    [whole] = decoded([log.part(offset, 0)])
    stable = log.part(offset, 0).stable
    found = records_of(whole.records)
    assert [one.offset for one in found] == sorted(at for at in log.wanted if offset <= at < stable)
    assert all(one.value == b"v%d" % one.offset and one.partition == PLACE[1] for one in found)
    assert (whole.upto, whole.end) == (max(offset, stable), True)
    [short] = decoded([log.part(offset, cut)])
    taken = records_of(short.records)
    assert taken == found[: len(taken)]
    assert all(one.offset >= short.upto for one in found[len(taken) :]), "the rest is asked for"
    assert short.end == (short.upto >= stable)


def test_parts_of_an_answer_are_told_apart_and_have_what_their_records_have() -> None:
    parts = [
        Part(("t", 0), 0, batch(0, 2), [], 2),
        Part(("u", 0), 5, b"", [], 5),
        Part(("u", 1), 1, batch(0, 3, codec=Compression.ZSTD) + batch(9, 1), [], 20),
    ]
    first, second, third = decoded(parts)
    assert records_of(first.records) == [
        Record(0, 0, TIME, None, b"v0"),
        Record(0, 1, TIME + 1, b"k", b"v1"),
    ]
    assert (second.place, second.records.num_rows, second.upto, second.end) == (("u", 0), 0, 5, True)
    assert [(one.partition, one.offset) for one in records_of(third.records)] == [(1, 1), (1, 2), (1, 9)]
    assert third == Fetched(("u", 1), third.records, 10, False)


@pytest.mark.parametrize("at", [61, 20, 16])
def test_bytes_that_are_not_what_a_batch_says_are_not_read(at: int) -> None:
    data = bytearray(batch(0, 2))
    data[at] ^= 1
    with pytest.raises(BadObject):
        decoded([Part(PLACE, 0, bytes(data), [], 2)])
    spoilt = bytearray(marker(2, 7, commit=False))
    spoilt[-1] ^= 1
    with pytest.raises(BadObject):
        decoded([Part(PLACE, 0, batch(0, 2, 7) + bytes(spoilt), [(0, 7)], 3)])


def zeros(base: int, count: int, size: int, producer: int = -1) -> bytes:
    """A batch that is a thousand times larger once it is read."""
    records = [batches.Record(bytes(size), TIME) for _ in range(count)]
    return batches.build(
        records,
        base_offset=base,
        attributes=TRANSACTIONAL if producer >= 0 else 0,
        producer=(producer, 0, 0),
        compression=Compression.ZSTD,
    )


def test_compressed_records_are_read_little_by_little() -> None:
    first = b"".join(zeros(base, 10, 100_000) for base in range(0, 100, 10))
    second = zeros(0, 10, 100_000, 7) + zeros(10, 10, 100_000, 8) + marker(20, 7, commit=False)
    second += zeros(21, 10, 100_000, 7) + zeros(31, 1, 10)
    left = [
        Part(("t", 0), 5, first, [], 100),
        Part(("t", 1), 12, second, [(0, 7)], 40),
        Part(("t", 2), 3, b"", [], 3),
    ]
    offsets: dict[int, list[int]] = {0: [], 1: [], 2: []}
    upto = {0: 5, 1: 12, 2: 3}
    ends, rounds = [], 0
    while left:
        rounds += 1
        found, left = fetched.decoded(left, 2_000_000)
        assert sum(one.records.nbytes for one in found) < 6_000_000
        for one in found:
            number = one.place[1]
            new = [record.offset for record in records_of(one.records)]
            assert all(upto[number] <= offset < one.upto for offset in new)
            offsets[number] += new
            assert one.upto >= upto[number]
            upto[number] = one.upto
            ends += [number] if one.end else []
    assert rounds > 2
    assert offsets == {0: [*range(5, 100)], 1: [*range(12, 20), *range(21, 32)], 2: []}
    assert (upto, ends) == ({0: 100, 1: 32, 2: 3}, [0, 2])
