"""Finds coordinators: the partition of a key, whether this node leads it, and the runtime that serves it.

The internal topics are created when a client first asks for a coordinator, as Kafka's are: a cluster without
groups and transactions has no replicas for them.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from strandline.node.controller.client import Unavailable
from strandline.node.controller.members import member_ids
from strandline.node.coordinator.context import CoordinatorContext, CoordinatorPlace
from strandline.node.coordinator.groups.coordinator import GroupCoordinator
from strandline.node.coordinator.replica import CoordinatorReplica
from strandline.node.coordinator.transactions.transaction_coordinator import TransactionCoordinator
from strandline.node.refusal import Refusal
from strandline.node.replica.replica_machine import Recorder
from strandline.statemachine.controller.controller_commands import CreateInternalTopic
from strandline.statemachine.controller.controller_state import Topic
from strandline.statemachine.controller.hosted_groups import PartitionGroup
from strandline.statemachine.groups.groups import GroupsMachine
from strandline.statemachine.internal_topics import (
    GROUPS_KIND,
    GROUPS_TOPIC,
    TRANSACTIONS_TOPIC,
    coordinator_of,
    is_key,
)
from strandline.statemachine.kafka_errors import KafkaError, Refused
from strandline.statemachine.transactions.transactions import TransactionsMachine

log = logging.getLogger(__name__)

CREATE_SECONDS: Final = 5.0
"""Time that the first request for a coordinator waits until the controller has created the topic."""
REPLICAS: Final = 3
"""Replicas of each coordinator, or as many as there are nodes. It is not configured: a group's committed
offsets must not be less safe than the records it read."""


class _Hosted(NamedTuple):
    replica: CoordinatorReplica[Any]
    runtime: Any


class Coordinators:
    """The coordinators as one node sees them. Everything belongs on the context's loop."""

    def __init__(self, context: CoordinatorContext) -> None:
        self._context = context
        self._groups: dict[int, _Hosted] = {}
        self._transactions: dict[int, _Hosted] = {}
        """By Raft group, in the order in which they came."""
        self._by_place: dict[tuple[str, int], _Hosted] = {}
        """By topic and number: there is one topic of each name, and it is never deleted."""
        self._creating: dict[str, asyncio.Task[Topic | Refusal]] = {}
        self._told: dict[str, str] = {}
        """For each internal topic the reason why it cannot be created, as the log last had it."""
        self._closed = False
        context.decisions.serve(context.calls, self)

    # Where a key is coordinated.

    async def group_place(self, group_id: str) -> CoordinatorPlace | Refusal:
        """The partition that has a consumer group; creates the internal topic when it is missing.

        COORDINATOR_NOT_AVAILABLE when that cannot be done now.
        """
        return await self._place(GROUPS_TOPIC, group_id)

    async def transaction_place(self, transactional_id: str) -> CoordinatorPlace | Refusal:
        """As `group_place`, for a transactional id."""
        return await self._place(TRANSACTIONS_TOPIC, transactional_id)

    async def _place(self, name: str, key: str) -> CoordinatorPlace | Refusal:
        if not is_key(key):
            return Refusal(KafkaError.INVALID_REQUEST, f"No coordinator has keys of {len(key)} characters.")
        topic = self._context.controller.machine.topic(name) or await self._created(name)
        if isinstance(topic, Refusal):
            return topic
        number = coordinator_of(key, len(topic.partitions))
        return CoordinatorPlace(topic.partitions[number].group, number)

    async def _created(self, name: str) -> Topic | Refusal:
        """The topic once it is created: asked for once, however many wait for it here."""
        task = self._creating.get(name)
        if task is None:
            if self._closed:
                return Refusal(KafkaError.COORDINATOR_NOT_AVAILABLE, "This node is stopping.")
            task = self._creating[name] = self._context.loop.create_task(self._create(name))
            task.add_done_callback(lambda _: self._creating.pop(name))
        # Shielded: a request that is given up must not cancel it for the others.
        return await asyncio.shield(task)

    async def _create(self, name: str) -> Topic | Refusal:
        context = self._context
        topic_id = uuid.UUID(bytes=context.rng.randbytes(16), version=4).bytes
        replicas = min(REPLICAS, len(member_ids(context.config.cluster.nodes, context.controller.machine)))
        command = CreateInternalTopic(topic_id, name, context.config.coordinator.partitions, replicas)
        made = await context.controller.submit(command, CREATE_SECONDS)
        if isinstance(made, Topic):
            return made
        assert isinstance(made, (Unavailable, Refused)), made
        reason = made.reason if isinstance(made, Unavailable) else made.message
        if self._told.get(name) != reason:
            # Clients show a code and try again for ever, and nothing else is wrong with the cluster.
            log.warning("topic '%s' cannot be created yet, and clients wait for it: %s", name, reason)
        self._told[name] = reason
        return Refusal(
            KafkaError.COORDINATOR_NOT_AVAILABLE, f"Topic '{name}' cannot be created yet: {reason}"
        )

    # What answers here.

    def groups_for(self, group_id: str) -> GroupCoordinator | KafkaError:
        """The coordinator of a group, led and ready on this node; otherwise NOT_COORDINATOR,
        COORDINATOR_LOAD_IN_PROGRESS or COORDINATOR_NOT_AVAILABLE, as Kafka's coordinator says."""
        found: GroupCoordinator | KafkaError = self._ready(GROUPS_TOPIC, group_id)
        return found

    def transactions_for(self, transactional_id: str) -> TransactionCoordinator | KafkaError:
        """As `groups_for`, for a transactional id."""
        found: TransactionCoordinator | KafkaError = self._ready(TRANSACTIONS_TOPIC, transactional_id)
        return found

    def _ready(self, name: str, key: str) -> Any:
        if not is_key(key):
            return KafkaError.INVALID_REQUEST
        if self._closed:
            return KafkaError.COORDINATOR_NOT_AVAILABLE
        topic = self._context.controller.machine.topic(name)
        if topic is None:
            return KafkaError.NOT_COORDINATOR
        hosted = self._by_place.get((name, coordinator_of(key, len(topic.partitions))))
        if hosted is None:
            return KafkaError.NOT_COORDINATOR
        if hosted.replica.leads:
            return hosted.runtime
        loading = hosted.replica.loading
        return KafkaError.COORDINATOR_LOAD_IN_PROGRESS if loading else KafkaError.NOT_COORDINATOR

    def led_groups(self) -> list[GroupCoordinator]:
        """The groups' coordinators that this node leads, in the order in which their replicas came."""
        return [hosted.runtime for hosted in self._groups.values() if hosted.replica.leads]

    def led_transactions(self) -> list[TransactionCoordinator]:
        """The transactions' coordinators that this node leads, in the order in which their replicas came."""
        return [hosted.runtime for hosted in self._transactions.values() if hosted.replica.leads]

    def transaction_replicas(self) -> list[tuple[int, CoordinatorReplica[Any]]]:
        """The replicas here of the transactions' coordinators, by Raft group."""
        return [(group, hosted.replica) for group, hosted in self._transactions.items()]

    def loading(self, topic: str) -> bool:
        """Whether this node was elected for a partition of an internal topic and has yet to catch up.

        Until then, no node answers for the groups or transactions that are coordinated there.
        """
        return any(replica.loading for replica in self if replica.place.topic == topic)

    def groups_by_raft_group(self, group: int) -> GroupCoordinator | None:
        """The groups' coordinator of a Raft group, led and ready on this node."""
        hosted = self._groups.get(group)
        return hosted.runtime if hosted is not None and hosted.replica.leads else None

    # The replicas here.

    def by_group(self, group: int) -> CoordinatorReplica[Any] | None:
        """The replica here of one Raft group."""
        hosted = self._groups.get(group) or self._transactions.get(group)
        return None if hosted is None else hosted.replica

    def __iter__(self) -> Iterator[CoordinatorReplica[Any]]:
        for hosted in (*self._groups.values(), *self._transactions.values()):
            yield hosted.replica

    def host(self, place: PartitionGroup, kind: str, recorder: Recorder) -> CoordinatorReplica[Any]:
        """Make a replica of a coordinator's partition, and its runtime; the replica has no log yet."""
        context = self._context
        machine: type[GroupsMachine | TransactionsMachine] = (
            GroupsMachine if kind == GROUPS_KIND else TransactionsMachine
        )
        replica: CoordinatorReplica[Any] = CoordinatorReplica(
            machine, place=place, loop=context.loop, wall_ms=context.wall_ms, recorder=recorder
        )
        if kind == GROUPS_KIND:
            hosted = self._groups[place.group] = _Hosted(replica, GroupCoordinator(replica, context))
        else:
            hosted = self._transactions[place.group] = _Hosted(
                replica, TransactionCoordinator(replica, context)
            )
        self._by_place[place.topic, place.partition] = hosted
        return replica

    def remove(self, group: int) -> CoordinatorReplica[Any] | None:
        """A replica goes; None when there was none."""
        hosted = self._groups.pop(group, None) or self._transactions.pop(group, None)
        if hosted is None:
            return None
        del self._by_place[hosted.replica.place.topic, hosted.replica.number]
        return hosted.replica

    def close(self) -> None:
        """The node stops: nothing is answered any more."""
        self._closed = True
        for task in self._creating.values():
            task.cancel()
        for replica in self:
            replica.close()
