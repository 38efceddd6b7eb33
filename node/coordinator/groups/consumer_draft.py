"""A draft of a consumer group's next state: its present state, with the changes laid over it.

A plan looks at a group of maybe ten thousand members and changes a few. So nothing is copied: changes are
noted beside the state, which only the log changes, and at the end the notes go into the log as one command.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from strandline.node.coordinator.groups.consumer_matches import Matched, Matches
from strandline.node.coordinator.groups.consumer_member import Partition
from strandline.statemachine.groups.consumer_group import ConsumerGroup
from strandline.statemachine.groups.consumer_group_commands import (
    NOTHING,
    Assignment,
    ChangeConsumerGroup,
    ConsumerMember,
    Downgrade,
    Upgrade,
    partitions_of,
)


class Draft:
    """The next state of one group; `group` itself is only read."""

    def __init__(self, group_id: str, group: ConsumerGroup) -> None:
        self.group = group
        self._group_id = group_id
        self._members: dict[str, ConsumerMember | None] = {}
        """Changed members; None: gone."""
        self._owners: dict[Partition, str | None] = {}
        self._static: dict[str, str | None] = {}
        self._targets: dict[str, Assignment] = {}
        self.count = len(group.members)
        self.classic = group.classic
        """Number of members that speak the classic protocol."""
        self._supported: Counter[str] = Counter()
        """Change in the number of those members that have each protocol."""
        self.matched = Matched(group)
        self._subscription_growth = 0
        """Growth of the bytes of its members' subscriptions; see `size_of`."""
        self._bytes: int | None = None
        """Of all members before that, once it is computed."""
        self.epoch = group.epoch
        self.metadata = group.metadata
        self.matches: Matches = group.matches

    def member(self, member_id: str) -> ConsumerMember | None:
        """The member of this id, if there is one."""
        if member_id in self._members:
            return self._members[member_id]
        return self.group.members.get(member_id)

    def all_members(self) -> list[ConsumerMember]:
        """In no order that may matter."""
        present = {**self.group.members, **self._members}
        return [member for member in present.values() if member is not None]

    @property
    def growth(self) -> int:
        """Growth of the members' subscriptions and of the matches of their patterns."""
        return self._subscription_growth + self.matched.growth

    def size(self) -> int:
        """Size of all members with the matches of their patterns; see `size_of` and consumer_matches."""
        if self._bytes is None:
            self._bytes = sum(size_of(member) for member in self.group.members.values())
        return self._bytes + self._subscription_growth + self.matched.total

    def owner(self, partition: Partition) -> str | None:
        """The id of the member that owns a partition; None if none does."""
        if partition in self._owners:
            return self._owners[partition]
        return self.group.owners.get(partition)

    def target(self, member_id: str) -> Assignment:
        """A member's target assignment."""
        if member_id in self._targets:
            return self._targets[member_id]
        return self.group.targets.get(member_id, NOTHING)

    def supports(self, protocols: Collection[str]) -> bool:
        """Whether all members that speak the classic protocol have one of these."""
        supported = self.group.supported
        return any(supported[name] + self._supported[name] == self.classic for name in protocols)

    def put(self, member: ConsumerMember) -> None:
        """Add a member, or replace its former state."""
        before = self.member(member.member_id)
        if member == before:
            return
        if before is not None:
            self._take_out(before)
        self.matched.exchange("" if before is None else before.pattern, member.pattern)
        self._members[member.member_id] = member
        self.count += 1
        if member.classic is not None:
            self.classic += 1
            self._supported.update(member.classic.names)
        self._subscription_growth += size_of(member)
        for partition in (*partitions_of(member.assigned), *partitions_of(member.revoking)):
            self._owners[partition] = member.member_id
        if member.instance_id is not None:
            self._static[member.instance_id] = member.member_id

    def drop(self, member_id: str) -> None:
        """Let a member go, with all it had."""
        member = self.member(member_id)
        if member is None:
            return
        self._take_out(member)
        self.matched.exchange(member.pattern, "")
        self._targets[member_id] = NOTHING

    def _take_out(self, member: ConsumerMember) -> None:
        self._members[member.member_id] = None
        self.count -= 1
        if member.classic is not None:
            self.classic -= 1
            self._supported.subtract(member.classic.names)
        self._subscription_growth -= size_of(member)
        for partition in (*partitions_of(member.assigned), *partitions_of(member.revoking)):
            self._owners[partition] = None
        if member.instance_id is not None:
            self._static[member.instance_id] = None

    def replace(self, member_id: str, successor: ConsumerMember) -> None:
        """Put a static member's new process in its place, with its assignment and target."""
        if self.member(successor.member_id) is not None:  # this id was another member of the group before
            self.drop(successor.member_id)
        target = self.target(member_id)
        self.drop(member_id)
        self.put(successor)
        self._targets[successor.member_id] = target

    def holder(self, instance_id: str) -> ConsumerMember | None:
        """The member that has this instance id."""
        member_id = self._static.get(instance_id, self.group.static.get(instance_id))
        return None if member_id is None else self.member(member_id)

    def aim(self, member_id: str, target: Assignment) -> None:
        """Set a member's target assignment."""
        self._targets[member_id] = target

    def change(
        self, upgrade: Upgrade | None = None, downgrade: Downgrade | None = None
    ) -> ChangeConsumerGroup | None:
        """The difference between the group as it is and as it becomes; None when there is none."""
        before = self.group
        members = [
            member
            for _, member in sorted(self._members.items())
            if member is not None and before.members.get(member.member_id) != member
        ]
        removed = sorted(
            member_id
            for member_id, member in self._members.items()
            if member is None and member_id in before.members
        )
        if not members and not removed and self.epoch == before.epoch:
            return None
        targets = {
            member_id: self._targets[member_id]
            for member_id in sorted(self._targets)
            if self.member(member_id) is not None
            and before.targets.get(member_id, NOTHING) != self._targets[member_id]
        }
        return ChangeConsumerGroup(
            self._group_id,
            before.version,
            self.epoch,
            None if self.metadata == before.metadata else self.metadata,
            None if self.matches == before.matches else dict(self.matches),
            removed,
            members,
            targets,
            upgrade,
            downgrade,
        )


def size_of(member: ConsumerMember) -> int:
    """Size of a member's subscription in characters; 0 for a member that has sent nothing yet."""
    if not member.client_host:
        return 0
    texts = (member.member_id, member.instance_id, member.rack_id, member.client_id, member.pattern)
    classic = () if member.classic is None else member.classic.protocols
    protocols = sum(len(name) + len(metadata) for name, metadata in classic)
    return 256 + sum(len(text or "") for text in texts) + sum(map(len, member.topics)) + protocols
