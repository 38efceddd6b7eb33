"""Client quotas by way of Kafka's own requests, which librdkafka does not have: so the command speaks itself.

It goes the way that the client's settings say: TLS, and a login by SCRAM or PLAIN.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import ssl
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from strandline.cluster.client_settings import CURRENT
from strandline.cluster.failure import CommandFailed, one_line
from strandline.snapshot.spark.sink.connection import Api, Connection, ConnectionLost

_HANDSHAKE: Final = Api(17, 1)
_AUTHENTICATE: Final = Api(36, 2)
_DESCRIBE: Final = Api(48, 1)
_ALTER: Final = Api(49, 1)
_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_MAX_ITERATIONS: Final = 1 << 20
"""Above what any broker allows: an answer must not keep this process busy for long."""

Entity = tuple[tuple[str, str | None], ...]
"""Kafka's types and names; None is the default."""


class Quota(NamedTuple):
    """The quotas of one entity, by key."""

    entity: Entity
    values: Mapping[str, float]


class QuotaClient:
    """Asks the first broker of `bootstrap` that answers. Everything raises CommandFailed."""

    def __init__(self, bootstrap: str) -> None:
        problems = []
        for address in bootstrap.split(","):
            host, _, port = address.strip().rpartition(":")
            try:
                self._connection = _LoggedIn(host.strip("[]"), int(port))
                return
            except ConnectionLost as lost:
                problems.append(str(lost))
        raise CommandFailed(
            one_line("; ".join(problems)),
            "check that the nodes run, and the login and authority of `strandline --config FILE`",
        )

    def all(self) -> list[Quota]:
        """Every entity's quotas."""
        a = _DESCRIBE.request
        answer = self._ask(_DESCRIBE, a.DescribeClientQuotasRequest(components=(), strict=False))
        _check("the quotas cannot be listed", answer)
        found = (
            Quota(
                tuple((part.entity_type, part.entity_name) for part in entry.entity),
                {value.key: value.value for value in entry.values},
            )
            for entry in answer.entries or ()
        )
        return sorted(found, key=lambda quota: [(name is None, name or "") for _, name in quota.entity])

    def alter(self, what: str, entity: Entity, changes: Mapping[str, float | None]) -> None:
        """Set an entity's quotas, or remove those that are None."""
        a = _ALTER.request
        entry = a.EntryData(
            entity=tuple(a.EntityData(entity_type=kind, entity_name=name) for kind, name in entity),
            ops=tuple(
                a.OpData(key=key, value=0.0 if value is None else value, remove=value is None)
                for key, value in changes.items()
            ),
        )
        request = a.AlterClientQuotasRequest(entries=(entry,), validate_only=False)
        (done,) = self._ask(_ALTER, request).entries
        _check(what, done)

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def _ask(self, api: Api, request: Any) -> Any:
        try:
            return self._connection.ask(api, request)
        except ConnectionLost as lost:
            raise CommandFailed(one_line(str(lost)), "see the log of that node") from None


def _check(what: str, answer: Any) -> None:
    if answer.error_code is not ErrorCode.none:
        told = answer.error_message or answer.error_code.name
        cure = "correct what was asked for"
        if answer.error_code is ErrorCode.cluster_authorization_failed:
            cure = "ask as a user that may alter-configs (to list, describe-configs) the cluster"
        raise CommandFailed(f"{what}: {one_line(told)}", cure)


class _LoggedIn(Connection):
    """A connection that has spoken TLS and logged in, as the client's settings say."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(host, port)
        settings = CURRENT.get()
        protocol = settings.get("security.protocol", "PLAINTEXT").upper()
        if protocol.endswith("SSL"):
            try:
                self._socket = _context(settings).wrap_socket(self._socket, server_hostname=host)
            except OSError as error:
                raise self._lost(getattr(error, "verify_message", None) or error) from error
        if protocol.startswith("SASL_"):
            self._log_in(settings)

    def _log_in(self, settings: Mapping[str, str]) -> None:
        name, user = settings.get("sasl.mechanism", "PLAIN").upper(), settings["sasl.username"]
        password = settings["sasl.password"]
        answer = self.ask(_HANDSHAKE, _HANDSHAKE.request.SaslHandshakeRequest(mechanism=name))
        if answer.error_code is not ErrorCode.none or (name != "PLAIN" and name not in _HASHES):
            raise self._lost(f"it takes logins by {', '.join(answer.mechanisms)}, and not by {name}")
        if name == "PLAIN":
            self._step(f"\0{user}\0{password}".encode())
            return
        bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={secrets.token_urlsafe(24)}"
        first = self._step(f"n,,{bare}".encode()).decode()
        told = dict(part.partition("=")[::2] for part in first.split(","))
        iterations = int(told.get("i", "0"))
        if not told.get("r", "").startswith(bare.rpartition("r=")[2]) or not 0 < iterations < _MAX_ITERATIONS:
            raise self._lost("its part of the login is not SCRAM's")
        last, signature = scram_final(name, password, bare, first, told, iterations)
        if self._step(last) != b"v=" + base64.b64encode(signature):
            raise self._lost("it does not know the user's credential: it is not the cluster that was meant")

    def _step(self, token: bytes) -> bytes:
        answer = self.ask(_AUTHENTICATE, _AUTHENTICATE.request.SaslAuthenticateRequest(auth_bytes=token))
        if answer.error_code is not ErrorCode.none:
            raise self._lost(answer.error_message or answer.error_code.name)
        return bytes(answer.auth_bytes)


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
    context = ssl.create_default_context(cafile=settings.get("ssl.ca.location"))
    if settings.get("ssl.endpoint.identification.algorithm") == "none":
        context.check_hostname = False
    if "ssl.certificate.location" in settings:
        key, password = settings.get("ssl.key.location"), settings.get("ssl.key.password")
        context.load_cert_chain(settings["ssl.certificate.location"], key, password)
    return context
