"""A replica that begins again with an older state than the one that its local log was made of.

A process that was killed restores the last snapshot of the state, and learns from a leader how far the log
behind it is committed. Until then, for hours if it reaches no other node, it has the state of the snapshot.
The objects which that names may still be stored, as a leased checkpoint keeps them.
"""

from __future__ import annotations

import pytest

from strandline.node.compaction.removal_minimum import Ends
from strandline.statemachine.partition.partition_commands import ReplaceLevelOne
from tests.compaction.filling import ends_of, fill, manifest_of
from tests.compaction.logs import Plan
from tests.compaction.upkeep_harness import check, compaction_node, contents


@pytest.mark.parametrize("raised", [False, True])
def test_a_log_takes_nothing_from_a_state_that_is_older_than_its_floors(raised: bool) -> None:
    """What was deleted below the floors is in the objects of the older state, and its deletion is gone.

    The floors are those of the log's first making, or were `raised` while it was empty.
    """
    with compaction_node() as node:
        replica = node.add()
        if raised:
            node.step()
            assert manifest_of(node.log(replica)).floor == 0
        for each in range(60):
            replica.put(Plan(((b"first %d" % each, bytes(200), 0),)))
        replica.put(Plan(((b"deleted", b"an old value", 0),)))
        replica.lift()
        fill(replica, 60, keys=60, start=61)
        tombstone = replica.put(Plan(((b"deleted", None, 0),)))
        fill(replica, 60, keys=60, start=122)
        older, index = replica.machine.snapshot(), replica.index
        # All other copies are clean past the tombstone, and it is gone from level one.
        kept = [data for base, data, _ in replica.written if base < 60 or base > tombstone]
        whole = replica.object_of(kept, bytes([9]) * 16, (0, 182))
        gone = [(one.term, one.unique) for one in replica.machine.level_one]
        replica.apply(ReplaceLevelOne(gone, [whole], 181, 181, 182))
        replica.removal(181, 182)
        newer, newest = replica.machine.snapshot(), replica.index
        while not node.upkeep.measures.ingests:
            node.step()
        manifest = manifest_of(node.log(replica))
        assert manifest.floor == 181
        assert manifest.log_end < 60, "a part of it was filled"
        node = node.again()
        replica.machine.restore(older)
        replica.index = index
        for _ in range(4):
            node.step()
        replica.machine.restore(newer)
        replica.index = newest
        node.settle()
        log = node.log(replica)
        left = [one.value for one in contents(log) if one.key == b"deleted"]
        assert left == [], "its deletion is nowhere any more"
        assert ends_of(log) is not None
        assert manifest_of(log).log_end == 182
        check(log, replica.ripe, in_round=True)


def test_a_new_replica_that_gets_its_state_has_nothing_to_make_anew(caplog: pytest.LogCaptureFixture) -> None:
    """Its log was empty when the state came, and so is in step with any state."""
    with compaction_node() as node:
        replica = node.add()
        nothing, index = replica.machine.snapshot(), replica.index
        fill(replica, 40)
        replica.removal(30, 30)
        there, newest = replica.machine.snapshot(), replica.index
        replica.machine.restore(nothing)
        replica.index = index
        node.step()
        assert manifest_of(node.log(replica)).floor == 0
        replica.machine.restore(there)
        replica.index = newest
        assert not node.log(replica).in_step()
        node.settle()
        log = node.log(replica)
        assert manifest_of(log).floor == 30
        assert ends_of(log) == Ends(39, 40)
        check(log, replica.ripe)
        assert (log.resets, caplog.records) == (0, [])
