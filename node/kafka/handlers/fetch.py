"""Fetch: waits until there is enough data, then answers with the log's batches, whole and uncopied.

A long poll is woken by its partitions and by its deadline only. There are no fetch sessions (KIP-227): a
client that asks for one gets none, and sends whole requests.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from kio.schema.errors import ErrorCode

from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.deadlines import NO_THROTTLE
from strandline.node.kafka.handlers.fetch_partition import READ_COMMITTED, FetchPartition
from strandline.node.kafka.handlers.leading import LeaderHints
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.response_encoder import as_records
from strandline.node.kafka.wire.response_types import ResponseTypes
from strandline.node.runtime.slices import in_slices

MAX_FETCH_BYTES: Final = 55 * 1024 * 1024
"""Records of one answer, whatever a client asks for: Kafka's default of `fetch.max.bytes`."""
LIKELY_BATCH_BYTES: Final = 1024 * 1024 + 12
"""Size that most batches do not exceed: if more room is left, a batch is read before it is measured."""
SLICE: Final = 64
"""Partitions that are read, or answered, in one turn of the loop: some milliseconds' worth. A consumer of a
thousand partitions would hold up all else for as long as an election where the processor is busy."""
_WHOLE_REQUEST: Final = (-1, 0)
"""Session epochs of a request that names all its partitions; any other goes on with a session."""


async def fetch(context: BrokerContext, request: Request, a: ResponseTypes) -> Any:
    """The answer, after at most the client's `max_wait` and the time of reading."""
    ask = request.payload
    if getattr(ask, "session_epoch", -1) not in _WHOLE_REQUEST:
        return _response(a, (), ErrorCode.fetch_session_id_not_found)
    committed = ask.isolation_level == READ_COMMITTED
    shares = [
        [FetchPartition(context, request, topic, asked) async for asked in in_slices(topic.partitions, SLICE)]
        for topic in ask.topics
    ]
    every = [share for topic in shares for share in topic]
    max_bytes = min(ask.max_bytes, MAX_FETCH_BYTES)
    await _until_enough(context.loop, every, min(ask.min_bytes, max_bytes), ask.max_wait.total_seconds())
    if room := context.throttles.fetch_room(request):
        await _read(context.loop, [share for share in every if share.has_data], min(max_bytes, room))
        if not context.throttles.fetched(request, sum(share.size for share in every)):
            for share in every:
                share.drop()
    hints = LeaderHints(context, a, request.session.listener)
    topics = [
        a.FetchableTopicResponse(
            topic=getattr(asked, "topic", None),
            topic_id=getattr(asked, "topic_id", None),
            partitions=tuple(
                [_partition(a, hints, share, committed) async for share in in_slices(topic, SLICE)]
            ),
        )
        for asked, topic in zip(ask.topics, shares, strict=True)
    ]
    return _response(a, tuple(topics), ErrorCode.none, hints.endpoints())


# Waiting.


async def _until_enough(
    loop: asyncio.AbstractEventLoop, shares: list[FetchPartition], min_bytes: int, max_wait: float
) -> None:
    """Check every partition until there is an answer: enough bytes, a refusal, the end of the wait."""
    deadline = loop.time() + max_wait
    while True:
        for share in shares:
            share.check()
        # A node that lost its leadership and does not know it has too short a log, and must not send a
        # consumer back. So these are checked again once leadership is proven.
        if doubtful := [share for share in shares if share.doubtful]:
            await asyncio.gather(*(share.confirm() for share in doubtful))
        left = deadline - loop.time()
        if left <= 0 or not shares or any(share.settled for share in shares):
            return
        if min_bytes <= 1 and any(share.has_data for share in shares):
            return
        total = sum(share.count() for share in shares)
        if total >= min_bytes:
            return
        await _change(loop, shares, min_bytes - total, left)


async def _change(
    loop: asyncio.AbstractEventLoop, shares: list[FetchPartition], missing: int, seconds: float
) -> None:
    """Wait until `missing` bytes have come, or something else has happened, or the time is over."""
    woken = loop.create_future()

    def add(size: int | None) -> None:
        nonlocal missing
        missing -= size or 0
        if (size is None or missing <= 0) and not woken.done():
            woken.set_result(None)

    timer = loop.call_later(seconds, add, None)
    try:
        for share in shares:
            share.watch(add)
        await woken
    finally:
        timer.cancel()
        for share in shares:
            share.unwatch()


# Reading.


async def _read(loop: asyncio.AbstractEventLoop, shares: list[FetchPartition], room: int) -> None:
    """Read in the order of the request, as Kafka does: clients put their most wanted partitions first.

    The first batch comes whatever its size, so that every consumer advances; later ones only if they fit. As
    long as memory has all of it, one partition is read after the other; once a read had to wait for the
    store, the rest is read at the same time.
    """
    waited: list[bool] = []
    mark = loop.call_soon(waited.append, True)
    found = False
    for number, share in enumerate(shares):
        if number % SLICE == SLICE - 1:
            mark.cancel()
            await asyncio.sleep(0)
            mark = loop.call_soon(waited.append, True)
        limit = min(share.max_bytes, room)
        if found and (limit <= 0 or (limit < LIKELY_BATCH_BYTES and share.planned(limit) > limit)):
            continue
        await share.read(limit, whole_first=not found)
        room -= share.size
        found = found or share.size > 0
        if waited and found:
            await _read_together(shares[number + 1 :], room)
            break
    mark.cancel()


async def _read_together(shares: list[FetchPartition], room: int) -> None:
    reads = []
    for share in shares:
        limit = min(share.max_bytes, room)
        planned = share.planned(limit) if limit > 0 else 0
        if 0 < planned <= limit:
            reads.append(share.read(planned, whole_first=False))
            room -= planned
    await asyncio.gather(*reads)


# Answering.


def _response(
    a: ResponseTypes, topics: tuple[Any, ...], code: ErrorCode, endpoints: tuple[Any, ...] = ()
) -> Any:
    return a.FetchResponse(
        throttle_time=NO_THROTTLE,
        error_code=code,
        session_id=0,
        responses=topics,
        node_endpoints=endpoints,
    )


def _aborted(a: ResponseTypes, share: FetchPartition) -> tuple[Any, ...]:
    return tuple(
        a.AbortedTransaction(producer_id=one.producer_id, first_offset=one.first_offset)
        for one in share.aborted
    )


def _partition(a: ResponseTypes, hints: LeaderHints, share: FetchPartition, committed: bool) -> Any:
    number, code = share.number, share.code
    known = code is ErrorCode.none
    optional = {} if known else hints.fields(code, share.topic, number)
    if share.diverging is not None:
        term, end = share.diverging
        optional["diverging_epoch"] = a.EpochEndOffset(epoch=term, end_offset=end)
    return a.PartitionData(
        partition_index=number,
        error_code=code,
        high_watermark=share.high_watermark if known else -1,
        last_stable_offset=share.last_stable_offset if known else -1,
        log_start_offset=share.start_offset if known else -1,
        aborted_transactions=_aborted(a, share) if committed and known else None,
        preferred_read_replica=-1,
        records=as_records(share.parts),
        **optional,
    )
