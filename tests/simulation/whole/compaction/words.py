"""What each replica has said of its log, and what leaders have heard: which one may be overtaken rightly.

A leader counts on the newest word of each member on the present connection. A log that is lost, or is begun
anew, has less than its word says until the leader hears the next one: only between those two may removal go
beyond a member, whatever time that takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from strandline.node.compaction.removal_minimum import Ends
from tests.simulation.whole.sim_broker import SimBroker

NO_ENDS = Ends(0, 0)


@dataclass(slots=True)
class Said:
    """What a replica has reported since its log was made, and what has become of that log."""

    ends: Ends = NO_ENDS
    losses: int = 0
    """Times that the log, or a file of it, was lost, or that it was begun anew."""
    missing: bool = False
    """Files were lost, and it was not opened since."""
    overtaken: bool = False
    """Removal rightly went beyond it: it was no member, or its leader had not heard of its loss."""
    rotten: set[str] = field(default_factory=set)
    """Its files with a bit that has changed, until it is made anew."""
    swept: int = 0
    """The end of what its rounds were to clean: one that is broken off has cleaned some of it."""
    resetting: bool = False
    """A reset of the log has begun since its last change. The process may be killed in it: then the next one
    finds a new, empty log, and has reset none."""

    def lose(self) -> None:
        """Its files, or some, are gone; what was said of them is void."""
        self.ends, self.missing = NO_ENDS, True
        self.losses += 1


class Members(NamedTuple):
    """The members of a partition when an entry of removal was about to be proposed."""

    losses: dict[int, int]
    unheard: set[int]
    """Those that had lost their logs since the word of them that the leader went by."""

    def may_be_overtaken(self, node: int, losses: int) -> bool:
        """Whether the entry may be above this node's log, which has been lost so many times by now."""
        return node in self.unheard or self.losses.get(node) != losses


class Words:
    """By node and group."""

    def __init__(self) -> None:
        self._said: dict[tuple[int, int], Said] = {}
        self._told: dict[tuple[int, int, int], int] = {}
        """By boot id of a process, number of a frame of it, and group: losses of the log until then."""

    def of(self, node: int, group: int) -> Said:
        return self._said.setdefault((node, group), Said())

    def watch(self, broker: SimBroker, on_report: Callable[[int, Ends], None]) -> None:
        """Hear of each report, and of its group, that a broker is about to send."""
        reports = broker.reports
        send = reports._send

        def sent(peer: int, rows: list[tuple[int, Any]]) -> None:
            for group, told in rows:
                if told.ends is not None:
                    on_report(group, told.ends)
                self._told[broker.boot_id, reports._number + 1, group] = self.of(broker.node_id, group).losses
            send(peer, rows)

        reports._send = sent  # type: ignore[method-assign]

    def members(self, leader: SimBroker, group: int, term: int, members: Iterable[int]) -> Members:
        """As the leader of a term knows them in this turn."""
        losses = {node: self.of(node, group).losses for node in members}
        unheard = {node for node in losses if self._unheard(leader, node, group, term)}
        return Members(losses, unheard)

    def _unheard(self, leader: SimBroker, node: int, group: int, term: int) -> bool:
        """Whether the newest word of this term, on the present connection, is from before a loss."""
        peer, word = leader.host.mesh._peers.get(node), leader.reports._received.get(node, {}).get(group)
        if word is None or word.term != term or peer is None or peer.link is None:
            return False
        told = self._told.get((peer.link.boot_id, word.number, group))
        # A word that did not come over the present connection excuses nothing.
        return told is not None and told < self.of(node, group).losses
