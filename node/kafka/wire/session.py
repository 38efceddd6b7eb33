"""The way by which a client came, and its name: what holds for a connection and not for one request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from strandline.statemachine.controller.controller_state import DEFAULT_LISTENER

ANONYMOUS: Final = "User:ANONYMOUS"
"""Kafka's name for a client that has proved none."""


@dataclass(slots=True, eq=False)
class Session:
    """One connection's listener and principal."""

    listener: str
    """The client is told the addresses of this listener."""
    principal: str = ANONYMOUS
    """Kafka's KafkaPrincipal as text: `User:` and the name that TLS or SASL has proved."""


UNNAMED: Final = Session(DEFAULT_LISTENER)
"""The session of all clients of a node that names no listeners: its listener proves no names."""
