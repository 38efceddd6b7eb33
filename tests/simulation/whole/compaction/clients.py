"""Producers of keys and tombstones; readers that check each record, and each hole, against the history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from kio.schema.errors import ErrorCode

from strandline.node.kafka.wire.record_batch import BatchHeader, read_header
from strandline.snapshot.compression import Compression
from tests.compaction.logs import Written
from tests.kafka.wire.batches import Record, build
from tests.simulation.whole.client import Client, Directory
from tests.simulation.whole.cluster import WholeCluster
from tests.simulation.whole.compaction.history import CONTROL, Bounds, Copies, History, Truth
from tests.simulation.whole.consumers import Consumer
from tests.simulation.whole.objects import BODY, Place
from tests.simulation.whole.producers import Producer
from tests.simulation.whole.transactions.coordinated import TRANSACTIONAL
from tests.simulation.whole.transactions.followers import READ_COMMITTED, Filter
from tests.simulation.whole.transactions.writers import Writer

BEGINS_ANEW: Final = 0.05
TOMBSTONES: Final = 0.3
_CODECS: Final = (Compression.NONE, Compression.NONE, Compression.NONE, Compression.ZSTD, Compression.SNAPPY)


def keyed(
    client: Client, texts: Sequence[bytes], time: int, producer: tuple[int, int, int], attributes: int = 0
) -> bytes:
    """A batch with a record for each of these values, or a tombstone instead; no other batch equals it."""
    rng, table = client.rng, client.cluster.plan.table
    assert table is not None
    codec = rng.choice(_CODECS)
    keys: list[bytes | None] = [b"k%d" % rng.randrange(table.keys) for _ in texts]
    if producer[0] < 0 and table.keyless and rng.random() < table.keyless:
        keys = [None for _ in texts]
    values = [None if rng.random() < TOMBSTONES else text for text in texts]
    while True:
        records = [Record(value, time, key) for key, value in zip(keys, values, strict=True)]  # type: ignore[arg-type]
        data = build(records, producer=producer, compression=codec, attributes=attributes)
        if data[BODY:] not in client.ledger.sent:
            return data
        time += 1  # tombstones alone may be those of another batch


class KeyedProducer(Producer):
    """Writes to a few keys, and deletes them."""

    refused_with = (ErrorCode.invalid_record,)

    def _built(self, text: bytes, time: int, count: int, producer: tuple[int, int, int]) -> bytes:
        return keyed(self, [text] * count, time, producer)


class KeyedWriter(Writer):
    """The same in transactions."""

    def built(self, values: list[str], time: int, producer: tuple[int, int, int]) -> bytes:
        texts = [f"{self.name} {value}".encode() for value in values]
        return keyed(self, texts, time, producer, TRANSACTIONAL)


class TableReader(Consumer):
    """Reads all there is from the first offset on; `table` is what it has learnt of committed records."""

    def __init__(
        self,
        cluster: WholeCluster,
        directory: Directory,
        name: str,
        machine: int,
        copies: Copies,
        version: int = 0,
        *,
        anew: float = 0.0,
    ) -> None:
        """`anew`: share of fetches with which it begins at the first offset again, until it hurries."""
        self.copies = copies
        self._anew = anew
        self._taken: dict[Place, dict[int, Written]] = {}
        """What was for the application, by offset; of uncommitted records it may be aborted by now."""
        self._clean: dict[Place, tuple[int, int]] = {}
        """MTRO and MXRO when the last fetch was asked: every copy was clean, and settled, up to there."""
        self._filter = Filter(None)
        super().__init__(cluster, directory, name, machine, version)
        self.isolation = self.rng.choice((0, READ_COMMITTED))

    def hurry(self) -> None:
        super().hurry()
        self._anew = 0.0

    async def _fetch(self, node: int, places: list[Place]) -> bool:
        for place in places:
            if self._anew and self.rng.random() < self._anew:
                self.positions.pop(place, None)
                self._taken.pop(place, None)
            machine = self.ledger.objects.machine_of(place)
            removals = None if machine is None else machine.removals
            self._clean[place] = (0, 0) if removals is None else (removals.mtro, removals.mxro)
        return await super()._fetch(node, places)

    def _take(self, place: Place, answer: Any) -> bool:
        self._filter = Filter(getattr(answer, "aborted_transactions", None))
        return super()._take(place, answer)

    def _records(self, place: Place, data: bytes) -> None:
        machine = self.ledger.objects.machine_of(place)
        if machine is None:
            return
        self.copies.catch_up(place, machine)
        expected = first = self.positions.get(place, 0)
        taken: set[int] = set()
        at = 0
        while at < len(data):
            size = 12 + int.from_bytes(data[at + 8 : at + 12], "big")
            batch = data[at : at + size]
            at += size
            header = read_header(batch)
            if header.next_offset <= expected or (taken and header.base_offset < expected):
                self.ledger.broken("consumers", f"{self.name} expects {expected} of {place}, got {header}")
                return
            self._take_batch(place, batch, header, taken)
            expected = header.next_offset
        self._check_holes(place, first, expected, taken)
        self.positions[place] = expected

    def _take_batch(self, place: Place, batch: bytes, header: BatchHeader, taken: set[int]) -> None:
        history, committed = self.copies.history(place), self._filter.passes(batch, header)
        given = self._taken.setdefault(place, {})
        for one in self.copies.read(batch):
            if one.offset < self.positions.get(place, 0):
                continue  # it begins in the middle of the batch
            taken.add(one.offset)
            truth = history.records.get(one.offset)
            if truth is None or truth.written != one:
                self.ledger.broken("true records", f"{self.name} read {one} of {place}; written was {truth}")
                return
            self._check_gone(place, history, truth)
            if header.attributes & CONTROL or not committed:
                continue
            if self.isolation == READ_COMMITTED and truth.fate is not True:
                self.ledger.broken("aborted reads", f"{self.name} read {truth} of {place}")
            self.records += 1
            given[one.offset] = one

    def _check_gone(self, place: Place, history: History, truth: Truth) -> None:
        """What is superseded for good, or aborted, in all copies is given to nobody any more.

        Where a record beyond the MTRO supersedes them all, an older one may be the last that is left below.
        """
        one, (mtro, mxro) = truth.written, self._clean[place]
        if one.marker:
            return
        newest = one.offset if one.key is None else history.by_key.get(one.key, [-1])[-1]
        if one.offset < mtro and (one.key is None or one.offset < newest < mtro):
            self.ledger.broken("dead and alive", f"{self.name} read {one} of {place}, whose MTRO was {mtro}")
        if one.offset < mxro and truth.fate is False:
            self.ledger.broken("aborted reads", f"{self.name} read {truth} of {place}, whose MXRO was {mxro}")

    def table(self, place: Place) -> dict[bytes, bytes]:
        """Of each key that is not deleted, the last value that was given and is committed."""
        records, found = self.copies.history(place).records, dict[bytes, bytes]()
        for one in self._taken.get(place, {}).values():
            if one.key is not None and records[one.offset].fate:
                found.pop(one.key, None)
                if one.value is not None:
                    found[one.key] = one.value
        return found

    def _check_holes(self, place: Place, first: int, end: int, taken: set[int]) -> None:
        """What lies between two offsets and was not given may be gone by what is known now."""
        machine = self.ledger.objects.machine_of(place)
        if machine is None:
            return
        removals, stable = machine.removals, machine.last_stable_offset
        bounds = Bounds(
            first, stable, stable, stable, removals.ripe_tombstones, removals.ripe_markers, stable, stable
        )  # fmt: skip
        history = self.copies.history(place)
        missed = history.first_missed(max(first, machine.start_offset), end, taken, bounds)
        if missed is not None:
            truth = history.records[missed]
            self.ledger.broken("consumers", f"{self.name} was not given {truth} of {place} ({bounds})")
