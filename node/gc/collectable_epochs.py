"""This node's view of M: the highest cluster epoch whose level-zero objects no partition needs.

Each partition's leader knows M(p), the highest epoch that its partition neither names nor will ever accept
again. Leaders send it to all nodes; a node keeps the highest it received, and takes the minimum over all
partitions of the controller's state that it has applied. M(p) is a fact about the past that stays true, not a
lease. A message that is late, duplicated or lost, an old view, a paused node or a deposed leader can only
make this node's M lower than it could be. docs/epoch-gc.md has the argument.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from strandline.node.controller.client import ControllerClient
from strandline.node.controller.cluster_clock import ClusterClock
from strandline.node.controller.leaders import LeaderTable
from strandline.node.partition.partition import Partition
from strandline.node.partition.partition_table import PartitionTable
from strandline.node.raft.host import RaftHost
from strandline.node.rpc import CallFailed, MeshCalls
from strandline.node.runtime.rounds import next_round
from strandline.node.runtime.slices import look_seconds
from strandline.statemachine.controller.controller import Controller
from strandline.statemachine.internal_topics import INTERNAL_TOPICS

TELL: Final = "epochs.collectable"
REASON: Final = "epochs.reason"
TELL_SECONDS: Final = 1.0
"""Time between two looks at the partitions led here; a value that rose goes to the others at once."""
TELL_ALL_SECONDS: Final = 30.0
"""Time between two broadcasts of everything known here, including other nodes' reports: a node that missed a
message has it then, also from a leader that it has no connection to."""
MOST_TOLD: Final = 100_000
"""Values of such broadcasts that leave in one TELL_SECONDS; peers beyond that are told in the next ones, in
turn. With 100 nodes and 100,000 partitions each node would send 10 million at once."""
SILENT_SECONDS: Final = 5.0
"""A node that sent nothing for this long is called unheard."""
SLICE: Final = 128
"""Partitions looked at in one turn of the loop: about a millisecond, several with very many extents."""
ROWS: Final = 2_000
"""Values in one frame: some 30 KB."""
REASON_SECONDS: Final = 2.0


class ReportedEpoch(NamedTuple):
    """The highest M(p) that a leader of a partition has reported."""

    value: int
    term: int
    """Of the leader that reported it, the newest one if several reported the same."""
    at: float
    """When it rose to this, by the loop's clock."""


class Maximum(NamedTuple):
    """M as one version of the controller's state gives it, and what keeps it from being higher."""

    epoch: int
    cluster_epoch: int
    """Of that state."""
    group: int | None
    """The partition that holds it back, the first of several; None when only the cluster epoch does."""
    topic: str | None
    partition: int | None
    reported: ReportedEpoch | None
    """Its leader's last report; None if there was none since this process started, or it was created."""


class HeldBack(NamedTuple):
    """The partition and the reason that hold M back."""

    maximum: Maximum
    reason: str
    """`nothing`, `unreconciled`, `reader`, `checkpoint`, `idle`; or `no_leader`, `unheard` if no leader
    could be asked."""
    since_ms: int | None
    """For `unreconciled`: the newest timestamp of the first batch that waits for level one."""


class CollectableEpochs:
    """One node's view of M. Everything belongs on `loop`."""

    def __init__(
        self,
        calls: MeshCalls,
        host: RaftHost,
        controller: ControllerClient,
        partitions: PartitionTable,
        leaders: LeaderTable,
        clock: ClusterClock,
        *,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._calls = calls
        self._node = host.node_id
        self._controller = controller
        self._partitions = partitions
        self._leaders = leaders
        self._clock = clock
        self._loop = loop
        self._table: dict[int, ReportedEpoch] = {}
        """By group, whose id stands for one partition for ever."""
        self._raised: dict[int, None] = {}
        """Groups led here whose value rose since it was last told."""
        self._looked: dict[Partition, int] = {}
        """The changes of those led here as they were last looked at, unless reads held them back then."""
        self._broken: dict[int, None] = {}
        """Groups whose value cannot be told; said once."""
        self._peers: dict[int, None] = {}
        self._owed: dict[int, None] = {}
        """Peers that are to be told everything."""
        self._heard_from: dict[int, float] = {}
        self._newest = 0
        """The highest M this process ever had."""
        self._all_at = 0.0
        self._task: asyncio.Task[None] | None = None
        calls.serve(TELL, self._on_told)
        calls.serve(REASON, self._on_reason)
        host.watch_peers(self._on_connect, self._on_disconnect)

    def start(self) -> None:
        """Begin to look at the partitions led here, and to tell the others."""
        self._all_at = self._loop.time() + TELL_ALL_SECONDS
        self._task = self._loop.create_task(self._run())
        self._task.add_done_callback(self._ended)

    def close(self) -> None:
        """Stop sending."""
        if self._task is not None:
            self._task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            # M stays where it is from now on, which harms nothing but the bill.
            self._loop.call_exception_handler(
                {"message": "telling collectable epochs failed", "exception": error}
            )

    # What is known.

    def maximum(self) -> Maximum:
        """M, from one version of the controller's state, in one turn of the loop.

        A partition that was not heard of needs its creation epoch at most: it never had an older object and
        accepts none. One that this state does not have yet will be created at this state's cluster epoch or a
        later one. Hence M never goes down while the process lives. Coordinators do not count: they have no
        data in objects, and no M(p).
        """
        machine = self._controller.machine
        table = self._table
        cluster_epoch = machine.cluster_epoch
        lowest, holder = cluster_epoch - 1, None
        for topic in machine.topics:
            if topic.name in INTERNAL_TOPICS:
                continue
            for number, (group, _, creation_epoch) in enumerate(topic.partitions):
                value = creation_epoch - 1
                heard = table.get(group)
                if heard is not None and heard.value > value:
                    value = heard.value
                if value < lowest:
                    lowest, holder = value, (group, topic.name, number)
        assert self._newest <= lowest < cluster_epoch, (
            f"M is {lowest} and was {self._newest}, at cluster epoch {cluster_epoch}, by {holder}"
        )
        self._newest = lowest
        if holder is None:
            return Maximum(lowest, cluster_epoch, None, None, None, None)
        group, name, number = holder
        return Maximum(lowest, cluster_epoch, group, name, number, table.get(group))

    def reported(self, group: int) -> ReportedEpoch | None:
        """The highest M(p) known of a group, from here or from others."""
        return self._table.get(group)

    def unheard_seconds(self, node: int) -> float | None:
        """Seconds since another node's last word; None if this process never heard it."""
        at = self._heard_from.get(node)
        return None if at is None else self._loop.time() - at

    async def held_back(self) -> HeldBack:
        """The reason that holds M back; asks the leader of the partition concerned, for 2 s at most."""
        maximum = self.maximum()
        if maximum.group is None:
            return HeldBack(maximum, "nothing", None)
        partition = self._partitions.by_group(maximum.group)
        if partition is not None and partition.leads:
            return HeldBack(maximum, *reason_of(partition))
        leader = self._leaders.leader_of(maximum.group)
        if leader is None:
            return HeldBack(maximum, "no_leader", None)
        silent = self.unheard_seconds(leader.node)
        if leader.node != self._node and (silent is None or silent > SILENT_SECONDS):
            return HeldBack(maximum, "unheard", None)
        try:
            reason, since = await self._calls.call(leader.node, REASON, [maximum.group], REASON_SECONDS)
        except CallFailed:
            return HeldBack(maximum, "unheard", None)
        return HeldBack(maximum, reason, since)

    def _note(self, group: int, term: int, value: int) -> bool:
        """Keep a value if it is higher than the known one; returns whether it is."""
        known = self._table.get(group)
        if known is None or value > known.value:
            self._table[group] = ReportedEpoch(value, term, self._loop.time())
            return True
        if value == known.value and term > known.term:
            self._table[group] = known._replace(term=term)
        return False

    # Telling.

    async def _run(self) -> None:
        look_at = self._loop.time()
        while True:
            await next_round(TELL_SECONDS)
            if self._loop.time() >= look_at:
                look_at = self._loop.time() + look_seconds(TELL_SECONDS, len(self._partitions)) / 2
                await self._look()
            self._tell_raised()
            now = self._loop.time()
            if now >= self._all_at:
                self._all_at = now + TELL_ALL_SECONDS
                self._owed.update(self._peers)
                self._forget_gone(self._controller.machine)
            if self._owed:
                await self._tell_all()

    async def _look(self) -> None:
        """Take up what the partitions that are led here can do without."""
        known, self._looked = self._looked, {}
        for number, partition in enumerate([*self._partitions], 1):
            if partition.leads and partition.group.failure is None:
                looked = known.get(partition)
                if looked is not None and looked == partition.changes:
                    self._looked[partition] = looked
                else:
                    self._take_up(partition)
            if number % SLICE == 0:
                await asyncio.sleep(0)

    def _take_up(self, partition: Partition) -> None:
        """Note M(p) of a partition, which may have changed since the last look."""
        changes, group = partition.changes, partition.group.id
        try:
            value = partition.collectable_epoch
        except Exception as error:
            self._broke(partition, error)
            return
        if self._note(group, partition.leader_epoch, value):
            self._raised[group] = None
        if not partition.held_by_reads:
            self._looked[partition] = changes

    def _broke(self, partition: Partition, error: Exception) -> None:
        """An invariant of one partition is broken: M stays below it, the other partitions go on."""
        if partition.group.id not in self._broken:
            self._broken[partition.group.id] = None
            message = f"M of {partition.topic}-{partition.number} cannot be told any more"
            self._loop.call_exception_handler({"message": message, "exception": error})

    def _tell_raised(self) -> None:
        """Send each peer the values that rose, and the time, which goes out even if no value rose."""
        raised, self._raised = [*self._raised], {}
        frames = [self._frame(part) for part in _parts(raised)] or [self._frame([])]
        for peer in self._peers:
            for frame in frames:
                if not self._calls.tell(peer, TELL, frame):
                    self._owed[peer] = None

    async def _tell_all(self) -> None:
        """Tell peers that are owed it everything that is known here, as many of them as may be told now."""
        owed = [*self._owed][: max(1, MOST_TOLD // max(1, len(self._table)))]
        for peer in owed:
            del self._owed[peer]
        for part in _parts([*self._table]):
            frame = self._frame(part)
            for peer in owed:
                if peer in self._peers and not self._calls.tell(peer, TELL, frame):
                    self._owed[peer] = None
            await asyncio.sleep(0)

    def _frame(self, groups: list[int]) -> list[Any]:
        """`[own wall clock in ms, [[group, term, value], …]]`"""
        table = self._table
        rows = [(group, known.term, known.value) for group in groups if (known := table.get(group))]
        return [self._clock.own_ms(), rows]

    def _forget_gone(self, machine: Controller) -> None:
        """Groups of deleted topics, which do not count any more; those not created yet here are kept."""
        for group in [group for group in self._table if machine.group_is_gone(group)]:
            del self._table[group]

    def _on_connect(self, peer: int) -> None:
        self._peers[peer] = self._owed[peer] = None

    def _on_disconnect(self, peer: int) -> None:
        self._peers.pop(peer, None)
        self._owed.pop(peer, None)

    # Being told.

    async def _on_told(self, peer: int, payload: Any) -> None:
        match payload:
            case [int(wall_ms), [*rows]] if all(map(_is_row, rows)):
                self._heard_from[peer] = self._loop.time()
                self._clock.observe(peer, wall_ms)
                for group, term, value in rows:
                    self._note(group, term, value)
            case _:
                raise CallFailed("that is not a time and rows of group, term and epoch", unknown=False)

    async def _on_reason(self, peer: int, payload: Any) -> tuple[str, int | None]:
        """`[group]` gives `[reason, since]` of HeldBack, from its leader."""
        match payload:
            case [int(group)]:
                partition = self._partitions.by_group(group)
                if partition is None or not partition.leads:
                    raise CallFailed(f"node {self._node} does not lead group {group}", unknown=False)
                return reason_of(partition)
            case _:
                raise CallFailed("that is not a group", unknown=False)


def reason_of(partition: Partition) -> tuple[str, int | None]:
    """The reason and the time of HeldBack for one M(p), at its leader."""
    machine = partition.machine
    value = machine.max_collectable_epoch
    if partition.collectable_epoch < value:
        return "reader", None
    if machine.checkpoints.oldest_epoch(machine.time) == value + 1:
        return "checkpoint", None
    if machine.extents.oldest_epoch == value + 1:
        first = machine.extents_between(machine.extents.first_offset, machine.next_offset, 1)
        return "unreconciled", first[0].max_timestamp if first else None
    return "idle", None


def _parts(groups: list[int]) -> Iterator[list[int]]:
    for first in range(0, len(groups), ROWS):
        yield groups[first : first + ROWS]


def _is_row(row: Any) -> bool:
    return type(row) is list and len(row) == 3 and all(type(number) is int for number in row)
