"""The way of a connection's answers into its socket: bytes by the transport, ranges of files by sendfile.

An answer with a range of a file cannot go through the transport. From such an answer on, until all is sent,
answers are written to the socket from here, after the transport has sent what it had: so their order is kept.
A client that does not take them keeps files open, and no memory.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from strandline.node.kafka.wire.response_encoder import Buffer, Part
from strandline.node.objectstore.object_file import FileCut, FileRange

PIECE_BYTES: Final = 512 * 1024
"""Bytes of a file that are sent at once, after a look whether the system has them in memory."""
TURN_BYTES: Final = 4 * 1024 * 1024
"""Bytes of files after which other connections have their turn; some milliseconds."""


class AnswerSender:
    """Sends one connection's answers in the order in which they are given to it."""

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        limit: int,
        on_room: Callable[[], None],
        on_broken: Callable[[str], None],
    ) -> None:
        """`on_room` is called when a quarter of `limit` bytes is left after there was more than `limit`.

        `on_broken` is called, with the reason, when an answer that was begun cannot be sent to its end.
        """
        self._transport = transport
        self._loop = loop
        self._limit = limit
        self._on_room = on_room
        self._on_broken = on_broken
        transport.set_write_buffer_limits(high=limit)
        plain = transport.get_extra_info("sslcontext") is None
        self.takes_files = plain and hasattr(transport.get_extra_info("socket"), "dup")
        """Whether ranges of files may be sent here: what goes around a transport is not encrypted."""
        self._paused = False
        """Whether the transport has more than the limit, or more than nothing while this waits for it."""
        self._parts: deque[Part] = deque()
        self._left = 0
        """Bytes of `_parts`, of which the first is counted from `_at`."""
        self._at = 0
        self._held = False
        """Whether there was more than the limit in `_parts`, and `on_room` was not called since."""
        self._waits_for_transport = False
        self._loading: asyncio.Task[None] | None = None
        self._socket: socket.socket | None = None
        """A second descriptor of the transport's socket, as a loop watches none that is a transport's."""
        self._watching = False
        self._ending = self._ended = False

    @property
    def full(self) -> bool:
        """Whether so much is unsent that the next request has to wait."""
        return self._held or self._paused

    @property
    def unsent(self) -> int:
        """Bytes that the socket has not taken."""
        return self._left + self._transport.get_write_buffer_size()

    def send(self, parts: Sequence[Part]) -> None:
        """Send parts, none of which changes any more, behind those given before."""
        if self._transport.is_closing():
            return
        in_memory = [part for part in parts if not isinstance(part, FileRange)]
        if not self._parts and len(in_memory) == len(parts):
            self._transport.writelines(in_memory)
            return
        if not self.takes_files:
            self._broken("an answer has ranges of files, and this connection takes none")
            return
        idle = not self._parts
        self._parts.extend(part for part in parts if len(part))
        self._left += sum(map(len, parts))
        if idle:
            self._begin()
        self._held = self._held or self._left > self._limit

    def finish(self) -> None:
        """Close the transport once all is sent."""
        self._ending = True
        if not self._parts:
            self._transport.close()

    def end(self) -> None:
        """Let go of files and the socket: the connection is gone."""
        self._ended = True
        self._unwatch()
        if self._loading is not None:
            self._loading.cancel()
        if self._socket is not None:
            # Without this the peer would not hear that the connection is closed.
            self._socket.close()
            self._socket = None
        self._parts.clear()
        self._left = 0

    # What the transport says, by its protocol.

    def pause(self) -> None:
        """The transport has more than it wants."""
        self._paused = True

    def resume(self) -> None:
        """The transport has sent what it had, or most of it."""
        self._paused = False
        if self._waits_for_transport:
            self._begin()

    # Sending beside the transport.

    def _begin(self) -> None:
        if self._transport.is_closing():
            return
        waits = self._transport.get_write_buffer_size() > 0
        if waits != self._waits_for_transport:
            self._waits_for_transport = waits
            self._transport.set_write_buffer_limits(high=0 if waits else self._limit)
        if not waits:
            if self._socket is None:
                self._socket = cast(Any, self._transport.get_extra_info("socket")).dup()
                self._socket.setblocking(False)
            self._advance()

    def _advance(self) -> None:
        room = TURN_BYTES
        try:
            while self._parts and room > 0 and self._loading is None:
                part = self._parts[0]
                sent = self._send_file(part) if isinstance(part, FileRange) else self._send_bytes(part)
                self._left -= sent
                room -= sent
                self._at += sent
                if self._at == len(part):
                    self._at = 0
                    self._parts.popleft()
        except BlockingIOError:
            pass
        except FileCut as error:
            self._broken(self._cut(error))
            return
        except OSError as error:
            self._broken(f"an answer could not be sent: {error.strerror or error}")
            return
        if self._parts and self._loading is None:
            self._watch()
        else:
            self._unwatch()
        if self._held and self._left <= self._limit // 4:
            self._held = False
            self._on_room()
        if not self._parts and self._ending:
            self._transport.close()

    def _send_bytes(self, part: Buffer) -> int:
        assert self._socket is not None
        more = socket.MSG_MORE if len(self._parts) > 1 else 0
        return self._socket.send(memoryview(part)[self._at :], more)

    def _send_file(self, part: FileRange) -> int:
        """Send a piece of a range; 0 if the system has to read it first, which a thread waits for."""
        assert self._socket is not None
        start, length = part.start + self._at, min(part.length - self._at, PIECE_BYTES)
        if not part.file.in_memory(start, length):
            self._loading = self._loop.create_task(self._load(part, start, length))
            return 0
        sent = os.sendfile(self._socket.fileno(), part.file.fileno(), start, length)
        if not sent:
            raise FileCut(start, length)
        return sent

    async def _load(self, part: FileRange, start: int, length: int) -> None:
        try:
            await part.file.load(start, length)
        except FileCut as error:
            self._loading = None
            self._broken(self._cut(error))
        except OSError as error:
            self._loading = None
            self._broken(f"object {part.file.key} cannot be read: {error.strerror or error}")
        else:
            self._loading = None
            if not self._ended:
                self._advance()

    def _cut(self, error: FileCut) -> str:
        part = self._parts[0]
        assert isinstance(part, FileRange)
        return f"object {part.file.key} was cut while it was being sent: {error}"

    def _broken(self, reason: str) -> None:
        if not self._ended:
            self.end()
            self._on_broken(reason)

    def _watch(self) -> None:
        if not self._watching and self._socket is not None:
            self._watching = True
            self._loop.add_writer(self._socket, self._advance)

    def _unwatch(self) -> None:
        if self._watching and self._socket is not None:
            self._watching = False
            self._loop.remove_writer(self._socket)
