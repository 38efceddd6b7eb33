"""Tracks the segments of the write-ahead log that are still needed, and the groups that need them.

A segment may be dropped if, for every group in it, a durable snapshot covers its entries, and the newest term
and vote and the newest record of the log's base are in a later segment. After a lost vote, a node could vote
twice in one term.
"""

from __future__ import annotations

from collections.abc import Callable

from strandline.node.raft.wal.write_ahead_log import RecordKind


class SegmentUse:
    """For every segment the groups with entries in it; for every group where its newest state lies."""

    def __init__(self) -> None:
        self._entries: dict[int, dict[int, int]] = {}
        self._state: dict[int, int] = {}
        self._base: dict[int, int] = {}
        self._carried_from: dict[int, int] = {}

    def note(self, segment: int, group: int, kind: RecordKind, last_index: int) -> None:
        """A durable record of `group` lies in `segment`; `last_index` counts for entries."""
        if kind in (RecordKind.ENTRIES, RecordKind.CARRY):
            groups = self._entries.setdefault(segment, {})
            groups[group] = max(groups.get(group, 0), last_index)
            if kind == RecordKind.CARRY:
                self._carried_from.setdefault(group, segment)
        elif kind == RecordKind.STATE:
            self._state[group] = segment
        elif kind == RecordKind.CARRIED:
            self._state[group] = self._base[group] = segment
            since = self._carried_from.pop(group, segment)
            for older in [older for older in self._entries if older < since]:
                self._entries[older].pop(group, None)
        elif kind in (RecordKind.SNAPSHOT, RecordKind.RESET):
            self._base[group] = segment
        elif kind == RecordKind.FORGET:
            self.forget(group)

    def forget(self, group: int) -> None:
        """The group is gone from this node."""
        self._state.pop(group, None)
        self._base.pop(group, None)
        self._carried_from.pop(group, None)
        for groups in self._entries.values():
            groups.pop(group, None)

    def first_needed(self, first: int, current: int, covered: Callable[[int], int]) -> int:
        """The oldest segment that must stay; `covered(group)` is the index its durable snapshot reaches."""
        oldest_metadata = min((*self._state.values(), *self._base.values(), current))
        segment = first
        while segment < min(current, oldest_metadata):
            if any(index > covered(group) for group, index in self._entries.get(segment, {}).items()):
                break
            self._entries.pop(segment, None)
            segment += 1
        return segment

    def pinned_by_entries(self, segment: int, covered: Callable[[int], int]) -> list[int]:
        """Groups whose entries in `segment` no snapshot covers yet."""
        return [group for group, index in self._entries.get(segment, {}).items() if index > covered(group)]

    def pinned_by_metadata(self, segment: int) -> list[int]:
        """Groups whose newest term and vote, or base, lie in `segment` or before."""
        groups = {**self._state, **self._base}
        return [
            group
            for group in groups
            if self._state.get(group, segment + 1) <= segment or self._base.get(group, segment + 1) <= segment
        ]
