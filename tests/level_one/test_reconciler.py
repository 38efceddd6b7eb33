"""Lifting and merging on a node: what is named, what never is, and what may happen meanwhile."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest

from strandline.node.level_one.builder import BuildFailed
from strandline.node.level_one.plan import MAX_JOB_EXTENTS
from strandline.statemachine.partition.level_one import parse_level_one_name
from strandline.statemachine.partition.partition_commands import (
    AdvanceReconciled,
    ReplaceLevelOne,
    SetStartOffset,
)
from tests.level_one.upkeep_harness import CONFIG, HandReplica, Node, named, upkeep_node

AGE = CONFIG.reconcile_seconds
LOST = BuildFailed("object l0/0000/1/x, bytes 16 to 1016: there is no such object", False)


def aged(node: Node) -> bool:
    """Let what is there come of age, and do a step."""
    node.work()
    node.wait(AGE)
    return node.work()


def offsets(replica: HandReplica) -> list[tuple[int, int]]:
    return [(one.base_offset, one.end_offset) for one in replica.machine.level_one]


def test_batches_are_lifted_when_they_are_old_enough_and_the_state_names_the_object() -> None:
    with upkeep_node() as node:
        replica = node.add()
        replica.write(1000, count=3, timestamp=7)
        replica.write(500, count=2, timestamp=9)
        assert not node.work()
        node.wait(AGE - 1)
        assert not node.work()
        node.wait(1)
        assert node.work()
        (one,) = replica.machine.level_one
        assert (one.base_offset, one.end_offset, one.max_timestamp, one.term) == (0, 5, 9, 1)
        assert (replica.machine.last_reconciled_offset, len(replica.machine.extents)) == (4, 0)
        assert node.names(replica) == named(replica)
        status = node.upkeep.partition(replica)
        assert (status.unreconciled_bytes, status.unreconciled_seconds) == (0, 0.0)
        assert (status.level_one_objects, status.last_reconciled_offset) == (1, 4)
        assert node.upkeep.status().undecided_objects == 0
        assert node.upkeep.measures.reconciled_bytes == one.size
        assert not aged(node)


def test_by_size_one_object_is_lifted_at_once_and_the_rest_gathers_on() -> None:
    with upkeep_node() as node:
        replica = node.add()
        for _ in range(20):
            replica.write(4096)
        assert node.work()
        assert offsets(replica) == [(0, 16)]
        assert not node.work()
        assert node.upkeep.partition(replica).unreconciled_records == 4


def test_small_batches_are_read_in_pages_and_bounded_in_number() -> None:
    with upkeep_node(replace(CONFIG, target_bytes=1 << 22, job_bytes=1 << 22)) as node:
        replica = node.add()
        for _ in range(2_000):
            replica.write(70, count=3)
        assert aged(node)
        assert offsets(replica) == [(0, 6_000)]
        assert len(node.builder.jobs[0][0].extents) == 2_000 < MAX_JOB_EXTENTS


def test_partitions_that_are_due_go_together_and_none_takes_the_whole_job() -> None:
    with upkeep_node() as node:
        large, small, young = node.add(0), node.add(1), node.add(2)
        for _ in range(40):
            large.write(8192)
        small.write(100)
        node.run(asyncio.sleep(0))
        node.run(node.upkeep.reconciler.look())
        node.wait(AGE)
        young.write(10)
        assert node.work()
        assert [output.partition for output in node.builder.jobs[0]] == [0, 1]
        assert offsets(large) == [(0, 8)]
        assert offsets(small) == [(0, 1)]
        assert offsets(young) == []


def test_what_a_follower_saw_counts_when_it_leads() -> None:
    with upkeep_node() as node:
        replica = node.add()
        replica.lose()
        replica.write(100)
        assert not node.work()
        node.wait(AGE)
        assert not node.work()
        replica.lead(2)
        assert node.work()
        assert offsets(replica) == [(0, 1)]
        assert next(iter(replica.machine.level_one)).term == 2


def test_while_no_replica_changes_none_is_looked_at_and_what_was_seen_is_lifted_all_the_same() -> None:
    with upkeep_node() as node:
        replica = node.add()
        replica.write(100)
        node.partitions.still = True
        assert not node.work()
        assert not node.work()
        before = node.partitions.looks
        node.wait(AGE / 2)
        assert not node.work()
        assert node.partitions.looks == before
        node.wait(AGE / 2)
        assert node.work()
        assert offsets(replica) == [(0, 1)]
        node.partitions.still = False
        replica.write(100)
        assert not node.work()
        assert node.partitions.looks > before
        node.wait(AGE)
        assert node.work()
        assert offsets(replica) == [(0, 1), (1, 2)]


def test_a_topics_retention_bounds_its_objects() -> None:
    with upkeep_node(replace(CONFIG, target_bytes=1 << 20, job_bytes=1 << 20)) as node:
        replica = node.add(configs={"retention.bytes": "300000"})
        for _ in range(30):
            replica.write(10_000)
        assert aged(node)
        assert {one.end_offset - one.base_offset for one in replica.machine.level_one} == {7, 2}


class TestOutcomes:
    """Of AdvanceReconciled."""

    def test_refused_nothing_changes_and_it_is_done_again_under_another_name(self) -> None:
        with upkeep_node() as node:
            replica = node.add()
            replica.write()
            replica.endings = ["refuse"]
            assert aged(node)
            assert offsets(replica) == []
            assert node.upkeep.status().undecided_objects == 0
            (orphan,) = node.names(replica)
            assert node.work()
            assert offsets(replica) == [(0, 1)]
            assert orphan not in named(replica)
            assert node.upkeep.measures.refused == 1

    def test_unknown_and_applied_is_found_in_the_state(self) -> None:
        with upkeep_node() as node:
            replica = node.add()
            replica.write()
            replica.endings = ["late"]
            assert aged(node)
            assert offsets(replica) == [(0, 1)]
            assert node.upkeep.status().undecided_objects == 0
            assert node.upkeep.measures.undecided == 1
            assert not node.work()
            assert len(node.builder.jobs) == 1

    def test_unknown_and_removed_again_is_found_in_the_state(self) -> None:
        with upkeep_node() as node:
            replica = node.add()
            replica.write()
            replica.endings = ["late"]

            def soon_retained(command: object) -> None:
                node.loop.call_soon(lambda: replica.apply(SetStartOffset(1)))

            replica.before = soon_retained
            assert aged(node)
            assert len(replica.machine.removed) == 1
            assert node.upkeep.status().undecided_objects == 0

    def test_unknown_and_not_found_stays_open_until_the_term_ends(self) -> None:
        with upkeep_node() as node:
            replica = node.add()
            replica.write()
            replica.endings = ["lost"]
            assert aged(node)
            assert offsets(replica) == []
            assert node.upkeep.status().undecided_objects == 1
            # It goes on, with another object; the first may still come to be named in this term.
            assert node.work()
            assert offsets(replica) == [(0, 1)]
            assert node.upkeep.status().undecided_objects == 1
            node.run(node.upkeep.sweeper.sweep(replica))
            assert len(node.names(replica)) == 2
            replica.lose()
            replica.lead(2)
            node.work()
            assert node.upkeep.status().undecided_objects == 0
            node.run(node.upkeep.sweeper.sweep(replica))
            assert node.names(replica) == named(replica)

    def test_unknown_and_not_confirmed_stays_open(self) -> None:
        with upkeep_node() as node:
            replica = node.add()
            replica.write()
            replica.endings, replica.confirms = ["late"], False
            assert aged(node)
            assert node.upkeep.status().undecided_objects == 1


class TestMeanwhile:
    """While objects are being built."""

    def test_leadership_lost_and_won_again_what_was_built_is_never_named(self) -> None:
        """A sweep of the new term may already have deleted it."""
        with upkeep_node() as node:
            replica = node.add()
            replica.write()

            def again() -> None:
                replica.lose()
                replica.lead(2)

            node.builder.after_building = again
            assert aged(node)
            assert replica.proposed == []
            (old,) = node.names(replica)
            assert parse_level_one_name(old).term == 1
            node.builder.after_building = lambda: None
            node.run(node.upkeep.sweeper.sweep(replica))
            assert node.work()
            assert [one.term for one in replica.machine.level_one] == [2]
            assert node.names(replica) == named(replica)

    def test_leadership_lost_nothing_is_proposed(self) -> None:
        with upkeep_node() as node:
            replica = node.add()
            replica.write()
            node.builder.after_building = replica.lose
            assert aged(node)
            assert replica.proposed == []
            assert not node.work()

    def test_a_start_offset_that_moves_into_the_range_makes_it_be_done_again(self) -> None:
        with upkeep_node() as node:
            replica = node.add()
            for _ in range(4):
                replica.write(count=2)
            node.builder.while_building = lambda: replica.apply(SetStartOffset(3))
            assert aged(node)
            assert offsets(replica) == []
            assert node.upkeep.partition(replica).errors == ()
            node.builder.while_building = lambda: None
            assert node.work()
            # The batch that holds the start offset stays whole.
            assert offsets(replica) == [(2, 8)]

    def test_a_start_offset_beyond_an_object_that_is_gone_is_no_trouble(self) -> None:
        with upkeep_node() as node:
            replica = node.add()
            replica.write()
            replica.write()
            node.builder.bad[0] = LOST
            node.builder.while_building = lambda: replica.apply(SetStartOffset(1))
            assert aged(node)
            assert node.upkeep.partition(replica).errors == ()
            assert node.work()
            assert offsets(replica) == [(1, 2)]

    def test_a_partition_that_is_removed_takes_no_other_with_it(self) -> None:
        with upkeep_node() as node:
            gone, stays = node.add(0), node.add(1)
            gone.write()
            stays.write()

            def remove() -> None:
                gone.lose()
                node.partitions.remove(gone)
                del node.topics.configs[gone.topic_id]

            node.builder.while_building = remove
            assert aged(node)
            assert offsets(gone) == []
            assert offsets(stays) == [(0, 1)]

    def test_a_topic_that_is_deleted_is_not_lifted(self) -> None:
        with upkeep_node() as node:
            replica = node.add()
            replica.write()
            node.topics.configs.clear()
            aged(node)
            assert node.builder.jobs == []

    def test_what_is_written_meanwhile_is_left_for_the_next_job(self) -> None:
        with upkeep_node() as node:
            replica = node.add()
            replica.write()
            node.builder.while_building = lambda: replica.write(count=5)
            assert aged(node)
            assert offsets(replica) == [(0, 1)]
            assert len(replica.machine.extents) == 1


class TestTrouble:
    def test_a_poisoned_batch_holds_its_own_partition_and_no_other(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        with upkeep_node() as node, caplog.at_level(logging.WARNING, "strandline.node.level_one"):
            poisoned, well = node.add(0), node.add(1)
            poisoned.write()
            well.write()
            node.builder.bad[0] = LOST
            # Both begin at offset 0: only the first's is bad.
            node.builder.bad.clear()
            build = node.builder._build

            async def bad_for_one(output):  # type: ignore[no-untyped-def]
                return LOST if output.partition == 0 else await build(output)

            node.builder._build = bad_for_one  # type: ignore[method-assign]
            assert aged(node)
            assert offsets(well) == [(0, 1)]
            assert offsets(poisoned) == []
            assert len(poisoned.machine.extents) == 1
            assert poisoned.proposed == []
            (status, other) = node.upkeep.status().partitions
            assert status.errors == (LOST.reason,)
            assert other.errors == ()
            assert [record.levelname for record in caplog.records] == ["ERROR"]
            assert "t0-0: batches from offset 0 on" in caplog.text
            assert LOST.reason in caplog.text
            # It backs off, says nothing twice, and holds nobody up.
            jobs = len(node.builder.jobs)
            for _ in range(60):
                node.wait(1)
                node.work()
            assert jobs + 3 <= len(node.builder.jobs) <= jobs + 6
            assert len(caplog.records) == 1
            well.write()
            assert aged(node)
            assert offsets(well) == [(0, 1), (1, 2)]
            node.builder._build = build  # type: ignore[method-assign]
            node.wait(300)
            assert node.work()
            assert offsets(poisoned) == [(0, 1)]
            assert node.upkeep.partition(poisoned).errors == ()

    def test_what_lies_before_a_poisoned_object_is_lifted_and_nothing_behind_it(self) -> None:
        with upkeep_node() as node:
            replica = node.add()
            for _ in range(3):
                replica.write(CONFIG.target_bytes // 2 + 1)
            # Each is an object of its own; the second is bad, and the third is not looked at yet.
            node.builder.bad[1] = LOST
            node.run(node.upkeep.reconciler.look())
            node.wait(AGE)
            for _ in range(3):
                node.work()
                node.wait(5)
            assert offsets(replica) == [(0, 1)]
            assert node.upkeep.status().undecided_objects == 0
            assert [extent.base_offset for extent in replica.machine.extents] == [1, 2]
            assert node.upkeep.partition(replica).errors == (LOST.reason,)

    def test_within_an_object_too_what_lies_before_the_bad_batch_is_lifted_in_the_end(self) -> None:
        with upkeep_node() as node:
            replica = node.add()
            for _ in range(40):
                replica.write(1000)
            node.builder.bad[13] = LOST
            aged(node)
            for _ in range(1200):
                node.wait(1)
                node.work()
            assert replica.machine.last_reconciled_offset == 12
            assert replica.machine.extents.first_offset == 13
            assert len(replica.machine.extents) == 27
            # What is read in vain by then is the bad one alone.
            assert [len(output.extents) for output in node.builder.jobs[-1]] == [1]
            assert node.upkeep.partition(replica).errors == (LOST.reason,)
            node.builder.bad.clear()
            node.wait(300)
            for _ in range(3):
                node.work()
            assert replica.machine.last_reconciled_offset == 39

    def test_what_may_pass_is_tried_again_within_half_a_minute(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        with upkeep_node() as node, caplog.at_level(logging.WARNING, "strandline.node.level_one"):
            replica = node.add()
            replica.write()
            node.builder.bad[0] = BuildFailed("get l0/x: no answer within 10 s", True)
            aged(node)
            for _ in range(600):
                node.wait(1)
                node.work()
            assert 20 <= len(node.builder.jobs) <= 26
            assert [record.levelname for record in caplog.records] == ["WARNING"]
            node.builder.bad.clear()
            for _ in range(31):
                node.wait(1)
                node.work()
            assert offsets(replica) == [(0, 1)]

    def test_a_builder_that_raises_leaves_nothing_open(self) -> None:
        with upkeep_node() as node:
            replica = node.add()
            replica.write()

            def fail() -> None:
                raise RuntimeError("not foreseen")

            node.builder.while_building = fail
            node.run(node.upkeep.reconciler.look())
            node.wait(AGE)
            with pytest.raises(RuntimeError, match="not foreseen"):
                node.work()
            assert node.upkeep.status().undecided_objects == 0


class TestMerging:
    CONFIG = replace(CONFIG, reconcile_seconds=1)

    def lifted(self, node: Node, replica: HandReplica, times: int = 4) -> None:
        for _ in range(times):
            replica.write(500)
            node.run(node.upkeep.reconciler.look())
            node.wait(1)
            assert node.work()

    def test_small_neighbours_become_one_and_are_removed(self) -> None:
        with upkeep_node(self.CONFIG) as node:
            replica = node.add()
            replica.checkpoint(1_000_000)
            self.lifted(node, replica)
            assert offsets(replica) == [(0, 4)]
            assert isinstance(replica.proposed[-1], ReplaceLevelOne)
            assert len(replica.machine.removed) == 4
            assert node.names(replica) == named(replica)
            assert node.upkeep.measures.merged_objects == 4
            assert not node.work()
            assert len(node.builder.merges) == 1

    def test_unknown_and_not_found_stays_open(self) -> None:
        with upkeep_node(self.CONFIG) as node:
            replica = node.add()
            self.lifted(node, replica, 3)
            replica.endings = ["apply", "lost"]
            self.lifted(node, replica, 1)
            assert len(replica.machine.level_one) == 4
            assert node.upkeep.status().undecided_objects == 1

    def test_what_was_merged_in_an_earlier_term_is_never_named(self) -> None:
        with upkeep_node(self.CONFIG) as node:
            replica = node.add()
            self.lifted(node, replica, 3)

            def again() -> None:
                replica.lose()
                replica.lead(2)

            replica.write(500)
            node.run(node.upkeep.reconciler.look())
            node.wait(1)
            merge = node.builder.merge

            async def merged_late(request):  # type: ignore[no-untyped-def]
                made = await merge(request)
                again()
                return made

            node.builder.merge = merged_late  # type: ignore[method-assign]
            node.work()
            assert len(replica.machine.level_one) == 4
            assert not any(isinstance(command, ReplaceLevelOne) for command in replica.proposed)

    def test_retention_that_takes_a_source_away_is_no_trouble(self) -> None:
        with upkeep_node(self.CONFIG) as node:
            replica = node.add()
            self.lifted(node, replica, 3)

            def retain() -> None:
                if node.builder.merges:
                    replica.apply(SetStartOffset(2))

            node.builder.while_building = retain
            self.lifted(node, replica, 1)
            assert node.upkeep.measures.refused == 1
            assert offsets(replica) == [(2, 3), (3, 4)]
            assert node.upkeep.partition(replica).errors == ()

    def test_a_source_that_is_deleted_meanwhile_is_no_trouble_once_the_state_does_not_name_it(self) -> None:
        with upkeep_node(self.CONFIG) as node:
            replica = node.add()
            self.lifted(node, replica, 3)
            first = node.names(replica)[0]

            def retain() -> None:
                if node.builder.merges:
                    replica.apply(SetStartOffset(1))
                    del node.bucket.objects[first]

            node.builder.while_building = retain
            self.lifted(node, replica, 1)
            assert node.upkeep.measures.failed_builds == 1
            assert node.upkeep.partition(replica).errors == ()
            assert node.upkeep.status().undecided_objects == 0

    def test_a_merge_that_fails_backs_off_and_says_so(self) -> None:
        with upkeep_node(self.CONFIG) as node:
            replica = node.add()
            self.lifted(node, replica, 3)
            name = node.names(replica)[1]
            node.bucket.objects[name] += b"x"
            self.lifted(node, replica, 1)
            (error,) = node.upkeep.partition(replica).errors
            assert name in error
            assert node.upkeep.status().undecided_objects == 0
            node.partitions.still = True
            assert not node.work()
            assert not node.work()
            node.bucket.objects[name] = node.bucket.objects[name][:-1]
            node.wait(5)
            assert node.work()
            assert offsets(replica) == [(0, 4)]
            assert node.upkeep.partition(replica).errors == ()

    def test_partitions_take_turns(self) -> None:
        with upkeep_node(self.CONFIG) as node:
            replicas = [node.add(number) for number in range(3)]
            for _ in range(8):
                for replica in replicas:
                    replica.write(500)
                    replica.apply(
                        AdvanceReconciled(replica.machine.extents.first_offset, [_hollow(node, replica)])
                    )
            for _ in range(3):
                assert node.work()
            assert [merge.partition for merge in node.builder.merges] == [0, 1, 2]


def _hollow(node: Node, replica: HandReplica):  # type: ignore[no-untyped-def]
    """An object of the one batch in level zero, as if this node had made it."""
    from strandline.node.level_one.builder import Output

    unique = node.upkeep.pending.new(replica.group.id, 1)
    node.upkeep.pending.settle(unique)
    output = Output(replica.topic_id, replica.number, 1, unique, list(replica.machine.extents))
    return node.run(node.builder._build(output))


class TestPace:
    def test_a_job_is_followed_by_as_long_a_rest_unless_batches_wait_too_long(self) -> None:
        with upkeep_node(replace(CONFIG, reconcile_seconds=20)) as node:
            replica = node.add()
            node.builder.seconds = 3.0
            task = node.loop.create_task(node.upkeep.reconciler.run())
            node.wait(0.5)
            for _ in range(16):
                replica.write(CONFIG.target_bytes)
            node.wait(14)
            # Jobs of two objects: at 1, and each 3 s long, with 3 s and a look between them.
            assert len(node.builder.jobs) == 2
            node.wait(30)
            some = len(node.builder.jobs)
            for _ in range(40):
                replica.write(CONFIG.target_bytes)
            node.wait(41)
            assert len(node.builder.jobs) >= some + 6
            task.cancel()
            node.wait(0.1)

    def test_it_goes_on_after_what_was_not_foreseen(self) -> None:
        with upkeep_node(replace(CONFIG, reconcile_seconds=1)) as node:
            replica = node.add()
            replica.write()
            problems: list[str] = []
            node.loop.call_exception_handler = lambda context: problems.append(context["message"])  # type: ignore[method-assign]

            def fail() -> None:
                raise RuntimeError("not foreseen")

            node.builder.while_building = fail
            node.upkeep.start()
            node.wait(5)
            assert problems
            assert offsets(replica) == []
            node.builder.while_building = lambda: None
            node.wait(5)
            assert offsets(replica) == [(0, 1)]
            node.run(node.upkeep.close())
            replica.write()
            node.wait(10)
            assert offsets(replica) == [(0, 1)]
