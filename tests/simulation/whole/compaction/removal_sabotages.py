"""Rules of removal taken out again: which copies count, and which of their words. sabotages.py opens them.

Nothing here is ever imported by the product.
"""

from __future__ import annotations

from typing import Any, Final
from unittest.mock import patch

from strandline.node.compaction.cleaning_round import CleaningRound
from strandline.node.compaction.removal_leader import Copies, RemovalLeader
from strandline.node.compaction.reports import Report, Reports
from tests.simulation.sabotage import Sabotage


def _of_the_others(self: RemovalLeader, replica: Any) -> Copies:
    copies = _copies(self, replica)
    own: Any = self._context.reports
    members = copies.configuration
    others = tuple(node for node in members.voters if node != own._host.node_id)
    return copies._replace(configuration=type(members)(members.index, others, members.learners))


def _of_the_voters(self: RemovalLeader, replica: Any) -> Copies:
    copies = _copies(self, replica)
    members = copies.configuration
    return copies._replace(configuration=type(members)(members.index, members.voters))


def _of_the_first(self: RemovalLeader, replica: Any) -> Copies:
    copies, term = _copies(self, replica), replica.leader_epoch
    first = vars(self).setdefault(f"_sabotaged {replica.group.id} {term}", copies.configuration)
    known = self._context.reports.known(replica.group.id, term, first.members)
    return copies._replace(configuration=first, known=known)


_copies = RemovalLeader.copies


def _connected_again(self: Reports, peer: int) -> None:
    """As Reports._on_connect, but what the peer has said before counts until it says more."""
    before = self._received.get(peer, {})
    _on_connect(self, peer)
    self._received[peer] = {group: Report(-1, one.term, one.ends) for group, one in before.items()}


def _disconnected(self: Reports, peer: int) -> None:
    self._connected.pop(peer, None)


_on_connect = Reports._on_connect


def _ripe_as_markers(self: CleaningRound, *args: Any, **named: Any) -> None:
    _round(self, *args, **named)
    self._ripe = (self._ripe[1], self._ripe[1])


_round = CleaningRound.__init__

OF_REMOVAL: Final = (
    Sabotage(
        "own-log-forgotten", "the minimum is that of the other members than the leader",
        lambda: (patch.object(RemovalLeader, "copies", _of_the_others),),
    ),
    Sabotage(
        "learners-forgotten", "the minimum is that of the voters: a replica that joins does not count",
        lambda: (patch.object(RemovalLeader, "copies", _of_the_voters),),
    ),
    Sabotage(
        "first-members", "a leader goes by the members that there were when its term began",
        lambda: (patch.object(RemovalLeader, "copies", _of_the_first),),
    ),
    Sabotage(
        "lost-connections", "what a replica has said outlives the connection that it came over",
        lambda: (
            patch.object(Reports, "_on_connect", _connected_again),
            patch.object(Reports, "_on_disconnect", _disconnected),
        ),
    ),
    Sabotage(
        "ripe-as-markers", "tombstones go when markers may",
        lambda: (patch.object(CleaningRound, "__init__", _ripe_as_markers),),
    ),
)  # fmt: skip
