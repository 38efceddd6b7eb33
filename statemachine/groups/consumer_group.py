"""A consumer group of KIP-848 by its log: members, epochs, target, and the owner of each partition.

The main rule is that no partition is ever owned by two members. So owners are not only derived from the
members but kept, and a change that would break the rule stops the replica instead of letting two consumers
read the same records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from copy import copy
from typing import Any, ClassVar

from strandline.statemachine.groups.consumer_group_commands import (
    LEFT_FOR_A_WHILE,
    STABLE,
    UNREVOKED,
    Assignment,
    ChangeConsumerGroup,
    ConsumerMember,
    change_from,
    member_row,
    partitions_of,
)
from strandline.statemachine.groups.group_commands import NO_GENERATION, NO_MEMBER
from strandline.statemachine.kafka_errors import KafkaError
from strandline.statemachine.machine import Corruption


class ConsumerGroup:
    """The membership of one group (group_state.Membership); only `change` changes it."""

    protocol: ClassVar[str] = "consumer"

    def __init__(self) -> None:
        self.version = 0
        """Log index of the last change."""
        self.empty_since = 0
        self.epoch = 0
        """Rises with every new target: both Kafka's group epoch and its assignment epoch."""
        self.metadata = b""
        """Digest of the topics (names, ids, partitions) the target was made of."""
        self.matches: dict[str, tuple[str, ...]] = {}
        """Names of topics by pattern, for each pattern a member subscribes by."""
        self.members: dict[str, ConsumerMember] = {}
        self.targets: dict[str, Assignment] = {}
        """By member id, without the members whose target is empty."""
        self.owners: dict[tuple[bytes, int], str] = {}
        """Member id by partition: the member that may own it, or has yet to revoke it."""
        self.static: dict[str, str] = {}
        """Member id by instance id."""
        self.classic = 0
        """Number of members that speak the classic protocol."""
        self.supported: Counter[str] = Counter()
        """Number of those members that have each protocol, by its name."""

    @property
    def is_empty(self) -> bool:
        return not self.members

    def refuse_commit(
        self, member_id: str, instance_id: str | None, generation: int, *, transactional: bool
    ) -> KafkaError | None:
        """Kafka's `ConsumerGroup.validateOffsetCommit`: the named member must exist, in its present epoch.

        A commit need not name a member if the group has none, nor in a transaction (KIP-447).
        """
        if generation < 0 and not self.members:
            return None
        if transactional and (member_id, generation, instance_id) == (NO_MEMBER, NO_GENERATION, None):
            return None
        return self._refuse_epoch(member_id, generation)

    def refuse_fetch(self, member_id: str | None, generation: int) -> KafkaError | None:
        """Kafka's `ConsumerGroup.validateOffsetFetch`: as for commits, but a fetch need not name a member."""
        if member_id is None and generation < 0:
            return None
        return self._refuse_epoch(member_id or NO_MEMBER, generation)

    def _refuse_epoch(self, member_id: str, epoch: int) -> KafkaError | None:
        member = self.members.get(member_id)
        if member is None:
            return KafkaError.UNKNOWN_MEMBER_ID
        if member.epoch == epoch:
            return None
        classic = member.classic is not None
        return KafkaError.ILLEGAL_GENERATION if classic else KafkaError.STALE_MEMBER_EPOCH

    def subscriptions(self) -> Callable[[str], bool]:
        """See Membership: by name or by pattern."""
        subscribed = dict.fromkeys(member.topics for member in self.members.values())
        return {name for names in (*self.matches.values(), *subscribed) for name in names}.__contains__

    # Changes.

    def change(self, index: int, time: int, change: ChangeConsumerGroup) -> None:
        """Apply a change made from this version, at `time` (ms); raises Corruption for what breaks a rule."""
        if change.epoch < self.epoch:
            raise Corruption(f"group {change.group}: its epoch falls from {self.epoch} to {change.epoch}")
        self.version, self.epoch = index, change.epoch
        if change.metadata is not None:
            self.metadata = change.metadata
        if change.matches is not None:
            self.matches = dict(change.matches)
        for member_id in change.removed:
            self._remove(member_id)
            self.targets.pop(member_id, None)
        for member in change.members:
            if member.member_id in self.members:
                self._remove(member.member_id)
        for member in change.members:
            self._put(member)
        for member_id, target in change.targets.items():
            if member_id not in self.members:
                raise Corruption(f"group {change.group}: a target for {member_id}, which is not a member")
            if target:
                self.targets[member_id] = target
            else:
                self.targets.pop(member_id, None)
        if not self.members:
            self.empty_since = time

    def _remove(self, member_id: str) -> None:
        member = self.members.pop(member_id, None)
        if member is None:
            raise Corruption(f"{member_id} is not a member")
        for assigned in (member.assigned, member.revoking):
            for partition in partitions_of(assigned):
                del self.owners[partition]
        if member.instance_id is not None:
            del self.static[member.instance_id]
        if member.classic is not None:
            self.classic -= 1
            self.supported.subtract(member.classic.names)

    def _put(self, member: ConsumerMember) -> None:
        if member.epoch > self.epoch or member.epoch < LEFT_FOR_A_WHILE:
            raise Corruption(f"{member.member_id} is in epoch {member.epoch}")
        if member.member_id in self.members or bool(member.revoking) != (member.state == UNREVOKED):
            raise Corruption(f"{member.member_id} comes twice, or not in the state it is in")
        for partition in (*partitions_of(member.assigned), *partitions_of(member.revoking)):
            if partition in self.owners:
                raise Corruption(
                    f"{member.member_id} would own {partition}, as {self.owners[partition]} does"
                )
            self.owners[partition] = member.member_id
        instance = member.instance_id
        if instance is not None and self.static.setdefault(instance, member.member_id) != member.member_id:
            raise Corruption(f"{member.member_id} would be instance {instance}, which is another member")
        self.members[member.member_id] = member
        if member.classic is not None:
            self.classic += 1
            self.supported.update(member.classic.names)

    @property
    def state(self) -> str:
        """Kafka's name for how far its members are."""
        if not self.members:
            return "Empty"
        settled = all(one.state == STABLE and one.epoch == self.epoch for one in self.members.values())
        return "Stable" if settled else "Reconciling"

    # The snapshot.

    def copy(self) -> ConsumerGroup:
        """See Membership. What else it has is replaced and not changed."""
        made = copy(self)
        made.members, made.targets = dict(self.members), dict(self.targets)
        made.owners, made.static = dict(self.owners), dict(self.static)
        made.supported = self.supported.copy()
        return made

    def fields(self) -> list[Any]:
        """It as values that msgpack has, canonical; `loaded` reads them."""
        return [
            self.version,
            self.empty_since,
            self.epoch,
            self.metadata,
            sorted(self.matches.items()),
            [member_row(self.members[member_id]) for member_id in sorted(self.members)],
            sorted(self.targets.items()),
        ]

    @classmethod
    def loaded(cls, fields: list[Any]) -> ConsumerGroup:
        """The group that `fields` gave; raises Corruption, or ValueError and its like, for anything else."""
        version, empty_since, epoch, metadata, matches, members, targets = fields
        group = cls()
        row = ["", 0, epoch, metadata, matches, [], members, targets]
        group.change(version, empty_since, change_from(row))
        group.empty_since = empty_since
        return group
