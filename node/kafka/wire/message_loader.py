"""Imports the messages of Kafka's protocol when the first client uses them.

kio has a module for each version of each request and each response: 3 ms of processor and 80 KiB each. `APIS`
has more than two hundred, and the clients of a cluster speak some twenty. A thread imports them, as the
replicated log must not wait that long for the loop. Those that nearly every client begins with are imported
before one asks, once the node serves.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from strandline.node.kafka.wire.apis import APIS, ApiKey
from strandline.node.kafka.wire.codec import prepare
from strandline.node.kafka.wire.response_types import prepare_responses

log = logging.getLogger(__name__)

USUAL: Final = (
    (ApiKey.API_VERSIONS, 3),
    (ApiKey.METADATA, 13),
    (ApiKey.LIST_OFFSETS, 7),
    (ApiKey.FETCH, 16),
    (ApiKey.PRODUCE, 10),
    (ApiKey.FIND_COORDINATOR, 2),
)
"""The requests of a client that begins, in this order, in the versions that librdkafka speaks."""
USUAL_SECONDS: Final = 1.0
"""From the start of serving to the first of them: nodes that start together have the processor until then."""
PAUSE_SECONDS: Final = 0.05
"""After each of them, in which others have the processor."""
_HEAD: Final = struct.Struct(">hh")


class MessageLoader:
    """One for all connections of a server; `loop` is theirs."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._executor = ThreadPoolExecutor(1, "messages")
        self._missing = {
            _HEAD.pack(api.key, version)
            for api in APIS.values()
            for version in range(api.first, api.last + 1)
        }
        """The first bytes of frames whose messages are not imported yet."""
        self._loading: dict[bytes, dict[Callable[[], None], None]] = {}
        self._usual: deque[bytes] = deque()
        """Those of USUAL that are still to be imported."""

    def lacks(self, frame: memoryview) -> bool:
        """Whether the messages of this frame's request have to be imported first; not if none are spoken."""
        return bool(self._missing) and frame[: _HEAD.size].tobytes() in self._missing

    def load(self, frame: memoryview, then: Callable[[], None]) -> None:
        """Import what `frame` lacks and call `then` on the loop, once however often it is given."""
        head = frame[: _HEAD.size].tobytes()
        waiting = self._loading.get(head)
        if waiting is None:
            self._loading[head] = waiting = {}
            job = self._loop.run_in_executor(self._executor, _import, *_HEAD.unpack(head))
            job.add_done_callback(lambda done: self._loaded(head, done))
        waiting[then] = None

    def load_usual(self) -> None:
        """Import USUAL soon, one after the other; a client that asks meanwhile waits for one at most."""
        self._usual.extend(_HEAD.pack(key, version) for key, version in USUAL)
        self._loop.call_later(USUAL_SECONDS, self._load_next)

    def _load_next(self) -> None:
        while self._usual:
            head = self._usual.popleft()
            if head in self._missing:
                self.load(memoryview(head), self._pause)
                return

    def _pause(self) -> None:
        self._loop.call_later(PAUSE_SECONDS, self._load_next)

    def close(self) -> None:
        """Start no import any more."""
        self._usual.clear()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _loaded(self, head: bytes, done: asyncio.Future[None]) -> None:
        waiting = self._loading.pop(head)
        if done.cancelled():
            return
        if error := done.exception():
            # The request is decoded all the same, and its connection ends with the error.
            log.error("a message of Kafka's protocol cannot be imported: %r: install kio again", error)
        self._missing.discard(head)
        for then in waiting:
            then()


def _import(api_key: int, version: int) -> None:
    prepare(api_key, version)
    prepare_responses(api_key, version)
