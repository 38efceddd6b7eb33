"""Logins of the HTTP API, over TLS: a user of Kafka's ports and its password in each request (RFC 7617).

Where the node takes tokens, a request may have one instead (RFC 6750); its user is that of the token.

A user may read where ACLs let it describe the cluster, and change where they let it alter the cluster; all
users may do both where nothing is authorized, as on Kafka's ports. A password that was right is remembered by
a digest until the user's credential changes, so only the first request of a client pays for the comparison.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import logging
import re
import secrets
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, NamedTuple

from strandline.node.config.first_user import FirstUser
from strandline.node.kafka.handlers.action_log import HTTP, ActionLog, Actor
from strandline.node.kafka.handlers.authorizer import Authorizer
from strandline.node.kafka.handlers.bearer import TOKEN, proved_by
from strandline.node.kafka.handlers.login_turns import LoginTurns, NoPlace
from strandline.node.kafka.handlers.passwords import Credentials, credential_of_user, is_users_password
from strandline.node.kafka.handlers.sasl import FAILED_SECONDS
from strandline.node.oauth.errors import BadToken
from strandline.node.runtime.line_bound import LineBound
from strandline.statemachine.controller.acl import CLUSTER_NAME, Operation, ResourceType
from strandline.statemachine.controller.scram_credentials import MAX_NAME, ScramCredential, ScramMechanism

if TYPE_CHECKING:
    from strandline.node.oauth.bearer_tokens import BearerTokens

log = logging.getLogger(__name__)

MAX_PASSWORD: Final = 1024
MAX_REMEMBERED: Final = 1000
READING: Final = frozenset(("GET", "HEAD"))
"""Methods of requests that change nothing."""
_CHALLENGE: Final = {"WWW-Authenticate": 'Basic realm="strandline", charset="UTF-8"'}
_BEARER_CHALLENGE: Final = {"WWW-Authenticate": 'Bearer realm="strandline", error="invalid_token"'}
_CATCHES_UP: Final = "wait until it has caught up with the controller, ask another node"
_BEARER: Final = re.compile(rf"bearer +({TOKEN}) *", re.IGNORECASE)


class Denied(NamedTuple):
    """A request that is not answered: its status, the reason, and headers."""

    status: int
    why: str
    headers: dict[str, str]


class _Refused(Exception):
    """A login that proves no user."""

    def __init__(self, denied: Denied) -> None:
        super().__init__(denied.why)
        self.denied = denied


class Logins:
    """Decides which user asks, and whether the user may."""

    def __init__(
        self,
        credentials: Callable[[], Credentials],
        authorizer: Callable[[], Authorizer | None],
        secret: bytes,
        *,
        loop: asyncio.AbstractEventLoop,
        first_user: FirstUser | None = None,
        tokens: BearerTokens | None = None,
        knows_acls: Callable[[], bool] = lambda: True,
        reaches_controller: Callable[[], bool] = lambda: True,
        actions: ActionLog | None = None,
    ) -> None:
        """`credentials` and `authorizer` give those of this moment; `secret` is the cluster's.

        `first_user` may log in as long as there are no credentials: a node that has not caught up with the
        controller has none, and an operator must be able to ask it why. No token lets a client in while the
        node does not know the ACLs, and nothing is changed while it does not reach the controller: the users
        and ACLs that it has may be those of a snapshot.
        """
        self._first: Credentials = (
            {} if first_user is None else {(first_user.name, ScramMechanism.SHA_256): first_user.credential}
        )
        self._credentials = credentials
        self._authorizer = authorizer
        self._secret = secret
        self._loop = loop
        self._key = secrets.token_bytes(32)
        self._right: dict[bytes, ScramCredential] = {}
        """By a digest of a user and a password that were right: the credential that said so."""
        self._tokens = tokens
        self._knows_acls = knows_acls
        self._reaches_controller = reaches_controller
        self._actions = actions or ActionLog(loop.time)
        self._turns = LoginTurns()
        self._lines = LineBound(loop.time())

    async def admit(self, method: str, headers: Iterable[tuple[bytes, bytes]], client: str) -> str | Denied:
        """The principal of a request from the address `client`, or the refusal of one that it may not make.

        A wrong password is answered FAILED_SECONDS after it came, as on Kafka's ports.
        """
        given = [value for name, value in headers if name == b"authorization"]
        if not given:
            how = "log in with a user and its password" + (", or a token" if self._tokens is not None else "")
            return Denied(HTTPStatus.UNAUTHORIZED, how, dict(_CHALLENGE))
        bearer = _BEARER.fullmatch(given[0].decode("latin-1")) if len(given) == 1 else None
        try:
            if self._tokens is not None and bearer is not None:
                user, how = await self._by_token(self._tokens, bearer[1], client), "a token"
            else:
                user, how = await self._by_password(given, client), "a password"
        except _Refused as refused:
            return refused.denied
        principal = f"User:{user}"
        self._actions.logged_in(Actor(principal, client, HTTP), how)
        if method not in READING and not self._reaches_controller():
            return _unavailable(
                "this node does not reach the controller's leader, and does not know whether this user may "
                "still change anything: ask another node"
            )
        return self._may_not(principal, method, client) or principal

    def _may_not(self, principal: str, method: str, client: str) -> Denied | None:
        operation = Operation.DESCRIBE if method in READING else Operation.ALTER
        authorizer = self._authorizer()
        if authorizer is None or authorizer.allows(
            principal, client, operation, ResourceType.CLUSTER, CLUSTER_NAME
        ):
            return None
        word = operation.name.lower()
        named = f"{ResourceType.CLUSTER.name}:{CLUSTER_NAME}"
        self._actions.refused(Actor(principal, client, HTTP), operation.name, named, f"HTTP {method}")
        return Denied(
            HTTPStatus.FORBIDDEN,
            f"{principal} may not {word} the cluster: allow it with `strandline acl add {principal} {word} "
            "cluster`",
            {},
        )

    async def _by_token(self, tokens: BearerTokens, token: str, client: str) -> str:
        """The user of a token, by the rules of Kafka's ports. Raises _Refused."""
        began = self._loop.time()
        if not self._knows_acls():
            raise _Refused(_unavailable(f"this node does not know what users may do yet: {_CATCHES_UP}"))
        try:
            with self._turns.place(client):
                try:
                    async with self._turns.turn(client):
                        return (await proved_by(tokens, token, self._loop)).user
                except BadToken as bad:
                    self._note(f"{client}: a login failed: {bad}")
                    await asyncio.sleep(began + FAILED_SECONDS - self._loop.time())
        except NoPlace as error:
            raise _Refused(_unavailable(str(error))) from None
        why = "the token proves nothing: the node's log has the cause"
        raise _Refused(Denied(HTTPStatus.UNAUTHORIZED, why, dict(_BEARER_CHALLENGE)))

    async def _by_password(self, given: list[bytes], client: str) -> str:
        """The user whose password the header has. Raises _Refused."""
        began = self._loop.time()
        user, password = _decoded(given[0]) if len(given) == 1 else ("", "")
        if not self._users():
            cure = f"{_CATCHES_UP}, or set cluster.first_user in its file"
            raise _Refused(_unavailable(f"this node does not know the users yet: {cure}"))
        digest = hmac.digest(self._key, f"{user}\0{password}".encode(), "sha256")
        known = self._right.get(digest)
        if known is not None and known == credential_of_user(self._users(), user)[1]:
            return user
        try:
            with self._turns.place(client):
                right = await self._is_right(user, password, digest, client)
                if not right:
                    await asyncio.sleep(began + FAILED_SECONDS - self._loop.time())
        except NoPlace as error:
            raise _Refused(_unavailable(str(error))) from None
        if right:
            return user
        why = "the user is unknown, or its password is wrong"
        self._note(f"{client}: a login failed: user {user!r} is unknown, or its password is wrong")
        raise _Refused(Denied(HTTPStatus.UNAUTHORIZED, why, dict(_CHALLENGE)))

    def _users(self) -> Credentials:
        return self._credentials() or self._first

    async def _is_right(self, user: str, password: str, digest: bytes, address: str) -> bool:
        if not user or not password or len(user) > MAX_NAME or len(password) > MAX_PASSWORD:
            return False
        async with self._turns.turn(address):
            found = credential_of_user(self._users(), user)
            right = await is_users_password(found, user, password, self._secret, loop=self._loop)
        # The controller may have changed or deleted it meanwhile.
        credential = found[1]
        if not right or credential is None or credential != credential_of_user(self._users(), user)[1]:
            return False
        if len(self._right) >= MAX_REMEMBERED:
            self._right.clear()
        self._right[digest] = credential
        return True

    def _note(self, text: str) -> None:
        left_out = self._lines.take(self._loop.time())
        if left_out is not None:
            log.info("%s%s", text, f" ({left_out} such lines were left out)" if left_out else "")


def _unavailable(why: str) -> Denied:
    return Denied(HTTPStatus.SERVICE_UNAVAILABLE, why, {"Retry-After": "1"})


def _decoded(value: bytes) -> tuple[str, str]:
    """User and password; both empty where the header is not Basic's."""
    scheme, _, token = value.partition(b" ")
    if scheme.lower() != b"basic":
        return "", ""
    try:
        user, colon, password = base64.b64decode(token.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return "", ""
    return (user, password) if colon else ("", "")
