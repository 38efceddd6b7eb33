"""One node, without the process around it: the order in which its parts start and stop.

The parts are in parts.py, and the process in node/process.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final

from strandline.node.broker.parts import NodeParts
from strandline.node.broker.settings import addition_of, registration_of
from strandline.node.controller.admission import Admission
from strandline.node.controller.cluster_members import differences
from strandline.node.controller.registration import Registration
from strandline.node.raft.rank import Rank
from strandline.statemachine.controller.controller_state import CONTROLLER_GROUP

log = logging.getLogger(__name__)

DRAIN_SECONDS: Final = 5.0
"""Time limit for requests in progress when the node stops."""
LEAVE_SECONDS: Final = 0.5
PART_SECONDS: Final = 4.0
"""Time limit for the end of one part. Those that wait on purpose, for the store, give it two seconds."""
PUBLISH_SECONDS: Final = 2.0
"""Time limit for the last tails when the node stops."""


class UncleanStop(RuntimeError):
    """A part did not end, so the process has to, as if it were killed."""


class Broker(NodeParts):
    """One node. Everything but `open` belongs on its loop."""

    def open(self) -> None:
        """Recover what the disk holds; blocking. Raises what `RaftHost.open` does.

        The partitions come back when the local replica of the controller names them, in `start`.
        """
        self.host.open()
        voters = tuple(peer.id for peer in self.config.cluster.nodes)
        group = self.host.create_group(CONTROLLER_GROUP, self._replica, voters, rank=Rank.CONTROLLER)
        self.members.follow()
        self.controller_leader.attach(self._replica.plain, group)
        self.controller.attach(self._replica.plain, group)

    async def start(self) -> None:
        """Take part; returns once the addresses are taken. Clients are let in once the node is registered.

        Raises ForeignStorage when the storage is another cluster's.

        A client that came earlier would be told of a cluster without nodes or topics, and believe it for a
        while. Raises MeshListenError or KafkaListenError when an address cannot be had.
        """
        await self.kafka.start([one.address for one in self.config.listeners], accept=False)
        if self._store_watch is not None:
            self._store_watch.start()
        await self.keeper.begin()
        await self.host.start()
        self.keeper.start()
        self.voters.start()
        self.replacements.start()
        self.lost_disks.start()
        self.replica_moves.start()
        self.drains.start()
        self.leaders.start()
        self.replica_manager.start()
        if self.config.topics.leader_rebalance:
            self.preferred_leaders.start()
        self.collectable.start()
        self.idle_epochs.start()
        command = registration_of(
            self.config,
            boot_id=self.boot_id,
            folder=self.host.folder.id,
            kafka_ports=self.kafka.ports,
            admin_port=self.admin_port,
            now_ms=self.wall_ms(),
        )
        self.joining.begin(addition_of(command), lambda: self.keeper.stored)
        self._registration = Registration(
            self.controller,
            self.calls,
            self.epoch,
            command,
            loop=self.loop,
            may_register=lambda: self.keeper.may_register,
            why_waiting=self.keeper.why_waiting,
            storage_unseen=self.keeper.unseen,
            on_registered=self._on_registered,
            on_fatal=self._on_fatal,
        )
        self._registration.start()

    async def stop(self, hand_over_seconds: float = 2.0) -> None:
        """Leadership first, then coordinators, Kafka's port, the log, object storage.

        None of it needs a majority. A part that hangs keeps neither the leaderships here nor the clients: it
        is named in the log and left behind. Raises UncleanStop if it may still write to the data folder: its
        lock then goes with the process.
        """
        self.host.leader_drain.for_good()
        hung: list[str] = []
        self.memory.close()
        await self._ended("views", self.views.close(), hung)
        self.joining.close()
        self.keeper.close()
        self.voters.close()
        self.replacements.close()
        self.lost_disks.close()
        self.replica_moves.close()
        self.drains.close()
        self.departures.close()
        self.replica_manager.close()
        self.preferred_leaders.close()
        self.restore_publishing.close()
        self.tail_points.close()
        await self._ended("inline storing", self.inline_storing.close(), hung)
        await self._ended("level one", self.level_one.close(), hung)
        self.removal.close()
        self.reports.close()
        await self._ended("local documents", self.local_documents.stop(), hung)
        await self._ended("compaction", self.compaction.close(), hung)
        self.idle_epochs.close()
        await self._ended("the collector", self.collector.close(), hung)
        await self._ended("the deletion of gone topics", self.gone_topics.close(), hung)
        await self.host.leader_drain.hand_over(hand_over_seconds)
        # Before the Kafka port: if leadership could not be handed over, members that wait for their groups
        # would delay its end.
        self.coordinators.close()
        self.verifier.close()
        if self._registration is not None:
            await self._registration.leave(LEAVE_SECONDS)
        await self.kafka.stop(DRAIN_SECONDS)
        await self._ended("publishing the last tails", self.tails.finish(PUBLISH_SECONDS), hung)
        for partition in self.partitions:
            partition.close()
        self.producer_ids.close()
        self.controller_leader.close()
        self.leaders.close()
        self.collectable.close()
        self.calls.close()
        if hung:
            raise UncleanStop(f"{', '.join(hung)} did not end within {PART_SECONDS:g} s")
        await self.host.stop(0.0)
        await self._ended("publishing", self.publisher.stop(), hung)
        await self._ended("the batcher", self.batcher.close(), hung)
        await self._ended("the reader of level zero", self.reader.close(), hung)
        await self._ended("the builder of level one", self.level_one_builder.close(), hung)
        await self._ended("the compactor", self.compactor.close(), hung)
        await self._ended("the reader of level one", self.level_one_reader.close(), hung)
        if self._store_watch is not None:
            await self._ended("the store's watch", self._store_watch.close(), hung)
        await self._ended("the store", self.store.close(), hung)

    async def _ended(self, what: str, ending: Coroutine[Any, Any, None], hung: list[str]) -> None:
        """Wait for the end of a part of this node, for PART_SECONDS at most; else it is one that hung."""
        task = self.loop.create_task(ending)
        done, _ = await asyncio.wait([task], timeout=PART_SECONDS)
        if not done:
            log.error("stopping: %s did not end within %g s: the node goes on without it", what, PART_SECONDS)
            hung.append(what)
        else:
            task.result()

    async def _on_registered(self) -> None:
        self.replica_manager.caught_up()
        self.departures.start()
        Admission(self.host, self.controller, self.members, self.keeper).start()
        await self.kafka.accept()
        self.views.start()
        for listener in self.config.listeners:
            port, protocol = self.kafka.ports[listener.name], listener.protocol
            log.info("node %d serves Kafka on port %d (%s)", self.node_id, port, protocol)
        voters = self.host.groups[CONTROLLER_GROUP].voters
        for told in differences(self.config.cluster.nodes, voters, self.controller.machine.nodes):
            log.warning("cluster.nodes differs from the cluster's members: %s", told)
