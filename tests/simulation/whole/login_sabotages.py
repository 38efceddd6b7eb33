"""Rules of users and logins taken out again: what sabotages.py opens, by name.

Nothing here is ever imported by the product.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from unittest.mock import patch

from strandline.node.kafka.handlers import sasl
from strandline.node.kafka.wire.server import KafkaServer
from strandline.statemachine.controller import controller_snapshot, scram_credentials
from strandline.statemachine.controller.controller import Controller
from strandline.statemachine.controller.controller_commands import AlterScramCredentials
from tests.simulation.sabotage import Sabotage

_start = KafkaServer.start
_captured = controller_snapshot.capture
_altered = scram_credentials.alter
_exchange = sasl._scram


def _first(self: Controller) -> Mapping[tuple[str, int], Any]:
    """As Controller.credentials, but those of a snapshot that is installed later do not count."""
    first: Mapping[tuple[str, int], Any] = self.__dict__.setdefault("first", self._state.credentials)
    return first


def _stays(credentials: dict[Any, Any], command: AlterScramCredentials) -> Any:
    """As alter, but what is deleted stays."""
    known = dict(credentials)
    result = _altered(credentials, command)
    for key in known.keys() - credentials.keys():
        credentials[key] = known[key]
    return result


def _takes_any_time(self: KafkaServer, listeners: Any, *, accept: bool = True) -> Any:
    """As KafkaServer.start, but clients are let in before the node has caught up."""
    return _start(self, listeners, accept=True)


def _remembers(context: Any, mechanism: Any) -> Any:
    """As _scram, but a credential that was found once is not looked up again for as long as the node runs."""
    made = _exchange(context, mechanism)
    find = made._find
    known = context.__dict__.setdefault("remembered", {})

    def found(user: str) -> Any:
        known[user] = known.get(user) or find(user)
        return known[user]

    made._find = found
    return made


LOGINS: Final = (
    Sabotage(
        "users-of-the-first-state",
        "a node that installs a snapshot knows the users that it knew before",
        lambda: (patch.object(Controller, "credentials", property(_first)),),
    ),
    Sabotage(
        "users-in-no-snapshot",
        "the controller's snapshots have no users",
        lambda: (patch.object(controller_snapshot, "capture", _without),),
    ),
    Sabotage(
        "deleted-users-stay",
        "a user that is deleted may log in",
        lambda: (patch.object(scram_credentials, "alter", _stays),),
    ),
    Sabotage(
        "logins-before-caught-up",
        "a node takes clients before it knows what was committed when it started",
        lambda: (patch.object(KafkaServer, "start", _takes_any_time),),
    ),
    Sabotage(
        "passwords-remembered",
        "a credential that a login was compared with counts from then on",
        lambda: (patch.object(sasl, "_scram", _remembers),),
    ),
)


def _without(state: Any, *, secrets: bool = True) -> bytes:
    """As capture, without credentials."""
    return _captured(state, secrets=False)
