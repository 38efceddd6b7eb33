"""Moves of replicas by Kafka's own requests (KIP-455): librdkafka lacks them, so this speaks itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode
from kio.static.primitive import i32Timedelta

from strandline.cluster.broker_connection import connect
from strandline.cluster.failure import CommandFailed, one_line
from strandline.snapshot.connection import METADATA, Api, ConnectionLost, metadata_request

_ALTER: Final = Api(45, 0)
_LIST: Final = Api(46, 0)
_TIMEOUT: Final = i32Timedelta.parse(timedelta(seconds=20))
PARTITIONS_A_REQUEST: Final = 200
"""The controller commits each partition's target by itself, and the answer has to come within 30 s."""

Replicas = tuple[int, ...]


class Placement(NamedTuple):
    """The replicas of a topic, and the nodes that may have some."""

    racks: Mapping[int, str]
    """Live nodes, each with its rack; those that name none are one rack."""
    partitions: list[Replicas]
    """Of the topic, in the order of their numbers."""
    totals: Mapping[int, int]
    """Replicas of all topics that each node has."""


class ReassignmentClient:
    """Asks the first broker of `bootstrap` that answers. Everything raises CommandFailed."""

    def __init__(self, bootstrap: str) -> None:
        self._connection = connect(bootstrap)

    def placement(self, topic: str) -> Placement:
        """The nodes, and the replicas of a topic that exists."""
        answer = self._ask(METADATA, metadata_request(None))
        found: dict[int, Replicas] = {}
        totals: Counter[int] = Counter()
        for each in answer.topics:
            for partition in each.partitions:
                totals.update(partition.replica_nodes)
                if each.name == topic:
                    found[partition.partition_index] = tuple(partition.replica_nodes)
        racks = {broker.node_id: broker.rack or "" for broker in answer.brokers}
        return Placement(racks, [found[number] for number in sorted(found)], totals)

    def moving(self, topic: str, count: int) -> dict[int, Replicas]:
        """The targets of the moves of a topic that are under way, by partition, of the first `count`."""
        a = _LIST.request
        asked = a.ListPartitionReassignmentsTopics(name=topic, partition_indexes=tuple(range(count)))
        answer = self._ask(_LIST, a.ListPartitionReassignmentsRequest(timeout=_TIMEOUT, topics=(asked,)))
        _check(f"the moves of topic {topic} cannot be listed", answer)
        return {
            row.partition_index: tuple(node for node in row.replicas if node not in row.removing_replicas)
            for each in answer.topics
            for row in each.partitions
        }

    def move(self, topic: str, targets: Mapping[int, Replicas]) -> None:
        """Send partitions on their way. When one is refused, those that have begun go back, and it raises."""
        begun: list[int] = []
        numbers = list(targets)
        for start in range(0, len(numbers), PARTITIONS_A_REQUEST):
            some = numbers[start : start + PARTITIONS_A_REQUEST]
            rows = self._alter(topic, {number: targets[number] for number in some})
            begun += [row.partition_index for row in rows if row.error_code is ErrorCode.none]
            refused = [row for row in rows if row.error_code is not ErrorCode.none]
            if refused:
                back = self._go_back(topic, begun)
                first = refused[0]
                raise CommandFailed(
                    f"partition {first.partition_index} of topic {topic} cannot be on nodes "
                    f"{', '.join(map(str, targets[first.partition_index]))}: {_told(first)}",
                    f"correct what was asked for; {back}",
                )

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def _go_back(self, topic: str, begun: Sequence[int]) -> str:
        if not begun:
            return "no replica moves"
        try:
            rows = self._alter(topic, dict.fromkeys(begun))
        except CommandFailed as failed:
            return f"{len(begun)} other partitions move nevertheless ({failed.cause})"
        # NO_REASSIGNMENT_IN_PROGRESS: it was there before it could go back.
        stay = sum(row.error_code is not ErrorCode.none for row in rows)
        return f"{stay} other partitions have moved nevertheless" if stay else "no replica moves"

    def _alter(self, topic: str, targets: Mapping[int, Replicas | None]) -> list[Any]:
        a = _ALTER.request
        rows = tuple(
            a.ReassignablePartition(partition_index=number, replicas=target)
            for number, target in targets.items()
        )
        asked = a.AlterPartitionReassignmentsRequest(
            timeout=_TIMEOUT, topics=(a.ReassignableTopic(name=topic, partitions=rows),)
        )
        answer = self._ask(_ALTER, asked)
        _check(f"the replicas of topic {topic} cannot be changed", answer)
        return [row for each in answer.responses for row in each.partitions]

    def _ask(self, api: Api, request: Any) -> Any:
        try:
            return self._connection.ask(api, request)
        except ConnectionLost as lost:
            raise CommandFailed(one_line(str(lost)), "see the log of that node, and repeat this") from None


def _told(answer: Any) -> str:
    return one_line(answer.error_message or answer.error_code.name)


def _check(what: str, answer: Any) -> None:
    if answer.error_code is not ErrorCode.none:
        cure = "correct what was asked for"
        if answer.error_code is ErrorCode.cluster_authorization_failed:
            cure = "ask as a user that may describe and alter the cluster"
        raise CommandFailed(f"{what}: {_told(answer)}", cure)
