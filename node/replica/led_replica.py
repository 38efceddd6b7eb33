"""When a replica on this node begins and ceases to lead, the same for partitions and for coordinators.

An elected node does nothing yet: what earlier leaders put into the log has to be applied here before anything
is decided upon it. So a term begins here when its first entry is applied, and only once; it ends with the
leadership, or because the replica goes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from strandline.node.raft.group import RaftGroup
from strandline.node.raft.outcome import Applied
from strandline.node.replica.watchers import ChangeCount, Watchers
from strandline.statemachine.controller.hosted_groups import PartitionGroup


class LedReplica:
    """Follows the leadership of one Raft group's replica here. Belongs to one event loop.

    A subclass implements `_begin_term` and `_end_term`; `attach` gives it the log, `close` ends it.
    """

    group: RaftGroup
    """The replica's log; there from `attach` on."""

    def __init__(self, place: PartitionGroup, what: str, loop: asyncio.AbstractEventLoop) -> None:
        """`what` is led, in a word, for the message to callers after leadership was lost."""
        self._what = what
        self._loop = loop
        self._watchers = Watchers(loop, f"{place.topic}-{place.partition}")
        self._closed = False
        self.leads = False
        """Whether this node believes that it leads and has applied everything of earlier terms. A plain
        attribute: each look at thousands of replicas reads it."""

    # What a subclass does.

    def _begin_term(self, term: int) -> None:
        """This node leads from now on, with all of earlier terms applied."""
        raise NotImplementedError

    def _end_term(self, reason: str) -> None:
        """It does not lead any more; called also when its term never began."""
        raise NotImplementedError

    # What others use.

    @property
    def loading(self) -> bool:
        """Whether it was elected and does not lead yet: earlier terms are still to be applied."""
        return not self._closed and self.group.is_leader and not self.leads

    async def confirm(self) -> bool:
        """Wait until this node is known to lead, with all applied that was committed before the call."""
        if self._closed:
            return False
        return isinstance(await self.group.barrier(), Applied)

    @property
    def changes(self) -> int:
        """A number that grows whenever the state or the leadership may have changed."""
        return self._watchers.changes

    def count_changes_in(self, count: ChangeCount) -> None:
        """Let each of these changes count there, too."""
        self._watchers.counted_in = count

    def watch(self, callback: Callable[[], None]) -> None:
        """Call back, at most once a turn of the loop, when the state, the leadership or the existence of the
        replica may have changed, until `unwatch`."""
        self._watchers.add(callback)

    def unwatch(self, callback: Callable[[], None]) -> None:
        self._watchers.remove(callback)

    def attach(self, group: RaftGroup) -> None:
        """Follow this replica's leadership from now on."""
        self.group = group
        group.on_ready(self._on_ready)
        group.on_leadership(self._on_leadership)
        if group.is_ready:
            self._on_ready(group.term)

    def close(self) -> None:
        """The replica goes, or the node stops: everything pending ends, nothing new is taken."""
        if not self._closed:
            self._closed = True
            self._stop("the replica is leaving this node")

    # Leadership.

    def _on_ready(self, term: int) -> None:
        if not self._closed:
            self.leads = True
            self._begin_term(term)
            self._watchers.changed()

    def _on_leadership(self, leading: bool, _term: int) -> None:
        if not leading and not self._closed:
            self._stop(f"this node does not lead the {self._what} any more")

    def _stop(self, reason: str) -> None:
        self.leads = False
        self._end_term(reason)
        self._watchers.changed()
