"""Fetch: waits until there is enough data, then answers with the log's batches, whole and uncopied.

A long poll is woken by its partitions and by its deadline only. A request may go on with a session (KIP-227,
kept_fetches.py): then it names, and its answer has, only what has changed.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from kio.schema.errors import ErrorCode

from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.deadlines import NO_THROTTLE
from strandline.node.kafka.handlers.fetch_partition import READ_COMMITTED, FetchPartition, FetchTopic
from strandline.node.kafka.handlers.kept_fetch import KeptFetch
from strandline.node.kafka.handlers.leading import LeaderHints
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.response_encoder import as_records, encode_plain
from strandline.node.kafka.wire.response_types import ResponseTypes
from strandline.node.runtime.slices import cut

MAX_FETCH_BYTES: Final = 55 * 1024 * 1024
"""Records of one answer, whatever a client asks for: Kafka's default of `fetch.max.bytes`."""
LIKELY_BATCH_BYTES: Final = 1024 * 1024 + 12
"""Size that most batches do not exceed: if more room is left, a batch is read before it is measured."""
SLICE: Final = 64
"""Partitions that are read, or answered, in one turn of the loop: some milliseconds' worth. A consumer of a
thousand partitions would hold up all else for as long as an election where the processor is busy."""


async def fetch(context: BrokerContext, request: Request, a: ResponseTypes) -> Any:
    """The answer, after at most the client's `max_wait` and the time of reading."""
    ask = request.payload
    kept = context.fetches.begin(request)
    if isinstance(kept, ErrorCode):
        return _response(a, (), kept)
    if not isinstance(kept, KeptFetch):
        kept = KeptFetch(context, request.connection)
    goes_on = kept.session > 0
    kept.begin(request)
    try:
        await (kept.update(ask) if goes_on else kept.replace(ask))
        if not context.fetches.keep(kept, request) and goes_on and len(kept):
            return _response(a, (), ErrorCode.fetch_session_id_not_found)
        return await _answer(context, request, a, kept, goes_on)
    finally:
        context.fetches.end(kept)


async def _answer(
    context: BrokerContext, request: Request, a: ResponseTypes, kept: KeptFetch, goes_on: bool
) -> Any:
    ask, loop = request.payload, context.loop
    max_bytes = min(ask.max_bytes, MAX_FETCH_BYTES)
    active = await _until_enough(loop, kept, min(ask.min_bytes, max_bytes), ask.max_wait.total_seconds())
    if active and (room := context.throttles.fetch_room(request)):
        wanted = [share for share in active if share.has_data]
        await _read(loop, wanted, min(max_bytes, room), files=request.takes_files)
        if not context.throttles.fetched(request, sum(share.size for share in wanted)):
            for share in wanted:
                share.drop()
    hints = LeaderHints(context, a, request.session.listener)
    committed = ask.isolation_level == READ_COMMITTED
    told: dict[FetchTopic, list[Any]] = {}
    for slice_ in cut(kept.shares, SLICE):
        for share in slice_:
            if kept.session:
                news = share.is_news()
                if share.size:
                    kept.put_last(share)
                if goes_on and not news:
                    continue
            part: Any = share.answer
            if part is None:
                part = _partition(a, hints, share, committed)
                if not (share.active or goes_on):
                    part = share.answer = encode_plain(part)
            told.setdefault(share.topic, []).append(part)
        if len(slice_) == SLICE:
            await asyncio.sleep(0)
    topics = [
        a.FetchableTopicResponse(topic=topic.name, topic_id=topic.topic_id, partitions=tuple(partitions))
        for topic, partitions in told.items()
    ]
    return _response(a, tuple(topics), ErrorCode.none, hints.endpoints(), kept.session)


async def _until_enough(
    loop: asyncio.AbstractEventLoop, kept: KeptFetch, min_bytes: int, max_wait: float
) -> list[FetchPartition]:
    """Look at the partitions until there is an answer: enough bytes, an error, the end of the wait. Those of
    them that have something to tell or to read.

    As in Kafka, one that there is not, or that the client may not read, does not end the wait for others:
    most clients ask again at once.
    """
    deadline = loop.time() + max_wait
    over = False
    while True:
        active = await kept.look()
        # A node that lost its leadership and does not know it has too short a log, and must not send a
        # consumer back. So these are checked again once leadership is proven.
        if doubtful := [share for share in active if share.doubtful]:
            await asyncio.gather(*(share.confirm() for share in doubtful))
        left = deadline - loop.time()
        fetched = [share for share in active if share.fetched]
        if over or left <= 0 or len(active) - len(fetched) == len(kept):
            return active
        if any(share.settled for share in fetched):
            return active
        if min_bytes <= 1 and any(share.has_data for share in active):
            return active
        total = sum(share.count() for share in active)
        if total >= min_bytes:
            return active
        over = await kept.change(min_bytes - total, left)


# Reading.


async def _read(
    loop: asyncio.AbstractEventLoop, shares: list[FetchPartition], room: int, *, files: bool
) -> None:
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
        await share.read(limit, whole_first=not found, files=files)
        room -= share.size
        found = found or share.size > 0
        if waited and found:
            await _read_together(shares[number + 1 :], room, files)
            break
    mark.cancel()


async def _read_together(shares: list[FetchPartition], room: int, files: bool) -> None:
    reads = []
    for share in shares:
        limit = min(share.max_bytes, room)
        planned = share.planned(limit) if limit > 0 else 0
        if 0 < planned <= limit:
            reads.append(share.read(planned, whole_first=False, files=files))
            room -= planned
    await asyncio.gather(*reads)


# Answering.


def _response(
    a: ResponseTypes,
    topics: tuple[Any, ...],
    code: ErrorCode,
    endpoints: tuple[Any, ...] = (),
    session: int = 0,
) -> Any:
    return a.FetchResponse(
        throttle_time=NO_THROTTLE,
        error_code=code,
        session_id=session,
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
    optional = {} if known else hints.fields(code, share.found, number)
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
