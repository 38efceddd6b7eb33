"""Batches that are compressed again: every client has to read them."""

from __future__ import annotations

import pytest
from aiokafka.codec import gzip_decode, lz4_decode, snappy_decode, zstd_decode  # type: ignore[import-untyped]

from strandline.snapshot.compression import Compression, compress, decompress

CONTENTS = [b"", b"x", b"strand" * 40_000, bytes(range(256)) * 300]
DECODERS = {
    Compression.NONE: bytes,
    Compression.GZIP: gzip_decode,
    Compression.SNAPPY: snappy_decode,
    Compression.LZ4: lz4_decode,
    Compression.ZSTD: zstd_decode,
}


@pytest.mark.parametrize("codec", Compression)
@pytest.mark.parametrize("content", CONTENTS, ids=len)
def test_it_decompresses_here_and_in_a_client(codec: Compression, content: bytes) -> None:
    packed = compress(codec, memoryview(content))
    assert bytes(decompress(codec, packed, 1 << 20)) == content
    if content:
        assert bytes(DECODERS[codec](packed)) == content


def test_lz4_blocks_are_independent() -> None:
    """Java's client refuses frames of dependent blocks (KafkaLZ4BlockInputStream.FLG.validate)."""
    flags = compress(Compression.LZ4, bytes(300_000))[4]
    assert flags >> 6 == 1
    assert flags & 0x20


def test_snappy_is_in_blocks_as_java_writes_it() -> None:
    assert compress(Compression.SNAPPY, b"x" * 100_000).startswith(b"\x82SNAPPY\0\0\0\0\1\0\0\0\1")
