"""Decides whether a client may do something, by the ACLs of the controller's replica here: no lock, no wait.

A decision is remembered until the ACLs change, so that a partition of a produce or fetch request costs one
look-up in a dict.
"""

from __future__ import annotations

from collections.abc import Callable
from sys import getsizeof
from typing import Final

from strandline.node.config.authorization import AuthorizationSection
from strandline.node.kafka.wire.session import VIEWS
from strandline.statemachine.controller.acl import Operation, ResourceType
from strandline.statemachine.controller.acl_set import AclSet, Client

MAX_REMEMBERED: Final = 50_000
"""Decisions; beyond it all are forgotten. With the next bound some 40 MB at most."""
MAX_REMEMBERED_NAME: Final = 600
"""Bytes of memory of a resource's name, twice what a topic's longest takes: a decision about a longer one is
made each time."""
_ANY_NAME: Final = "hardcode"
"""The name that Kafka's Authorizer.authorizeByResourceType asks for first, in its own words."""

_Key = tuple[str, str, Operation, ResourceType, str | None]


class Authorizer:
    """The decisions of one node; made where `authorization.enabled` is set.

    `acls` gives the entries as this node has applied them: another object after a snapshot was installed.
    `views` decides for the processes of views, for which entries do not count.
    """

    def __init__(
        self,
        acls: Callable[[], AclSet],
        settings: AuthorizationSection,
        views: Callable[[Operation, ResourceType, str], bool] = lambda *_: False,
    ) -> None:
        self._acls_now = acls
        self._views = views
        self._super_users = frozenset(settings.super_users)
        self._without_acls = settings.allow_everyone_if_no_acl_found
        self._acls = AclSet()  # The controller's replica comes later.
        self._version = self._acls.version
        self._known: dict[_Key, bool] = {}

    def allows(self, principal: str, host: str, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Whether a client may do this to the resource."""
        if principal == VIEWS:
            return self._views(operation, kind, name)
        return self._allows((principal, host, operation, kind, name))

    def allows_some(self, principal: str, host: str, operation: Operation, kind: ResourceType) -> bool:
        """Whether there may be a resource of this type to which the client may do this."""
        if principal == VIEWS:
            return False
        return self._allows((principal, host, operation, kind, None))

    def _allows(self, key: _Key) -> bool:
        acls = self._acls_now()
        if acls is not self._acls or acls.version != self._version:
            self._acls, self._version = acls, acls.version
            self._known.clear()
        known = self._known.get(key)
        if known is None:
            known = self._decided(key)
            if getsizeof(key[4]) <= MAX_REMEMBERED_NAME:
                if len(self._known) >= MAX_REMEMBERED:
                    self._known.clear()
                self._known[key] = known
        return known

    def _decided(self, key: _Key) -> bool:
        principal, host, operation, kind, name = key
        if principal in self._super_users:
            return True
        client = Client(principal, host)
        found = self._acls.decide(client, operation, kind, _ANY_NAME if name is None else name)
        allowed = self._without_acls if found is None else found
        if name is None and not allowed:
            return self._acls.allows_some(client, operation, kind)
        return allowed
