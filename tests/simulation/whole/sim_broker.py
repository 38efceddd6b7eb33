"""A production broker on a simulated machine, watched: the ledger hears what happens in it first."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from strandline.node.broker.broker import Broker
from strandline.node.checkpoints.publisher import PublisherLimits
from strandline.node.checkpoints.recorder import CheckpointRecorder
from strandline.node.config.node_config import NodeConfig
from strandline.node.gc.collectable_epochs import TELL, Maximum
from strandline.node.kafka.wire.server_config import CloseReason, ConnectionProblem
from strandline.node.objectstore.store import ObjectNotFound
from strandline.node.partition.fence import Grant
from strandline.node.partition.lanes import Lane, PendingBatch
from strandline.node.partition.partition import Partition
from strandline.node.partition.writer import Writer
from strandline.node.replica.replica_machine import ReplicaMachine
from strandline.node.rpc import Handler
from strandline.statemachine.controller.hosted_groups import PartitionGroup
from strandline.statemachine.machine import Captured
from strandline.statemachine.object_names import PREFIX
from strandline.statemachine.partition.epoch_window import StaleClusterEpoch
from tests.simulation.node import SimNode
from tests.simulation.whole.ledger import Ledger
from tests.simulation.whole.objects import Place

READING: ContextVar[tuple[int, int]] = ContextVar("reading", default=(0, 0))
"""Group and term that a node reads for; term 0 where it does not lead."""
PUBLISHING = PublisherLimits(first_delay_seconds=0.1, max_delay_seconds=0.5)


@dataclass(slots=True)
class Mishaps:
    """What becomes of single messages between nodes."""

    lost: float = 0.0
    """Of those about collectable epochs, the shares that are lost, come late, or are said again later."""
    late: float = 0.0
    again: float = 0.0
    late_seconds: float = 3.0
    deaf: dict[tuple[int, int], None] = field(default_factory=dict)
    """(Node, group): what other replicas say to this one is lost."""


class WatchedRecorder(CheckpointRecorder):
    """The product's recorder, whose calls the ledger hears first: it is told of every entry anyway."""

    broker: SimBroker
    group: int

    def begin_term(self, index: int, term: int, node: int) -> None:
        self.broker.ledger.began(self.group, index, term, node)
        hosted = self.broker.host.groups.get(self.group)
        if hosted is not None and self.group in self.broker.places:
            assert isinstance(hosted.machine, ReplicaMachine)
            self.broker.ledger.objects.begun(self.group, index, hosted.machine.plain)
        super().begin_term(index, term, node)

    def applied(self, index: int, term: int, command: bytes) -> None:
        self.broker.entry_applied(self.group, index, term, command)
        super().applied(index, term, command)

    def checkpoint(self, index: int, captured: Captured) -> None:
        self.broker.ledger.checkpoint(self.group, index, captured(), self.broker.node_id)
        super().checkpoint(index, captured)


class SimBroker(Broker):
    """The production broker, which the ledger watches."""

    def __init__(self, config: NodeConfig, *, ledger: Ledger, sim: SimNode, mishaps: Mishaps, **more: Any):
        self.ledger = ledger
        self.mishaps = mishaps
        self.sim = sim
        self.boot = sim.boot
        self.places: dict[int, Place] = {}
        super().__init__(config, **more)
        self.publisher._limits = PUBLISHING
        self._watch_recorders()
        self._watch_replicas()
        self._watch_reader()
        self._watch_collectable()
        self._mislay_gossip()
        self._stop_ears()
        self._watch_requests()

    def entry_applied(self, group: int, index: int, term: int, command: bytes) -> None:
        hosted = self.host.groups.get(group)
        self.ledger.applied(
            (group, self.node_id, self.boot), index, term, command,
            hosted.machine if hosted is not None else None, self.places.get(group),
        )  # fmt: skip

    def _watch_recorders(self) -> None:
        """Each replica's recorder tells the ledger; that of the controller is made already."""
        make = self.recorders.make

        def watched(made: CheckpointRecorder, group: int) -> CheckpointRecorder:
            made.__class__ = WatchedRecorder
            assert isinstance(made, WatchedRecorder)
            made.broker, made.group = self, group
            return made

        for group, made in self.recorders._by_group.items():
            watched(made, group)
        self.recorders.make = lambda group, kind: watched(make(group, kind), group)  # type: ignore[method-assign]

    def _watch_requests(self) -> None:
        """A request whose handling raises costs its client a connection, which no client minds."""
        note = self.kafka._on_problem

        def watched(problem: ConnectionProblem) -> None:
            if problem.reason is CloseReason.HANDLER and problem.message.startswith("api key"):
                self.ledger.broken("requests end", f"node {self.node_id}: {problem.message}")
            note(problem)

        self.kafka._on_problem = watched

    def _watch_replicas(self) -> None:
        create = self.replicas.create

        def watched(place: PartitionGroup) -> None:
            self.places[place.group] = Place(place.topic_id, place.partition)
            self.ledger.on_replica(self, place)
            create(place)
            partition = self.partitions.by_group(place.group)
            if partition is not None:  # else a coordinator
                self._watch_restaging(partition.writer)
                self._watch_reads(partition, place.group)

        self.replicas.create = watched  # type: ignore[method-assign]

    def _watch_restaging(self, writer: Writer) -> None:
        """A batch whose epoch was refused goes up again under the newest epoch, not under the old one."""
        granted = writer._granted
        told: dict[PendingBatch, int] = {}

        def watched(lane: Lane, grant: Grant) -> bool:
            if isinstance(grant, StaleClusterEpoch) and lane.queue:
                head = lane.queue[0]
                if grant.epoch < told.get(head, 0):
                    self.ledger.broken(
                        "restaged under the newest epoch",
                        f"node {self.node_id} was told of epoch {told[head]}, came again with {grant.epoch}",
                    )
                told[head] = grant.newest
            return granted(lane, grant)

        writer._granted = watched  # type: ignore[method-assign]

    def _watch_collectable(self) -> None:
        """Whatever this node takes for collectable is, by every partition there is, and is so for good."""
        maximum = self.collectable.maximum

        def watched() -> Maximum:
            found = maximum()
            self.ledger.objects.check_collectable(self.node_id, self.boot, found.epoch)
            return found

        self.collectable.maximum = watched  # type: ignore[method-assign]

    def _mislay_gossip(self) -> None:
        """What others say of their partitions is lost, comes late, or comes again long after, if it is so."""
        handler, rng = self.calls._handlers[TELL], self.sim.rng("gossip")

        async def told(peer: int, payload: Any) -> None:
            gossip = self.mishaps
            if rng.random() < gossip.again:
                self.loop.call_later(rng.random() * gossip.late_seconds, self._tell, handler, peer, payload)
            if rng.random() < gossip.late:
                self.loop.call_later(rng.random() * gossip.late_seconds, self._tell, handler, peer, payload)
            elif rng.random() >= gossip.lost:
                await handler(peer, payload)

        self.calls._handlers[TELL] = told

    def _stop_ears(self) -> None:
        on_frame = self.host.mesh._on_frame

        def heard(peer: int, payload: Any) -> None:
            deaf = self.mishaps.deaf
            if deaf and payload[0] == 0:
                payload = [0, [said for said in payload[1] if (self.node_id, said[0]) not in deaf]]
            on_frame(peer, payload)

        self.host.mesh._on_frame = heard

    def _tell(self, handler: Handler, peer: int, payload: Any) -> None:
        self.sim.spawn(handler(peer, payload))  # type: ignore[arg-type]

    def _watch_reads(self, partition: Partition, group: int) -> None:
        """Let the reader know for whom it reads: the partition, and the term it is led in."""
        read = partition.read

        async def watched(*args: Any, **more: Any) -> Any:
            token = READING.set((group, partition.leader_epoch if partition.leads else 0))
            try:
                return await read(*args, **more)
            finally:
                READING.reset(token)

        partition.read = watched  # type: ignore[method-assign]

    def _watch_reader(self) -> None:
        """While a node leads without a break, what it has planned to read from level zero stays there."""
        read = self.reader.read

        async def watched(*args: Any) -> Any:
            try:
                return await read(*args)
            except ObjectNotFound as error:
                group, term = READING.get()
                if term and error.key.startswith(PREFIX):
                    self._judge_gone(group, term, error.key)
                raise

        self.reader.read = watched  # type: ignore[assignment,method-assign]

    def _judge_gone(self, group: int, term: int, name: str) -> None:
        partition = self.partitions.by_group(group)
        still = partition is not None and partition.leads and partition.leader_epoch == term
        objects = self.ledger.objects
        if still and group in objects.places() and objects.newest_term(group) == term:
            self.ledger.broken("reader hold", f"node {self.node_id}, leader of group {group}: {name} is gone")
