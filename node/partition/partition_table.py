"""Finds the partitions of a node: requests name them by topic and number, Raft by their group."""

from __future__ import annotations

from collections.abc import Iterator

from strandline.node.partition.partition import Partition
from strandline.node.replica.watchers import ChangeCount


class PartitionTable:
    """The partitions this node has a replica of, in the order in which they came."""

    def __init__(self) -> None:
        self._by_group: dict[int, Partition] = {}
        self._by_place: dict[tuple[bytes, int], Partition] = {}
        self._count = ChangeCount()

    @property
    def changes(self) -> int:
        """A number that grows whenever the state or the leadership of any replica here may have changed, and
        when one comes or goes."""
        return self._count.number

    def get(self, topic_id: bytes, number: int) -> Partition | None:
        """The replica here of one partition."""
        return self._by_place.get((topic_id, number))

    def by_group(self, group: int) -> Partition | None:
        """The replica here of one group."""
        return self._by_group.get(group)

    def add(self, group: int, partition: Partition) -> None:
        """A replica came."""
        self._by_group[group] = self._by_place[partition.topic_id, partition.number] = partition
        partition.count_changes_in(self._count)
        self._count.number += 1

    def remove(self, group: int) -> Partition | None:
        """A replica goes; None when there was none."""
        partition = self._by_group.pop(group, None)
        if partition is not None:
            del self._by_place[partition.topic_id, partition.number]
            self._count.number += 1
        return partition

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._by_group.values())

    def __len__(self) -> int:
        return len(self._by_group)
