"""A request's place in the order of a connection's answers."""

from __future__ import annotations

import asyncio

from strandline.node.kafka.wire.apis import Api
from strandline.node.kafka.wire.codec import RequestHeader
from strandline.node.kafka.wire.response_encoder import Part
from strandline.node.kafka.wire.server_config import CloseReason


class RequestSlot:
    """One request from its frame to its answer; `size` bytes of the server's budget are held for it."""

    __slots__ = ("answer", "api", "end", "frame", "header", "size", "task")

    def __init__(self, frame: memoryview, api: Api | None) -> None:
        self.frame = frame
        self.size = len(frame)
        self.api = api
        self.header: RequestHeader | None = None
        self.task: asyncio.Task[None] | None = None
        self.answer: list[Part] | None = None
        """The encoded answer, which waits for those of earlier requests."""
        self.end: tuple[CloseReason, str] | None = None
        """In place of an answer: the connection is closed in this request's turn."""

    @property
    def overlaps(self) -> bool:
        """Whether the request is handled at the same time as others of its kind."""
        return self.api is not None and self.api.overlaps
