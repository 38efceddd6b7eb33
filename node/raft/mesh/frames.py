"""Frames of the mesh: a big-endian u32 length, then one msgpack array `[kind, ...]` of that many bytes.

This module does no I/O. It exists so that every bound on what a peer can make this process allocate
or decode is in one place, and so that parsing stays linear in the bytes received however they arrive.
The kinds and their order on a connection are described in docs/mesh.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Any, Final, NoReturn

import msgpack

_LENGTH: Final = struct.Struct(">I")
_DATA_PREFIX: Final = b"\x92\x00"  # msgpack for "array of two, the first is FrameKind.DATA"

_TLS_RECORDS: Final = frozenset((0x1503, 0x1603))
"""The first two bytes of an alert and of a handshake's message (RFC 8446, section 5.1)."""
HANDSHAKE_FRAME_BYTES: Final = 4096
"""Largest frame a connection may carry before its peer has proved the cluster secret."""


class FrameKind(IntEnum):
    """First element of every frame."""

    DATA = 0
    HELLO = 1
    PROOF = 2
    WELCOME = 3
    REFUSE = 4
    PING = 5
    PONG = 6


class FrameError(Exception):
    """A frame that cannot be read; the connection it came from has lost its framing or its trust."""


class OversizedFrame(FrameError):
    """A length above the reader's limit, noticed before any of the frame's bytes are kept."""

    def __init__(self, length: int, limit: int) -> None:
        super().__init__(f"a frame of {length} bytes is above the limit of {limit}")
        self.is_tls = length >> 16 in _TLS_RECORDS
        """Whether it is the beginning of a record of TLS: the other side speaks that instead."""


class GarbageFrame(FrameError):
    """Bytes that are not one strict msgpack array of a known kind."""


def pack_frame(message: list[Any]) -> bytes:
    """The frame of a small control or handshake message."""
    body: bytes = msgpack.packb(message)
    return _LENGTH.pack(len(body)) + body


def data_frame(packed: bytes) -> bytes:
    """The DATA frame around a payload that is already msgpack; costs one copy of it."""
    return b"".join((_LENGTH.pack(len(packed) + len(_DATA_PREFIX)), _DATA_PREFIX, packed))


def body_bytes(frame: bytes) -> int:
    """Length of a frame as counted against the frame limit, in bytes."""
    return len(frame) - _LENGTH.size


def _no_extensions(code: int, _data: bytes) -> NoReturn:
    raise ValueError(f"msgpack extension type {code} is not allowed")


def unpack_message(body: bytes | memoryview) -> list[Any]:
    """Decode the frame of an authenticated peer: `[kind, ...]`, at least one element.

    Lengths inside are bounded by the frame's own. Raises GarbageFrame, also for extension types,
    timestamps, map keys that are not text or bytes, and anything after the first object.
    """
    try:
        message = msgpack.unpackb(body, strict_map_key=True, max_ext_len=0, ext_hook=_no_extensions)
    except _UNDECODABLE as error:
        raise _garbage(body, error) from None
    return _checked(body, message)


def unpack_handshake(body: bytes | memoryview) -> list[Any]:
    """Decode the frame of a stranger: as unpack_message, with bounds no larger than a hello needs."""
    try:
        message = msgpack.unpackb(
            body,
            strict_map_key=True,
            max_str_len=256,
            max_bin_len=64,
            max_array_len=32,
            max_map_len=0,
            max_ext_len=0,
            ext_hook=_no_extensions,
        )
    except _UNDECODABLE as error:
        raise _garbage(body, error) from None
    return _checked(body, message)


_UNDECODABLE: Final = (ValueError, MemoryError)  # MemoryError: a length that promises more than there is


def _garbage(body: bytes | memoryview, error: Exception) -> GarbageFrame:
    cause = str(error) or type(error).__name__
    return GarbageFrame(f"a frame of {len(body)} bytes is not valid msgpack ({cause})")


def _checked(body: bytes | memoryview, message: Any) -> list[Any]:
    if type(message) is not list or not message or type(message[0]) is not int:
        raise GarbageFrame(f"a frame of {len(body)} bytes is not an array that begins with a kind")
    return message


class FrameReader:
    """Cuts a byte stream into frame bodies; keeps at most one incomplete frame of `limit` bytes.

    `limit` may be raised between two frames, also while a feed() is being consumed: the length of a
    frame is judged when its turn comes.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._partial = bytearray()
        self._needed = _LENGTH.size

    def feed(self, data: bytes) -> Iterator[memoryview]:
        """Yield the bodies that `data` completes, as views valid until the next one is asked for.

        Consume it to the end or drop the reader. Every byte is copied at most once into the partial
        frame and once out of it, so a frame that arrives in n pieces costs O(its length), not O(n²).
        Raises OversizedFrame, after which the stream cannot be read on.
        """
        source: bytes | bytearray = data
        if self._partial:
            self._partial += data
            if len(self._partial) < self._needed:
                return
            source, self._partial = self._partial, bytearray()
        view = memoryview(source)
        start = 0
        while True:
            available = len(view) - start
            if available < _LENGTH.size:
                self._needed = _LENGTH.size
                break
            length: int = _LENGTH.unpack_from(view, start)[0]
            if length > self.limit:
                raise OversizedFrame(length, self.limit)
            self._needed = _LENGTH.size + length
            if available < self._needed:
                break
            yield view[start + _LENGTH.size : start + self._needed]
            start += self._needed
        self._partial = bytearray(view[start:])
