"""A `GroupHost` that does nothing by itself: what it is asked for waits until a test lets it happen."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import msgpack

from strandline.node.raft.attention import Attention
from strandline.node.raft.campaigns import Campaigns
from strandline.node.raft.config import RaftConfig
from strandline.node.raft.group import RaftGroup
from strandline.node.raft.rules.messages import Message, MessageKind, decode
from strandline.node.raft.rules.peer_heartbeat import PeerHeartbeat
from strandline.node.raft.rules.progress import NEVER
from strandline.node.raft.rules.shared_heartbeats import SharedHeartbeats
from strandline.node.raft.snapshots.store import SnapshotStore
from strandline.node.raft.wal.write_ahead_log import RecordKind
from tests.runtime.manual_loop import ManualLoop
from tests.simulation.disk import SimDisk

CLUSTER = "c"
FOLDER = "/snapshots"


class Sent(NamedTuple):
    """A message as it left: the fields are those after group, kind and term."""

    peer: int
    kind: MessageKind
    term: int
    fields: tuple[Any, ...]


class FakeMesh:
    """Keeps the frames of pairs of nodes, those that belong to no group."""

    def __init__(self, away: set[int]) -> None:
        self._away = away
        self.frames: list[tuple[int, list[Any]]] = []

    def send(self, peer: int, payload: list[Any]) -> bool:
        if peer in self._away:
            return False
        self.frames.append((peer, payload))
        return True


class FakeHost:
    """A `GroupHost` for one group. Records are durable after `sync()`; disk jobs run in `run_jobs()`."""

    def __init__(self, node_id: int, loop: ManualLoop, config: RaftConfig, disk: SimDisk) -> None:
        self.node_id = node_id
        self.cluster_id = CLUSTER
        self.config = config
        self.rng = random.Random(node_id)
        self.loop = loop
        self.disk = disk
        self.snapshots = SnapshotStore(disk, FOLDER, CLUSTER)
        self.group: RaftGroup
        self.records: list[tuple[RecordKind, bytes]] = []
        self.synced_lsn = 0
        self.sent: list[Sent] = []
        self.history: list[Sent] = []
        """All that was ever sent."""
        self.away: set[int] = set()
        self.newcomer = False
        self.leaving = False
        self.newcomers: set[int] = set()
        self.folders: dict[int, int] = {}
        self.full = False
        self.stalled = False
        self.active = True
        self.awake = False
        self.campaigns = Campaigns(config.election_max_seconds)
        self.jobs: deque[tuple[Callable[[], Any], Callable[[Any, Exception | None], None]]] = deque()
        self.groups: dict[int, RaftGroup] = {}
        self.mesh = FakeMesh(self.away)
        self.heartbeats = SharedHeartbeats(self)
        # Time is moved by hand here, and a test that leaps over seconds means that nothing was heard.
        self.attention = Attention(loop.now, float("inf"))
        self.lost = 0.0
        """Seconds in which the loop stood still, so that the two clocks differ."""
        self.time_gap = (NEVER, NEVER)
        self.reading: dict[int, Any] = {}
        self.offers: dict[int, list[int]] = {}
        self._after_sync: deque[tuple[int, Callable[[], object]]] = deque()

    def now(self) -> float:
        return self.loop.now

    def attentive(self) -> float:
        return self.loop.now - self.lost

    def crowd_seconds(self) -> float:
        return 0.0

    def admit_campaign(self, group: Any) -> bool:
        return True

    def campaign_ended(self, group: Any) -> None:
        pass

    def offered_pre_votes(self, group: int) -> list[int]:
        return self.offers.pop(group, [])

    def connected(self, peer: int) -> bool:
        return peer not in self.away

    def is_newcomer(self, peer: int) -> bool:
        return peer in self.newcomers

    def folder_of(self, node: int) -> int:
        return self.folders.get(node, 0)

    def peer_heartbeat(self, peer: int) -> PeerHeartbeat:
        return self.heartbeats.pair(peer)

    def backlogged(self) -> bool:
        return self.full

    def disk_stalled(self) -> bool:
        return self.stalled

    def appended(self, group: Any, size: int) -> None:
        self.set_active(group, True)
        self.wake(group)

    def send(self, peer: int, message: Message) -> bool:
        if peer in self.away:
            return False
        decode(msgpack.unpackb(msgpack.packb(message)))
        sent = Sent(peer, MessageKind(message.kind), message.term, tuple(message[3:]))
        self.sent.append(sent)
        self.history.append(sent)
        return True

    def send_when_synced(self, peer: int, message: Message) -> None:
        if self.synced_lsn == len(self.records):
            self.send(peer, message)
        else:
            self._after_sync.append((len(self.records), partial(self.send, peer, message)))

    def when_synced(self, callback: Callable[[], None]) -> None:
        self._after_sync.append((len(self.records), callback))

    def run_blocking(self, job: Callable[[], Any], done: Callable[[Any, Exception | None], None]) -> None:
        self.jobs.append((job, done))

    def guard(self, group: Any, call: Callable[..., object], *args: Any) -> None:
        call(*args)

    def later(self, seconds: float, group: Any, call: Callable[[], object]) -> None:
        self.loop.call_later(seconds, call)

    def wake(self, group: Any) -> None:
        self.awake = True

    def set_active(self, group: Any, active: bool) -> None:
        self.active = active

    def record(self, kind: RecordKind, payload: bytes) -> int:
        self.records.append((kind, payload))
        return len(self.records)

    def sync(self) -> None:
        """All that is recorded becomes durable, and what waited for it happens."""
        self.synced_lsn = len(self.records)
        self.group.on_synced(self.synced_lsn)
        while self._after_sync and self._after_sync[0][0] <= self.synced_lsn:
            self._after_sync.popleft()[1]()

    @property
    def unsynced(self) -> bool:
        """Whether a sync has anything to do."""
        return self.synced_lsn < len(self.records) or bool(self._after_sync)

    def run_jobs(self) -> None:
        while self.jobs:
            job, done = self.jobs.popleft()
            try:
                result, error = job(), None
            except (OSError, ValueError) as problem:
                result, error = None, problem
            done(result, error)
