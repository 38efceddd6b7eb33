"""All groups of one node on one event loop: one write-ahead log, one mesh, one timer, one turn at a time.

What comes in during a turn of the loop is written with one sync and leaves in one frame for each peer.
Nothing that tells of unsynced state is sent before the sync has returned. An idle group costs nothing: the
timer looks at active groups only, and one heartbeat for each pair of nodes stands for all the quiet ones.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from node.raft.config import RaftConfig
from node.raft.disk import Disk
from node.raft.group import RaftGroup
from node.raft.journal import JournalDamaged
from node.raft.messages import BadMessage, check
from node.raft.outbox import FRAME_BYTES, Outbox
from node.raft.pairs import Pair
from node.raft.pysyncobj_seam import LEADER, check_internals
from node.raft.quiet_heartbeats import QuietHeartbeats
from node.raft.retention import SegmentUse
from node.raft.snapshot_store import SnapshotStore
from node.raft.stored_groups import StoredGroups
from node.raft.transport import Mesh, MeshConfig, MeshProblem
from node.raft.wal import Kind, WalConfig, WalError, WalFailed, WriteAheadLog
from node.raft.wal_format import REPLACE
from node.raft.wal_segment import was_started
from statemachine.machine import StateMachine

log = logging.getLogger(__name__)

_RETENTION_SECONDS = 1.0
_FRAMING_BYTES = 1024
"""What is around one entry or chunk at most. A run of tiny entries takes up to three times their size."""


@dataclass(frozen=True, slots=True)
class HostSettings:
    """Who a node is, where it listens and keeps its data, and the limits of its parts."""

    node_id: int
    cluster_id: str
    secret: bytes
    boot_id: int
    folder: str
    listen_host: str = "127.0.0.1"
    listen_port: int = 0
    raft: RaftConfig = field(default_factory=RaftConfig)
    wal: WalConfig = field(default_factory=WalConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)

    def __post_init__(self) -> None:
        """Raise ValueError when the log takes what the mesh could never pass on."""
        raft = self.raft
        run = max(raft.max_entry_bytes, 3 * raft.max_append_bytes)
        needed = max(run, raft.snapshot_chunk_bytes, FRAME_BYTES) + _FRAMING_BYTES
        if self.mesh.max_frame_bytes < needed:
            raise ValueError(
                f"mesh max_frame_bytes is {self.mesh.max_frame_bytes} and {needed} is needed for what"
                " max_entry_bytes, max_append_bytes and snapshot_chunk_bytes allow: raise it, or lower them"
            )


class RaftHost:
    """The replicated log of one node. Everything but `open` belongs on `loop`.

    `on_fatal(error)` is called once when the node must stop (its disk failed, its id is used twice);
    `on_group_failed(group, error)` when one replica stopped and the others go on.
    """

    group_class = RaftGroup
    stored_class = StoredGroups

    def __init__(
        self,
        settings: HostSettings,
        *,
        loop: asyncio.AbstractEventLoop,
        disk: Disk,
        wal_executor: Executor | None,
        snapshot_executor: Executor | None,
        rng: random.Random,
        nonces: random.Random,
        on_fatal: Callable[[Exception], None],
        on_group_failed: Callable[[RaftGroup, Exception], None],
    ) -> None:
        check_internals()
        self.settings = settings
        self.node_id = settings.node_id
        self.cluster_id = settings.cluster_id
        self.config = settings.raft
        self.loop = loop
        self.rng = rng
        self.disk = disk
        self.groups: dict[int, RaftGroup] = {}
        self.on_problem: Callable[[MeshProblem], None] = lambda problem: log.warning("%s", problem)
        self._on_fatal = on_fatal
        self._on_group_failed = on_group_failed
        self._wal_executor = wal_executor
        self._snapshot_executor = snapshot_executor
        self._use = SegmentUse()
        self._stored = self.stored_class(self._use)
        self._active: dict[int, RaftGroup] = {}
        self._dirty: dict[int, RaftGroup] = {}
        self._turn_scheduled = False
        self._records: deque[tuple[int, int, Kind, int]] = deque()
        self._after_sync: deque[tuple[int, Callable[[], object]]] = deque()
        self._last_lsn: dict[int, int] = {}
        self._unwritten_bytes = 0
        self._backlog_limit = settings.wal.max_buffered_bytes // 2
        self._stalled = False
        self._clock_behind = 0.0
        self._newest = loop.time()
        self._last_tick = self._newest
        self._retention_at = 0.0
        self._ticker: asyncio.TimerHandle | None = None
        self._stopped = False
        self._takers: dict[int, Callable[[int, list[Any]], None]] = {}
        self._peer_watchers: list[tuple[Callable[[int], None], Callable[[int], None]]] = []
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
            on_frame=self._on_frame,
            on_connect=self._on_connect,
            on_disconnect=self._on_disconnect,
            on_problem=self._on_mesh_problem,
        )
        self._outbox = Outbox(self.mesh)
        self._quiet = QuietHeartbeats(self)

    # Opening, starting, stopping.

    def open(self) -> None:
        """Recover the write-ahead log and find the snapshots; blocking.

        Raises WalError or JournalDamaged, naming the file, when what is stored cannot be trusted.
        """
        folder, snapshots = self.settings.folder, f"{self.settings.folder}/snapshots"
        self.disk.mkdir(folder)
        # This folder is made once there is a log, and touched only by who holds the log's lock.
        if self.disk.exists(snapshots) and not was_started(self.disk, f"{folder}/wal"):
            raise WalError(
                f"{folder}/wal holds no log while {snapshots} exists: the write-ahead log is missing and this"
                f" node's votes with it: bring it back, or {REPLACE}"
            )
        try:
            self._open_log()
        except JournalDamaged as error:
            raise JournalDamaged(f"{folder}/wal: {error}; {REPLACE}") from error
        self.snapshots = SnapshotStore(self.disk, snapshots, self.cluster_id)
        self._stored.find_snapshots(self.snapshots)

    def _open_log(self) -> None:
        folder = self.settings.folder
        self.wal = WriteAheadLog.open(
            self.disk,
            f"{folder}/wal",
            loop=self.loop,
            executor=self._wal_executor,
            node_id=self.node_id,
            cluster_id=self.cluster_id,
            config=self.settings.wal,
            rng=self.rng,
            replay=self._stored.replay,
        )
        self.wal.on_synced = self._on_synced
        self.wal.on_failed = self._on_wal_failed
        self.wal.on_stall = lambda error: log.error(
            "write-ahead log: %s: waiting for space: free some, it goes on by itself", error
        )
        self._stored.finish()

    async def start(self) -> None:
        """Listen, connect to the peers and let time run."""
        await self.mesh.start()
        self._last_tick = self.now()
        self._tick()
        # Nobody stands for anything before this node can be heard; those that came before begin now.
        for group in list(self.groups.values()):
            self.guard(group, group.begin)

    async def stop(self, hand_over_seconds: float = 2.0) -> None:
        """Hand leadership over, end every pending command, sync and close."""
        await self.hand_over(hand_over_seconds)
        self._stopped = True
        if self._ticker is not None:
            self._ticker.cancel()
        for group in self.groups.values():
            group.stop(None, "the node is stopping")
        self._turn()
        await self.mesh.close()
        await self.wal.close()

    async def hand_over(self, seconds: float) -> None:
        """Give away what this node leads, for up to so many seconds; it may be elected again afterwards."""
        deadline = self.loop.time() + seconds
        while self.loop.time() < deadline:
            led = [group for group in self.groups.values() if group.is_leader and len(group.voters) > 1]
            for group in led:
                group.transfer()
            if not any(group.transfer_target for group in led):
                return
            await asyncio.sleep(self.config.heartbeat_seconds / 4)

    def halt(self, error: Exception) -> None:
        """Stop at once: nothing this node says can be trusted any more."""
        if self._stopped:
            return
        self._stopped = True
        if self._ticker is not None:
            self._ticker.cancel()
        for group in self.groups.values():
            group.stop(error, f"the node stopped: {error}")
        self._on_fatal(error)

    def _on_wal_failed(self, error: Exception) -> None:
        where = f"{self.settings.folder}/wal"
        self.halt(
            WalFailed(f"{where}: {error}: mend the disk, then start this node again on the same folder")
        )

    def _on_mesh_problem(self, problem: MeshProblem) -> None:
        self.on_problem(problem)
        if problem.fatal:
            self.halt(RuntimeError(str(problem)))

    # Peers and groups.

    def set_peer(self, node_id: int, host: str, port: int) -> None:
        """Where another node listens."""
        self.mesh.set_peer(node_id, host, port)

    def take_frames(self, kind: int, taker: Callable[[int, list[Any]], None]) -> None:
        """Hand frames `[kind, ...]` to `taker(peer, frame)`, which raises BadMessage for a malformed one."""
        self._takers[kind] = taker

    def watch_peers(self, on_connect: Callable[[int], None], on_disconnect: Callable[[int], None]) -> None:
        """Call back when a peer's connection is there and when it is gone."""
        self._peer_watchers.append((on_connect, on_disconnect))

    def create_group(
        self,
        group_id: int,
        machine: StateMachine,
        voters: tuple[int, ...] = (),
        first_leader: int | None = None,
    ) -> RaftGroup:
        """Take part in a group: with what is stored of it, or anew.

        `voters` bootstraps a group that no node has yet, the same on all of them; a node that joins an
        existing group gives none and learns the members from the leader. `first_leader`, one of the voters
        and the same on all nodes, leads a group that never had a leader without waiting for a time-out.
        Blocking: it reads the snapshot.
        """
        if group_id in self.groups:
            raise ValueError(f"group {group_id} exists on this node already")
        stored = self._stored.claim(
            group_id,
            machine,
            voters,
            self.snapshots,
            partial(self._record, group_id),
            self.config.max_append_bytes,
        )
        group = self.group_class(self, group_id, machine, stored.journal, stored.base, first_leader)
        group.note_configurations(stored.memberships)
        if stored.document is not None:
            group.remember_snapshot(stored.document)
        group.damaged_below = stored.damaged_below
        self.groups[group_id] = group
        self.set_active(group, True)
        self.wake(group)
        if self._ticker is not None:
            group.begin()
        return group

    def stored_groups(self) -> list[int]:
        """Groups that the disk holds and that were not created since the start.

        Each keeps its part of the write-ahead log until it is created or removed.
        """
        return self._stored.unclaimed()

    def remove_group(self, group_id: int) -> None:
        """Leave a group, or let go of a stored one, and forget what is stored of it."""
        group = self.groups.pop(group_id, None)
        if not self._stored.forget(group_id) and group is None:
            raise ValueError(f"there is no group {group_id} on this node")
        if group is not None:
            group.stop(None, "the replica was removed from this node")
        self._dirty.pop(group_id, None)
        self._record(group_id, Kind.FORGET, b"")
        self._last_lsn.pop(group_id, None)
        self.run_blocking(partial(self.snapshots.drop, group_id, None), _log_error)
        self._schedule()

    # What groups need (GroupHost).

    def now(self) -> float:
        """Seconds, never going backward even if the loop's clock does.

        A clock that was set back does not say how long ago it was: as long as a vote may have taken, so that
        no lease outlives it.
        """
        seen = self.loop.time() + self._clock_behind
        if seen < self._newest:
            lost = self._newest - seen + self.config.election_min_seconds
            self._clock_behind += lost
            seen += lost
        self._newest = seen
        return seen

    def connected(self, peer: int) -> bool:
        return self.mesh.connected(peer)

    def pair(self, peer: int) -> Pair:
        return self._quiet.pair(peer)

    def backlogged(self) -> bool:
        """More waits for the disk than should: new work is refused until some of it is written."""
        return self._stalled or self.wal.buffered_bytes + self._unwritten_bytes > self._backlog_limit

    def disk_stalled(self) -> bool:
        """As of the last tick the disk had not finished a write for two election timeouts: do not lead."""
        return self._stalled

    def note_unwritten(self, size: int) -> None:
        self._unwritten_bytes += size

    def send(self, peer: int, message: list[Any]) -> bool:
        """Put a message into this turn's frame for a peer; false when it cannot leave."""
        self._schedule()
        return self._outbox.put(peer, message)

    def send_when_synced(self, peer: int, message: list[Any]) -> None:
        """Send once everything that the message's group recorded so far is durable.

        Another group's write holds nothing up: a slow disk must not make a leader look dead for it.
        """
        if self._last_lsn.get(message[0], 0) <= self.wal.synced_lsn:
            self.send(peer, message)
        else:
            self._after_sync.append((self.wal.tail_lsn, partial(self.send, peer, message)))
            self._schedule()

    def when_synced(self, callback: Callable[[], None]) -> None:
        """Call back once everything recorded so far is durable."""
        self._after_sync.append((self.wal.tail_lsn, callback))
        self._schedule()

    def run_blocking(self, job: Callable[[], Any], done: Callable[[Any, Exception | None], None]) -> None:
        """Run a disk job off the loop, in order, and call back on the loop with its result or error."""

        def finished(future: asyncio.Future[Any]) -> None:
            if self._stopped:
                return
            error = future.exception()
            if error is not None and not isinstance(error, OSError | ValueError):
                self.halt(RuntimeError(f"a disk job failed: {error!r}"))
                return
            assert error is None or isinstance(error, Exception)
            done(None if error is not None else future.result(), error)
            self._schedule()

        self.loop.run_in_executor(self._snapshot_executor, job).add_done_callback(finished)

    def later(self, seconds: float, group: RaftGroup, call: Callable[[], object]) -> None:
        """Call a group back after some time, if it still takes part then."""

        def due() -> None:
            if not self._stopped and self.groups.get(group.id) is group:
                self.guard(group, call)

        self.loop.call_later(seconds, due)

    def wake(self, group: RaftGroup) -> None:
        """Let a group do its work at the end of this turn."""
        self._dirty[group.id] = group
        self._schedule()

    def set_active(self, group: RaftGroup, active: bool) -> None:
        """Whether the timer looks at the group."""
        if active:
            self._active[group.id] = group
        else:
            self._active.pop(group.id, None)

    def _record(self, group: int, kind: Kind, payload: bytes) -> int:
        lsn = self.wal.append(group, kind, payload)
        known = self.groups.get(group)
        last = known.journal.last if known is not None else 0
        self._records.append((lsn, group, kind, last))
        self._last_lsn[group] = lsn
        self._schedule()
        return lsn

    # The turn.

    def _schedule(self) -> None:
        if not self._turn_scheduled:
            self._turn_scheduled = True
            self.loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_scheduled = False
        dirty, self._dirty = self._dirty, {}
        for group in dirty.values():
            self.guard(group, group.work)
        self._unwritten_bytes = 0
        if self.wal.synced_lsn < self.wal.tail_lsn:
            self.wal.flush()
        elif self._after_sync:
            self._release_synced()
        self._outbox.flush()

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
                group.nominate()
            group.stop(error, f"the replica stopped: {error}")
            self._on_group_failed(group, error)

    def _on_synced(self, lsn: int, segment: int) -> None:
        touched: dict[int, None] = {}
        while self._records and self._records[0][0] <= lsn:
            _, group, kind, last = self._records.popleft()
            self._use.note(segment, group, kind, last)
            touched[group] = None
        for group_id in touched:
            known = self.groups.get(group_id)
            if known is not None:
                self.guard(known, known.on_synced, lsn)
        self._release_synced()
        self._turn()

    def _release_synced(self) -> None:
        while self._after_sync and self._after_sync[0][0] <= self.wal.synced_lsn:
            self._after_sync.popleft()[1]()

    # Time.

    def _tick(self) -> None:
        self._ticker = self.loop.call_later(self.config.heartbeat_seconds / 2, self._tick)
        now = self.now()
        self._notice_gap(now)
        self._last_tick = now
        since = self.wal.stalled_since
        self._stalled = since is not None and self.loop.time() - since > 2 * self.config.election_max_seconds
        self._quiet.tick(now)
        for group in list(self._active.values()):
            self.guard(group, group.tick, now)
        if now >= self._retention_at:
            self._retention_at = now + _RETENTION_SECONDS
            self._retain()

    def _notice_gap(self, now: float) -> None:
        """Promise anew what was promised before a pause or a jump of the clock.

        A frame may be the first to come after a jump: judged by the old promises, its sender would get a vote
        while the leader's lease still runs.
        """
        gap = now - self._last_tick
        if gap > self.config.time_gap_seconds:
            self._last_tick = now
            log.warning("the event loop did not run for %.2f s, or the clock jumped", gap)
            for group in list(self.groups.values()):
                self.guard(group, group.on_time_gap, now)

    def _retain(self) -> None:
        """Drop the segments nobody needs; when there are too many, move along whoever pins the oldest."""
        first, current = self.wal.first_segment, self.wal.current_segment
        if current == first:
            return
        needed = self._use.first_needed(first, current, self._covered)
        if needed > first:
            self.wal.may_drop_before(needed)
        if current - needed < self.config.max_wal_segments:
            return
        for group_id in self._use.pinned_by_entries(needed, self._covered):
            group = self.groups.get(group_id)
            if group is not None:
                self.guard(group, group.take_snapshot)
        for group_id in self._use.pinned_by_metadata(needed):
            group = self.groups.get(group_id)
            if group is not None:
                self.guard(group, group.record_again)

    def _covered(self, group_id: int) -> int:
        group = self.groups.get(group_id)
        return group.snapshot_index if group is not None else 0

    # The mesh.

    def _on_frame(self, peer: int, payload: Any) -> None:
        if self._stopped:
            return
        self._notice_gap(self.now())
        if type(payload) is not list or not payload:
            raise BadMessage("frame is not an array")
        if payload[0] != 0:
            taker = self._takers.get(payload[0]) if type(payload[0]) is int else None
            if taker is not None:
                taker(peer, payload)
            else:
                self._quiet.on_frame(peer, payload)
            return
        if len(payload) != 2 or type(payload[1]) is not list:
            raise BadMessage("frame of messages has a wrong shape")
        for message in payload[1]:
            check(message)
            group = self.groups.get(message[0])
            if group is not None:
                self.guard(group, group.receive, peer, message)

    def _on_connect(self, peer: int) -> None:
        for group in list(self.groups.values()):
            self.guard(group, group.on_connect, peer)
        for connected, _ in self._peer_watchers:
            connected(peer)

    def _on_disconnect(self, peer: int) -> None:
        self._outbox.drop(peer)
        for group in list(self.groups.values()):
            self.guard(group, group.on_disconnect, peer)
        for _, disconnected in self._peer_watchers:
            disconnected(peer)

    def leaders(self) -> dict[int, int | None]:
        """For every group the node it believes leads it."""
        return {
            group_id: self.node_id if group.role == LEADER else group.leader
            for group_id, group in self.groups.items()
        }


def _log_error(_: Any, error: Exception | None) -> None:
    if error is not None:
        log.warning("%s", error)
