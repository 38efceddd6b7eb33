"""The recorders of a node's replicas, one for each Raft group."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from strandline.node.checkpoints.publisher import CheckpointPublisher
from strandline.node.checkpoints.recorder import CheckpointPlace, CheckpointRecorder, TailBudget
from strandline.node.raft.group import RaftGroup
from strandline.node.raft.host import RaftHost
from strandline.statemachine.controller.controller_commands import is_secret
from strandline.statemachine.controller.controller_state import CONTROLLER_GROUP

OPEN_BYTES: Final = 16 * 1024 * 1024
"""Of all groups that a node leads. What does not fit is published as the group's state instead."""


class CheckpointRecorders:
    """Makes recorders and forgets them; they share one budget."""

    def __init__(
        self, cluster: str, host: RaftHost, publisher: CheckpointPublisher, taken: Callable[[int, int], None]
    ) -> None:
        """`taken` is told of the group and index of each checkpoint that this node takes for the first time:
        not of one that an earlier process, folder or replica of this node may have taken as well."""
        self._cluster = cluster
        self._host = host
        self._publisher = publisher
        self._tails = TailBudget()
        self.open_tails = TailBudget(OPEN_BYTES)
        """Bytes of entries that wait for a tail."""
        self.touched: set[int] = set()
        """The groups that applied an entry, or were made, since they were last taken out of it."""
        self._by_group: dict[int, CheckpointRecorder] = {}
        self._taken = taken

    def __iter__(self) -> Iterator[int]:
        """The groups that have one."""
        return iter(self._by_group)

    def __contains__(self, group: int) -> bool:
        return group in self._by_group

    def of_group(self, group: int) -> CheckpointRecorder | None:
        """The group's recorder."""
        return self._by_group.get(group)

    def make(self, group: int, kind: str) -> CheckpointRecorder:
        """The recorder of a group whose state machine is of this kind."""
        recorder = self._by_group[group] = CheckpointRecorder(
            cluster=self._cluster,
            kind=kind,
            group=group,
            place=lambda index: _place(self._host.groups[group], index),
            publisher=self._publisher,
            budget=self._tails,
            taken=lambda index: self._first_taken(group, index),
            is_secret=is_secret if group == CONTROLLER_GROUP else None,
            touched=self.touched.add,
            open_budget=self.open_tails,
        )
        self.touched.add(group)
        return recorder

    def _first_taken(self, group: int, index: int) -> None:
        # The end of the log as it was opened would not do. A wiped folder, and a replica that comes back to
        # this node, begin without one; and what is applied need not be on this node's disk yet.
        before = self._host.groups[group].committed_before
        if before is not None and index > before:
            self._taken(group, index)

    def forget(self, group: int) -> None:
        """The replica is gone; KeyError when it had no recorder."""
        self._by_group.pop(group).close()
        self.touched.discard(group)


def _place(group: RaftGroup, index: int) -> CheckpointPlace:
    term = group.journal.term_at(index)
    assert term is not None, "an entry that is being applied is in the log"
    members = group.configuration_log.at(index)
    return CheckpointPlace(term, members.voters, members.learners)
