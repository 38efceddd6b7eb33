"""A client's part of SCRAM, by the letter of RFC 5802 and from no code of the product."""

from __future__ import annotations

import base64
import hashlib
import hmac
from functools import cache


class ScramClient:
    """One login; `hash` is hashlib's name."""

    def __init__(
        self, user: str, password: str, hash: str = "sha256", nonce: str = "rOprNGfwEbeRWgbNEkqO"
    ) -> None:
        self.hash, self.nonce, self.password = hash, nonce, password
        self.bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
        self.expected = b""

    def first(self) -> bytes:
        return f"n,,{self.bare}".encode()

    def final(self, server_first: bytes, binding: str = "biws", suffix: str = "") -> bytes:
        fields = dict(field.split("=", 1) for field in server_first.decode().split(","))
        assert fields["r"].startswith(self.nonce)
        assert len(fields["r"]) > len(self.nonce)
        salt = base64.b64decode(fields["s"])
        salted = salted_password(self.password, salt, int(fields["i"]), self.hash)
        client_key = hmac.digest(salted, b"Client Key", self.hash)
        without_proof = f"c={binding},r={fields['r']}{suffix}"
        message = f"{self.bare},{server_first.decode()},{without_proof}".encode()
        signature = hmac.digest(hashlib.new(self.hash, client_key).digest(), message, self.hash)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self.expected = b"v=" + base64.b64encode(
            hmac.digest(hmac.digest(salted, b"Server Key", self.hash), message, self.hash)
        )
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()


@cache
def salted_password(password: str, salt: bytes, iterations: int, hash: str = "sha256") -> bytes:
    """Of AlterUserScramCredentials, which clients compute."""
    return hashlib.pbkdf2_hmac(hash, password.encode(), salt, iterations)
