"""Reads many pieces of many objects straight to where they belong, each object about once.

A level-zero object has batches of many partitions, and a job lifts several partitions at once: what they
want of one object is fetched together, and copied from the answer into each partition's object in the
making. The bytes are not looked at here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Final, NamedTuple

from strandline.node.level_one.level_one_measures import BuilderMeasures
from strandline.node.objectstore.store import (
    NotDone,
    ObjectStore,
    OutcomeUnknown,
    RangeNotFound,
    StoreError,
    Wanted,
)
from strandline.snapshot.object_frame import BadObject

FILLED_AT_ONCE: Final = 64
"""Ranges of files that a thread reads in one go: objects of level zero are small when little is written, and
then a get of each costs more than its bytes."""


class Destination:
    """Destination of pieces; complete when all arrived or one failed. `place` gives the memory for some
    bytes."""

    def __init__(self, place: Callable[[int, int], memoryview]) -> None:
        self.place = place
        self.complete = asyncio.Event()
        self.error: StoreError | BadObject | None = None
        """The first error."""
        self._missing = 0
        self._all_known = False

    def expect(self) -> None:
        self._missing += 1

    def all_known(self) -> None:
        """Nothing will be expected any more."""
        self._all_known = True
        self._look()

    def arrived(self) -> None:
        self._missing -= 1
        self._look()

    def failed(self, error: StoreError | BadObject) -> None:
        self.error = self.error or error
        self.complete.set()

    def _look(self) -> None:
        if self._all_known and not self._missing:
            self.complete.set()


class Piece(NamedTuple):
    """Bytes of an object, and where they go."""

    start: int
    end: int
    destination: Destination
    at: int


class PieceRange(NamedTuple):
    """One get, and the pieces that lie in it."""

    name: str
    start: int
    end: int
    pieces: list[Piece]


class Gathering:
    """All that one job reads. Pieces within `gap` bytes of each other are one get, up to `max_get_bytes`."""

    def __init__(self, gap: int, max_get_bytes: int) -> None:
        self._gap = gap
        self._max_get_bytes = max_get_bytes
        self._objects: dict[str, list[Piece]] = {}

    def add(self, name: str, start: int, length: int, destination: Destination, at: int) -> None:
        """Want some bytes of an object at a place of the destination; long ones come in several pieces."""
        pieces = self._objects.setdefault(name, [])
        end = start + length
        while start < end:
            stop = min(end, start + self._max_get_bytes)
            pieces.append(Piece(start, stop, destination, at))
            destination.expect()
            at += stop - start
            start = stop

    async def fetch(
        self, store: ObjectStore, max_gets: int, measures: BuilderMeasures, loop: asyncio.AbstractEventLoop
    ) -> None:
        """Read everything; what cannot be had fails its destination. Cancelled, it leaves no get behind."""
        ranges = deque(self._ranges())
        if store.has_files:
            left: deque[PieceRange] = deque()
            await _together(
                [self._fill(ranges, left, store, measures, loop) for _ in range(min(max_gets, len(ranges)))],
                loop,
            )
            ranges = left
        await _together(
            [self._fetch(ranges, store, measures, loop) for _ in range(min(max_gets, len(ranges)))], loop
        )

    def _ranges(self) -> Iterator[PieceRange]:
        for name, pieces in self._objects.items():
            pieces.sort(key=lambda piece: piece.start)
            joined: list[Piece] = []
            start = end = 0
            for piece in pieces:
                after = max(end, piece.end)
                if joined and (piece.start > end + self._gap or after - start > self._max_get_bytes):
                    yield PieceRange(name, start, end, joined)
                    joined = []
                if not joined:
                    start, after = piece.start, piece.end
                joined.append(piece)
                end = after
            yield PieceRange(name, start, end, joined)

    async def _fill(
        self,
        ranges: deque[PieceRange],
        left: deque[PieceRange],
        store: ObjectStore,
        measures: BuilderMeasures,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """Read ranges of files, many at a time, to where their pieces belong; those that fail are left."""
        while ranges:
            some, size = [ranges.popleft()], 0
            while ranges and len(some) < FILLED_AT_ONCE and size < self._max_get_bytes:
                size += some[-1].end - some[-1].start
                some.append(ranges.popleft())
            wanted = [
                Wanted(
                    one.name,
                    [
                        (piece.start, piece.destination.place(piece.at, piece.end - piece.start))
                        for piece in one.pieces
                    ],
                )
                for one in some
            ]
            try:
                all_filled = await store.fill(wanted)
            except Exception as error:
                loop.call_exception_handler({"message": "reading many objects", "exception": error})
                all_filled = [False] * len(some)
            for one, filled in zip(some, all_filled, strict=True):
                if not filled:
                    left.append(one)
                    continue
                measures.gets += 1
                for piece in one.pieces:
                    measures.bytes_read += piece.end - piece.start
                    piece.destination.arrived()

    async def _fetch(
        self,
        ranges: deque[PieceRange],
        store: ObjectStore,
        measures: BuilderMeasures,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        while ranges:
            part = ranges.popleft()
            name, start, end, pieces = part
            if all(piece.destination.error for piece in pieces):
                continue
            measures.gets += 1
            try:
                data = memoryview(await store.get_range(name, start, end - start))
            except RangeNotFound as error:
                if len(pieces) > 1:
                    # Others' bytes in this range may be there, before the place where the object is cut.
                    ranges.extendleft(PieceRange(name, one.start, one.end, [one]) for one in reversed(pieces))
                else:
                    cut = BadObject(name, start, end, f"the object is cut: {error.reason}")
                    pieces[0].destination.failed(cut)
            except StoreError as error:
                for piece in pieces:
                    piece.destination.failed(unread(error, piece))
            except Exception as error:
                for piece in pieces:
                    reason = f"{type(error).__name__}: {error}"
                    piece.destination.failed(NotDone("get_range", name, reason, retriable=False))
                loop.call_exception_handler({"message": f"reading {name}", "exception": error})
            else:
                measures.bytes_read += len(data)
                for one in pieces:
                    one.destination.place(one.at, one.end - one.start)[:] = data[
                        one.start - start : one.end - start
                    ]
                    one.destination.arrived()
            await asyncio.sleep(0)


async def _together(jobs: Sequence[Coroutine[Any, Any, None]], loop: asyncio.AbstractEventLoop) -> None:
    """Do all of them at the same time; cancelled, none goes on."""
    tasks = [loop.create_task(job) for job in jobs]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def unread(error: StoreError, piece: Piece) -> StoreError:
    """The error of a get, about the piece that was wanted: the get may have been for more."""
    where = f"{error.key}, bytes {piece.start} to {piece.end}"
    if isinstance(error, OutcomeUnknown):
        return OutcomeUnknown(error.operation, where, error.reason, retriable=error.retriable)
    return NotDone(error.operation, where, error.reason, retriable=error.retriable)
