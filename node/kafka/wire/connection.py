"""One client's connection: frames in, answers out, in the order of the requests.

Kafka answers a connection's requests one after the other, and clients rely on it: a request sees what those
before it have done. Only consecutive produce requests are handled at the same time here, because a client
that keeps five of them in flight would otherwise wait five times for the store. Handlers are started in the
order of arrival, and run up to their first `await` in that order.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from functools import partial
from typing import Any, Final, cast

from strandline.node.kafka.wire.answer_sender import AnswerSender
from strandline.node.kafka.wire.apis import ApiKey, api_versions_response, unsupported_api_versions_response
from strandline.node.kafka.wire.codec import (
    UnsupportedRequest,
    api_of,
    decode_request,
    encode_parts,
    encode_response,
)
from strandline.node.kafka.wire.connection_quotas import Place
from strandline.node.kafka.wire.framing import NO_FRAME, FrameParser, FramingError
from strandline.node.kafka.wire.handler import CloseConnection, EncodedBody, Request, Throttled
from strandline.node.kafka.wire.listener import Listener
from strandline.node.kafka.wire.mute import Mute
from strandline.node.kafka.wire.request_check import MalformedFrame
from strandline.node.kafka.wire.request_slot import RequestSlot
from strandline.node.kafka.wire.response_encoder import EncodingError, Part
from strandline.node.kafka.wire.server_config import CloseReason
from strandline.node.kafka.wire.session import Session

_NOTHING: Final[list[Part]] = []


class Connection(asyncio.BufferedProtocol):
    """From accept to close."""

    def __init__(self, server: Listener, session: Session) -> None:
        self._server = server
        self.session = session
        """The way the client came by, and its name."""
        self._config = server.config
        self.place: Place | None = None
        self._held = False
        self._parser = FrameParser(server.config.max_frame_bytes)
        self._transport: asyncio.Transport | None = None
        self._client = "a client"
        self.number = 0
        self._slots: deque[RequestSlot] = deque()
        """Requests in the order of their answers: those that were started, then those that wait."""
        self._waiting: deque[RequestSlot] = deque()
        self._running = 0
        self._sender: AnswerSender
        self._mute = Mute(server.loop, self.take)
        self._reading = True
        self._no_more = False
        """Nothing more is taken up; the connection closes once its slots are answered."""
        self._ended = False
        """This side has decided to close, and said why."""
        self._taking = False
        self._moved = self._frame_since = self._unsent_moved = server.loop.time()
        self._unsent = 0

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        loop, broken = self._server.loop, partial(self.close, CloseReason.UNSENT)
        self._sender = AnswerSender(self._transport, loop, self._config.unsent_bytes, self.take, broken)
        sock = transport.get_extra_info("socket")
        peer = transport.get_extra_info("peername")
        if sock is not None and isinstance(peer, tuple):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._client = str(peer[0])
        self.number = self._server.counters["connections"] + 1
        self._server.opened(self, self._client)

    def get_buffer(self, sizehint: int) -> memoryview:
        space = self._parser.space()
        return self._server.scratch if space is None else space

    def buffer_updated(self, nbytes: int) -> None:
        if self._no_more:
            # Read and dropped: closing with unread data sends a reset, which can destroy responses in flight.
            return
        self._moved = self._server.loop.time()
        if not self._parser.waits_for_bytes:
            self._frame_since = self._moved
        if self._parser.space() is not None:
            self._parser.filled(nbytes)
            self.take()
        else:
            self._parser.feed(self._server.scratch[:nbytes])
            self.take()
            self._parser.keep()

    def eof_received(self) -> None:
        """A client that has ended its side is gone, as with Kafka: its long poll must not go on."""

    def pause_writing(self) -> None:
        self._sender.pause()

    def resume_writing(self) -> None:
        self._sender.resume()
        self.take()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is None:
            return
        self._transport = None
        self._mute.lift()
        self._sender.end()
        self._waiting.clear()
        for slot in self._slots:
            if slot.task is not None and slot.overlaps:
                continue  # what is in a log goes on, and is released when it ends
            if slot.task is not None:
                slot.task.cancel()
            self._release(slot)
        self._server.lost(self)
        self._server.release(self._parser.reserved)

    # What the server calls.

    def hold(self) -> None:
        """Take nothing until `let_in`; uvloop begins to read after `connection_made`."""
        self._held = True
        self._server.loop.call_soon(self._close_or_read)

    def let_in(self) -> None:
        """Its turn has come."""
        self._held = False
        self.take()

    def take(self) -> None:
        """Take complete frames and start the requests that may start, as far as the bounds allow."""
        if self._taking or self._transport is None:
            return
        self._taking = True
        self._advance()
        while self._take_frames():
            self._advance()
        self._taking = False
        self._close_or_read()

    def drain(self) -> None:
        """Take no more requests, answer those that were taken, then close."""
        self._no_more = True
        self._mute.lift()
        self.take()

    def check(self, now: float) -> None:
        """Close if the peer does nothing for too long; called every `sweep_seconds`."""
        if self._transport is None:
            return
        config, unsent = self._config, self._sender.unsent
        if not unsent or unsent < self._unsent:
            self._unsent_moved = now
        self._unsent = unsent
        idle = not (self._slots or unsent or (self._parser.wanted and not self._held))
        if now - self._unsent_moved > config.slow_reader_seconds:
            self.close(CloseReason.SLOW_READER, f"no answer taken for {config.slow_reader_seconds:g} s")
        elif (
            self._reading and self._parser.waits_for_bytes and now - self._frame_since > config.frame_seconds
        ):
            self.close(CloseReason.SLOW_SENDER, f"a frame not complete after {config.frame_seconds:g} s")
        elif idle and now - self._moved > config.idle_seconds:
            missed = "no turn among max_connections" if self._held else "no request"
            self.close(CloseReason.IDLE, f"{missed} for {config.idle_seconds:g} s")

    def close(self, reason: CloseReason, message: str) -> None:
        """End the connection from this side, at once, and say why."""
        transport = self._transport
        if transport is None:
            return
        self._say(reason, message)
        transport.abort()
        # Nothing more is taken or started, even before the transport reports the loss.
        self.connection_lost(None)

    # Requests.

    def _take_frames(self) -> bool:
        taken = False
        while len(self._slots) < self._config.max_in_flight and not self._no_more:
            try:
                frame = self._parser.next_frame(self._admit)
            except FramingError as error:
                last = RequestSlot(NO_FRAME, None)
                self._slots.append(last)
                self._end_at(last, CloseReason.OVERSIZED, str(error))
                break
            if frame is None:
                break
            taken = True
            self._frame_since = self._moved
            slot = RequestSlot(frame, api_of(frame))
            self._slots.append(slot)
            self._waiting.append(slot)
        return taken

    def _admit(self, size: int) -> bool:
        return not (self._held or self._mute.on) and self._server.admit(self, size)

    def _advance(self) -> None:
        """Start the first waiting request, and those that overlap with requests of their kind in progress."""
        while self._waiting and self._transport is not None and not self._sender.full:
            slot = self._waiting[0]
            # What was started and is not answered is all of one kind, so its first tells what may join.
            if self._running and not (slot.overlaps and slot.api is self._slots[0].api):
                return
            # What holds memory goes on: its frame was admitted before the mute began.
            if self._mute.on and not slot.overlaps:
                return
            if self._lacks_messages(slot):
                self._server.messages.load(slot.frame, self.take)
                return
            self._waiting.popleft()
            self._start(slot)

    def _lacks_messages(self, slot: RequestSlot) -> bool:
        return self._server.messages.lacks(slot.frame)

    def _start(self, slot: RequestSlot) -> None:
        frame, slot.frame = slot.frame, NO_FRAME
        self._server.counters["requests"] += 1
        try:
            slot.header, payload = decode_request(frame, self._config.max_elements)
        except UnsupportedRequest as error:
            slot.header = error.header
            if error.header.api_key == ApiKey.API_VERSIONS:
                self._answer(slot, unsupported_api_versions_response())
            else:
                self._fail(slot, CloseReason.UNSUPPORTED, str(error))
        except MalformedFrame as error:
            self._fail(slot, CloseReason.MALFORMED, f"a malformed request: {error}")
        else:
            if slot.header.api_key == ApiKey.API_VERSIONS:
                epoch, features = self._server.features()
                self._answer(slot, api_versions_response(slot.header.api_version, features, epoch))
                return
            self._running += 1
            named = (self._client, slot.size, self.number, self.session)
            request = Request(slot.header, payload, *named, self._sender.takes_files)
            slot.task = self._server.loop.create_task(self._handle(slot, request))

    async def _handle(self, slot: RequestSlot, request: Request) -> None:
        try:
            answer = await self._server.handler.handle(request)
        except CloseConnection as error:
            self._done(slot)
            self._fail(slot, CloseReason.REFUSED, str(error))
        except asyncio.CancelledError:
            self._done(slot)
            self._fail(slot, CloseReason.HANDLER, "the handling of a request was cancelled")
            raise
        except Exception as error:
            self._done(slot)
            self._fail(slot, CloseReason.HANDLER, f"api key {request.header.api_key}: {error!r}")
        else:
            self._done(slot)
            if isinstance(answer, Throttled):
                self._mute.begin(answer.seconds)
                self._server.withdraw(self)
                answer = answer.answer
            self._answer(slot, answer)
        self.take()

    def _done(self, slot: RequestSlot) -> None:
        self._running -= 1
        slot.task = None

    # Answers.

    def _fail(self, slot: RequestSlot, reason: CloseReason, message: str) -> None:
        """Close in the turn of a request that was started: those that wait come after it."""
        self._waiting.clear()
        self._end_at(slot, reason, message)

    def _end_at(self, slot: RequestSlot, reason: CloseReason, message: str) -> None:
        """Answer the requests before this slot, then close."""
        slot.end = (reason, message)
        self._no_more = True
        self._flush(slot)

    def _answer(self, slot: RequestSlot, answer: Any) -> None:
        assert slot.header is not None
        try:
            if answer is None:
                slot.answer = _NOTHING
            elif isinstance(answer, EncodedBody):
                slot.answer = encode_parts(slot.header, answer.parts)
            else:
                slot.answer = encode_response(slot.header, answer)
        except EncodingError as error:
            self._fail(slot, CloseReason.HANDLER, str(error))
        else:
            self._flush(slot)

    def _flush(self, done: RequestSlot) -> None:
        """Send every answer whose turn has come."""
        if self._transport is None:
            self._release(done)
            return
        parts: list[Part] = []
        sent: list[RequestSlot] = []
        while self._slots and self._slots[0].answer is not None:
            slot = self._slots.popleft()
            assert slot.answer is not None
            parts += slot.answer
            sent.append(slot)
        if parts:
            self._sender.send(parts)
        if self._slots and self._slots[0].end is not None and not self._ended:
            self._say(*self._slots[0].end)
            self._sender.finish()
        for slot in sent:
            self._release(slot)

    def _release(self, slot: RequestSlot) -> None:
        size, slot.size = slot.size, 0
        if size:
            self._server.release(size)

    def _say(self, reason: CloseReason, message: str) -> None:
        if not self._ended:
            self._ended = True
            self._server.closed(reason, self._client, message)

    def _close_or_read(self) -> None:
        transport = self._transport
        if transport is None or self._ended:
            return
        if self._no_more and not self._slots:
            self._sender.finish()
            return
        full = self._parser.wanted > 0 or len(self._slots) >= self._config.max_in_flight
        blocked = self._held or (full and not self._no_more)
        if blocked and self._reading:
            self._reading = False
            transport.pause_reading()
        elif not blocked and not self._reading:
            self._reading = True
            self._frame_since = self._server.loop.time()
            transport.resume_reading()
