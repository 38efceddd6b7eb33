"""The one command that changes a consumer group of KIP-848, and its results.

A group's leader plans the next state of a group from its present one (members that join or leave, the target,
the partitions that each member may own) and logs the difference. The plan is not made again at apply: a later
release may improve an assignor, and the same log must still give the same state. Apply only checks that the
plan still holds: the plan names the version of the group it was made from, and a group of another version
refuses it whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

CHANGE_CONSUMER_GROUP: Final = 32
STABLE: Final = 0
"""It owns its target, as far as it follows it."""
UNREVOKED: Final = 1
"""The member has yet to confirm that it revoked `revoking`; until then it stays in its epoch."""
UNRELEASED: Final = 2
"""The member follows its target, and waits for partitions that other members have yet to revoke."""
LEFT_FOR_A_WHILE: Final = -2
"""Epoch of a static member that left for a while: it keeps what it owns until its session ends (KIP-345)."""

Assignment = tuple[tuple[bytes, tuple[int, ...]], ...]
"""Partitions by topic id; topics and partitions in ascending order, no topic without a partition."""
NOTHING: Final[Assignment] = ()


class ClassicMetadata(NamedTuple):
    """Additional fields of a member that speaks the classic protocol; Kafka's ClassicMemberMetadata."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    """The member's protocols in order of preference, each with its subscription. The first one is used."""

    @property
    def names(self) -> Collection[str]:
        """Names of the protocols, each once."""
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
    """Partitions that the member may own."""
    revoking: Assignment
    """Partitions that the member may still own and has to revoke."""
    classic: ClassicMetadata | None = None
    """Set for a member that speaks the classic protocol; the member takes its epoch for the generation."""


class ConsumerGroupChanged(NamedTuple):
    """The change was applied; the group now has this version."""

    version: int


class ConsumerGroupMoved(NamedTuple):
    """The group had another version (0: there is none) than the plan was made from; nothing was changed."""

    version: int


class Upgrade(NamedTuple):
    """The group is a classic one with members: make a consumer group of it first, and change that."""

    origin: bytes
    """Digest (`conversions.fingerprint`) of the generation that the change was planned from."""
    topics: Sequence[tuple[str, bytes]]
    """Names and ids of the topics that its members have partitions of, those that are there."""


class Downgrade(NamedTuple):
    """All members that are left speak the classic protocol: make a classic group of it in the end."""

    protocol: str
    """The protocol of its first generation."""
    rebalances: bool
    """Whether the members have to join again: a member left, or some member does not own its target."""
    topics: Sequence[tuple[bytes, str]]
    """Ids and names of the topics in their targets, those that are there."""


@dataclass(frozen=True, slots=True)
class ChangeConsumerGroup:
    """Bring a group from `version` to the next one. Result: ConsumerGroupChanged or ConsumerGroupMoved.

    Version 0 makes the group, also from an empty classic group. If the classic group has members, `upgrade`
    names the generation that the change was planned from: for another generation the result is
    ConsumerGroupMoved, and without `upgrade` it is Refused with GROUP_ID_NOT_FOUND. `members` are the new and
    the changed members, `targets` the changed targets; a `removed` member loses both. `matches` has all
    topics that the members' patterns match, and `metadata` is a digest of the topics that the target was made
    of; each is None if it is as before.
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
    """An assignment from its msgpack values; raises for values that are none."""
    read = tuple((bytes(topic_id), tuple(numbers)) for topic_id, numbers in row)
    if read != assignment(frozenset(partitions_of(read))):
        raise ValueError("an assignment is not in order")
    return read


def member_from(row: Sequence[Any]) -> ConsumerMember:
    """A member from its msgpack values; raises for values that are none."""
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
    """The command that `fields` was taken from; raises for values that are none."""
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
