"""Joins the parts of an object for writing: many small ones are fewer system calls in one piece."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from strandline.node.objectstore.store import Buffer

JOIN_BELOW = 64 * 1024
"""Parts smaller than this are joined before writing: a copy costs less than a system call."""
WRITE_BYTES = 1024 * 1024


def joined(parts: Sequence[Buffer]) -> Iterator[Buffer]:
    """Yield the same bytes in fewer pieces: runs of small parts are joined, large ones stay as they are."""
    small: list[Buffer] = []
    size = 0
    for part in parts:
        if len(part) >= JOIN_BELOW or size >= WRITE_BYTES:
            if small:
                yield b"".join(small)
            small, size = [], 0
        if len(part) >= JOIN_BELOW:
            yield part
        else:
            small.append(part)
            size += len(part)
    if small:
        yield b"".join(small)
