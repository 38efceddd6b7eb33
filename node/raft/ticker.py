"""The node's timer: it looks at active groups only, and at a part of them in each turn of the loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from strandline.node.raft.clock import HostClock
from strandline.node.raft.config import RaftConfig
from strandline.node.raft.group import RaftGroup
from strandline.node.raft.log_retention import LogRetention
from strandline.node.raft.pysyncobj_seam import due_by
from strandline.node.raft.rank import Rank
from strandline.node.raft.rules.progress import NEVER
from strandline.node.raft.rules.shared_heartbeats import SharedHeartbeats
from strandline.node.raft.wal.write_ahead_log import WriteAheadLog

_RETENTION_SECONDS = 1.0
TURN_GROUPS = 256
"""Groups that work, or whose timer is looked at, in one turn: some ten milliseconds at most."""


class TickerHost(Protocol):
    """The node, as the timer needs it."""

    loop: asyncio.AbstractEventLoop
    config: RaftConfig
    clock: HostClock
    wal: WriteAheadLog
    groups: dict[int, RaftGroup]
    heartbeats: SharedHeartbeats
    retention: LogRetention
    stopped: bool

    def admit_waiting(self) -> None: ...
    def guard(self, group: RaftGroup, call: Callable[..., object], *args: Any) -> None: ...


class TickWatch(Protocol):
    """A part that wants to know how late ticks are."""

    def planned(self, seconds: float) -> None:
        """The next tick is to come in so many seconds."""

    def ticked(self) -> None:
        """It came."""


class Ticker:
    """Time, twice a heartbeat."""

    def __init__(self, host: TickerHost) -> None:
        self._host = host
        self.active: dict[int, RaftGroup] = {}
        """Groups that the timer looks at."""
        self.watch: TickWatch | None = None
        self.stalled = False
        """As of the last tick the disk had not finished a write for two election timeouts."""
        self._first: dict[int, RaftGroup] = {}
        """The groups whose timer is looked at in every tick, whatever else waits."""
        self._to_tick: deque[RaftGroup] = deque()
        self._late_until = NEVER
        self._retention_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def started(self) -> bool:
        return self._timer is not None

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def add(self, group: RaftGroup) -> None:
        """A group came: the controller's and the coordinators' are looked at in every tick."""
        if group.rank is not Rank.PARTITION:
            self._first[group.id] = group

    def remove(self, group_id: int) -> None:
        """A group is gone."""
        self._first.pop(group_id, None)

    def late(self, now: float) -> bool:
        """Whether the loop was blocked just now."""
        return now < self._late_until

    def set_active(self, group: RaftGroup, active: bool) -> None:
        """Whether the timer looks at the group."""
        if active:
            self.active[group.id] = group
        else:
            self.active.pop(group.id, None)

    def tick(self) -> None:
        clock, tick_seconds = self._host.clock, self._host.config.tick_seconds
        if self.watch is not None:
            self.watch.ticked()
            self.watch.planned(tick_seconds)
        self._timer = self._host.loop.call_later(tick_seconds, self.tick)
        now = clock.now()
        clock.notice_gap(now)
        if clock.attention.ticked(now) > tick_seconds:
            self._late_until = now + self._host.config.election_min_seconds
        clock.last_tick = now
        since = self._host.wal.stalled_since
        stalled = (
            since is not None and self._host.loop.time() - since > 2 * self._host.config.election_max_seconds
        )
        if stalled and not self.stalled:
            self.wake_led()
        self.stalled = stalled
        self._host.heartbeats.tick(now)
        self._host.admit_waiting()
        for group in list(self._first.values()):
            if group.id in self.active:
                self._host.guard(group, group.tick, now)
        if not self._to_tick:
            # Most of those without a leader wait for a moment beyond the next tick.
            due = due_by(self.active.values(), clock.attentive() + 2 * tick_seconds)
            self._to_tick.extend(group for group in due if group.id not in self._first)
            self._tick_some()
        if now >= self._retention_at:
            self._retention_at = now + _RETENTION_SECONDS
            self._host.retention.run()

    def wake_led(self) -> None:
        """Let the timer look at what this node leads: a quiet group would go on refusing all commands."""
        for group in self._host.groups.values():
            if group.is_leader:
                self.set_active(group, True)

    def _tick_some(self) -> None:
        """Let time pass for some of the groups that are due, and for the others in the next turns."""
        now = self._host.clock.now()
        for _ in range(min(TURN_GROUPS, len(self._to_tick))):
            group = self._to_tick.popleft()
            if group.id in self.active:
                self._host.guard(group, group.tick, now)
        if self._to_tick and not self._host.stopped:
            self._host.loop.call_soon(self._tick_some)
