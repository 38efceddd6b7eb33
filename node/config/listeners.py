"""Listeners for Kafka clients: `[listeners.<name>]`, each an address and a security protocol.

Where there is none, `[kafka]` is the one listener, without TLS. A name is part of variables' names
(`STRANDLINE_LISTENERS_<NAME>_<KEY>`), so it is lower-case letters and digits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from strandline.node.config.addresses import is_loopback, is_wildcard
from strandline.node.config.file_paths import file_path
from strandline.node.config.ports import tls_version
from strandline.node.config.quotas import MAX_INT
from strandline.node.config.token_keys import CURES, DEFAULT_CLAIM, TOKEN_READERS, bearer_tokens
from strandline.node.config.values import (
    any_port,
    choice,
    duration,
    flag,
    optional_text,
    some_text,
    whole,
)
from strandline.node.kafka.wire.principal import PrincipalRules
from strandline.node.kafka.wire.server import ListenAddress
from strandline.node.tls.keeper import TlsSettings
from strandline.statemachine.controller.controller_commands import MAX_LISTENERS

if TYPE_CHECKING:
    from strandline.node.oauth.bearer_tokens import BearerTokens

SECTION: Final = "listeners"
PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
OAUTHBEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", OAUTHBEARER)
LEAST_REAUTH_SECONDS: Final = 2.0
_NAME: Final = re.compile(r"[a-z][a-z0-9]{0,31}")


@dataclass(frozen=True, slots=True)
class ListenerSection:
    """One listener. Port 0 takes a free one."""

    name: str
    host: str = "127.0.0.1"
    port: int = 9092
    advertised_host: str = ""
    """Host that clients are told to connect to; empty: the host."""
    advertised_port: int = 0
    """0: the port it listens on."""
    protocol: str = "PLAINTEXT"
    """Kafka's name of the security protocol."""
    certificate: str = ""
    key: str = ""
    ca: str = ""
    """Paths of PEM files; see `TlsSettings`."""
    client_certificate: str = "none"
    tls_version: str = "1.2"
    principal_rules: tuple[str, ...] = ()
    mechanisms: tuple[str, ...] = MECHANISMS[:2]
    """SASL mechanisms, where clients log in."""
    nodes_ca: str = ""
    """Path of a PEM file with the authorities of the nodes' own certificates, for the processes of views."""
    plain_without_tls: bool = False
    """Whether it is meant that passwords, and tokens, cross the network as they are."""
    oauth_keys: str = ""
    """Path or URL of the JSON Web Key Set of the tokens' issuer."""
    oauth_issuer: str = ""
    oauth_audience: str = ""
    oauth_principal_claim: str = DEFAULT_CLAIM
    max_reauth_seconds: float = 0.0
    """The longest that a login counts (Kafka's `connections.max.reauth.ms`); 0: as long as its connection."""
    max_connections: int = 0
    """Above which a further one waits (Kafka's `listener.name.<name>.max.connections`); 0 for no bound."""
    max_connection_creation_rate: int = 0
    """Likewise, connections a second."""
    section: str = ""
    """Its section of the configuration, where that is not [listeners.<name>]."""

    @property
    def has_tls(self) -> bool:
        """Whether clients speak TLS."""
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def has_sasl(self) -> bool:
        """Whether clients log in."""
        return self.protocol.startswith("SASL_")

    @property
    def tls(self) -> TlsSettings | None:
        """None for a listener without TLS."""
        if not self.has_tls:
            return None
        return TlsSettings(self.certificate, self.key, self.ca, self.client_certificate, self.tls_version)

    @property
    def address(self) -> ListenAddress:
        """For the server."""
        mechanisms = self.mechanisms if self.has_sasl else ()
        section = self.section or f"{SECTION}.{self.name}"
        rules = PrincipalRules.parse(self.principal_rules)
        return ListenAddress(
            self.host,
            self.port,
            self.name,
            self.tls,
            rules,
            mechanisms,
            self.max_reauth_seconds,
            self._tokens,
            section,
            self.max_connections,
            self.max_connection_creation_rate,
        )

    @property
    def _tokens(self) -> BearerTokens | None:
        if not self.has_sasl or OAUTHBEARER not in self.mechanisms:
            return None
        return bearer_tokens(self)


def _protocol(value: Any) -> str:
    name = value.upper() if isinstance(value, str) else value
    if name not in PROTOCOLS:
        raise ValueError(f"{value!r} is none of {', '.join(PROTOCOLS)}")
    return str(name)


def _mechanisms(value: Any) -> tuple[str, ...]:
    found = value.split(",") if isinstance(value, str) else value
    if not isinstance(found, list) or not found or not set(map(str, found)).issubset(MECHANISMS):
        raise ValueError(f"{value!r} is not a list of some of {', '.join(MECHANISMS)}")
    return tuple(dict.fromkeys(found))


def _reauth_seconds(value: Any) -> float:
    seconds = duration(value)
    if 0 < seconds < LEAST_REAUTH_SECONDS:
        raise ValueError(
            f"{value!r} is less than {LEAST_REAUTH_SECONDS:g} s: "
            "there is a second at least between two logins, and clients need some time for one: "
            "write more, or 0 for logins that do not end"
        )
    return seconds


def principal_rules(value: Any) -> tuple[str, ...]:
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(rule, str) for rule in found):
        raise ValueError(f'{value!r} is not a list of rules: write like ["RULE:^CN=([^,]+).*$/$1/"]')
    PrincipalRules.parse(found)
    return tuple(found)


LISTENER_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "host": some_text,
    "port": any_port,
    "advertised_host": optional_text,
    "advertised_port": any_port,
    "protocol": _protocol,
    "certificate": file_path,
    "key": file_path,
    "ca": file_path,
    "client_certificate": choice("none", "wanted", "required"),
    "tls_version": tls_version,
    "principal_rules": principal_rules,
    "mechanisms": _mechanisms,
    "nodes_ca": file_path,
    "plain_without_tls": flag,
    "max_reauth_seconds": _reauth_seconds,
    "max_connections": whole(0, MAX_INT),
    "max_connection_creation_rate": whole(0, MAX_INT),
    **TOKEN_READERS,
}
_SASL_KEYS: Final = ("mechanisms", "plain_without_tls", "max_reauth_seconds", *TOKEN_READERS)
_TLS_KEYS: Final = ("certificate", "key", "ca", "client_certificate", "tls_version", "principal_rules")
assert {"name", "section", *LISTENER_READERS} == {each.name for each in fields(ListenerSection)}


def split(key: str) -> tuple[str, str] | None:
    """The listener's name and the key in `listeners.<name>.<key>`; None for any other."""
    section, _, rest = key.partition(".")
    name, _, field = rest.partition(".")
    if section != SECTION or field not in LISTENER_READERS:
        return None
    return (name, field) if _NAME.fullmatch(name) else None


def key_of_variable(name: str) -> str | None:
    """The key that `listeners_<name>_<key>` gives: names have no underscore, so there is one reading."""
    section, _, rest = name.partition("_")
    listener, _, key = rest.partition("_")
    found = f"{section}.{listener}.{key}"
    return found if split(found) is not None else None


def checked(listeners: tuple[ListenerSection, ...], *, insecure: bool) -> str | None:
    """The first mistake that no key has by itself: `<key>: cause: cure`; None if there is none."""
    if len(listeners) > MAX_LISTENERS:
        return f"{SECTION}: {len(listeners)} listeners are more than {MAX_LISTENERS}: leave some out"
    taken: dict[tuple[str, int], str] = {}
    for listener in listeners:
        section = f"{SECTION}.{listener.name}"
        if (mistake := _tls_mistake(listener) or _sasl_mistake(listener)) is not None:
            return f"{section}.{mistake}"
        proved = listener.client_certificate == "required" or listener.protocol == "SASL_SSL"
        if not insecure and not is_loopback(listener.host) and not proved:
            return (
                f"{section}.host: {listener.host} can be reached from other machines, and clients need not "
                'prove their names: set protocol = "SASL_SSL", or client_certificate = "required", or listen '
                "on 127.0.0.1, or set insecure = true if every machine that reaches it is trusted"
            )
        key = "advertised_host" if listener.advertised_host else "host"
        told = listener.advertised_host or listener.host
        if is_wildcard(told):
            return (
                f"{section}.{key}: clients would be told to connect to {told}, which is no machine's "
                "address: set advertised_host to the name or address at which they reach this node"
            )
        place = (listener.host, listener.port)
        if listener.port and place in taken:
            return f"{section}.port: {taken[place]} has {listener.host}:{listener.port} already: take another"
        taken[place] = listener.name
    return None


def _sasl_mistake(listener: ListenerSection) -> str | None:
    default = ListenerSection("")
    for key in _SASL_KEYS:
        if not listener.has_sasl and getattr(listener, key) != getattr(default, key):
            return f"{key}: no client logs in by {listener.protocol}: set protocol, or leave this key out"
    if listener.nodes_ca and listener.protocol != "SASL_SSL":
        return "nodes_ca: it is for logins by SASL_SSL: set protocol, or leave this key out"
    bare = [one for one in ("PLAIN", OAUTHBEARER) if one in listener.mechanisms]
    if bare and not listener.has_tls and not listener.plain_without_tls:
        what = "password" if bare[0] == "PLAIN" else "token"
        return (
            f"mechanisms: by {bare[0]} and without TLS every {what} crosses the network as it is: set "
            'protocol to "SASL_SSL", or plain_without_tls = true if that is meant'
        )
    for key, cure in CURES.items():
        if OAUTHBEARER in listener.mechanisms and not getattr(listener, key):
            return f"{key}: it is not set, and logins by OAUTHBEARER need it: {cure}"
        if OAUTHBEARER not in listener.mechanisms and getattr(listener, key):
            return f"{key}: no client logs in by OAUTHBEARER: add it to mechanisms, or leave this key out"
    return None


def _tls_mistake(listener: ListenerSection) -> str | None:
    if not listener.has_tls:
        default = ListenerSection("")
        given = [key for key in _TLS_KEYS if getattr(listener, key) != getattr(default, key)]
        if given:
            return f"{given[0]}: {listener.protocol} has no TLS: set protocol, or leave this key out"
        return None
    for key in ("certificate", "key"):
        if not getattr(listener, key):
            return f"{key}: it is not set, and {listener.protocol} needs it: write the path of a PEM file"
    if listener.client_certificate != "none" and not listener.ca:
        return "ca: it is not set: write the path of the authorities that sign clients' certificates, in PEM"
    if listener.ca and listener.client_certificate == "none":
        return 'ca: no certificate of a client is looked at: set client_certificate to "wanted" or "required"'
    return None
