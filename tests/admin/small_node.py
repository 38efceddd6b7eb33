"""A node that is small and real enough to be looked at: one process, one replica of each group, no broker."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

from strandline.node.admin.server import AdminServer
from strandline.node.checkpoints.local_documents import LocalDocuments
from strandline.node.checkpoints.publisher import CheckpointPublisher
from strandline.node.checkpoints.renewal import RenewalReport, RenewedLease
from strandline.node.checkpoints.tail_points import TailPointMeasures
from strandline.node.checkpoints.tail_publishing import TailMeasures
from strandline.node.compaction.compaction_measures import CompactionMeasures
from strandline.node.compaction.compaction_status import CompactionStatus
from strandline.node.compaction.compaction_upkeep import UnderWay
from strandline.node.compaction.compactor import CompactorMeasures, JobFailed, Shared, ShareJob
from strandline.node.compaction.holding import PartitionHold
from strandline.node.compaction.removal_leader import Copies, Led
from strandline.node.config.node_config import InlineSection
from strandline.node.config.quotas import QuotasSection
from strandline.node.controller.client import Unavailable
from strandline.node.controller.cluster_clock import ClockEstimate
from strandline.node.gc.collectable_epochs import HeldBack, Maximum, ReportedEpoch
from strandline.node.gc.collector import CollectorMeasures, DryRun
from strandline.node.kafka.handlers.action_log import ActionLog
from strandline.node.kafka.handlers.authorizer import Authorizer
from strandline.node.kafka.handlers.client_throttles import ClientThrottles
from strandline.node.kafka.handlers.kept_fetches import KeptFetches
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.server import KafkaServer, ListenAddress
from strandline.node.kafka.wire.server_config import ServerConfig
from strandline.node.level_one.level_one_measures import BuilderMeasures, UpkeepMeasures
from strandline.node.level_one.level_one_upkeep import PartitionUpkeep, UpkeepStatus
from strandline.node.level_one.reader import LevelOneReader, LevelOneReaderConfig
from strandline.node.level_zero.batcher import Batcher
from strandline.node.level_zero.batcher_config import BatcherConfig
from strandline.node.level_zero.cache import BatchCache
from strandline.node.level_zero.money_budget import MoneyBudget, Prices
from strandline.node.level_zero.reader import Reader, ReaderConfig
from strandline.node.objectstore.hedging import Hedging
from strandline.node.objectstore.local_store import LocalStore
from strandline.node.objectstore.requests import Requests
from strandline.node.objectstore.retries import RetryingStore, RetryPolicy
from strandline.node.partition.inline_budget import InlineBudget
from strandline.node.raft.config import RaftConfig
from strandline.node.raft.disk import RealDisk
from strandline.node.raft.group import RaftGroup
from strandline.node.raft.host import RaftHost
from strandline.node.raft.host_settings import HostSettings
from strandline.node.raft.outcome import Applied
from strandline.node.raft.wal.write_ahead_log import WalConfig
from strandline.node.views.view_process import VersionName, ViewProcess
from strandline.statemachine.controller.controller import Controller
from strandline.statemachine.controller.controller_commands import (
    Bootstrap,
    Command,
    CreateInternalTopic,
    CreateTopic,
    RegisterNode,
    encode,
)
from strandline.statemachine.controller.controller_state import Topic
from strandline.statemachine.controller.hosted_groups import PartitionGroup
from strandline.statemachine.groups.groups import GroupsMachine
from strandline.statemachine.internal_topics import GROUPS_KIND, coordinator_kind
from strandline.statemachine.partition.epoch_window import EpochWindow, WindowCounters
from strandline.statemachine.partition.partition import PartitionStateMachine
from strandline.statemachine.transactions.transactions import TransactionsMachine

NODE = 1
BOOT = 2**62 + 1
CLUSTER = "the-cluster"


@dataclass
class FakeFence:
    window: EpochWindow | None = None
    counters: WindowCounters = field(default_factory=WindowCounters)


@dataclass
class FakeWriter:
    duplicates: int = 0


@dataclass
class FakePartition:
    group: Any
    machine: PartitionStateMachine
    topic: str
    number: int
    leads: bool = True
    topic_id: bytes = b""
    leader_epoch: int = 1
    readers_hold: int = 0
    """How many epochs below the state's M(p) a reader holds."""
    fence: FakeFence = field(default_factory=FakeFence)
    writer: FakeWriter = field(default_factory=FakeWriter)

    @property
    def collectable_epoch(self) -> int:
        return self.machine.max_collectable_epoch - self.readers_hold


class FakePartitions(list[FakePartition]):
    """The replicas, found by their groups."""

    def by_group(self, group: int) -> FakePartition | None:
        return next((one for one in self if one.group.id == group), None)


@dataclass
class FakeCompaction:
    """The upkeep of local logs, the reports and the leaders' part: what a test puts there."""

    logs: dict[int, Any] = field(default_factory=dict)
    measures: CompactionMeasures = field(default_factory=CompactionMeasures)
    counters: Counter[str] = field(default_factory=Counter)
    leading: dict[int, Led] = field(default_factory=dict)
    known: dict[int, Copies] = field(default_factory=dict)
    publication_error: str | None = None
    working: list[UnderWay] = field(default_factory=list)

    @property
    def publisher(self) -> FakeCompaction:
        return self

    def error(self, group: int) -> str | None:
        return self.publication_error

    def due(self, group: int) -> bool:
        return False

    def under_way(self) -> list[UnderWay]:
        return self.working

    def states(self) -> dict[str, int]:
        return {"open": 1, "closed": 1, "stuck": 0}

    def led(self, group: int) -> Led | None:
        return self.leading.get(group)

    def copies(self, replica: Any) -> Copies:
        return self.known[replica.group.id]


@dataclass
class FakeHolding:
    """Holds what it is asked for; `asked` is that, and `lost` the partitions whose hold is not there."""

    asked: list[tuple[Any, ...]] = field(default_factory=list)
    lost: set[int] = field(default_factory=set)

    async def hold(
        self, topic: Topic, reader: str, offsets: Mapping[int, int | None], lease_ms: int, /
    ) -> list[PartitionHold]:
        self.asked.append((topic.name, reader, dict(offsets), lease_ms))
        return [
            PartitionHold(number, None, None, 99) if number in self.lost else PartitionHold(number, 7, 1_000)
            for number in offsets
        ]

    async def release(self, topic: Topic, reader: str, partitions: Sequence[int], /) -> list[PartitionHold]:
        self.asked.append((topic.name, reader, list(partitions)))
        return [PartitionHold(number, None, None) for number in partitions]


class FakePlace(NamedTuple):
    topic: str
    partition: int


@dataclass
class FakeCoordinator:
    group: Any
    place: FakePlace
    machine: GroupsMachine | TransactionsMachine
    leads: bool = True


class FakeCoordinators(list[FakeCoordinator]):
    """The replicas; and what answers for them, which a test puts there."""

    def __init__(self) -> None:
        self.groups: list[Any] = []
        self.transactions: list[Any] = []

    def led_groups(self) -> list[Any]:
        return self.groups

    def led_transactions(self) -> list[Any]:
        return self.transactions


@dataclass
class FakeLeader:
    node: int
    term: int


async def until(holds: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait until something holds that nobody tells of."""
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


class FakeReport:
    def as_dict(self) -> dict[str, Any]:
        part = {
            "group": 1, "topic": "orders", "partition": 0, "index": 7,
            "published_by": (1,), "missing": (), "error": None,
        }  # fmt: skip
        return {
            "complete": True, "cluster": CLUSTER, "checkpoints": (part,),
            "restore_point": 1, "no_restore_point": None,
        }  # fmt: skip


@dataclass
class FakeCheckpoints:
    """Answers after `gate` is set; `asked` is what was asked."""

    gate: asyncio.Event = field(default_factory=asyncio.Event)
    asked: list[tuple[Any, int, float]] = field(default_factory=list)
    error: Exception | None = None

    async def take(self, topics: Sequence[str] | None, lease_ms: int, seconds: float, /) -> FakeReport:
        self.asked.append((topics, lease_ms, seconds))
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return FakeReport()

    async def renew(
        self, checkpoints: Sequence[tuple[int, int]], lease_ms: int, seconds: float, /
    ) -> RenewalReport:
        self.asked.append((checkpoints, lease_ms, seconds))
        (first, *others) = checkpoints
        return RenewalReport(
            (
                RenewedLease(*first, 5_000, False, None),
                *(RenewedLease(*other, None, True, "its lease has ended") for other in others),
            )
        )


class FakeKeeper:
    """The data folder is the one it should be, unless a test says otherwise."""

    def __init__(self) -> None:
        self.waiting: str | None = None
        self.refused: str | None = None

    def waits_for(self) -> str | None:
        return self.waiting

    def disowned(self) -> str | None:
        return self.refused


@dataclass
class FakeCollection:
    """What knows M, what collects by it, the clock and level one's upkeep; a test sets what they say."""

    top: Maximum = field(default_factory=lambda: Maximum(3, 5, 1, "orders", 0, ReportedEpoch(3, 1, 0.0)))
    reason: tuple[str, int | None] = ("unreconciled", 1_700_000_000_000)
    table: dict[int, ReportedEpoch] = field(default_factory=dict)
    measures: CollectorMeasures = field(default_factory=CollectorMeasures)
    broken: str | None = None
    bound: int = 2
    paused: bool = False
    lag_epochs: int = 2
    lag_seconds: float = 1.5
    resets: int = 0
    dry: DryRun | Exception = field(default_factory=lambda: DryRun(2, {1: 2, 4: 0}, ["l0/a", "l0/b"], False))
    gate: asyncio.Event | None = None
    deleted: int = 0
    agreed: ClockEstimate = field(default_factory=lambda: ClockEstimate(0, trusted=True))

    def maximum(self) -> Maximum:
        return self.top

    def reported(self, group: int) -> ReportedEpoch | None:
        return self.table.get(group)

    async def held_back(self) -> HeldBack:
        return HeldBack(self.top, *self.reason)

    def status(self) -> dict[str, Any]:
        return {
            "paused": self.paused, "waiting": False, "broken": self.broken, "last_error": None,
            "bound": self.bound, "lag_epochs": self.lag_epochs, "lag_seconds": self.lag_seconds,
            "shards": [1, 4], **{name: getattr(self.measures, name) for name in CollectorMeasures.__slots__},
        }  # fmt: skip

    def reset(self) -> None:
        self.resets += 1

    async def dry_run(self, limit: int) -> DryRun:
        if self.gate is not None:
            await self.gate.wait()
        if isinstance(self.dry, Exception):
            raise self.dry
        return self.dry._replace(names=self.dry.names[:limit])

    def estimate(self) -> ClockEstimate:
        return self.agreed


@dataclass
class FakeTails:
    """All that is due was in the store 1.5 s ago."""

    measures: TailMeasures = field(default_factory=TailMeasures)
    waiting_bytes: int = 0
    age: float | None = 1.5


@dataclass
class FakeTailPoints:
    """As on a node that leads the controller."""

    measures: TailPointMeasures = field(default_factory=TailPointMeasures)
    age: float | None = 2.5


@dataclass
class FakeCompactor:
    measures: CompactorMeasures = field(default_factory=CompactorMeasures)

    async def share(self, job: ShareJob) -> Shared | JobFailed:
        raise AssertionError("no log is told beside a checkpoint")


@dataclass
class FakeUpkeep:
    partitions: tuple[PartitionUpkeep, ...] = ()
    measures: UpkeepMeasures = field(default_factory=UpkeepMeasures)

    def status(self) -> UpkeepStatus:
        return UpkeepStatus(self.partitions, 0, True)

    @property
    def reconciler(self) -> FakeUpkeep:
        return self

    def error(self, group: int) -> str | None:
        return next((one.errors[0] for one in self.partitions if one.group == group and one.errors), None)


@dataclass
class FakeBuilder:
    measures: BuilderMeasures = field(default_factory=BuilderMeasures)


class FakeViews:
    """A host of views that runs what a test says: nothing."""

    def __init__(self) -> None:
        self.processes: list[Any] = []
        self.full: str | None = None
        """Why there is no room for another version."""

    def no_space(self, program: str, sinks: Collection[str]) -> str | None:
        return self.full

    def problem(self) -> str | None:
        return "the store is in memory"

    def running(self) -> list[ViewProcess]:
        return self.processes


def version_that_runs(status: Mapping[str, Any]) -> Any:
    """A version of a program of views, for FakeViews, whose process has said this last."""
    name = VersionName("p", 5, 7, True)
    return SimpleNamespace(
        name=name, process_id=None, starts=3, failures=2, failure="it ended", status=status
    )


class NoHandler:
    async def handle(self, request: Request) -> None:
        return None


class FakeInlineStoring:
    """Every partition's oldest inline batch is of the same age."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def age(self, group: int) -> float:
        return self.seconds


class SmallNode:
    """See AdminSource. Its groups have one voter, so it leads them all soon after the start."""

    node_id = NODE

    def __init__(self, folder: Path) -> None:
        loop = asyncio.get_running_loop()
        self.executor = ThreadPoolExecutor(1)
        self.registered = True
        self.failures: list[tuple[RaftGroup, Exception]] = []
        self.host = RaftHost(
            HostSettings(
                NODE, CLUSTER, b"secret", BOOT, str(folder / "data"),
                raft=RaftConfig(heartbeat_seconds=0.02, election_min_seconds=0.2, election_max_seconds=0.25,
                                time_gap_seconds=0.08),
                wal=WalConfig(),
            ),
            loop=loop,
            disk=RealDisk(),
            wal_executor=self.executor,
            snapshot_executor=self.executor,
            rng=random.Random(1),
            nonces=random.Random(2),
            on_fatal=lambda error: self.failures.append((None, error)),  # type: ignore[arg-type]
            on_group_failed=lambda group, error: self.failures.append((group, error)),
        )  # fmt: skip
        self.controller = self
        self.keeper = FakeKeeper()
        self.machine = Controller(lambda index, state: None)
        self.loop = loop
        self.partitions = FakePartitions()
        self.compaction = self.reports = self.removal = FakeCompaction()
        self.compaction_status = CompactionStatus(cast(Any, self))
        self.holding = FakeHolding()
        self.views = FakeViews()
        self.coordinators = FakeCoordinators()
        self.leaders = self
        self.epoch = self
        local = LocalStore.open(
            RealDisk(), str(folder / "objects"), owner="node1", loop=loop, executor=self.executor
        )
        hedging = Hedging(loop=loop, puts=True)
        self.store = RetryingStore(local, RetryPolicy(), loop=loop, rng=random.Random(3), hedging=hedging)
        self.written, self.fetched = BatchCache(1 << 20), BatchCache(1 << 20)
        money = MoneyBudget(lambda: 50.0, Prices(5e-6, 4e-7), lambda: Requests(3, 100), loop.time)
        self.batcher = Batcher(
            self.store,
            BatcherConfig(),
            loop=loop,
            rng=random.Random(4),
            node=NODE,
            shard=0,
            epoch=self.current,
            money=money,
        )
        self.inline_budget = InlineBudget(InlineSection(max_batch_bytes=1000), loop.time)
        self.memory = SimpleNamespace(limit=300_000_000, node_bytes=90_000_000, worker_bytes=0, given_back=2)
        self.inline_storing = FakeInlineStoring()
        self.reader = Reader(
            self.store, ReaderConfig(), loop=loop, written=self.written, fetched=self.fetched
        )
        self.level_one_reader = LevelOneReader(self.store, LevelOneReaderConfig(), loop=loop)
        self.level_one, self.level_one_builder = FakeUpkeep(), FakeBuilder()
        self.compactor = FakeCompactor()
        self.collectable = self.collector = self.gone_topics = self.clock = FakeCollection()
        self.unavailable: Unavailable | None = None
        self.kafka = KafkaServer(
            NoHandler(), loop=loop, config=ServerConfig(), on_problem=lambda problem: None
        )
        self.actions = ActionLog(time.monotonic)
        self.authorizer: Authorizer | None = None
        self.fetches = KeptFetches(loop.time, random.Random(1))
        self.throttles = ClientThrottles(lambda: self.machine.client_quotas, QuotasSection(), clock=loop.time)
        self.checkpoints = FakeCheckpoints()
        self.publisher = CheckpointPublisher(
            local, NODE, loop=loop, executor=self.executor, rng=random.Random(5)
        )
        self.tails = FakeTails()
        self.tail_points = FakeTailPoints()
        self.local_documents = LocalDocuments(
            CLUSTER,
            NODE,
            self.publisher,
            lambda group: None,
            self.compactor,
            loop=loop,
            executor=None,
            share_bits=6,
        )

    # What the controller's client, the table of leaders and the cluster epoch are to a broker.

    def current(self) -> int:
        return self.machine.cluster_epoch

    async def submit(self, command: Command, seconds: float) -> Any:
        return self.unavailable if self.unavailable is not None else await self.command(command)

    def leader_of(self, group: int) -> FakeLeader | None:
        replica = self.host.groups.get(group)
        return FakeLeader(NODE, replica.term) if replica is not None and replica.is_leader else None

    # Life.

    async def start(self, topics: dict[str, int]) -> None:
        self.host.open()
        self.host.create_group(0, self.machine, (NODE,))
        await self.host.start()
        await self.kafka.start([ListenAddress("127.0.0.1", 0)])
        await self.led(0)
        await self.command(Bootstrap(CLUSTER, "first"))
        await self.command(
            RegisterNode(NODE, BOOT, 0, "127.0.0.1", 9092, "127.0.0.1", 7101, 8080, 1, 1, 1, 7)
        )
        for number, (name, partitions) in enumerate(topics.items(), 1):
            identity, made_at = number.to_bytes(16, "big"), self.machine.applied_index
            if coordinator_kind(name) is None:
                await self.command(CreateTopic(identity, name, partitions, 1, None, (), made_at))
            else:
                await self.command(CreateInternalTopic(identity, name, partitions, 1))
        for place in self.machine.group_changes(NODE, self.host.groups).create:
            if coordinator_kind(place.topic) is not None:
                self._host_coordinator(place)
                continue
            machine = PartitionStateMachine(place.creation_epoch, lambda index, state: None)
            group = self.host.create_group(place.group, machine, place.replicas)
            partition = FakePartition(group, machine, place.topic, place.partition, topic_id=place.topic_id)
            partition.fence.window = EpochWindow.recovered(1, machine.max_applied_epoch)
            self.partitions.append(partition)
        for hosted in [*self.partitions, *self.coordinators]:
            await self.led(hosted.group.id)

    def _host_coordinator(self, place: PartitionGroup) -> None:
        kind = GroupsMachine if coordinator_kind(place.topic) == GROUPS_KIND else TransactionsMachine
        machine = kind(lambda index, state: None)
        group = self.host.create_group(place.group, machine, place.replicas)
        self.coordinators.append(FakeCoordinator(group, FakePlace(place.topic, place.partition), machine))

    async def led(self, group: int) -> None:
        replica = self.host.groups[group]
        await until(lambda: replica.is_leader and replica.applied > 0)

    async def command(self, command: Command) -> Any:
        group = self.host.groups[0]
        outcome = await group.replicate(encode(command), group.term)
        assert isinstance(outcome, Applied), outcome
        return outcome.value

    async def stop(self) -> None:
        await self.kafka.stop(0.1)
        await self.batcher.close()
        await self.reader.close()
        await self.level_one_reader.close()
        await self.host.stop(0.0)
        self.executor.shutdown()


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        assert self.headers["content-type"] == "application/json", self
        return json.loads(self.body)


class Client:
    """Speaks plain bytes, so that a test can say what no library would."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def raw(self, data: bytes) -> bytes:
        """Everything that is answered until the other side closes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        try:
            return await reader.read(-1)
        finally:
            writer.close()

    async def ask(
        self, method: str, target: str, body: bytes = b"", kind: str = "application/json"
    ) -> Answer:
        head = f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        if body:
            head += f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        return parsed(await self.raw(head.encode() + b"\r\n" + body))

    async def get(self, target: str) -> Any:
        answer = await self.ask("GET", target)
        assert answer.status == 200, answer
        return answer.json()


def parsed(data: bytes) -> Answer:
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return Answer(int(first.split()[1]), headers, body)


@asynccontextmanager
async def small_node(
    folder: Path, topics: dict[str, int] | None = None
) -> AsyncIterator[tuple[SmallNode, AdminServer, Client]]:
    node = SmallNode(folder)
    server = AdminServer(node, "127.0.0.1", 0)
    try:
        await node.start({"orders": 3, "returns": 1} if topics is None else topics)
        await server.start()
        yield node, server, Client(server.port)
    finally:
        await server.stop()
        await node.stop()
