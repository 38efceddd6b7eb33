"""Producers of keys and tombstones; readers that check each record, and each hole, against the history."""

from __future__ import annotations

from typing import Any, Final

from strandline.node.kafka.wire.record_batch import BatchHeader, read_header
from strandline.snapshot.compression import Compression
from tests.kafka.wire.batches import Record, build
from tests.simulation.whole.client import Directory
from tests.simulation.whole.cluster import WholeCluster
from tests.simulation.whole.compaction.history import CONTROL, Bounds, Copies
from tests.simulation.whole.consumers import Consumer
from tests.simulation.whole.objects import BODY, Place
from tests.simulation.whole.producers import Producer
from tests.simulation.whole.transactions.followers import READ_COMMITTED, Filter

KEYS: Final = 12
TOMBSTONES: Final = 0.3
_CODECS: Final = (Compression.NONE, Compression.NONE, Compression.NONE, Compression.ZSTD, Compression.SNAPPY)


class KeyedProducer(Producer):
    """Writes to a few keys, and deletes them."""

    def _built(self, text: bytes, time: int, count: int, producer: tuple[int, int, int]) -> bytes:
        rng = self.rng
        codec = rng.choice(_CODECS)
        keys = [b"k%d" % rng.randrange(KEYS) for _ in range(count)]
        values = [None if rng.random() < TOMBSTONES else text for _ in range(count)]
        while True:
            records = [Record(value, time, key) for key, value in zip(keys, values, strict=True)]  # type: ignore[arg-type]
            data = build(records, producer=producer, compression=codec)
            if data[BODY:] not in self.ledger.sent:
                return data
            time += 1  # tombstones alone may be those of another batch


class TableReader(Consumer):
    """Reads all there is from the first offset on; `table` is what it has learnt."""

    def __init__(
        self,
        cluster: WholeCluster,
        directory: Directory,
        name: str,
        machine: int,
        copies: Copies,
        version: int = 0,
    ) -> None:
        self.copies = copies
        self.tables: dict[Place, dict[bytes, bytes]] = {}
        self._filter = Filter(None)
        super().__init__(cluster, directory, name, machine, version)
        self.isolation = self.rng.choice((0, READ_COMMITTED))

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
        table = self.tables.setdefault(place, {})
        for one in self.copies.read(batch):
            taken.add(one.offset)
            truth = history.records.get(one.offset)
            if truth is None or truth.written != one:
                self.ledger.broken("true records", f"{self.name} read {one} of {place}; written was {truth}")
                return
            if header.attributes & CONTROL or not committed:
                continue
            if self.isolation == READ_COMMITTED and truth.fate is not True:
                self.ledger.broken("aborted reads", f"{self.name} read {truth} of {place}")
            self.records += 1
            if one.key is not None and truth.fate is not False:
                if one.value is None:
                    table.pop(one.key, None)
                else:
                    table[one.key] = one.value

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
        for offset in self.copies.between(history, max(first, machine.start_offset), end):
            if offset not in taken and not history.may_lack(offset, bounds):
                self.ledger.broken(
                    "consumers", f"{self.name} was not given {history.records[offset]} of {place} ({bounds})"
                )
                return
