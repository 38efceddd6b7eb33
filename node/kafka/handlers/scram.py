"""The server's part of SCRAM (RFC 5802, RFC 7677), for one login.

An unknown user gets the salt and the iterations of a credential that is computed from its name, and fails
where a wrong password fails, after the same steps. Secrets are compared in constant time.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import re
from collections.abc import Callable
from typing import Final

from strandline.node.kafka.wire.session import VIEWS
from strandline.node.views import view_login
from strandline.statemachine.controller.scram_credentials import (
    KEY_BYTES,
    MAX_NAME,
    MIN_ITERATIONS,
    ScramCredential,
    ScramMechanism,
)

HASHES: Final = {ScramMechanism.SHA_256: "sha256", ScramMechanism.SHA_512: "sha512"}
BY_NAME: Final = {"SCRAM-SHA-256": ScramMechanism.SHA_256, "SCRAM-SHA-512": ScramMechanism.SHA_512}
_ALPHABET: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_SALT_LENGTH: Final = 26
"""Salts of Kafka's own tools are so long, and made of this alphabet."""
_FIRST: Final = re.compile(
    r"(?P<gs2>(?P<binding>[ny]|p=[A-Za-z0-9.-]+),(a=(?P<authzid>[^,]*))?,)"
    r"(?P<bare>n=(?P<user>[^,]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(,[A-Za-z]=[^,]*)*)"
)
_FINAL: Final = re.compile(
    r"(?P<without_proof>c=(?P<binding>[A-Za-z0-9+/=]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(,[A-Za-z]=[^,]*)*)"
    r",p=(?P<proof>[A-Za-z0-9+/=]+)"
)
_ESCAPE: Final = re.compile("=(2C|3D)?")


class LoginFailed(Exception):
    """A login that fails; `str()` is the cause for the node's log, which the client is not told."""


class ScramFailed(LoginFailed):
    """A login by a password that fails."""


class ScramExchange:
    """One login, in two steps."""

    def __init__(
        self,
        mechanism: ScramMechanism,
        find: Callable[[str], ScramCredential | None],
        secret: bytes,
        nonce: str,
    ) -> None:
        """`secret` is the cluster's, for the credentials of unknown users; `nonce` is new for each login."""
        self.user = ""
        self.mechanism = mechanism
        self._find = find
        self._secret = secret
        self._nonce = nonce
        self._clients_nonce = ""
        self._gs2 = self._transcript = ""
        self._credential: ScramCredential | None = None
        self._known = False

    @property
    def begun(self) -> bool:
        """Whether the client's first message is behind it."""
        return self._credential is not None

    def first(self, message: bytes) -> bytes:
        """The server's first message. Raises ScramFailed."""
        found = _FIRST.fullmatch(_text(message))
        if found is None:
            raise ScramFailed("its first message is not SCRAM's")
        if found["binding"].startswith("p"):
            raise ScramFailed("it asks for a channel binding, which none of the mechanisms here has")
        user = _unescaped(found["user"])
        if len(user) > MAX_NAME:
            raise ScramFailed(f"its user's name has {len(user)} characters")
        self.user = user
        if found["authzid"] and _unescaped(found["authzid"]) != user:
            raise ScramFailed(f"user {user!r} asks to act as another user")
        credential = self._find(self.user)
        self._known = credential is not None
        self._credential = credential or stranger(self.mechanism, self.user, self._secret)
        self._gs2 = found["gs2"]
        self._clients_nonce = found["nonce"]
        self._nonce = found["nonce"] + self._nonce
        salt = base64.b64encode(self._credential.salt).decode()
        answer = f"r={self._nonce},s={salt},i={self._credential.iterations}"
        self._transcript = f"{found['bare']},{answer}"
        return answer.encode()

    def final(self, message: bytes) -> bytes:
        """The server's final message, which proves that it has the credential. Raises ScramFailed."""
        credential, found = self._credential, _FINAL.fullmatch(_text(message))
        if credential is None or found is None:
            raise ScramFailed(f"the last message of user {self.user!r} is not SCRAM's")
        wrong = ScramFailed(f"user {self.user!r} is unknown, or its password is wrong")
        bound = base64.b64encode(self._gs2.encode()).decode()
        if found["nonce"] == self._clients_nonce + self._nonce:
            raise ScramFailed(
                f"the client of user {self.user!r} repeats its nonce, as librdkafka before 2.6.1 does, and "
                "Kafka 4 refuses too: take a newer client, or PLAIN"
            )
        replayed = not hmac.compare_digest(found["nonce"].encode(), self._nonce.encode())
        if replayed or not hmac.compare_digest(found["binding"].encode(), bound.encode()):
            raise wrong
        name = HASHES[self.mechanism]
        transcript = f"{self._transcript},{found['without_proof']}".encode()
        signature = hmac.digest(credential.stored_key, transcript, name)
        try:
            proof = base64.b64decode(found["proof"], validate=True)
        except ValueError:
            raise wrong from None
        if len(proof) != len(signature):
            raise wrong
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        right = hmac.compare_digest(hashlib.new(name, client_key).digest(), credential.stored_key)
        if not right or not self._known or self._find(self.user) != credential:
            raise wrong  # the last: it was changed or deleted since the first message
        return b"v=" + base64.b64encode(hmac.digest(credential.server_key, transcript, name))


def stranger(mechanism: ScramMechanism, user: str, secret: bytes) -> ScramCredential:
    """The credential that an unknown user seems to have: the same on every node, and for no password."""
    drawn = hmac.digest(secret, f"{mechanism.value} {user}".encode(), "sha512")
    salt = "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in drawn[:_SALT_LENGTH])
    key = hmac.digest(secret, drawn, "sha512")[: KEY_BYTES[mechanism]]
    return ScramCredential(MIN_ITERATIONS, salt.encode(), key, key)


def credential_of(
    mechanism: ScramMechanism, salted_password: bytes, salt: bytes, iterations: int
) -> ScramCredential:
    """The credential of a salted password: RFC 5802, section 3."""
    name = HASHES[mechanism]
    client_key = hmac.digest(salted_password, b"Client Key", name)
    server_key = hmac.digest(salted_password, b"Server Key", name)
    return ScramCredential(iterations, salt, hashlib.new(name, client_key).digest(), server_key)


@functools.lru_cache(maxsize=len(ScramMechanism))
def credential_of_views(mechanism: ScramMechanism, secret: bytes) -> ScramCredential:
    """The credential of the processes of views, to which a node gives the password.

    Some milliseconds of processor time, once. Salt and iterations are those that the user would seem to have
    if it were unknown.
    """
    seeming = stranger(mechanism, VIEWS, secret)
    known = view_login.password(secret.decode()).encode()
    salted = hashlib.pbkdf2_hmac(HASHES[mechanism], known, seeming.salt, seeming.iterations)
    return credential_of(mechanism, salted, seeming.salt, seeming.iterations)


def salted(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """The salted password (RFC 5802); blocking, some milliseconds of processor time."""
    return hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)


def is_password(mechanism: ScramMechanism, credential: ScramCredential, password: str) -> bool:
    """Whether a password is that of a credential; blocking, some milliseconds of processor time."""
    salt, iterations = credential.salt, credential.iterations
    computed = credential_of(mechanism, salted(mechanism, password, salt, iterations), salt, iterations)
    return hmac.compare_digest(computed.stored_key, credential.stored_key)


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise ScramFailed("a message is not UTF-8") from None


def _unescaped(name: str) -> str:
    if any(match[1] is None for match in _ESCAPE.finditer(name)):
        raise ScramFailed("a name has an '=' that is not escaped")
    return name.replace("=2C", ",").replace("=3D", "=")
