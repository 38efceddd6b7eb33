"""All that was ever written to the compacted partitions of a run, and what a copy of it may lack.

It is taken from level zero, batch by batch, before any replica applies what follows: so from bytes that no
compaction has touched. A transaction's marker there tells whether it was committed, not the rows of a state.
"""

from __future__ import annotations

import struct
from bisect import bisect_right, insort
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from strandline.statemachine.partition.extent import InlineExtent
from strandline.statemachine.partition.partition import PartitionStateMachine
from tests.compaction.logs import Written, read
from tests.simulation.store import SimStore
from tests.simulation.whole.objects import BODY, Place
from tests.simulation.whole.transactions.coordinated import TRANSACTIONAL

CONTROL: Final = 0x20
_ATTRIBUTES: Final = 21
_PRODUCER: Final = 43
_CONTROL_TYPE: Final = 61 + 5 + 2
"""See transactions/followers.py."""
_ABORT: Final = 0
_EVERYTHING: Final = 1 << 40


@dataclass(slots=True)
class Truth:
    """A record, or a marker, as it was written."""

    written: Written
    fate: bool | None
    """Whether it is committed; None while its transaction is open."""


class Bounds(NamedTuple):
    """What is claimed of a copy, in offsets, and which tombstones and markers may be gone by now."""

    start: int
    end: int
    clean: int
    settled: int
    ripe_tombstones: int
    ripe_markers: int
    published: int
    """Level one was replaced from a compacted log up to here: what is copied from there may lack what a
    record beyond the copy's end supersedes."""
    stable: int
    """The last stable offset."""
    swept: int = 0
    """Rounds, also one under way or broken off, have taken what has no key from below this."""


@dataclass(slots=True)
class History:
    """One partition's."""

    end: int = 0
    records: dict[int, Truth] = field(default_factory=dict)
    """By offset, which rise."""
    batches: dict[bytes, int] = field(default_factory=dict)
    """The base offset of each batch, by its bytes behind what the broker stamps."""
    by_key: dict[bytes, list[int]] = field(default_factory=dict)
    """The offsets of each key's committed records, in order."""
    following: dict[int, int] = field(default_factory=dict)
    """By the offset of a committed record, that of the next one of its key."""
    _open: dict[int, list[int]] = field(default_factory=dict)
    """The offsets of each producer's transaction that is not decided."""

    def wrote(self, data: bytes, records: list[Written]) -> None:
        """A batch, with its base offset, and what is in it."""
        attributes = struct.unpack_from(">h", data, _ATTRIBUTES)[0]
        producer: int = struct.unpack_from(">q", data, _PRODUCER)[0]
        if not records[0].marker:
            self.batches[data[BODY:]] = records[0].offset
        for one in records:
            if one.marker:
                self.records[one.offset] = Truth(one, True)
                commit = int.from_bytes(data[_CONTROL_TYPE : _CONTROL_TYPE + 2], "big") != _ABORT
                for offset in self._open.pop(producer, ()):
                    self._decided(offset, commit)
            elif attributes & TRANSACTIONAL:
                self.records[one.offset] = Truth(one, None)
                self._open.setdefault(producer, []).append(one.offset)
            else:
                self.records[one.offset] = Truth(one, None)
                self._decided(one.offset, True)
        self.end = records[-1].offset + 1

    def _decided(self, offset: int, commit: bool) -> None:
        truth = self.records[offset]
        truth.fate = commit
        if commit and truth.written.key is not None:
            offsets = self.by_key.setdefault(truth.written.key, [])
            insort(offsets, offset)
            at = bisect_right(offsets, offset)
            if at > 1:
                self.following[offsets[at - 2]] = offset
            if at < len(offsets):
                self.following[offset] = offsets[at]

    def first_missed(self, start: int, end: int, there: Container[int], bounds: Bounds) -> int | None:
        """The first offset between two of what was written, is not there, and must be."""
        # Most of what a compacted log lacks is superseded below any bound, which one lookup tells.
        following, always = self.following, min(bounds.stable, bounds.end)
        for offset in range(max(start, 0), min(end, self.end)):
            if offset in there or following.get(offset, always) < always or offset not in self.records:
                continue
            if not self.may_lack(offset, bounds):
                return offset
        return None

    def may_lack(self, offset: int, bounds: Bounds) -> bool:
        """Whether a copy with these bounds may be without a record."""
        truth = self.records[offset]
        one = truth.written
        if one.marker:
            return offset < bounds.ripe_markers
        if truth.fate is None:
            return False
        if not truth.fate:
            return offset < bounds.settled
        if one.key is None:
            return offset < max(bounds.clean, bounds.published, bounds.swept)
        below = bounds.stable if offset < bounds.published else bounds.end
        if self.following.get(offset, below) < below:
            return True
        return one.value is None and offset < bounds.ripe_tombstones

    def table(self, start: int = 0) -> dict[bytes, Written]:
        """The newest committed record of each key, from a start offset on, that was not deleted."""
        newest = {key: self.records[offsets[-1]].written for key, offsets in self.by_key.items()}
        return {key: one for key, one in newest.items() if one.value is not None and one.offset >= start}

    def deleted(self, ripe: int, start: int) -> set[bytes]:
        """The keys whose newest record is a tombstone below an offset, or is below the start offset."""
        newest = ((key, self.records[offsets[-1]].written) for key, offsets in self.by_key.items())
        return {key for key, one in newest if one.offset < start or (one.value is None and one.offset < ripe)}


class Copies:
    """The histories of all compacted partitions, and the rules for copies of them."""

    def __init__(self, store: SimStore, broken: Callable[[str, str], None]) -> None:
        self.by_place: dict[Place, History] = {}
        self.on_keyless: Callable[[Place], None] = lambda place: None
        """Hears of each batch with a record without a key, as it is written."""
        self._store = store
        self._broken = broken
        self._parsed: dict[bytes, list[Written]] = {}

    def history(self, place: Place) -> History:
        return self.by_place.setdefault(place, History())

    def catch_up(self, place: Place, machine: PartitionStateMachine) -> None:
        """Take in what a state has in level zero beyond what is known."""
        history = self.history(place)
        if machine.next_offset <= history.end:
            return
        for extent in machine.extents.between(history.end, machine.next_offset, _EVERYTHING):
            if isinstance(extent, InlineExtent):
                data = extent.data
            else:
                whole = self._store.objects[extent.object_name]
                data = whole[extent.position : extent.position + extent.length]
            if extent.base_offset != history.end:
                self._broken(
                    "history", f"{place}: {history.end} follows, and a batch is at {extent.base_offset}"
                )
                return
            if data[BODY:] in history.batches:
                self._broken("once", f"{place} has one batch at {extent.base_offset} and before")
            data = struct.pack(">q", extent.base_offset) + data[8:]
            records = self.read(data)
            history.wrote(data, records)
            if any(one.key is None and not one.marker for one in records):
                self.on_keyless(place)

    def read(self, data: bytes) -> list[Written]:
        """The records of a batch, each checked against its header. Raises AssertionError."""
        found = self._parsed.get(data)
        if found is None:
            found = self._parsed[data] = read([data])
        return found

    def check(self, who: str, place: Place, batches: Iterable[bytes], bounds: Bounds) -> list[Written]:
        """`clean_is_clean`: C1 to C3, what is settled, and that nothing dead is alive. Its records."""
        history, there = self.history(place), dict[int, Written]()
        last = -1
        for data in batches:
            attributes = struct.unpack_from(">h", data, _ATTRIBUTES)[0]
            for one in self.read(data):
                if one.offset <= last:
                    self._broken("copies rise", f"{who}: {one.offset} follows {last}")
                last = one.offset
                there[one.offset] = one
                self._check_record(who, history, one, attributes, bounds)
        self._check_keys(who, there.values(), bounds.clean)
        missed = history.first_missed(bounds.start, bounds.end, there, bounds)
        if missed is not None:
            self._broken("clean is clean: C3", f"{who} lacks {history.records[missed]} ({bounds})")
        self._check_table(who, history, there, bounds)
        return list(there.values())

    def _check_record(
        self, who: str, history: History, one: Written, attributes: int, bounds: Bounds
    ) -> None:
        truth = history.records.get(one.offset)
        if truth is None or truth.written != one:
            self._broken("true records", f"{who} has {one}; written was {truth}")
        elif one.offset < bounds.settled and not one.marker:
            if attributes & TRANSACTIONAL:
                self._broken("settled", f"{who} has transactional data at {one.offset} ({bounds})")
            if truth.fate is not True and one.offset >= bounds.start:
                self._broken("settled", f"{who} has {truth}, which is not committed ({bounds})")

    def _check_keys(self, who: str, there: Iterable[Written], clean: int) -> None:
        seen: dict[bytes | None, int] = {}
        for one in there:
            if one.offset >= clean or one.marker:
                continue
            if one.key is None:
                self._broken("clean is clean: C2", f"{who} has no key at {one.offset}, below {clean}")
            if one.key in seen:
                self._broken(
                    "clean is clean: C1", f"{who} has {one.key!r} at {seen[one.key]} and {one.offset}"
                )
            seen[one.key] = one.offset

    def _check_table(self, who: str, history: History, there: dict[int, Written], bounds: Bounds) -> None:
        """A key whose newest record is gone from the copy has no older one there: it would be alive again."""
        for one in there.values():
            if one.marker or one.key is None or one.offset < bounds.start:
                continue
            offsets = history.by_key.get(one.key, [])
            at = bisect_right(offsets, bounds.stable - 1) - 1
            if at < 0 or offsets[at] >= bounds.end:
                continue  # the tail behind the copy tells it
            if one.offset < offsets[at] and offsets[at] not in there:
                self._broken(
                    "dead and alive", f"{who} has {one}, not the newer one at {offsets[at]} ({bounds})"
                )
                return
