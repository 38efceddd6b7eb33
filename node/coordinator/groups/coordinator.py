"""One partition of the consumer offsets' topic at a node that may lead it: the interface for requests.

Behind it are the replica of the groups' state, and two runtimes that live as long as this node's leadership:
that of the classic protocol and that of KIP-848. The runtimes keep waiting requests; their decisions go
through `execute` into the log. Work that belongs to no single group is here too: expiry of offsets, deleted
topics, and the ends of transactions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from strandline.node.coordinator.groups.bounds import Bounds
from strandline.node.coordinator.groups.classic import ClassicGroups
from strandline.node.coordinator.groups.classic_state import (
    JoinRequest,
    JoinResponse,
    Leaving,
    SyncRequest,
    SyncResponse,
)
from strandline.node.coordinator.groups.consumer_groups import ConsumerGroups
from strandline.node.coordinator.groups.hosted import HostedMembers
from strandline.node.coordinator.groups.offset_expiry import OffsetExpiry
from strandline.node.coordinator.groups.timers import Timers
from strandline.node.refusal import Cause, Refusal
from strandline.statemachine.coordinator_machine import CoordinatorCommand
from strandline.statemachine.groups.group_commands import (
    CommitOffsets,
    CommitTransactionOffsets,
    DeleteOffsets,
    EndGroupTransaction,
    OffsetsDeleted,
)
from strandline.statemachine.kafka_errors import KafkaError, Refused

if TYPE_CHECKING:
    from strandline.node.coordinator.context import CoordinatorContext
    from strandline.node.coordinator.replica import CoordinatorReplica
    from strandline.statemachine.groups.groups import GroupsMachine


class GroupCoordinator:
    """The groups of one coordinator. Belongs to one event loop; there as long as the replica is.

    A request gets it from `Coordinators.groups_for`, which gives it out while it leads only.
    """

    bounds: Bounds
    """Bounds on the number of groups and offsets."""
    classic: ClassicGroups
    """Runtime of the classic protocol; knows every group that has members of it."""
    consumer: ConsumerGroups
    """Runtime of KIP-848."""
    hosted: HostedMembers
    """Serves members of the classic protocol in groups of KIP-848."""
    timers: Timers
    """Deadlines of both runtimes, keyed by ("what", group id, member id); gone when the leadership ends."""

    def __init__(self, replica: CoordinatorReplica[GroupsMachine], context: CoordinatorContext) -> None:
        self.replica = replica
        self.context = context
        self.loop: asyncio.AbstractEventLoop = context.loop
        self.timers = Timers(context.loop)
        self.bounds = Bounds(self)
        self.classic = ClassicGroups(self)
        self.consumer = ConsumerGroups(self)
        self.hosted = HostedMembers(self, self.consumer)
        self._expiry = OffsetExpiry(self)
        self._started = False
        replica.follow(self._on_started, self._on_stopped)

    @property
    def number(self) -> int:
        """Of the internal topic's partition."""
        return self.replica.number

    @property
    def machine(self) -> GroupsMachine:
        """The state of this replica, to be read only; it is all there while `leads`."""
        return self.replica.machine

    @property
    def leads(self) -> bool:
        """Whether this node leads the coordinator, with everything of earlier terms applied and the runtimes
        started."""
        return self._started

    async def execute(self, command: CoordinatorCommand) -> Any | Refusal:
        """Have a command applied: its result, or a Refusal (see CoordinatorReplica.execute)."""
        return await self.replica.execute(command)

    async def commit(self, command: CommitOffsets | CommitTransactionOffsets) -> Any | Refusal:
        """As `execute`, of a commit, which is refused when it would exceed a bound (see Bounds)."""
        return await self.bounds.commit(command)

    async def confirm(self) -> bool:
        """Wait until all that was committed before the call is applied; False: this node does not lead."""
        return await self.replica.confirm()

    # Members of the classic protocol, wherever they are.

    async def join(self, group_id: str, request: JoinRequest) -> JoinResponse:
        """A JoinGroup; see ClassicGroups and HostedMembers."""
        if self.hosted.serves(group_id):
            joined = await self.hosted.join(group_id, request)
            if joined is not None:
                return joined
        self.classic.follow(group_id)
        return await self.classic.join(group_id, request)

    async def sync(self, group_id: str, request: SyncRequest) -> SyncResponse:
        """A SyncGroup."""
        if self.hosted.serves(group_id):
            return self.hosted.sync(group_id, request)
        self.classic.follow(group_id)
        return await self.classic.sync(group_id, request)

    def heartbeat(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> Cause | None:
        """Handle a Heartbeat: None, or the error that makes the member act."""
        if self.hosted.serves(group_id):
            return self.hosted.heartbeat(group_id, member_id, instance_id, generation)
        self.classic.follow(group_id)
        return self.classic.heartbeat(group_id, member_id, instance_id, generation)

    async def leave(self, group_id: str, leaving: Sequence[Leaving]) -> list[Cause | None]:
        """Handle a LeaveGroup, of members or of an administrator; it may remove members of either
        protocol."""
        if self.hosted.serves(group_id):
            return await self.consumer.leave(group_id, leaving)
        self.classic.follow(group_id)
        return self.classic.leave(group_id, leaving)

    def restart_session(self, group_id: str, member_id: str) -> None:
        """Restart the session timeout of a classic member that sent a request other than a heartbeat.

        As in Kafka, a commit of offsets that was accepted counts. Without effect if the member is unknown.
        """
        self.classic.restart_session(group_id, member_id)

    async def delete_offsets(
        self, group_id: str, topics: Sequence[tuple[bytes, str, Sequence[int]]]
    ) -> OffsetsDeleted | Refused | Refusal:
        """Delete a group's offsets (topic id, name, partitions), except those of subscribed topics.

        Members that are about to join count as subscribers too: the log has them only after the join phase.
        """
        uses = self.classic.subscriptions(group_id)
        if uses is None:
            return Refused(KafkaError.NON_EMPTY_GROUP)
        kept = [topic_id for topic_id, topic, _ in topics if uses(topic)]
        left = [one for one in topics if one[0] not in kept]
        done: OffsetsDeleted | Refused | Refusal = await self.execute(DeleteOffsets(group_id, left))
        return done._replace(subscribed=kept + done.subscribed) if isinstance(done, OffsetsDeleted) else done

    async def end_transaction(
        self, producer_id: int, producer_epoch: int, number: int, commit: bool, coordinator_term: int
    ) -> bool | Refusal:
        """Put a transaction's marker on the groups' offsets; True: applied, or ignored as not newer."""
        command = EndGroupTransaction(producer_id, producer_epoch, number, commit, coordinator_term)
        ended = await self.execute(command)
        return ended if isinstance(ended, Refusal) else True

    # Leadership.

    def _on_started(self, term: int) -> None:
        self._started = True
        self.classic.started()
        self.consumer.started()
        self._expiry.started()

    def _on_stopped(self, reason: str) -> None:
        self._started = False
        self._expiry.stopped()
        self.timers.cancel_all()
        self.classic.stopped()
        self.consumer.stopped(reason)
