"""Removal: the rising offsets below which a compacted partition's tombstones and markers may be removed.

Level one and each replica's own log are cleaned separately. A tombstone may be removed from one of them only
when all are clean past it: otherwise a copy that still has an older value would serve it again, and never
learn of its deletion. The leader learns the progress of all replicas, and sends it to them in one entry of
the log. So removal follows the log, and a replica that replays it removes the same records as the others.
docs/compaction.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

MAX_REMOVALS: Final = 64
"""Most rows that wait to become ripe. A further row replaces the last one, whose offsets then wait longer."""


class Removal(NamedTuple):
    """From this moment on all copies were clean, and settled, up to these offsets."""

    mtro: int
    mxro: int
    time: int
    """Of the state machine, in ms."""


class Removals:
    """The offsets of removal of one partition, and those of level one that they wait for. All only rise."""

    __slots__ = (
        "level_one_clean",
        "level_one_settled",
        "mtro",
        "mxro",
        "ripe_markers",
        "ripe_tombstones",
        "waiting",
    )

    def __init__(self) -> None:
        self.mtro = 0
        """Maximum tombstone removal offset: level one and all replicas are clean below it."""
        self.mxro = 0
        """Maximum transaction removal offset: below it they have no transactional data."""
        self.ripe_tombstones = 0
        """Below it tombstones may go: `mtro` passed it `delete.retention.ms` ago."""
        self.ripe_markers = 0
        """Below it markers may go: the same of `mxro`."""
        self.waiting: list[Removal] = []
        """Removals that are not ripe yet, oldest first; the last one has the present `mtro` and `mxro`."""
        self.level_one_clean = 0
        """Below it level one has no key twice."""
        self.level_one_settled = 0
        """Below it level one has no transactional data."""

    def advance(self, mtro: int, mxro: int, retention: int, time: int) -> bool:
        """Raise the offsets if these are higher; removals that have waited for `retention` ms become ripe.

        Returns whether anything has changed; `time` is the present one, in ms.
        """
        before = (self.mtro, self.mxro, self.ripe_tombstones, self.ripe_markers)
        self.mtro, self.mxro = max(self.mtro, mtro), max(self.mxro, mxro)
        if (self.mtro, self.mxro) != before[:2]:
            if len(self.waiting) == MAX_REMOVALS:
                del self.waiting[-1]
            self.waiting.append(Removal(self.mtro, self.mxro, time))
        while self.waiting and self.waiting[0].time + retention <= time:
            self.ripe_tombstones, self.ripe_markers, _ = self.waiting.pop(0)
        return (self.mtro, self.mxro, self.ripe_tombstones, self.ripe_markers) != before

    def published(self, clean: int, settled: int) -> None:
        """Record that level one is clean, and settled, up to these offsets."""
        self.level_one_clean = max(self.level_one_clean, clean)
        self.level_one_settled = max(self.level_one_settled, settled)

    def not_after(self, time: int) -> None:
        """Restart the wait of removals with a later time: the state's time went back to this one, in ms."""
        self.waiting = [one._replace(time=min(one.time, time)) for one in self.waiting]

    def fields(self) -> dict[str, Any]:
        """Plain values for a snapshot."""
        return {name: list(value) if name == "waiting" else value for name, value in self._values()}

    def _values(self) -> list[tuple[str, Any]]:
        return [(name, getattr(self, name)) for name in self.__slots__]

    @classmethod
    def restored(cls, fields: dict[str, Any]) -> Removals:
        """The object that `fields` was taken from; raises ValueError for other names. Their values are
        checked by partition_invariants."""
        if tuple(fields) != cls.__slots__:
            raise ValueError(f"the fields of removal are {', '.join(map(str, fields))}")
        restored = cls()
        for name, value in fields.items():
            setattr(restored, name, value)
        restored.waiting = [Removal(*row) for row in _rows(fields["waiting"])]
        return restored


def _rows(rows: Sequence[Sequence[int]]) -> Sequence[Sequence[int]]:
    if len(rows) > MAX_REMOVALS:
        raise ValueError(f"{len(rows)} removals wait, more than {MAX_REMOVALS}")
    return rows
