"""The connections that a node takes: their number and their rate, of all, of a listener and of a host.

Kafka's rules (KIP-402, KIP-612). Above the node's or a listener's number, or rate, a new connection waits for
its turn, and its listener accepts or reads no other one before. Above the rate of its IP address it is closed
after a while, and above an address's number at once: those cost a socket, and no handshake. An address is
looked at first, so a host that is turned away uses up nothing of what others have. What nodes say to each
other goes through the mesh and counts nowhere here; it is what Kafka protects as the inter-broker listener.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable
from typing import Final, NamedTuple

from strandline.node.kafka.wire.hosts import host_of
from strandline.node.kafka.wire.rate_window import RateWindow
from strandline.node.kafka.wire.server_config import CloseReason, ServerConfig
from strandline.statemachine.controller.quota_set import QuotaSet

log = logging.getLogger(__name__)

MAX_WAITING: Final = 500
"""Connections of a listener that wait for their turn; as many as may shake hands."""
MAX_WAITING_OF_HOST: Final = 250
"""As many of one host: half of all, so that one machine leaves room to the others."""
MAX_DELAYED: Final = 500
"""Connections that are kept open for a while before they are closed: above it they are closed at once."""
MAX_TRACKED: Final = 10_000
"""Addresses whose rate is remembered: those that connected least lately are forgotten, and begin again."""

TELL_SECONDS: Final = 60.0
"""Between two lines of the log that connections of a listener wait for others to end."""


class TurnedAway(NamedTuple):
    """A connection that is not taken: it is to be closed `seconds` later, for this reason."""

    seconds: float
    reason: CloseReason
    message: str


class Place:
    """A connection's place among those that the node takes, or its place in the queue for one."""

    __slots__ = ("_left", "_queue", "_quotas", "host", "inside", "on_turn", "ready_at")

    def __init__(self, quotas: ConnectionQuotas, queue: _Queue, host: str) -> None:
        self._quotas = quotas
        self._queue = queue
        self.host = host
        self._left = False
        self.on_turn: Callable[[], None] | None = None
        self.inside = False
        """Whether its turn has come."""
        self.ready_at: float | None = None
        """Time at which the rates let it in; None before it is the first of its queue."""

    def leave(self) -> None:
        """The connection is gone; further calls do nothing."""
        if not self._left:
            self._left = True
            self._quotas.left(self, self._queue)

    def let_in(self) -> None:
        """Its turn has come."""
        self.inside = True
        if self.on_turn is not None:
            self.on_turn()


class _Queue:
    """One listener's connections."""

    def __init__(self, name: str, config: ServerConfig, most: int, rate: float) -> None:
        self.name = name
        self.tell_at = 0.0
        self.most = most
        self.limit = rate
        self.window = RateWindow(config)
        self.open = 0
        self.waiting: deque[Place] = deque()
        self.waiting_of = Counter[str]()
        self.timer: asyncio.TimerHandle | None = None

    def waits_no_more(self, host: str) -> None:
        """One connection of this host is out of the queue."""
        self.waiting_of[host] -= 1
        if not self.waiting_of[host]:
            del self.waiting_of[host]


class ConnectionQuotas:
    """Of all listeners of a node; everything happens on `loop`."""

    def __init__(
        self, config: ServerConfig, quotas: Callable[[], QuotaSet], *, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._config = config
        self._quotas = quotas
        self._loop = loop
        self._queues: dict[str, _Queue] = {}
        self._window = RateWindow(config)
        self._hosts: Counter[str] = Counter()
        self._windows: dict[str, RateWindow] = {}
        """By address, those last that connected last."""
        self._open = self._delayed = 0
        self._waking = self._closed = False
        self.waited = 0
        """Connections that had to wait for their turn: total since the start."""

    @property
    def waiting(self) -> int:
        """Connections that wait for their turn."""
        return sum(len(queue.waiting) for queue in self._queues.values())

    def serve(self, listener: str, max_connections: int, rate: float) -> None:
        """Have a listener, with its own bounds; 0 for none."""
        self._queues[listener] = _Queue(listener, self._config, max_connections, rate)

    def most(self, listener: str) -> int:
        """Connections that a listener may have, by its own bound and the node's."""
        own = self._queues[listener].most
        return min(own, self._config.max_connections) if own else self._config.max_connections

    def enter(self, listener: str, client: str, on_turn: Callable[[], None]) -> Place | TurnedAway:
        """A place for a connection from this address; `on_turn` is called if its turn comes later."""
        host = host_of(client)
        if turned_away := self._above_rate(client, host) or self._above_number(client, host):
            return turned_away
        queue = self._queues[listener]
        if len(queue.waiting) >= MAX_WAITING:
            message = f"listener {listener}: {MAX_WAITING} other connections wait for their turn"
            return TurnedAway(0.0, CloseReason.FULL, message)
        if queue.waiting_of.get(host, 0) >= MAX_WAITING_OF_HOST:
            message = f"listener {listener}: {MAX_WAITING_OF_HOST} other connections of this host wait"
            return TurnedAway(0.0, CloseReason.FULL, message)
        place = Place(self, queue, host)
        self._hosts[host] += 1
        queue.waiting.append(place)
        queue.waiting_of[host] += 1
        self._advance(queue)
        if not place.inside:
            self.waited += 1
        place.on_turn = on_turn
        return place

    def left(self, place: Place, queue: _Queue) -> None:
        """Give a place back, and let in those that waited for it."""
        host = place.host
        self._hosts[host] -= 1
        if not self._hosts[host]:
            del self._hosts[host]
        if place.inside:
            self._open -= 1
            queue.open -= 1
        else:
            queue.waiting.remove(place)
            queue.waits_no_more(host)
        if self.waiting and not self._waking:
            self._waking = True
            self._loop.call_soon(self._wake)

    def close(self) -> None:
        """Let none in any more that waits."""
        self._closed = True
        for queue in self._queues.values():
            if queue.timer is not None:
                queue.timer.cancel()

    def _above_rate(self, client: str, host: str) -> TurnedAway | None:
        found = self._quotas().connection_rate(client)
        if found is None:
            return None
        entity, limit = found
        counted = entity.ip or host
        window = self._windows.pop(counted, None) or RateWindow(self._config)
        if len(self._windows) >= MAX_TRACKED:
            del self._windows[next(iter(self._windows))]
        self._windows[counted] = window
        now = self._loop.time()
        window.record(now, 1.0)
        seconds = min(window.excess(now, limit), self._config.window_seconds)
        if seconds <= 0:
            return None
        window.record(now, -1.0)  # it is not taken
        if self._delayed >= MAX_DELAYED:
            seconds = 0.0
        else:
            self._delayed += 1
            self._loop.call_later(seconds, self._delay_over)
        message = f"more than {limit:g} connections a second from {counted} (connection_creation_rate)"
        return TurnedAway(seconds, CloseReason.RATE, message)

    def _delay_over(self) -> None:
        self._delayed -= 1

    def _above_number(self, client: str, host: str) -> TurnedAway | None:
        config = self._config
        most = config.max_connections_per_ip_overrides.get(host, config.max_connections_per_ip)
        if not most or self._hosts[host] < most:
            return None
        message = f"there are {most} connections of this host already (quotas.max_connections_per_ip)"
        return TurnedAway(0.0, CloseReason.FULL, message)

    def _wake(self) -> None:
        self._waking = False
        moved = True
        while moved:  # one of each listener in turn
            moved = False
            for queue in self._queues.values():
                moved |= self._step(queue)

    def _advance(self, queue: _Queue) -> None:
        while self._step(queue):
            pass

    def _step(self, queue: _Queue) -> bool:
        """Let in the first that waits, if it may; whether it was let in."""
        if not queue.waiting or self._closed:
            return False
        place, now = queue.waiting[0], self._loop.time()
        if place.ready_at is None:
            place.ready_at = now + self._throttle(queue, now)
        if now < place.ready_at:
            if queue.timer is None:
                queue.timer = self._loop.call_at(place.ready_at, self._ready, queue)
            return False
        if self._open >= self._config.max_connections:
            self._tell(queue, "quotas.max_connections", self._config.max_connections)
            return False
        if queue.most and queue.open >= queue.most:
            self._tell(queue, "max_connections of this listener", queue.most)
            return False
        queue.waiting.popleft()
        queue.waits_no_more(place.host)
        self._open += 1
        queue.open += 1
        place.let_in()
        return True

    def _tell(self, queue: _Queue, bound: str, most: int) -> None:
        """Nothing else says why clients have no answer."""
        now = self._loop.time()
        if now >= queue.tell_at:
            queue.tell_at = now + TELL_SECONDS
            log.warning(
                "listener %s: new connections wait, as %d are open: end some, or raise %s",
                queue.name,
                most,
                bound,
            )

    def _ready(self, queue: _Queue) -> None:
        queue.timer = None
        self._advance(queue)

    def _throttle(self, queue: _Queue, now: float) -> float:
        """Seconds for which the rates have the next connection of a listener wait; it counts now."""
        seconds = 0.0
        for window, limit in (
            (self._window, self._config.max_connection_creation_rate),
            (queue.window, queue.limit),
        ):
            if limit:
                window.record(now, 1.0)
                seconds = max(seconds, window.excess(now, limit))
        return min(seconds, self._config.window_seconds)
