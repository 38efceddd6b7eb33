"""Level-one objects that a local log could not be filled from, told to the leaders, which replace them.

Such an object is lost or damaged, and a leader's own log may have what it should hold: a publication replaces
it then. Without that the log that cannot be filled would hold removal back until an operator acts, if all
records of the object are still the newest of their keys, as nothing else replaces it. docs/compaction.md.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

from strandline.node.compaction.reports import Calls, Leaders
from strandline.node.level_one.context import Replica, label
from strandline.node.rpc import CallFailed
from strandline.statemachine.partition.level_one import LevelOneExtent, level_one_name

log = logging.getLogger(__name__)

TELL: Final = "compaction.unreadable"
UNIQUE_BYTES: Final = 16
MOST: Final = 64
"""Objects that are remembered of a partition; what is left out is told again when its log is tried again."""


class Host(Protocol):
    """The groups with a replica here."""

    @property
    def groups(self) -> Mapping[int, object]: ...


class UnreadableObjects:
    """One per node. Nothing is kept on disk: a log that lacks an object tells of it again within a minute."""

    def __init__(self, calls: Calls, host: Host, leaders: Leaders) -> None:
        self._calls = calls
        self._host = host
        self._leaders = leaders
        self._told: dict[int, dict[bytes, int]] = {}
        """By group: the node that told of each object, by the object's unique bytes."""
        calls.serve(TELL, self._on_told)

    def tell(self, group: int, unique: bytes) -> None:
        """Tell the group's leader, if one is known here, which may be this node."""
        leader = self._leaders.leader_of(group)
        if leader is not None:
            self._calls.tell(leader.node, TELL, [group, unique])

    def take(self, replica: Replica, run: Iterable[LevelOneExtent]) -> frozenset[bytes] | None:
        """The unique bytes of what was told of a partition, which is forgotten here; None if `run` has none.

        Those that cannot be replaced yet are told again.
        """
        told = self._told.get(replica.group.id)
        if told is None:
            return None
        for one in run:
            if (node := told.get(one.unique)) is not None:
                name = level_one_name(replica.topic_id, replica.number, one.term, one.unique)
                told_by = f"node {node} cannot read {name}"
                log.warning("%s: %s: this node's local log is to replace it", label(replica), told_by)
                return frozenset(self._told.pop(replica.group.id))
        return None

    async def _on_told(self, peer: int, payload: Any) -> None:
        match payload:
            case [int(group), bytes(unique)] if len(unique) == UNIQUE_BYTES:
                self._told = {one: told for one, told in self._told.items() if one in self._host.groups}
                if group in self._host.groups:
                    told = self._told.setdefault(group, {})
                    if len(told) < MOST:
                        told[unique] = peer
            case _:
                raise CallFailed("that is not a group and the unique bytes of an object", unknown=False)
