"""Takes up the replicas that the replica manager asks for, and gives them up.

A replica is a Raft group with a state machine, and the object around it that requests use: a partition of
records, or a coordinator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from strandline.node.checkpoints.recorder import CheckpointRecorder
from strandline.node.checkpoints.recorders import CheckpointRecorders
from strandline.node.controller.leaders import LeaderTable
from strandline.node.coordinator.replica import CoordinatorReplica
from strandline.node.coordinator.table import Coordinators
from strandline.node.partition.partition import Partition
from strandline.node.partition.partition_table import PartitionTable
from strandline.node.raft.host import RaftHost
from strandline.node.raft.rank import Rank
from strandline.statemachine.controller.hosted_groups import PartitionGroup
from strandline.statemachine.controller.restored_controller import earlier_terms
from strandline.statemachine.internal_topics import coordinator_kind
from strandline.statemachine.partition.partition import PartitionStateMachine


class HostedReplicas:
    """The replicas of one node but the controller's. Everything belongs on the host's loop."""

    def __init__(
        self,
        host: RaftHost,
        recorders: CheckpointRecorders,
        leaders: LeaderTable,
        partitions: PartitionTable,
        coordinators: Coordinators,
        new_partition: Callable[[PartitionGroup, CheckpointRecorder], Partition],
    ) -> None:
        self._host = host
        self._recorders = recorders
        self._leaders = leaders
        self._partitions = partitions
        self._coordinators = coordinators
        self._new_partition = new_partition

    def create(self, place: PartitionGroup) -> None:
        """Host a partition, of records or of a coordinator: from its stored state, or as a new one.

        Raises what `RaftHost.create_group` does.
        """
        kind = coordinator_kind(place.topic)
        recorder = self._recorders.make(place.group, kind or PartitionStateMachine.kind)
        replica: Partition | CoordinatorReplica[Any]
        try:
            if kind is None:
                replica = self._new_partition(place, recorder)
            else:
                replica = self._coordinators.host(place, kind, recorder)
            group = self._host.create_group(
                place.group,
                replica.machine_for_group,
                () if place.joins else place.replicas,
                first_leader=place.replicas[0],
                rank=Rank.PARTITION if kind is None else Rank.COORDINATOR,
                earlier_terms=earlier_terms(place.group),
            )
        except BaseException:
            self._coordinators.remove(place.group)
            self._recorders.forget(place.group)
            raise
        self._leaders.watch(group)
        replica.attach(group)
        if isinstance(replica, Partition):
            self._partitions.add(place.group, replica)

    def remove(self, group: int) -> None:
        """Forget a partition's replica, or the stored log of one that was never taken up."""
        self._give_up(group, self._host.remove_group)
        self._leaders.forget(group)

    def leave(self, group: int) -> None:
        """Give up a replica whose partition moved away; its promises stay, see `RaftHost.leave_group`."""
        self._leaders.keep(group)
        self._give_up(group, self._host.leave_group)

    def _give_up(self, group: int, give_up: Callable[[int], None]) -> None:
        replica = self._partitions.remove(group) or self._coordinators.remove(group)
        give_up(group)
        if replica is not None:
            replica.close()
            self._recorders.forget(group)
