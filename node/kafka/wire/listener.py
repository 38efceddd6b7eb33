"""The server, as its connections see it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

from strandline.node.kafka.wire.apis import Feature
from strandline.node.kafka.wire.handler import Handler
from strandline.node.kafka.wire.message_loader import MessageLoader
from strandline.node.kafka.wire.server_config import CloseReason, ServerConfig


class Listener(Protocol):
    """Shared by all connections of a port; `strandline.node.kafka.wire.server.KafkaServer` implements it."""

    handler: Handler
    features: Callable[[], tuple[int, tuple[Feature, ...]]]
    """The features that ApiVersions tells, and their epoch, which only grows."""
    loop: asyncio.AbstractEventLoop
    config: ServerConfig
    messages: MessageLoader
    counters: Counter[str]
    scratch: memoryview
    """Buffer for received bytes that no frame has space for yet."""

    def opened(self, connection: Any, client: str) -> None:
        """A connection from this address is there; it may have to wait, or to go."""

    def lost(self, connection: Any) -> None:
        """The connection is gone; once for each that was opened."""

    def admit(self, connection: Any, size: int) -> bool:
        """Reserve `size` bytes for a frame; when it says no, the connection is woken up later."""

    def withdraw(self, connection: Any) -> None:
        """The connection does not wait for bytes any more, and holds up none of those behind it."""

    def release(self, size: int) -> None:
        """Give back what `admit` reserved."""

    def closed(self, reason: CloseReason, client: str, message: str) -> None:
        """Count a connection that was ended from this side, and report it."""
