"""One snapshot on its way between two nodes, in bounded chunks (Raft §7).

Both ends are driven by events and never hold more than a window of chunks. Chunks that are lost, doubled or
out of order cost a resend from where the receiver stands, nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

from strandline.node.raft.disk import DiskFile


class Status(IntEnum):
    """A receiver's answer to a chunk."""

    CONTINUE = 0
    DONE = 1
    BAD = 2


class Sender:
    """The leader's end. `send` gets (offset, bytes); times are the node's clock in seconds."""

    def __init__(
        self, file: DiskFile, index: int, term: int, digest: bytes, chunk_bytes: int, window: int, now: float
    ) -> None:
        self.file = file
        self.index = index
        self.term = term
        self.digest = digest
        self.total = file.size()
        self.progress_at = now
        self.furthest_at = now
        """Since when the receiver has had more of it than ever before."""
        self.starts_over = False
        """Whether it has started over since then, as it does while its disk is full."""
        self._chunk_bytes = chunk_bytes
        self._window_bytes = window * chunk_bytes
        self._acknowledged = 0
        self._sent = 0
        self._furthest = 0

    def next_chunk(self) -> tuple[int, int] | None:
        """(offset, size) of the chunk to send now, or None when the window is full or all is sent."""
        if self._sent >= self.total or self._sent - self._acknowledged >= self._window_bytes:
            return None
        offset = self._sent
        size = min(self._chunk_bytes, self.total - offset)
        self._sent += size
        return offset, size

    def acknowledged(self, offset: int, now: float) -> None:
        """Take an acknowledgement of all bytes below `offset`; 0 means that the receiver starts over."""
        if offset == 0 < self._acknowledged:
            self._acknowledged = self._sent = 0
            self.progress_at = now
            self.starts_over = True
        elif offset > self._acknowledged:
            self._acknowledged = offset
            self._sent = max(self._sent, offset)
            self.progress_at = now
        if offset > self._furthest:
            self._furthest = offset
            self.furthest_at = now
            self.starts_over = False

    def rewind(self, now: float) -> None:
        """Send again from the acknowledged bytes on, because no answer came for too long."""
        self._sent = self._acknowledged
        self.progress_at = now


class Receiver:
    """The follower's end: takes chunks in order and writes them to the incoming file, off the loop."""

    def __init__(self, key: tuple[int, int, int, bytes], file: DiskFile) -> None:
        self.key = key
        """(index, term, total bytes, digest) of the snapshot that is being received."""
        self.file = file
        self.expected = 0
        """Offset of the chunk that may come next."""
        self.written = 0
        self.abandoned = False

    @property
    def total(self) -> int:
        return self.key[2]

    def take(self, offset: int, data: bytes) -> Callable[[], int] | None:
        """The job that writes this chunk and returns the new written offset; None if it is not the next."""
        if offset != self.expected or offset + len(data) > self.total or not data:
            return None
        self.expected += len(data)
        file = self.file

        def write() -> int:
            file.pwrite(data, offset)
            return offset + len(data)

        return write
