"""A connection through TLS whose client has no login: its certificate gives it a name, where it shows one."""

from __future__ import annotations

import asyncio
from typing import Any

from strandline.node.kafka.wire.connection import Connection
from strandline.node.kafka.wire.listener import Listener
from strandline.node.kafka.wire.principal import NoName, PrincipalRules
from strandline.node.kafka.wire.server_config import CloseReason
from strandline.node.kafka.wire.session import Session


class TlsConnection(Connection):
    """As a Connection; one whose client's name no rule gives ends."""

    def __init__(self, server: Listener, listener: str, rules: PrincipalRules) -> None:
        super().__init__(server, Session(listener))
        self._rules = rules

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        certificate: dict[str, Any] | None = transport.get_extra_info("peercert")
        if certificate:
            try:
                self.session.principal = self._rules.principal(certificate)
            except NoName as error:
                self.close(CloseReason.HANDSHAKE, f"listener {self.session.listener}: {error}")
