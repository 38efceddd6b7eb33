"""Checks of bearer tokens: signed JSON Web Tokens (RFC 7519) of one issuer, for this cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import jwt

from strandline.node.oauth.errors import BadToken
from strandline.node.oauth.key_set import ALGORITHMS, KeySet
from strandline.node.oauth.token_settings import TokenSettings

LEEWAY_SECONDS: Final = 30
"""By so much the issuer's clock may differ from this node's."""
MAX_TOKEN_BYTES: Final = 16 * 1024
MAX_USER: Final = 256
"""Characters of a name."""


class Proved(NamedTuple):
    """The name that a token proves, and when that ends."""

    user: str
    ends: float
    """Unix time in seconds."""


class BearerTokens:
    """Of one listener. All of it blocks, and may be called by any thread."""

    def __init__(self, settings: TokenSettings, keys: KeySet | None = None) -> None:
        self._settings = settings
        self._keys = keys or KeySet(settings.keys)

    def open(self) -> None:
        """Read the keys; raises KeySetError."""
        self._keys.open()

    @property
    def key_reads(self) -> Mapping[str, int]:
        """The numbers of reads of the keys, `ok` and `failed`."""
        return self._keys.reads

    def check(self, token: str) -> Proved:
        """The user that a token names; raises BadToken."""
        if len(token) > MAX_TOKEN_BYTES:
            raise BadToken(f"the token has {len(token)} bytes, and {MAX_TOKEN_BYTES} are the most")
        claim = self._settings.principal_claim
        try:
            found = self._claims(token)
            user, ends = found[claim], float(found["exp"])
        except (jwt.PyJWTError, ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            raise BadToken(f"the token is not right: {type(error).__name__}: {error}") from error
        if not isinstance(user, str) or not 0 < len(user) <= MAX_USER or not user.isprintable():
            raise BadToken(f"the token's claim {claim!r} is no name of 1 to {MAX_USER} printable characters")
        return Proved(user, ends)

    def _claims(self, token: str) -> dict[str, Any]:
        head = jwt.get_unverified_header(token)
        algorithm, kid = head.get("alg"), head.get("kid")
        if algorithm not in ALGORITHMS:
            raise BadToken(f"the token is signed by {str(algorithm)[:32]!r}, which is not taken")
        key = self._keys.find(kid, algorithm)
        if key is None:
            raise BadToken(f"no key for {algorithm} has the id {str(kid)[:64]!r} that the token names")
        return jwt.decode(
            token,
            key.key,
            algorithms=[algorithm],
            audience=self._settings.audience,
            issuer=self._settings.issuer,
            leeway=LEEWAY_SECONDS,
            options={"require": ["exp", self._settings.principal_claim]},
        )
