"""All access control entries, and the decisions that follow from them: those of Kafka's StandardAuthorizer.

A name is looked up as a literal, under the wildcard, and by one slice for each length of a prefix that there
is, so a decision costs the same with ten entries and with ten thousand for other names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Final, NamedTuple

from strandline.statemachine.controller.acl import (
    ANY_USER,
    WILDCARD,
    Acl,
    Operation,
    PatternType,
    Permission,
    fault,
)
from strandline.statemachine.controller.controller_commands import AlterAcls
from strandline.statemachine.kafka_errors import KafkaError, Refused

MAX_ACLS: Final = 20_000
MAX_CHARACTERS: Final = 4 << 20
"""Of all names, principals and hosts: they are in each snapshot of the controller."""
_IMPLY_DESCRIBE: Final = frozenset(
    (Operation.DESCRIBE, Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER, Operation.ALL)
)
_IMPLY_DESCRIBE_CONFIGS: Final = frozenset(
    (Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS, Operation.ALL)
)


MAX_SPELLINGS: Final = 4096
"""Pairs of hosts whose comparison is remembered."""


class Client(NamedTuple):
    """The client that decisions are about."""

    principal: str
    host: str


class AclSet:
    """The entries in the order in which they came. `version` goes up with each change."""

    def __init__(self, acls: Iterable[Acl] = ()) -> None:
        self._acls: dict[Acl, None] = {}
        self._of_pattern: dict[tuple[int, int, str], dict[Acl, None]] = {}
        self._prefix_lengths: dict[int, Counter[int]] = {}
        """Of the prefixed patterns of a type of resource: how many there are of each length."""
        self._characters = 0
        self.version = 0
        for acl in acls:
            self._add(acl)

    def __iter__(self) -> Iterator[Acl]:
        return iter(self._acls)

    def __len__(self) -> int:
        return len(self._acls)

    # Changes.

    def alter(self, command: AlterAcls) -> int | Refused:
        """Add entries and remove others, all or none; those that are there, or not there, are left so."""
        added = [acl for row in command.additions if (acl := Acl(*row)) not in self._acls]
        for acl in added:
            if reason := fault(acl):
                return Refused(KafkaError.INVALID_REQUEST, reason)
        if added and len(self._acls) + len(added) > MAX_ACLS:
            reason = f"There are {len(self._acls)} ACLs, of {MAX_ACLS}: delete those that are not used."
            return Refused(KafkaError.POLICY_VIOLATION, reason)
        if added and self._characters + sum(map(_characters, added)) > MAX_CHARACTERS:
            reason = (
                f"The ACLs would have more than {MAX_CHARACTERS} characters: delete those that are not used."
            )
            return Refused(KafkaError.POLICY_VIOLATION, reason)
        for acl in added:
            self._add(acl)
        for row in command.deletions:
            self._remove(Acl(*row))
        self.version += 1
        return len(self._acls)

    def _add(self, acl: Acl) -> None:
        if acl in self._acls:
            return
        self._acls[acl] = None
        self._characters += _characters(acl)
        key = acl.resource_type, acl.pattern_type, acl.name
        if key not in self._of_pattern:
            self._of_pattern[key] = {}
            if acl.pattern_type == PatternType.PREFIXED:
                self._prefix_lengths.setdefault(acl.resource_type, Counter())[len(acl.name)] += 1
        self._of_pattern[key][acl] = None

    def _remove(self, acl: Acl) -> None:
        if acl not in self._acls:
            return
        del self._acls[acl]
        self._characters -= _characters(acl)
        key = acl.resource_type, acl.pattern_type, acl.name
        del self._of_pattern[key][acl]
        if self._of_pattern[key]:
            return
        del self._of_pattern[key]
        if acl.pattern_type == PatternType.PREFIXED:
            lengths = self._prefix_lengths[acl.resource_type]
            lengths[len(acl.name)] -= 1
            if not lengths[len(acl.name)]:
                del lengths[len(acl.name)]
            if not lengths:
                del self._prefix_lengths[acl.resource_type]

    # Decisions.

    def decide(self, client: Client, operation: int, kind: int, name: str) -> bool | None:
        """Whether a client may do this; None where no entry is about the resource, for any client at all.

        One entry that denies outweighs all that allow. Only entries that allow imply another operation.
        """
        found, allowed = False, False
        for acl in self._about(kind, name):
            found = True
            if not _is_for(acl, client):
                continue
            if acl.permission == Permission.DENY:
                if acl.operation in (operation, Operation.ALL):
                    return False
            elif _grants(acl.operation, operation):
                allowed = True
        return allowed if found else None

    def allows_some(self, client: Client, operation: int, kind: int) -> bool:
        """Whether there may be a resource of this type to which a client may do this, by its entries alone.

        Kafka's Authorizer.authorizeByResourceType, as it stands there: no operation implies another.
        """
        allowed: list[tuple[int, str]] = []
        denied: set[tuple[int, str]] = set()
        for (of_kind, pattern_type, name), acls in self._of_pattern.items():
            if of_kind != kind:
                continue
            for acl in acls:
                if not _is_for(acl, client) or acl.operation not in (operation, Operation.ALL):
                    continue
                if acl.permission == Permission.DENY:
                    denied.add((pattern_type, name))
                else:
                    allowed.append((pattern_type, name))
        if (PatternType.LITERAL, WILDCARD) in denied:
            return False
        return any(
            (pattern_type, name) == (PatternType.LITERAL, WILDCARD)
            or not (
                (pattern_type == PatternType.LITERAL and (pattern_type, name) in denied)
                or any((PatternType.PREFIXED, name[: end + 1]) in denied for end in range(len(name)))
            )
            for pattern_type, name in allowed
        )

    def _about(self, kind: int, name: str) -> Iterator[Acl]:
        of_pattern = self._of_pattern
        keys: list[tuple[int, int, str]] = [
            (kind, PatternType.LITERAL, name),
            (kind, PatternType.LITERAL, WILDCARD),
        ]
        for length in self._prefix_lengths.get(kind, ()):
            if length <= len(name):
                keys.append((kind, PatternType.PREFIXED, name[:length]))
        for key in keys:
            yield from of_pattern.get(key, ())


def _is_for(acl: Acl, client: Client) -> bool:
    return acl.principal in (client.principal, ANY_USER) and (
        acl.host in (client.host, WILDCARD) or _same_address(acl.host, client.host)
    )


@lru_cache(MAX_SPELLINGS)
def _same_address(host: str, client: str) -> bool:
    """Whether an entry's host is a client's IPv6 address in another spelling.

    Java writes 2001:db8:0:0:0:0:0:1, Python 2001:db8::1, and Java has 10.0.0.1 for ::ffff:10.0.0.1. An entry
    made for the one must hold for the other, most of all one that denies.
    """
    if ":" not in client:
        return False
    try:
        address, told = ip_address(host), IPv6Address(client)
    except ValueError:
        return False
    return address in (told, told.ipv4_mapped)


def _grants(allowed: int, operation: int) -> bool:
    if operation == Operation.DESCRIBE:
        return allowed in _IMPLY_DESCRIBE
    if operation == Operation.DESCRIBE_CONFIGS:
        return allowed in _IMPLY_DESCRIBE_CONFIGS
    return allowed in (operation, Operation.ALL)


def _characters(acl: Acl) -> int:
    return len(acl.name) + len(acl.principal) + len(acl.host)
