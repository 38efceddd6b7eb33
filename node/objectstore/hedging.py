"""Sends a request a second time when its answer takes longer than nearly all others did, and takes the first.

A bucket answers most requests within a tenth of a second and a few of a hundred within a whole one; the same
request sent again is rarely as unlucky ("The Tail at Scale", Dean and Barroso 2013). So reads, and puts of
level-zero objects, are sent again after the 95th percentile of the last answers to requests of their kind and
size. A duplicate put does no harm there: its name is that of one object for ever and its bytes are the same,
so whenever it lands, the object is as it was, or, if it was collected meanwhile, garbage under an old epoch's
name, as after an attempt that timed out. One request of twenty may be sent again, and none while the store
fails or leaves the ones that were sent again without an answer: more requests are the last thing it needs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from strandline.node.objectstore.store import NotDone, OutcomeUnknown, StoreError, definite
from strandline.statemachine.object_names import PREFIX as LEVEL_ZERO_PREFIX

T = TypeVar("T")

READS: Final = ("get", "get_range", "size")
OPERATIONS: Final = ("put", *READS)
PART: Final = 0.95
"""Share of answers that come before the second request is sent."""
EARNED: Final = 0.05
"""Part of a second request that each request gives leave for."""
SAVED: Final = 8.0
"""Second requests that may be saved up."""
MOST_UNDER_WAY: Final = 4
"""Second requests without an answer: a store that is silent gets no more."""
PAUSE_SECONDS: Final = 10.0
"""Time after a failure in which nothing is sent again; attempts at what fails come twice as often."""
MOST_PUT_BYTES: Final = 8 * 1024 * 1024
"""A larger put is not sent again: it is in memory once more, and the link is what it waits for."""
REMEMBERED: Final = 128
ENOUGH: Final = 20
"""Answers from which a percentile can be told; the first ones of all that are remembered."""
LEAST_SECONDS: Final = 0.02
"""A store that is quicker than this is near, and what takes longer there is the machine's load."""


class AnswerTimes:
    """The last answers to requests of one kind and size, in seconds."""

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=REMEMBERED)
        self._added = 0
        self.patience: float | None = None
        """Seconds after which a request is sent again; None while that is not known."""

    def add(self, seconds: float) -> None:
        self._last.append(seconds)
        self._added += 1
        if self._added % ENOUGH == 0:
            ordered = sorted(self._last)
            self.patience = max(ordered[int(PART * len(ordered))], LEAST_SECONDS)


class Hedging:
    """One store's requests that are sent twice. `puts` says whether those of level-zero objects are."""

    def __init__(self, *, loop: asyncio.AbstractEventLoop, puts: bool) -> None:
        self.sent = dict.fromkeys(OPERATIONS, 0)
        """Second requests, by operation."""
        self.won = dict.fromkeys(OPERATIONS, 0)
        """Those that were answered first."""
        self.refused = 0
        """Requests that were not sent again, because too many were or because the store fails."""
        self._loop = loop
        self._puts = puts
        self._times: dict[tuple[str, int], AnswerTimes] = {}
        """By operation and bits of the size: a few dozen."""
        self._tokens = 0.0
        self._under_way = 0
        self._paused_until = float("-inf")

    def covers(self, operation: str, key: str, size: int) -> bool:
        """Whether a request is one that may be sent twice."""
        if operation == "put":
            return self._puts and size <= MOST_PUT_BYTES and key.startswith(LEVEL_ZERO_PREFIX)
        return operation in READS

    def pause(self) -> None:
        """A request failed: send nothing twice for a while."""
        self._paused_until = self._loop.time() + PAUSE_SECONDS

    async def first_answer(self, operation: str, size: int, send: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The answer to a request of so many bytes (0 where that is not known), which `send` sends.

        Raises what the request does; after two an outcome is unknown if either's is.
        """
        began = self._loop.time()
        times = self._times.setdefault((operation, size.bit_length()), AnswerTimes())
        self._tokens = min(self._tokens + EARNED, SAVED)
        if times.patience is None:
            result = await send()
        else:
            result = await self._hedged(operation, times.patience, send)
        # Of a request that lost, this is the least that it would have taken: more than the percentile.
        times.add(self._loop.time() - began)
        return result

    async def _hedged(self, operation: str, patience: float, send: Callable[[], Coroutine[Any, Any, T]]) -> T:
        requests = [self._loop.create_task(send())]
        try:
            done, _ = await asyncio.wait(requests, timeout=patience)
            if done or not self._may():
                return await requests[0]
            self.sent[operation] += 1
            self._under_way += 1
            try:
                requests.append(self._loop.create_task(send()))
                first = await self._answered(operation, requests)
            finally:
                self._under_way -= 1
            self.won[operation] += first is requests[1]
            return first.result()
        finally:
            for request in requests:
                if request.done():
                    # It may have failed in the turn in which the wait for it was cancelled.
                    _look_at(request)
                else:
                    request.cancel()
                    request.add_done_callback(_look_at)

    def _may(self) -> bool:
        """Whether a request may be sent again now; it is counted."""
        if self._tokens < 1 or self._under_way >= MOST_UNDER_WAY or self._loop.time() < self._paused_until:
            self.refused += 1
            return False
        self._tokens -= 1
        return True

    async def _answered(self, operation: str, requests: list[asyncio.Task[T]]) -> asyncio.Task[T]:
        """The first of two requests that is answered; raises when both failed."""
        waiting, unknown, last = [*requests], None, None
        while waiting:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for request in [one for one in waiting if one.done()]:
                waiting.remove(request)
                error = None if request.cancelled() else request.exception()
                if not isinstance(error, StoreError):
                    return request  # also one that was cancelled, or failed in a way that was not foreseen
                if isinstance(error, NotDone) and not error.retriable and operation in READS:
                    return request  # an answer, such as that there is no such object
                self.pause()
                unknown, last = error if isinstance(error, OutcomeUnknown) else unknown, error
        assert last is not None, "a request that is not answered failed"
        raise definite(last, unknown)


def _look_at(request: asyncio.Task[Any]) -> None:
    """Retrieve the error of a request that is not waited for any more."""
    if not request.cancelled():
        request.exception()
