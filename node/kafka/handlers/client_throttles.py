"""Client quotas in force on one node: what clients use, and for how long their connections are muted.

A request is counted by its user and client id. Its answer goes out at once, says the time in
`throttle_time_ms`, and the connection then takes no other request for so long (KIP-219). Only what comes
through a listener for Kafka clients is counted: what nodes say to each other goes through the mesh.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine
from datetime import timedelta
from functools import partial
from typing import Any, Final, NamedTuple

from strandline.node.config.quotas import QuotasSection
from strandline.node.kafka.handlers.timed_steps import TimedSteps
from strandline.node.kafka.wire.apis import ApiKey
from strandline.node.kafka.wire.handler import EncodedBody, Request, Throttled
from strandline.node.kafka.wire.rate_window import RateWindow, TokenBucket
from strandline.node.objectstore.object_file import FileRange
from strandline.statemachine.controller.client_quota import DEFAULT, QuotaEntity, QuotaKey
from strandline.statemachine.controller.quota_set import Limit, QuotaSet

MAX_MUTE_SECONDS: Final = 60.0
"""A quota that was raised holds for a muted client after this, at the latest."""
MAX_TRACKED: Final = 10_000
"""Users, and client ids with their users, whose use is counted; beyond it those go first that used least
lately. Users are counted apart: a client chooses its client id, and must not push out users by many of them.
"""
MAX_CLIENT_ID: Final = 256
"""Characters of a client id that are kept: a frame's may be 32 KiB, and 10,000 of those more than 1 GB."""
MAX_SERIES: Final = 100
"""Entities that metrics name; the others are counted together."""
OTHERS: Final = "others"
_EXEMPT: Final = frozenset((ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.WRITE_TXN_MARKERS))
"""Requests without a request time: those before a name is proved, and Kafka's own between brokers."""
_MUTATING: Final = frozenset((ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS))
_NO_BOUND: Final = 1 << 62
_MILLISECOND: Final = 0.001


class _Used(NamedTuple):
    """The quota of one request's client, and what is counted of it."""

    key: QuotaKey
    limit: Limit
    counter: Any


class ClientThrottles:
    """The counting of one node.

    `quotas` gives the quotas as this node has applied them: another object after a snapshot was installed.
    `clock` gives seconds, `processor` those of the loop's thread.
    """

    def __init__(
        self,
        quotas: Callable[[], QuotaSet],
        settings: QuotasSection,
        clock: Callable[[], float],
        processor: Callable[[], float] = time.thread_time,
    ) -> None:
        self._quotas = quotas
        self._clock = clock
        self._processor = processor
        self._make = {
            key: partial(TokenBucket if key is QuotaKey.MUTATIONS else RateWindow, settings)
            for key in QuotaKey
        }
        self._most_request_seconds = settings.window_seconds
        self._counters: dict[bool, dict[tuple[QuotaKey, QuotaEntity], Any]] = {False: {}, True: {}}
        """By whether a client id is a part of what shares it; then by quota and what shares it, those last
        that were used last."""
        self._limits: dict[tuple[QuotaKey, str, str], Limit | None] = {}
        """Looked up already, of the quotas at `_looked_up`."""
        self._looked_up: tuple[QuotaSet | None, int] = None, 0
        self.throttled: Counter[tuple[str, str]] = Counter()
        """Answers with a throttle time, by quota and entity: totals since the start."""
        self.seconds: defaultdict[tuple[str, str], float] = defaultdict(float)
        """Their throttle times together, by the same."""

    def answered(self, request: Request, answering: Coroutine[Any, Any, Any]) -> Coroutine[Any, Any, Any]:
        """`answering`, counted and throttled where there are quotas."""
        return self._counted(request, answering) if self._quotas() else answering

    async def _counted(self, request: Request, answering: Coroutine[Any, Any, Any]) -> Any:
        key = ApiKey(request.header.api_key)
        used: list[tuple[_Used, float]] = []
        if key is ApiKey.PRODUCE and (produced := self._used(QuotaKey.PRODUCED_BYTES, request)):
            produced.counter.record(self._clock(), request.size)
            used.append((produced, MAX_MUTE_SECONDS))
        timed = None if key in _EXEMPT else self._used(QuotaKey.REQUEST_TIME, request)
        if timed is None:
            answer = await answering
        else:
            steps = TimedSteps(answering, self._processor)
            try:
                answer = await steps
            finally:
                timed.counter.record(self._clock(), 100.0 * steps.seconds)
            used.append((timed, self._most_request_seconds))
        if key is ApiKey.FETCH and (fetched := self._used(QuotaKey.FETCHED_BYTES, request)):
            used.append((fetched, MAX_MUTE_SECONDS))
        if key in _MUTATING and (mutated := self._used(QuotaKey.MUTATIONS, request)):
            used.append((mutated, MAX_MUTE_SECONDS))
        seconds, longest = 0.0, None
        for one, most in used:
            excess = min(one.counter.excess(self._clock(), one.limit.value), most)
            if excess > max(seconds, _MILLISECOND):
                seconds, longest = excess, one
        if longest is None:
            return answer
        self._tell(longest, seconds)
        return Throttled(_with_throttle(request, answer, seconds), seconds)

    # Fetch.

    def fetch_room(self, request: Request) -> int:
        """Bytes of records that an answer may have now; 0 for a client that is above its quota."""
        used = self._used(QuotaKey.FETCHED_BYTES, request) if self._quotas() else None
        if used is None:
            return _NO_BOUND
        room = used.counter.room(self._clock(), used.limit.value)
        return 0 if room < 0 else max(int(room), 1)

    def fetched(self, request: Request, size: int) -> bool:
        """Count records that were read; says no, and counts nothing, where others used up the quota since.

        A client that has used nothing of its window gets its records whatever their size.
        """
        used = self._used(QuotaKey.FETCHED_BYTES, request) if self._quotas() else None
        if used is None:
            return True
        if used.counter.room(self._clock(), used.limit.value) < 0:
            return False
        used.counter.record(self._clock(), size)
        return True

    # Changes of topics.

    def may_mutate(self, request: Request, partitions: int) -> bool:
        """Count partitions that a request creates or deletes; says no where the client owes some (KIP-599).

        Versions of before KIP-599 have no code for that: they are let through, and throttled.
        """
        used = self._used(QuotaKey.MUTATIONS, request) if self._quotas() else None
        if used is None:
            return True
        now = self._clock()
        strict = request.header.api_version >= _STRICT[ApiKey(request.header.api_key)]
        if strict and used.counter.excess(now, used.limit.value) > 0:
            return False
        used.counter.record(now, partitions, used.limit.value)
        return True

    def give_back(self, request: Request, partitions: int) -> None:
        """Give back what `may_mutate` counted: the change was refused, and Kafka counts only what is done."""
        used = self._used(QuotaKey.MUTATIONS, request) if self._quotas() else None
        if used is not None:
            used.counter.record(self._clock(), -partitions, used.limit.value)

    # Counters.

    def _used(self, key: QuotaKey, request: Request) -> _Used | None:
        user, client_id = request.session.principal.removeprefix("User:"), request.header.client_id or ""
        limit = self._limit(key, user, client_id)
        if limit is None:
            return None
        by_id = limit.shared_by.client_id is not None
        counters, place = self._counters[by_id], (key, limit.shared_by)
        counter = counters.pop(place, None)
        if counter is None:
            counter = self._make[key]()
            if len(counters) >= MAX_TRACKED:
                del counters[next(iter(counters))]
        counters[place] = counter
        return _Used(key, limit, counter)

    def _limit(self, key: QuotaKey, user: str, client_id: str) -> Limit | None:
        """The quota of a client, looked up once for each change of the quotas."""
        quotas = self._quotas()
        if self._looked_up != (quotas, quotas.version):
            self._limits.clear()
            self._looked_up = quotas, quotas.version
        if len(client_id) > MAX_CLIENT_ID:
            return _shortened(quotas.limit(key, user, client_id))
        asked = key, user, client_id
        if asked in self._limits:
            return self._limits[asked]
        if len(self._limits) >= MAX_TRACKED:
            self._limits.clear()
        found = self._limits[asked] = quotas.limit(key, user, client_id)
        return found

    def _tell(self, used: _Used, seconds: float) -> None:
        series = used.key.value, entity_name(used.limit.entity)
        if series not in self.throttled and len(self.throttled) >= MAX_SERIES:
            series = used.key.value, OTHERS
        self.throttled[series] += 1
        self.seconds[series] += seconds


def _shortened(limit: Limit | None) -> Limit | None:
    """The same with a digest in place of a long client id."""
    if limit is None or limit.shared_by.client_id is None:
        return limit
    digest = hashlib.sha256(limit.shared_by.client_id.encode()).hexdigest()
    return limit._replace(shared_by=limit.shared_by._replace(client_id=digest))


def entity_name(entity: QuotaEntity) -> str:
    """An entity as metrics name it, like `user=alice,client-id=<default>`."""
    return ",".join(f"{kind}={'<default>' if name == DEFAULT else name}" for kind, name in entity.parts)


def _with_throttle(request: Request, answer: Any, seconds: float) -> Any:
    """The answer with its throttle time, rounded up; as it is where its version has none."""
    milliseconds = math.ceil(seconds * 1000)
    if isinstance(answer, EncodedBody):
        # Metadata is the one that is encoded already, and begins with the throttle time.
        if request.header.api_key != ApiKey.METADATA or request.header.api_version < 3:
            return answer
        first = answer.parts[0]
        assert not isinstance(first, FileRange), "only records lie in files"
        return EncodedBody([milliseconds.to_bytes(4, "big") + bytes(first[4:]), *answer.parts[1:]])
    if not hasattr(answer, "throttle_time"):
        return answer
    return dataclasses.replace(answer, throttle_time=timedelta(milliseconds=milliseconds))


_STRICT: Final = {ApiKey.CREATE_TOPICS: 6, ApiKey.DELETE_TOPICS: 5, ApiKey.CREATE_PARTITIONS: 3}
"""The versions from which clients know THROTTLING_QUOTA_EXCEEDED."""
