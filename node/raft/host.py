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

from strandline.node.raft.attention import Attention
from strandline.node.raft.bad_message import BadMessage
from strandline.node.raft.campaigns import Campaigns
from strandline.node.raft.config import RaftConfig
from strandline.node.raft.data_folder import NAME as FOLDER_FILE
from strandline.node.raft.data_folder import Folder, FolderKey
from strandline.node.raft.disk import Disk
from strandline.node.raft.gap_log import GapLog
from strandline.node.raft.group import RaftGroup
from strandline.node.raft.mesh.mesh import Mesh, MeshConfig, MeshProblem
from strandline.node.raft.mesh.outbox import FRAME_BYTES, Outbox
from strandline.node.raft.pysyncobj_seam import LEADER, check_internals
from strandline.node.raft.rank import Rank
from strandline.node.raft.rules.messages import Message, PreVoteReply, decode
from strandline.node.raft.rules.peer_heartbeat import PeerHeartbeat
from strandline.node.raft.rules.progress import NEVER
from strandline.node.raft.rules.shared_heartbeats import SharedHeartbeats
from strandline.node.raft.snapshots.store import SnapshotStore
from strandline.node.raft.stored_groups import StoredGroups
from strandline.node.raft.sweeps import Sweeps
from strandline.node.raft.wal.after_sync import AfterSync
from strandline.node.raft.wal.carrying import Carrying, GroupLog
from strandline.node.raft.wal.format import REPLACE
from strandline.node.raft.wal.raft_log import RaftLogDamaged
from strandline.node.raft.wal.segment import was_started
from strandline.node.raft.wal.segment_use import SegmentUse
from strandline.node.raft.wal.write_ahead_log import Kind, WalConfig, WalError, WalFailed, WriteAheadLog
from strandline.statemachine.machine import StateMachine

log = logging.getLogger(__name__)

_RETENTION_SECONDS = 1.0
_TURN_GROUPS = 256
"""Groups that work, or whose timer is looked at, in one turn: some ten milliseconds at most."""
_MANY_SECONDS = 0.0002
"""What one group adds to the time that is allowed for what all of them do at once, as an election."""
_HANDED_OVER_AT_ONCE = 64
_MOVED_AT_ONCE = 256
"""Groups that are snapshotted, or recorded again, in one round so that the oldest segment may go."""
_CROWDED_RECORDS = 512
"""Records that wait for the disk; a few syncs' worth."""
_CROWDED_GROUPS = 1024
"""Groups that are not settled: their elections and heartbeats take a good part of a processor."""
_MAX_OFFERS = 65_536
"""Pre-votes of one peer that are kept for groups which are not here yet."""
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
        """Raise ValueError when the log takes what the mesh, or the disk's buffer, could never pass on."""
        raft = self.raft
        run = max(raft.max_entry_bytes, 3 * raft.max_append_bytes)
        needed = max(run, raft.snapshot_chunk_bytes, FRAME_BYTES) + _FRAMING_BYTES
        if self.mesh.max_frame_bytes < needed:
            raise ValueError(
                f"mesh max_frame_bytes is {self.mesh.max_frame_bytes} and {needed} is needed for what"
                " max_entry_bytes, max_append_bytes and snapshot_chunk_bytes allow: raise it, or lower them"
            )
        needed = 2 * (run + _FRAMING_BYTES)
        if self.wal.max_buffered_bytes < needed:
            raise ValueError(
                f"wal max_buffered_bytes is {self.wal.max_buffered_bytes} and {needed} is needed for what"
                " max_entry_bytes and max_append_bytes allow: raise it, or lower them"
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
        self.created = 0
        """Groups that ever came in this process."""
        self.on_problem: Callable[[MeshProblem], None] = lambda problem: log.warning("%s", problem)
        self._on_fatal = on_fatal
        self._on_group_failed = on_group_failed
        self._wal_executor = wal_executor
        self._snapshot_executor = snapshot_executor
        self._use = SegmentUse()
        self.carrying = Carrying(
            stuck_seconds=settings.raft.stuck_seconds, part_bytes=settings.raft.max_append_bytes
        )
        self._stored = self.stored_class(self._use)
        self._active: dict[int, RaftGroup] = {}
        self._dirty: dict[int, RaftGroup] = {}
        self._turn_scheduled = False
        self._records: deque[tuple[int, int, Kind, int]] = deque()
        self._after_sync = AfterSync()
        self._last_lsn: dict[int, int] = {}
        self._unwritten_bytes = 0
        self._backlog_limit = settings.wal.max_buffered_bytes // 2
        self._stalled = False
        self._clock_behind = 0.0
        self._newest = loop.time()
        self._last_tick = self._newest
        self.attention = Attention(self._newest, self.config.heartbeat_seconds / 2)
        self.time_gap = (NEVER, NEVER)
        self._gap_log = GapLog()
        self.reading: dict[int, RaftGroup] = {}
        self._first: dict[int, RaftGroup] = {}
        """The groups whose timer is looked at in every tick, whatever else waits."""
        self._to_tick: deque[RaftGroup] = deque()
        self._sweeps = Sweeps(loop)
        self.campaigns = Campaigns(self.config.election_max_seconds)
        self._late_until = NEVER
        self._offers: dict[int, dict[int, None]] = {}
        self._retention_at = 0.0
        self._moved_lsn = 0
        self._rounds = 0
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
        self._newcomers: set[int] = set()
        self._outbox = Outbox(self.mesh)
        self.heartbeats = SharedHeartbeats(self)

    # Opening, starting, stopping.

    def open(self) -> None:
        """Recover the write-ahead log and find the snapshots; blocking.

        Raises WalError, RaftLogDamaged or FolderError, naming the file, when what is stored is not to be
        trusted.
        """
        folder, snapshots = self.settings.folder, f"{self.settings.folder}/snapshots"
        self.disk.mkdir(folder)
        # Both are made once there is a log, and touched only by the process that holds the log's lock.
        for path in (f"{folder}/{FOLDER_FILE}", snapshots):
            if self.disk.exists(path) and not was_started(self.disk, f"{folder}/wal"):
                raise WalError(
                    f"{folder}/wal holds no log while {path} exists: the write-ahead log is missing and this"
                    f" node's votes with it: bring it back, or {REPLACE}"
                )
        try:
            self._open_log()
        except RaftLogDamaged as error:
            raise RaftLogDamaged(f"{folder}/wal: {error}; {REPLACE}") from error
        self.folder = self.mesh.folder = Folder.open(
            self.disk, folder, self.node_id, self.cluster_id, self.rng, logged=self._stored.replayed
        )
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
            "write-ahead log: %s: the disk is full: free space; the node then continues by itself", error
        )
        self.wal.on_space = lambda: log.warning(
            "write-ahead log: the disk has space again: the node continues"
        )
        self._stored.finish()

    async def start(self) -> None:
        """Listen, connect to the peers and let time run."""
        await self.mesh.start()
        self._last_tick = self.now()
        self.attention = Attention(self._last_tick, self.config.heartbeat_seconds / 2)
        self._tick()
        # Nobody stands for anything before this node can be heard; those that came before begin now.
        for group in list(self.groups.values()):
            self.guard(group, group.timeouts.begin)

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
        """Give away what this node leads, for up to so many seconds; it may be elected again afterwards.

        A part at a time: thousands of elections at once would take the other nodes' leaders down with them.
        """
        deadline = self.loop.time() + seconds
        while self.loop.time() < deadline:
            led = [group for group in self._by_rank() if group.is_leader and len(group.voters) > 1]
            under_way = sum(group.transfer_target is not None for group in led)
            for group in led:
                if under_way >= _HANDED_OVER_AT_ONCE:
                    break
                under_way += group.transfer()
            if not under_way:
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

    # Folders.

    def give_vote(self, generation: int = 0, incarnation: str = "") -> None:
        """This node's folder has a vote from now on; keep what the controller says of it. Raises OSError."""
        self.folder.settle(votes=True, generation=generation, incarnation=incarnation)
        if self.folder.newcomer:
            self.folder.newcomer = False
            self.mesh.reconnect()

    def know_folders(self, known: dict[int, FolderKey]) -> None:
        """The controller says which folder each of these nodes has.

        Raises OSError when that cannot be noted; folders that are in force no more are let go of anyway.
        """
        try:
            self.folder.learn(known)
        finally:
            self.mesh.judge_again()

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
        rank: Rank = Rank.PARTITION,
    ) -> RaftGroup:
        """Take part in a group: with what is stored of it, or anew.

        `voters` bootstraps a group that no node has yet, the same on all of them; a node that joins an
        existing group gives none and learns the members from the leader. `first_leader`, one of the voters
        and the same on all nodes, leads a group that never had a leader without waiting for a time-out.
        `rank` says whose work and elections come first on a node that has too much to do.
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
        group = self.group_class(self, group_id, machine, stored.journal, stored.base, first_leader, rank)
        group.configuration_log.note(stored.memberships)
        if stored.document is not None:
            group.taking.remember(stored.document)
        group.damaged_below = stored.damaged_below
        self.groups[group_id] = group
        self.created += 1
        if rank is not Rank.PARTITION:
            self._first[group_id] = group
        self.set_active(group, True)
        self.wake(group)
        if self._ticker is not None:
            group.timeouts.begin()
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
        self._first.pop(group_id, None)
        self.campaigns.ended(group_id)
        self._record(group_id, Kind.FORGET, b"")
        self.carrying.forget(group_id)
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

    def attentive(self) -> float:
        """`now` on a clock that stands still while the loop does; see Attention."""
        return self.attention.clock(self.now())

    def crowd_seconds(self) -> float:
        """Seconds to allow for what takes longer the more groups there are."""
        return len(self.groups) * _MANY_SECONDS

    def crowded(self) -> bool:
        """Whether so much waits for the disk or an election that new groups should come later."""
        waiting = self.wal.tail_lsn - self.wal.synced_lsn
        return waiting > _CROWDED_RECORDS or len(self._active) > _CROWDED_GROUPS

    def admit_campaign(self, group: RaftGroup) -> bool:
        """Whether a group may begin an election now; if not it asks again soon."""
        now = self.now()
        return self.campaigns.admit(group.id, group.rank, now, late=now < self._late_until)

    def campaign_ended(self, group: RaftGroup) -> None:
        """A group's election is over, or never began."""
        self.campaigns.ended(group.id)

    def offered_pre_votes(self, group: int) -> list[int]:
        """Peers that offered a pre-vote for this group's first leader before the group was here."""
        return [peer for peer, groups in self._offers.items() if groups.pop(group, self) is None]

    def connected(self, peer: int) -> bool:
        return self.mesh.connected(peer)

    @property
    def newcomer(self) -> bool:
        """Whether this node's folder may have had a predecessor, and so neither votes nor counts."""
        return self.folder.newcomer

    def is_newcomer(self, peer: int) -> bool:
        """Whether a peer said so of itself when it was last connected."""
        return peer in self._newcomers

    def peer_heartbeat(self, peer: int) -> PeerHeartbeat:
        return self.heartbeats.pair(peer)

    def backlogged(self) -> bool:
        """More waits for the disk than should: new work is refused until some of it is written."""
        return self._stalled or self.wal.buffered_bytes + self._unwritten_bytes > self._backlog_limit

    def disk_stalled(self) -> bool:
        """As of the last tick the disk had not finished a write for two election timeouts: do not lead."""
        return self._stalled

    def note_unwritten(self, size: int) -> None:
        self._unwritten_bytes += size

    def send(self, peer: int, message: Message) -> bool:
        """Put a message into this turn's frame for a peer; false when it cannot leave."""
        self._schedule()
        return self._outbox.put(peer, message)

    def send_when_synced(self, peer: int, message: Message) -> None:
        """Send once everything that the message's group recorded so far is durable.

        Another group's write holds nothing up: a slow disk must not make a leader look dead for it.
        """
        if self._last_lsn.get(message.group, 0) <= self.wal.synced_lsn:
            self.send(peer, message)
        else:
            wal, send = self.wal, partial(self.send, peer, message)
            self._after_sync.message(wal.tail_lsn, wal.writing_lsn, message.group, peer, message.kind, send)
            self._schedule()

    def when_synced(self, callback: Callable[[], None]) -> None:
        """Call back once everything recorded so far is durable."""
        self._after_sync.callback(self.wal.tail_lsn, callback)
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
        if known is not None:
            last = known.journal.last
        else:
            stored = self._stored.log(group)
            last = stored.newest if stored is not None else 0
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
        if len(dirty) > _TURN_GROUPS:
            # The rest in the next turn, after what came in meanwhile.
            work = sorted(dirty.values(), key=_rank)
            self._dirty = {group.id: group for group in work[_TURN_GROUPS:]}
            dirty = {group.id: group for group in work[:_TURN_GROUPS]}
            self._schedule()
        for group in dirty.values():
            self.guard(group, group.work)
        if not self._dirty:
            self._unwritten_bytes = 0
        self.heartbeats.tell_changes()
        if self.wal.synced_lsn < self.wal.tail_lsn:
            self.wal.flush()
        elif self._after_sync:
            self._after_sync.release(self.wal.synced_lsn)
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
                group.leadership_transfer.nominate()
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
        self._after_sync.release(lsn)
        self._turn()

    # Time.

    def _tick(self) -> None:
        self._ticker = self.loop.call_later(self.config.heartbeat_seconds / 2, self._tick)
        now = self.now()
        self._notice_gap(now)
        if self.attention.ticked(now) > self.config.heartbeat_seconds / 2:
            self._late_until = now + self.config.election_min_seconds
        self._last_tick = now
        since = self.wal.stalled_since
        stalled = since is not None and self.loop.time() - since > 2 * self.config.election_max_seconds
        if stalled and not self._stalled:
            self._wake_led()
        self._stalled = stalled
        self.heartbeats.tick(now)
        for group in list(self._first.values()):
            if group.id in self._active:
                self.guard(group, group.tick, now)
        if not self._to_tick:
            self._to_tick.extend(group for group in self._active.values() if group.id not in self._first)
            self._tick_some()
        if now >= self._retention_at:
            self._retention_at = now + _RETENTION_SECONDS
            self._retain()

    def _wake_led(self) -> None:
        """Let the timer look at what this node leads: a quiet group would go on refusing all commands."""
        for group in self.groups.values():
            if group.is_leader:
                self.set_active(group, True)

    def _tick_some(self) -> None:
        """Look at the timers of some active groups, and at the others' in the next turns."""
        now = self.now()
        for _ in range(min(_TURN_GROUPS, len(self._to_tick))):
            group = self._to_tick.popleft()
            if group.id in self._active:
                self.guard(group, group.tick, now)
        if self._to_tick and not self._stopped:
            self.loop.call_soon(self._tick_some)

    def _notice_gap(self, now: float) -> None:
        """Promise anew what was promised before a pause or a jump of the clock.

        A frame may be the first to come after a jump: judged by the old promises, its sender would get a vote
        while the leader's lease still runs.
        """
        gap = now - self._last_tick
        if gap > self.config.time_gap_seconds:
            before, self._last_tick = self._last_tick, now
            self._gap_log.add(now, gap)
            first, last = self.time_gap
            if before - last < self.config.election_min_seconds:
                # What was promised anew then still holds, so the two are one gap.
                before = first
            self.time_gap = before, now

    def _retain(self) -> None:
        """Drop the segments nobody needs; when there are too many, move along what pins the oldest.

        One round at a time: what the last one recorded must be durable before it is of any use. Recorded anew
        each second while the log cannot be written, it would fill the buffer.
        """
        if self.wal.synced_lsn < self._moved_lsn:
            return
        first, current = self.wal.first_segment, self.wal.current_segment
        if current == first:
            return
        needed = self._use.first_needed(first, current, self._covered)
        if needed > first:
            self.wal.may_drop_before(needed)
        self.carrying.settle(self._moved_on)
        longer_by = self.carrying.longer_by(self.settings.wal.segment_bytes)
        if current - needed < self.config.max_wal_segments + longer_by:
            return
        by_entries = self._use.pinned_by_entries(needed, self._covered)
        by_metadata = self._use.pinned_by_metadata(needed)
        pinning = dict.fromkeys((*by_entries, *by_metadata))
        log_of = partial(self._log_of, frozenset(by_entries))
        self.carrying.round(pinning, log_of, self.now(), self._has_room)
        for group in self._some(by_entries):
            self.guard(group, group.taking.take)
        for group in self._some(by_metadata):
            self.guard(group, group.log_keeping.record_again)
        self._rounds += 1
        self._moved_lsn = self.wal.tail_lsn

    def _some(self, groups: list[int]) -> list[RaftGroup]:
        """A part of these groups, another one in each round: thousands of snapshots at once would be the only
        thing that the node does, and its disk for a minute."""
        start = self._rounds * _MOVED_AT_ONCE % max(len(groups), 1)
        some = (groups[start:] + groups[:start])[:_MOVED_AT_ONCE]
        return [group for group_id in some if (group := self.groups.get(group_id)) is not None]

    def _log_of(self, by_entries: frozenset[int], group_id: int) -> GroupLog | None:
        """The log of a group that cannot move by itself; None for others, and if it contradicts its base.

        Nor can one move that needs no snapshot any more, but pins by entries that a new leader took back.
        """
        group = self.groups.get(group_id)
        if group is not None and group.log_keeping.moves_by_itself():
            taken_back = group_id in by_entries and group.snapshot_index == group.journal.last
            if not taken_back:
                return None
        record = partial(self._record, group_id)
        log = group.log_keeping.group_log() if group is not None else self._stored.group_log(group_id, record)
        if log is None or log.journal.term_at(log.base.index) != log.base_term:
            return None
        return log

    def _has_room(self) -> bool:
        """Whether what is carried along leaves the others most of the buffer."""
        return not self._stalled and self.wal.buffered_bytes < self._backlog_limit // 2

    def _covered(self, group_id: int) -> int:
        group = self.groups.get(group_id)
        return group.snapshot_index if group is not None else 0

    def _moved_on(self, group_id: int, last: int) -> bool:
        """Whether a snapshot covers a group's entries up to `last`, or those that no leader took back."""
        group = self.groups.get(group_id)
        return group is not None and group.snapshot_index >= min(last, group.journal.last)

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
                self.heartbeats.on_frame(peer, payload)
            return
        if len(payload) != 2 or type(payload[1]) is not list:
            raise BadMessage("frame of messages has a wrong shape")
        for packed in payload[1]:
            message = decode(packed)
            group = self.groups.get(message.group)
            if group is not None:
                self.guard(group, group.receive, peer, message)
            elif isinstance(message, PreVoteReply) and message.granted:
                offers = self._offers.setdefault(peer, {})
                if len(offers) < _MAX_OFFERS:
                    offers[message.group] = None

    def _on_connect(self, peer: int) -> None:
        if self.mesh.is_newcomer(peer):
            self._newcomers.add(peer)
        else:
            self._newcomers.discard(peer)
        self._sweeps.begin(
            lambda group: self.guard(group, group.connections.on_connect, peer), self._by_rank()
        )
        for connected, _ in self._peer_watchers:
            connected(peer)

    def _on_disconnect(self, peer: int) -> None:
        self._outbox.drop(peer)
        self.heartbeats.forget_untold(peer)
        self._offers.pop(peer, None)
        self._sweeps.begin(
            lambda group: self.guard(group, group.connections.on_disconnect, peer), self._by_rank()
        )
        self.heartbeats.forget_untold(peer)
        for _, disconnected in self._peer_watchers:
            disconnected(peer)

    def _by_rank(self) -> list[RaftGroup]:
        return sorted(self.groups.values(), key=_rank)

    def leaders(self) -> dict[int, int | None]:
        """For every group the node it believes leads it."""
        return {
            group_id: self.node_id if group.role == LEADER else group.leader
            for group_id, group in self.groups.items()
        }


def _rank(group: RaftGroup) -> Rank:
    return group.rank


def _log_error(_: Any, error: Exception | None) -> None:
    if error is not None:
        log.warning("%s", error)
