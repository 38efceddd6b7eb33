"""One partition of a connection's fetches: what is asked of it, and the data it can return at this moment.

A fetch of a thousand partitions waits for whichever moves first. So each partition counts its own bytes,
knows up to where it has counted, and looks at nothing else when it moves. Most of them have not moved since
the connection's last fetch, and are asked for as before: their last check still holds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.leading import check_leader_epoch, led_partition
from strandline.node.kafka.handlers.stamped_parts import stamped_parts
from strandline.node.kafka.wire.response_encoder import Part
from strandline.node.objectstore.store import StoreError
from strandline.node.partition.partition import Partition
from strandline.snapshot.object_frame import BadObject
from strandline.statemachine.controller.controller_state import Topic
from strandline.statemachine.partition.aborted_transactions import AbortedTransaction
from strandline.statemachine.partition.leader_epochs import EpochEnd

log = logging.getLogger(__name__)

READ_COMMITTED = 1
"""Isolation level of a reader that wants no records of aborted or open transactions (KIP-98)."""
_NOT_FETCHED: Final = frozenset({
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.unknown_topic_id,
    ErrorCode.topic_authorization_failed,
    ErrorCode.invalid_topic_exception,
})  # fmt: skip
_NO_EPOCH = -1
_NEVER: Final = -1
"""In place of the changes of a partition that a check has seen."""

Offsets = tuple[int, int, int]
Wanted = tuple[int, int, int, int, bool]
"""Offset, most bytes, leader epoch, epoch of the client's last record; and whether it wants no records of
aborted or open transactions."""


def wanted_of(asked: Any, committed: bool) -> Wanted:
    """The same of an entity of a request; versions without leader epochs do not have them checked."""
    return (
        asked.fetch_offset,
        asked.partition_max_bytes,
        getattr(asked, "current_leader_epoch", _NO_EPOCH),
        getattr(asked, "last_fetched_epoch", _NO_EPOCH),
        committed,
    )


class FetchTopic:
    """A topic as requests name it, by its name or its id; looked up once for all its partitions."""

    __slots__ = ("_find", "found", "name", "shares", "topic_id")

    def __init__(
        self,
        name: str | None,
        topic_id: UUID | None,
        find: Callable[[str | None, UUID | None], Topic | ErrorCode],
    ) -> None:
        self.name = name
        self.topic_id = topic_id
        self._find = find
        self.found: Topic | ErrorCode = ErrorCode.none
        """The topic, or the refusal, by the last look."""
        self.shares: dict[int, FetchPartition] = {}

    def look(self) -> None:
        """Look up the topic, and whether the client may read it."""
        self.found = self._find(self.name, self.topic_id)


class FetchPartition:
    """One partition's share. `check` does all checks; what it finds holds until the partition moves.

    To a read-committed reader the log ends at the last stable offset, both for waiting and for counting.
    """

    __slots__ = (
        "_committed",
        "_context",
        "_counted",
        "_counted_to",
        "_end",
        "_epoch",
        "_first",
        "_heard",
        "_last_fetched_epoch",
        "_offset",
        "_partition",
        "_seen",
        "_wanted",
        "_watching",
        "aborted",
        "active",
        "answer",
        "code",
        "diverging",
        "doubtful",
        "found",
        "high_watermark",
        "last_stable_offset",
        "max_bytes",
        "number",
        "offsets",
        "parts",
        "size",
        "start_offset",
        "told",
        "topic",
    )

    def __init__(
        self,
        context: BrokerContext,
        topic: FetchTopic,
        number: int,
        wanted: Wanted,
        heard: Callable[[FetchPartition], None],
    ) -> None:
        """`heard` is called when the partition that was found by the last check has moved."""
        self._context = context
        self._heard = heard
        self.topic = topic
        self.number = number
        self.code = ErrorCode.none
        self.diverging: EpochEnd | None = None
        """The point where the log diverged from the client's (KIP-595); set, there are no records."""
        self.doubtful = False
        """`code` or `diverging` are true only if this node still leads."""
        self.active = True
        """Whether there are records to read, or an error or a divergence to tell."""
        self.high_watermark = self.last_stable_offset = self.start_offset = self._end = -1
        """Offsets by the last check; readable records lie below `_end`."""
        self.offsets: Offsets | None = None
        """These offsets, for the comparison with what was told."""
        self.told: Offsets | None = None
        """The client was told these last; None if it was told none, or an error."""
        self.parts: list[Part] = []
        self.size = 0
        """Bytes of `parts`."""
        self.aborted: Sequence[AbortedTransaction] = ()
        """For a committed reader: aborted transactions whose batches in `parts` it has to drop."""
        self._partition: Partition | None = None
        self._watching = False
        self.found: Topic | ErrorCode = ErrorCode.none
        """The topic, or the refusal, of the last check: what was looked up since may be another."""
        self._take(wanted)

    def _take(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._offset, self.max_bytes, self._epoch, self._last_fetched_epoch, self._committed = wanted
        self._seen = _NEVER
        self.rest()

    def ask(self, wanted: Wanted) -> None:
        """A request asks for this. The same as before leaves the last check as it is."""
        if wanted != self._wanted:
            self._take(wanted)

    def ask_as(self, committed: bool) -> None:
        """The next request asks for the same in another version, or with another isolation level."""
        self._take((*self._wanted[:-1], committed))

    def rest(self) -> None:
        """Let go of what the last fetch has read, and count from the start."""
        self.drop()
        self.answer: bytes | None = None
        """The part of a whole answer, encoded, that has held since the last check."""
        self._counted_to = self._offset
        self._counted = self._first = 0

    # Checks.

    @property
    def holds(self) -> bool:
        """Whether the last check still holds. An error, or records to read, are looked at each time."""
        partition = self._partition
        return (
            not self.active
            and partition is not None
            and partition.changes == self._seen
            and self.topic.found is self.found
        )

    def check(self) -> None:
        """Look at the partition as it is now: an error, a divergence, or the range that can be read."""
        self.diverging, self.doubtful, self.answer = None, False, None
        found = self.found = self.topic.found
        partition = (
            found if isinstance(found, ErrorCode) else led_partition(self._context, found, self.number)
        )
        if isinstance(partition, ErrorCode):
            self.code = partition
            self._follow(None)
        else:
            self._follow(partition)
            self._seen = partition.changes
            self.code = check_leader_epoch(partition, self._epoch)
            if self.code is ErrorCode.none:
                self._check_offsets(partition)
        self.active = self.settled or self._offset < self._end

    def _check_offsets(self, partition: Partition) -> None:
        machine = partition.machine
        self.start_offset, end = machine.start_offset, machine.high_watermark
        stable = end if machine.producers.first_open_offset is None else machine.last_stable_offset
        self.high_watermark, self.last_stable_offset = end, stable
        self.offsets = self.start_offset, end, stable
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
            self.topic.look()
            self.check()
        else:
            self.code, self.diverging = ErrorCode.not_leader_or_follower, None
        self.doubtful = False

    @property
    def settled(self) -> bool:
        """Whether the answer has an error or a divergence, which more records would not change."""
        return self.code is not ErrorCode.none or self.diverging is not None

    @property
    def fetched(self) -> bool:
        """Whether there is a partition at all that the client may read."""
        return self.code not in _NOT_FETCHED

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

    def is_news(self) -> bool:
        """Whether the answer of a session has to have this partition; it counts as told then."""
        if not self.active:
            news = self.told != self.offsets
            self.told = self.offsets
            return news
        told, self.told = self.told, None if self.settled else self.offsets
        return self.size > 0 or self.told is None or self.told != told

    # Watching.

    def _follow(self, partition: Partition | None) -> None:
        """Watch this one, until a check finds another."""
        if partition is self._partition:
            return
        self.unwatch()
        self.rest()
        self._partition = partition
        if partition is not None:
            partition.watch(self._moved)
            self._watching = True

    def unwatch(self) -> None:
        """Must be the end of every share; harmless a second time."""
        if self._watching and self._partition is not None:
            self._watching = False
            self._partition.unwatch(self._moved)

    def _moved(self) -> None:
        self._heard(self)

    def let_go(self) -> None:
        """Between two fetches: keep nothing of a replica that does not lead any more."""
        if self._partition is not None and not self._partition.leads:
            self._follow(None)

    # Reading.

    def planned(self, limit: int) -> int:
        """Bytes a read of `limit` would give at most: more than that if the first batch is known to have."""
        assert self._partition is not None
        return self._partition.measured(self._offset, self._end, limit).bytes

    async def read(self, limit: int, *, whole_first: bool, files: bool) -> None:
        """Read up to `limit` bytes; with `whole_first` the first batch, however large. With `files` they may
        be ranges of files."""
        partition, aborted = self._partition, self.aborted
        assert partition is not None
        wanted = (self._offset, self._end, limit)
        try:
            if self._committed:
                batches, aborted = await partition.read_committed(*wanted, files=files)
            else:
                batches = await partition.read(*wanted, files=files)
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
        found = self.found
        return found.name if isinstance(found, Topic) else str(self.topic.topic_id)
