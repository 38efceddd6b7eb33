"""Ports for others than Kafka's clients: `[mesh]` for the other nodes, and `[admin]` for HTTP."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from strandline.node.config.addresses import is_loopback
from strandline.node.config.file_paths import file_path
from strandline.node.config.token_keys import CURES, DEFAULT_CLAIM, TOKEN_READERS, bearer_tokens
from strandline.node.config.values import any_port, choice, flag, some_text, whole
from strandline.node.tls.keeper import TlsSettings

if TYPE_CHECKING:
    from strandline.node.oauth.bearer_tokens import BearerTokens

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,252})|\[?[0-9A-Fa-f:.]{2,45}\]?")


@dataclass(frozen=True, slots=True)
class MeshSection:
    """Address of the mesh; default: this node's entry in cluster.nodes, where that has it."""

    host: str
    port: int
    certificate: str = ""
    key: str = ""
    ca: str = ""
    """Paths of PEM files; see `TlsSettings`. All three, or none: no TLS."""
    advertised_host: str = ""
    advertised_port: int = 0
    """The address that other nodes are told to connect to; empty: the host, and 0: the port."""

    @property
    def told(self) -> tuple[str, int]:
        """The address at which other nodes reach this one."""
        return self.advertised_host or self.host, self.advertised_port or self.port

    @property
    def tls(self) -> TlsSettings | None:
        """None for a mesh without TLS. All nodes are ours, so they speak the newest version alone: its
        handshake is what a proof of the secret is bound to."""
        if not self.certificate:
            return None
        return TlsSettings(self.certificate, self.key, self.ca, "required", "1.3", dials=True)


@dataclass(frozen=True, slots=True)
class AdminSection:
    """Address of the HTTP API and the metrics. Port 0 takes a free one."""

    host: str = "127.0.0.1"
    port: int = 0
    hosts: tuple[str, ...] = ()
    """Names under which it may be asked, beside addresses and localhost."""
    certificate: str = ""
    key: str = ""
    """Paths of PEM files; see `TlsSettings`. Both, or none: no TLS."""
    tls_version: str = "1.2"
    logins: bool = False
    """Whether each request needs a user of Kafka's ports and its password (RFC 7617), or a token."""
    oauth_keys: str = ""
    """Path or URL of the JSON Web Key Set of the tokens' issuer; empty where no token is taken."""
    oauth_issuer: str = ""
    oauth_audience: str = ""
    oauth_principal_claim: str = DEFAULT_CLAIM

    @property
    def tls(self) -> TlsSettings | None:
        """None where HTTP is spoken without TLS."""
        if not self.certificate:
            return None
        return TlsSettings(self.certificate, self.key, tls_version=self.tls_version)

    @property
    def tokens(self) -> BearerTokens | None:
        """None where no token is taken."""
        return bearer_tokens(self) if self.oauth_keys else None


def _hosts(value: Any) -> tuple[str, ...]:
    texts = [text for text in value.split(",") if text] if isinstance(value, str) else value
    if not isinstance(texts, list):
        raise ValueError(f'{value!r} is not a list of names: write like ["node-1.example.org"]')
    for text in texts:
        if not isinstance(text, str) or not _HOST.fullmatch(text.strip()):
            raise ValueError(
                f"{text!r} is not a host name: write it without scheme and port, like node-1.example.org"
            )
    return tuple(text.strip().strip("[]").lower() for text in texts)


def tls_version(value: Any) -> str:
    """The least version of TLS."""
    return choice("1.2", "1.3")(str(value))


PORT_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    "mesh.host": some_text,
    "mesh.port": whole(1, 65535),
    "mesh.advertised_host": some_text,
    "mesh.advertised_port": whole(1, 65535),
    "mesh.certificate": file_path,
    "mesh.key": file_path,
    "mesh.ca": file_path,
    "admin.host": some_text,
    "admin.port": any_port,
    "admin.hosts": _hosts,
    "admin.certificate": file_path,
    "admin.key": file_path,
    "admin.tls_version": tls_version,
    "admin.logins": flag,
    **{f"admin.{key}": reader for key, reader in TOKEN_READERS.items()},
}


def mistake(mesh: MeshSection, admin: AdminSection, *, insecure: bool) -> str | None:
    """The first mistake that no key has by itself: `<key>: cause: cure`; None if there is none."""
    for section, keys in ((mesh, ("certificate", "key", "ca")), (admin, ("certificate", "key"))):
        name = "mesh" if section is mesh else "admin"
        missing = [key for key in keys if not getattr(section, key)]
        if missing and len(missing) < len(keys):
            return (
                f"{name}.{missing[0]}: it is not set, and TLS needs it: write the path of a PEM file, or "
                f"leave {' and '.join(f'{name}.{key}' for key in keys if key not in missing)} out"
            )
    if admin.tls is None and admin.logins:
        return (
            "admin.logins: every password would cross the network as it is: set admin.certificate and "
            "admin.key, or leave this out"
        )
    given = [key for key in CURES if getattr(admin, key)]
    if given and not admin.logins:
        return f"admin.{given[0]}: no request needs a login: set admin.logins = true, or leave this key out"
    for key, cure in CURES.items():
        if given and key not in given:
            return f"admin.{key}: it is not set, and logins by tokens need it: {cure}"
    if admin.oauth_principal_claim != DEFAULT_CLAIM and not given:
        return "admin.oauth_principal_claim: no token is taken: set admin.oauth_keys, or leave this key out"
    if admin.tls is None and admin.tls_version != "1.2":
        return "admin.tls_version: there is no TLS: set admin.certificate and admin.key, or leave this out"
    if not insecure and not is_loopback(mesh.host) and mesh.tls is None:
        return _exposed("mesh", mesh.host, "TLS", "mesh.certificate, mesh.key and mesh.ca")
    if not insecure and not is_loopback(admin.host) and not admin.logins:
        lacking = "login" if admin.tls is not None else "TLS"
        return _exposed("admin", admin.host, lacking, "admin.certificate, admin.key and admin.logins = true")
    return None


def _exposed(section: str, host: str, lacking: str, keys: str) -> str:
    return (
        f"{section}.host: {host} can be reached from other machines, and there is no {lacking}: set {keys}, "
        "or listen on 127.0.0.1, or set insecure = true if every machine that reaches it is trusted"
    )
