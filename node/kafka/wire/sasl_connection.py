"""A connection whose client has to log in: until then it may cost little, and ask for nothing else."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, Final, Protocol

from strandline.node.kafka.wire.apis import ApiKey
from strandline.node.kafka.wire.connection import Connection
from strandline.node.kafka.wire.connection_quotas import ConnectionQuotas
from strandline.node.kafka.wire.framing import NO_FRAME
from strandline.node.kafka.wire.hosts import host_of
from strandline.node.kafka.wire.listener import Listener
from strandline.node.kafka.wire.request_slot import RequestSlot
from strandline.node.kafka.wire.server_config import CloseReason
from strandline.node.kafka.wire.session import SaslSession

BEFORE_LOGIN: Final = frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})


class SaslServer(Listener, Protocol):
    """The server, as connections use it whose clients have to log in."""

    quotas: ConnectionQuotas
    logging_in: int
    """Connections that have not logged in yet."""
    logging_in_of: Counter[str]
    """As many of each host."""


class SaslConnection(Connection):
    """As a Connection, once its client has logged in and until its login has expired (KIP-368)."""

    def __init__(self, server: SaslServer, session: SaslSession) -> None:
        self._sasl = session
        super().__init__(server, session)
        self._sasl_server = server
        self._parser.max_frame_bytes = server.config.max_login_bytes
        self._came_in = 0.0
        self._logging_in = False
        self._host = ""
        self._logins = 0
        """Logins that were counted."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._host = host_of(self._client)
        if not self._held:
            self._begin_login()

    def let_in(self) -> None:
        self._begin_login()
        super().let_in()

    def _begin_login(self) -> None:
        """Count it, and its time: one that waits for its turn is asked for no login."""
        server, config = self._sasl_server, self._config
        self._came_in = server.loop.time()
        server.logging_in += 1
        server.logging_in_of[self._host] += 1
        self._logging_in = True
        most = config.max_logging_in
        if server.logging_in > most:
            self.close(CloseReason.FULL, f"{most} other connections have not logged in yet")
        # No bound of all connections is one host's to use up without a login.
        most = min(config.max_logging_in_of_host, max(server.quotas.most(self.session.listener) // 2, 1))
        if server.logging_in_of[self._host] > most:
            self.close(CloseReason.FULL, f"{most} other connections of this host have not logged in yet")

    def connection_lost(self, exc: Exception | None) -> None:
        self._decided()
        super().connection_lost(exc)

    def check(self, now: float) -> None:
        seconds = self._config.login_seconds
        sasl = self._sasl
        began = self._came_in if self._logging_in else sasl.began
        if (self._logging_in or sasl.exchange is not None) and now - began > seconds:
            self.close(CloseReason.LOGIN, f"listener {sasl.listener}: no login within {seconds:g} s")
        super().check(now)

    def _refusal(self, slot: RequestSlot) -> tuple[CloseReason, str] | None:
        """Reason to end the connection for a request that its client may not make now."""
        sasl, key = self._sasl, None if slot.api is None else slot.api.key
        asked = "an unknown request" if key is None else key.name
        if not sasl.logged_in or sasl.exchange is not None:
            if key not in BEFORE_LOGIN:
                when = "during another login" if sasl.logged_in else "before its login"
                return CloseReason.LOGIN, f"listener {sasl.listener}: the client sent {asked} {when}"
        elif (
            sasl.expires is not None
            and self._sasl_server.loop.time() >= sasl.expires
            and key is not ApiKey.SASL_HANDSHAKE
        ):
            message = f"listener {sasl.listener}: {sasl.principal} sent {asked} after its login had expired"
            return CloseReason.SESSION, message
        return None

    def _lacks_messages(self, slot: RequestSlot) -> bool:
        # Those that are refused are not imported: a stranger would have the node import all.
        return self._refusal(slot) is None and super()._lacks_messages(slot)

    def _start(self, slot: RequestSlot) -> None:
        refused = self._refusal(slot)
        if refused is None:
            super()._start(slot)
        else:
            self._fail(slot, *refused)

    def _answer(self, slot: RequestSlot, answer: Any) -> None:
        super()._answer(slot, answer)
        if self._sasl.failure:
            self._waiting.clear()
            # Requests of a login are answered one by one: those behind this one were not begun.
            last = self._slots[0] if self._slots else RequestSlot(NO_FRAME, None)
            if not self._slots:
                self._slots.append(last)
            message = f"listener {self._sasl.listener}: {self._sasl.failure}"
            self._end_at(last, CloseReason.LOGIN, message)
        elif self._sasl.logins > self._logins:
            self._logins = self._sasl.logins
            self._parser.max_frame_bytes = self._config.max_frame_bytes
            self._server.counters["logins"] += 1
            self._decided()

    def _decided(self) -> None:
        if self._logging_in:
            self._logging_in = False
            server = self._sasl_server
            server.logging_in -= 1
            server.logging_in_of[self._host] -= 1
            if not server.logging_in_of[self._host]:
                del server.logging_in_of[self._host]
