"""How fast batches are decoded: `python -m tests.spark.measure`. Prints megabytes per CPU-second."""

from __future__ import annotations

import random
import time
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]

from strandline.snapshot.decode import COLUMNS, BatchSlice, Decoder
from tests.kafka.wire.batches import Record, build

OBJECT_BYTES = 64 * 1024 * 1024
REPEATS = 5
ALL = tuple(COLUMNS)


def measure(record_bytes: int, batch_bytes: int, columns: tuple[str, ...]) -> tuple[float, float]:
    """MB per CPU-second and ns a record, the best of REPEATS, for uncompressed batches of one partition."""
    rng = random.Random(1)
    count = max(batch_bytes // record_bytes, 1)
    batch = build([Record(rng.randbytes(record_bytes), 1_700_000_000_000 + n) for n in range(count)])
    times = OBJECT_BYTES // len(batch)
    data = batch * times
    stored = [
        BatchSlice(
            data=data,
            start=number * len(batch),
            length=len(batch),
            name="object",
            position=0,
            topic="topic",
            partition=0,
            base_offset=number * count,
            end_offset=(number + 1) * count,
            leader_epoch=1,
            first=0,
            end=times * count,
        )
        for number in range(times)
    ]
    decoder = Decoder(pa.schema([(name, COLUMNS[name]) for name in columns]))
    best = min(_seconds(decoder, stored) for _ in range(REPEATS))
    return len(data) / best / 1e6, best / (times * count) * 1e9


def _seconds(decoder: Decoder, batches: list[BatchSlice]) -> float:
    begin = time.process_time()
    found: Any
    for found in decoder.decode(batches):
        assert found.num_rows
    return time.process_time() - begin


def main() -> None:
    for record_bytes, batch_bytes, columns in (
        (1024, 900_000, ALL),
        (100, 900_000, ALL),
        (1024, 900_000, ("offset",)),
        (100, 900_000, ("offset",)),
        (100, 2_000, ALL),
    ):
        speed, nanoseconds = measure(record_bytes, batch_bytes, columns)
        what = "all columns" if columns == ALL else ", ".join(columns)
        print(f"{record_bytes:5} B in {batch_bytes}: {speed:5.0f} MB/CPU-s, {nanoseconds:4.0f} ns  {what}")


if __name__ == "__main__":
    main()
