"""The progress of a query, as the cluster keeps it: the decisions on its batches.

The group `strandline-<query>` has one offset, the number of the first batch that is not decided. Its metadata
names the newest decided batch's transactions, one for each task that wrote something, and the run that may
decide next. An offset's metadata holds 4096 bytes, so more of it lies in groups with numbers behind the name.
All of it is written by one transaction, of the transactional id with the group's name: that is the decision.

A run of a query *claims* it with its first task: it takes that transactional id, and writes down that it has.
From then on no earlier run can decide anything, whatever becomes of its driver.
"""

from __future__ import annotations

import base64
import time
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import msgpack
from kio.schema.errors import ErrorCode

from strandline.snapshot.connection import OFFSET_FETCH
from strandline.snapshot.producing.brokers import GROUP, Brokers, first_code
from strandline.snapshot.producing.errors import Fenced, SinkError
from strandline.snapshot.producing.transactions import Producer, begin, commit_offsets, end

_FORMAT: Final = 1
_METADATA_CHARACTERS: Final = 4000
"""Of one group's offset: 4096 bytes are Kafka's offset.metadata.max.bytes."""
_MOST_PARTS: Final = 1000
"""Groups of one transaction; 100,000 tasks."""
_DECISION_SECONDS: Final = 60.0
"""Timeout of the decision's own transaction, which takes milliseconds."""
_TURN_SECONDS: Final = 0.25
_SETTLING_SECONDS: Final = 1.0
"""An offset is unstable for milliseconds after its transaction was ended. What takes longer is forced."""
_SETTLED: Final = -1
"""In the place of a producer id."""
_MOST_TURNS: Final = 40
"""Task n leaves the claim to those before it for n turns, so that hundreds do not fence each other."""


@dataclass(frozen=True)
class Prepared:
    """A task's transaction, left open: with it the driver commits it. `digest` is of the task's records."""

    task: int
    slot: int
    producer_id: int
    epoch: int
    records: int
    digest: int

    @property
    def settled(self) -> bool:
        """Whether it is known to be committed, so that its transactional id may be another batch's."""
        return self.producer_id == _SETTLED

    def as_settled(self) -> Prepared:
        return replace(self, producer_id=_SETTLED)

    def producer(self, query: str) -> Producer:
        return Producer(task_id(query, self.task, self.slot), self.producer_id, self.epoch)


def group_of(query: str) -> str:
    """The name of the group, and of the decisions' transactional id."""
    return f"strandline-{query}"


def task_id(query: str, task: int, slot: int) -> str:
    """The transactional id of a task. Attempts of one task have different slots: none fences another."""
    return f"{group_of(query)}.{task}.{slot}"


def is_task_id(query: str, transactional_id: str) -> bool:
    """Whether it is the transactional id of any task of a query."""
    front, _, numbers = transactional_id.partition(".")
    return front == group_of(query) and numbers.replace(".", "").isdigit()


@dataclass(frozen=True)
class Progress:
    """The decisions on a query's batches, as of the newest."""

    next_batch: int
    """The first batch that is not decided; all before it are."""
    run: str
    """The run that may decide, behind Spark's id of the query and a slash where that is known."""
    producer_id: int
    epoch: int
    tasks: tuple[Prepared, ...]
    """Transactions of the newest decided batch."""
    topic: str
    """The topic at whose partition 0 it is kept."""

    def task(self, number: int) -> Prepared | None:
        return next((one for one in self.tasks if one.task == number), None)


@dataclass(frozen=True)
class _Part:
    """One group's offset: its number of all, their check sum, and its piece of the text."""

    topic: str
    offset: int
    parts: int
    checksum: str
    text: str


class Unstable(Exception):
    """A transaction on the offset is not finished."""


class Ledger:
    """Reads, claims and decides. `topic` is where the offsets are kept, at its partition 0."""

    def __init__(self, brokers: Brokers, query: str, topic: str) -> None:
        self._brokers = brokers
        self._query = query
        self._topic = topic

    def read(self) -> Progress | None:
        """The newest decision; None if nothing ever was. Raises Unstable, SinkError, Unanswered."""
        first = self._part(0)
        if first is None:
            return None
        parts = [first, *(self._part(number) for number in range(1, first.parts))]
        text = "".join(part.text for part in parts if part is not None)
        if {part and (part.offset, part.checksum) for part in parts} != {(first.offset, first.checksum)}:
            raise Unstable("parts of two decisions")
        return _decoded(first, text, group_of(self._query))

    def read_stable(self) -> Progress | None:
        """As `read`, once the transaction on the offset is finished. Raises SinkError, Unanswered."""
        deadline = self._brokers.deadline()
        while True:
            try:
                return self.read()
            except Unstable as error:
                deadline.pause(f"offsets of group {group_of(self._query)!r}", error)

    def claim(
        self,
        run: str,
        first_batch: int,
        turn: int,
        check: Callable[[Progress | None], None],
        settle: Callable[[Progress], Progress],
    ) -> Progress:
        """Make this run the one that may decide, unless it is; `first_batch`: of a query that has none yet.

        `check` raises what speaks against it, before the run that has the claim is fenced. `settle` gives
        what the claim says of the newest decision, and the topic at which it says so, once no other run can
        decide any more, and before any task of this run writes. Raises SinkError, Unanswered.
        """
        deadline = self._brokers.deadline()
        turn_comes = time.monotonic() + min(turn, _MOST_TURNS) * _TURN_SECONDS
        forced = time.monotonic() + _SETTLING_SECONDS
        reason: object = "other tasks take the claim in turns"
        while True:
            now = time.monotonic()
            try:
                found = self.read()
                check(found)
                if found is not None and found.run == run:
                    return found
                if now >= turn_comes:
                    return self._take(run, first_batch, settle)
            except Fenced as error:
                reason = error
            except Unstable as error:
                reason = error
                if now >= max(turn_comes, forced):
                    # A decision that its driver did not live to end. Its id is taken, which ends it.
                    with suppress(Fenced):
                        return self._take(run, first_batch, settle)
            deadline.pause(f"query {self._query!r} cannot be claimed", reason)

    def _take(self, run: str, first_batch: int, settle: Callable[[Progress], Progress]) -> Progress:
        producer = begin(self._brokers, group_of(self._query), _DECISION_SECONDS)
        # Whatever was under way on the offset is over now; the group's coordinator may not have it yet.
        found = self.read_stable()
        if found is None:
            found = Progress(first_batch, run, producer.producer_id, producer.epoch, (), self._topic)
        found = settle(found)
        claimed = replace(found, run=run, producer_id=producer.producer_id, epoch=producer.epoch)
        self._write(producer, claimed)
        return claimed

    def decide(self, claimed: Progress, batch: int, tasks: Iterable[Prepared]) -> Progress:
        """Decide that a batch is written by these transactions. Raises Fenced, SinkError, Unanswered.

        After Unanswered it may have been decided or not.
        """
        producer = Producer(group_of(self._query), claimed.producer_id, claimed.epoch)
        decided = replace(claimed, next_batch=batch + 1, tasks=tuple(tasks), topic=self._topic)
        self._write(producer, decided)
        return decided

    def settle(self, decided: Progress) -> None:
        """Write down that the newest decision is carried out; `decided` has this run's claim.

        Raises Fenced, SinkError, Unanswered.
        """
        producer = Producer(group_of(self._query), decided.producer_id, decided.epoch)
        self._write(producer, replace(decided, tasks=tuple(one.as_settled() for one in decided.tasks)))

    def _write(self, producer: Producer, progress: Progress) -> None:
        parts = _encoded(progress)
        for number, metadata in enumerate(parts):
            offsets = {(progress.topic, 0): progress.next_batch}
            commit_offsets(self._brokers, producer, self._group(number), offsets, metadata)
        end(self._brokers, producer, commit=True)

    def _group(self, number: int) -> str:
        return f"{group_of(self._query)}.{number}" if number else group_of(self._query)

    def _part(self, number: int) -> _Part | None:
        """One group's part of the progress, if it has any. Raises Unstable, SinkError, Unanswered."""
        group = self._group(number)
        request = OFFSET_FETCH.request.OffsetFetchRequest(group_id=group, topics=None, require_stable=True)

        def code_of(answer: Any) -> ErrorCode:
            return answer.error_code or first_code(
                one.error_code for topic in answer.topics for one in topic.partitions
            )

        answer = self._brokers.ask_coordinator(GROUP, group, OFFSET_FETCH, request, code_of)
        code = code_of(answer)
        if code is ErrorCode.unstable_offset_commit:
            raise Unstable(code.name)
        if code is not ErrorCode.none:
            raise SinkError(f"offsets of group {group!r} cannot be read: {code.name}")
        # The topic may have been another one in an earlier run. The highest offset is the newest.
        rows = [
            (one.committed_offset, topic.name == self._topic, one.metadata or "", topic.name)
            for topic in answer.topics
            for one in topic.partitions
            if one.committed_offset >= 0
        ]
        if not rows:
            return None
        offset, _, metadata, topic_name = max(rows)
        count, _, rest = metadata.partition(":")
        checksum, _, text = rest.partition(":")
        if not count.isdigit() or not 1 <= int(count) <= _MOST_PARTS or not text:
            raise _foreign(group)
        return _Part(topic_name, offset, int(count), checksum, text)


def _encoded(progress: Progress) -> list[str]:
    """Each group's metadata."""
    rows = [
        [one.task, one.slot, one.producer_id, one.epoch, one.records, one.digest] for one in progress.tasks
    ]
    packed = msgpack.packb([_FORMAT, progress.run, progress.producer_id, progress.epoch, rows])
    text = base64.b85encode(zlib.compress(packed)).decode()
    cut = [text[at : at + _METADATA_CHARACTERS] for at in range(0, len(text), _METADATA_CHARACTERS)]
    if len(cut) > _MOST_PARTS:
        raise SinkError(f"a batch of {len(progress.tasks)} tasks is too large: coalesce() it to fewer")
    return [f"{len(cut)}:{zlib.crc32(packed):x}:{piece}" for piece in cut]


def _decoded(first: _Part, text: str, group: str) -> Progress:
    try:
        packed = zlib.decompressobj().decompress(base64.b85decode(text), _MOST_PARTS * _METADATA_CHARACTERS)
        if f"{zlib.crc32(packed):x}" != first.checksum:
            raise _foreign(group)
        version, run, producer_id, epoch, rows = msgpack.unpackb(packed)
        if version != _FORMAT or not isinstance(run, str):
            raise _foreign(group)
        tasks = tuple(Prepared(*map(int, row)) for row in rows)
        return Progress(first.offset, run, int(producer_id), int(epoch), tasks, first.topic)
    except (ValueError, TypeError, zlib.error, msgpack.UnpackException) as error:
        raise _foreign(group) from error


def _foreign(group: str) -> SinkError:
    return SinkError(
        f"the offset of group {group!r} was not written by this release of the sink: "
        "use the release that wrote it, or name the query otherwise by the option 'query'"
    )
