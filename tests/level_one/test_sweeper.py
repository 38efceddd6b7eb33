"""What is deleted of level one, and above all what is not: by lease, by term, by what is still open."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from strandline.node.level_one.sweeper import FIRST_SWEEP_SECONDS, PAGE
from strandline.node.objectstore.store import MAX_DELETE
from strandline.statemachine.partition.level_one import LevelOneExtent, level_one_name
from strandline.statemachine.partition.partition_commands import (
    AdvanceReconciled,
    ForgetRemoved,
    SetStartOffset,
)
from tests.level_one.upkeep_harness import HandReplica, Node, named, raising, upkeep_node


def unique(number: int) -> bytes:
    return number.to_bytes(16, "big")


def put(node: Node, replica: HandReplica, number: int, term: int = 1) -> str:
    name = level_one_name(replica.topic_id, replica.number, term, unique(number))
    node.bucket.objects[name] = b"object"
    return name


def lifted(node: Node, replica: HandReplica, number: int) -> str:
    """A level-one object that the partition names."""
    base, term = replica.machine.next_offset, replica.leader_epoch
    replica.write()
    replica.apply(AdvanceReconciled(base, [LevelOneExtent(base, base + 1, 1, 500, 1, term, unique(number))]))
    return put(node, replica, number, term)


def sweep(node: Node, replica: HandReplica) -> None:
    node.run(node.upkeep.sweeper.sweep(replica))


def step(node: Node) -> None:
    node.run(node.upkeep.sweeper.step())


class TestOrphans:
    def test_of_earlier_terms_go_whatever_they_are_and_named_ones_and_removed_ones_stay(self) -> None:
        with upkeep_node() as node:
            replica = node.add()
            replica.checkpoint(1_000_000)
            old = lifted(node, replica, 1)
            removed = lifted(node, replica, 2)
            replica.apply(SetStartOffset(1))
            replica.lead(4)
            present = lifted(node, replica, 3)
            put(node, replica, 10, term=1)
            put(node, replica, 11, term=3)
            assert named(replica) == sorted([old, removed, present])
            sweep(node, replica)
            assert node.names(replica) == sorted([old, removed, present])
            assert node.upkeep.measures.orphans_deleted == 2
            assert node.upkeep.measures.sweeps == 1

    def test_of_later_terms_stay(self) -> None:
        """This node may not know yet that it was deposed; what its successor makes is the successor's."""
        with upkeep_node() as node:
            replica = node.add()
            later = put(node, replica, 1, term=2)
            sweep(node, replica)
            assert node.names(replica) == [later]

    def test_of_the_own_term_stay_while_their_fate_is_open(self) -> None:
        with upkeep_node() as node:
            replica = node.add()
            open_ = node.upkeep.pending.new(replica.group.id, 1)
            name = level_one_name(replica.topic_id, replica.number, 1, open_)
            node.bucket.objects[name] = b"object"
            put(node, replica, 5, term=1)
            sweep(node, replica)
            assert node.names(replica) == [name]
            node.upkeep.pending.settle(open_)
            sweep(node, replica)
            assert node.names(replica) == []

    def test_an_upload_that_lands_late_goes_in_the_next_sweep(self) -> None:
        with upkeep_node() as node:
            replica = node.add(group=64)
            replica.lead(2)
            step(node)
            node.wait(1)
            step(node)
            assert node.upkeep.measures.sweeps == 1
            put(node, replica, 1, term=1)
            node.wait(598)
            step(node)
            assert len(node.names(replica)) == 1
            node.wait(2)
            step(node)
            assert node.names(replica) == []

    def test_names_of_nobody_are_left_alone_and_counted(self) -> None:
        with upkeep_node() as node:
            replica, other = node.add(0), node.add(1)
            foreign = put(node, replica, 1).replace("-", "+")
            node.bucket.objects[foreign] = b"what is this"
            others = put(node, other, 2)
            sweep(node, replica)
            assert node.names(replica) == [foreign]
            assert node.names(other) == [others]
            assert node.upkeep.measures.foreign_names == 1

    def test_the_whole_prefix_is_listed_in_pages(self) -> None:
        with upkeep_node() as node:
            replica = node.add()
            kept = [lifted(node, replica, number) for number in range(5, 2 * PAGE, 800)]
            for number in range(2 * PAGE + 10):
                put(node, replica, number)
            sweep(node, replica)
            assert node.names(replica) == sorted(kept)
            assert node.upkeep.measures.lists == 3

    def test_what_comes_to_be_named_while_it_is_listed_stays(self) -> None:
        with upkeep_node() as node:
            replica = node.add()
            open_ = node.upkeep.pending.new(replica.group.id, 1)
            name = level_one_name(replica.topic_id, replica.number, 1, open_)
            node.bucket.objects[name] = b"object"
            task = node.loop.create_task(node.upkeep.sweeper.sweep(replica))
            node.wait(0.0005)
            replica.write()
            replica.apply(AdvanceReconciled(0, [LevelOneExtent(0, 1, 1, 500, 1, 1, open_)]))
            node.upkeep.pending.settle(open_)
            node.wait(1)
            assert task.done()
            assert node.names(replica) == [name]

    def test_leadership_lost_during_the_listing_nothing_is_deleted(self) -> None:
        with upkeep_node() as node:
            replica = node.add()
            put(node, replica, 1)
            for end in (replica.lose, lambda: replica.lead(2)):
                task = node.loop.create_task(node.upkeep.sweeper.sweep(replica))
                node.wait(0.0005)
                end()
                node.wait(1)
                assert task.done()
                assert len(node.names(replica)) == 1
                replica.leads = True


class TestGrace:
    def test_a_removed_object_stays_for_as_long_as_a_tail_point_may_need_it(self) -> None:
        """It counts from when this leader saw it removed, for each on its own."""
        with upkeep_node(grace=60.0) as node:
            replica = node.add()
            first, second, kept = (lifted(node, replica, number) for number in (1, 2, 3))
            replica.apply(SetStartOffset(1))
            step(node)
            node.wait(30)
            replica.apply(SetStartOffset(2))
            step(node)
            node.wait(29)
            step(node)
            assert node.names(replica) == sorted([first, second, kept])
            node.wait(1.1)
            step(node)
            assert node.names(replica) == sorted([second, kept])
            node.wait(30)
            step(node)
            assert node.names(replica) == [kept]
            assert not replica.machine.removed

    def test_a_new_leader_does_not_know_for_how_long(self) -> None:
        with upkeep_node(grace=60.0) as node:
            replica = node.add()
            lifted(node, replica, 1)
            replica.apply(SetStartOffset(1))
            step(node)
            node.wait(59)
            replica.lead(2)
            step(node)
            node.wait(59)
            step(node)
            assert len(node.names(replica)) == 1
            node.wait(2)
            step(node)
            assert node.names(replica) == []


class TestWhen:
    def test_after_take_up_within_a_minute_and_then_every_period_of_this_leadership_only(self) -> None:
        with upkeep_node() as node:
            replica, other = node.add(0, group=32), node.add(1, group=5)
            other.lose()
            step(node)
            node.wait(FIRST_SWEEP_SECONDS / 2 - 1)
            step(node)
            assert node.upkeep.measures.sweeps == 0
            node.wait(2)
            step(node)
            assert node.upkeep.measures.sweeps == 1
            node.wait(590)
            step(node)
            assert node.upkeep.measures.sweeps == 1
            node.wait(10)
            step(node)
            assert node.upkeep.measures.sweeps == 2
            replica.lead(2)
            step(node)
            node.wait(31)
            step(node)
            assert node.upkeep.measures.sweeps == 3

    @pytest.mark.parametrize("when", ["while it is listed", "while it is deleted"])
    def test_a_pause_stops_a_sweep_under_way_and_its_end_begins_it_anew(
        self, when: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with upkeep_node() as node:
            replica = node.add(group=64)
            for number in range(3 * PAGE):
                put(node, replica, number)
            paused_in = node.store.list if when == "while it is listed" else node.store.delete_many

            async def pausing(*arguments: Any) -> Any:
                result = await paused_in(*arguments)
                node.topics.collection_paused = True
                return result

            with monkeypatch.context() as patch:
                patch.setattr(node.store, paused_in.__name__, pausing)
                step(node)
                node.wait(1)
                step(node)
            left = 3 * PAGE if when == "while it is listed" else 2 * PAGE
            assert len(node.names(replica)) == left
            node.wait(5)
            step(node)
            assert len(node.names(replica)) == left
            node.topics.collection_paused = False
            step(node)
            assert node.names(replica) == []

    def test_nothing_goes_before_this_process_knows_whether_collecting_is_paused(self) -> None:
        """It was down when collecting was paused, and its state of the controller is of before that."""
        with upkeep_node() as node:
            replica = node.add(group=64)
            names = [lifted(node, replica, 1), put(node, replica, 2)]
            replica.apply(SetStartOffset(1))
            node.registered = False
            for _ in range(3):
                step(node)
                node.wait(1)
            assert node.names(replica) == sorted(names)
            node.registered = node.topics.collection_paused = True
            step(node)
            assert node.names(replica) == sorted(names)
            node.topics.collection_paused = False
            step(node)
            assert node.names(replica) == []

    def test_a_store_that_fails_is_tried_again_later_and_said_once(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        with upkeep_node() as node, caplog.at_level(logging.WARNING, "strandline.node.level_one"):
            replica = node.add(group=64)
            lifted(node, replica, 1)
            replica.apply(SetStartOffset(1))
            put(node, replica, 2)
            node.bucket.refused = 1.0
            for _ in range(20):
                step(node)
                node.wait(1)
            assert len(node.names(replica)) == 2
            assert len(node.upkeep.partition(replica).errors) == 2
            assert 6 <= node.upkeep.measures.store_errors <= 10
            assert len(caplog.records) == 1
            node.bucket.refused = 0.0
            node.wait(32)
            step(node)
            assert node.names(replica) == []
            assert node.upkeep.partition(replica).errors == ()


class TestRemoved:
    def test_what_no_leased_checkpoint_names_is_deleted_and_then_forgotten(self) -> None:
        with upkeep_node() as node:
            replica = node.add()
            first = lifted(node, replica, 1)
            second = lifted(node, replica, 2)
            replica.apply(SetStartOffset(1))
            step(node)
            assert node.names(replica) == [second]
            assert replica.proposed == [ForgetRemoved([unique(1)])]
            assert replica.machine.removed == []
            assert node.upkeep.measures.removed_bytes == 500
            assert first not in named(replica)

    def test_a_leased_checkpoint_keeps_it_and_one_taken_after_does_not(self) -> None:
        with upkeep_node() as node:
            replica = node.add()
            name = lifted(node, replica, 1)
            replica.checkpoint(10_000)
            replica.apply(SetStartOffset(1))
            step(node)
            assert node.names(replica) == [name]
            replica.now_ms += 9_999
            replica.write()
            step(node)
            assert node.names(replica) == [name]
            replica.now_ms += 1
            replica.checkpoint(10_000)
            step(node)
            assert node.names(replica) == []

    def test_a_crash_between_deleting_and_forgetting_is_made_good_by_anybody(self) -> None:
        with upkeep_node() as node:
            replica = node.add()
            lifted(node, replica, 1)
            replica.apply(SetStartOffset(1))
            replica.endings = ["refuse", "lost"]
            for _ in range(2):
                step(node)
                assert node.names(replica) == []
                assert len(replica.machine.removed) == 1
            replica.lose()
            step(node)
            replica.lead(2)
            step(node)
            assert replica.machine.removed == []

    def test_a_deletion_that_fails_forgets_nothing(self) -> None:
        with upkeep_node() as node:
            replica = node.add(group=63)
            lifted(node, replica, 1)
            replica.apply(SetStartOffset(1))
            node.bucket.lost = 1.0
            step(node)
            assert replica.proposed == []
            node.bucket.lost = 0.0
            node.wait(2)
            step(node)
            assert replica.machine.removed == []

    def test_nothing_goes_while_collecting_is_paused(self) -> None:
        with upkeep_node() as node:
            replica = node.add(group=63)
            name = lifted(node, replica, 1)
            replica.apply(SetStartOffset(1))
            node.topics.collection_paused = True
            step(node)
            assert node.names(replica) == [name]
            node.topics.collection_paused = False
            step(node)
            assert node.names(replica) == []

    def test_a_partition_that_fails_does_not_keep_the_others(self) -> None:
        with upkeep_node() as node:
            one, two = node.add(0, group=1), node.add(1, group=2)
            for replica in (one, two):
                lifted(node, replica, 1)
                replica.apply(SetStartOffset(1))
            said = raising(node, one)
            step(node)
            assert len(said) == 1
            assert len(one.machine.removed) == 1
            assert two.machine.removed == []

    def test_so_many_at_a_time(self) -> None:
        with upkeep_node() as node:
            replica = node.add(group=63)
            for number in range(MAX_DELETE + 5):
                lifted(node, replica, number)
            replica.apply(SetStartOffset(MAX_DELETE + 5))
            step(node)
            assert len(replica.machine.removed) == 5
            step(node)
            assert replica.machine.removed == []
            assert node.names(replica) == []
