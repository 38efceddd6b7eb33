"""The interface between the wire and the broker: a decoded request goes in, an answer comes out."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from strandline.node.kafka.wire.codec import RequestHeader
from strandline.node.kafka.wire.response_encoder import Part
from strandline.node.kafka.wire.session import UNNAMED, Session


@dataclass(frozen=True, slots=True)
class Request:
    """A decoded request; `payload` is kio's entity for the header's key and version."""

    header: RequestHeader
    payload: Any
    client_host: str
    size: int
    """Bytes of the request's frame."""
    connection: int
    """Number of the client's connection, 1 or more; a server never uses it for another."""
    session: Session = UNNAMED
    """The same for all requests of the connection."""
    takes_files: bool = False
    """Whether the answer may have ranges of files in it: nothing encrypts what `sendfile` sends."""


@dataclass(frozen=True, slots=True)
class EncodedBody:
    """An answer's body, already encoded in the request's version; its header is added by the connection."""

    parts: list[Part]


@dataclass(frozen=True, slots=True)
class Throttled:
    """An answer after which the connection takes no request for a time."""

    answer: Any
    seconds: float


class CloseConnection(Exception):
    """Raised by a handler where Kafka answers by closing: an error on a produce request with acks=0."""


class Handler(Protocol):
    """Answers decoded requests."""

    def handle(self, request: Request) -> Coroutine[Any, Any, Any]:
        """A coroutine function: the response entity in the request's version, an EncodedBody, None, or one of
        these as Throttled.

        None sends nothing. ApiVersions never comes here. Buffers in the answer must not change until they
        are sent. Raising closes the connection, so errors that Kafka has a code for are answered. When its
        client is gone a request is cancelled, unless it is a produce request.
        """
