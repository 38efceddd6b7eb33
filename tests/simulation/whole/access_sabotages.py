"""Rules of access control taken out again: what sabotages.py opens, by name.

Nothing here is ever imported by the product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from unittest.mock import patch

from strandline.node.controller.client import ControllerClient
from strandline.node.kafka.handlers.authorizer import Authorizer, _Key
from strandline.statemachine.controller.acl_set import AclSet
from tests.simulation.sabotage import Sabotage

_catches_up = ControllerClient.catch_up
_made = Authorizer.__init__


def _remembers(self: Authorizer, key: _Key) -> bool:
    """As Authorizer._allows, but a decision outlives the entries that it was made by."""
    known = self._known.get(key)
    if known is None:
        self._acls = self._acls_now()
        known = self._known[key] = self._decided(key)
    return known


def _has_the_first(self: Authorizer, acls: Callable[[], AclSet], *more: Any) -> None:
    """As Authorizer.__init__, but the entries of a snapshot that is installed later do not count."""
    first: list[AclSet] = []

    def found() -> AclSet:
        first[:] = first or [acls()]
        return first[0]

    _made(self, found, *more)


async def _has_caught_up(self: ControllerClient, timeout: float) -> bool:  # noqa: ASYNC109
    """As ControllerClient.catch_up, but whether the controller answered is not looked at."""
    await _catches_up(self, timeout)
    return True


ACCESS: Final = (
    Sabotage(
        "decisions-outlive-acls",
        "what was decided before a change of ACLs is decided so after it",
        lambda: (patch.object(Authorizer, "_allows", _remembers),),
    ),
    Sabotage(
        "acls-of-the-first-state",
        "a node that installs a snapshot goes by the ACLs that it had before",
        lambda: (patch.object(Authorizer, "__init__", _has_the_first),),
    ),
    Sabotage(
        "removed-unseen",
        "a node that does not reach the controller says that it removed what it does not know",
        lambda: (patch.object(ControllerClient, "catch_up", _has_caught_up),),
    ),
)
