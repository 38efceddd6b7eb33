"""The partitions of a node, and the number that says whether any of them may have changed."""

from __future__ import annotations

from collections.abc import Callable

from strandline.node.partition.partition_table import PartitionTable
from tests.partition.lone import Lone, filled


def test_changes_grow_with_all_that_changes_a_replica_and_when_one_comes_or_goes() -> None:
    table = PartitionTable()
    with Lone(leading=False) as one, Lone() as other:

        def counted(act: Callable[[], object]) -> bool:
            before = table.changes
            act()
            return table.changes > before

        assert counted(lambda: table.add(1, one.partition))
        assert counted(lambda: table.add(2, other.partition))
        assert counted(lambda: one.group.lead(1))
        assert counted(lambda: filled(one, 5))
        assert counted(one.group.lose)
        snapshot = one.partition.machine_for_group.snapshot()
        assert counted(lambda: other.partition.machine_for_group.restore(snapshot))
        assert counted(lambda: table.remove(1))
        assert not counted(lambda: table.remove(1))
        assert not counted(lambda: one.loop.advance(1000))
