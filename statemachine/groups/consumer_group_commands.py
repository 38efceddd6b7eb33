"""The one command that changes a consumer group of KIP-848, and what it answers.

A group's leader plans the next state of a group from its present one (who joins, who leaves, the target, what
each member may own) and logs the difference. The plan is not made again at apply: an assignor that a later
release improves must not give another state from the same log. What is decided again is whether the plan
still holds: it names the version of the group it was made from, and another version refuses it whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

CHANGE_CONSUMER_GROUP: Final = 32
STABLE: Final = 0
"""It owns its target, as far as it follows it."""
UNREVOKED: Final = 1
"""It has yet to say that it let go of `revoking`; until then it stays in its epoch."""
UNRELEASED: Final = 2
"""It follows its target, and waits for partitions that others have not let go of."""
LEFT_FOR_A_WHILE: Final = -2
"""Epoch of a static member that left for a while: it keeps what it owns until its session ends (KIP-345)."""

Assignment = tuple[tuple[bytes, tuple[int, ...]], ...]
"""Partitions by topic id; topics and partitions in ascending order, no topic without a partition."""
NOTHING: Final[Assignment] = ()


class ConsumerMember(NamedTuple):
    """A member as the log has it; KIP-848's ConsumerGroupMemberMetadata and CurrentMemberAssignment."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    topics: tuple[str, ...]
    """Names it subscribed to, ascending."""
    pattern: str
    """Regular expression it subscribed by; empty for none."""
    assignor: str | None
    """The server-side assignor it asks for."""
    epoch: int
    previous_epoch: int
    state: int
    assigned: Assignment
    """What it may own."""
    revoking: Assignment
    """What it may still own and has to let go of."""


class ConsumerGroupChanged(NamedTuple):
    """The change was applied; the group now has this version."""

    version: int


class ConsumerGroupMoved(NamedTuple):
    """The group had another version (0: there is none) than the plan was made from; nothing was changed."""

    version: int


@dataclass(frozen=True, slots=True)
class ChangeConsumerGroup:
    """Bring a group from `version` to the next one. Result: ConsumerGroupChanged or ConsumerGroupMoved.

    Version 0 makes the group, also of an empty one of the classic protocol; where that one has members, the
    result is Refused with GROUP_ID_NOT_FOUND. `members` are those that are new or changed, `targets` those
    that changed; who is `removed` loses both. `matches` is what the members' patterns match, whole, and
    `metadata` a digest of the topics that the target was made of; None where they are as before.
    """

    kind: ClassVar[int] = CHANGE_CONSUMER_GROUP

    group: str
    version: int
    epoch: int
    metadata: bytes | None
    matches: Mapping[str, tuple[str, ...]] | None
    removed: Sequence[str]
    members: Sequence[ConsumerMember]
    targets: Mapping[str, Assignment]

    def fields(self) -> list[Any]:
        return [
            self.group,
            self.version,
            self.epoch,
            self.metadata,
            None if self.matches is None else list(self.matches.items()),
            list(self.removed),
            list(self.members),
            list(self.targets.items()),
        ]


def assignment(partitions: Iterable[tuple[bytes, int]]) -> Assignment:
    """The assignment of these partitions, in any order and without any twice."""
    topics: dict[bytes, list[int]] = {}
    for topic_id, number in sorted(partitions):
        topics.setdefault(topic_id, []).append(number)
    return tuple((topic_id, tuple(numbers)) for topic_id, numbers in topics.items())


def partitions_of(assignment: Assignment) -> list[tuple[bytes, int]]:
    """Its partitions, one by one, in ascending order."""
    return [(topic_id, number) for topic_id, numbers in assignment for number in numbers]


def assignment_from(row: Sequence[Any]) -> Assignment:
    """An assignment of what msgpack makes of one; raises for what is none."""
    read = tuple((bytes(topic_id), tuple(numbers)) for topic_id, numbers in row)
    if read != assignment(frozenset(partitions_of(read))):
        raise ValueError("an assignment is not in order")
    return read


def member_from(row: Sequence[Any]) -> ConsumerMember:
    """A member of what msgpack makes of one; raises for what is none."""
    member = ConsumerMember(*row)
    return member._replace(
        topics=tuple(member.topics),
        assigned=assignment_from(member.assigned),
        revoking=assignment_from(member.revoking),
    )


def change_from(row: Sequence[Any]) -> ChangeConsumerGroup:
    """The command of what `fields` gave; raises for what is none."""
    group, version, epoch, metadata, matches, removed, members, targets = row
    return ChangeConsumerGroup(
        group,
        version,
        epoch,
        metadata,
        None if matches is None else {pattern: tuple(names) for pattern, names in matches},
        removed,
        [member_from(member) for member in members],
        {member_id: assignment_from(target) for member_id, target in targets},
    )
