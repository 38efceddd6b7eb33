"""Keeps the partitions that one connection fetches from one fetch to the next.

Consumers ask for the same partitions again and again, and of many partitions few have moved meanwhile. So a
share stays with its watch, and only what may have changed is looked at: a partition that has moved, all of a
topic that is another one or is refused now, and whatever had records or an error to tell. Topics are looked
up once for each look at their partitions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.fetch_partition import (
    READ_COMMITTED,
    FetchPartition,
    FetchTopic,
    wanted_of,
)
from strandline.node.kafka.handlers.kept_fetches import Kept
from strandline.node.kafka.handlers.leading import topic_of
from strandline.node.kafka.wire.handler import Request
from strandline.node.runtime.slices import SLICE, cut
from strandline.statemachine.controller.acl import Operation
from strandline.statemachine.controller.controller_state import Topic
from strandline.statemachine.controller.controller_topics import MAX_NAME_LENGTH


class KeptFetch(Kept):
    """The shares of one connection, in the order in which they are read."""

    def __init__(self, context: BrokerContext, connection: int) -> None:
        super().__init__(connection)
        self._context = context
        self._loop = context.loop
        self._request: Request | None = None
        self._manner: tuple[int, bool] | None = None
        self._topics: dict[str | UUID | None, FetchTopic] = {}
        self._shares: dict[FetchPartition, None] = {}
        self._moved: dict[FetchPartition, None] = {}
        """Those that moved while a fetch was under way and did not wait."""
        self._woken: asyncio.Future[bool] | None = None
        self._missing = 0

    def __len__(self) -> int:
        return len(self._shares)

    @property
    def shares(self) -> Iterable[FetchPartition]:
        return self._shares

    # What a request names.

    def begin(self, request: Request) -> None:
        """A fetch begins; `finish` is its end."""
        self.busy, self._request = True, request
        committed = request.payload.isolation_level == READ_COMMITTED
        manner = request.header.api_version, committed
        if manner != self._manner:
            self._manner = manner
            for share in self._shares:
                share.ask_as(committed)

    async def update(self, ask: Any) -> None:
        """Keep what a request names and forget what it forgets; the rest stays as it was asked for."""
        await self._take(ask)
        forgotten = [(one, number) for one in ask.forgotten_topics_data for number in one.partitions]
        for slice_ in cut(forgotten, SLICE):
            for one, number in slice_:
                topic = self._topics.get(_key(one))
                share = None if topic is None else topic.shares.get(number)
                if share is not None:
                    del self._shares[share]
                    self._drop(share)
            if len(slice_) == SLICE:
                await asyncio.sleep(0)

    def put_last(self, share: FetchPartition) -> None:
        """Read this one behind all others: a request of a session says nothing of their order, and what is
        always first would leave no room for the rest."""
        self._shares[share] = self._shares.pop(share)

    async def replace(self, ask: Any) -> None:
        """Keep what a request names, and nothing else."""
        former, self._shares = self._shares, {}
        self.names_fit = True
        await self._take(ask)
        for share in former:
            if share not in self._shares:
                self._drop(share)

    async def _take(self, ask: Any) -> None:
        committed = ask.isolation_level == READ_COMMITTED
        last: Any = None
        topic: FetchTopic
        for slice_ in cut([(one, asked) for one in ask.topics for asked in one.partitions], SLICE):
            for one, asked in slice_:
                if one is not last:
                    topic, last = self._topic(one), one
                number, wanted = asked.partition, wanted_of(asked, committed)
                share = topic.shares.get(number)
                if share is None:
                    share = FetchPartition(self._context, topic, number, wanted, self._heard)
                    topic.shares[number] = share
                else:
                    share.ask(wanted)
                self._shares[share] = None
            if len(slice_) == SLICE:
                await asyncio.sleep(0)

    def _topic(self, named: Any) -> FetchTopic:
        key = _key(named)
        topic = self._topics.get(key)
        if topic is None:
            name = getattr(named, "topic", None)
            topic = self._topics[key] = FetchTopic(name, getattr(named, "topic_id", None), self._find)
            if name is not None and not (len(name) <= MAX_NAME_LENGTH and name.isascii()):
                self.names_fit = False
        return topic

    def _find(self, name: str | None, topic_id: UUID | None) -> Topic | ErrorCode:
        assert self._request is not None
        return topic_of(self._context, self._request, Operation.READ, name, topic_id)

    def _drop(self, share: FetchPartition) -> None:
        share.unwatch()
        topic = share.topic
        del topic.shares[share.number]
        if not topic.shares:
            del self._topics[topic.topic_id if topic.name is None else topic.name]

    # Looking, and waiting.

    async def look(self) -> list[FetchPartition]:
        """Check what may have changed; those with records to read, or with an error to tell."""
        self._moved.clear()
        for topics in cut(self._topics.values(), SLICE):
            for topic in topics:
                topic.look()
            if len(topics) == SLICE:
                await asyncio.sleep(0)
        for shares in cut(self._shares, SLICE):
            for share in shares:
                if not share.holds:
                    share.check()
            if len(shares) == SLICE:
                await asyncio.sleep(0)
        for share in self._moved:
            share.topic.look()
            share.check()
        self._moved.clear()
        return [share for share in self._shares if share.active]

    async def change(self, missing: int, seconds: float) -> bool:
        """Wait until `missing` bytes have come, which is False; or something else has happened, or the time
        is over."""
        self._missing = missing
        woken: asyncio.Future[bool] = self._loop.create_future()
        self._woken = woken
        timer = self._loop.call_later(seconds, self._wake, True)
        moved, self._moved = self._moved, {}
        try:
            for share in moved:
                self._heard(share)
            return await woken
        finally:
            timer.cancel()
            self._woken = None

    def _wake(self, over: bool) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(over)

    def _heard(self, share: FetchPartition) -> None:
        """A share's partition has moved."""
        if self._woken is None:
            if self.busy:
                self._moved[share] = None
            else:
                share.let_go()
            return
        before = share.count()
        share.topic.look()
        share.check()
        if share.settled:
            self._wake(True)
        else:
            self._missing -= share.count() - before
            if self._missing <= 0:
                self._wake(False)

    # The end.

    def finish(self) -> None:
        self.busy, self._request = False, None
        for share in self._moved:
            share.let_go()
        self._moved.clear()
        for share in self._shares:
            if share.active:
                share.rest()

    def close(self) -> None:
        for topic in self._topics.values():
            for share in topic.shares.values():
                share.unwatch()
        if not self.busy:
            self._topics.clear()
            self._shares.clear()


def _key(named: Any) -> str | UUID | None:
    """The name by which a request names a topic, or from version 13 on its id."""
    name: str | None = getattr(named, "topic", None)
    return getattr(named, "topic_id", None) if name is None else name
