"""The bounds of the Kafka port, and the reasons for which it ends a connection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Bounds for one port. Sizes are bytes, times seconds."""

    max_connections: int = 10_000
    """A further one waits (`max.connections`, KIP-402)."""
    max_connections_per_ip: int = 0
    """Of one host; 0 for no bound (`max.connections.per.ip`)."""
    max_connections_per_ip_overrides: Mapping[str, int] = field(default_factory=dict)
    """By host, as `host_of` gives it."""
    max_connection_creation_rate: float = 0.0
    """Connections a second, above which a further one waits; 0 for no bound (KIP-612)."""
    windows: int = 11
    window_seconds: float = 1.0
    """Parts of the window over which that is counted (`quota.window.num`, `quota.window.size.seconds`)."""
    max_frame_bytes: int = 100 * 1024 * 1024
    """Kafka's `socket.request.max.bytes`."""
    max_request_bytes: int = 256 * 1024 * 1024
    """Frames of all connections together, received or answered at the moment (`queued.max.request.bytes`)."""
    max_elements: int = 200_000
    """Elements of all arrays of one request together."""
    max_in_flight: int = 64
    """Requests of one connection that are taken up and not yet answered."""
    unsent_bytes: int = 1024 * 1024
    """Answers the peer has not taken, above which its next request waits."""
    idle_seconds: float = 600.0
    """Kafka's `connections.max.idle.ms`."""
    frame_seconds: float = 30.0
    """A frame must be complete this long after it began: until then it holds its part of the budget."""
    slow_reader_seconds: float = 60.0
    """A peer with unsent answers must take some of them within this time."""
    max_handshakes: int = 500
    """TLS handshakes under way, of one listener: each is some 50 KiB, and takes a core a millisecond."""
    max_handshakes_of_host: int = 250
    """As many of one host: half of all, so that one machine leaves room to the others."""
    handshake_seconds: float = 10.0
    """A TLS handshake must be over this long after it began."""
    tls_shutdown_seconds: float = 5.0
    """Time that a client has to say that it has seen the end of the stream."""
    max_logging_in: int = 1_000
    """Connections that have to log in and have not."""
    max_logging_in_of_host: int = 500
    """As many of one host: half of all, so that one machine leaves room to the others."""
    max_login_bytes: int = 64 * 1024
    """Of a frame before the login: some hundred bytes in SCRAM and PLAIN."""
    login_seconds: float = 30.0
    """A login must be over this long after the connection began."""
    sweep_seconds: float = 5.0
    """Interval at which these times are checked: each is kept to within this."""


class CloseReason(StrEnum):
    """Reason why this side ended a connection; also the name of its counter."""

    OVERSIZED = "oversized_frame"
    MALFORMED = "malformed_frame"
    UNSUPPORTED = "unsupported_request"
    HANDLER = "handler_error"
    REFUSED = "refused_by_handler"
    FULL = "too_many_connections"
    RATE = "connection_rate"
    HANDSHAKE = "tls_handshake"
    LOGIN = "not_logged_in"
    SESSION = "session_expired"
    IDLE = "idle"
    SLOW_SENDER = "slow_sender"
    SLOW_READER = "slow_reader"
    UNSENT = "answer_not_sent"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class ConnectionProblem:
    """One connection that was ended, in one line."""

    reason: CloseReason
    client: str
    message: str

    def __str__(self) -> str:
        return f"closed the connection of {self.client}: {self.message}"
