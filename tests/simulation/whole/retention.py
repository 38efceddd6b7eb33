"""What records may be gone: as far as DeleteRecords asked for it, or retention by a topic's settings.

Judged when a start offset is applied for the first time, by the state before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from strandline.statemachine.controller.controller_state import Topic
from strandline.statemachine.controller.topic_config import RETENTION_BYTES, RETENTION_MS
from strandline.statemachine.partition.partition import PartitionStateMachine
from tests.simulation.whole.objects import BODY, Objects, Place

START_MS = 1_700_000_000_000
"""What wall clocks show when a run begins."""
INDEXES_BYTES = 1000
_MAX_TIMESTAMP = slice(35 - BODY, 43 - BODY)
"""Of a batch's header, behind what the broker stamps."""


class Retention:
    """How far each partition may have been cut from its front."""

    def __init__(
        self, objects: Objects, broken: Callable[[str, str], None], now: Callable[[], float]
    ) -> None:
        self.clock_error_ms = 500
        """Nodes' wall clocks are right to within this."""
        self.deleted_records = self.expired = 0
        self._objects = objects
        self._broken = broken
        self._now = now
        self._asked: dict[tuple[str, int], int] = {}
        self.limit_ms: Callable[[Topic], int] = lambda topic: RETENTION_MS.of(topic.configs)
        """The shortest `retention.ms` that a node may go by; negative for none."""

    def asked(self, topic: str, partition: int, offset: int) -> None:
        """DeleteRecords was asked for, up to an offset, of whatever topic has this name when it is done."""
        self._asked[topic, partition] = max(offset, self._asked.get((topic, partition), 0))

    def start_offset(self, place: Place) -> int:
        """Where a partition begins, by its newest committed state."""
        machine = self._objects.machine_of(place)
        return 0 if machine is None else machine.start_offset

    def check(self, where: str, start: int, machine: PartitionStateMachine, place: Place) -> None:
        controller = self._objects.controller()
        topic = None if controller is None else controller.topic_by_id(place.topic_id)
        if start <= machine.start_offset or topic is None:
            return
        by_request = self._asked.get((topic.name, place.partition), 0)
        batches = list(self._batches(machine, place))
        by_time = self._by_time(batches, machine.next_offset, self.limit_ms(topic))
        by_size = self._by_size(batches, machine, RETENTION_BYTES.of(topic.configs))
        if start > max(by_request, by_time, by_size):
            self._broken(
                "retained",
                f"{where}: {place} begins at {start}, not at {machine.start_offset} any more; DeleteRecords"
                f" allows {by_request}, time {by_time}, size {by_size}",
            )
        if start <= by_request:
            self.deleted_records += 1
        else:
            self.expired += 1

    def _by_time(self, batches: list[_Batch], end: int, limit: int) -> int:
        """Up to the first batch that is kept: what was before it may have been compacted away meanwhile."""
        if limit < 0:
            return 0
        oldest_kept = START_MS + int(1000 * self._now()) - limit + self.clock_error_ms
        return next((one.base_offset for one in batches if one.max_timestamp >= oldest_kept), end)

    def _by_size(self, batches: list[_Batch], machine: PartitionStateMachine, limit: int) -> int:
        end = 0
        if limit >= 0:
            # Retention counts whole objects, with their indexes, and those of a moment ago.
            rest = machine.level_one.bytes + machine.extents.bytes + INDEXES_BYTES
            for batch in batches:
                rest -= batch.size
                if rest < limit:
                    break
                end = batch.end_offset
        return end

    def _batches(self, machine: PartitionStateMachine, place: Place) -> Iterator[_Batch]:
        """All that is there, in order, batch by batch.

        What is an object now may have been single batches when it was decided what to let go.
        """
        for one in machine.level_one:
            held = self._objects.batches(place, one)
            for number, (base, _, body) in enumerate(held):
                end = held[number + 1][0] if number + 1 < len(held) else one.end_offset
                yield _Batch(base, end, int.from_bytes(body[_MAX_TIMESTAMP], "big"), BODY + len(body))
        for extent in machine.extents:
            yield _Batch(extent.base_offset, extent.end_offset, extent.max_timestamp, extent.length)


class _Batch(NamedTuple):
    base_offset: int
    end_offset: int
    max_timestamp: int
    size: int
