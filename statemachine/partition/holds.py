"""Holds: readers of a compacted partition that must find every record from their offset on.

A reader that keeps a state of its own restarts from the offset of its last checkpoint, and reads again what
it has read: it must be given the same. So cleaning stops at the lowest hold. Holds run out in the state
machine's time, so every replica agrees on which of them stand, and a reader that lost its own is told so when
it renews it. docs/compaction.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

MAX_HOLDS: Final = 64
"""Most readers that hold one partition."""
MAX_READER_BYTES: Final = 249
"""Of a reader's name in UTF-8, as of a topic's."""
MAX_HOLD_MS: Final = 7 * 24 * 3_600_000
"""Longest time for which a hold is renewed, in ms: a reader that is gone holds nothing for longer."""


class Hold(NamedTuple):
    """One reader's."""

    reader: str
    offset: int
    """Every record from here on stays, and so does each that is the newest of its key below it."""
    until: int
    """Of the state machine's time, in ms."""


class Holds:
    """The holds that stand, by reader."""

    __slots__ = ("_by_reader", "lowest")

    def __init__(self, rows: Sequence[Sequence[object]] = ()) -> None:
        """Restore what `rows` gave; raises ValueError for what it cannot have given."""
        self._by_reader: dict[str, Hold] = {}
        for reader, offset, until in rows:
            if not (isinstance(reader, str) and isinstance(offset, int) and isinstance(until, int)):
                raise ValueError(f"{(reader, offset, until)} is not a hold")
            self._by_reader[reader] = Hold(reader, offset, until)
        if list(self._by_reader) != sorted(self._by_reader) or len(self._by_reader) != len(rows):
            raise ValueError("the readers of holds are not in order")
        if len(rows) > MAX_HOLDS:
            raise ValueError(f"{len(rows)} readers hold the partition, more than {MAX_HOLDS}")
        self.lowest: int | None = None
        """The lowest offset that is held; None: no reader holds the partition."""
        self._changed()

    def __len__(self) -> int:
        return len(self._by_reader)

    def rows(self) -> list[Hold]:
        """All of them in the order of their readers, for a snapshot and for people."""
        return sorted(self._by_reader.values())

    def get(self, reader: str) -> Hold | None:
        """One reader's, if it stands."""
        return self._by_reader.get(reader)

    def put(self, hold: Hold) -> bool:
        """Renew a reader's hold, or give it one; False, and no change, for one reader above MAX_HOLDS."""
        if hold.reader not in self._by_reader and len(self._by_reader) >= MAX_HOLDS:
            return False
        self._by_reader[hold.reader] = hold
        self._changed()
        return True

    def release(self, reader: str) -> bool:
        """End a reader's hold; whether it had one."""
        released = self._by_reader.pop(reader, None) is not None
        self._changed()
        return released

    def expire(self, time: int) -> None:
        """Time has come to this, in ms: holds that have run out are no more, even should time go back."""
        if self._by_reader and min(one.until for one in self._by_reader.values()) <= time:
            self._by_reader = {name: one for name, one in self._by_reader.items() if one.until > time}
            self._changed()

    def not_after(self, time: int) -> None:
        """The state's time went back to this one: no hold stands for longer than one renewed now would."""
        latest = time + MAX_HOLD_MS
        self._by_reader = {
            name: one._replace(until=min(one.until, latest)) for name, one in self._by_reader.items()
        }

    def _changed(self) -> None:
        self.lowest = min((one.offset for one in self._by_reader.values()), default=None)
