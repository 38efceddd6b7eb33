"""Finds the partitions of a node: requests name them by topic and number, Raft by their group."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from strandline.node.partition.partition import Partition
from strandline.node.runtime.change_order import ChangeOrder


class PartitionTable:
    """The partitions this node has a replica of, in the order in which they came."""

    def __init__(self) -> None:
        self._by_group: dict[int, Partition] = {}
        self._by_place: dict[tuple[bytes, int], Partition] = {}
        self._order: ChangeOrder[Partition] = ChangeOrder()

    def get(self, topic_id: bytes, number: int) -> Partition | None:
        """The replica here of one partition."""
        return self._by_place.get((topic_id, number))

    def by_group(self, group: int) -> Partition | None:
        """The replica here of one group."""
        return self._by_group.get(group)

    def add(self, group: int, partition: Partition) -> None:
        """A replica came."""
        self._by_group[group] = self._by_place[partition.topic_id, partition.number] = partition
        self._order.note(partition)
        partition.note_changes(partial(self._order.note, partition))

    def remove(self, group: int) -> Partition | None:
        """A replica goes; None when there was none."""
        partition = self._by_group.pop(group, None)
        if partition is not None:
            del self._by_place[partition.topic_id, partition.number]
            partition.note_changes(None)
            self._order.forget(partition)
        return partition

    def changed_since(self, number: int) -> tuple[int, list[Partition]]:
        """The partitions here whose state or leadership changed since, or that came, in the order of their
        groups, and the number to ask with next time; 0 is the beginning. Those that went are not told of."""
        number, changed = self._order.since(number)
        changed.sort(key=_group_of)
        return number, changed

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._by_group.values())

    def __len__(self) -> int:
        return len(self._by_group)


def _group_of(partition: Partition) -> int:
    return partition.group.id
