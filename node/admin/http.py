"""The bounds around the HTTP API, which any process that reaches the port may try.

How many requests run at once, how long one may take, how large its body may be, how long a connection may do
nothing: everything has a limit, and every refusal has one form, `{"error": "why"}`.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, Final, cast

import h11
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.protocols.utils import get_remote_addr

from strandline.node.admin.logins import READING, Denied, Logins
from strandline.node.admin.origins import Origins
from strandline.node.kafka.handlers.action_log import HTTP, MAX_NAME, ActionLog, Actor
from strandline.node.kafka.wire.session import ANONYMOUS

log = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 64
MAX_OF_ADDRESS: Final = 32
"""Connections of one IP address: half of all, so that one machine leaves room to the others."""
MAX_REQUESTS: Final = 8
"""Concurrent requests. /health is not counted: its callers restart a node that does not answer."""
REQUEST_SECONDS: Final = 30.0
"""From a request's head to the end of its answer; a checkpoint takes the time it asks for in addition."""
BODY_SECONDS: Final = 10.0
MAX_BODY_BYTES: Final = 64 * 1024
MAX_HEAD_BYTES: Final = 16 * 1024
IDLE_SECONDS: Final = 30.0
"""Time limit of a connection that has not sent a complete request, or does not read its response."""
_BUSY: Final = object()
STRANGER: Final = "strandline.stranger"
"""In the scope of a request that is answered without the login that the others need."""


class Json(Response):
    """An answer in JSON that has been encoded already, or is to be."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return content if isinstance(content, bytes) else to_json(content)


def to_json(value: Any) -> bytes:
    """Compact; infinities and NaN, which JSON has not, are a ValueError."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def refusal(status: int, why: str) -> Json:
    """The one form of an error."""
    return Json({"error": why}, status)


class Guard:
    """Lets requests through to `app` within the bounds, and counts answers by status code in `answered`.

    `seconds` gives paths that may take longer than REQUEST_SECONDS how long they may.
    """

    def __init__(
        self,
        app: ASGIApp,
        seconds: Mapping[str, float],
        answered: Counter[int],
        origins: Origins,
        logins: Logins | None,
        actions: ActionLog,
    ) -> None:
        self.answered = answered
        self._app = app
        self._origins = origins
        self._logins = logins
        self._actions = actions
        self._seconds = seconds
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI; raises nothing."""
        status = 0
        """Of the answer, once it has begun."""
        body = bytearray()

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self.answered[status] += 1
            await send(message)

        async def kept() -> Message:
            message = await receive()
            if len(body) <= MAX_BODY_BYTES:
                body.extend(message.get("body", b""))
            return message

        refused = self._origins.refusal(scope["headers"])
        if refused is not None:
            await refusal(*refused)(scope, receive, counted)
            return
        principal, client = ANONYMOUS, (scope["client"] or ("",))[0]
        if self._logins is not None:
            admitted = await self._logins.admit(scope["method"], scope["headers"], client)
            if not isinstance(admitted, Denied):
                principal = admitted
            elif scope["path"] == "/health" and not _has_login(scope["headers"]):
                # Whatever restarts a node that does not answer need not be a user: it gets one word.
                scope[STRANGER] = True
            else:
                refused_answer = refusal(admitted.status, admitted.why)
                refused_answer.headers.update(admitted.headers)
                await refused_answer(scope, receive, counted)
                return
        if scope["path"] != "/health" and self._running >= MAX_REQUESTS:
            answer = refusal(503, f"{MAX_REQUESTS} requests are being answered: try again later")
            answer.headers["Retry-After"] = "1"
            await answer(scope, receive, counted)
            return
        self._running += 1
        try:
            seconds = self._seconds.get(scope["path"], REQUEST_SECONDS)
            async with asyncio.timeout(seconds):
                await self._app(scope, receive if scope["method"] in READING else kept, counted)
        except TimeoutError:
            # With the answer begun, the connection is closed: the client sees that it is cut off.
            if not status:
                await refusal(503, f"not answered within {seconds:g} s")(scope, receive, counted)
        except Exception:
            log.exception("HTTP %s %s failed", scope["method"], scope["path"])
        finally:
            self._running -= 1
            if scope["method"] not in READING:
                asked, by = f"{scope['method']} {scope['path']}", Actor(principal, client, HTTP)
                self._actions.asked(by, asked, _named(body), status or HTTPStatus.INTERNAL_SERVER_ERROR)


def _named(body: bytearray) -> list[str]:
    """The short values of a body, for the record of actions; a program of views is longer."""
    try:
        told = json.loads(body)
    except (ValueError, RecursionError):
        return []
    if not isinstance(told, dict):
        return []
    short = ((key, value) for key, value in told.items() if isinstance(value, str | int | float))
    return [f"{key}={value}" for key, value in short if len(str(value)) <= MAX_NAME]


def _has_login(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return any(name == b"authorization" for name, _ in headers)


async def json_body(request: Request) -> Any:
    """The request's body; HTTPException for one that is too large, too slow, or not JSON.

    Only `application/json` is taken: a foreign page in an operator's browser can send anything else
    unasked.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HTTPException(415, "send the body as Content-Type: application/json")
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > MAX_BODY_BYTES:
                    raise HTTPException(413, f"the body is larger than {MAX_BODY_BYTES} bytes")
    except TimeoutError:
        raise HTTPException(408, f"the body was not complete after {BODY_SECONDS:g} s") from None
    except ClientDisconnect:
        raise HTTPException(400, "the client went away") from None
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, f"the body is not JSON: {error}") from None


class HttpConnection(H11Protocol):
    """uvicorn's connection, with bounds on what a peer may leave undone."""

    _seen: object = None
    """Its request at the last look, or _BUSY."""
    _check: asyncio.TimerHandle | None = None
    _idle_since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Of too many connections the one that has been idle for longest ends; without one, the new one.

        One whose peer does not have its last answer yet is not idle: to end it would cut the answer off.
        """
        if not self._has_room(get_remote_addr(transport)):
            self.transport = transport
            transport.abort()
            return
        super().connection_made(transport)
        self._idle_since = self.loop.time()
        self._check = self.loop.call_later(IDLE_SECONDS, self._look)

    def on_response_complete(self) -> None:
        """From here on it is idle."""
        self._idle_since = self.loop.time()
        super().on_response_complete()

    @property
    def _idle(self) -> bool:
        """Whether no complete request of it waits for its answer."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return cycle is None or cycle.response_complete

    def _has_room(self, peer: tuple[str, int] | None) -> bool:
        address = peer and peer[0]
        there = cast("set[HttpConnection]", self.connections)
        own = {one for one in there if (one.client and one.client[0]) == address}
        if len(own) >= MAX_OF_ADDRESS:
            there = own
        elif len(there) < MAX_CONNECTIONS:
            return True
        idle = [one for one in there if one._idle and not one.transport.get_write_buffer_size()]
        if not idle:
            return False
        oldest = min(idle, key=lambda one: one._idle_since)
        self.connections.discard(oldest)  # the transport reports the loss in a later turn
        oldest.transport.abort()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is left of it, its timer neither."""
        if self._check is not None:
            self._check.cancel()
        super().connection_lost(exc)

    def _look(self) -> None:
        """Cut off a peer that since the last look neither completed a request nor is waiting for an answer.

        uvicorn limits only the time between an answer and the next request's first byte.
        """
        idle = self._idle
        if idle and self.cycle is self._seen:
            self.transport.abort()
            return
        self._seen = self.cycle if idle else _BUSY
        self._check = self.loop.call_later(IDLE_SECONDS, self._look)

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are not HTTP, in the form of all refusals."""
        body = refusal(400, msg).body
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            for event in (
                h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
                h11.Data(data=bytes(body)),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event))
        self.transport.close()
