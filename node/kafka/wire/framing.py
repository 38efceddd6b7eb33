"""Frames of Kafka's protocol: a big-endian i32 length, then that many bytes of request or response.

No I/O happens here. The module checks a length before any memory is allocated for it. Memory grows with the
bytes that came and not with the length that was announced, and a large request is received straight into the
buffer it is decoded from.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

_LENGTH: Final = struct.Struct(">i")

FIRST_BYTES: Final = 1024 * 1024
"""Most that is allocated for a frame on the strength of its length alone."""
GROWTH: Final = 4
"""Factor by which a frame's buffer grows once it is full, so copying stays linear in the frame's length."""
NO_FRAME: Final = memoryview(b"")


class FramingError(Exception):
    """The stream has lost its framing: nothing after this point can be read."""


class FrameParser:
    """Cuts a byte stream into request frames.

    Bytes enter in one of two ways. While an admitted frame is incomplete, `space` is the rest of its buffer
    and `filled` says how much of it was used; otherwise they enter by `feed`. Frames leave by `next_frame`.
    Between calls at most one incomplete frame and the unread rest of the last `feed` are kept.
    """

    def __init__(self, max_frame_bytes: int) -> None:
        self.max_frame_bytes = max_frame_bytes
        self.wanted = 0
        """Length of the frame that waits for admission, 0 when none does."""
        self.reserved = 0
        """Length of the frame that was admitted and not yet handed out, 0 when there is none."""
        self._source = NO_FRAME
        self._start = 0
        self._frame: bytearray | None = None
        self._filled = 0

    @property
    def waits_for_bytes(self) -> bool:
        """Whether a frame has begun and not ended, its length prefix included."""
        return self._frame is not None or self._start < len(self._source)

    def space(self) -> memoryview | None:
        """The space for the next bytes of the incomplete frame; None if there is none: use `feed`."""
        if self._frame is None or self._filled == self.reserved:
            return None
        return memoryview(self._frame)[self._filled :]

    def filled(self, size: int) -> None:
        """`size` bytes were received into what `space` returned."""
        frame = self._frame
        assert frame is not None
        self._filled += size
        if self._filled == len(frame) < self.reserved:
            # A new object, because the transport may still hold a view of the old one.
            grown = bytearray(min(self.reserved, GROWTH * len(frame)))
            grown[: self._filled] = frame
            self._frame = grown

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Add bytes that were received elsewhere. Call `keep` before their buffer is used again."""
        view = memoryview(data)
        assert self.space() is None, "an incomplete frame is received in place"
        if self._start < len(self._source):
            view = memoryview(b"".join((self._source[self._start :], view)))
        self._source, self._start = view, 0

    def keep(self) -> None:
        """Copy the unread input, so that the caller's buffer is free again."""
        rest = self._source[self._start :]
        self._source, self._start = (memoryview(bytes(rest)) if rest else NO_FRAME), 0

    def next_frame(self, admit: Callable[[int], bool]) -> memoryview | None:
        """The next complete frame without its length, read-only; None when there is none yet.

        `admit(length)` is asked once the length is known and before memory is taken. While it says no,
        the frame stays where it is, `wanted` tells its length, and the same call may be made again.
        Raises FramingError for a length below 0 or above the limit.
        """
        if self._frame is not None:
            return self._finished()
        available = len(self._source) - self._start
        if available < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._source, self._start)
        if not 0 <= length <= self.max_frame_bytes:
            raise FramingError(f"a frame of {length} bytes is outside 0..{self.max_frame_bytes}")
        if not admit(length):
            self.wanted = length
            return None
        self.wanted = 0
        body = self._source[self._start + _LENGTH.size : self._start + _LENGTH.size + length]
        self._start += _LENGTH.size + len(body)
        if len(body) == length:
            return memoryview(bytes(body))
        self._frame = bytearray(min(length, max(FIRST_BYTES, len(body))))
        self._frame[: len(body)] = body
        self._filled, self.reserved = len(body), length
        return None

    def _finished(self) -> memoryview | None:
        frame = self._frame
        assert frame is not None
        if self._filled < self.reserved:
            return None
        self._frame, self._filled, self.reserved = None, 0, 0
        return memoryview(frame).toreadonly()
