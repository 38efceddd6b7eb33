"""Trying again, with a bound on everything: attempts, seconds for each and in all, and retries per store.

A retry has the same name and the same bytes, so it does no harm when an earlier attempt worked after all. The
budget is shared by all operations of a store: when it fails altogether, a node adds few requests to its load.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from strandline.node.objectstore.hedging import Hedging
from strandline.node.objectstore.object_file import Checked, ObjectFile
from strandline.node.objectstore.store import (
    Buffer,
    ObjectNotFound,
    ObjectStore,
    OutcomeUnknown,
    RangeNotFound,
    StoreError,
    Wanted,
    definite,
)
from strandline.node.objectstore.store_health import OperationKind, StoreHealth

T = TypeVar("T")

OPERATIONS: Final = {
    "put": OperationKind.PUT,
    "get": OperationKind.READ,
    "get_range": OperationKind.READ,
    "open": OperationKind.READ,
    "size": OperationKind.READ,
    "list": OperationKind.LIST,
    "delete": OperationKind.DELETE,
}


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Bounds on one operation (times in seconds) and on the retries of a store as a whole."""

    attempts: int = 6
    attempt_seconds: float = 10.0
    total_seconds: float = 30.0
    first_delay_seconds: float = 0.05
    max_delay_seconds: float = 2.0
    """Delays double from the first to this one; each is drawn from its upper half."""

    budget: float = 50.0
    """Retries that may be under way ahead of successes."""
    earned_by_success: float = 0.1
    """Part of a retry that each success gives back to the budget."""

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.budget < 0 or not 0 <= self.earned_by_success <= 1:
            raise ValueError(f"no operation has {self.attempts} attempts and a budget of {self.budget}")
        if not 0 < self.attempt_seconds <= self.total_seconds:
            raise ValueError("attempt_seconds must be positive and not above total_seconds")
        if not 0 < self.first_delay_seconds <= self.max_delay_seconds:
            raise ValueError("first_delay_seconds must be positive and not above max_delay_seconds")


class RetryingStore(ObjectStore):
    """A store whose operations are tried again. Raises what the last attempt raised, with one exception:

    a put or deletion is definite only if every attempt was; after one with an unknown outcome it is unknown.
    `place` names the store to people, a URL or a folder.
    """

    def __init__(
        self,
        store: ObjectStore,
        policy: RetryPolicy,
        *,
        loop: asyncio.AbstractEventLoop,
        rng: random.Random,
        place: str = "",
        hedging: Hedging | None = None,
    ) -> None:
        self._store = store
        self._policy = policy
        self._loop = loop
        self._rng = rng
        self._budget = policy.budget
        self.max_object_bytes = store.max_object_bytes
        self.max_puts = store.max_puts
        self.on_put: Callable[[int, float, StoreError | None], None] = lambda *_: None
        """Told of each attempt to put: its bytes, when it began by the loop's clock, how it failed if so."""
        self.requests = dict.fromkeys(OPERATIONS, 0)
        """By operation, with those that were tried again or sent twice: the store's bill is for these."""
        self.retries = 0
        self.exhausted = 0
        """Operations given up because the shared budget was spent."""
        self.health = StoreHealth(place, loop=loop)
        self.hedging = hedging
        """The requests that are sent twice; None: none are."""

    async def put(self, key: str, parts: Sequence[Buffer]) -> None:
        size = sum(map(len, parts))
        heard = partial(self.on_put, size)
        await self._retry("put", key, lambda: self._store.put(key, parts), size, heard)

    async def get(self, key: str) -> Buffer:
        return await self._retry("get", key, lambda: self._store.get(key))

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        return await self._retry("get_range", key, lambda: self._store.get_range(key, start, length), length)

    async def fill(self, wanted: Sequence[Wanted]) -> list[bool]:
        # No attempt is given up: its thread would go on writing to memory that its caller has changed since.
        filled = await self._store.fill(wanted)
        self.requests["get_range"] += sum(filled)
        return filled

    @property
    def has_files(self) -> bool:
        return self._store.has_files

    async def open_file(self, key: str) -> ObjectFile | None:
        return await self._retry("open", key, lambda: self._store.open_file(key))

    async def checked(self, file: ObjectFile, ranges: Sequence[tuple[int, int]]) -> list[Checked]:
        return await self._retry("get_range", file.key, lambda: self._store.checked(file, ranges))

    async def size(self, key: str) -> int:
        return await self._retry("size", key, lambda: self._store.size(key))

    async def list(self, prefix: str, after: str, limit: int) -> list[str]:
        return await self._retry("list", prefix, lambda: self._store.list(prefix, after, limit))

    async def delete_many(self, keys: Sequence[str]) -> None:
        what = f"{keys[0]} and {len(keys) - 1} more" if keys else "nothing"
        await self._retry("delete", what, lambda: self._store.delete_many(keys))

    async def close(self) -> None:
        await self._store.close()

    async def _retry(
        self,
        operation: str,
        key: str,
        attempt: Callable[[], Coroutine[Any, Any, T]],
        size: int = 0,
        on_end: Callable[[float, StoreError | None], None] = lambda *_: None,
    ) -> T:
        policy, kind = self._policy, OPERATIONS[operation]
        end = self._loop.time() + policy.total_seconds
        delay = policy.first_delay_seconds
        unknown: OutcomeUnknown | None = None
        for left in reversed(range(policy.attempts)):
            began = self._loop.time()
            try:
                result = await self._attempt(operation, key, attempt, size, end)
            except StoreError as error:
                on_end(began, error)
                if isinstance(error, OutcomeUnknown):
                    unknown = error
                pause = delay * (0.5 + 0.5 * self._rng.random())
                again = error.retriable and left > 0 and self._loop.time() + pause < end and self._spend()
                if isinstance(error, ObjectNotFound | RangeNotFound):
                    self.health.answered(kind)
                else:
                    self.health.failed(kind, error, given_up=not again)
                    if self.hedging is not None:
                        self.hedging.pause()
                if not again:
                    told = definite(error, unknown)
                    if told is error:
                        raise  # from itself it would lose its cause, and be its own
                    raise told from error
            else:
                on_end(began, None)
                self.health.answered(kind)
                self._budget = min(policy.budget, self._budget + policy.earned_by_success)
                return result
            await asyncio.sleep(pause)
            delay = min(2 * delay, policy.max_delay_seconds)
        raise AssertionError("the last attempt returns or raises")

    async def _attempt(
        self,
        operation: str,
        key: str,
        attempt: Callable[[], Coroutine[Any, Any, T]],
        size: int,
        end: float,
    ) -> T:
        seconds = min(self._policy.attempt_seconds, end - self._loop.time())

        def send() -> Coroutine[Any, Any, T]:
            self.requests[operation] += 1
            return attempt()

        try:
            async with asyncio.timeout(seconds):
                if self.hedging is not None and self.hedging.covers(operation, key, size):
                    return await self.hedging.first_answer(operation, size, send)
                return await send()
        except TimeoutError as error:
            raise OutcomeUnknown(operation, key, f"no answer within {seconds:.3g} s") from error

    def _spend(self) -> bool:
        if self._budget < 1:
            self.exhausted += 1
            return False
        self._budget -= 1
        self.retries += 1
        return True
