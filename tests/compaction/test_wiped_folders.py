"""A local log's folder that is removed from under the node that has it open."""

from __future__ import annotations

from unittest.mock import patch

from strandline.node.compaction.compactor import Ingested, IngestJob, JobFailed
from strandline.node.compaction.removal_minimum import Ends
from strandline.statemachine.partition.partition_commands import SetStartOffset
from tests.compaction.filling import ends_of, fill
from tests.compaction.publishing_rig import rig
from tests.compaction.upkeep_harness import EAGER, Node, check, compaction_node


def wipe(node: Node, folder: str) -> None:
    for name in node.disk.listdir(folder):
        node.disk.unlink(f"{folder}/{name}")
    node.disk.rmdir(folder)


def test_what_a_log_had_is_not_taken_for_what_the_next_one_has_under_the_same_numbers() -> None:
    """Objects are not looked at again as long as the same segments have their offsets."""
    with rig() as made:
        partition, node = made.partition, made.nodes[0]
        fill(partition, 40, keys=40)
        made.settle()
        made.check()
        log = node.upkeep.log_of(partition.id)
        assert log is not None
        assert partition.machine.removals.level_one_clean == 39
        wipe(node, log.folder)
        fill(partition, 40, keys=30, start=40)
        made.settle()
        assert log.resets == 1, "the first making is none"
        assert partition.machine.removals.level_one_clean == 79
        made.check()


def test_what_was_made_before_the_folder_went_is_not_tried_again() -> None:
    """Else the log would wait, and name a cure that has nothing to do with it."""
    with compaction_node() as node:
        replica = node.add()
        fill(replica, 20)
        node.settle()
        log, ingest = node.log(replica), node.compactor.ingest
        wipes = [log.folder]

        async def wiped(job: IngestJob) -> Ingested | JobFailed:
            made = await ingest(job)
            while wipes:
                wipe(node, wipes.pop())
            return made

        with (
            patch.object(node.compactor, "ingest", wiped),
            patch.object(log.problems, "failed", side_effect=AssertionError),
        ):
            fill(replica, 20, start=20)
            node.settle()
        assert log.reset_for == f"{log.folder} is not there any more"
        assert ends_of(log) == Ends(39, 40)
        check(log)


def test_a_change_of_the_manifest_alone_meets_the_loss_as_well() -> None:
    """Else a log without new records would try for ever to write a manifest into a folder that is gone."""
    with compaction_node() as node:
        replica = node.add(configs={**EAGER, "cleanup.policy": "compact,delete"})
        fill(replica, 100, keys=90)
        node.settle()
        log = node.log(replica)
        wipe(node, log.folder)
        replica.apply(SetStartOffset(80))
        node.settle()
        assert "is not there any more" in str(log.reset_for)
        assert ends_of(log) == Ends(99, 100)
        check(log)
