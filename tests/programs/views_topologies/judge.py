"""Whether a view's transactions are those that its program has at the cuts that were committed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from tests.programs.views_topologies.tables import Row, Rows

Change = dict[tuple[Any, ...], Row | None]
"""Rows by key as one transaction sets them; None deletes."""


class Note(NamedTuple):
    """A transaction that a process has committed."""

    program: str
    attempt: int
    live: bool
    phase: str
    cut: dict[str, int]
    digests: dict[str, str]


def spoken(notes: Iterable[Note], first: int, then: int | None = None) -> list[Note]:
    """The transactions that wrote a topic which attempt `first` made and the live version `then` kept."""
    return [
        note
        for note in notes
        if (note.attempt == first and note.phase != "filling") or (note.attempt == then and note.live)
    ]


def difference(before: Rows, after: Rows) -> Change:
    """What leads from one table to another."""
    change: Change = {key: row for key, row in after.items() if before.get(key) != row}
    return change | {key: None for key in before if key not in after}


def changes(states: Iterable[Rows]) -> list[Change]:
    """What each transaction must have written, from nothing on; those that change nothing write nothing."""
    found, before = [], Rows()
    for state in states:
        if change := difference(before, state):
            found.append(change)
        before = state
    return found


def problem(wanted: Sequence[Change], told: Sequence[Sequence[Change]], *, ended: bool = True) -> str:
    """The first transaction in which a topic differs, by its partitions; empty for none.

    With `ended` false the reader did not come to the end: the topic is gone.
    """
    key_place: dict[tuple[Any, ...], int] = {}
    for number, transactions in enumerate(told):
        for key in (key for change in transactions for key in change):
            if key_place.setdefault(key, number) != number:
                return f"key {key} is in two partitions"
    for number, transactions in enumerate(told):
        unseen = number if ended else -1
        mine = [
            part
            for change in wanted
            if (part := {key: row for key, row in change.items() if key_place.get(key, unseen) == number})
        ]
        whole = transactions if ended else transactions[:-1]  # of the last one a part may have been read
        for at, (one, other) in enumerate(zip(mine, whole, strict=False)):
            if one != other:
                unlike = [key for key in {*one, *other} if one.get(key, "-") != other.get(key, "-")]
                shown = [(key, one.get(key, "-"), other.get(key, "-")) for key in unlike[:2]]
                return f"transaction {at} of partition {number}: (key, wanted, there) {shown}"
        if len(transactions) > len(mine) or (ended and len(mine) > len(transactions)):
            return f"partition {number} has {len(transactions)} transactions, not {len(mine)}"
    return ""
