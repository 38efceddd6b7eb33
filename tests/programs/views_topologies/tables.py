"""The inputs of a topology, as they were written: the tables at any cut."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

Row = dict[str, Any]
Rows = dict[tuple[Any, ...], Row]
Place = tuple[str, int]
"""A topic and the number of a partition."""
Written = Mapping[Place, Mapping[int, tuple[str, Row | None]]]
"""What was acknowledged: key and row by offset."""


class Tables:
    """Tables whose topics have a prefix, at a cut that only rises."""

    def __init__(self, written: Written, prefix: str, names: list[str]) -> None:
        self.rows: dict[str, dict[str, Row]] = {name: {} for name in names}
        self._written = written
        self._prefix = prefix
        self._at: dict[Place, int] = {}

    def come_to(self, cut: Mapping[Place, int]) -> None:
        """Take all records below a cut; raises ValueError for one that lies behind the present one."""
        for place, end in cut.items():
            at = self._at.get(place, 0)
            if end < at:
                raise ValueError(f"the cut of {place} goes back from {at} to {end}")
            table = self.rows[place[0].removeprefix(self._prefix)]
            for offset in range(at, end):
                record = self._written[place].get(offset)
                if record is None:
                    continue
                key, row = record
                if row is None:
                    table.pop(key, None)
                else:
                    table[key] = row
            self._at[place] = end


def cut_of(told: Mapping[str, int]) -> dict[Place, int]:
    """A cut out of `topic-partition` names."""
    return {
        (topic, int(number)): offset
        for (topic, _, number), offset in ((name.rpartition("-"), offset) for name, offset in told.items())
    }


def row_of(value: bytes | None) -> Row | None:
    """A record's value."""
    return None if value is None else dict(json.loads(value))
