"""Turns of logins that are compared: address by address, so that guesses from some keep no other out.

So a login waits for one of each other address, not for all that some of them have sent. By HTTP a guess costs
its address a place too, until it is answered, the delay of a failed login included: so the guesses of an
address are bounded in number and in rate. On Kafka's ports the connections without a login are bounded.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

from strandline.node.kafka.wire.hosts import host_of

MAX_CHECKS: Final = 2
"""Comparisons at a time, each some milliseconds of a processor: strangers may ask for any number."""
MAX_OF_ADDRESS: Final = 8
"""Logins of one address that are compared, wait for it, or have failed and are not answered yet. The number
of addresses is bounded by that of the connections."""


class NoPlace(Exception):
    """An address has all its places taken."""


class LoginTurns:
    """One per server; everything belongs on one event loop."""

    def __init__(self) -> None:
        self._places = Counter[str]()
        self._free = MAX_CHECKS
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """By address; the first one has the next turn."""

    @contextmanager
    def place(self, address: str) -> Iterator[str]:
        """For a login from its coming to its answer; gives the host that counts. Raises NoPlace."""
        key = host_of(address)
        if self._places[key] >= MAX_OF_ADDRESS:
            raise NoPlace(f"{MAX_OF_ADDRESS} logins from this address are under way: try again later")
        self._places[key] += 1
        try:
            yield key
        finally:
            self._places[key] -= 1
            if not self._places[key]:
                del self._places[key]

    @asynccontextmanager
    async def turn(self, address: str) -> AsyncIterator[None]:
        """For the comparison of a login from an address."""
        if self._free:
            self._free -= 1
        else:
            waits: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(host_of(address), deque()).append(waits)
            try:
                await waits
            except asyncio.CancelledError:
                if not waits.cancelled():
                    self._pass_on()
                raise
        try:
            yield
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        """The turn goes to the address that has waited for longest since its last one."""
        while self._waiting:
            key, queue = self._waiting.popitem(last=False)
            waits = queue.popleft()
            if queue:
                self._waiting[key] = queue
            if not waits.done():  # a client that is gone has cancelled it
                waits.set_result(None)
                return
        self._free += 1
