"""Collecting in whole clusters: who is idle, dead, stopped, paused or without a leader."""

from __future__ import annotations

import pytest

from strandline.node.controller.controller_leader import EPOCH_NEEDED
from strandline.node.gc.collectable_epochs import SILENT_SECONDS
from strandline.node.gc.collector import FULL_SWEEP_SECONDS
from strandline.node.partition.batch import AppendResult, ProducedBatch
from strandline.node.partition.partition import Partition
from strandline.statemachine.controller.controller_commands import DeleteTopic, SetCollection
from strandline.statemachine.partition.extent import ObjectExtent
from strandline.statemachine.partition.partition_commands import Appended, Checkpoint, CheckpointTaken
from tests.gc.cluster import LAG, GcBrokers
from tests.gc.parts import name
from tests.kafka.wire.batches import Record, build

SLACK = LAG + 4
"""An idle partition lags up to LAG + 1 epochs, its M(p) is two lower, and it takes a second to be heard."""


def batch(number: int = 0) -> ProducedBatch:
    return ProducedBatch(build([Record(value=b"v%d" % number)]), 1, 1_700_000_000_000, -1, -1, -1, 1)


def test_m_follows_the_cluster_epoch_while_nobody_writes() -> None:
    with GcBrokers() as brokers:
        brokers.create_topic(1, "t", 12, 3)
        brokers.create_topic(2, "u", 4, 1)
        brokers.wait(lambda: brokers.epoch() > 20, 60)
        for _ in range(20):
            brokers.pass_time(0.7)
            assert brokers.behind() <= SLACK
        advances = sum(broker.idle_epochs.advances for broker in brokers.brokers.values())
        assert advances <= 16 * 2 * (brokers.epoch() / LAG + 1), "two entries each time one lags, not more"


def test_the_epoch_rests_while_nothing_is_stored_and_rises_until_all_that_was_is_gone() -> None:
    with GcBrokers(rests=True) as brokers:
        topic = brokers.create_topic(1, "t", 12, 3)
        brokers.pass_time(20)
        rested = brokers.epoch()
        advances = sum(broker.idle_epochs.advances for broker in brokers.brokers.values())
        brokers.pass_time(30)
        assert brokers.epoch() == rested
        assert sum(broker.idle_epochs.advances for broker in brokers.brokers.values()) == advances
        assert all(broker.collector.lag_seconds == 0 for broker in brokers.brokers.values())
        node, partition = brokers.leading(topic)
        assert isinstance(brokers.run(node, _append(partition)), Appended)
        assert epochs(partition) == [rested]
        brokers.pass_time(3)
        assert brokers.brokers[node].collector.lag_seconds < 4, (
            "not the time in which there was nothing to collect"
        )
        brokers.submit(1, DeleteTopic(topic.topic_id))
        brokers.create_topic(1, "u", 12, 3)
        brokers.wait(lambda: not brokers.stored(), 30)
        risen = brokers.epoch()
        assert risen > rested
        brokers.pass_time(30)
        assert brokers.epoch() <= risen + 1


def test_what_a_dead_node_left_keeps_the_epoch_rising_and_so_does_a_node_that_does_not_say() -> None:
    with GcBrokers(rests=True) as brokers:
        brokers.create_topic(1, "t", 3, 3)
        brokers.pass_time(20)
        rested = brokers.epoch()
        gone = brokers.follower()
        brokers.put([name(rested, 1, shard=gone)])
        brokers.crash(gone)
        brokers.wait(lambda: not brokers.stored(), 30)
        brokers.pass_time(5)
        rested = brokers.epoch()
        brokers.pass_time(30)
        assert brokers.epoch() == rested, "a dead node is not asked"
        leader = brokers.brokers[brokers.leader()]
        silent = next(each for each in brokers.brokers.values() if each is not leader)
        del silent.calls._handlers[EPOCH_NEEDED]
        brokers.pass_time(10)
        assert brokers.epoch() > rested + 5


def test_what_lands_while_the_epoch_rests_goes_all_the_same() -> None:
    """Uploads of a process that is gone: one of an epoch that was collected, and one of the newest."""
    with GcBrokers(rests=True) as brokers:
        brokers.create_topic(1, "t", 3, 3)
        gone = brokers.follower()
        brokers.crash(gone)
        brokers.pass_time(30)
        rested = brokers.epoch()
        brokers.pass_time(10)
        assert brokers.epoch() == rested
        bound = min(broker.collector.bound for broker in brokers.brokers.values())
        brokers.put([name(bound, 1, shard=gone)])
        brokers.wait(lambda: not brokers.stored(), FULL_SWEEP_SECONDS + 10)
        assert brokers.epoch() == rested
        brokers.put([name(rested, 2, shard=gone)])
        brokers.wait(lambda: not brokers.stored(), FULL_SWEEP_SECONDS + 30)
        brokers.pass_time(5)
        rested = brokers.epoch()
        brokers.pass_time(30)
        assert brokers.epoch() == rested


def test_a_process_that_could_not_look_yet_keeps_the_epoch_rising_and_a_new_leader_goes_on_with_it() -> None:
    with GcBrokers(rests=True) as brokers:
        brokers.create_topic(1, "t", 3, 3)
        brokers.pass_time(20)
        rested = brokers.epoch()
        node = brokers.follower()
        brokers.crash(node)
        brokers.start(node)
        brokers.wait(brokers.all_know_all)
        brokers.store.stall()
        risen = brokers.epoch()
        brokers.pass_time(20)
        assert brokers.epoch() > max(rested, risen) + 5, "it may have left something"
        brokers.store.unstall()
        brokers.crash(brokers.leader())
        brokers.pass_time(40)
        rested = brokers.epoch()
        brokers.pass_time(30)
        assert brokers.epoch() == rested
        node, partition = brokers.leading(brokers.brokers[brokers.leader()].controller.machine.topics[0])
        assert isinstance(brokers.run(node, _append(partition)), Appended)
        brokers.pass_time(10)
        assert brokers.epoch() > rested + 5, "the new leader asks, too"


def test_each_node_collects_its_shard_and_the_living_those_of_the_dead() -> None:
    with GcBrokers() as brokers:
        brokers.create_topic(1, "t", 3, 3)
        brokers.put([name(1, n, shard=shard, node=shard) for shard in (1, 2, 3) for n in range(5)])
        kept = [f"l0/{shard:04x}/{1:020d}/not-ours" for shard in (1, 2, 3)]
        brokers.put(kept)
        brokers.wait(lambda: brokers.stored() == kept, 30)
        brokers.pass_time(1)
        counts = [broker.collector.measures.deleted for broker in brokers.brokers.values()]
        assert counts == [5, 5, 5]
        gone = brokers.follower()
        brokers.crash(gone)
        brokers.put([name(1, 77, shard=gone)])
        brokers.wait(lambda: brokers.stored() == kept, 400)
        assert brokers.maximum(brokers.leader()).epoch > 1


def test_a_batch_that_is_not_lifted_and_a_leased_checkpoint_hold_m_back_and_say_so() -> None:
    with GcBrokers() as brokers:
        topic = brokers.create_topic(1, "t", 1, 3)
        other = brokers.create_topic(1, "u", 1, 3)
        brokers.wait(lambda: brokers.epoch() > 3)
        node, partition = brokers.leading(topic)
        assert isinstance(brokers.run(node, _append(partition)), Appended)
        (epoch,) = epochs(partition)
        brokers.wait(lambda: brokers.epoch() > epoch + 10)
        follower = next(each for each in brokers.nodes if each != node)
        for each in (node, follower):
            held = brokers.run(each, brokers.brokers[each].collectable.held_back())
            assert (held.maximum.epoch, held.maximum.topic, held.reason) == (epoch - 1, "t", "unreconciled")
            assert held.since_ms == 1_700_000_000_000
        assert any(named.startswith("l0/") for named in brokers.stored())
        taken = brokers.run(node, partition.execute(Checkpoint(3_600_000)))
        assert isinstance(taken, CheckpointTaken)
        held = brokers.run(follower, brokers.brokers[follower].collectable.held_back())
        assert held.reason == "checkpoint"
        before = partition.machine.previous_applied_epoch
        brokers.pass_time(10)
        assert partition.machine.previous_applied_epoch == before, "to move it on would gain nothing"
        brokers.submit(1, DeleteTopic(topic.topic_id))
        brokers.wait(lambda: brokers.behind() <= SLACK and not brokers.stored(), 30)
        assert brokers.leading(other)[1].machine.max_collectable_epoch > epoch


async def _append(partition: Partition) -> AppendResult:
    return await partition.append(batch())


def epochs(partition: Partition) -> list[int]:
    return [extent.epoch for extent in partition.machine.extents if isinstance(extent, ObjectExtent)]


def test_a_paused_cluster_stays_paused_through_restarts() -> None:
    with GcBrokers() as brokers:
        brokers.create_topic(1, "t", 2, 3)
        brokers.submit(2, SetCollection(True))
        brokers.wait(lambda: all(broker.collector.paused for broker in brokers.brokers.values()))
        names = [name(1, shard=shard) for shard in (1, 2, 3)]
        brokers.put(names)
        for node in brokers.nodes:
            brokers.crash(node)
        for node in brokers.nodes:
            brokers.start(node)
        brokers.wait(lambda: all(brokers.registered(node) for node in brokers.nodes))
        brokers.pass_time(20)
        assert brokers.stored() == names
        brokers.submit(3, SetCollection(False))
        brokers.wait(lambda: not brokers.stored(), 30)


def test_a_stopped_process_goes_on_with_its_old_view_and_then_learns() -> None:
    """What it took for collectable before is still collectable, whatever happened meanwhile."""
    with GcBrokers() as brokers:
        topic = brokers.create_topic(1, "t", 3, 3)
        brokers.wait(lambda: brokers.epoch() > 10)
        node = brokers.follower()
        old = brokers.maximum(node).epoch
        brokers.world.nodes[node].pause()
        other = next(each for each in brokers.nodes if each != node)
        brokers.pass_time(20)
        new = brokers.create_topic(other, "new", 3, 2)
        leader, partition = brokers.leading(new)
        assert isinstance(brokers.run(leader, _append(partition)), Appended)
        brokers.submit(other, DeleteTopic(topic.topic_id))
        brokers.world.nodes[node].resume()
        brokers.pass_time(0.01)
        assert brokers.maximum(node).epoch >= old
        brokers.wait(lambda: brokers.maximum(node).epoch > old + 5, 30)
        assert all(
            epoch > brokers.maximum(each).epoch for each in brokers.nodes for epoch in epochs(partition)
        )


def test_a_partition_without_a_leader_holds_m_back_and_a_new_one_lets_it_go() -> None:
    with GcBrokers() as brokers:
        topic = brokers.create_topic(1, "t", 3, 1)
        brokers.wait(lambda: brokers.epoch() > 8 and brokers.behind() <= SLACK, 30)
        controller = brokers.leader()
        gone = next(each for each in brokers.nodes if each != controller)
        (lost,) = [n for n, p in enumerate(topic.partitions) if p.replicas == (gone,)]
        brokers.crash(gone)
        brokers.pass_time(SILENT_SECONDS + 15)
        held = brokers.run(controller, brokers.brokers[controller].collectable.held_back())
        assert (held.maximum.partition, held.reason in ("no_leader", "unheard")) == (lost, True)
        stuck = brokers.maximum(controller).epoch
        brokers.pass_time(10)
        assert brokers.maximum(controller).epoch == stuck
        brokers.start(gone)
        brokers.wait(lambda: brokers.registered(gone))
        brokers.wait(lambda: brokers.behind() <= SLACK, 30)


def test_a_restarted_node_knows_what_the_others_know_as_soon_as_it_is_connected() -> None:
    with GcBrokers() as brokers:
        brokers.create_topic(1, "t", 12, 1)
        brokers.wait(lambda: brokers.epoch() > 10 and brokers.behind() <= SLACK, 30)
        node = brokers.follower()
        brokers.crash(node)
        brokers.start(node)
        brokers.wait(lambda: brokers.registered(node))
        brokers.wait(lambda: brokers.behind() <= SLACK, 10)


def test_a_node_whose_clock_jumps_goes_by_the_others() -> None:
    with GcBrokers() as brokers:
        brokers.wait(lambda: all(len(broker.clock._shown) == 2 for broker in brokers.brokers.values()), 10)
        node = brokers.follower()
        broker = brokers.brokers[node]
        off = [0]
        broker.clock._wall_ms = lambda: int(1000 * broker.loop.time()) + off[0]
        off[0] = 365 * 86_400_000
        assert abs(broker.wall_ms() - 1000 * brokers.world.now) < 1_000
        brokers.pass_time(20)
        assert abs(broker.wall_ms() - 1000 * brokers.world.now) < 1_000
        for other in brokers.brokers.values():
            assert other.clock.trusted
            assert abs(other.wall_ms() - 1000 * brokers.world.now) < 1_000


def test_a_node_that_hears_nobody_does_not_trust_its_clock() -> None:
    with GcBrokers() as brokers:
        node = brokers.follower()
        for other in brokers.nodes:
            if other != node:
                brokers.crash(other)
        brokers.crash(node)
        brokers.start(node)
        brokers.pass_time(10)
        broker = brokers.brokers[node]
        assert not broker.clock.trusted
        assert broker.agreed_ms() is None, "what goes by its age asks the broker"
        brokers.start(next(other for other in brokers.nodes if other != node))
        brokers.wait(lambda: broker.agreed_ms() is not None, 10)


@pytest.mark.parametrize("seed", range(4))
def test_late_uploads_and_a_bad_store_leave_nothing_for_good(seed: int) -> None:
    with GcBrokers(seed=seed) as brokers:
        brokers.create_topic(1, "t", 3, 3)
        store = brokers.store
        store.refused = store.broken = store.lost = store.late = 0.1
        store.late_seconds = 5.0
        for round_ in range(10):
            brokers.put([name(1 + round_, round_ * 10 + n, shard=1 + n % 3) for n in range(10)])
            brokers.pass_time(3)
        store.refused = store.broken = store.lost = store.late = 0.0
        brokers.wait(lambda: not brokers.stored(), 700)
        assert brokers.behind() <= SLACK


def test_stopping_ends_everything_in_order() -> None:
    with GcBrokers() as brokers:
        brokers.create_topic(1, "t", 3, 3)
        brokers.put([name(1, n, shard=1) for n in range(50)])
        brokers.wait(lambda: brokers.epoch() > 5)
        for node in brokers.nodes:
            assert brokers.stop(node) < 10
