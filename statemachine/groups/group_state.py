"""State of a groups' coordinator: groups of either kind, their offsets, and transactions open on them.

A group is a container. Its `membership` has its members and its kind: a ClassicGroup, or a ConsumerGroup of
KIP-848; None if the group never had a member, but only offsets that a client committed. The offsets are the
same for each kind, and outlive a change of kind. The rules of each kind are in modules of their own, and work
on this state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final, Protocol, Self

from strandline.statemachine.coordinator_machine import CoordinatorMachine
from strandline.statemachine.groups.offsets import Offsets, Totals
from strandline.statemachine.groups.transactional_producers import TransactionalProducers
from strandline.statemachine.kafka_errors import KafkaError
from strandline.statemachine.machine import Captured

GROUP_BYTES: Final = 128
"""Bytes that a group counts besides its id and its offsets."""


class Membership(Protocol):
    """Members of a group: the interface of both kinds for commits, deletion and expiry."""

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
        """Error of a commit to refuse, None if it is accepted; `generation` is the client's number for it.

        A stale member epoch is STALE_MEMBER_EPOCH, whichever request it is.
        """

    def refuse_fetch(self, member_id: str | None, generation: int) -> KafkaError | None:
        """Error of a fetch of offsets under this member id and epoch; None if it is allowed."""

    def subscriptions(self) -> Callable[[str], bool] | None:
        """A test whether any member is subscribed to a topic; None if that cannot be known.

        The call may look at all members once, so that tests of many topics cost no more than one.
        """

    def copy(self) -> Self:
        """One that can be changed while this stays as it is."""

    def fields(self) -> list[Any]:
        """Plain values for a snapshot, canonical: equal states give equal values."""


class Group:
    """One group: its members of one kind or the other, and its offsets. GroupsState alone changes it."""

    __slots__ = ("age", "membership", "membership_age", "offsets", "offsets_age")

    def __init__(
        self, membership: Membership | None = None, offsets: Offsets | None = None, *, age: int = 0
    ) -> None:
        self.age = self.membership_age = self.offsets_age = age
        """See machine.Rows: of this, of its members, of its offsets."""
        self.membership = membership
        self.offsets = Offsets() if offsets is None else offsets

    @property
    def is_empty(self) -> bool:
        """Whether it has no members; then it may be deleted, or become one of the other kind."""
        return self.membership is None or self.membership.is_empty

    @property
    def empty_since(self) -> int:
        """Time of the machine, in ms, since when it has had no members; only asked when it is empty."""
        return 0 if self.membership is None else self.membership.empty_since

    def expires(self, now: int, retention: int) -> bool:
        """Whether ExpireOffsets would take anything from it, or the group itself."""
        return self.is_empty and (
            self.offsets.is_empty or self.offsets.expires(now, retention, self.empty_since)
        )


class GroupsState(CoordinatorMachine):
    """The groups by their ids, in the order they came, and the producers of transactions on their offsets.

    `groups` is to be read. What is to be changed is had from `offsets_of` and `membership_of`, which put a
    copy in the place of what a snapshot under way holds.
    """

    def __init__(self, on_checkpoint: Callable[[int, Captured], None]) -> None:
        super().__init__(on_checkpoint)
        self.groups: dict[str, Group] = {}
        self.producers = TransactionalProducers()
        self.age = 0
        self.totals = Totals()
        """Totals of all groups' offsets and ids; the leaders bound the groups' members."""

    def go_on_from(self, now: int) -> None:
        """See CoordinatorMachine."""
        super().go_on_from(now)
        self.producers.not_after(now)

    def group_for(self, group_id: str) -> Group:
        """The group of this id, of the present age, created without members when it is not there."""
        group = self.groups.get(group_id)
        if group is None:
            self.totals.bytes += size_of_group(group_id)
            group = self.groups[group_id] = Group(None, Offsets(self.totals), age=self.age)
        elif group.age != self.age:
            former = group
            group = self.groups[group_id] = Group(former.membership, former.offsets, age=self.age)
            group.membership_age, group.offsets_age = former.membership_age, former.offsets_age
        return group

    def offsets_of(self, group_id: str) -> Offsets:
        """A group's offsets, to be changed; the group is created when it is not there."""
        group = self.group_for(group_id)
        if group.offsets_age != self.age:
            group.offsets, group.offsets_age = group.offsets.copy(), self.age
        return group.offsets

    def membership_of(self, group_id: str) -> Membership | None:
        """The membership of an existing group, to be changed: a copy if a snapshot has it.

        None if the group never had a member.
        """
        group = self.group_for(group_id)
        if group.membership is not None and group.membership_age != self.age:
            group.membership, group.membership_age = group.membership.copy(), self.age
        return group.membership

    def put_membership(self, group_id: str, membership: Membership) -> None:
        """Give a group, created when it is not there, its members."""
        group = self.group_for(group_id)
        group.membership, group.membership_age = membership, self.age

    def drop(self, group_id: str) -> Group:
        """Forget a group that is there; returns what it was."""
        group = self.groups.pop(group_id)
        self.totals.bytes -= size_of_group(group_id)
        group.offsets.uncount()
        return group

    def topic_ids(self) -> list[bytes]:
        """The topics that any group has offsets for, committed or pending, each once."""
        return list(self.totals.topics)


def size_of_group(group_id: str) -> int:
    """Bytes that a group counts in `Totals.bytes` besides its offsets."""
    return GROUP_BYTES + len(group_id.encode())
