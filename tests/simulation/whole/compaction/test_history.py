"""What a copy may lack, by the quick way and by looking at every record."""

from __future__ import annotations

import random

from tests.compaction.logs import Plan, Written, bytes_of, read
from tests.simulation.whole.compaction.history import Bounds, History

KEYS = (b"a", b"b", b"c", None)


def history_of(rng: random.Random) -> History:
    """Batches of two producers, some in transactions that end, both ways, after what others wrote."""
    history, history_end, undecided = History(), 0, set[int]()
    for _ in range(60):
        producer = rng.choice((7, 8))
        ends = producer in undecided and rng.random() < 0.4
        records = tuple(
            (rng.choice(KEYS), rng.choice((None, b"v", b"w")), 0) for _ in range(rng.randint(1, 3))
        )
        transactional = producer in undecided or rng.random() < 0.5
        plan = Plan(() if ends else records, transactional=transactional)
        data = bytes_of(plan, history_end, producer, commit=rng.random() < 0.6)
        if ends:
            undecided.discard(producer)
        elif transactional:
            undecided.add(producer)
        history.wrote(data, read([data]))
        history_end = history.end
    return history


def may_lack(history: History, one: Written, fate: bool | None, bounds: Bounds) -> bool:
    if one.marker:
        return one.offset < bounds.ripe_markers
    if fate is None:
        return False
    if not fate:
        return one.offset < bounds.settled
    if one.key is None:
        return one.offset < max(bounds.clean, bounds.published, bounds.swept)
    below = bounds.stable if one.offset < bounds.published else bounds.end
    newer = [
        other.written.offset
        for other in history.records.values()
        if other.fate is True and other.written.key == one.key and other.written.offset > one.offset
    ]
    return min(newer, default=below) < below or (one.value is None and one.offset < bounds.ripe_tombstones)


def test_the_first_record_that_is_missed() -> None:
    rng = random.Random(1)
    told = set[bool]()
    for _ in range(40):
        history = history_of(rng)
        for _ in range(25):
            start, end, *others = (rng.randint(0, history.end) for _ in Bounds._fields)
            bounds = Bounds(start, end, *others)
            there = {offset for offset in range(history.end) if rng.random() < 0.9}
            missed = [
                offset
                for offset, truth in history.records.items()
                if start <= offset < end
                and offset not in there
                and not may_lack(history, truth.written, truth.fate, bounds)
            ]
            assert history.first_missed(start, end, there, bounds) == (missed[0] if missed else None)
            told.add(bool(missed))
    assert told == {True, False}
