"""Kafka's compression types: decompression within a bound, and compression that every client reads.

A few kilobytes can decompress to gigabytes, so output goes into a buffer of limited size and never further.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Final

import cramjam


class Compression(IntEnum):
    """The lowest three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class DecompressionError(Exception):
    """Bytes that are not what their compression type says."""


class TooLarge(DecompressionError):
    """They decompress to more than the limit."""


_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES: Final = len(_XERIAL_MAGIC) + 8  # two versions follow
_SNAPPY_BLOCK_BYTES: Final = 32 * 1024
_ZSTD_LEVEL: Final = 3
"""The library's own default."""
_LENGTH: Final = struct.Struct(">I")
_FIRST_GUESS: Final = 8
_GROWTH: Final = 4
_LEAST_BYTES: Final = 64 * 1024
_MAPPED_FROM_BYTES: Final = 1024 * 1024

_INTO: Final[dict[Compression, Callable[[bytes | memoryview, bytearray | mmap.mmap], int]]] = {
    Compression.GZIP: cramjam.gzip.decompress_into,
    Compression.LZ4: cramjam.lz4.decompress_into,
    Compression.ZSTD: cramjam.zstd.decompress_into,
}


def decompress(compression: Compression, data: bytes | memoryview, limit: int) -> memoryview:
    """`data` decompressed, at most `limit` bytes. Raises DecompressionError."""
    if compression is Compression.NONE:
        return memoryview(data)
    if compression is Compression.SNAPPY:
        return memoryview(_snappy(bytes(data), limit))
    return _growing(_INTO[compression], data, limit)


def compress(compression: Compression, data: bytes | memoryview) -> bytes:
    """`data` compressed, in the form that clients of all languages read."""
    if compression is Compression.GZIP:
        return bytes(cramjam.gzip.compress(data))
    if compression is Compression.SNAPPY:
        return _xerial(memoryview(data))
    if compression is Compression.LZ4:
        # Java's client reads frames of independent blocks only (KafkaLZ4BlockInputStream).
        frame = cramjam.lz4.Compressor(block_linked=False)
        frame.compress(bytes(data))
        return bytes(frame.finish())
    if compression is Compression.ZSTD:
        return bytes(cramjam.zstd.compress(data, _ZSTD_LEVEL))
    return bytes(data)


def _xerial(data: memoryview) -> bytes:
    """The blocks with lengths of Java's snappy library (SnappyOutputStream)."""
    out = bytearray(_XERIAL_MAGIC + struct.pack(">ii", 1, 1))
    for start in range(0, len(data), _SNAPPY_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _SNAPPY_BLOCK_BYTES]))
        out += _LENGTH.pack(len(block)) + block
    return bytes(out)


def _growing(
    into: Callable[[bytes | memoryview, bytearray | mmap.mmap], int], data: bytes | memoryview, limit: int
) -> memoryview:
    room = min(limit, max(_LEAST_BYTES, _FIRST_GUESS * len(data)))
    while True:
        # A large bytearray is zeroed at once, under the interpreter's lock; mapped memory when it is used.
        output = bytearray(room) if room < _MAPPED_FROM_BYTES else mmap.mmap(-1, room)
        try:
            size = into(data, output)
        except cramjam.DecompressionError as error:
            # The library does not tell a buffer that is too small from bad data by type.
            if "whole buffer" not in str(error):
                raise DecompressionError(str(error)) from None
        else:
            return memoryview(output)[:size]
        if room == limit:
            raise TooLarge(f"it decompresses to more than {limit} bytes")
        room = min(limit, _GROWTH * room)


def _snappy(data: bytes, limit: int) -> bytes:
    """Both forms in use: one raw block, or the blocks with lengths of Java's snappy library."""
    if not data.startswith(_XERIAL_MAGIC):
        return _snappy_block(data, limit)
    blocks: list[bytes] = []
    position = _XERIAL_HEADER_BYTES
    while position < len(data):
        if position + _LENGTH.size > len(data):
            raise DecompressionError("snappy: a block's length is cut off")
        (size,) = _LENGTH.unpack_from(data, position)
        position += _LENGTH.size
        if position + size > len(data):
            raise DecompressionError("snappy: a block is cut off")
        blocks.append(_snappy_block(data[position : position + size], limit))
        limit -= len(blocks[-1])
        position += size
    return b"".join(blocks)


def _snappy_block(block: bytes, limit: int) -> bytes:
    try:
        if cramjam.snappy.decompress_raw_len(block) > limit:
            raise TooLarge(f"a snappy block decompresses to more than the {limit} bytes left")
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise DecompressionError(str(error)) from None
