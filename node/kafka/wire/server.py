"""The listening side: every connection of a node's Kafka listeners, and the bounds they share.

node/kafka/wire/connection.py has one connection. This module has the bound on their number, the bound on the
bytes of requests that they hold together, and the one timer that ends connections which are idle, slow to
send or slow to read; so a thousand idle connections cost a thousand small objects and nothing else.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from strandline.node.kafka.wire.apis import FEATURES, Feature
from strandline.node.kafka.wire.connection import Connection
from strandline.node.kafka.wire.connection_quotas import ConnectionQuotas, TurnedAway
from strandline.node.kafka.wire.handler import Handler
from strandline.node.kafka.wire.message_loader import MessageLoader
from strandline.node.kafka.wire.principal import WHOLE_NAMES, PrincipalRules
from strandline.node.kafka.wire.sasl_connection import SaslConnection
from strandline.node.kafka.wire.server_config import CloseReason, ConnectionProblem, ServerConfig
from strandline.node.kafka.wire.session import SaslSession, Session
from strandline.node.kafka.wire.tls_connection import TlsConnection
from strandline.node.kafka.wire.tls_gate import TlsGate
from strandline.node.oauth.errors import KeySetError
from strandline.node.tls.keeper import TlsFilesError, TlsKeeper, TlsSettings
from strandline.node.tls.listener import TlsListener, not_listening
from strandline.statemachine.controller.controller_state import DEFAULT_LISTENER
from strandline.statemachine.controller.quota_set import QuotaSet

if TYPE_CHECKING:
    from strandline.node.oauth.bearer_tokens import BearerTokens

_SCRATCH_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """The address that one listener takes."""

    host: str
    port: int
    name: str = DEFAULT_LISTENER
    tls: TlsSettings | None = None
    rules: PrincipalRules = WHOLE_NAMES
    """Of the names that certificates give to clients."""
    mechanisms: tuple[str, ...] = ()
    """SASL mechanisms; none where clients do not log in."""
    max_reauth_seconds: float = 0.0
    """The longest that a login counts, until another on the same connection; 0: as long as that lasts."""
    tokens: BearerTokens | None = None
    """Those of logins by OAUTHBEARER."""
    section: str = "kafka"
    """Its section of the configuration, for messages."""
    max_connections: int = 0
    """Of this listener; 0 for those of the node alone."""
    max_connection_creation_rate: float = 0.0
    """Likewise, connections a second."""


class KafkaListenError(Exception):
    """The Kafka port cannot be had; `str()` is one line with the cause and the cure."""


class KafkaServer:
    """Accepts connections and hands their requests to `handler`, all of it on `loop`."""

    def __init__(
        self,
        handler: Handler,
        *,
        loop: asyncio.AbstractEventLoop,
        config: ServerConfig,
        on_problem: Callable[[ConnectionProblem], None],
        features: Callable[[], tuple[int, tuple[Feature, ...]]] = lambda: (0, FEATURES),
        quotas: Callable[[], QuotaSet] = QuotaSet,
        on_lost: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`on_lost` is called with the number of each connection that is gone."""
        self.features = features
        self.handler = handler
        self.loop = loop
        self.config = config
        self.messages = MessageLoader(loop)
        self.quotas = ConnectionQuotas(config, quotas, loop=loop)
        self.counters: Counter[str] = Counter()
        """`connections`, `requests`, `logins`, `closed_<reason>` by CloseReason: totals since the start."""
        self.request_bytes = 0
        """Bytes of frames that were admitted and not yet answered, of all connections."""
        # Received bytes are parsed before any other connection is read, so one buffer serves all.
        self.scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._on_problem = on_problem
        self._on_lost = on_lost
        self._connections: dict[Connection, None] = {}
        self._starved: dict[Connection, None] = {}
        self._waking = self._released = False
        self.handshakes: Counter[str] = Counter()
        """TLS handshakes that are `done` and `failed`; totals since the start."""
        self.logging_in = 0
        """Connections that have to log in and have not."""
        self.logging_in_of: Counter[str] = Counter()
        self._listening: dict[str, asyncio.AbstractServer | TlsListener] = {}
        self._keepers: dict[str, TlsKeeper] = {}
        self._gates: list[TlsGate] = []
        self._tokens: dict[str, BearerTokens] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._empty: asyncio.Future[None] | None = None

    @property
    def ports(self) -> dict[str, int]:
        """The port of each listener, once started, in the order in which they were given."""
        return {name: _port_of(listening) for name, listening in self._listening.items()}

    @property
    def port(self) -> int:
        """The first listener's port."""
        return next(iter(self.ports.values()))

    @property
    def certificates(self) -> dict[str, float]:
        """Unix time at which the certificate of each TLS listener ends."""
        found = ((name, keeper.not_after) for name, keeper in self._keepers.items())
        return {name: end for name, end in found if end is not None}

    @property
    def key_reads(self) -> dict[str, Mapping[str, int]]:
        """The numbers of reads of the tokens' keys, `ok` and `failed`, of each listener that takes tokens."""
        return {name: tokens.key_reads for name, tokens in self._tokens.items()}

    @property
    def handshakes_under_way(self) -> int:
        """TLS handshakes that have begun and not ended."""
        return sum(one.under_way for one in self._listening.values() if isinstance(one, TlsListener))

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._connections)

    async def start(self, listeners: Sequence[ListenAddress], *, accept: bool = True) -> None:
        """Listen; port 0 takes a free one. Raises KafkaListenError when an address cannot be had.

        Without `accept` the addresses are taken and clients are refused until `accept` is called.
        """
        for address in listeners:
            try:
                self._listening[address.name] = await self._bound(address)
            except (TlsFilesError, KeySetError) as error:
                raise KafkaListenError(f"{address.section}: {error}") from error
            except OSError as error:
                raise KafkaListenError(
                    not_listening(address.section, address.host, address.port, error)
                ) from error
        self._sweep = self.loop.call_later(self.config.sweep_seconds, self._swept)
        if accept:
            await self.accept()

    async def accept(self) -> None:
        """Let clients connect, if `start` did not."""
        for listening in self._listening.values():
            if isinstance(listening, TlsListener):
                listening.accept()
            else:
                await listening.start_serving()

    async def _bound(self, address: ListenAddress) -> asyncio.AbstractServer | TlsListener:
        """Take an address, without letting clients in."""
        name = address.name
        self.quotas.serve(name, address.max_connections, address.max_connection_creation_rate)
        if address.tokens is not None:
            self._tokens[name] = address.tokens
            await self.loop.run_in_executor(None, address.tokens.open)
        if address.tls is None:
            return await self.loop.create_server(
                lambda: self._connection(address), address.host, address.port, start_serving=False
            )
        keeper = self._keepers[name] = TlsKeeper(address.tls, f"listener {name}", loop=self.loop)
        keeper.open()
        gate = TlsGate(self, name, lambda: self._connection(address))
        self._gates.append(gate)
        listener = TlsListener(
            self,
            keeper,
            gate,
            loop=self.loop,
            places=self.config.max_handshakes,
            handshake_seconds=self.config.handshake_seconds,
            shutdown_seconds=self.config.tls_shutdown_seconds,
        )
        await listener.bind(address.host, address.port)
        return listener

    def _connection(self, address: ListenAddress) -> Connection:
        if address.mechanisms:
            session = SaslSession(
                address.name,
                mechanisms=address.mechanisms,
                max_seconds=address.max_reauth_seconds,
                tokens=address.tokens,
            )
            return SaslConnection(self, session)
        if address.tls is not None:
            return TlsConnection(self, address.name, address.rules)
        return Connection(self, Session(address.name))

    async def stop(self, grace_seconds: float) -> None:
        """Accept and read nothing more, give open requests `grace_seconds`, then end every connection."""
        for listening in self._listening.values():
            listening.close()
        for keeper in self._keepers.values():
            keeper.close()
        self.quotas.close()
        for gate in self._gates:
            gate.close()
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in list(self._connections):
            connection.drain()
        if self._connections:
            self._empty = self.loop.create_future()
            deadline = self.loop.call_later(grace_seconds, self._grace_over)
            await self._empty
            deadline.cancel()
        self.messages.close()

    def _grace_over(self) -> None:
        for connection in list(self._connections):
            connection.close(CloseReason.STOPPED, "the node stops")

    def opened(self, connection: Connection, client: str) -> None:
        """A connection is there; one without TLS learns now whether it has to wait, or to go."""
        self._connections[connection] = None
        self.counters["connections"] += 1
        if connection.place is not None:
            return
        entered = self.quotas.enter(connection.session.listener, client, connection.let_in)
        if isinstance(entered, TurnedAway):
            connection.hold()
            seconds, reason, message = entered
            self.loop.call_later(seconds, connection.close, reason, message)
            return
        connection.place = entered
        if not entered.inside:
            connection.hold()

    def lost(self, connection: Connection) -> None:
        """The connection is gone; once for each that was opened."""
        self._connections.pop(connection, None)
        if connection.place is not None:
            connection.place.leave()
        self._starved.pop(connection, None)
        self._on_lost(connection.number)
        if not self._connections and self._empty is not None and not self._empty.done():
            self._empty.set_result(None)

    def admit(self, connection: Connection, size: int) -> bool:
        """Reserve `size` bytes for a frame; when it says no, the connection is woken up later.

        A frame larger than the whole budget is let in when nothing else is held, or it never would be. A
        newcomer waits behind those that wait already.
        """
        fits = self.request_bytes + size <= self.config.max_request_bytes or not self.request_bytes
        queued = self._starved and next(iter(self._starved)) is not connection
        if not fits or queued:
            self._starved.setdefault(connection)
            return False
        self._starved.pop(connection, None)
        self.request_bytes += size
        return True

    def withdraw(self, connection: Connection) -> None:
        """The connection does not wait for bytes any more, and holds up none of those behind it."""
        if self._starved.pop(connection, self) is None:
            self.release(0)

    def release(self, size: int) -> None:
        """Give back bytes that `admit` reserved; wake waiting connections, in order, while there is room."""
        self.request_bytes -= size
        self._released = True
        if self._waking:
            return
        self._waking = True
        while self._starved and self._released:
            self._released = False
            first = next(iter(self._starved))
            first.take()
            self._released |= next(iter(self._starved), None) is not first
        self._waking = False

    def handshake_ended(self, client: str, failure: str | None) -> None:
        """Count a TLS handshake, and report one that failed."""
        self.handshakes["done" if failure is None else "failed"] += 1
        if failure is not None:
            self.closed(CloseReason.HANDSHAKE, client, failure)

    def closed(self, reason: CloseReason, client: str, message: str) -> None:
        """Count a connection that was ended from this side, and report it."""
        self.counters[f"closed_{reason}"] += 1
        self._on_problem(ConnectionProblem(reason, client, message))

    def _swept(self) -> None:
        now = self.loop.time()
        for connection in list(self._connections):
            connection.check(now)
        self._sweep = self.loop.call_later(self.config.sweep_seconds, self._swept)


def _port_of(listening: asyncio.AbstractServer | TlsListener) -> int:
    if isinstance(listening, TlsListener):
        return listening.port
    sockets: Any = getattr(listening, "sockets", ())
    return int(sockets[0].getsockname()[1])
