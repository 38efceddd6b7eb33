"""Moving along what keeps an old segment of the write-ahead log and cannot be moved by a snapshot.

A replica that stopped after an error, one that could not be taken up, one whose group lost its majority: each
keeps what it holds above its snapshot, and takes no new one. Its vote, term and entries may have been counted
on by others, so they stay; but all that the other groups write after them must not stay for their sake. So
they are written again at the log's end: the entries as CARRY records, then one CARRIED, which makes them the
group's whole log. Until that one is durable the old ones count, and their segments stay.

What is carried comes by again once the log has moved on by its usual length. So that it is at most a third of
what is written, the log may be longer by three times what is carried (`LONGER`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from strandline.node.raft.configuration import Configuration
from strandline.node.raft.wal.raft_log import RaftLog

LONGER: Final = 3
"""The log may be longer by this many times the carried bytes. With one part in three carried, each pass over
the log writes one carried part again for two new ones."""


@dataclass(frozen=True, slots=True)
class GroupLog:
    """The present log of one group: a durable snapshot, or the start of the log, covers all up to `base`."""

    journal: RaftLog
    base: Configuration
    base_term: int

    def mark(self) -> tuple[int, int, int]:
        """Differs when anything was added, deleted or covered meanwhile."""
        return self.base.index, self.journal.written, self.journal.last_term


@dataclass(slots=True)
class _Stuck:
    """One group that kept the oldest segment: since when it is as it is, and how far it is carried."""

    mark: tuple[int, int, int]
    since: float
    upto: int
    size: int = 0


class Carrying:
    """Finds the groups that are stuck, and carries their entries to the end of the log, a part at a time."""

    def __init__(self, *, stuck_seconds: float, part_bytes: int) -> None:
        """A group is carried once it is stuck for this long; `part_bytes` of entries go into one record."""
        self._stuck_seconds = stuck_seconds
        self._part_bytes = part_bytes
        self._stuck: dict[int, _Stuck] = {}
        self.carried: dict[int, tuple[int, int]] = {}
        """(last index, bytes of the entries) of each group whose entries were carried, until it moves on."""

    @property
    def bytes(self) -> int:
        """Bytes of the entries of all groups that are carried along."""
        return sum(size for _, size in self.carried.values())

    def longer_by(self, segment_bytes: int) -> int:
        """Number of segments that the log may have in addition because of carried entries."""
        return -(-LONGER * self.bytes // segment_bytes)

    def settle(self, moved_on: Callable[[int, int], bool]) -> None:
        """Forget the groups that moved on: `moved_on(group, last)` is true of those carried up to `last`."""
        for group in [group for group, (last, _) in self.carried.items() if moved_on(group, last)]:
            self.forget(group)

    def forget(self, group: int) -> None:
        """The group moves by itself again, or is gone."""
        self._stuck.pop(group, None)
        self.carried.pop(group, None)

    def round(
        self,
        pinning: Iterable[int],
        log_of: Callable[[int], GroupLog | None],
        now: float,
        room: Callable[[], bool],
    ) -> None:
        """Carry those of the groups `pinning` the oldest segment that are stuck, while there is `room`.

        `log_of(group)` is None for one that need not be looked at. Call this again once all that was
        recorded is durable.
        """
        logs: dict[int, GroupLog] = {}
        for group in pinning:
            log = log_of(group)
            if log is None:
                continue
            known = self._stuck.get(group)
            if known is None or known.mark != log.mark():
                known = self._stuck[group] = _Stuck(log.mark(), now, log.base.index)
            if now - known.since >= self._stuck_seconds:
                logs[group] = log
        # What was begun ends first: nothing is gained before its last record.
        for group in sorted(logs, key=lambda group: -self._stuck[group].size):
            if not room():
                return
            self._carry(group, logs[group], self._stuck[group], room)

    def _carry(self, group: int, log: GroupLog, stuck: _Stuck, room: Callable[[], bool]) -> None:
        while stuck.upto < log.journal.written:
            if not room():
                return
            stuck.upto, size = log.journal.carry(stuck.upto, self._part_bytes)
            stuck.size += size
        base = log.base
        log.journal.record_carried(base.index, log.base_term, base.voters, base.learners, base.folders)
        if stuck.size:
            self.carried[group] = stuck.upto, stuck.size
        stuck.upto, stuck.size = base.index, 0
