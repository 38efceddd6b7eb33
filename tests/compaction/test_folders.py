"""The folders of local logs: which a node removes, in which order, and which it has to leave."""

from __future__ import annotations

import errno
from os.path import dirname
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from strandline.node.compaction.compaction_measures import Reset
from strandline.node.compaction.log_folders import MANIFEST
from strandline.node.compaction.log_sweep import SWEEP_SECONDS
from strandline.node.compaction.removal_minimum import Ends
from tests.compaction import upkeep_harness
from tests.compaction.filling import ends_of, fill
from tests.compaction.upkeep_harness import check, compaction_node


def test_nothing_is_swept_before_the_node_knows_its_topics() -> None:
    """Its copy of the controller is of its last snapshot until then, and may lack the topic."""
    with compaction_node() as node:
        replica = node.add()
        fill(replica, 10)
        node.settle()
        folder = node.log(replica).folder
        node = node.again()
        known, node.topics.configs = node.topics.configs, {}
        node.registered = False
        node.step(SWEEP_SECONDS)
        assert node.disk.exists(folder)
        node.topics.configs, node.registered = known, True
        node.step(SWEEP_SECONDS)
        assert ends_of(node.log(replica)) == Ends(9, 10)
        assert node.upkeep.measures.resets[Reset.NEW] == 0


def test_a_log_whose_replica_is_on_other_nodes_by_now_is_swept() -> None:
    with compaction_node() as node:
        replica = node.add()
        fill(replica, 10)
        node.settle()
        folder = node.log(replica).folder
        node = node.again()
        node.partitions.remove(replica)
        with patch.object(upkeep_harness, "HERE", SimpleNamespace(replicas=(2, 3))):
            node.step(SWEEP_SECONDS)
        assert not node.disk.exists(folder)


def test_the_last_partition_of_a_topic_takes_its_folder_along() -> None:
    with compaction_node() as node:
        replica = node.add()
        fill(replica, 10)
        node.settle()
        folder = node.log(replica).folder
        node.partitions.remove(replica)
        node.step()
        assert not node.disk.exists(dirname(folder))


def test_a_log_that_is_removed_loses_its_manifest_first_and_durably() -> None:
    """A node that dies meanwhile finds files that are no log, and calls none damaged."""
    with compaction_node() as node:
        replica = node.add()
        fill(replica, 100, keys=90)
        node.settle()
        log, disk = node.log(replica), node.disk
        names = disk.listdir(log.folder)
        assert len(names) > 2
        done: list[str] = []
        unlink, sync = disk.unlink, disk.sync_dir

        def unlinks(path: str) -> None:
            done.append(path.removeprefix(f"{log.folder}/"))
            unlink(path)

        def syncs(path: str) -> None:
            done.append("sync")
            sync(path)

        node.partitions.remove(replica)
        with patch.object(disk, "unlink", unlinks), patch.object(disk, "sync_dir", syncs):
            node.step()
        assert done[:2] == [MANIFEST, "sync"]
        assert sorted(set(done) - {"sync"}) == sorted(names)


@pytest.mark.parametrize("took_effect", [False, True])
@pytest.mark.parametrize("operation", ["rename", "sync_dir"])
def test_after_an_error_while_its_manifest_is_replaced_a_log_is_opened_again(
    operation: str, took_effect: bool
) -> None:
    """Only the disk knows which of the two it has, and the log that is open is of no use any more."""
    with compaction_node() as node:
        replica = node.add()
        fill(replica, 20)
        node.settle()
        log, disk = node.log(replica), node.disk
        rename, sync = disk.rename, disk.sync_dir
        replacing: list[str] = []
        failed: list[str] = []

        def fails() -> None:
            failed.append(operation)
            raise OSError(errno.EIO, "Input/output error")

        def renames(src: str, dst: str) -> None:
            manifest = dst.endswith(f"/{MANIFEST}") and not failed
            if manifest and operation == "rename" and not took_effect:
                fails()
            rename(src, dst)
            if manifest and operation == "rename":
                fails()
            replacing.extend([dst] * manifest)

        def syncs(path: str) -> None:
            if replacing and not failed:
                if took_effect:
                    sync(path)
                fails()
            sync(path)

        fill(replica, 20, start=20)
        with patch.object(disk, "rename", renames), patch.object(disk, "sync_dir", syncs):
            while not failed:
                node.step()
        assert log.log is None
        assert "the local log has to be opened again: " in str(log.problems.first)
        node.settle()
        assert node.log(replica) is log
        assert (ends_of(log), log.problems.first) == (Ends(39, 40), None)
        check(log)
        assert node.upkeep.measures.resets[Reset.DAMAGED] == 0
