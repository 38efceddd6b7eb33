"""The way by which a client came, and its name: what holds for a connection and not for one request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from strandline.statemachine.controller.controller_state import DEFAULT_LISTENER

if TYPE_CHECKING:
    from strandline.node.oauth.bearer_tokens import BearerTokens

ANONYMOUS: Final = "User:ANONYMOUS"
"""Kafka's name for a client that has proved none."""
VIEWS: Final = "Internal:views"
"""The processes of views, both as a user that logs in and as a principal; no client can have it."""


@dataclass(slots=True, eq=False)
class Session:
    """One connection's listener and principal."""

    listener: str
    """The client is told the addresses of this listener."""
    principal: str = ANONYMOUS
    """Kafka's KafkaPrincipal as text: `User:` and the name that TLS or SASL has proved, or VIEWS."""


@dataclass(slots=True, eq=False)
class SaslSession(Session):
    """The session of a client that has to log in; handlers move it on, and the connection looks at it."""

    mechanisms: tuple[str, ...] = ()
    """SASL mechanisms that the listener takes."""
    max_seconds: float = 0.0
    """The longest that one login counts; 0: for as long as the connection lasts."""
    tokens: BearerTokens | None = None
    """Those that the listener takes, where OAUTHBEARER is one of its mechanisms."""
    exchange: Any = None
    """State of the login under way between two requests; None before its first, and when it is over."""
    began: float = 0.0
    """Time of the loop at which that login began."""
    logged_in: bool = False
    logins: int = 0
    """Logins of this connection that succeeded; only the last one counts."""
    mechanism: str = ""
    """SASL mechanism of the login that counts."""
    expires: float | None = None
    """Time of the loop from which on that login does not count any more (KIP-368); None if there is none."""
    failure: str = ""
    """The cause, once a login has failed: the answer is sent, and the connection ends."""


UNNAMED: Final = Session(DEFAULT_LISTENER)
"""The session of all clients of a node that names no listeners: its listener proves no names."""
