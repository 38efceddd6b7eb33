"""MB of compacted log that one CPU-second cleans: map, filter, rewrite, checksums of all that comes and goes.

    python -m tests.compaction.measure

Half of the log is clean and half is not, 20 MB each; keys of 16 bytes, uniform. All of it is this process's
own CPU time.
"""

from __future__ import annotations

import resource
import time
from typing import NamedTuple

import numpy as np

from strandline.node.compaction.chunk import chunks
from strandline.node.compaction.filter import Ripe, kept, map_keys
from strandline.node.compaction.key_map import KeyHash, KeyMap
from strandline.node.compaction.rewriting import rewritten
from strandline.snapshot.compression import Compression
from tests.compaction.logs import Plan, bytes_of

HALF = 20_000_000
BATCH_BYTES = 16_384
MAP_BYTES = 64 << 20
ROUNDS = 6
WORDS = b"the quick brown fox jumps over the lazy dog and runs " * 40


def made(value_bytes: int, distinct: int, codec: Compression, seed: int, base: int) -> tuple[bytes, int]:
    """Batches of 16 KB before compression; two records in a hundred are tombstones."""
    rng = np.random.default_rng(seed)
    noise = rng.bytes(1 << 20)
    out: list[bytes] = []
    size = 0
    count = max(1, BATCH_BYTES // (value_bytes + 26))
    while size < HALF:
        drawn = rng.integers(0, distinct, count).tolist()
        tombstones = (rng.random(count) < 0.02).tolist()
        records = []
        for key, gone in zip(drawn, tombstones, strict=True):
            at = key * 37 % (len(noise) - value_bytes)
            value = (noise[at : at + value_bytes // 2] + WORDS)[:value_bytes]
            records.append((b"user-%011d" % key, None if gone else value, 0))
        out.append(bytes_of(Plan(tuple(records), codec), base))
        size += len(out[-1])
        base += count
    return b"".join(out), base


class Seconds(NamedTuple):
    """Of this process's CPU."""

    parse: float
    map: float
    rewrite: float

    @property
    def round(self) -> float:
        return self.map + self.rewrite


def cleaned(clean: bytes, dirty: bytes, end: int) -> tuple[Seconds, int]:
    """One round over both, after a look at how long parsing alone takes; and how many records are left."""
    began = time.process_time()
    for _ in chunks(clean):
        pass
    parsed = time.process_time()
    keys = KeyMap(MAP_BYTES, KeyHash())
    for chunk in chunks(dirty):
        assert map_keys(chunk, keys, end) == end
    mapped = time.process_time()
    records = 0
    for data in (clean, dirty):
        for chunk in chunks(data):
            records += sum(one.records for one in rewritten(chunk, kept(chunk, keys, Ripe(0, 0))))
    return Seconds(parsed - began, mapped - parsed, time.process_time() - mapped), records


def measure(value_bytes: int, distinct: int, codec: Compression) -> str:
    """The best of some rounds, as a line."""
    clean, base = made(value_bytes, distinct, codec, 1, 0)
    dirty, end = made(value_bytes, distinct, codec, 2, base)
    megabytes = (len(clean) + len(dirty)) / 1e6
    rounds = [cleaned(clean, dirty, end) for _ in range(ROUNDS)]
    best, left = min(rounds, key=lambda one: one[0].round)
    worst = max(seconds.round for seconds, _ in rounds)
    return (
        f"{value_bytes} B values, {distinct} keys, {codec.name}: MB a CPU-second: parse and CRC "
        f"{len(clean) / 1e6 / best.parse:.0f}, map {len(dirty) / 1e6 / best.map:.0f}, filter and rewrite "
        f"{megabytes / best.rewrite:.0f}, whole round {megabytes / best.round:.0f} (worst of {ROUNDS}: "
        f"{megabytes / worst:.0f}); {end} records, {left} left"
    )


def main() -> None:
    for value_bytes, distinct, codec in (
        (100, 90_000, Compression.NONE),
        (1000, 11_000, Compression.NONE),
        (100, 90_000, Compression.ZSTD),
        (100, 1_000_000, Compression.NONE),
    ):
        print(measure(value_bytes, distinct, codec), flush=True)
    print(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MB at most")


if __name__ == "__main__":
    main()
