"""The partitions of a node, and which of them changed since a look."""

from __future__ import annotations

from strandline.node.partition.partition_table import PartitionTable
from tests.partition.lone import Lone


def test_what_came_was_applied_or_lost_its_leader_is_told_and_what_went_is_not() -> None:
    with Lone() as lone:
        table = PartitionTable()
        table.add(lone.group.id, lone.partition)
        came, changed = table.changed_since(0)
        assert changed == [lone.partition]
        assert table.changed_since(came) == (came, [])
        lone.append("1")
        lone.stored("1")
        lone.group.commit()
        applied, changed = table.changed_since(came)
        assert (applied > came, changed) == (True, [lone.partition])
        lone.group.lose()
        lost, changed = table.changed_since(applied)
        assert (lost > applied, changed) == (True, [lone.partition])
        assert table.remove(lone.group.id) is lone.partition
        lone.partition.close()
        assert table.changed_since(0) == (lost, []), "nothing that ends in it brings it back"
