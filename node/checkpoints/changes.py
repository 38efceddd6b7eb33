"""Whether anything that a restore point would have is new since another point.

A cluster in which nothing happens takes no point. The node that leads the controller asks the nodes that
lead the other groups; each compares with what it knows of the checkpoint that the point names. What a node
does not know counts as new: after a restart or a change of a leader one more point is taken, and no more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

from strandline.node.checkpoints.context import CheckpointContext
from strandline.node.checkpoints.rounds import CALL_SECONDS
from strandline.node.rpc import CallFailed
from strandline.snapshot.restore_point import RestorePoint
from strandline.statemachine.controller.controller import Controller
from strandline.statemachine.controller.controller_state import CONTROLLER_GROUP
from strandline.statemachine.partition.partition import PartitionStateMachine

METHOD: Final = "checkpoint.changed"
Contents = tuple[int, ...]


def contents(machine: PartitionStateMachine) -> Contents:
    """Figures of what a reader of a partition would miss: records, and the places that they have moved to."""
    return (
        machine.next_offset,
        machine.start_offset,
        machine.last_stable_offset,
        machine.last_reconciled_log_index,
        len(machine.level_one),
        machine.level_one.bytes,
        machine.removed[-1].log_index if machine.removed else 0,
    )


def controller_contents(machine: Controller) -> Contents:
    """Figures of what the controller's document has. Epochs, terms and ids that were only reserved do not
    count, since they go on by themselves."""
    return (
        machine.version,
        machine.acls.version,
        machine.client_quotas.version,
        machine.feature_level,
        int(machine.collection_paused),
    )


class Changes:
    """One per node; also answers the others' calls for the groups that are led here."""

    def __init__(self, context: CheckpointContext) -> None:
        self._context = context
        self._at: dict[int, tuple[int, Contents]] = {}
        """By group, the log index of the last checkpoint that was asked for here, and what it has."""
        context.calls.serve(METHOD, self._serve)

    def taken(self, group: int, index: int, before: Contents) -> None:
        """A checkpoint was taken at `index`; `before` is from before it was asked for, so that nothing which
        came beside it is overlooked."""
        self._at[group] = (index, before)

    def forget_controller(self) -> None:
        """Count the controller's group as changed: this node does not lead it, and its counters begin again
        with a snapshot."""
        self._at.pop(CONTROLLER_GROUP, None)

    async def since(self, point: RestorePoint) -> bool:
        """Whether anything is new since a point, as far as the leaders know; True where one does not answer.

        To be asked where the controller is led.
        """
        context = self._context
        groups = {one.group: one.log_index for one in point.groups}
        known = self._at.get(CONTROLLER_GROUP)
        if known != (groups.pop(CONTROLLER_GROUP, 0), controller_contents(context.controller.machine)):
            return True
        by_node: defaultdict[int, list[list[int]]] = defaultdict(list)
        for group, index in groups.items():
            leader = context.leaders.leader_of(group)
            if leader is None:
                return True
            by_node[leader.node].append([group, index])
        for node, asked in by_node.items():
            try:
                if await context.calls.call(node, METHOD, asked, CALL_SECONDS) is not False:
                    return True
            except CallFailed:
                return True
        return False

    async def _serve(self, peer: int, payload: Any) -> bool:
        """Whether any of these `[group, log index]` has more now than its checkpoint at that index."""
        match payload:
            case [*asked] if all(_is_checkpoint(one) for one in asked):
                return self._any(asked)
            case _:
                raise CallFailed("these are no groups and log indexes", unknown=False)

    def _any(self, asked: Sequence[tuple[int, int]]) -> bool:
        context = self._context
        for group, index in asked:
            raft = context.host.groups.get(group)
            if raft is None or not raft.is_leader:
                return True
            replica = context.partitions.by_group(group)
            if replica is not None:
                changed = self._at.get(group) != (index, contents(replica.machine))
            else:
                # A coordinator's entries are all worth a checkpoint, but for those that begin a term.
                changed = raft.applied != index
            if changed:
                return True
        return False


def _is_checkpoint(value: Any) -> bool:
    match value:
        case [int(), int()]:
            return True
        case _:
            return False
