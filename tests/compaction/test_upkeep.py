"""The upkeep of local logs on one node: filled, cleaned, reset, trimmed, removed, as states and topics
say."""

from __future__ import annotations

from strandline.node.compaction.compaction_measures import Reset
from strandline.node.compaction.replica_log import Ends
from tests.compaction.logs import Plan
from tests.compaction.upkeep_harness import Node, check, compaction_node, contents


def fill(node: Node, count: int, keys: int = 5, number: int = 0) -> None:
    """Batches of one record each, in objects of ten."""
    replica = node.partitions[number]
    for each in range(count):
        replica.put(Plan(((b"key %d" % (each % keys), b"value %d" % each, each),)))
        if each % 10 == 9:
            replica.lift()
    replica.lift()


def test_a_log_is_filled_and_cleaned_up_to_its_last_batch() -> None:
    with compaction_node() as node:
        replica = node.add()
        fill(node, 100)
        node.settle()
        log = node.log(replica)
        assert log.log is not None
        assert log.ends(replica.machine) == Ends(99, 100)
        check(log)
        # The last batch is not cleaned: its key's record before it stays.
        assert [one.offset for one in contents(log)] == [94, 95, 96, 97, 98, 99]
        assert node.upkeep.measures.resets[Reset.NEW] == 1
        assert log.resets == 1
        fill(node, 7)
        node.settle()
        assert log.ends(replica.machine) == Ends(106, 107)
        check(log)
        assert [one.offset for one in contents(log)] == [101, 102, 103, 104, 105, 106]
