"""Loads what a client of level one will read next, in this object and those behind it, in parallel gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from strandline.node.level_one.chunks import Layout
from strandline.node.level_one.file_chunks import AHEAD_BYTES, FileChunks, OpenObject
from strandline.node.level_one.loads import Loads
from strandline.statemachine.partition.level_one import LevelOneExtent

MAX_OBJECTS: Final = 64
"""Most objects that one read looks at to read ahead."""


class Ahead(NamedTuple):
    """One read's knowledge of what its client reads next."""

    place: tuple[bytes, int]
    following: Callable[[int], LevelOneExtent | None]
    """The object that holds an offset."""
    window: int
    """Bytes; 0: not to be read ahead for."""


def read_ahead(loads: Loads, ahead: Ahead, layout: Layout, number: int, offset: int) -> None:
    """Load the window from a chunk of an object on, without waiting; `offset` is where the object ends."""
    room = ahead.window
    for _ in range(MAX_OBJECTS):
        while number < layout.chunks:
            if room <= 0 or not loads.chunk_ahead(layout, number):
                return
            room -= layout.span_of(number)[1]
            number += 1
        following = ahead.following(offset) if room > 0 else None
        if following is None:
            return
        offset = following.end_offset
        known = loads.layout_ahead(ahead.place, following)
        if known is not None:
            layout, number = known, 0
        elif loads.comes_whole(following):
            room -= following.size
        else:
            return  # its chunks are loaded by a later read, once its index is here


def check_ahead(
    loads: Loads, files: FileChunks, ahead: Ahead, file: OpenObject, number: int, offset: int
) -> None:
    """Have the chunks of open files checked that will be sent next; that takes no memory, and no window."""
    room = AHEAD_BYTES
    while room > 0:
        if number == file.layout.chunks:
            following = ahead.following(offset)
            known = None if following is None else loads.layout_ahead(ahead.place, following)
            opened = None if known is None else files.opened_ahead(known)
            if following is None or opened is None:
                return
            file, number, offset = opened, 0, following.end_offset
            continue
        if not files.ahead(file, number):
            return
        room -= file.layout.span_of(number)[1]
        number += 1
