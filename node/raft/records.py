"""The groups' records in the write-ahead log, and the messages that leave once they are durable."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from strandline.node.raft.group import RaftGroup
from strandline.node.raft.rules.messages import Message
from strandline.node.raft.stored_groups import StoredGroups
from strandline.node.raft.ticker import Ticker
from strandline.node.raft.wal.after_sync import AfterSync
from strandline.node.raft.wal.format import RecordKind
from strandline.node.raft.wal.segment_use import SegmentUse
from strandline.node.raft.wal.write_ahead_log import WriteAheadLog


class RecordsHost(Protocol):
    """The node, as records need it."""

    groups: dict[int, RaftGroup]
    stored: StoredGroups
    ticker: Ticker
    wal: WriteAheadLog

    def guard(self, group: RaftGroup, call: Callable[..., object], *args: Any) -> None: ...
    def schedule(self) -> None: ...
    def turn(self) -> None: ...
    def send(self, peer: int, message: Message) -> bool: ...


class Records:
    """The records of all groups of a node, in the order of its log."""

    def __init__(self, host: RecordsHost, use: SegmentUse, max_buffered_bytes: int) -> None:
        self._host = host
        self._use = use
        self.waiting: deque[tuple[int, int, RecordKind, int]] = deque()
        """(LSN, group, kind, the group's last entry) of those that are not durable yet."""
        self.after_sync = AfterSync()
        self.unwritten_bytes = 0
        """Of entries that their groups have not handed to the log yet."""
        self.backlog_limit = max_buffered_bytes // 2
        self._last_lsn: dict[int, int] = {}

    def add(self, group: int, kind: RecordKind, payload: bytes) -> int:
        lsn = self._host.wal.append(group, kind, payload)
        known = self._host.groups.get(group)
        if known is not None:
            last = known.journal.last
        else:
            stored = self._host.stored.log(group)
            last = stored.newest if stored is not None else 0
        self.waiting.append((lsn, group, kind, last))
        self._last_lsn[group] = lsn
        self._host.schedule()
        return lsn

    def backlogged(self) -> bool:
        """More waits for the disk than should: new work is refused until some of it is written."""
        return (
            self._host.ticker.stalled
            or self._host.wal.buffered_bytes + self.unwritten_bytes > self.backlog_limit
        )

    def send_when_durable(self, peer: int, message: Message) -> None:
        """Send once everything that the message's group recorded so far is durable.

        Another group's write holds nothing up: a slow disk must not make a leader look dead for it.
        """
        if self._last_lsn.get(message.group, 0) <= self._host.wal.synced_lsn:
            self._host.send(peer, message)
        else:
            wal, send = self._host.wal, partial(self._host.send, peer, message)
            self.after_sync.message(wal.tail_lsn, wal.writing_lsn, message.group, peer, message.kind, send)
            self._host.schedule()

    def when_synced(self, callback: Callable[[], None]) -> None:
        """Call back once everything recorded so far is durable."""
        self.after_sync.callback(self._host.wal.tail_lsn, callback)
        self._host.schedule()

    def on_synced(self, lsn: int, segment: int) -> None:
        touched: dict[int, None] = {}
        while self.waiting and self.waiting[0][0] <= lsn:
            _, group, kind, last = self.waiting.popleft()
            self._use.note(segment, group, kind, last)
            touched[group] = None
        for group_id in touched:
            known = self._host.groups.get(group_id)
            if known is not None:
                self._host.guard(known, known.on_synced, lsn)
        self.after_sync.release(lsn)
        self._host.turn()

    def half_backlogged(self) -> bool:
        """Whether half as much waits for the disk as makes a node refuse commands, or the disk hangs."""
        return self._host.ticker.stalled or self._host.wal.buffered_bytes >= self.backlog_limit // 2

    def forget(self, group_id: int) -> None:
        """The group is gone."""
        self._last_lsn.pop(group_id, None)

    def settle(self) -> None:
        """End a turn: write its records to the disk, or run the callbacks that waited for no record."""
        if self._host.wal.synced_lsn < self._host.wal.tail_lsn:
            self._host.wal.flush()
        elif self.after_sync:
            self.after_sync.release(self._host.wal.synced_lsn)
