"""The status of a local log on a disk that is full or damaged, and what the replica then reports."""

from __future__ import annotations

from strandline.node.compaction.compaction_status import local_status
from strandline.node.compaction.removal_minimum import Ends
from tests.compaction.test_upkeep import fill
from tests.compaction.upkeep_harness import check, compaction_node


def test_a_full_disk_is_told_and_keeps_the_log_where_it_is() -> None:
    with compaction_node() as node:
        replica = node.add()
        fill(replica, 20)
        node.settle()
        log = node.log(replica)
        told = local_status(log)
        assert (told.clean_end, told.log_end, told.mcco, told.mxfo, told.problem) == (19, 20, 19, 20, None)
        assert told.segments > 0
        assert told.bytes > 0
        node.disk.fill(0)
        fill(replica, 20, start=20)
        node.step(20.0)
        told = local_status(log)
        assert "cannot be filled, as its disk is full or fails" in (told.problem or "")
        assert "No space left on device" in (told.problem or "")
        assert (told.mcco, told.mxfo) == (19, 20), "what is durable counts on"
        fails = [log.fails]
        for _ in range(6):
            node.step(70.0)
        fails.append(log.fails)
        assert fails == [False, True], "at first it may pass"
        node.disk.empty()
        node.step(70.0)
        node.settle()
        told = local_status(log)
        assert (told.problem, log.fails, told.mcco, told.mxfo) == (None, False, 39, 40)
        check(log)


def test_a_damaged_file_is_told_and_the_replica_reports_nothing_until_there_is_a_log_again() -> None:
    with compaction_node() as node:
        replica = node.add()
        fill(replica, 20)
        node.settle()
        log = node.log(replica)
        node.disk.fill(0)
        log.damaged("00000000000000000001.seg: block 0 has a bad checksum")
        told = local_status(log)
        assert (told.mcco, told.mxfo) == (None, None)
        assert "bad checksum" in (told.reset_for or "")
        node.step(1.0)
        told = local_status(log)
        assert (told.clean_end, told.log_end, told.segments) == (None, None, 0)
        assert "the local log cannot be made: " in (told.problem or "")
        assert log.ends(replica.machine) is None
        node.disk.empty()
        node.step(70.0)
        node.settle()
        told = local_status(log)
        assert (told.problem, told.resets) == (None, 2)
        assert log.ends(replica.machine) == Ends(19, 20)
