"""The verdict: what lies in the target, beside what the source says must lie there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

_EXAMPLES: Final = 5


class Made(NamedTuple):
    """One record of the target, as a reader of committed records finds it."""

    partition: int
    offset: int
    row: int
    made_of: int
    """The source's offset it names."""
    value: bytes


@dataclass
class Comparison:
    """Counts of records, but `lost`, which counts rows."""

    read: int = 0
    lost: int = 0
    """Rows of the source of which nothing was made."""
    doubled: int = 0
    """Records made of a row that has one already."""
    altered: int = 0
    """Not what is made of their row."""
    disordered: int = 0
    """Made of an earlier record of the source than one before them in their partition."""
    foreign: int = 0
    """Made of no row there is."""
    examples: list[str] = field(default_factory=list)

    @property
    def at_least_once(self) -> bool:
        return not (self.lost or self.altered or self.foreign)

    @property
    def exactly_once(self) -> bool:
        return self.at_least_once and not (self.doubled or self.disordered)

    def note(self, text: str) -> None:
        if len(self.examples) < _EXAMPLES:
            self.examples.append(text)


def compare(made: Iterable[Made], wanted: Sequence[bytes]) -> Comparison:
    """`wanted` is by row; the records of a partition come in the order of their offsets."""
    found = Comparison()
    seen: set[int] = set()
    newest: dict[int, int] = {}
    for one in made:
        found.read += 1
        place = f"{one.partition}/{one.offset}"
        if not 0 <= one.row < len(wanted):
            found.foreign += 1
            found.note(f"the record at {place} is made of no flight")
            continue
        if one.value != wanted[one.row]:
            found.altered += 1
            found.note(f"the record at {place} is not what is made of row {one.row}")
        if one.row in seen:
            found.doubled += 1
            found.note(f"row {one.row} again at {place}")
        if one.made_of <= newest.get(one.partition, -1) and one.row not in seen:
            found.disordered += 1
            found.note(f"{place} is made of offset {one.made_of}, after {newest[one.partition]}")
        seen.add(one.row)
        newest[one.partition] = max(one.made_of, newest.get(one.partition, -1))
    missing = [row for row in range(len(wanted)) if row not in seen]
    found.lost = len(missing)
    for row in missing[:_EXAMPLES]:
        found.note(f"nothing was made of row {row}")
    return found
