"""What the protocol costs in CPU time. `python -m tests.kafka.wire.measure` prints it."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from kio.schema.errors import ErrorCode

from strandline.node.kafka.wire.apis import ApiKey
from strandline.node.kafka.wire.codec import RequestHeader, decode_request, encode_response
from strandline.node.kafka.wire.record_batch import BatchLimits, stamped, validate_produced
from strandline.node.kafka.wire.response_encoder import as_records
from strandline.node.kafka.wire.response_types import response_types
from strandline.snapshot.compression import Compression
from tests.kafka.wire.batches import Record, build
from tests.kafka.wire.server_harness import produce

LIMITS = BatchLimits(max_batch_bytes=4 << 20)


def cost(work: Callable[[], object]) -> float:
    """CPU seconds of one call: the best of five rounds."""
    rounds = []
    for _ in range(5):
        count, started = 0, time.process_time()
        while time.process_time() - started < 0.05:
            work()
            count += 1
        rounds.append((time.process_time() - started) / count)
    return min(rounds)


def show(name: str, work: Callable[[], object], size: int = 0) -> None:
    seconds = cost(work)
    rate = f"   {seconds / size * 1e9:6.2f} s/GB" if size else ""
    print(f"{name:58} {seconds * 1e6:9.1f} µs{rate}")


def produced(records: Sequence[Record], compression: Compression = Compression.NONE) -> None:
    frame = memoryview(produce(1, build(records, compression=compression)))[4:]

    def work() -> None:
        _, request = decode_request(frame, 200_000)
        data = request.topic_data[0].partition_data[0].records
        validate_produced(data, version=9, limits=LIMITS)

    plain = sum(len(record.value) for record in records)
    name = f"{len(records)} records of {plain // len(records)} B, {compression.name.lower()}"
    show(f"produce request decoded and validated: {name}", work, plain)


def fetched(batch: bytes, copies: int) -> None:
    stored = batch * copies
    header = RequestHeader(ApiKey.FETCH, 12, 1, None)
    a = response_types(ApiKey.FETCH, 12)

    def work() -> Any:
        partition = a.PartitionData(
            partition_index=0,
            error_code=ErrorCode.none,
            high_watermark=1,
            last_stable_offset=1,
            log_start_offset=0,
            aborted_transactions=None,
            preferred_read_replica=-1,
            records=as_records(stamped(stored, 1000, 3)),
        )
        topic = a.FetchableTopicResponse(topic="t", partitions=(partition,))
        response = a.FetchResponse(
            throttle_time=timedelta(0), error_code=ErrorCode.none, session_id=0, responses=(topic,)
        )
        return encode_response(header, response)

    show(f"fetch response of {copies} batches of {len(batch)} B", work, len(stored))


def main() -> None:
    rng = random.Random(1)
    small = memoryview(produce(1, build([Record(bytes(100))])))[4:]
    show("produce request of one record decoded", lambda: decode_request(small, 200_000))
    produced([Record(os.urandom(1000))] * 1024)
    produced([Record(os.urandom(100))] * 9500)
    produced([Record(rng.randbytes(rng.randrange(60, 141))) for _ in range(9500)])
    for compression in list(Compression)[1:]:
        produced([Record(b"abc%d" % number * 12) for number in range(9500)], compression)
    fetched(build([Record(os.urandom(1000))] * 1024), 1)
    fetched(build([Record(os.urandom(1000))] * 8), 128)
    fetched(build([Record(os.urandom(200))]), 3900)


if __name__ == "__main__":
    main()
