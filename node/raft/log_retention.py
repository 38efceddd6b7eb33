"""Retention of the write-ahead log: segments that no group needs go, and what pins the oldest is moved."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from strandline.node.raft.group import RaftGroup
from strandline.node.raft.host_settings import HostSettings
from strandline.node.raft.stored_groups import StoredGroups
from strandline.node.raft.wal.carrying import Carrying, GroupLog
from strandline.node.raft.wal.format import RecordKind
from strandline.node.raft.wal.segment_use import SegmentUse
from strandline.node.raft.wal.write_ahead_log import WriteAheadLog

_MOVED_AT_ONCE = 256
"""Groups that are snapshotted, or recorded again, in one round so that the oldest segment may go."""


class RetentionHost(Protocol):
    """The node, as retention needs it."""

    settings: HostSettings
    wal: WriteAheadLog
    stored: StoredGroups
    groups: dict[int, RaftGroup]

    def now(self) -> float: ...
    def guard(self, group: RaftGroup, call: Callable[..., object], *args: Any) -> None: ...
    def record(self, group: int, kind: RecordKind, payload: bytes) -> int: ...
    def half_backlogged(self) -> bool:
        """Whether half as much waits for the disk as makes a node refuse commands, or the disk hangs."""


class LogRetention:
    """The oldest segments of one node's log."""

    def __init__(self, host: RetentionHost, use: SegmentUse, carrying: Carrying) -> None:
        self._host = host
        self._use = use
        self._carrying = carrying
        self._moved_lsn = 0
        self._rounds = 0

    def run(self) -> None:
        """Drop the segments that no group needs; if too many remain, move the state that pins the oldest.

        One round at a time: the records of the last round must be durable before they are of any use. If each
        round wrote them again while the log cannot be written, they would fill the buffer.
        """
        if self._host.wal.synced_lsn < self._moved_lsn:
            return
        first, current = self._host.wal.first_segment, self._host.wal.current_segment
        if current == first:
            return
        needed = self._use.first_needed(first, current, self._covered)
        if needed > first:
            self._host.wal.may_drop_before(needed)
        self._carrying.settle(self._moved_on)
        longer_by = self._carrying.longer_by(self._host.settings.wal.segment_bytes)
        if current - needed < self._host.settings.raft.max_wal_segments + longer_by:
            return
        by_entries = self._use.pinned_by_entries(needed, self._covered)
        by_metadata = self._use.pinned_by_metadata(needed)
        pinning = dict.fromkeys((*by_entries, *by_metadata))
        log_of = partial(self._log_of, frozenset(by_entries))
        self._carrying.round(pinning, log_of, self._host.now(), self._has_room)
        for group in self._some(by_entries):
            self._host.guard(group, group.taking.take)
        for group in self._some(by_metadata):
            self._host.guard(group, group.log_keeping.record_again)
        self._rounds += 1
        self._moved_lsn = self._host.wal.tail_lsn

    def _some(self, groups: list[int]) -> list[RaftGroup]:
        """A part of these groups, another one in each round: thousands of snapshots at once would be the only
        thing that the node does, and its disk for a minute."""
        start = self._rounds * _MOVED_AT_ONCE % max(len(groups), 1)
        some = (groups[start:] + groups[:start])[:_MOVED_AT_ONCE]
        return [group for group_id in some if (group := self._host.groups.get(group_id)) is not None]

    def _log_of(self, by_entries: frozenset[int], group_id: int) -> GroupLog | None:
        """The log of a group that cannot move by itself; None for others, and if it contradicts its base.

        Nor can one move that needs no snapshot any more, but pins by entries that a new leader took back.
        """
        group = self._host.groups.get(group_id)
        if group is not None and group.log_keeping.moves_by_itself():
            taken_back = group_id in by_entries and group.snapshot_index == group.journal.last
            if not taken_back:
                return None
        record = partial(self._host.record, group_id)
        log = (
            group.log_keeping.group_log()
            if group is not None
            else self._host.stored.group_log(group_id, record)
        )
        if log is None or log.journal.term_at(log.base.index) != log.base_term:
            return None
        return log

    def _has_room(self) -> bool:
        """Whether carried entries leave most of the buffer to other groups."""
        return not self._host.half_backlogged()

    def _covered(self, group_id: int) -> int:
        group = self._host.groups.get(group_id)
        return group.snapshot_index if group is not None else 0

    def _moved_on(self, group_id: int, last: int) -> bool:
        """Whether a snapshot covers a group's entries up to `last`, or those that no leader took back."""
        group = self._host.groups.get(group_id)
        return group is not None and group.snapshot_index >= min(last, group.journal.last)
