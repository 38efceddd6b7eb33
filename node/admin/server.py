"""The HTTP server of a node, on the node's own event loop.

uvicorn's connections are used without its server: that would install signal handlers, tick ten times a second
and look for the port itself, after everything else has started.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from uvicorn.config import Config
from uvicorn.server import ServerState

from strandline.node.admin.api import SECONDS, AdminApi
from strandline.node.admin.health import reaches_controller
from strandline.node.admin.http import (
    IDLE_SECONDS,
    MAX_CONNECTIONS,
    MAX_HEAD_BYTES,
    Guard,
    HttpConnection,
)
from strandline.node.admin.logins import Logins
from strandline.node.admin.loop_lag import LoopLag
from strandline.node.admin.metrics import Metrics
from strandline.node.admin.origins import Origins
from strandline.node.admin.source import AdminSource
from strandline.node.config.first_user import FirstUser
from strandline.node.oauth.errors import KeySetError
from strandline.node.runtime.line_bound import LineBound
from strandline.node.tls.keeper import TlsFilesError, TlsKeeper, TlsSettings
from strandline.node.tls.listener import OpenGate, TlsListener, not_listening

if TYPE_CHECKING:
    from strandline.node.oauth.bearer_tokens import BearerTokens

log = logging.getLogger(__name__)

_BACKLOG: Final = 64
HANDSHAKE_SECONDS: Final = 10.0
SHUTDOWN_SECONDS: Final = 1.0
"""Of TLS: an honest client takes milliseconds for both."""


class AdminListenError(Exception):
    """The admin port cannot be had; one line with cause and cure."""


class AdminServer:
    """Serves one node's HTTP API, from `start` to `stop`; `bind` first to know the port before.

    Requests that come between `bind` and `start` wait. `names` are those under which it may be asked, beside
    `host` and all addresses. With the cluster's `secret` each request needs a login, of `first_user` while
    the node knows no users, and with `tokens` one of these will do. `lag` measures the loop while it serves.
    """

    lag: LoopLag

    def __init__(
        self,
        broker: AdminSource,
        host: str,
        port: int,
        names: Iterable[str] = (),
        *,
        tls: TlsSettings | None = None,
        secret: bytes | None = None,
        first_user: FirstUser | None = None,
        tokens: BearerTokens | None = None,
    ) -> None:
        self.port = port
        """The port it listens on; after `bind` never 0."""
        self._broker = broker
        self._host = host
        self._origins = Origins((host, *names))
        self._socket: socket.socket | None = None
        self._tls = tls
        self._secret = secret
        self._first_user = first_user
        self._tokens = tokens
        self._keeper: TlsKeeper | None = None
        self._listener: asyncio.Server | TlsListener | None = None
        self._state = ServerState()
        self._lines = LineBound(time.monotonic())

    def bind(self) -> socket.socket:
        """Take the port; 0 takes a free one. Raises AdminListenError."""
        if self._socket is not None:
            return self._socket
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        try:
            self._socket = socket.create_server((self._host, self.port), family=family, backlog=_BACKLOG)
        except OSError as error:
            raise AdminListenError(not_listening("admin", self._host, self.port, error)) from error
        self.port = self._socket.getsockname()[1]
        return self._socket

    async def start(self) -> None:
        """Answer requests. Raises AdminListenError when `bind` was left to it and fails."""
        listening = self.bind()
        loop = asyncio.get_running_loop()
        self.lag = LoopLag(self._broker.host.ticker, time.perf_counter)
        answered: Counter[int] = Counter()
        if self._tls is not None:
            self._keeper = TlsKeeper(self._tls, "the HTTP port", loop=loop)
            try:
                self._keeper.open()
            except TlsFilesError as error:
                raise AdminListenError(f"admin: {error}") from error
        if self._tokens is not None:
            try:
                await loop.run_in_executor(None, self._tokens.open)
            except KeySetError as error:
                raise AdminListenError(f"admin.oauth_keys: {error}") from error
        metrics = Metrics(self._broker, self.lag, answered, self._keeper, self._tokens)
        api = AdminApi(self._broker, metrics)
        logins = None
        if self._secret is not None:
            controller, broker = self._broker.controller, self._broker
            logins = Logins(
                lambda: controller.machine.credentials, lambda: broker.authorizer, self._secret,
                loop=loop, first_user=self._first_user, tokens=self._tokens,
                knows_acls=lambda: controller.machine.applied_index > 0, actions=broker.actions,
                reaches_controller=lambda: reaches_controller(broker),
            )  # fmt: skip
        guard = Guard(api.app(), SECONDS, answered, self._origins, logins, self._broker.actions)
        config = Config(
            guard,
            http=HttpConnection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=int(IDLE_SECONDS),
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        )
        # It logs each malformed request, and what Guard has logged or answered already.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        config.load()

        def connection() -> HttpConnection:
            return HttpConnection(config, self._state, {}, loop)

        if self._keeper is None:
            self._listener = await loop.create_server(connection, sock=listening)
        else:
            self._listener = TlsListener(
                self,
                self._keeper,
                OpenGate(connection),
                loop=loop,
                places=MAX_CONNECTIONS,
                handshake_seconds=HANDSHAKE_SECONDS,
                shutdown_seconds=SHUTDOWN_SECONDS,
                waits=False,
            )
            self._listener.adopt(listening)
            self._listener.accept()
        self.lag.start()

    def handshake_ended(self, client: str, failure: str | None) -> None:
        """Report a TLS handshake that failed."""
        if failure is None:
            return
        left_out = self._lines.take(time.monotonic())
        if left_out is not None:
            lost = f" ({left_out} such lines were left out)" if left_out else ""
            log.info("%s: %s%s", client, failure, lost)

    async def stop(self, grace_seconds: float = 2.0) -> None:
        """Accept nothing more, give answers under way `grace_seconds`, then end every connection."""
        if self._listener is None:
            if self._socket is not None:
                self._socket.close()
            return
        self.lag.stop()
        self._listener.close()
        if self._keeper is not None:
            self._keeper.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(list(self._state.tasks), timeout=grace_seconds)
        under_way = list(self._state.tasks)
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        for connection in list(self._state.connections):
            transport = getattr(connection, "transport", None)
            if transport is not None:
                transport.abort()
