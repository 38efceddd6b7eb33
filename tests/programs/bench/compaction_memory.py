"""Memory of our map of keys: `python -m tests.programs.bench.compaction_memory KEYS` prints it as JSON."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import numpy as np
import psutil

from strandline.node.compaction.key_map import SLOT_BYTES, KeyHash, KeyMap, Words
from tests.programs.bench.measures import Result


def memory(keys: int) -> Result:
    """Bytes of our map for each key, measured by filling one; and at 100 million, calculated."""
    process, rng = psutil.Process(), np.random.default_rng(1)
    count = min(50_000, keys)
    KeyMap(_map_bytes(count), KeyHash()).put(*_words(rng, count), np.arange(count))  # libraries, buffers
    before = process.memory_info().rss
    held = KeyMap(_map_bytes(keys), KeyHash())
    done = 0
    while done < keys:
        count = min(50_000, keys - done)
        held.put(*_words(rng, count), np.arange(done, done + count))
        done += count
    grown = process.memory_info().rss - before
    result = Result({"key": grown / keys, "many": grown / keys * 1e8})
    if held.size != keys:
        result.problems.append(f"{held.size:,} keys of {keys:,} are in the map")
    result.notes.append(f"measured with {keys:,} keys; at 100 million by calculation; Kafka's by calculation")
    return result


def _map_bytes(keys: int) -> int:
    """Of a map for so many keys, of whose slots three in four are taken."""
    return SLOT_BYTES * (keys * 4 // 3 + 2)


def _words(rng: np.random.Generator, count: int) -> tuple[Words, Words]:
    """Hashes of as many keys."""
    return rng.integers(0, 1 << 64, count, np.uint64), rng.integers(0, 1 << 64, count, np.uint64)


if __name__ == "__main__":
    print(json.dumps(asdict(memory(int(sys.argv[1])))))
