"""Messages between a node and its worker processes: small frames of msgpack over a pipe."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

import msgpack

LENGTH: Final = struct.Struct("<I")
MAX_FRAME_BYTES: Final = 64 * 1024 * 1024
MISUNDERSTOOD: Final = 3
"""Exit code of a worker that got what makes no sense to it: the node is of another build."""


class BadFrame(Exception):
    """The other side does not speak this protocol."""


def framed(message: Sequence[Any]) -> bytes:
    """A message as it goes over the pipe. Raises ValueError when it is too large."""
    body = msgpack.packb(message)
    if len(body) > MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {len(body)} bytes is above {MAX_FRAME_BYTES}")
    return LENGTH.pack(len(body)) + body


def length_of(head: bytes | bytearray) -> int:
    """Number of bytes behind the head of a frame; raises BadFrame."""
    [length] = LENGTH.unpack(head)
    if length > MAX_FRAME_BYTES:
        raise BadFrame(f"a frame of {length} bytes is above {MAX_FRAME_BYTES}")
    return int(length)


def message_of(body: bytes) -> list[Any]:
    """The message of a frame, a list that begins with its kind; raises BadFrame."""
    try:
        message = msgpack.unpackb(body)
    except (ValueError, msgpack.UnpackException) as error:
        raise BadFrame(f"{len(body)} bytes are not a message: {error}") from error
    if not isinstance(message, list) or not message or not isinstance(message[0], str):
        raise BadFrame(f"a message begins with its kind, this one is {str(message)[:80]}")
    return message
