"""SaslHandshake and SaslAuthenticate: a client's login (KIP-43, KIP-84, KIP-152), and the next one (KIP-368).

A login that fails is answered no sooner than FAILED_SECONDS after it came, whatever it failed by: so the
time tells nothing either, and a guess costs a connection that long. The cause goes to the node's log alone.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from kio.schema.errors import ErrorCode

from strandline.node.config.listeners import OAUTHBEARER
from strandline.node.kafka.handlers.bearer import INVALID_TOKEN, BearerExchange
from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.passwords import credential_of_user, is_users_password
from strandline.node.kafka.handlers.scram import (
    BY_NAME,
    LoginFailed,
    ScramExchange,
    ScramFailed,
    credential_of_views,
)
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.response_types import ResponseTypes
from strandline.node.kafka.wire.session import VIEWS, SaslSession
from strandline.statemachine.controller.scram_credentials import MAX_NAME, ScramCredential, ScramMechanism

PLAIN: Final = "PLAIN"
FAILED_SECONDS: Final = 0.25
"""More than a login takes that succeeds."""
AGAIN_SECONDS: Final = 1.0
"""The least time between two logins on one connection after the first, as in Kafka's KafkaChannel."""
LONGEST_SECONDS: Final = 10 * 365 * 86_400.0
"""Of a login by a token, whatever that says of its end: the answer has milliseconds in 64 bits."""
_INVALID: Final = "Authentication failed: invalid credentials"
_NONCE_BYTES: Final = 24


@dataclass(slots=True)
class _Plain:
    """A login by PLAIN that has begun."""


class _Changed(LoginFailed):
    """Another login on a connection that is not of the first one's kind or user; the client is told so."""


async def sasl_handshake(context: BrokerContext, request: Request, a: ResponseTypes) -> Any:
    """Agree on a mechanism."""
    session, name = request.session, request.payload.mechanism
    refused = a.SaslHandshakeResponse(error_code=ErrorCode.illegal_sasl_state, mechanisms=())
    if not isinstance(session, SaslSession):
        return refused
    if session.exchange is not None:
        session.failure = "the client sent a second SaslHandshake"
        return refused
    now = context.loop.time()
    if session.logged_in and not _may_log_in_again(session, now):
        return refused
    code = ErrorCode.none
    session.began = now
    if name not in session.mechanisms:
        code = ErrorCode.unsupported_sasl_mechanism
        session.failure = f"SASL mechanism {name[:64]!r} is not one of {', '.join(session.mechanisms)}"
    elif session.logged_in and name != session.mechanism:
        session.exchange = _Changed(
            f"SASL mechanism '{name}' requested by client is not supported for re-authentication of "
            f"mechanism '{session.mechanism}'"
        )
    elif name == PLAIN:
        session.exchange = _Plain()
    elif session.tokens is not None and name == OAUTHBEARER:
        session.exchange = BearerExchange(session.tokens)
    else:
        session.exchange = _scram(context, BY_NAME[name])
    return a.SaslHandshakeResponse(error_code=code, mechanisms=session.mechanisms)


def _may_log_in_again(session: SaslSession, now: float) -> bool:
    """Whether a login has an end, and another one has not begun just now (Kafka's KafkaChannel)."""
    return session.expires is not None and (session.logins == 1 or now - session.began >= AGAIN_SECONDS)


def _scram(context: BrokerContext, mechanism: ScramMechanism) -> ScramExchange:
    def find(user: str) -> ScramCredential | None:
        if user == VIEWS:
            return credential_of_views(mechanism, secret)
        return context.controller.machine.credentials.get((user, mechanism))

    secret = context.config.cluster.secret.encode()
    return ScramExchange(mechanism, find, secret, secrets.token_urlsafe(_NONCE_BYTES))


async def sasl_authenticate(context: BrokerContext, request: Request, a: ResponseTypes) -> Any:
    """One step of the login."""
    began = context.loop.time()
    session, token = request.session, request.payload.auth_bytes
    told: dict[str, Any] = {"error_code": ErrorCode.none, "error_message": None, "auth_bytes": b""}
    seconds = 0.0
    if not isinstance(session, SaslSession) or session.exchange is None:
        if isinstance(session, SaslSession) and not session.logged_in:
            session.failure = "the client sent SaslAuthenticate without a SaslHandshake"
        told["error_code"] = ErrorCode.illegal_sasl_state
        told["error_message"] = "SaslAuthenticate request received out of order"
    else:
        try:
            told["auth_bytes"], user, lasts = await _step(
                context, session.exchange, token, request.client_host
            )
            if user is not None:
                seconds = _logged_in(session, user, lasts, context.loop.time())
                context.actions.login(request, session.mechanism)
            elif told["auth_bytes"] == INVALID_TOKEN:
                await asyncio.sleep(began + FAILED_SECONDS - context.loop.time())
        except LoginFailed as failed:
            await asyncio.sleep(began + FAILED_SECONDS - context.loop.time())
            session.failure = f"a login failed: {failed}"
            told["error_code"] = ErrorCode.sasl_authentication_failed
            told["error_message"] = str(failed) if isinstance(failed, _Changed) else _INVALID
    if request.header.api_version >= 1:
        told["session_lifetime"] = timedelta(milliseconds=int(seconds * 1000))
    return a.SaslAuthenticateResponse(**told)


def _logged_in(session: SaslSession, user: str, lasts: float | None, now: float) -> float:
    """Take note of a login that succeeded; its lifetime in seconds, 0 for no end. Raises _Changed.

    What has proved it `lasts` for so many seconds, None for good.
    """
    principal = VIEWS if user == VIEWS else f"User:{user}"
    if session.logged_in and principal != session.principal:
        raise _Changed(
            f"Cannot change principals during re-authentication from {session.principal} to {principal}"
        )
    by = session.exchange
    session.mechanism = _mechanism(by)
    session.logged_in, session.logins = True, session.logins + 1
    session.principal, session.exchange = principal, None
    ends = [seconds for seconds in (session.max_seconds or None, lasts) if seconds is not None]
    session.expires = now + min(ends) if ends else None
    return min(ends, default=0.0)


def _mechanism(exchange: Any) -> str:
    if isinstance(exchange, _Plain):
        return PLAIN
    if isinstance(exchange, BearerExchange):
        return OAUTHBEARER
    return f"SCRAM-{exchange.mechanism.name}".replace("_", "-")


async def _step(
    context: BrokerContext, exchange: Any, token: bytes, address: str
) -> tuple[bytes, str | None, float | None]:
    """The answer, the user's name once it is proved, and for how many seconds, None for good.

    Raises LoginFailed.
    """
    if isinstance(exchange, LoginFailed):
        raise exchange
    if isinstance(exchange, _Plain):
        return b"", await _by_password(context, token, address), None
    if isinstance(exchange, BearerExchange):
        async with context.login_turns.turn(address):
            proved = await exchange.step(token, context.loop)
        if proved is None:
            return INVALID_TOKEN, None, None
        # An end that has passed by less than the clocks may differ leaves time for one more request.
        lasts = proved.ends - context.wall_ms() / 1000
        return b"", proved.user, min(max(lasts, AGAIN_SECONDS), LONGEST_SECONDS)
    if not exchange.begun:
        return exchange.first(token), None, None
    return exchange.final(token), exchange.user, None


async def _by_password(context: BrokerContext, token: bytes, address: str) -> str:
    """The user of a message of PLAIN (RFC 4616): its password is that of its SCRAM credential."""
    try:
        authzid, user, password = token.decode().split("\0")
    except ValueError:
        raise ScramFailed("its message is not PLAIN's") from None
    if len(user) > MAX_NAME:
        raise ScramFailed(f"its user's name has {len(user)} characters")
    if not user or not password or authzid not in ("", user):
        raise ScramFailed(f"user {user!r} gives no password, or asks to act as another user")
    secret = context.config.cluster.secret.encode()
    async with context.login_turns.turn(address):
        found = credential_of_user(context.controller.machine.credentials, user)
        right = await is_users_password(found, user, password, secret, loop=context.loop)
    # The controller may have changed or deleted it meanwhile.
    if not right or found != credential_of_user(context.controller.machine.credentials, user):
        raise ScramFailed(f"user {user!r} is unknown, or its password is wrong")
    return user
