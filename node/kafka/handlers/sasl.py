"""SaslHandshake and SaslAuthenticate: a client's login (KIP-43, KIP-84, KIP-152).

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

from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.passwords import credential_of_user, is_users_password
from strandline.node.kafka.handlers.scram import (
    BY_NAME,
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
_NONCE_BYTES: Final = 24


@dataclass(slots=True)
class _Plain:
    """A login by PLAIN that has begun."""


async def sasl_handshake(context: BrokerContext, request: Request, a: ResponseTypes) -> Any:
    """Agree on a mechanism."""
    session, name = request.session, request.payload.mechanism
    if not isinstance(session, SaslSession) or session.logged_in or session.exchange is not None:
        if isinstance(session, SaslSession) and not session.logged_in:
            session.failure = "the client sent a second SaslHandshake"
        return a.SaslHandshakeResponse(error_code=ErrorCode.illegal_sasl_state, mechanisms=())
    code = ErrorCode.none
    if name not in session.mechanisms:
        code = ErrorCode.unsupported_sasl_mechanism
        session.failure = f"SASL mechanism {name[:64]!r} is not one of {', '.join(session.mechanisms)}"
    elif name == PLAIN:
        session.exchange = _Plain()
    else:
        session.exchange = _scram(context, BY_NAME[name])
    return a.SaslHandshakeResponse(error_code=code, mechanisms=session.mechanisms)


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
    lifetime = {"session_lifetime": timedelta(0)} if request.header.api_version >= 1 else {}
    if not isinstance(session, SaslSession) or session.logged_in or session.exchange is None:
        if isinstance(session, SaslSession) and not session.logged_in:
            session.failure = "the client sent SaslAuthenticate without a SaslHandshake"
        return a.SaslAuthenticateResponse(
            error_code=ErrorCode.illegal_sasl_state,
            error_message="SaslAuthenticate request received out of order",
            auth_bytes=b"",
            **lifetime,
        )
    try:
        answer, user = await _step(context, session.exchange, token)
    except ScramFailed as failed:
        await asyncio.sleep(began + FAILED_SECONDS - context.loop.time())
        session.failure = f"a login failed: {failed}"
        return a.SaslAuthenticateResponse(
            error_code=ErrorCode.sasl_authentication_failed,
            error_message="Authentication failed: invalid credentials",
            auth_bytes=b"",
            **lifetime,
        )
    if user is not None:
        by = session.exchange
        mechanism = PLAIN if isinstance(by, _Plain) else f"SCRAM-{by.mechanism.name}".replace("_", "-")
        session.principal = VIEWS if user == VIEWS else f"User:{user}"
        session.logged_in, session.exchange = True, None
        context.actions.login(request, mechanism)
    return a.SaslAuthenticateResponse(
        error_code=ErrorCode.none, error_message=None, auth_bytes=answer, **lifetime
    )


async def _step(
    context: BrokerContext, exchange: ScramExchange | _Plain, token: bytes
) -> tuple[bytes, str | None]:
    """The answer, and the user's name once it is proved. Raises ScramFailed."""
    if isinstance(exchange, _Plain):
        return b"", await _by_password(context, token)
    if not exchange.begun:
        return exchange.first(token), None
    return exchange.final(token), exchange.user


async def _by_password(context: BrokerContext, token: bytes) -> str:
    """The user of a message of PLAIN (RFC 4616): its password is that of its SCRAM credential."""
    try:
        authzid, user, password = token.decode().split("\0")
    except ValueError:
        raise ScramFailed("its message is not PLAIN's") from None
    if len(user) > MAX_NAME:
        raise ScramFailed(f"its user's name has {len(user)} characters")
    if not user or not password or authzid not in ("", user):
        raise ScramFailed(f"user {user!r} gives no password, or asks to act as another user")
    known, secret = context.controller.machine.credentials, context.config.cluster.secret.encode()
    found = credential_of_user(known, user)
    if not await is_users_password(found, user, password, secret, loop=context.loop):
        raise ScramFailed(f"user {user!r} is unknown, or its password is wrong")
    return user
