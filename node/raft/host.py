"""All groups of one node on one event loop: one write-ahead log, one mesh, one timer, one turn at a time.

What comes in during a turn of the loop is written with one sync and leaves in one frame for each peer.
Nothing that tells of unsynced state is sent before the sync has returned. An idle group costs nothing: the
timer looks at active groups only, and one heartbeat for each pair of nodes stands for all the quiet ones.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Any

from strandline.node.raft.data_folder import Folder, Stored
from strandline.node.raft.disk import Disk
from strandline.node.raft.folder_file import NAME as FOLDER_FILE
from strandline.node.raft.folder_file import FolderKey
from strandline.node.raft.group import RaftGroup
from strandline.node.raft.group_services import GroupServices
from strandline.node.raft.host_settings import HostSettings
from strandline.node.raft.leader_drain import LeaderDrain
from strandline.node.raft.pysyncobj_seam import LEADER, check_internals
from strandline.node.raft.rank import Rank
from strandline.node.raft.snapshots.store import SnapshotStore
from strandline.node.raft.wal.format import REPLACE
from strandline.node.raft.wal.recovered_log import RaftLogDamaged
from strandline.node.raft.wal.segment import was_started
from strandline.node.raft.wal.write_ahead_log import RecordKind, WalError, WalFailed, WriteAheadLog
from strandline.statemachine.machine import StateMachine

log = logging.getLogger(__name__)


class RaftHost(GroupServices):
    """The replicated log of one node. Everything but `open` belongs on `loop`.

    `on_fatal(error)` is called once when the node must stop (its disk failed, its id is used twice);
    `on_group_failed(group, error)` when one replica stopped and the others go on.
    """

    group_class = RaftGroup

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
        super().__init__(
            settings,
            loop=loop,
            snapshot_executor=snapshot_executor,
            rng=rng,
            nonces=nonces,
            on_fatal=on_fatal,
            on_group_failed=on_group_failed,
        )
        self.disk = disk
        self.leader_drain = LeaderDrain(self)
        self.created = 0
        """Groups that ever came in this process."""
        self._wal_executor = wal_executor

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
            self.disk,
            folder,
            self.node_id,
            self.cluster_id,
            self.rng,
            self.run_blocking,
            logged=self.stored.replayed,
        )
        self.snapshots = SnapshotStore(self.disk, snapshots, self.cluster_id)
        self.stored.find_snapshots(self.snapshots)

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
            replay=self.stored.replay,
        )
        self.wal.on_synced = self.records.on_synced
        self.wal.on_failed = self._on_wal_failed
        self.wal.on_stall = lambda error: log.error(
            "write-ahead log: %s: the disk is full: free space; the node then continues by itself", error
        )
        self.wal.on_space = lambda: log.warning(
            "write-ahead log: the disk has space again: the node continues"
        )
        self.stored.finish()

    async def start(self) -> None:
        """Listen, connect to the peers and let time run."""
        await self.mesh.start()
        self.clock.start()
        self.ticker.tick()
        # No group stands for election before this node is connected; groups created earlier begin now.
        for group in list(self.groups.values()):
            self.guard(group, group.timeouts.begin)

    async def stop(self, hand_over_seconds: float = 2.0) -> None:
        """Hand leadership over, end every pending command, sync and close."""
        self.leader_drain.for_good()
        await self.leader_drain.hand_over(hand_over_seconds)
        self.stopped = True
        self.ticker.stop()
        for group in self.groups.values():
            group.stop(None, "the node is stopping")
        self.turn()
        await self.mesh.close()
        # The log's lock goes with it, and the next process finds no write of this one under way.
        await self.loop.run_in_executor(self._snapshot_executor, _after_the_others)
        await self.wal.close()

    def _on_wal_failed(self, error: Exception) -> None:
        where = f"{self.settings.folder}/wal"
        self.halt(
            WalFailed(f"{where}: {error}: mend the disk, then start this node again on the same folder")
        )

    # Folders.

    def give_vote(self, generation: int = 0, incarnation: str = "") -> None:
        """This node's folder is to have a vote, with what the controller says of it.

        It has the vote once `store_folder` has written that.
        """
        self.folder.settle(votes=True, generation=generation, incarnation=incarnation)

    def know_folders(self, known: dict[int, FolderKey]) -> None:
        """The controller says which folder each of these nodes has.

        Folders out of force are disconnected at once. Those in force connect once `store_folder` has written
        them.
        """
        self.folder.learn(known)
        self.mesh.check_again()

    def store_folder(self, stored: Stored) -> None:
        """Write what this node was told of folders, off the loop; see `Folder.store`.

        Nothing once the node has stopped: the lock may be another process's.
        """
        if self.stopped:
            return

        def written(error: Exception | None) -> None:
            if error is None and self.folder.newcomer and self.folder.votes:
                self.folder.newcomer = False
                self.mesh.reconnect()
            stored(error)

        self.folder.store(written)

    # Peers and groups.

    def set_peer(self, node_id: int, host: str, port: int, also: tuple[str, int] | None = None) -> None:
        """Set the address at which another node listens, and another one to try; see `Mesh.set_peer`."""
        self.mesh.set_peer(node_id, host, port, also)

    def remove_peer(self, node_id: int) -> None:
        """Dial that node no more, and accept it no more."""
        self.mesh.remove_peer(node_id)

    @property
    def known_addresses(self) -> dict[int, tuple[str, int]]:
        """Addresses of other nodes that the data folder keeps."""
        return self.folder.addresses

    def know_addresses(self, addresses: dict[int, tuple[str, int]]) -> None:
        """Keep these in the data folder, once `store_folder` has written them."""
        self.folder.learn_addresses(addresses)

    def take_frames(self, kind: int, taker: Callable[[int, list[Any]], None]) -> None:
        """Hand frames `[kind, ...]` to `taker(peer, frame)`, which raises BadMessage for a malformed one."""
        self.peer_traffic.take_frames(kind, taker)

    def watch_peers(self, on_connect: Callable[[int], None], on_disconnect: Callable[[int], None]) -> None:
        """Call back when a peer's connection is there and when it is gone."""
        self.peer_traffic.watch_peers(on_connect, on_disconnect)

    def create_group(
        self,
        group_id: int,
        machine: StateMachine,
        voters: tuple[int, ...] = (),
        first_leader: int | None = None,
        rank: Rank = Rank.PARTITION,
        earlier_terms: int = 0,
    ) -> RaftGroup:
        """Take part in a group, with its stored state if there is any.

        `voters` bootstraps a group that no node has yet, the same on all of them; a node that joins an
        existing group gives none and learns the members from the leader. `first_leader`, one of the voters
        and the same on all nodes, leads a group that never had a leader without waiting for a time-out.
        `rank` orders the groups' work and elections on a node that is overloaded. This node is elected in
        terms above `earlier_terms` only: a group of the same partition may have used those before.
        Blocking: it reads the snapshot. Raises ValueError for a group that exists on this node already.
        """
        if group_id in self.groups:
            raise ValueError(f"group {group_id} exists on this node already")
        stored = self.stored.claim(
            group_id,
            machine,
            voters,
            self.snapshots,
            partial(self.record, group_id),
            self.config.max_append_bytes,
        )
        group = self.group_class(
            self, group_id, machine, stored.journal, stored.base, first_leader, rank, earlier_terms
        )
        group.configuration_log.note(stored.memberships)
        if stored.document is not None:
            group.taking.remember(stored.document)
        group.damaged_below = stored.damaged_below
        self.groups[group_id] = group
        self.created += 1
        self.on_groups_changed()
        self.ticker.add(group)
        self.set_active(group, True)
        self.wake(group)
        if self.ticker.started:
            group.timeouts.begin()
        return group

    def stored_groups(self) -> list[int]:
        """Groups that the disk holds and that were not created since the start.

        Each keeps its part of the write-ahead log until it is created or removed.
        """
        return self.stored.unclaimed()

    def remove_group(self, group_id: int) -> None:
        """Leave a group, or drop a stored one, and forget its stored state."""
        group = self.groups.pop(group_id, None)
        if not self.stored.forget(group_id) and group is None:
            raise ValueError(f"there is no group {group_id} on this node")
        if group is not None:
            group.stop(None, "the replica was removed from this node")
        self._let_go(group_id)
        self.record(group_id, RecordKind.FORGET, b"")
        self.records.forget(group_id)
        self.run_blocking(partial(self.snapshots.drop, group_id, None), _log_error)
        self.schedule()

    def leave_group(self, group_id: int) -> None:
        """Give up a replica of a group that goes on without this node, and keep what it promised.

        Its state goes, and its committed entries. Its term and vote stay, and its last entries: if the node
        is a member again one day, a candidate that this replica refused before is refused then too. Raises
        ValueError for a group that this node takes no part in.
        """
        group = self.groups.pop(group_id, None)
        if group is None:
            raise ValueError(f"node {self.node_id} takes no part in group {group_id}")
        group.stop(None, "the partition moved to other nodes")
        self._let_go(group_id)
        self.stored.leave(group_id, group.log_keeping.log, group.commit, self.config.max_append_bytes)
        self.run_blocking(partial(self.snapshots.drop, group_id, None), _log_error)
        self.schedule()

    def _let_go(self, group_id: int) -> None:
        self.on_groups_changed()
        self._dirty.pop(group_id, None)
        self.ticker.remove(group_id)
        self.campaigns.ended(group_id)
        self.carrying.forget(group_id)

    def leaders(self) -> dict[int, int | None]:
        """For every group the node it believes leads it."""
        return {
            group_id: self.node_id if group.role == LEADER else group.leader
            for group_id, group in self.groups.items()
        }


def _after_the_others() -> None:
    """A job that ends when all earlier jobs of its thread have ended."""


def _log_error(_: Any, error: Exception | None) -> None:
    if error is not None:
        log.warning("%s", error)
