"""A client's name, from the subject of its certificate.

Kafka's default is the whole distinguished name as RFC 2253 writes it, the last part first; rules make
something shorter of it (KIP-371, `ssl.principal.mapping.rules`). The rules are the operator's and the
subjects are signed by the operator's authority, so Python's own regular expressions do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from strandline.node.kafka.wire.session import ANONYMOUS

MAX_NAME: Final = 4096
"""Characters of a distinguished name; a longer one is refused before any rule sees it."""
_SHORT: Final = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "userId": "UID",
}
"""RFC 2253, section 2.3; another attribute keeps the name that OpenSSL has for it."""
_SPECIAL: Final = re.compile(r'[,+"\\<>;]|^[ #]| $')
_RULE: Final = re.compile(r"RULE:(?P<pattern>[^/]*)/(?P<replacement>[^/]*)/(?P<case>[LU]?)")
_GROUP: Final = re.compile(r"\$(\d)")


class NoName(Exception):
    """A certificate that gives its client no name; `str()` is half a line."""


def distinguished_name(certificate: dict[str, Any]) -> str:
    """The subject of a certificate, as `ssl.SSLSocket.getpeercert` gives it."""
    parts = [
        "+".join(f"{_SHORT.get(kind, kind)}={_SPECIAL.sub(_escaped, value)}" for kind, value in part)
        for part in reversed(certificate.get("subject", ()))
    ]
    return ",".join(parts)


def _escaped(special: re.Match[str]) -> str:
    return f"\\{special[0]}"


@dataclass(frozen=True, slots=True)
class _Rule:
    pattern: re.Pattern[str] | None
    """None for DEFAULT, which takes every name as it is."""
    replacement: str
    case: str

    def name(self, subject: str) -> str | None:
        if self.pattern is None:
            return subject
        match = self.pattern.fullmatch(subject)
        if match is None:
            return None
        name = _GROUP.sub(lambda group: match[int(group[1])] or "", self.replacement)
        return name.lower() if self.case == "L" else name.upper() if self.case == "U" else name


class PrincipalRules:
    """Rules in their order: the first whose pattern is all of the name decides."""

    def __init__(self, rules: Sequence[_Rule]) -> None:
        self._rules = rules

    @classmethod
    def parse(cls, texts: Iterable[str]) -> PrincipalRules:
        """Read rules as Kafka writes them, none for DEFAULT alone; ValueError names the one that is wrong."""
        return cls([_parsed(text) for text in texts] or [_parsed("DEFAULT")])

    def principal(self, certificate: dict[str, Any]) -> str:
        """The principal of a client with this certificate. Raises NoName."""
        subject = distinguished_name(certificate)
        if not subject or len(subject) > MAX_NAME:
            raise NoName(f"the subject of the client's certificate has {len(subject)} characters")
        for rule in self._rules:
            name = rule.name(subject)
            if name and f"User:{name}" == ANONYMOUS:
                raise NoName(f"{subject} has the name of clients that show no certificate")
            if name:
                return f"User:{name}"
        raise NoName(f"none of principal_rules gives the client a name, its subject is {subject}")


def _parsed(text: str) -> _Rule:
    if text == "DEFAULT":
        return _Rule(None, "", "")
    match = _RULE.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{text!r} is not a rule: write DEFAULT, or like RULE:^CN=([^,]+).*$/$1/ with L or U behind it"
        )
    try:
        pattern = re.compile(match["pattern"])
    except re.error as error:
        raise ValueError(f"{text!r} has no valid pattern: {error}") from None
    groups = [int(number) for number in _GROUP.findall(match["replacement"])]
    if groups and max(groups) > pattern.groups:
        raise ValueError(f"{text!r} uses ${max(groups)}, and its pattern has {pattern.groups} groups")
    return _Rule(pattern, match["replacement"], match["case"])


WHOLE_NAMES: Final = PrincipalRules.parse(())
"""Kafka's default: a subject is a name as it is."""
