"""What a groups' coordinator keeps: groups of either kind, their offsets, and transactions open on them.

A group is a container: `membership` is who is in it, and of which kind it is (ClassicGroup, or ConsumerGroup
of KIP-848; None: nobody ever was, somebody just committed offsets); the offsets are the same whatever the
kind, and outlive a change of kind. The rules of each kind work on this state from modules of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Protocol

from statemachine.coordinator_machine import CoordinatorMachine
from statemachine.kafka_errors import KafkaError
from statemachine.offsets import Offsets, TransactionalProducers


class Membership(Protocol):
    """Who is in a group: what both kinds have in common for commits, deletion and expiry."""

    protocol: ClassVar[str]
    """Kafka's name of the kind, ``"classic"`` or ``"consumer"``; it also marks the kind in snapshots."""

    @property
    def is_empty(self) -> bool:
        """Whether it has no members."""

    @property
    def empty_since(self) -> int:
        """Time of the machine, in ms, since when it has had no members; only asked when it is empty."""

    def refuse_commit(
        self, member_id: str, instance_id: str | None, generation: int, *, transactional: bool
    ) -> KafkaError | None:
        """Why this commit must not be taken, None when it may; `generation` is what the client sent there.

        A stale member epoch is STALE_MEMBER_EPOCH, whichever request it is.
        """

    def refuse_fetch(self, member_id: str | None, generation: int) -> KafkaError | None:
        """Why its offsets must not be fetched under this member id and epoch; None when they may."""

    def subscriptions(self) -> Callable[[str], bool] | None:
        """What says of a topic whether a member is subscribed to it; None when that cannot be known.

        It may look at all members once, so that many topics cost no more than one.
        """

    def fields(self) -> list[Any]:
        """Plain values for a snapshot, canonical: equal states give equal values."""


class Group:
    """One group: its members of one kind or the other, and its offsets."""

    __slots__ = ("membership", "offsets")

    def __init__(self, membership: Membership | None = None, offsets: Offsets | None = None) -> None:
        self.membership = membership
        self.offsets = Offsets() if offsets is None else offsets

    @property
    def is_empty(self) -> bool:
        """Whether it has no members; then it may be deleted, or become one of the other kind."""
        return self.membership is None or self.membership.is_empty


class GroupsState(CoordinatorMachine):
    """The groups by their ids, in the order they came, and the producers of transactions on their offsets."""

    def __init__(self, on_checkpoint: Callable[[int, bytes], None]) -> None:
        super().__init__(on_checkpoint)
        self.groups: dict[str, Group] = {}
        self.producers = TransactionalProducers()

    def group_for(self, group_id: str) -> Group:
        """The group of this id, created without members when it is not there."""
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = Group()
        return group

    def topic_ids(self) -> list[bytes]:
        """The topics that any group has offsets for, committed or pending, each once."""
        return list(
            dict.fromkeys(topic_id for group in self.groups.values() for topic_id in group.offsets.names)
        )
