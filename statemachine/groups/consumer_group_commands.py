"""The one command that changes a consumer group of KIP-848, and what it answers.

A group's leader plans the next state of a group from its present one (who joins, who leaves, the target, what
each member may own) and logs the difference. The plan is not made again at apply: an assignor that a later
release improves must not give another state from the same log. What is decided again is whether the plan
still holds: it names the version of the group it was made from, and another version refuses it whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
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


class ClassicMetadata(NamedTuple):
    """What a member has besides that speaks the classic protocol; Kafka's ClassicMemberMetadata."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    """What it can use, the dearest first, each with its subscription. It is served by the first."""

    @property
    def names(self) -> Collection[str]:
        """Of its protocols, each once."""
        return tuple(dict.fromkeys(name for name, _ in self.protocols))


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
    classic: ClassicMetadata | None = None
    """Of one that speaks the classic protocol; its epoch is then what it takes for its generation."""


class ConsumerGroupChanged(NamedTuple):
    """The change was applied; the group now has this version."""

    version: int


class ConsumerGroupMoved(NamedTuple):
    """The group had another version (0: there is none) than the plan was made from; nothing was changed."""

    version: int


class Upgrade(NamedTuple):
    """The group is a classic one with members: make a consumer group of it first, and change that."""

    origin: bytes
    """Which generation, with which members, the change was planned from; see `conversions.fingerprint`."""
    topics: Sequence[tuple[str, bytes]]
    """Names and ids of the topics that its members have partitions of, those that are there."""


class Downgrade(NamedTuple):
    """All members that are left speak the classic protocol: make a classic group of it in the end."""

    protocol: str
    """The protocol of its first generation."""
    rebalances: bool
    """Whether they have to join anew: somebody left, or not everybody has what it is to have."""
    topics: Sequence[tuple[bytes, str]]
    """Ids and names of the topics in their targets, those that are there."""


@dataclass(frozen=True, slots=True)
class ChangeConsumerGroup:
    """Bring a group from `version` to the next one. Result: ConsumerGroupChanged or ConsumerGroupMoved.

    Version 0 makes the group, also of an empty one of the classic protocol; where that one has members,
    `upgrade` says which generation it was planned from: another is ConsumerGroupMoved, and without `upgrade`
    the result is Refused with GROUP_ID_NOT_FOUND. `members` are those that are new or changed, `targets`
    those that changed; who is `removed` loses both. `matches` is what the members' patterns match, whole, and
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
    upgrade: Upgrade | None = None
    downgrade: Downgrade | None = None

    def fields(self) -> list[Any]:
        conversion = [self.upgrade, self.downgrade] if self.upgrade or self.downgrade else []
        return [
            self.group,
            self.version,
            self.epoch,
            self.metadata,
            None if self.matches is None else list(self.matches.items()),
            list(self.removed),
            [member_row(member) for member in self.members],
            list(self.targets.items()),
            *conversion,
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
        classic=None if member.classic is None else _classic_from(*member.classic),
    )


def _classic_from(session_timeout_ms: int, protocols: Sequence[Sequence[Any]]) -> ClassicMetadata:
    if not protocols:
        raise ValueError("a classic member without a protocol")
    return ClassicMetadata(session_timeout_ms, tuple((name, metadata) for name, metadata in protocols))


def member_row(member: ConsumerMember) -> Sequence[Any]:
    """A member in the log and in snapshots; those of consumers are as they were before others had more."""
    return member if member.classic is not None else member[:-1]


def change_from(row: Sequence[Any]) -> ChangeConsumerGroup:
    """The command of what `fields` gave; raises for what is none."""
    group, version, epoch, metadata, matches, removed, members, targets, *conversion = row
    upgrade, downgrade = conversion or (None, None)
    return ChangeConsumerGroup(
        group,
        version,
        epoch,
        metadata,
        None if matches is None else {pattern: tuple(names) for pattern, names in matches},
        removed,
        [member_from(member) for member in members],
        {member_id: assignment_from(target) for member_id, target in targets},
        None if upgrade is None else Upgrade(*upgrade),
        None if downgrade is None else Downgrade(*downgrade),
    )
