"""All nodes lose their folders under load, and the production code makes a cluster of the bucket again.

What a restore does to the storage and to the folders is the code of `cluster restore`, on a machine of its
own. What it brings back is judged at once, by the logs and by what clients were told; the new cluster then
goes on under the same clients, and is judged like any other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from unittest.mock import patch

from strandline.node.objectstore.retries import RetryingStore, RetryPolicy
from strandline.node.objectstore.storage_owner import KEY
from strandline.node.raft.folder_file import UNSTARTED
from strandline.node.restore import data_folders
from strandline.node.restore.restored_states import RestoredCluster, restored_documents
from strandline.node.restore.stored_point import StoredPoint, read_point
from strandline.node.restore.take_over import record_attempt, take_over
from strandline.snapshot.document import SnapshotDocument
from strandline.statemachine.controller.controller import Controller
from strandline.statemachine.controller.controller_snapshot import load
from strandline.statemachine.controller.controller_state import CONTROLLER_GROUP, PartitionPlace
from strandline.statemachine.groups.groups import GroupsMachine
from strandline.statemachine.internal_topics import INTERNAL_TOPICS
from strandline.statemachine.machine import StateMachine
from strandline.statemachine.partition.partition import PartitionStateMachine
from tests.simulation.disk import SimDisk
from tests.simulation.node import SimNode
from tests.simulation.whole.checks import check_contents, content_of
from tests.simulation.whole.client import Directory
from tests.simulation.whole.cluster import WholeCluster
from tests.simulation.whole.ledger import Sent
from tests.simulation.whole.objects import Place
from tests.simulation.whole.of_before import OfBefore
from tests.simulation.whole.replays import Replays, empty
from tests.simulation.whole.retention import START_MS
from tests.simulation.whole.sim_broker import SimBroker

CHECK: Final = "restore"
RESTORER: Final = 90
"""The machine on which the command runs."""
SETTLES_SECONDS: Final = 5.0
"""Until the last request of the old processes has come to the store, beyond what comes late."""
RESTORES_SECONDS: Final = 60.0
BREAKS_OFF: Final = 0.3
"""Of the runs, those whose first restore breaks off somewhere, and is repeated."""
STARTS_SECONDS: Final = 2.0
COMES_BACK: Final = 0.7
"""Of the runs, those in which nodes of before come back, whose disks were not lost after all."""


@dataclass(slots=True)
class _Used:
    """Numbers that the cluster before can have used."""

    terms: dict[int, int] = field(default_factory=dict)
    places: dict[int, PartitionPlace] = field(default_factory=dict)
    """By group, those of partitions."""
    indexes: dict[int, int] = field(default_factory=dict)
    epoch: int = 0
    next_producer_id: int = 0
    next_group: int = 0
    incarnation: str = ""
    folders: set[int] = field(default_factory=set)

    def see(self, broker: SimBroker) -> None:
        """Take in what a node knows, before its process ends."""
        state = load(broker.controller.machine.snapshot())
        for group, hosted in broker.host.groups.items():
            self.terms[group] = max(self.terms.get(group, 0), hosted.term)
            self.indexes[group] = max(self.indexes.get(group, 0), hosted.journal.last)
        self.places.update(state.places)
        self.epoch = max(self.epoch, broker.epoch.current(), state.cluster_epoch)
        self.next_producer_id = max(self.next_producer_id, state.next_producer_id)
        self.next_group = max(self.next_group, state.next_group)
        self.incarnation = state.incarnation or self.incarnation
        self.folders.add(broker.host.folder.id)


@dataclass(frozen=True, slots=True)
class Regrown:
    """A cluster that was restored, and what it is without."""

    documents: list[SnapshotDocument]
    ends: Mapping[Place, int]
    lost: list[Sent]
    """Batches that were acknowledged, and are behind the point."""
    topics: Mapping[bytes, tuple[str, int]]
    taken: float
    """What was acknowledged before this moment of the world is there; minus infinity where clocks jump."""


class Regrowth:
    """One loss of all folders, and one restore."""

    def __init__(self, cluster: WholeCluster, directory: Directory, counts: Counter[str]) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._ledger = cluster.ledger
        self._directory = directory
        self._counts = counts
        self._rng = cluster.world.rng("all folders, and a restore")
        self._used = _Used()
        self._left: dict[int, tuple[SimDisk, int]] = {}
        """The disks of the nodes of before, as they were left, and the identities of their folders."""
        self._made: tuple[StoredPoint, RestoredCluster, list[SnapshotDocument]] | None = None

    def _broken(self, text: str) -> None:
        self._ledger.broken(CHECK, text)

    # The loss.

    def lose(self) -> None:
        """End all processes, within some moments, and take their disks."""
        cluster, world = self._cluster, self._world
        self._counts["all folders lost"] += 1
        world.record(0, "fault: all folders are lost")
        nodes = list(cluster.plan.nodes)
        self._rng.shuffle(nodes)
        cluster.kept_down.update(nodes)
        for node in nodes:
            world.run(world.now + self._rng.choice((0.0, 0.0, 0.001, 0.05, 0.3)))
            if node in cluster.brokers:
                self._used.see(cluster.brokers[node])
                self._left[node] = world.nodes[node].disk, cluster.brokers[node].host.folder.id
            cluster.crash(node, self._rng.choice(("kill", "power")))
        for (group, term), _ in self._ledger.leaders.items():
            self._used.terms[group] = max(self._used.terms.get(group, 0), term)

    def settle(self) -> None:
        """Let all come to the store that still comes, and let the clients' requests end."""
        self._cluster.store.land_within(1.0)
        self._world.run(self._world.now + self._cluster.plan.late_seconds + SETTLES_SECONDS)

    # The restore.

    def restore(self) -> Regrown | None:
        """Make the folders of a new cluster, and judge them; None where that is a finding."""
        world, cluster = self._world, self._cluster
        self._ledger.objects.store.on_delete = lambda name: self._broken(f"{name} is deleted by a restore")
        world.add_node(RESTORER)
        sim = world.nodes[RESTORER]
        if self._rng.random() < BREAKS_OFF:
            self._counts["restore broken off"] += 1
            self._begin(sim)
            world.run(world.now + self._rng.uniform(0.0, 0.4))
            if self._made is None:
                sim.crash("kill")
        if self._made is None:
            if sim.alive:
                sim.crash("kill")
            self._begin(sim)
            if not world.run_until(lambda: self._made is not None, timeout=RESTORES_SECONDS):
                self._broken(f"not within {RESTORES_SECONDS:.0f} s")
                return None
        sim.crash("kill")
        self._ledger.objects.watch(cluster.store, cluster.brokers.values)
        self._counts["restored"] += 1
        assert self._made is not None
        return self._judge(*self._made)

    def _begin(self, sim: SimNode) -> None:
        for node in self._cluster.plan.nodes:
            self._world.nodes[node].replace_disk()
            self._world.nodes[node].disk.turn_on()
        sim.start(lambda started: started.spawn(self._restore(started)))

    async def _restore(self, sim: SimNode) -> None:
        """As `cluster restore`."""
        store = RetryingStore(
            self._cluster.store.client(sim), RetryPolicy(), loop=sim.loop, rng=sim.rng("retries")
        )
        stored = await read_point(store)
        now_ms = START_MS + int(1000 * self._world.now)
        made = await record_attempt(store, stored, now_ms=now_ms, rng=sim.rng("restore"))
        data = {node: (self._world.nodes[node].disk, "/data") for node in made.folders}
        for disk, folder in data.values():
            disk.mkdir(folder)
            disk.open(f"{folder}/{UNSTARTED}", create=True).close()
            disk.sync_dir(folder)
        documents = list(restored_documents(stored, made))
        with patch.object(data_folders, "WalConfig", lambda: self._cluster.plan.wal):
            await data_folders.write_data_folders(
                data, stored.owner.cluster, made, documents, stored.controller, rng=sim.rng("folders")
            )
        self._cluster.store.lets_change(KEY)
        await take_over(store, stored, made)
        self._made = stored, made, documents

    def start(self) -> None:
        """Start the new nodes, each at its time."""
        for node in self._cluster.plan.nodes:
            self._world.call_later(self._rng.uniform(0.0, STARTS_SECONDS), self._cluster.let_up, node)
        if self._rng.random() < COMES_BACK:
            OfBefore(self._cluster, self._left, self._rng).come_back(self._counts)

    # Judgement.

    def judge_added(self) -> None:
        """A partition that was lost, and added again since, is led in terms above those of before."""
        before: dict[PartitionPlace, int] = {}
        for group, place in self._used.places.items():
            before[place] = max(before.get(place, 0), self._used.terms.get(group, 0))
        added: dict[int, PartitionPlace] = {}
        for broker in self._cluster.brokers.values():
            places = load(broker.controller.machine.snapshot()).places
            added.update((group, place) for group, place in places.items() if group >= self._used.next_group)
        for (group, term), node in self._ledger.leaders.items():
            used = before.get(added[group], 0) if group in added else 0
            if used:
                self._counts["added again"] += 1
            if term <= used:
                self._broken(f"node {node} leads {added[group]} again in term {term}; {used} was used before")

    def _judge(
        self, stored: StoredPoint, made: RestoredCluster, documents: list[SnapshotDocument]
    ) -> Regrown:
        ledger = self._ledger
        if stored.unusable:
            self._broken(f"the newest tail point is passed over: {stored.unusable}")
        self._judge_numbers(made, documents)
        replays = Replays(ledger)
        states: dict[int, tuple[int, int, StateMachine]] = {}
        for document in documents:
            states[document.group] = document.index, document.term, _restored(document)
        controller = states[CONTROLLER_GROUP][2]
        assert isinstance(controller, Controller)
        places = {
            Place(topic.topic_id, number): partition.group
            for topic in controller.topics
            if topic.name not in INTERNAL_TOPICS
            for number, partition in enumerate(topic.partitions)
        }
        stated = {one.group: one.end_offset for one in stored.partitions}
        ends = {place: stated[group] for place, group in places.items()}
        for group in stated:
            self._judge_group(replays, stored, group)
        taken = self._taken(stored)
        self._judge_loss(taken, ends)
        for group, (_, _, machine) in states.items():
            if isinstance(machine, GroupsMachine):
                self._judge_offsets(group, machine)
        lost = ledger.restored(states, ends)
        topics = {
            topic.topic_id: (topic.name, len(topic.partitions))
            for topic in controller.topics
            if topic.name not in INTERNAL_TOPICS
        }
        self._directory.restored(topics)
        found = {}
        for place, group in places.items():
            machine = states[group][2]
            assert isinstance(machine, PartitionStateMachine)
            found[place] = content_of(self._cluster, place, machine)
            if machine.high_watermark != ends[place]:
                self._broken(f"{place} ends at {machine.high_watermark}, and {ends[place]} was stated")
        check_contents(ledger, found, [], self._directory)
        self._counts["batches lost"] += len(lost)
        return Regrown(documents, ends, lost, topics, taken)

    def _judge_numbers(self, made: RestoredCluster, documents: list[SnapshotDocument]) -> None:
        """What is counted goes on above all that the cluster before can have used."""
        used = self._used
        for document in documents:
            for what, now, before in (
                ("term", document.term, used.terms.get(document.group, 0)),
                ("entry", document.index, used.indexes.get(document.group, 0)),
            ):
                if now <= before:
                    self._broken(
                        f"group {document.group} goes on at {what} {now}, and {before} was used before"
                    )
        controller = load(documents[0].state)
        for what, now, before in (
            ("cluster epoch", controller.cluster_epoch - 1, used.epoch),
            ("producer id", controller.next_producer_id, used.next_producer_id),
            ("group id", controller.next_group, used.next_group),
        ):
            if now < before:
                self._broken(f"the next {what} is {now}, and {before} was used before")
        if made.incarnation == used.incarnation or used.folders & set(made.folders.values()):
            self._broken(f"incarnation {made.incarnation} or its folders are those of before")

    def _judge_group(self, replays: Replays, stored: StoredPoint, group: int) -> None:
        """A partition's state is the one that its log has at the entry that the point names."""
        document = stored.documents.get(group)
        if document is None:
            return
        replayed = replays.at(document.kind, group, document.index)
        if replayed is not None and replayed.snapshot() != document.state:
            self._broken(f"group {group} has another state after entry {document.index} than its log")

    def _taken(self, stored: StoredPoint) -> float:
        if any(kind.startswith("clock") for kind in self._cluster.plan.faults):
            return float("-inf")
        clock_error_ms = self._ledger.retention.clock_error_ms
        return (stored.point.taken_ms - START_MS) / 1000 - clock_error_ms / 1000

    def _judge_loss(self, taken: float, ends: Mapping[Place, int]) -> None:
        """What was acknowledged before the point was taken is there: no more is missing than was stated."""
        for batch in self._ledger.sent.values():
            end = ends.get(batch.place)
            if batch.acked is None or end is None or batch.acked < end:
                continue
            if batch.acked_at < taken:
                self._broken(f"{batch} was acknowledged at {batch.acked_at:.3f}, and is behind {end}")

    def _judge_offsets(self, number: int, restored: GroupsMachine) -> None:
        """Groups' offsets are where they were when all was lost, or earlier."""
        before = self._ledger.objects.newest_groups(number)
        for group_id, group in restored.groups.items():
            known = None if before is None else before.groups.get(group_id)
            for topic_id, rows in group.offsets.committed.items():
                newest = {} if known is None else known.offsets.committed.get(topic_id, {})
                for partition, row in rows.items():
                    self._counts["offsets restored"] += 1
                    was = newest.get(partition)
                    if was is None or row.offset > was.offset:
                        self._broken(
                            f"{group_id} goes on at {row.offset} of partition {partition}, from {was}"
                        )


def _restored(document: SnapshotDocument) -> StateMachine:
    machine = empty(document.kind)
    machine.restore(document.state)
    return machine
