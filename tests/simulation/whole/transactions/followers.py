"""Readers of committed records, which drop what was aborted themselves, as Kafka's consumers do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from strandline.node.kafka.wire.record_batch import BatchHeader, read_header
from tests.histories.history import Place as Named
from tests.histories.history import Read
from tests.simulation.whole.client import Directory
from tests.simulation.whole.cluster import WholeCluster
from tests.simulation.whole.consumers import Consumer
from tests.simulation.whole.objects import Place
from tests.simulation.whole.transactions.journal import Journal

READ_COMMITTED: Final = 1
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20
_CONTROL_TYPE: Final = 61 + 5 + 2
"""Where a control record's type lies in its batch: behind the header, five bytes of the record and the
version of its key."""
_ABORT: Final = 0


class Filter:
    """Which batches of one answer are committed: see CompletedFetch in Kafka's consumer."""

    def __init__(self, aborted: Any) -> None:
        self._later = sorted(((one.first_offset, one.producer_id) for one in aborted or ()), reverse=True)
        self._aborted: dict[int, None] = {}

    def passes(self, batch: bytes, header: BatchHeader) -> bool:
        """Whether the records of the next batch are for the application."""
        while self._later and self._later[-1][0] < header.next_offset:
            self._aborted[self._later.pop()[1]] = None
        if header.attributes & _CONTROL:
            if int.from_bytes(batch[_CONTROL_TYPE : _CONTROL_TYPE + 2], "big") == _ABORT:
                self._aborted.pop(header.producer_id, None)
            return False
        return not (header.attributes & _TRANSACTIONAL and header.producer_id in self._aborted)


def batches_of(records: bytes) -> Iterator[tuple[bytes, BatchHeader]]:
    """Every whole batch of an answer."""
    start = 0
    while start + 12 <= len(records):
        size = 12 + int.from_bytes(records[start + 8 : start + 12], "big")
        batch = records[start : start + size]
        if len(batch) < size:
            return
        yield batch, read_header(batch)
        start += size


class Follower(Consumer):
    """Reads everything that is committed, and keeps it."""

    def __init__(
        self,
        cluster: WholeCluster,
        directory: Directory,
        name: str,
        machine: int,
        journal: Journal,
        version: int = 0,
    ) -> None:
        self.journal = journal
        self.found: dict[Named, list[Read]] = {}
        self._filter = Filter(None)
        self._reads: list[Read] = []
        super().__init__(cluster, directory, name, machine, version)
        self.isolation = READ_COMMITTED

    def _take(self, place: Place, answer: Any) -> bool:
        self._filter, self._reads = Filter(answer.aborted_transactions), []
        well = super()._take(place, answer)
        self.journal.polled(self.name, self._reads)
        for read in self._reads:
            self.found.setdefault(read.place, []).append(read)
        return well

    def _given(self, place: Place, offset: int, batch: bytes, header: BatchHeader) -> bool:
        if not self._filter.passes(batch, header):
            # Aborted ones hold what somebody wrote all the same.
            return bool(header.attributes & _CONTROL) or super()._given(place, offset, batch, header)
        sent = self.ledger.read(place, offset, batch, self.name)
        if sent is None:
            return False
        self._reads += self.journal.reads(self.directory.topic(place).name, offset, sent)
        return True
