"""The recorders of a node's replicas, one for each Raft group."""

from __future__ import annotations

from collections.abc import Iterator

from strandline.node.checkpoints.publisher import Publisher
from strandline.node.checkpoints.recorder import CheckpointRecorder, Place, TailBudget
from strandline.node.raft.group import RaftGroup
from strandline.node.raft.host import RaftHost


class CheckpointRecorders:
    """Makes recorders and forgets them; they share one budget."""

    def __init__(self, cluster: str, host: RaftHost, publisher: Publisher) -> None:
        self._cluster = cluster
        self._host = host
        self._publisher = publisher
        self._tails = TailBudget()
        self._by_group: dict[int, CheckpointRecorder] = {}

    def __iter__(self) -> Iterator[int]:
        """The groups that have one."""
        return iter(self._by_group)

    def make(self, group: int, kind: str) -> CheckpointRecorder:
        """The recorder of a group whose state machine is of this kind."""
        recorder = self._by_group[group] = CheckpointRecorder(
            cluster=self._cluster,
            kind=kind,
            group=group,
            place=lambda index: _place(self._host.groups[group], index),
            publisher=self._publisher,
            budget=self._tails,
        )
        return recorder

    def forget(self, group: int) -> None:
        """The replica is gone; KeyError when it had no recorder."""
        self._by_group.pop(group).close()


def _place(group: RaftGroup, index: int) -> Place:
    term = group.journal.term_at(index)
    assert term is not None, "an entry that is being applied is in the log"
    members = group.configuration_log.at(index)
    return Place(term, members.voters, members.learners)
