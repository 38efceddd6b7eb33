"""Consumer groups as the command line asks for them: librdkafka's admin requests, answers as plain values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    IsolationLevel,
    KafkaException,
    Node,
    TopicPartition,
)
from confluent_kafka.admin._group import ConsumerGroupDescription, ListConsumerGroupsResult
from confluent_kafka.admin._listoffsets import ListOffsetsResultInfo, OffsetSpec

from strandline.cluster.failure import MISUSED, CommandFailed
from strandline.cluster.kafka_client import ANSWER_SECONDS, REQUEST_SECONDS, TopicAdmin
from strandline.cluster.kafka_errors import PASSING, error_of
from strandline.cluster.member_protocols import member_protocols
from strandline.cluster.target import Target

_AT: Any = OffsetSpec
"""Its constructors say nothing of types."""


class AssignedPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


class Listed(NamedTuple):
    """One group of a list, in Kafka's words."""

    group: str
    protocol: str
    state: str


class AssignedMember(NamedTuple):
    """One member and its assignment."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    protocol: str
    """``"classic"`` or ``"consumer"``; a consumer group may have both. "" where the broker cannot say."""
    partitions: list[AssignedPartition]


class Described(NamedTuple):
    """One group."""

    protocol: str
    state: str
    coordinator: str
    assignor: str
    members: list[AssignedMember]


class Position(NamedTuple):
    """A group's position in a partition; None if it committed nothing, or the partition is gone."""

    place: AssignedPartition
    offset: int | None
    end: int | None

    @property
    def lag(self) -> int | None:
        """Offsets between the two."""
        return None if self.offset is None or self.end is None else max(self.end - self.offset, 0)


class Groups:
    """Groups by way of Kafka's own admin requests. Everything raises CommandFailed."""

    def __init__(self, where: Target) -> None:
        self._topics = TopicAdmin(where)
        self._admin = self._topics.admin

    def all(self) -> list[Listed]:
        """Every group, by name; an error of any broker ends it, as its groups would be missing."""

        def ask() -> ListConsumerGroupsResult:
            future = self._admin.list_consumer_groups(request_timeout=REQUEST_SECONDS)
            found: ListConsumerGroupsResult = future.result(ANSWER_SECONDS)
            for error in found.errors or ():
                raise KafkaException(error_of(error))  # type: ignore[arg-type]
            return found

        found = self._topics.read("the groups cannot be listed", ask)
        return sorted(
            Listed(group.group_id, _protocol(group.type), _state(group.state)) for group in found.valid or ()
        )

    def describe(self, name: str) -> Described:
        """One group; CommandFailed when it is not there."""

        def ask() -> ConsumerGroupDescription:
            futures = self._admin.describe_consumer_groups([name], request_timeout=REQUEST_SECONDS)
            described: ConsumerGroupDescription = futures[name].result(ANSWER_SECONDS)
            return described

        found = self._topics.read(f"group {name} cannot be described", ask)
        if _state(found.state) == "Dead":
            # A broker that does not say so in an error (before KIP-1043).
            raise CommandFailed(
                f"there is no group {name}", "see the groups there are with `strandline group list`"
            )
        coordinator: Node | None = found.coordinator
        protocol = _protocol(found.type)
        spoken = {}
        if protocol == "consumer" and coordinator is not None and found.members:
            spoken = member_protocols(coordinator.host, coordinator.port, name)
        return Described(
            protocol,
            _state(found.state),
            "none" if coordinator is None else f"{coordinator.id} ({coordinator.host}:{coordinator.port})",
            found.partition_assignor,
            [
                AssignedMember(
                    member.member_id,
                    member.group_instance_id,
                    member.client_id,
                    member.host,
                    "classic" if protocol == "classic" else spoken.get(member.member_id, ""),
                    sorted(_place(each) for each in member.assignment.topic_partitions),
                )
                for member in found.members
            ],
        )

    def positions(self, name: str) -> list[Position]:
        """The group's position in every partition with a committed offset."""

        def ask() -> ConsumerGroupTopicPartitions:
            asked = [ConsumerGroupTopicPartitions(name)]
            futures = self._admin.list_consumer_group_offsets(asked, request_timeout=REQUEST_SECONDS)
            committed: ConsumerGroupTopicPartitions = futures[name].result(ANSWER_SECONDS)
            return committed

        committed = self._topics.read(f"group {name}'s offsets cannot be read", ask)
        rows = {_place(row): row.offset for row in committed.topic_partitions or ()}
        known = self._topics.names()
        there = [place for place in rows if place.partition < known.get(place.topic, (0, 0))[0]]
        ends = self._offsets(dict.fromkeys(there, _AT.latest()))
        return [
            Position(place, None if rows[place] < 0 else rows[place], ends.get(place))
            for place in sorted(rows)
        ]

    def delete(self, names: Sequence[str]) -> dict[str, CommandFailed]:
        """Delete groups that have no members; why some were not."""
        futures = self._admin.delete_consumer_groups([*names], request_timeout=REQUEST_SECONDS)
        failed = {}
        for name, future in futures.items():
            try:
                self._topics.result(f"group {name} cannot be deleted", future)
            except CommandFailed as error:
                failed[name] = error
        return failed

    def places(self, topics: Sequence[str], partitions: Sequence[int] | None) -> list[AssignedPartition]:
        """The partitions of these topics, or those of them whose numbers are given; all must exist."""
        found = []
        for topic in dict.fromkeys(topics):
            there = [partition.id for partition in self._topics.describe(topic).partitions]
            for number in partitions or ():
                if number not in there:
                    raise CommandFailed(
                        f"there is no {topic}-{number}", "see them with `strandline topic describe`", MISUSED
                    )
            found += [
                AssignedPartition(topic, number) for number in there if not partitions or number in partitions
            ]
        return found

    def found(
        self, places: Sequence[AssignedPartition], start: tuple[str, int]
    ) -> dict[AssignedPartition, int]:
        """The offset of each at `start`, which is as `parse_start` gives it."""
        what, value = start
        first = self._offsets(dict.fromkeys(places, _AT.earliest()))
        if what == "beginning":
            return first
        ends = self._offsets(dict.fromkeys(places, _AT.latest()))
        if what == "end":
            return ends
        if what == "offset":
            return {place: min(max(value, first[place]), ends[place]) for place in places}
        at = self._offsets(dict.fromkeys(places, _AT.for_timestamp(value)))
        return {place: ends[place] if at[place] < 0 else at[place] for place in places}

    def set(self, name: str, offsets: Mapping[AssignedPartition, int]) -> None:
        """Commit them for the group."""
        rows = [TopicPartition(*place, offset) for place, offset in offsets.items()]
        what = f"group {name}'s offsets cannot be set"

        def ask() -> None:
            asked = [ConsumerGroupTopicPartitions(name, rows)]
            futures = self._admin.alter_consumer_group_offsets(asked, request_timeout=REQUEST_SECONDS)
            done: ConsumerGroupTopicPartitions = futures[name].result(ANSWER_SECONDS)
            for row in done.topic_partitions or ():
                if row.error is None:
                    continue
                if row.error.code() in PASSING:
                    raise KafkaException(row.error)
                place = f"{row.topic}-{row.partition}"
                raise CommandFailed(f"{what}: {place}: {row.error.str()}", "stop the group's members, if any")

        self._topics.read(what, ask)

    def trim(self, topic: str, ends: Mapping[AssignedPartition, int]) -> None:
        """Delete the records of a topic's partitions below these offsets."""
        if not ends:
            return
        rows = [TopicPartition(*place, offset) for place, offset in ends.items()]
        for row, future in self._admin.delete_records(rows, request_timeout=REQUEST_SECONDS).items():
            self._topics.result(
                f"partition {row.partition} of {topic} cannot be trimmed", future, topic=topic
            )

    def _offsets(self, asked: Mapping[AssignedPartition, OffsetSpec]) -> dict[AssignedPartition, int]:
        if not asked:
            return {}

        def ask() -> dict[AssignedPartition, int]:
            futures = self._admin.list_offsets(
                {TopicPartition(*place): spec for place, spec in asked.items()},
                isolation_level=IsolationLevel.READ_COMMITTED,
                request_timeout=REQUEST_SECONDS,
            )
            found: Iterable[tuple[TopicPartition, ListOffsetsResultInfo]] = [
                (row, future.result(ANSWER_SECONDS)) for row, future in futures.items()
            ]
            return {_place(row): result.offset for row, result in found}

        topics = ", ".join(dict.fromkeys(place.topic for place in asked))
        return self._topics.read(f"the offsets of {topics} cannot be read", ask)


def _place(row: TopicPartition) -> AssignedPartition:
    return AssignedPartition(row.topic, row.partition)


def _protocol(kind: ConsumerGroupType | Any) -> str:
    return str(kind.name).lower()


_STATES = {
    "PREPARING_REBALANCING": "PreparingRebalance",
    "COMPLETING_REBALANCING": "CompletingRebalance",
}


def _state(state: Any) -> str:
    """Kafka's name; librdkafka has its own."""
    name = str(state.name)
    return _STATES.get(name) or name.capitalize()
