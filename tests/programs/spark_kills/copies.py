"""The values in the topic that a stream writes to: those that are committed, and all that lie there."""

from __future__ import annotations

import time
import zlib
from collections import Counter
from typing import Any, Final

from strandline.snapshot.producing.brokers import Brokers
from strandline.snapshot.producing.transactions import open_ids
from strandline.snapshot.spark.sink.options import parse
from tests.programs.spark_kills.driver import TRANSACTION_SECONDS
from tests.spark.sink_play import values

_MORE_SECONDS: Final = 30.0


def counted_copies(bootstrap: str, topic: str, partitions: int) -> dict[str, Any]:
    """Counts of what is committed (`counted`), and of that and what was aborted (`lying`).

    What a process left open that was killed would hide what comes after it, so its end is waited for.
    """
    options = parse({"bootstrap": bootstrap, "topic": topic}, streaming=True)
    deadline = time.monotonic() + float(TRANSACTION_SECONDS) + _MORE_SECONDS
    with Brokers(options.bootstrap, _MORE_SECONDS) as brokers:
        while open_ids(brokers, lambda name: True) and time.monotonic() < deadline:
            time.sleep(1.0)
    return {
        "counted": _counts(values(bootstrap, topic, partitions)),
        "lying": _counts(values(bootstrap, topic, partitions, "read_uncommitted")),
    }


def _counts(found: Counter[str]) -> dict[str, Any]:
    numbers = [int(value.partition(" ")[0]) for value in found]
    return {
        "all": sum(found.values()),
        "distinct": len(numbers),
        "first": min(numbers, default=None),
        "last": max(numbers, default=None),
        "checksum": sum(zlib.crc32(value.encode()) for value in found),
    }
