"""An identity provider: signs tokens, and publishes its keys in a file or by HTTP."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from strandline.node.oauth.bearer_tokens import BearerTokens
from strandline.node.oauth.key_set import KeySet
from strandline.node.oauth.token_settings import TokenSettings
from tests.served import QuietHandler, served

ISSUER, AUDIENCE = "https://id.example.org/", "strandline"


@cache
def private_key(kid: str) -> Any:
    """A key for each id: of an elliptic curve for those that begin with `ec`, else RSA."""
    if kid.startswith("ec"):
        return ec.generate_private_key(ec.SECP256R1())
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def public(kid: str, **more: Any) -> dict[str, Any]:
    """The public key as a key set has it."""
    kind = ECAlgorithm if kid.startswith("ec") else RSAAlgorithm
    return {**kind.to_jwk(private_key(kid).public_key(), as_dict=True), "kid": kid, "use": "sig", **more}


def key_set(*kids: str) -> bytes:
    return json.dumps({"keys": [public(kid) for kid in kids]}).encode()


def claims(**changes: Any) -> dict[str, Any]:
    """Those of a right token of alice; None leaves one out."""
    now = int(time.time())
    told = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "iat": now, "exp": now + 600, **changes}
    return {name: value for name, value in told.items() if value is not None}


def token(
    kid: str = "rsa-1", algorithm: str = "", headers: dict[str, Any] | None = None, **changes: Any
) -> str:
    """A token that is right but for the changes of its claims."""
    algorithm = algorithm or ("ES256" if kid.startswith("ec") else "RS256")
    head = {"kid": kid} if headers is None else headers
    return jwt.encode(claims(**changes), private_key(kid), algorithm, head)


def tokens(
    folder: Path, *kids: str, claim: str = "sub", clock: Callable[[], float] = time.monotonic
) -> BearerTokens:
    """A check of tokens by the keys in a file, `keys.json`."""
    path = folder / "keys.json"
    path.write_bytes(key_set(*(kids or ("rsa-1", "ec-1"))))
    made = BearerTokens(TokenSettings(str(path), ISSUER, AUDIENCE, claim), KeySet(str(path), clock))
    made.open()
    return made


@contextmanager
def publishing(answer: Callable[[], tuple[int, bytes]]) -> Iterator[str]:
    """The URL of a server that answers so."""

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            status, body = answer()
            self.send_response(status)
            if status == 302:
                self.send_header("Location", body.decode())
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with served(Handler) as address:
        yield f"http://{address}/keys"
