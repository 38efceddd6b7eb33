"""The commands that every driver understands, and the loop that carries them out in the Python ones.

A command is one JSON object in a line of standard input, `{"do": NAME, ...}`; each is answered before the
next is read, by `{"ok": RESULT}` or `{"failed": {"code": NAME, "reason": TEXT}}` on standard output. The code
is the name Kafka gives to an error, or the client's own where it has one. The drivers in Java, Go and
JavaScript do the same.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
import ssl
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, TypedDict

SESSION_MS: Final = 6000
"""A member's session: the shortest that a broker takes without being told to."""
HEARTBEAT_MS: Final = 300
REQUEST_SECONDS: Final = 20.0
LOGIN_SECONDS: Final = 2
"""How long a client that is not let in may go on trying."""


class Settings(TypedDict, total=False):
    """How a consumer is to be; whatever is left out is as the client has it."""

    protocol: str
    """`classic` or `consumer` (KIP-848)."""
    assignor: str
    """`range` or `cooperative`; classic groups only."""
    instance: str
    """The id of a static member (KIP-345)."""
    isolation: str
    """`read_committed` or `read_uncommitted`."""


class Way(TypedDict, total=False):
    """How a client comes to a listener with TLS, and by what it proves its name; paths are of PEM files."""

    bootstrap: str
    protocol: str
    """`SSL` or `SASL_SSL`."""
    ca: str
    certificate: str
    key: str
    mechanism: str
    user: str
    password: str
    token: str
    """The path of a file with the token of this moment; the client reads it for each login."""


def token_of(way: Way) -> tuple[str, float]:
    """The token of this moment, and its end; a client is not to judge that itself, so none has ended."""
    token = Path(way["token"]).read_text()
    body = token.split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    return token, max(float(claims["exp"]), time.time() + LOGIN_SECONDS)


def tls_of(way: Way) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=way["ca"])
    if "certificate" in way:
        context.load_cert_chain(way["certificate"], way["key"])
    return context


class Application(Protocol):
    """What a driver does; results are as JSON. A method may be a coroutine."""

    def about(self) -> Any:
        """Which client this is: `{"client", "version"}`."""

    def create_topic(self, topic: str, partitions: int) -> Any:
        """Three replicas."""

    def delete_topic(self, topic: str) -> Any: ...

    def produce(self, topic: str, records: Sequence[tuple[int, str]]) -> Any:
        """(partition, value) each, idempotent, without a transaction; their offsets in that order."""

    def subscribe(self, topics: Sequence[str], group: str, settings: Settings) -> Any:
        """Become a member. Nothing is committed by itself; without a commit it begins at the beginning."""

    def chain(self, topics: Sequence[str], group: str, settings: Settings, id: str) -> Any:
        """A consumer as `subscribe` makes it, and a transactional producer that takes its offsets."""

    def poll(self, seconds: float, count: int) -> Any:
        """Up to `count` records, in at most about `seconds`.

        `{"records": [[topic, partition, offset, value]...], "assigned": [[topic, partition]...], "revoked":
        ...}`; `revoked` is what was taken away since the last time.
        """

    def commit(self) -> Any:
        """The position behind all records that `poll` gave, of the partitions it still has."""

    def transactional(self, id: str) -> Any:
        """A transactional producer. Whoever had the id before is fenced; what it left open is aborted."""

    def begin(self) -> Any: ...

    def send(self, topic: str, records: Sequence[tuple[int, str]]) -> Any:
        """As `produce`, in the transaction; returns when all are acknowledged."""

    def send_offsets(self) -> Any:
        """The position behind all records that `poll` gave since the last `end`, into the transaction.

        Also of partitions that the member has lost meanwhile: that it may not is the group's to say.
        """

    def end(self, commit: bool) -> Any: ...

    def close(self) -> Any:
        """Consumer and producer; the member leaves its group."""

    def log_in(self, way: Way) -> Any:
        """Another client, which comes by this way instead of the one before; what `topics` answers."""

    def topics(self) -> Any:
        """The names of the topics that the client of `log_in` is shown, asked for once more; sorted."""

    def groups(self) -> Any:
        """The ids of all groups."""

    def describe_group(self, group: str) -> Any:
        """`{"state", "members"}`: the state's name, and how many there are."""

    def group_offsets(self, group: str) -> Any:
        """`[[topic, partition, offset]...]`."""

    def reset_offsets(self, group: str, offsets: Sequence[tuple[str, int, int]]) -> Any: ...

    def delete_group(self, group: str) -> Any: ...


def serve(application: Application, code_of: Callable[[Exception], str]) -> None:
    """Carry out commands until standard input ends; `code_of` names an error of the client's."""
    asyncio.run(_serve(application, code_of))


async def _serve(application: Application, code_of: Callable[[Exception], str]) -> None:
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        command = json.loads(line)
        try:
            done = getattr(application, command.pop("do"))(**command)
            answer = {"ok": await done if inspect.isawaitable(done) else done}
        except Exception as error:  # whatever the client says is the other side's to judge
            answer = {"failed": {"code": code_of(error), "reason": repr(error)}}
        print(json.dumps(answer), flush=True)
