"""The parts of one node, built and told of each other: given parts come in, so that a simulator runs a node.

Here the parts meet: the log, the controller, partitions, storage, the Kafka port. broker.py starts them.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from concurrent.futures import Executor

from strandline.node.broker.hosted_replicas import HostedReplicas
from strandline.node.broker.memory_budget import budget_of
from strandline.node.broker.request_costs import batcher_of
from strandline.node.broker.settings import host_settings, server_config
from strandline.node.checkpoints.checkpoint_coordinator import CheckpointCoordinator
from strandline.node.checkpoints.local_documents import LocalDocuments
from strandline.node.checkpoints.publisher import CheckpointPublisher
from strandline.node.checkpoints.recorder import CheckpointRecorder
from strandline.node.checkpoints.recorders import CheckpointRecorders
from strandline.node.checkpoints.restore_publishing import RestorePublishing
from strandline.node.checkpoints.tail_points import TailPoints
from strandline.node.checkpoints.tail_publishing import TailPublishing
from strandline.node.compaction.compaction_status import CompactionStatus
from strandline.node.compaction.compaction_upkeep import CompactionUpkeep
from strandline.node.compaction.compactor import Compactor
from strandline.node.compaction.holding import Holding
from strandline.node.compaction.local_reader import LocalReader
from strandline.node.compaction.removal_leader import RemovalLeader
from strandline.node.compaction.reports import Reports
from strandline.node.compaction.store_compactor import StoreCompactor
from strandline.node.compaction.unreadable_objects import UnreadableObjects
from strandline.node.config.node_config import NodeConfig
from strandline.node.controller.client import ControllerClient
from strandline.node.controller.cluster_clock import ClusterClock
from strandline.node.controller.cluster_epoch import ClusterEpoch
from strandline.node.controller.controller_leader import ControllerLeader
from strandline.node.controller.controller_voters import ControllerVoters
from strandline.node.controller.departures import Departures
from strandline.node.controller.drains import Drains
from strandline.node.controller.folder_keeper import FolderKeeper
from strandline.node.controller.joining import Joining
from strandline.node.controller.leaders import LeaderTable
from strandline.node.controller.lost_disks import LostDisks
from strandline.node.controller.members import Members
from strandline.node.controller.preferred_leaders import PreferredLeaders
from strandline.node.controller.producer_ids import ProducerIds
from strandline.node.controller.registration import Registration
from strandline.node.controller.replacements import Replacements
from strandline.node.controller.replica_manager import ReplicaManager
from strandline.node.controller.replica_moves import ReplicaMoves
from strandline.node.coordinator.decision_hold import DecisionHold
from strandline.node.coordinator.table import Coordinators
from strandline.node.coordinator.verification import Verifier
from strandline.node.gc.collectable_epochs import CollectableEpochs
from strandline.node.gc.collector import Collector
from strandline.node.gc.gone_topics import GoneTopics
from strandline.node.gc.idle_epochs import IdleEpochs
from strandline.node.kafka.handlers import describe_quorum, elect_leaders
from strandline.node.kafka.handlers.action_log import ActionLog
from strandline.node.kafka.handlers.authorizer import Authorizer
from strandline.node.kafka.handlers.client_throttles import ClientThrottles
from strandline.node.kafka.handlers.handler import BrokerHandler
from strandline.node.kafka.handlers.kept_fetches import KeptFetches
from strandline.node.kafka.handlers.login_turns import LoginTurns
from strandline.node.kafka.wire.server import KafkaServer
from strandline.node.kafka.wire.server_config import ConnectionProblem
from strandline.node.level_one.builder import BuilderConfig, LevelOneBuilder, StoreBuilder
from strandline.node.level_one.level_one_upkeep import LevelOneUpkeep
from strandline.node.level_one.reader import LevelOneReader, LevelOneReaderConfig
from strandline.node.level_zero.cache import BatchCache
from strandline.node.level_zero.reader import Reader, ReaderConfig
from strandline.node.objectstore.opening import StorePlace
from strandline.node.objectstore.retries import RetryingStore
from strandline.node.objectstore.storage_owner import OwnedStore, draw_incarnation
from strandline.node.objectstore.store import ObjectStore
from strandline.node.objectstore.store_watch import StoreWatch
from strandline.node.partition import transaction_markers
from strandline.node.partition.fence_log import FenceLog
from strandline.node.partition.inline_budget import InlineBudget
from strandline.node.partition.inline_storing import InlineStoring
from strandline.node.partition.partition import Partition
from strandline.node.partition.partition_table import PartitionTable
from strandline.node.raft.disk import Disk
from strandline.node.raft.group import RaftGroup
from strandline.node.raft.host import RaftHost
from strandline.node.raft.wal.config import WalConfig
from strandline.node.replica.replica_machine import ReplicaMachine
from strandline.node.rpc import MeshCalls
from strandline.node.runtime.line_bound import LineBound
from strandline.node.views.view_host import ViewHost
from strandline.node.views.view_rights import ViewRights
from strandline.statemachine.controller.controller import Controller
from strandline.statemachine.controller.controller_state import CONTROLLER_GROUP
from strandline.statemachine.controller.hosted_groups import PartitionGroup

log = logging.getLogger(__name__)


class NodeParts:
    """The parts of one node. They belong on `loop`; `on_fatal` says that the process must end."""

    def __init__(
        self,
        config: NodeConfig,
        *,
        loop: asyncio.AbstractEventLoop,
        disk: Disk,
        store: ObjectStore,
        wal_executor: Executor | None,
        snapshot_executor: Executor | None,
        work_executor: Executor | None = None,
        read_executor: Executor | None = None,
        rng: random.Random,
        nonces: random.Random,
        boot_id: int,
        wall_ms: Callable[[], int],
        on_fatal: Callable[[Exception], None],
        wal: WalConfig | None = None,
        level_one_builder: LevelOneBuilder | None = None,
        compactor: Compactor | None = None,
        view_place: StorePlace | None = None,
    ) -> None:
        """`boot_id` is 1 or more and differs from that of every process before; `wall_ms` gives Unix ms.

        Level-one objects are made on this loop, unless there is another builder; the local logs' segments in
        `snapshot_executor`, unless there is another compactor. Programs of views run in processes that find
        the objects at `view_place`; without one they do not run here.
        """
        self.config = config
        self.node_id = config.node.id
        self.loop = loop
        self.rng = rng
        self.work_executor = work_executor
        self.disk = disk
        self.log_executor = snapshot_executor
        self.store = store
        self.boot_id = boot_id
        self.admin_port = config.admin.port
        """Port of the HTTP API; its server sets it before `start` if it took a free one."""
        self.clock = ClusterClock(self.node_id, lambda: self.members.ids, wall_ms, loop=loop)
        self._on_fatal = on_fatal
        self._registration: Registration | None = None

        self.host = RaftHost(
            host_settings(config, boot_id, wal or WalConfig()),
            loop=loop,
            disk=disk,
            wal_executor=wal_executor,
            snapshot_executor=snapshot_executor,
            rng=rng,
            nonces=nonces,
            on_fatal=on_fatal,
            on_group_failed=self._group_failed,
        )
        self.calls = MeshCalls(self.host, loop=loop)
        self.owned = OwnedStore(store)
        """The store, once it was seen to be this cluster's: all parts but those that find that out use it."""
        retried = store if isinstance(store, RetryingStore) else None
        watch = None if retried is None else StoreWatch(retried, self.owned, self.node_id, loop=loop)
        self._store_watch = watch
        store = self.owned
        self.publisher = CheckpointPublisher(
            store, self.node_id, loop=loop, executor=snapshot_executor, rng=rng
        )
        self.compactor = compactor or StoreCompactor(store, disk, loop=loop, executor=snapshot_executor)
        self.local_documents = LocalDocuments(
            config.cluster.id,
            self.node_id,
            self.publisher,
            lambda group: self.compaction.log_of(group),
            self.compactor,
            loop=loop,
            executor=snapshot_executor,
            share_bits=config.checkpoints.local_share_bits,
        )
        self.recorders = CheckpointRecorders(
            config.cluster.id, self.host, self.publisher, self.local_documents.take
        )
        self.controller = ControllerClient(self.calls, self.node_id, loop=loop)
        recorder = self.recorders.make(CONTROLLER_GROUP, Controller.kind)
        self._replica = ReplicaMachine(Controller(recorder.checkpoint), recorder, self.controller.applied)
        self.members = Members(self.host, config.cluster.nodes, self._replica.plain)
        self.joining = Joining(self.host, self.members, config.cluster.seeds, loop=loop)
        self.epoch = ClusterEpoch(self._replica.plain)
        self.controller_leader = ControllerLeader(
            self.calls,
            config.cluster.id,
            lambda: draw_incarnation(self.wall_ms(), rng),
            config.cluster.epoch_seconds,
            config.cluster.first_user,
            loop=loop,
            wall_ms=self.wall_ms,
        )
        self.keeper = FolderKeeper(
            self.host, self.controller, self.members, self.joining, self.store, self.owned,
            loop=loop, on_owned=self._on_owned, on_fatal=on_fatal,
        )  # fmt: skip
        self.voters = ControllerVoters(
            self.host, self.controller, self.controller_leader.silent_seconds, loop=loop
        )
        self.replacements = Replacements(self.host, self.controller, loop=loop)
        replaces = config.cluster.replace_lost_disks
        self.lost_disks = LostDisks(self.host, self.controller, self.keeper, enabled=replaces, loop=loop)
        self.replica_moves = ReplicaMoves(self.host, self.controller, loop=loop)
        self.drains = Drains(self.controller, self.node_id, loop=loop)
        self.producer_ids = ProducerIds(self.controller, self.node_id, loop=loop)
        self.leaders = LeaderTable(self.host, self.calls, loop=loop)
        self.partitions = PartitionTable()
        self._fence_log = FenceLog(loop)
        self.decisions = DecisionHold(loop)
        self.coordinators = Coordinators(self)
        self.verifier = Verifier(self, self.coordinators)
        self.preferred_leaders = PreferredLeaders(
            self.host, self.controller, config.topics.leader_rebalance_seconds, loop=loop
        )

        self.written = BatchCache(config.cache.written_bytes)
        self.fetched = BatchCache(config.cache.fetched_bytes)
        self.batcher = batcher_of(self, store)
        if isinstance(self.store, RetryingStore):
            self.store.on_put = self.batcher.window.heard
        self.inline_budget = InlineBudget(config.inline, loop.time)
        self.inline_storing = InlineStoring(
            self.partitions, self.batcher, self.inline_budget, loop=loop, rng=rng
        )
        self.reader = Reader(store, ReaderConfig(), loop=loop, written=self.written, fetched=self.fetched)
        self.level_one_builder = level_one_builder or StoreBuilder(
            store, BuilderConfig(block_bytes=config.level_one.block_bytes), loop=loop
        )
        self.level_one_reader = LevelOneReader(
            store, LevelOneReaderConfig(cache_bytes=config.cache.level_one_bytes), loop=loop
        )
        self.memory = budget_of(self)
        self.collectable = CollectableEpochs(
            self.calls, self.host, self.controller, self.partitions, self.leaders, self.clock, loop=loop
        )
        self.idle_epochs = IdleEpochs(
            self.partitions, self.epoch, config.collector, loop=loop, wall_ms=self.wall_ms
        )
        self.collector = Collector(
            store,
            config.collector,
            self.collectable,
            self.controller,
            self.node_id,
            lambda: self.members.writers,
            loop=loop,
            calls=self.calls,
            newest_epoch=self.epoch.current,
            written_epoch=lambda: self.batcher.newest_epoch,
            may_begin=lambda: self.registered,
        )
        self.gone_topics = GoneTopics(
            store, self.host, self.controller, config.level_one.sweep_seconds, config.collector, loop=loop
        )
        self.replicas = HostedReplicas(
            self.host, self.recorders, self.leaders, self.partitions, self.coordinators, self._new_partition
        )
        self.replica_manager = ReplicaManager(self.host, self.controller, self.replicas, loop=loop)
        self.departures = Departures(self.host, self.controller, self.replicas.leave, loop=loop)
        self.level_one = LevelOneUpkeep(self)
        self.unreadable = UnreadableObjects(self.calls, self.host, self.leaders)
        self.compaction: CompactionUpkeep = CompactionUpkeep(self)
        self.reports = Reports(self.calls, self.host, self.leaders, self.compaction, loop=loop)
        self.removal = RemovalLeader(self)
        self.compaction_status = CompactionStatus(self)
        self.holding = Holding(self)
        self.views = ViewHost(self, view_place)
        self.local_reader = LocalReader(
            self.compaction.log_of, self.compaction.measures, loop=loop, executor=read_executor
        )
        self.actions = ActionLog(loop.time)
        self.login_turns = LoginTurns()
        self.fetches = KeptFetches(loop.time, rng)
        self._problem_lines = LineBound(loop.time())
        rights = ViewRights(lambda: self.controller.machine).allows
        authorizer = Authorizer(lambda: self.controller.machine.acls, config.authorization, rights)
        self.authorizer = authorizer if config.authorization.enabled else None
        self.throttles = ClientThrottles(
            lambda: self.controller.machine.client_quotas, config.quotas, loop.time
        )
        handler = BrokerHandler(self)
        self.kafka = KafkaServer(
            handler, loop=loop, config=server_config(config), on_problem=self._note,
            features=handler.features, quotas=lambda: self.controller.machine.client_quotas,
            on_lost=self.fetches.lost,
        )  # fmt: skip
        self.checkpoints = CheckpointCoordinator(self)
        self.restore_publishing = RestorePublishing(self, self.checkpoints, loop=loop)
        self.tails = TailPublishing(self, self.recorders, self.publisher, loop=loop, pool=snapshot_executor)
        self.tail_points = TailPoints(self, self.checkpoints.points, loop=loop)
        elect_leaders.serve(self)
        describe_quorum.serve(self)
        transaction_markers.serve(self)

    def _note(self, problem: ConnectionProblem) -> None:
        left_out = self._problem_lines.take(self.loop.time())
        if left_out is not None:
            log.info("%s%s", problem, f" ({left_out} such lines were left out)" if left_out else "")

    def wall_ms(self) -> int:
        """The time, in ms since 1970; see ClusterClock."""
        return self.clock.now_ms()

    def agreed_ms(self) -> int | None:
        """As `wall_ms`; None while the nodes do not agree on the time. See ClusterClock."""
        return self.clock.agreed_ms()

    @property
    def registered(self) -> bool:
        """Whether the controller knows this process."""
        return self._registration is not None and self._registration.registered

    def _on_owned(self) -> None:
        """The storage is this cluster's: what moves and deletes objects may begin."""
        self.inline_storing.start()
        self.level_one.start()
        self.compaction.start()
        self.reports.start()
        self.removal.start()
        self.collector.start()
        self.gone_topics.start()
        self.restore_publishing.start()
        self.tails.start()
        self.tail_points.start()

    def _new_partition(self, place: PartitionGroup, recorder: CheckpointRecorder) -> Partition:
        return Partition(
            place=place,
            loop=self.loop,
            batcher=self.batcher,
            reader=self.reader,
            level_one=self.level_one_reader,
            written=self.written,
            epoch=self.epoch,
            wall_ms=self.wall_ms,
            agreed_ms=self.agreed_ms,
            recorder=recorder,
            fence_log=self._fence_log,
            local=self.local_reader,
            inline=self.inline_budget,
        )

    def _group_failed(self, group: RaftGroup, error: Exception) -> None:
        """One partition's replica may fail alone; without the controller's a node knows nothing any more."""
        if group.id == CONTROLLER_GROUP:
            self._on_fatal(error)
