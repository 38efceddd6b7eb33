"""Three whole brokers on simulated machines: deletions go from every replica's log, and what holds them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from strandline.node.broker.broker import Broker
from strandline.node.compaction.compaction_measures import Reset
from strandline.node.compaction.log_folders import log_folder, remove_log
from strandline.node.config.node_config import CompactionSection, NodeConfig
from strandline.node.partition.batch import ProducedBatch
from strandline.node.partition.partition import Partition
from strandline.statemachine.controller.controller_commands import CreateTopic
from strandline.statemachine.controller.controller_state import Topic
from strandline.statemachine.partition.partition_commands import Appended
from tests.compaction.logs import TIME, Plan, bytes_of
from tests.compaction.upkeep_harness import contents
from tests.gc.cluster import GcBrokers
from tests.simulation.node import SimNode

RETENTION = 10_000
CONFIGS = (
    ("cleanup.policy", "compact"),
    ("delete.retention.ms", str(RETENTION)),
    ("min.cleanable.dirty.ratio", "0"),
)


class Table(GcBrokers):
    """A compacted topic of one partition; records come to level one, and into the local logs, in seconds."""

    loses_its_log: int | None = None
    """The node that has no local log any more when it starts."""

    def __enter__(self) -> Table:
        super().__enter__()
        return self

    def config(self, node: int) -> NodeConfig:
        config = super().config(node)
        return replace(
            config,
            level_one=replace(config.level_one, reconcile_seconds=1.0),
            compaction=CompactionSection(ingest_seconds=1.0),
        )

    def made(self, sim: SimNode) -> Broker:
        if sim.id == self.loses_its_log:
            remove_log(sim.disk, log_folder("/data", self.topic.topic_id, 0))
        return super().made(sim)

    def create(self) -> None:
        broker = self.brokers[1]
        made_at = broker.controller.machine.applied_index
        command = CreateTopic(broker.rng.randbytes(16), "table", 1, 3, None, CONFIGS, made_at)
        topic = self.submit(1, command)
        assert isinstance(topic, Topic), topic
        self.topic = topic
        self.group = topic.partitions[0].group
        self.wait(lambda: all(self.group in broker.compaction.logs for broker in self.brokers.values()))

    def leader_and_partition(self) -> tuple[int, Partition]:
        return self.leading(self.topic)

    def write(self, key: bytes, value: bytes | None) -> int:
        node, partition = self.leader_and_partition()
        data = bytes_of(Plan(((key, value, 0),)), 0)
        batch = ProducedBatch(data, 1, TIME, -1, -1, -1, 0)
        appended = self.run(node, _append(partition, batch))
        assert isinstance(appended, Appended), appended
        return appended.base_offset

    def clean_everywhere(self) -> None:
        """Wait until each log that is up is clean to its last record."""
        end = self.leader_and_partition()[1].machine.next_offset

        def done() -> bool:
            found = [self.ends(broker) for broker in self.brokers.values()]
            return all(one is not None and one[0] >= end - 1 and one[1] == end for one in found)

        self.wait(done, 60)

    def ends(self, broker: Broker) -> Any:
        log = broker.compaction.log_of(self.group)
        return None if log is None else log.ends(log.replica.machine)

    def mtro(self) -> int:
        return self.leader_and_partition()[1].machine.removals.mtro

    def holding(self, offset: int) -> set[int]:
        """The nodes whose log has this offset."""
        found = set()
        for node, broker in self.brokers.items():
            log = broker.compaction.log_of(self.group)
            if log is not None and log.log is not None and any(one.offset == offset for one in contents(log)):
                found.add(node)
        return found

    def resets(self) -> dict[Reset, int]:
        """Of all brokers since they started, but for logs that were made for the first time."""
        found: Counter[Reset] = Counter()
        for broker in self.brokers.values():
            found.update(broker.compaction.measures.resets)
        del found[Reset.NEW]
        return dict(+found)

    def status(self) -> Any:
        broker = self.brokers[self.leader_and_partition()[0]]
        return broker.compaction_status.partition(broker.compaction_status.replicas()[self.group])


async def _append(partition: Partition, batch: ProducedBatch) -> Any:
    return await partition.append(batch)


def others(table: Table, count: int = 5) -> None:
    for number in range(count):
        table.write(b"other", b"%d" % number)


def test_a_deletion_goes_from_all_replicas_and_waits_for_the_one_that_is_away() -> None:
    with Table() as table:
        table.create()
        table.write(b"key", b"value")
        others(table)
        table.clean_everywhere()
        leader = table.leader_and_partition()[0]
        away = next(node for node in table.nodes if node != leader)
        table.crash(away)
        tombstone = table.write(b"key", None)
        others(table)
        table.clean_everywhere()
        table.pass_time(RETENTION / 1000 + 30)
        assert table.holding(tombstone) == {*table.nodes} - {away}
        assert table.mtro() == 0
        status = table.status()
        assert (status.mtro, status.leader.tombstones_held.nodes) == (0, (away,))
        assert not status.leader.tombstones_held.level_one
        assert status.leader.tombstones_held.seconds > 30
        assert [copy.node for copy in status.leader.copies if copy.mcco is None] == [away]
        table.start(away)
        table.wait(lambda: table.registered(away), 60)
        table.clean_everywhere()
        assert away in table.holding(tombstone), "it has met the tombstone"
        table.wait(lambda: table.mtro() > tombstone, 60)
        since = table.world.now
        assert table.holding(tombstone) == {*table.nodes}
        table.wait(lambda: not table.holding(tombstone), 60)
        assert table.world.now - since >= RETENTION / 1000 - 1
        ripe = {
            broker.partitions.by_group(table.group).machine.removals.ripe_tombstones  # type: ignore[union-attr]
            for broker in table.brokers.values()
        }
        assert len(ripe) == 1
        assert table.resets() == {}
        assert table.status().leader.tombstones_held is None


def test_a_new_leader_goes_on_from_the_state_and_with_a_replica_that_lost_its_log() -> None:
    with Table() as table:
        table.create()
        table.write(b"key", b"value")
        others(table)
        table.clean_everywhere()
        table.wait(lambda: table.mtro() > 0, 60)
        before = table.mtro()
        first, _ = table.leader_and_partition()
        table.crash(first)
        table.loses_its_log = first
        table.wait(lambda: any(_leads(broker, table.group) for broker in table.brokers.values()), 60)
        assert table.mtro() == before
        table.start(first)
        table.wait(lambda: table.registered(first), 60)
        table.wait(lambda: table.group in table.brokers[first].compaction.logs, 60)
        tombstone = table.write(b"key", None)
        others(table)
        table.clean_everywhere()
        assert table.brokers[first].compaction.measures.resets[Reset.NEW] == 1
        table.wait(lambda: table.mtro() > tombstone, 60)
        assert table.holding(tombstone) == {*table.nodes}
        table.wait(lambda: not table.holding(tombstone), 60)
        assert table.resets() == {}


def _leads(broker: Broker, group: int) -> bool:
    replica = broker.partitions.by_group(group)
    return replica is not None and replica.leads
