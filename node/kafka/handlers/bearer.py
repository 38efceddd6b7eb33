"""A login by OAUTHBEARER: the client's message, and the two steps of one that fails (RFC 7628, KIP-255)."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Final

from strandline.node.kafka.handlers.scram import LoginFailed
from strandline.node.kafka.wire.session import ANONYMOUS, VIEWS
from strandline.node.oauth.errors import BadToken

if TYPE_CHECKING:
    from strandline.node.oauth.bearer_tokens import BearerTokens, Proved

INVALID_TOKEN: Final = b'{"status":"invalid_token"}'
"""The answer to a token that proves nothing, and to all such alike: the next message ends the login."""
_NAME: Final = r"(?:[^\x00\x01=,]|=2C|=3D)+"
TOKEN: Final = r"[-_.+~/=A-Za-z0-9]+"
"""The characters of a bearer token (RFC 6750, section 2.1), as a regular expression."""
_MESSAGE: Final = re.compile(rf"n,(?:a=({_NAME}))?,\x01((?:[A-Za-z]+=[\x20-\x7e\t\r\n]*\x01)*)\x01")
_BEARER: Final = re.compile(rf"[Bb]earer +({TOKEN})")


async def proved_by(tokens: BearerTokens, token: str, loop: asyncio.AbstractEventLoop) -> Proved:
    """The user that a token names. Raises BadToken.

    A signature takes some hundred microseconds, and a key that is not known a request elsewhere: so all of it
    is done off the event loop.
    """
    proved = await loop.run_in_executor(None, tokens.check, token)
    if proved.user == VIEWS:
        raise BadToken("the token has the name of the processes of views, which log in by SCRAM")
    if f"User:{proved.user}" == ANONYMOUS:
        raise BadToken("the token has the name of clients that prove none, which can have rights of its own")
    return proved


class BearerExchange:
    """One login."""

    def __init__(self, tokens: BearerTokens) -> None:
        self._tokens = tokens
        self.failure = ""
        """The cause, once the client has been told that its token proves nothing."""

    async def step(self, message: bytes, loop: asyncio.AbstractEventLoop) -> Proved | None:
        """The proved name; None if the client is to be told INVALID_TOKEN. Raises LoginFailed."""
        if self.failure:
            raise LoginFailed(self.failure)
        try:
            user, token = _read(message)
            proved = await proved_by(self._tokens, token, loop)
            if user not in ("", proved.user):
                raise BadToken(f"the token is of {proved.user!r}, and the client asks to act as {user!r}")
            return proved
        except BadToken as bad:
            self.failure = str(bad)
            return None


def _read(message: bytes) -> tuple[str, str]:
    """The user that the client asks to be, which may be empty, and its token. Raises LoginFailed."""
    try:
        found = _MESSAGE.fullmatch(message.decode())
    except ValueError:
        found = None
    if found is None:
        raise LoginFailed("its message is not OAUTHBEARER's")
    pairs = dict(pair.split("=", 1) for pair in found[2].split("\x01") if pair)
    bearer = _BEARER.fullmatch(pairs.get("auth", ""))
    if bearer is None:
        raise LoginFailed("its message of OAUTHBEARER has no bearer token")
    user = (found[1] or "").replace("=2C", ",").replace("=3D", "=")
    return user, bearer[1]
