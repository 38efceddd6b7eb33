"""Messages of OAUTHBEARER that prove nothing: tokens of each wrong kind, and what is no token at all."""

from __future__ import annotations

import base64
import json
import random
import time
from collections.abc import Callable
from typing import Any

from tests.oauth.issuer import claims, token

STRANGERS = ("mallory", "root", "Internal:views", "admin")
"""Names of which no right token is given out, so a client with one that is let in is seen."""


def message(bearer: bytes) -> bytes:
    """The client's message of RFC 7628."""
    return b"n,,\1auth=Bearer " + bearer + b"\1\1"


def part(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def unsigned(head: Any, body: bytes, signature: bytes = b"") -> bytes:
    return b".".join((part(json.dumps(head).encode()), part(body), part(signature)))


class HostileTokens:
    """Messages drawn from a generator; what has to be signed is signed once."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        wrong: list[dict[str, Any]] = [
            {"kid": "rsa-2", "headers": {"kid": "rsa-1"}}, {"kid": "ec-2", "headers": {"kid": "ec-1"}},
            {"kid": "rsa-1", "aud": "other"}, {"kid": "ec-1", "iss": "other"}, {"kid": "ec-1", "exp": 5},
            {"kid": "ec-1", "nbf": int(time.time()) + 1_000_000}, {"kid": "ec-2"},
        ]  # fmt: skip
        self._signed = [token(**given, sub="mallory").encode() for given in wrong]
        self._kinds: tuple[Callable[[], bytes], ...] = (
            lambda: message(rng.choice(self._signed)),
            self._mutated,
            self._none,
            self._hmac,
            self._nested,
            self._huge,
            self._other_user,
            lambda: rng.randbytes(rng.choice((0, 1, 40, 3000))),
            lambda: message(rng.randbytes(rng.randrange(1, 300))),
            lambda: b"n,,\1" + b"a=b\1" * rng.randrange(10_000) + b"\1",
            lambda: b"n,,\1auth=\1\1",
        )

    def draw(self) -> bytes:
        """One message."""
        return self._rng.choice(self._kinds)()

    def _body(self) -> bytes:
        return json.dumps(claims(sub=self._rng.choice(STRANGERS))).encode()

    def _mutated(self) -> bytes:
        """A token with the signature of another body, or with some characters changed."""
        head, _, signature = self._rng.choice(self._signed).split(b".")
        bearer = bytearray(b".".join((head, part(self._body()), signature)))
        for _ in range(self._rng.randrange(4)):
            bearer[self._rng.randrange(len(bearer))] = self._rng.choice(b"abcXYZ019-_.=")
        return message(bytes(bearer))

    def _none(self) -> bytes:
        algorithm = self._rng.choice(("none", "None", "NONE", "", None, 0, ["RS256"], {"RS256": 1}))
        return message(
            unsigned({"alg": algorithm, "kid": "rsa-1"}, self._body(), b"x" * self._rng.randrange(2))
        )

    def _hmac(self) -> bytes:
        head = {"alg": self._rng.choice(("HS256", "HS512")), "kid": "rsa-1"}
        return message(unsigned(head, self._body(), self._rng.randbytes(32)))

    def _nested(self) -> bytes:
        """JSON so deep that a careless reader runs out of stack."""
        depth = self._rng.choice((100, 2000, 5000))
        deep = self._rng.choice((b"[", b'{"a":')) * depth
        head = {"alg": "RS256", "kid": "rsa-1"}
        if self._rng.random() < 0.5:
            return message(b".".join((part(deep), part(self._body()), part(b"x" * 256))))
        return message(unsigned(head, deep, self._rng.randbytes(256)))

    def _huge(self) -> bytes:
        size = self._rng.choice((16_000, 17_000, 60_000))
        return message(b"A" * size) if self._rng.random() < 0.5 else message(b"." * size)

    def _other_user(self) -> bytes:
        """A client that asks to act as another user than a token's."""
        return b"n,a=root,\1auth=Bearer " + self._rng.choice(self._signed) + b"\1\1"
