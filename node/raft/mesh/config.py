"""Every time, size and count that bounds the mesh, in one place, checked together."""

from __future__ import annotations

from dataclasses import dataclass, fields

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class MeshConfig:
    """Limits of one node's mesh. Times are seconds, sizes bytes.

    Raises ValueError on construction when a value is not positive or the values contradict each other.
    """

    max_frame_bytes: int = 8 * MIB
    """Largest frame taken from a peer; told to it in the hello, so that it never sends a larger one."""

    max_backlog_bytes: int = 32 * MIB
    """Bytes waiting for the socket of one peer; a frame that would exceed it is not sent."""

    handshake_seconds: float = 5.0
    """From the open socket to the proof of both sides."""

    max_strangers: int = 64
    """Incoming connections without a proof at a time; one more costs the oldest of them its place."""

    connect_seconds: float = 3.0
    backoff_min_seconds: float = 0.05
    backoff_max_seconds: float = 1.0
    """Pause between two dials of a peer: doubled from min to max, jittered down to half."""

    ping_seconds: float = 1.0
    """A peer from which nothing came for this long is pinged, and again each time it passes."""

    max_unanswered_pings: int = 5
    """Unanswered pings after which a peer counts as gone: the connection is closed and dialled again."""

    alone_seconds: float = 3.0
    """Without a single peer for this long, a node says that it is alone and what may be the cause."""

    duplicate_probe_seconds: float = 1.0
    """Time for a live connection to answer when another process claims the same node id."""

    linger_seconds: float = 1.0
    """Time to send bytes that were written already when a connection is closed."""

    problem_interval_seconds: float = 60.0
    """The same problem is reported at most once in this time, and counted always."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) <= 0:
                raise ValueError(f"{field.name} must be above 0, not {getattr(self, field.name)}")
        if not self.max_frame_bytes <= 2**32 - 1:
            raise ValueError("max_frame_bytes does not fit the u32 length of a frame")
        if self.max_backlog_bytes < self.max_frame_bytes + 4:
            raise ValueError("max_backlog_bytes must have room for one frame of max_frame_bytes")
        if self.duplicate_probe_seconds >= self.handshake_seconds:
            raise ValueError("duplicate_probe_seconds must be below handshake_seconds, which it is part of")
        if self.backoff_min_seconds > self.backoff_max_seconds:
            raise ValueError("backoff_min_seconds must not be above backoff_max_seconds")
