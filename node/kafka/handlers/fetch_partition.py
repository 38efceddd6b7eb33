"""One partition of one fetch request: its parameters, and the data it can return at this moment.

A fetch of a thousand partitions waits for whichever moves first. So each partition counts its own bytes,
knows up to where it has counted, and looks at nothing else when it moves.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.leading import check_leader_epoch, led_partition, topic_of
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.record_batch import LENGTH_END
from strandline.node.kafka.wire.response_encoder import Part
from strandline.node.level_one.stored_run import StoredRun
from strandline.node.objectstore.store import StoreError
from strandline.node.partition.batch import StoredBatch
from strandline.node.partition.partition import Partition
from strandline.snapshot.object_frame import BadObject
from strandline.statemachine.controller.acl import Operation
from strandline.statemachine.controller.controller_state import Topic
from strandline.statemachine.partition.aborted_transactions import AbortedTransaction
from strandline.statemachine.partition.leader_epochs import EpochEnd

log = logging.getLogger(__name__)

JOINED_BYTES = 8 * 1024
"""Batches below this size are copied together: cheaper than one more buffer to send for each."""
READ_COMMITTED = 1
"""Isolation level of a reader that wants no records of aborted or open transactions (KIP-98)."""
_NO_EPOCH = -1
_STAMP = struct.Struct(">qii")


class FetchPartition:
    """One partition's share; `topic` and `asked` are the request's entities. `check` does all checks.

    To a read-committed reader the log ends at the last stable offset, both for waiting and for counting.
    """

    __slots__ = (
        "_add",
        "_committed",
        "_context",
        "_counted",
        "_counted_to",
        "_end",
        "_epoch",
        "_first",
        "_last_fetched_epoch",
        "_name",
        "_offset",
        "_partition",
        "_request",
        "_topic_id",
        "aborted",
        "code",
        "diverging",
        "doubtful",
        "high_watermark",
        "last_stable_offset",
        "max_bytes",
        "number",
        "parts",
        "size",
        "start_offset",
        "topic",
    )

    def __init__(self, context: BrokerContext, request: Request, topic: Any, asked: Any) -> None:
        self._context = context
        self._request = request
        self._committed = request.payload.isolation_level == READ_COMMITTED
        self._name = getattr(topic, "topic", None)
        self._topic_id = getattr(topic, "topic_id", None)
        self.number: int = asked.partition
        self._offset: int = asked.fetch_offset
        self._epoch: int = getattr(asked, "current_leader_epoch", _NO_EPOCH)
        self._last_fetched_epoch: int = getattr(asked, "last_fetched_epoch", _NO_EPOCH)
        self.max_bytes: int = asked.partition_max_bytes
        self.topic: Topic | ErrorCode = ErrorCode.none
        self.code = ErrorCode.none
        self.diverging: EpochEnd | None = None
        """The point where the log diverged from the client's (KIP-595); set, there are no records."""
        self.doubtful = False
        """`code` or `diverging` are true only if this node still leads."""
        self.high_watermark = self.last_stable_offset = self.start_offset = self._end = -1
        """Offsets by the last check; readable records lie below `_end`."""
        self.parts: list[Part] = []
        self.size = 0
        """Bytes of `parts`."""
        self.aborted: Sequence[AbortedTransaction] = ()
        """For a committed reader: aborted transactions whose batches in `parts` it has to drop."""
        self._partition: Partition | None = None
        self._counted_to = self._offset
        self._counted = self._first = 0
        self._add: Callable[[int | None], None] | None = None

    # Checks.

    def check(self) -> None:
        """Look at the partition as it is now: an error, a divergence, or the range that can be read."""
        self.diverging, self.doubtful = None, False
        self.topic = topic_of(self._context, self._request, Operation.READ, self._name, self._topic_id)
        if isinstance(self.topic, ErrorCode):
            self.code = self.topic
            return
        partition = led_partition(self._context, self.topic, self.number)
        if isinstance(partition, ErrorCode):
            self.code = partition
            return
        self._partition = partition
        self.code = check_leader_epoch(partition, self._epoch)
        if self.code is not ErrorCode.none:
            return
        machine = partition.machine
        self.start_offset, end = machine.start_offset, machine.high_watermark
        stable = end if machine.producers.first_open_offset is None else machine.last_stable_offset
        self.high_watermark, self.last_stable_offset = end, stable
        self._end = stable if self._committed else end
        if self._last_fetched_epoch != _NO_EPOCH:
            self._check_history(partition)
        if not self.doubtful and not self.start_offset <= self._offset <= end:
            self.code, self.doubtful = ErrorCode.offset_out_of_range, True

    def _check_history(self, partition: Partition) -> None:
        """Compare the leader epoch of the client's last record with the log's entries of that epoch."""
        end = partition.machine.offset_for_leader_epoch(self._last_fetched_epoch)
        if end is None or self._offset < self.start_offset:
            self.code, self.doubtful = ErrorCode.offset_out_of_range, True
        elif end.term < self._last_fetched_epoch or end.end_offset < self._offset:
            self.diverging, self.doubtful = end, True

    async def confirm(self) -> None:
        """Check again, after this node has proved its leadership; `doubtful` is False after it."""
        assert self._partition is not None
        if await self._partition.confirm():
            self.check()
        else:
            self.code, self.diverging = ErrorCode.not_leader_or_follower, None
        self.doubtful = False

    @property
    def settled(self) -> bool:
        """Whether the answer has an error or a divergence, which more records would not change."""
        return self.code is not ErrorCode.none or self.diverging is not None

    @property
    def has_data(self) -> bool:
        return not self.settled and self._offset < self._end

    def count(self) -> int:
        """Bytes that could be returned, up to the limit of one answer; only new ones are looked at."""
        partition, end = self._partition, self._end
        if not self.has_data or partition is None:
            return 0
        while self._counted_to < end and self._counted < max(self.max_bytes, 1):
            size, first, counted_to = partition.measured(
                self._counted_to, end, self.max_bytes - self._counted
            )
            assert counted_to > self._counted_to, "there are records up to the end"
            self._counted += size
            self._counted_to = counted_to
            self._first = self._first or first
        return max(self._first, min(self._counted, self.max_bytes))

    # Waiting.

    def watch(self, add: Callable[[int | None], None]) -> None:
        """Call `add` with the bytes that came, or None when something else has happened."""
        assert self._partition is not None
        self._add = add
        self._partition.watch(self._moved)

    def unwatch(self) -> None:
        """Must follow every `watch`; harmless without one."""
        if self._add is not None and self._partition is not None:
            self._partition.unwatch(self._moved)
            self._add = None

    def _moved(self) -> None:
        if self._add is None:
            return
        before = self.count()
        watched = self._partition
        self.check()
        if self.settled or self._partition is not watched:
            self._add(None)
        else:
            self._add(self.count() - before)

    # Reading.

    def planned(self, limit: int) -> int:
        """Bytes a read of `limit` would give at most: more than that if the first batch is known to have."""
        assert self._partition is not None
        return self._partition.measured(self._offset, self._end, limit).bytes

    async def read(self, limit: int, *, whole_first: bool) -> None:
        """Read up to `limit` bytes; with `whole_first` the first batch, however large."""
        partition, aborted = self._partition, self.aborted
        assert partition is not None
        wanted = (self._offset, self._end, limit)
        try:
            if self._committed:
                batches, aborted = await partition.read_committed(*wanted, files=self._request.takes_files)
            else:
                batches = await partition.read(*wanted, files=self._request.takes_files)
        except BadObject as error:
            log.error("partition %d of %s: %s", self.number, self._title(), error)
            self.code = ErrorCode.corrupt_message
            return
        except StoreError:
            # Retriable in every client. Whether the leader is still this node, the next request finds out.
            self.code = ErrorCode.kafka_storage_error
            return
        if not batches or partition.machine.start_offset > self._offset:
            # The start offset has passed what was asked for. The client must hear of that, not skip it.
            await self.confirm()
            return
        if len(batches[0].data) > limit and not whole_first:
            return
        self.parts, self.aborted = stamped_parts(batches), aborted
        self.size = sum(map(len, self.parts))

    def drop(self) -> None:
        """Give up what was read: the answer has no room for it."""
        self.parts, self.aborted, self.size = [], (), 0

    def _title(self) -> str:
        return self.topic.name if isinstance(self.topic, Topic) else str(self._topic_id)


def stamped_parts(batches: list[StoredBatch | StoredRun]) -> list[Part]:
    """The batches with their offsets and leader epochs, as buffers to be sent in this order.

    What comes from level one is sent as it is. A large batch is sixteen new bytes and a view of the rest.
    Runs of small ones are one buffer: a thousand buffers of a kilobyte cost more to send than to copy.
    """
    parts: list[Part] = []
    run: list[StoredBatch] = []
    for batch in batches:
        if isinstance(batch, StoredBatch) and len(batch.data) < JOINED_BYTES:
            run.append(batch)
            continue
        if run:
            parts.append(_joined(run))
            run = []
        if isinstance(batch, StoredRun):
            parts.append(batch.data)
            continue
        data = batch.data
        parts.append(_STAMP.pack(batch.base_offset, len(data) - LENGTH_END, batch.leader_epoch))
        parts.append(memoryview(data)[_STAMP.size :])
    if run:
        parts.append(_joined(run))
    return parts


def _joined(run: list[StoredBatch]) -> bytearray:
    out = bytearray().join([batch.data for batch in run])
    position, stamp = 0, _STAMP.pack_into
    for base_offset, _, leader_epoch, data in run:
        size = len(data)
        stamp(out, position, base_offset, size - LENGTH_END, leader_epoch)
        position += size
    return out
