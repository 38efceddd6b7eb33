"""Client quotas as values: entities, keys, filters, and Kafka's answers to faulty ones (KIP-13, 546, 612).

Pure values; quota_set.py keeps them and finds the quota of a client, node/kafka/handlers has the requests.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from enum import IntEnum, StrEnum
from ipaddress import IPv6Address, ip_address
from typing import Final, NamedTuple

from strandline.statemachine.kafka_errors import KafkaError, Refused

DEFAULT: Final = ""
"""In place of a name: every user, or client id, that has no quota of its own. Kafka has no empty names."""
USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
MAX_NAME: Final = 4096
"""Characters: as many as the subject of a certificate may have."""


class QuotaKey(StrEnum):
    """Kafka's keys of users and client ids."""

    PRODUCED_BYTES = "producer_byte_rate"
    FETCHED_BYTES = "consumer_byte_rate"
    REQUEST_TIME = "request_percentage"
    MUTATIONS = "controller_mutation_rate"


CONNECTION_RATE: Final = "connection_creation_rate"
"""Kafka's one key of IP addresses: connections a second (KIP-612)."""
_WHOLE: Final = {
    QuotaKey.PRODUCED_BYTES: (2**63 - 1, "LONG"),
    QuotaKey.FETCHED_BYTES: (2**63 - 1, "LONG"),
    CONNECTION_RATE: (2**31 - 1, "INT"),
}
"""The most that each key of whole numbers may be, and Kafka's name of such numbers."""


class QuotaEntity(NamedTuple):
    """The clients that a quota is for; None for a part that is not named."""

    user: str | None
    """The name alone: `alice` for the principal User:alice."""
    client_id: str | None
    ip: str | None = None
    """An IP address in its shortest spelling; never beside one of the others."""

    @property
    def parts(self) -> Iterator[tuple[str, str]]:
        """Kafka's types and names of the parts that are named."""
        if self.user is not None:
            yield USER, self.user
        if self.client_id is not None:
            yield CLIENT_ID, self.client_id
        if self.ip is not None:
            yield IP, self.ip


Changes = Sequence[tuple[str, float | None]]
"""Quotas by key; None for one that goes."""


def entity_of(parts: Sequence[tuple[str, str | None]]) -> QuotaEntity | Refused:
    """The entity of a request's types and names; None is Kafka's default."""
    found: dict[str, str] = {}
    for kind, name in parts:
        if kind in found:
            return _invalid(f"Invalid client quota entity, duplicate entity entry {kind}")
        if kind not in (USER, CLIENT_ID, IP):
            return _invalid(f"Unhandled client quota entity type: {kind}")
        if name is not None and not name:
            return _invalid(f"Empty {kind} not supported")
        found[kind] = DEFAULT if name is None else name
    if not found:
        return _invalid("Invalid empty client quota entity")
    if IP not in found:
        return QuotaEntity(found.get(USER), found.get(CLIENT_ID))
    if len(found) > 1:
        return _invalid("Invalid empty client quota entity: an ip is named alone")
    address = found[IP] and shortest(found[IP])
    if address is None:
        return _invalid(f"{found[IP]} is not a valid IP: write an address, host names are not resolved")
    return QuotaEntity(None, None, address)


def shortest(address: str) -> str | None:
    """The one spelling under which an IP address is kept and looked up; None for what is no address."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return None
    mapped = parsed.ipv4_mapped if isinstance(parsed, IPv6Address) else None
    return str(mapped or parsed)


def fault(entity: QuotaEntity, changes: Changes) -> Refused | None:
    """The refusal of changes that Kafka refuses, or that are too large; None for those that may be made."""
    if not any(entity.parts):
        return _invalid("Invalid empty client quota entity")
    if entity.ip is not None and any((entity.user, entity.client_id)):
        return _invalid("Invalid empty client quota entity: an ip is named alone")
    if any(len(name) > MAX_NAME for _, name in entity.parts):
        return _invalid(f"A name of a client quota entity has at most {MAX_NAME} characters.")
    if len({key for key, _ in changes}) < len(changes):
        return _invalid("Duplicate quota key, no quota of this entity is changed")
    keys = _KEYS if entity.ip is None else _IP_KEYS
    for key, value in changes:
        if value is not None and (reason := _value_fault(keys, key, value)):
            return _invalid(reason)
    return None


def _value_fault(keys: frozenset[str], key: str, value: float) -> str | None:
    if key not in keys:
        return f"Invalid configuration key {key}"
    if not value > 0.0:  # NaN is none either
        return f"Quota {key} must be greater than 0"
    if key in _WHOLE:
        most, kind = _WHOLE[key]
        if value > most:
            return f"Proposed value for {key} is too large for {'an' if kind == 'INT' else 'a'} {kind}."
        if value % 1.0 > 1e-6:
            return f"{key} cannot be a fractional value."
    elif math.isinf(value):
        return f"Quota {key} must be finite: remove it instead"
    return None


class Match(IntEnum):
    """Kafka's numbers of what a component of a filter matches."""

    EXACT = 0
    UNNAMED = 1
    """The default entity."""
    SPECIFIED = 2
    """Any name, and the default."""


class QuotaFilter:
    """The entities that DescribeClientQuotas asks for (KIP-546)."""

    def __init__(self, strict: bool) -> None:
        """`strict`: only entities of just the types that the filter names."""
        self._strict = strict
        self._wanted: dict[str, str | None] = {}
        """By type; None for any name."""

    def add(self, kind: str, match: int, name: str | None) -> Refused | None:
        """One component; gives the refusal of a faulty one."""
        if not kind:
            return _invalid("Invalid empty entity type.")
        if kind in self._wanted:
            return _invalid(f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in (USER, CLIENT_ID, IP):
            return Refused(KafkaError.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        if match not in set(Match):
            return _invalid(f"Unknown match type {match}")
        if match == Match.EXACT:
            if name is None:
                return _invalid("Request specified MATCH_TYPE_EXACT, but set match string to null.")
            self._wanted[kind] = (shortest(name) or name) if kind == IP else name
        elif name is not None:
            asked = "DEFAULT" if match == Match.UNNAMED else "SPECIFIED"
            return _invalid(f"Request specified MATCH_TYPE_{asked}, but also specified a match string.")
        else:
            self._wanted[kind] = DEFAULT if match == Match.UNNAMED else None
        if IP in self._wanted and len(self._wanted) > 1:
            return _invalid(
                "Invalid entity filter component combination. IP filter component should not be used with "
                "user or clientId filter component."
            )
        return None

    def matches(self, entity: QuotaEntity) -> bool:
        """Whether an entity is asked for."""
        parts = dict(entity.parts)
        if self._strict and len(parts) != len(self._wanted):
            return False
        return all(kind in parts and name in (None, parts[kind]) for kind, name in self._wanted.items())


def _invalid(reason: str) -> Refused:
    return Refused(KafkaError.INVALID_REQUEST, reason)


_KEYS: Final = frozenset(map(str, QuotaKey))
_IP_KEYS: Final = frozenset((CONNECTION_RATE,))
