"""Rounds of cleaning whose compactor, or whose state, is another one between two of their steps."""

from __future__ import annotations

from unittest.mock import patch

from strandline.node.compaction.compactor import BEHIND_STORE, JobFailed, MapJob, Mapped, Why
from strandline.node.compaction.store_compactor import StoreCompactor
from tests.compaction.filling import fill, manifest_of
from tests.compaction.logs import Plan
from tests.compaction.upkeep_harness import EAGER, check, compaction_node, contents


def test_a_round_whose_map_was_lost_between_two_of_its_segments_begins_anew() -> None:
    """A worker that dies while it has no job takes the round's keys along, and nothing fails by itself."""
    with compaction_node() as node:
        replica = node.add(configs={**EAGER, "min.compaction.lag.ms": "1000000000"})
        replica.put(Plan(((b"deleted", b"an old value", 0),)))
        replica.put(Plan(((b"deleted", None, 0),)))
        fill(replica, 200, keys=190, start=2)
        compactor, mapped = node.compactor, node.compactor.map
        assert isinstance(compactor, StoreCompactor)
        jobs: list[MapJob] = []
        deaths: list[int] = []

        async def dies_after_the_first(job: MapJob) -> Mapped | JobFailed:
            told = await mapped(job)
            jobs.append(job)
            if not job.is_last and compactor._cleaning is not None and len(deaths) < 1:
                deaths.append(job.segment.number)
                compactor._cleaning = None
            return told

        node.settle()
        assert manifest_of(node.log(replica)).clean_end == 0, "all of it is too young"
        node.topics.configs[replica.topic_id] = EAGER
        with patch.object(compactor, "map", dies_after_the_first):
            node.settle()
        log = node.log(replica)
        assert len(jobs) > 2, "the part that is not clean has several segments"
        assert manifest_of(log).clean_end > 190
        check(log)
        replica.publish(log)
        replica.removal(100, 100)
        node.settle()
        left = [one.value for one in contents(log) if one.key == b"deleted"]
        assert left == [], "what was deleted comes back once its deletion is gone"


def test_a_round_whose_process_waits_for_the_store_is_given_up_and_nothing_is_wrong() -> None:
    with compaction_node() as node:
        replica = node.add()
        compactor, mapped = node.compactor, node.compactor.map
        busy = [JobFailed(Why.BUSY, BEHIND_STORE)] * 5

        async def is_busy(job: MapJob) -> Mapped | JobFailed:
            return busy.pop() if busy else await mapped(job)

        fill(replica, 20)
        with patch.object(compactor, "map", is_busy):
            while busy:
                node.step()
                log = node.log(replica)
                assert (log.problems.first, log.problems.lasting) == (None, False)
            node.settle()
        assert (node.upkeep.measures.failed, node.upkeep.measures.abandoned) == (0, 5)
        assert manifest_of(log).clean_end == 19
        check(log)


def test_what_ripens_during_a_round_that_does_nothing_is_removed_by_the_next() -> None:
    with compaction_node() as node:
        replica = node.add()
        fill(replica, 10)
        replica.put(Plan(((b"deleted", None, 0),)))
        fill(replica, 10, start=11)
        node.settle()
        log = node.log(replica)
        assert b"deleted" in {one.key for one in contents(log)}
        replica.publish(log)
        # The newest batch alone is not clean, and it stays: this round finds nothing to do.
        fill(replica, 1, start=21)
        mapped = node.compactor.map
        ripened: list[MapJob] = []

        async def meanwhile(job: MapJob) -> Mapped | JobFailed:
            told = await mapped(job)
            if not ripened and told == Mapped(0, manifest_of(log).log_end - 1):
                replica.removal(20, 20)
                ripened.append(job)
            return told

        with patch.object(node.compactor, "map", meanwhile):
            node.settle()
        assert ripened, "it happened amid such a round"
        assert b"deleted" not in {one.key for one in contents(log)}
        check(log, replica.ripe)
