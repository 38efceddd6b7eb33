"""Protocols of everything that the admin server reads of a node.

The server reads everything and owns nothing. The broker satisfies these protocols as it is, and a test
provides less than a whole node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from strandline.node.admin.replica_sources import (
    CoordinatorTableSource,
    LeaderTableSource,
    PartitionTableSource,
)
from strandline.node.checkpoints.local_documents import LocalDocumentMeasures
from strandline.node.checkpoints.publisher import PublisherMeasures
from strandline.node.checkpoints.tail_points import TailPointMeasures
from strandline.node.checkpoints.tail_publishing import TailMeasures
from strandline.node.compaction.compaction_measures import CompactionMeasures
from strandline.node.compaction.compaction_status import Hosted, PartitionStatus
from strandline.node.compaction.compaction_upkeep import UnderWay
from strandline.node.compaction.compactor import CompactorMeasures
from strandline.node.compaction.holding import PartitionHold
from strandline.node.compaction.replica_log import ReplicaLog
from strandline.node.controller.client import Unavailable
from strandline.node.controller.cluster_clock import ClockEstimate
from strandline.node.gc.collectable_epochs import HeldBack, Maximum, ReportedEpoch
from strandline.node.gc.collector import CollectorMeasures, DryRun
from strandline.node.kafka.handlers.action_log import ActionLog
from strandline.node.kafka.handlers.authorizer import Authorizer
from strandline.node.kafka.handlers.client_throttles import ClientThrottles
from strandline.node.kafka.handlers.kept_fetches import KeptFetches
from strandline.node.kafka.wire.server import KafkaServer
from strandline.node.level_one.level_one_measures import BuilderMeasures, UpkeepMeasures
from strandline.node.level_one.level_one_upkeep import UpkeepStatus
from strandline.node.level_one.reader import LevelOneReader
from strandline.node.level_zero.batcher import Batcher
from strandline.node.level_zero.cache import BatchCache
from strandline.node.level_zero.reader import Reader
from strandline.node.partition.inline_budget import InlineBudget
from strandline.node.raft.host import RaftHost
from strandline.node.views.view_process import ViewProcess
from strandline.statemachine.controller.controller import Controller
from strandline.statemachine.controller.controller_commands import (
    RaiseFeatureLevel,
    RemoveNode,
    ReplaceNode,
    SetBalancing,
    SetCollection,
    SetDraining,
    ViewCommand,
)
from strandline.statemachine.controller.controller_state import Topic


class ControllerSource(Protocol):
    """This node's replica of the controller."""

    @property
    def machine(self) -> Controller: ...
    async def submit(
        self,
        command: SetBalancing
        | SetCollection
        | ReplaceNode
        | SetDraining
        | RemoveNode
        | RaiseFeatureLevel
        | ViewCommand,
        seconds: float,
        /,
    ) -> object | Unavailable: ...


class KeeperSource(Protocol):
    """The keeper of this node's data folder and storage."""

    def waits_for(self) -> str | None: ...
    def disowned(self) -> str | None: ...


class EpochSource(Protocol):
    """The newest cluster epoch this node has heard of."""

    def current(self) -> int: ...


class CollectableSource(Protocol):
    """This node's view of M, and of every partition's M(p)."""

    def maximum(self) -> Maximum: ...
    def reported(self, group: int, /) -> ReportedEpoch | None: ...
    async def held_back(self) -> HeldBack: ...


class CollectorSource(Protocol):
    """The collector of level-zero objects."""

    measures: CollectorMeasures
    broken: str | None

    @property
    def bound(self) -> int: ...
    @property
    def paused(self) -> bool: ...
    @property
    def lag_epochs(self) -> int: ...
    @property
    def lag_seconds(self) -> float: ...
    def status(self) -> dict[str, Any]: ...
    def reset(self) -> None: ...
    async def dry_run(self, limit: int, /) -> DryRun: ...


class UpkeepSource(Protocol):
    """The upkeep of level one: reconciler, merger, retention and sweeper."""

    @property
    def measures(self) -> UpkeepMeasures: ...
    def status(self) -> UpkeepStatus: ...


class CompactionSource(Protocol):
    """The upkeep of local logs."""

    @property
    def measures(self) -> CompactionMeasures: ...
    @property
    def logs(self) -> Mapping[int, ReplicaLog]: ...
    def states(self) -> Mapping[str, int]: ...
    def under_way(self) -> Sequence[UnderWay]: ...


class CompactorSource(Protocol):
    """The compactor, or the worker process for it."""

    measures: CompactorMeasures


class BuilderSource(Protocol):
    """The builder of level-one objects."""

    measures: BuilderMeasures


class GoneTopicsSource(Protocol):
    """The collector of deleted topics' objects."""

    deleted: int


class CompactionStatusSource(Protocol):
    """The status of each local log, and of removal where this node leads."""

    def replicas(self, topic: str | None = None, /) -> dict[int, Hosted]: ...
    def partition(self, hosted: Hosted, /) -> PartitionStatus: ...


class CountingSource(Protocol):
    """A part that counts what it does, by name."""

    @property
    def counters(self) -> Counter[str]: ...


class ClockSource(Protocol):
    """Whether the nodes agree on the time."""

    def estimate(self) -> ClockEstimate: ...


class CheckpointPublisherSource(Protocol):
    """The publisher of this node's checkpoints."""

    @property
    def measures(self) -> PublisherMeasures: ...


class TailsSource(Protocol):
    """The tails that a node publishes, see TailPublishing."""

    @property
    def measures(self) -> TailMeasures: ...
    @property
    def waiting_bytes(self) -> int: ...
    @property
    def age(self) -> float | None: ...


class TailPointsSource(Protocol):
    """The tail points that a node takes while it leads the controller, see TailPoints."""

    @property
    def measures(self) -> TailPointMeasures: ...
    @property
    def age(self) -> float | None: ...


class LocalDocumentsSource(Protocol):
    """The publisher of what this node's local logs have."""

    @property
    def measures(self) -> LocalDocumentMeasures: ...


class CheckpointReportSource(Protocol):
    """The report of a checkpoint, or of a renewal of leases."""

    def as_dict(self) -> dict[str, Any]: ...


class HoldingSource(Protocol):
    """Renews and ends readers' holds of compacted partitions."""

    async def hold(
        self, topic: Topic, reader: str, offsets: Mapping[int, int | None], lease_ms: int, /
    ) -> list[PartitionHold]: ...
    async def release(
        self, topic: Topic, reader: str, partitions: Sequence[int], /
    ) -> list[PartitionHold]: ...


class CheckpointTaker(Protocol):
    """Takes a checkpoint of every partition of some topics (None: of all), renews the leases of some (each a
    group and an index), and says what became of each."""

    async def take(
        self, topics: Sequence[str] | None, lease_ms: int, seconds: float, /
    ) -> CheckpointReportSource: ...
    async def renew(
        self, checkpoints: Sequence[tuple[int, int]], lease_ms: int, seconds: float, /
    ) -> CheckpointReportSource: ...


class InlineStoringSource(Protocol):
    """The part that stores the batches which lie in the nodes' logs alone."""

    def age(self, group: int, /) -> float: ...


class MemorySource(Protocol):
    """The node's budget of memory, in bytes; `given_back` counts the times that free memory was."""

    limit: int | None
    node_bytes: int
    worker_bytes: int
    given_back: int


class ViewsSource(Protocol):
    """The processes of programs of views on this node."""

    def problem(self) -> str | None: ...
    def running(self) -> list[ViewProcess]: ...
    def no_space(self, program: str, sinks: Collection[str], /) -> str | None: ...


class AdminSource(Protocol):
    """A node, as its admin server sees it."""

    @property
    def node_id(self) -> int: ...
    @property
    def registered(self) -> bool: ...
    @property
    def host(self) -> RaftHost: ...
    @property
    def controller(self) -> ControllerSource: ...
    @property
    def keeper(self) -> KeeperSource: ...
    @property
    def leaders(self) -> LeaderTableSource: ...
    @property
    def epoch(self) -> EpochSource: ...
    @property
    def partitions(self) -> PartitionTableSource: ...
    @property
    def coordinators(self) -> CoordinatorTableSource: ...
    @property
    def batcher(self) -> Batcher: ...
    @property
    def inline_budget(self) -> InlineBudget: ...
    @property
    def inline_storing(self) -> InlineStoringSource: ...
    @property
    def reader(self) -> Reader: ...
    @property
    def written(self) -> BatchCache: ...
    @property
    def fetched(self) -> BatchCache: ...
    @property
    def memory(self) -> MemorySource: ...
    @property
    def store(self) -> object: ...
    @property
    def kafka(self) -> KafkaServer: ...
    @property
    def fetches(self) -> KeptFetches: ...
    @property
    def throttles(self) -> ClientThrottles: ...
    @property
    def actions(self) -> ActionLog: ...
    @property
    def authorizer(self) -> Authorizer | None: ...
    @property
    def level_one(self) -> UpkeepSource: ...
    @property
    def level_one_builder(self) -> BuilderSource: ...
    @property
    def level_one_reader(self) -> LevelOneReader: ...
    @property
    def compaction(self) -> CompactionSource: ...
    @property
    def compactor(self) -> CompactorSource: ...
    @property
    def collectable(self) -> CollectableSource: ...
    @property
    def collector(self) -> CollectorSource: ...
    @property
    def gone_topics(self) -> GoneTopicsSource: ...
    @property
    def compaction_status(self) -> CompactionStatusSource: ...
    @property
    def reports(self) -> CountingSource: ...
    @property
    def removal(self) -> CountingSource: ...
    @property
    def clock(self) -> ClockSource: ...
    @property
    def publisher(self) -> CheckpointPublisherSource: ...
    @property
    def local_documents(self) -> LocalDocumentsSource: ...
    @property
    def tails(self) -> TailsSource: ...
    @property
    def tail_points(self) -> TailPointsSource: ...
    @property
    def checkpoints(self) -> CheckpointTaker: ...
    @property
    def holding(self) -> HoldingSource: ...
    @property
    def views(self) -> ViewsSource: ...
