"""Access control entries: principal, host, operation and resource in Kafka's numbers (KIP-11, KIP-290).

Pure values: validity and filters. node/kafka/handlers has the requests, acl_set.py the decisions.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

WILDCARD: Final = "*"
"""As a literal name every resource of the type, as a host every host."""
ANY_USER: Final = "User:*"
CLUSTER_NAME: Final = "kafka-cluster"
"""Kafka's name for the one resource of the type CLUSTER."""
MAX_TEXT: Final = 4096
"""Characters of a name, principal or host: as many as a certificate's subject may have."""


class ResourceType(IntEnum):
    """Kafka's codes; ANY is only for filters."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """The meaning of a name; ANY and MATCH are only for filters."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    """Kafka's AclOperation; ANY is only for filters."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(IntEnum):
    """ANY is only for filters."""

    ANY = 1
    DENY = 2
    ALLOW = 3


class Acl(NamedTuple):
    """One entry. The numbers are those of the enumerations above."""

    resource_type: int
    name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int


class AclFilter(NamedTuple):
    """The entries that are meant; None and ANY match everything."""

    resource_type: int
    name: str | None
    pattern_type: int
    principal: str | None
    host: str | None
    operation: int
    permission: int

    def matches(self, acl: Acl) -> bool:
        """Kafka's AclBindingFilter."""
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self._names(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
        )

    def _names(self, acl: Acl) -> bool:
        """Kafka's ResourcePatternFilter: MATCH finds the patterns that would apply to a resource so named."""
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, acl.pattern_type):
            return False
        if self.name is None or self.name == acl.name:
            return True
        if self.pattern_type != PatternType.MATCH:
            return False
        if acl.pattern_type == PatternType.PREFIXED:
            return self.name.startswith(acl.name)
        return acl.name == WILDCARD


def fault(acl: Acl) -> str | None:
    """The reason why Kafka refuses to make an entry, as INVALID_REQUEST; None for a valid one."""
    if acl.resource_type not in _RESOURCES:
        return f"Invalid resourceType {acl.resource_type}"
    if acl.resource_type == ResourceType.CLUSTER and acl.name != CLUSTER_NAME:
        return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    if not acl.name:
        return "Resource name should not be empty"
    if acl.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        return f"Invalid patternType {acl.pattern_type}"
    if acl.operation not in _OPERATIONS:
        return f"Invalid operation {acl.operation}"
    if acl.permission not in (Permission.DENY, Permission.ALLOW):
        return f"Invalid permissionType {acl.permission}"
    if ":" not in acl.principal:
        return "Could not parse principal (no colon is present separating the principal type from its name)"
    if max(map(len, (acl.name, acl.principal, acl.host))) > MAX_TEXT:
        return f"A name, principal or host of an ACL has at most {MAX_TEXT} characters."
    return None


def filter_fault(wanted: AclFilter) -> str | None:
    """The reason why a filter is refused: it has a number that no release of Kafka has."""
    known = (
        ("resourceType", wanted.resource_type, {*_RESOURCES, ResourceType.ANY}),
        ("patternType", wanted.pattern_type, set(PatternType)),
        ("operation", wanted.operation, {*_OPERATIONS, Operation.ANY}),
        ("permissionType", wanted.permission, set(Permission)),
    )
    return next(
        (f"Unknown {name} {number}" for name, number, numbers in known if number not in numbers), None
    )


_RESOURCES: Final = frozenset(ResourceType) - {ResourceType.ANY}
_OPERATIONS: Final = frozenset(Operation) - {Operation.ANY}
