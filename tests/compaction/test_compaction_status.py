"""The status of a local log on a disk that is full or damaged, and what the replica then reports."""

from __future__ import annotations

from strandline.node.compaction.compaction_status import LocalLogStatus
from strandline.node.compaction.compaction_status import local_status as status_at
from strandline.node.compaction.removal_minimum import Ends
from strandline.node.compaction.replica_log import ReplicaLog
from strandline.statemachine.controller.settings import Configs
from tests.compaction.filling import fill
from tests.compaction.upkeep_harness import EAGER, check, compaction_node

LAZY: Configs = {**EAGER, "min.compaction.lag.ms": str(10**12)}
"""Of a topic that is filled and not cleaned yet."""


def local_status(log: ReplicaLog) -> LocalLogStatus:
    return status_at(log, 0.0)


def test_a_full_disk_is_told_and_keeps_the_log_where_it_is() -> None:
    with compaction_node() as node:
        replica = node.add()
        fill(replica, 20)
        node.settle()
        log = node.log(replica)
        told = local_status(log)
        assert (told.clean_end, told.log_end, told.mcco, told.mxfo, told.problem) == (19, 20, 19, 20, None)
        assert (told.resets, told.reset_for) == (0, None), "that there was no log is no reset"
        assert told.reset_seconds is None
        assert told.segments > 0
        assert told.bytes > 0
        node.disk.fill(0)
        fill(replica, 20, start=20)
        node.step(20.0)
        told = local_status(log)
        assert (told.problem or "").startswith("the local log cannot be filled: No space left on device")
        assert (told.problem or "").endswith(": make room there; the node goes on by itself")
        assert f"({log.folder}" in (told.problem or "")
        assert (told.mcco, told.mxfo) == (19, 20), "what is durable counts on"
        fails = [log.problems.lasting]
        for _ in range(6):
            node.step(70.0)
        fails.append(log.problems.lasting)
        assert fails == [False, True], "at first it may pass"
        node.disk.empty()
        node.step(70.0)
        node.settle()
        told = local_status(log)
        assert (told.problem, log.problems.lasting, told.mcco, told.mxfo) == (None, False, 39, 40)
        check(log)


def test_a_round_that_a_full_disk_stopped_is_over_by_itself_although_nothing_is_to_be_filled() -> None:
    with compaction_node() as node:
        replica = node.add(configs=LAZY)
        fill(replica, 20)
        node.settle()
        log = node.log(replica)
        assert local_status(log).clean_end == 0
        for configs, clean_end in ((LAZY, 0), (EAGER, 19)):
            node.topics.configs[replica.topic_id] = EAGER
            node.disk.fill(0)
            node.step()  # keys into the map
            node.step()
            told = local_status(log)
            assert (told.problem or "").startswith("the local log cannot be cleaned: No space left on device")
            assert (told.clean_end, told.log_end) == (0, 20)
            node.disk.empty()
            node.topics.configs[replica.topic_id] = configs
            node.settle()
            told = local_status(log)
            assert (told.problem, told.clean_end) == (None, clean_end)
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
        assert status_at(log, node.loop.time() + 60).reset_seconds == 60
        node.step(1.0)
        told = local_status(log)
        assert (told.clean_end, told.log_end, told.segments) == (None, None, 0)
        assert "the local log cannot be made: " in (told.problem or "")
        assert log.ends(replica.machine) is None
        node.disk.empty()
        node.step(70.0)
        node.settle()
        told = local_status(log)
        assert (told.problem, told.resets) == (None, 1)
        assert log.ends(replica.machine) == Ends(19, 20)
