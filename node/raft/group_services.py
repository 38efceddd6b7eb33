"""A node's services to its groups: time, turns of the loop, messages, records, disk jobs (`GroupHost`)."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

from strandline.node.raft.attention import Attention
from strandline.node.raft.bad_message import BadMessage
from strandline.node.raft.campaigns import Campaigns
from strandline.node.raft.clock import HostClock
from strandline.node.raft.data_folder import Folder
from strandline.node.raft.group import RaftGroup
from strandline.node.raft.host_settings import HostSettings
from strandline.node.raft.log_retention import LogRetention
from strandline.node.raft.mesh.mesh import Mesh, MeshProblem
from strandline.node.raft.mesh.outbox import Outbox
from strandline.node.raft.peer_traffic import PeerTraffic
from strandline.node.raft.rank import Rank
from strandline.node.raft.records import Records
from strandline.node.raft.rules.messages import Message
from strandline.node.raft.rules.peer_heartbeat import PeerHeartbeat
from strandline.node.raft.rules.shared_heartbeats import SharedHeartbeats
from strandline.node.raft.snapshots.store import SnapshotStore
from strandline.node.raft.stored_groups import StoredGroups
from strandline.node.raft.ticker import TURN_GROUPS, Ticker
from strandline.node.raft.wal.carrying import Carrying
from strandline.node.raft.wal.format import RecordKind
from strandline.node.raft.wal.segment_use import SegmentUse
from strandline.node.raft.wal.write_ahead_log import WriteAheadLog

log = logging.getLogger(__name__)

_CROWD_SECONDS = 0.0002
"""Seconds that each group adds to a limit on work that all groups do at the same time, such as elections."""
_CROWDED_RECORDS = 512
"""Records that wait for the disk; a few syncs' worth."""
_CROWDED_GROUPS = 1024
"""Groups that are not settled: their elections and heartbeats take a good part of a processor."""


class GroupServices:
    """The parts of a node that its groups share, and one turn of the loop after the other."""

    stored_class = StoredGroups

    folder: Folder
    snapshots: SnapshotStore
    wal: WriteAheadLog
    now: Callable[[], float]
    attentive: Callable[[], float]
    set_active: Callable[[RaftGroup, bool], None]
    backlogged: Callable[[], bool]

    def __init__(
        self,
        settings: HostSettings,
        *,
        loop: asyncio.AbstractEventLoop,
        snapshot_executor: Executor | None,
        rng: random.Random,
        nonces: random.Random,
        on_fatal: Callable[[Exception], None],
        on_group_failed: Callable[[RaftGroup, Exception], None],
    ) -> None:
        self.settings = settings
        self.node_id = settings.node_id
        self.cluster_id = settings.cluster_id
        self.config = settings.raft
        self.loop = loop
        self.rng = rng
        self.groups: dict[int, RaftGroup] = {}
        self.reading: dict[int, RaftGroup] = {}
        self.leaving = False
        self.stopped = False
        self.on_problem: Callable[[MeshProblem], None] = lambda problem: log.warning("%s", problem)
        self.on_groups_changed: Callable[[], None] = lambda: None
        """Called when a group has come, or gone."""
        self._on_fatal = on_fatal
        self._on_group_failed = on_group_failed
        self._snapshot_executor = snapshot_executor
        self._dirty: dict[int, RaftGroup] = {}
        self._turn_scheduled = False
        self._untaken = False
        """Whether anything was sent, recorded or asked for that no turn has taken up yet."""
        self.clock = HostClock(loop, self.config)
        use = SegmentUse()
        self.stored = self.stored_class(use)
        self.carrying = Carrying(
            stuck_seconds=self.config.stuck_seconds, part_bytes=self.config.max_append_bytes
        )
        self.retention = LogRetention(self, use, self.carrying)
        self.campaigns = Campaigns(self.config.election_max_seconds)
        self.ticker = Ticker(self)
        self.records = Records(self, use, settings.wal.max_buffered_bytes)
        self.peer_traffic = PeerTraffic(self, loop)
        self.mesh = Mesh(
            loop=loop,
            node_id=settings.node_id,
            cluster_id=settings.cluster_id,
            secret=settings.secret,
            boot_id=settings.boot_id,
            listen_host=settings.listen_host,
            listen_port=settings.listen_port,
            config=settings.mesh,
            rng=nonces,
            on_frame=self.peer_traffic.on_frame,
            on_connect=self.peer_traffic.on_connect,
            on_disconnect=self.peer_traffic.on_disconnect,
            on_problem=self._on_mesh_problem,
            tls=settings.tls,
        )
        self.outbox = Outbox(self.mesh)
        self.heartbeats = SharedHeartbeats(self)
        # The parts' own methods: each is called many times in every turn.
        self.now, self.attentive = self.clock.now, self.clock.attentive
        self.set_active, self.backlogged = self.ticker.set_active, self.records.backlogged

    def halt(self, error: Exception) -> None:
        """Stop at once: nothing this node says can be trusted any more."""
        if self.stopped:
            return
        self.stopped = True
        self.ticker.stop()
        for group in self.groups.values():
            group.stop(error, f"the node stopped: {error}")
        self._on_fatal(error)

    @property
    def attention(self) -> Attention:
        """Measure of the time in which this node's loop runs."""
        return self.clock.attention

    @property
    def time_gap(self) -> tuple[float, float]:
        """Between which times the loop last did not run, or the clock jumped."""
        return self.clock.time_gap

    def is_newcomer(self, peer: int) -> bool:
        """Whether a peer said so of itself when it was last connected."""
        return self.peer_traffic.is_newcomer(peer)

    def folder_of(self, node: int) -> int:
        """Identity of a node's data folder, this one's included; 0 if it is not known."""
        if node == self.node_id:
            return self.folder.id
        known = self.folder.known.get(node)
        return 0 if known is None else known.folder

    def offered_pre_votes(self, group: int) -> list[int]:
        """Peers that offered a pre-vote for this group's first leader before the group was here."""
        return self.peer_traffic.offered_pre_votes(group)

    def send_when_synced(self, peer: int, message: Message) -> None:
        """Send once everything that the message's group recorded so far is durable."""
        self.records.send_when_durable(peer, message)

    def when_synced(self, callback: Callable[[], None]) -> None:
        """Call back once everything recorded so far is durable."""
        self.records.when_synced(callback)

    def record(self, group: int, kind: RecordKind, payload: bytes) -> int:
        """Append one record of a group to the log; its LSN."""
        return self.records.add(group, kind, payload)

    def half_backlogged(self) -> bool:
        """Whether half as much waits for the disk as makes a node refuse commands, or the disk hangs."""
        return self.records.half_backlogged()

    def connected(self, peer: int) -> bool:
        return self.mesh.connected(peer)

    @property
    def newcomer(self) -> bool:
        """Whether this node's folder may have had a predecessor, and so neither votes nor counts."""
        return self.folder.newcomer

    def peer_heartbeat(self, peer: int) -> PeerHeartbeat:
        return self.heartbeats.pair(peer)

    def crowd_seconds(self) -> float:
        """Seconds to add to a limit on work that takes longer with more groups."""
        return len(self.groups) * _CROWD_SECONDS

    def crowded(self) -> bool:
        """Whether so much waits for the disk or an election that new groups should come later."""
        waiting = self.wal.tail_lsn - self.wal.synced_lsn
        return waiting > _CROWDED_RECORDS or len(self.ticker.active) > _CROWDED_GROUPS

    def admit_campaign(self, group: RaftGroup) -> bool:
        """Whether a group may begin an election now; if not it asks again soon."""
        now = self.now()
        return self.campaigns.admit(group.id, group.rank, now, late=self.ticker.late(now))

    def campaign_ended(self, group: RaftGroup) -> None:
        """A group's election is over, or never began."""
        self.campaigns.ended(group.id)
        if self.campaigns.line:
            self.schedule()

    def admit_waiting(self) -> None:
        """Let groups that wait in line stand for election, as far as there are places."""
        now = self.now()
        while (waiting := self.campaigns.next_in_line(now, late=self.ticker.late(now))) is not None:
            group_id, deadline = waiting
            group = self.groups.get(group_id)
            if group is not None:
                self.guard(group, group.timeouts.place_is_free, deadline)

    def disk_stalled(self) -> bool:
        """As of the last tick the disk had not finished a write for two election timeouts: do not lead."""
        return self.ticker.stalled

    def send(self, peer: int, message: Message) -> bool:
        """Put a message into this turn's frame for a peer; false when it cannot leave."""
        self.schedule()
        return self.outbox.put(peer, message)

    def run_blocking(self, job: Callable[[], Any], done: Callable[[Any, Exception | None], None]) -> None:
        """Run a disk job off the loop, in order, and call back on the loop with its result or error."""

        def finished(future: asyncio.Future[Any]) -> None:
            if self.stopped:
                return
            error = future.exception()
            if error is not None and not isinstance(error, OSError | ValueError):
                self.halt(RuntimeError(f"a disk job failed: {error!r}"))
                return
            assert error is None or isinstance(error, Exception)
            done(None if error is not None else future.result(), error)
            self.schedule()

        self.loop.run_in_executor(self._snapshot_executor, job).add_done_callback(finished)

    def later(self, seconds: float, group: RaftGroup, call: Callable[[], object]) -> None:
        """Call a group back after some time, if it still takes part then."""

        def due() -> None:
            if not self.stopped and self.groups.get(group.id) is group:
                self.guard(group, call)

        self.loop.call_later(seconds, due)

    def wake(self, group: RaftGroup) -> None:
        """Let a group do its work at the end of this turn."""
        self._dirty[group.id] = group
        self.schedule()

    def appended(self, group: RaftGroup, size: int) -> None:
        """A leader's log has a new entry of this many bytes. One call, because each command makes it."""
        self.records.unwritten_bytes += size
        self.ticker.active[group.id] = group
        self._dirty[group.id] = group
        if not self._turn_scheduled:
            self.schedule()

    def schedule(self) -> None:
        self._untaken = True
        if not self._turn_scheduled:
            self._turn_scheduled = True
            self.loop.call_soon(self.turn)

    def turn(self) -> None:
        self._turn_scheduled = False
        if not (self._untaken or self._dirty or self.campaigns.line):
            # The turn before took up all that came in while it ran.
            self.heartbeats.tell_changes()
            return
        dirty, self._dirty = self._dirty, {}
        if len(dirty) > TURN_GROUPS:
            # The rest in the next turn, behind work that came in meanwhile.
            work = sorted(dirty.values(), key=_rank)
            self._dirty = {group.id: group for group in work[TURN_GROUPS:]}
            dirty = {group.id: group for group in work[:TURN_GROUPS]}
            self.schedule()
        for group in dirty.values():
            self.guard(group, group.work)
        # What that has sent and recorded leaves below.
        self._untaken = False
        if not self._dirty:
            self.records.unwritten_bytes = 0
        if self.campaigns.line:
            self.admit_waiting()
        self.heartbeats.tell_changes()
        self.records.settle()
        self.outbox.flush()

    def guard(self, group: RaftGroup, call: Callable[..., object], *args: Any) -> None:
        """A replica that fails stops alone; a peer's malformed message is the peer's fault.

        One that was removed is not called back: a snapshot stored late must not be recorded behind its end.
        """
        if group.failure is not None or self.groups.get(group.id) is not group:
            return
        try:
            call(*args)
        except BadMessage:
            raise
        except Exception as error:
            log.critical("group %d stopped on this node: %s", group.id, error, exc_info=True)
            if group.is_leader:
                group.leadership_transfer.nominate()
            group.stop(error, f"the replica stopped: {error}")
            self._on_group_failed(group, error)

    def by_rank(self) -> list[RaftGroup]:
        return sorted(self.groups.values(), key=_rank)

    def _on_mesh_problem(self, problem: MeshProblem) -> None:
        self.on_problem(problem)
        if problem.fatal:
            self.halt(RuntimeError(str(problem)))


def _rank(group: RaftGroup) -> Rank:
    return group.rank
