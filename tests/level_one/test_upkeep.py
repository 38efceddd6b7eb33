"""The parts of level one together: real objects in both levels, a real partition, all started at once."""

from __future__ import annotations

import json
import logging
import random
from dataclasses import replace

import pytest

from strandline.node.config.node_config import RetentionSection
from strandline.node.level_one.builder import BuilderConfig, StoreBuilder
from strandline.node.level_one.level_one_measures import UpkeepMeasures
from strandline.node.level_one.naming import Fate, Namer
from strandline.node.level_one.pending_objects import PendingObjects
from strandline.node.objectstore.retries import RetryingStore, RetryPolicy
from strandline.snapshot.level_one_format import LevelOneFooter, parse
from strandline.snapshot.level_zero_format import Batch, encode
from strandline.statemachine.object_names import object_id, object_name
from strandline.statemachine.partition.epoch_window import EpochWindow
from strandline.statemachine.partition.level_one import LevelOneExtent, level_one_name, parse_level_one_name
from strandline.statemachine.partition.partition_commands import AdvanceReconciled, Append
from strandline.statemachine.partition.placeholder import Placeholder
from tests.level_one.upkeep_harness import CONFIG, EPOCH, KIB, HandReplica, Node, named, upkeep_node
from tests.level_zero.samples import record_batch
from tests.partition.lone import Lone, unknown

QUICK = replace(CONFIG, reconcile_seconds=2, sweep_seconds=10, block_bytes=KIB)


def produce(node: Node, number: int, *replicas: HandReplica, size: int = 600) -> None:
    """One level-zero object with a batch of each of these partitions."""
    identity = object_id(0, 1, number.to_bytes(16, "big"))
    batches = [
        Batch(one.topic_id, one.number, record_batch(bytes([number % 251]) * size)) for one in replicas
    ]
    encoded = encode(EPOCH, identity, batches)
    node.bucket.objects[object_name(EPOCH, identity)] = b"".join(bytes(part) for part in encoded.parts)
    for one, batch, position in zip(replicas, batches, encoded.positions, strict=True):
        window = EpochWindow(one.machine.term, EPOCH, EPOCH)
        one.apply(Append(window, [Placeholder(1, 1_000, len(batch.data), EPOCH, position, identity)]))


def real_builder(node: Node) -> None:
    """Objects that can be read, through a store that tries again, as on a node."""
    node.store = RetryingStore(node.store, RetryPolicy(attempts=3), loop=node.loop, rng=node.rng)
    node.level_one_builder = StoreBuilder(node.store, BuilderConfig(block_bytes=KIB), loop=node.loop)


def footers(node: Node, replica: HandReplica) -> list[LevelOneFooter]:
    """Of the objects that the state names; every byte of them is checked."""
    found = []
    for one in replica.machine.level_one:
        name = level_one_name(replica.topic_id, replica.number, one.term, one.unique)
        footer = parse(name, node.bucket.objects[name])
        assert (footer.base_offset, footer.end_offset, footer.size) == (
            one.base_offset,
            one.end_offset,
            one.size,
        )
        found.append(footer)
    return found


def test_objects_are_lifted_merged_and_swept_while_the_store_misbehaves() -> None:
    with upkeep_node(QUICK) as node:
        replicas = [node.add(number, group=64 + number) for number in range(3)]
        for replica in replicas:
            replica.lead(2)
            orphan = level_one_name(replica.topic_id, replica.number, 1, bytes(16))
            node.bucket.objects[orphan] = b"of the leader before"
        real_builder(node)
        node.bucket.refused = node.bucket.broken = node.bucket.lost = node.bucket.late = 0.05
        node.upkeep.start()
        for number in range(60):
            produce(node, number, *replicas)
            node.wait(1)
        node.bucket.refused = node.bucket.broken = node.bucket.lost = node.bucket.late = 0.0
        node.bucket.land_within(1.0)
        node.wait(200)
        measures = node.upkeep.measures
        assert measures.merges > 3
        assert measures.orphans_deleted >= 3
        assert measures.failed_builds + measures.store_errors > 0
        for replica in replicas:
            assert len(replica.machine.extents) == 0
            assert sum(footer.end_offset - footer.base_offset for footer in footers(node, replica)) == 60
            assert replica.machine.removed == []
            assert node.names(replica) == named(replica)
            assert len(replica.machine.level_one) < 30
        status = node.upkeep.status()
        assert status.undecided_objects == 0
        assert [one.errors for one in status.partitions] == [(), (), ()]
        assert json.loads(json.dumps(status.as_dict()))["partitions"][0]["unreconciled_records"] == 0
        node.run(node.upkeep.close())


def test_a_damaged_batch_is_named_with_its_range_and_holds_its_own_partition_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with upkeep_node(QUICK) as node, caplog.at_level(logging.ERROR, "strandline.node.level_one"):
        bad, good = node.add(0), node.add(1)
        produce(node, 1, bad, good)
        produce(node, 2, bad, good)
        real_builder(node)
        (extent, _) = bad.machine.extents
        name = getattr(extent, "object_name", "")
        node.bucket.flip_bit(name, getattr(extent, "position", 0) + 100)
        node.upkeep.start()
        node.wait(30)
        assert len(bad.machine.extents) == 2
        assert [footer.end_offset for footer in footers(node, good)] == [2]
        (error,) = node.upkeep.partition(bad).errors
        assert f"object {name}, bytes {getattr(extent, 'position', 0)} to" in error
        assert error in caplog.text
        assert len(caplog.records) == 1
        node.run(node.upkeep.close())


def test_retention_empties_a_partition_and_its_objects_go() -> None:
    with upkeep_node(QUICK, RetentionSection(check_seconds=5)) as node:
        replica = node.add(configs={"retention.ms": "30000"})
        real_builder(node)
        node.now_ms = 1_000
        node.upkeep.start()
        for number in range(3):
            produce(node, number, replica)
        node.wait(20)
        assert len(node.names(replica)) == 1
        node.now_ms = 31_001
        node.wait(20)
        assert replica.machine.start_offset == replica.machine.high_watermark == 3
        assert node.names(replica) == []
        node.run(node.upkeep.close())


class TestWithARealPartition:
    """Names, and a log that commits when a test says."""

    def made(self, lone: Lone) -> tuple[PendingObjects, Namer, LevelOneExtent]:
        """A batch is committed, and the object it was lifted to waits for its name, in term 1."""
        lone.append("a")
        lone.stored("a")
        lone.group.commit()
        undecided = PendingObjects(random.Random(1))
        one = LevelOneExtent(0, 1, 1, 500, 100, 1, undecided.new(64, 1))
        return undecided, Namer(undecided, UpkeepMeasures()), one

    def test_an_entry_that_is_committed_by_a_later_leadership_names_its_object(self) -> None:
        with Lone() as lone:
            undecided, namer, made = self.made(lone)
            task = lone.run(namer.name(lone.partition, 1, AdvanceReconciled(0, [made]), [made]))
            entry = lone.group.proposed[-1]
            lone.group.lose()
            entry.future.set_result(unknown())
            lone.loop.run()
            assert task.result() is Fate.OPEN
            assert made.unique in undecided
            assert made.unique not in lone.partition.machine.level_one
            # The next leadership commits it first of all: then its sweep finds the object named.
            lone.group.lead(2)
            assert made.unique in lone.partition.machine.level_one

    def test_in_a_later_term_nothing_of_an_earlier_one_is_proposed(self) -> None:
        with Lone() as lone:
            undecided, namer, made = self.made(lone)
            lone.group.lose()
            lone.group.lead(2)
            before = len(lone.group.proposed)
            task = lone.run(namer.name(lone.partition, 1, AdvanceReconciled(0, [made]), [made]))
            assert task.result() is Fate.REFUSED
            assert len(lone.group.proposed) == before
            assert made.unique not in undecided

    def test_applied_it_is_named_and_settled(self) -> None:
        with Lone() as lone:
            undecided, namer, made = self.made(lone)
            task = lone.run(namer.name(lone.partition, 1, AdvanceReconciled(0, [made]), [made]))
            assert not task.done()
            assert made.unique in undecided
            lone.group.commit()
            assert task.result() is Fate.NAMED
            assert made.unique not in undecided


def test_names_are_never_given_twice_nor_by_two_processes_alike() -> None:
    one, other = PendingObjects(random.Random(1)), PendingObjects(random.Random(2))
    names = [undecided.new(1, 1) for undecided in (one, other) for _ in range(100)]
    assert len(set(names)) == 200
    name = level_one_name(bytes(16), 0, 7, names[0])
    assert parse_level_one_name(name).unique == names[0]
    assert len(one) == 100
