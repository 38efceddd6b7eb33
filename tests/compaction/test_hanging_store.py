"""An object store that does not answer holds up what needs it, and no round of another log."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from strandline.node.compaction.compaction_upkeep import STORE_SECONDS
from strandline.node.compaction.pace import LEAST_SHARE
from strandline.node.compaction.publisher import CompactionPublisher
from strandline.node.compaction.removal_minimum import Ends
from tests.compaction.filling import ends_of, fill, manifest_of
from tests.compaction.upkeep_harness import EAGER, Node, Replica, compaction_node

UNTOUCHED = {**EAGER, "min.cleanable.dirty.ratio": "1.0"}
HANGS_SECONDS = 1000.0


def two_logs(node: Node) -> tuple[Replica, Replica]:
    """One to wait for the store, and one that is filled, and is not to be cleaned yet."""
    one, dirty = node.add(0), node.add(1, UNTOUCHED)
    fill(dirty, 40)
    node.settle()
    assert ends_of(node.log(dirty)) == Ends(0, 40)
    return one, dirty


def clean(node: Node, replica: Replica) -> None:
    node.topics.configs[replica.topic_id] = EAGER


def passed(node: Node, seconds: float) -> None:
    node.world.run(node.world.now + seconds)


def test_an_ingest_that_waits_for_the_store_holds_up_no_round() -> None:
    with compaction_node() as node:
        waits, dirty = two_logs(node)
        node.upkeep.start()
        node.bucket.delay_seconds = (HANGS_SECONDS, HANGS_SECONDS)
        fill(waits, 40)
        passed(node, STORE_SECONDS)
        clean(node, dirty)
        passed(node, 3 * STORE_SECONDS)
        assert ends_of(node.log(dirty)) == Ends(39, 40)
        assert ends_of(node.log(waits)) == Ends(0, 0)
        [fill_of_it] = node.upkeep.under_way()
        assert fill_of_it[:3] == ("t0", 0, "fill")
        assert 2 * STORE_SECONDS < fill_of_it.seconds <= 4 * STORE_SECONDS
        node.bucket.delay_seconds = (0.001, 0.02)
        passed(node, 3 * HANGS_SECONDS)
        assert ends_of(node.log(waits)) == Ends(39, 40)
        assert node.upkeep.under_way() == []


def test_a_store_that_hangs_leaves_cleaning_its_share_of_the_processor() -> None:
    with compaction_node() as node:
        waits, dirty = two_logs(node)
        pace = node.upkeep._pace
        node.upkeep.start()
        with patch.object(pace, "_share", 0.25):
            node.bucket.delay_seconds = (HANGS_SECONDS, HANGS_SECONDS)
            fill(waits, 40)
            passed(node, HANGS_SECONDS / 2)
            assert ends_of(node.log(waits)) == Ends(0, 0)
            assert pace.job_rests == 3.0, "work waits: this is no rest"
            node.bucket.delay_seconds = (0.001, 0.02)
            passed(node, 3 * HANGS_SECONDS)
            assert ends_of(node.log(waits)) == Ends(39, 40)
            assert pace.job_rests == 1 / LEAST_SHARE - 1, "nothing waits any more"
        assert ends_of(node.log(dirty)) == Ends(0, 40)


def test_a_publication_that_waits_for_the_store_holds_up_the_rounds_of_its_own_log_alone() -> None:
    with compaction_node() as node:
        leads, dirty = two_logs(node)
        fill(leads, 40)
        node.settle()
        node.upkeep.start()
        began: list[Any] = []

        async def hangs(*given: Any) -> None:
            began.append(given)
            await node.sim.loop.create_future()

        with patch.object(CompactionPublisher, "_piece", hangs):
            fill(leads, 40, start=40)
            leads.leads = True
            assert node.world.run_until(lambda: bool(began), timeout=60.0, step=0.1)
            before = manifest_of(node.log(leads))
            assert (before.clean_end, before.log_end) == (39, 80), "a round is due for it, too"
            clean(node, dirty)
            passed(node, 10 * STORE_SECONDS)
            [publication] = node.upkeep.under_way()
            assert publication[:3] == ("t0", 0, "publish")
            assert publication.seconds > 9 * STORE_SECONDS
        assert ends_of(node.log(dirty)) == Ends(39, 40)
        assert manifest_of(node.log(leads)) == before, "its files are being read"


def test_a_node_that_stops_leaves_nothing_that_waits_for_the_store() -> None:
    with compaction_node() as node:
        waits, _ = two_logs(node)
        node.upkeep.start()
        node.bucket.delay_seconds = (HANGS_SECONDS, HANGS_SECONDS)
        fill(waits, 40)
        passed(node, 4 * STORE_SECONDS)
        storing = node.upkeep._storing
        assert storing is not None
        closed = node.sim.spawn(node.upkeep.close())
        assert node.world.run_until(closed.done, timeout=10.0, step=0.1)
        assert storing.done()


def test_a_log_that_goes_while_its_ingest_waits_is_not_called_damaged() -> None:
    with compaction_node() as node:
        waits, dirty = two_logs(node)
        node.upkeep.start()
        node.bucket.delay_seconds = (20.0, 20.0)
        fill(waits, 40)
        passed(node, 15.0)
        owner = node.log(waits)
        node.partitions.remove(waits)
        passed(node, 300.0)
        assert node.upkeep.log_of(waits.id) is None
        assert owner.reset_for is None
        assert node.upkeep.measures.abandoned == 1
        assert ends_of(node.log(dirty)) == Ends(0, 40)
