"""A connection to a broker for requests that librdkafka does not have.

It goes the way of the client's settings: TLS, a certificate, and a login by SCRAM, PLAIN or a token.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
import ssl
import tempfile
from collections.abc import Mapping
from typing import Final

from kio.schema.errors import ErrorCode

from strandline.cluster.client_settings import CURRENT
from strandline.cluster.failure import MISUSED, CommandFailed, one_line
from strandline.cluster.token_file import has_token, token
from strandline.snapshot.connection import Api, Connection, ConnectionLost

_HANDSHAKE: Final = Api(17, 1)
_AUTHENTICATE: Final = Api(36, 2)
_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_MAX_ITERATIONS: Final = 1 << 20
"""Above what any broker allows: an answer must not keep this process busy for long."""


class BrokerConnection(Connection):
    """A connection that has spoken TLS and logged in.

    Raises ConnectionLost, and CommandFailed for files of the settings that cannot be used.
    """

    def __init__(
        self,
        host: str,
        port: int,
        settings: Mapping[str, str] | None = None,
        client_id: str = "strandline-cli",
    ) -> None:
        """`settings` are those of the command where there are none."""
        settings = CURRENT.get() if settings is None else settings
        protocol = settings.get("security.protocol", "PLAINTEXT").upper()
        context = _context(settings) if protocol.endswith("SSL") else None
        super().__init__(host, port, client_id)
        try:
            if context is not None:
                self._socket = context.wrap_socket(self._socket, server_hostname=host)
            if protocol.startswith("SASL_"):
                self._log_in(settings)
        except OSError as error:
            raise self._lost(getattr(error, "verify_message", None) or error) from error
        except BaseException:
            self.close()
            raise

    def _log_in(self, settings: Mapping[str, str]) -> None:
        name = settings.get("sasl.mechanism", "PLAIN").upper()
        bearer = token(settings) if has_token(settings) else None
        answer = self.ask(_HANDSHAKE, _HANDSHAKE.request.SaslHandshakeRequest(mechanism=name))
        if answer.error_code is not ErrorCode.none or (
            bearer is None and name != "PLAIN" and name not in _HASHES
        ):
            raise self._lost(f"it takes logins by {', '.join(answer.mechanisms)}, and not by {name}")
        if bearer is not None:
            if self._step(f"n,,\x01auth=Bearer {bearer}\x01\x01".encode()):
                raise self._lost("it does not accept the token of --config: its log has the cause")
            return
        user, password = settings["sasl.username"], settings["sasl.password"]
        if name == "PLAIN":
            self._step(f"\0{user}\0{password}".encode())
            return
        bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={secrets.token_urlsafe(24)}"
        answered = self._step(f"n,,{bare}".encode())
        try:
            last, signature = _answer_to(answered.decode(), name, password, bare)
        except (ValueError, KeyError):
            raise self._lost("its part of the login is not SCRAM's") from None
        if self._step(last) != b"v=" + base64.b64encode(signature):
            raise self._lost("it does not know the user's credential: it is not the cluster that was meant")

    def _step(self, token: bytes) -> bytes:
        answer = self.ask(_AUTHENTICATE, _AUTHENTICATE.request.SaslAuthenticateRequest(auth_bytes=token))
        if answer.error_code is not ErrorCode.none:
            raise self._lost(answer.error_message or answer.error_code.name)
        return bytes(answer.auth_bytes)


def connect(bootstrap: str) -> BrokerConnection:
    """A connection to the first broker of `bootstrap` that answers. Raises CommandFailed."""
    problems = []
    for address in bootstrap.split(","):
        host, _, port = address.strip().rpartition(":")
        try:
            return BrokerConnection(host.strip("[]"), int(port))
        except ConnectionLost as lost:
            problems.append(str(lost))
    raise CommandFailed(
        one_line("; ".join(problems)),
        "check that the nodes run, and the login and authority of `strandline --config FILE`",
    )


def _answer_to(first: str, name: str, password: str, bare: str) -> tuple[bytes, bytes]:
    """As `scram_final`, for the server's first message as it came. Raises ValueError and KeyError."""
    told = dict(part.partition("=")[::2] for part in first.split(","))
    iterations = int(told["i"])
    if not told["r"].startswith(bare.rpartition("r=")[2]) or not 0 < iterations < _MAX_ITERATIONS:
        raise ValueError
    return scram_final(name, password, bare, first, told, iterations)


def scram_final(
    name: str, password: str, bare: str, first: str, told: Mapping[str, str], iterations: int
) -> tuple[bytes, bytes]:
    """The client's final message and the server's signature that has to follow (RFC 5802, section 3)."""
    digest = _HASHES[name]
    salted = hashlib.pbkdf2_hmac(digest, password.encode(), base64.b64decode(told["s"]), iterations)
    without_proof = f"c=biws,r={told['r']}"
    transcript = f"{bare},{first},{without_proof}".encode()
    client_key = hmac.digest(salted, b"Client Key", digest)
    mine = hmac.digest(hashlib.new(digest, client_key).digest(), transcript, digest)
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(client_key, mine, strict=True))).decode()
    server = hmac.digest(hmac.digest(salted, b"Server Key", digest), transcript, digest)
    return f"{without_proof},p={proof}".encode(), server


def _context(settings: Mapping[str, str]) -> ssl.SSLContext:
    authority = settings.get("ssl.ca.location")
    try:
        context = ssl.create_default_context(cafile=authority)
    except OSError as error:
        raise _unusable("ssl.ca.location", authority, error) from None
    if settings.get("ssl.endpoint.identification.algorithm") == "none":
        context.check_hostname = False
    if "ssl.certificate.location" in settings:
        certificate, password = settings["ssl.certificate.location"], settings.get("ssl.key.password")
        try:
            # Without a password OpenSSL would ask for one at the terminal.
            context.load_cert_chain(certificate, settings.get("ssl.key.location"), password or "")
        except (OSError, ValueError) as error:
            raise _unusable("ssl.certificate.location", certificate, error) from None
    elif "ssl.keystore.location" in settings:
        keystore = settings["ssl.keystore.location"]
        try:
            _show_keystore(context, keystore, settings.get("ssl.keystore.password"))
        except (OSError, ValueError) as error:
            raise _unusable("ssl.keystore.location", keystore, error) from None
    return context


def _show_keystore(context: ssl.SSLContext, path: str, password: str | None) -> None:
    """Have the client show the certificate of a PKCS12 file. Raises OSError and ValueError.

    Python's ssl reads PEM files alone: the pair is in one for a moment, which its owner alone can read, and
    whose key has a password that is written nowhere.
    """
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.serialization import pkcs12

    with open(path, "rb") as file:
        stored = pkcs12.load_pkcs12(file.read(), None if password is None else password.encode())
    if stored.key is None or stored.cert is None:
        raise ValueError("it has no certificate with its key")
    passing = secrets.token_hex(16)
    chain = [stored.cert, *stored.additional_certs]
    pem = b"".join(one.certificate.public_bytes(serialization.Encoding.PEM) for one in chain)
    pem += stored.key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(passing.encode()),
    )
    descriptor, name = tempfile.mkstemp()
    try:
        with open(descriptor, "wb") as file:
            file.write(pem)
        context.load_cert_chain(name, password=passing)
    finally:
        os.unlink(name)


def _unusable(setting: str, path: str | None, error: Exception) -> CommandFailed:
    said = getattr(error, "strerror", None) or error
    return CommandFailed(f"{path} cannot be used ({one_line(str(said))})", f"correct {setting}", MISUSED)
