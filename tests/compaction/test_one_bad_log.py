"""The logs of a node do not wait for one of them that cannot be cared for."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from strandline.node.compaction import replica_log as replica_log_module
from strandline.node.compaction.cleaning_round import CleaningRound
from strandline.node.compaction.local_log import has_segments
from strandline.node.compaction.publisher import CompactionPublisher
from strandline.node.compaction.removal_minimum import Ends
from tests.compaction.filling import ends_of, fill
from tests.compaction.upkeep_harness import Node, Replica, compaction_node


@contextmanager
def unforeseen(node: Node) -> Iterator[list[dict[str, Any]]]:
    """What the loop is told, in place of the run's end."""
    found: list[dict[str, Any]] = []
    with patch.object(node.sim.loop, "call_exception_handler", found.append):
        yield found


def recovered(node: Node, replica: Replica) -> Ends | None:
    """The ends of a log some minutes after its failure is over; it has no problem any more."""
    for _ in range(12):
        node.step(60.0)
    assert node.log(replica).problems.first is None
    return ends_of(node.log(replica))


@pytest.mark.parametrize("error", [OSError(errno.EIO, "the disk fails"), RuntimeError("unforeseen")])
def test_a_log_that_cannot_be_looked_at_does_not_stop_the_others(error: Exception) -> None:
    with compaction_node() as node:
        bad, good = node.add(0), node.add(1)
        fill(bad, 20)
        fill(good, 20)

        def fails(disk: Any, folder: str) -> bool:
            if f"/{bad.topic_id.hex()}/" in folder:
                raise error
            return has_segments(disk, folder)

        with patch.object(replica_log_module, "has_segments", fails), unforeseen(node) as found:
            for _ in range(12):
                node.step(60.0)
            assert ends_of(node.log(good)) == Ends(19, 20)
            assert error.args[-1] in str(node.log(bad).problems.first)
            assert node.log(bad).problems.lasting
            assert bool(found) == isinstance(error, RuntimeError)
        assert recovered(node, bad) == Ends(19, 20)


def test_a_round_that_fails_in_a_way_that_was_not_foreseen_does_not_stop_the_others() -> None:
    with compaction_node() as node:
        bad, good = node.add(0), node.add(1)
        fill(bad, 40)
        fill(good, 20)
        step = CleaningRound.step

        async def fails(self: CleaningRound) -> None:
            if self.replica_log.replica is bad:
                raise RuntimeError("unforeseen")
            await step(self)

        with patch.object(CleaningRound, "step", fails), unforeseen(node) as found:
            for _ in range(20):
                node.step(8.0)
            assert ends_of(node.log(good)) == Ends(19, 20)
            assert ends_of(node.log(bad)) == Ends(0, 40), "it is filled all the same"
            assert "unforeseen" in str(node.log(bad).problems.first)
            assert found
        assert recovered(node, bad) == Ends(39, 40)


def test_a_publication_that_fails_in_a_way_that_was_not_foreseen_does_not_stop_the_others() -> None:
    with compaction_node() as node:
        bad, good = node.add(0), node.add(1)
        bad.leads = True
        fill(bad, 40)

        async def fails(*given: Any) -> None:
            raise RuntimeError("unforeseen")

        with patch.object(CompactionPublisher, "_piece", fails), unforeseen(node) as found:
            for _ in range(20):
                node.step(8.0)
            fill(good, 20)
            for _ in range(20):
                node.step(8.0)
            assert ends_of(node.log(good)) == Ends(19, 20)
            assert "unforeseen" in str(node.upkeep.publisher.error(bad.id))
            assert 3 < len(found) < 12, "it is tried again, more and more seldom"
