"""What each copy of the compacted table holds, and whether that is what was written."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, TopicPartition

from strandline.cluster.kafka_client import client_config
from strandline.node.compaction.local_log import open_log, stored_logs
from strandline.node.compaction.manifest import LogIdentity
from strandline.node.raft.disk import RealDisk
from tests.compaction.logs import read
from tests.programs.soak.compaction_load import PARTITIONS, TOPIC, partition_of

Table = dict[bytes, bytes]
_READ_SECONDS: Final = 60.0
_SHOWN: Final = 3


class LocalTable(NamedTuple):
    """A replica's local log as its files have it."""

    partition: int
    log_end: int
    table: Table


def expected(model: Table) -> dict[int, Table]:
    """The model by partition."""
    found: dict[int, Table] = {partition: {} for partition in range(PARTITIONS)}
    for key, value in model.items():
        found[partition_of(key)][key] = value
    return found


def differences(where: str, there: Mapping[bytes, bytes], model: Mapping[bytes, bytes]) -> list[str]:
    """One line about keys that are missing, were deleted, or hold something else; none if there are none."""
    missing = sorted(model.keys() - there.keys())
    extra = sorted(there.keys() - model.keys())
    other = sorted(key for key in model.keys() & there.keys() if model[key] != there[key])
    if not (missing or extra or other):
        return []
    shown = [key.decode(errors="replace") for keys in (missing, extra, other) for key in keys[:_SHOWN]]
    return [
        f"{where}: of {len(model):,} keys {len(missing):,} are missing, {len(other):,} hold something else,"
        f" and {len(extra):,} are there that were deleted or aborted: {', '.join(shown)}"
    ]


def taken(records: Iterable[tuple[bytes | None, bytes | None]]) -> Table:
    """The table that records make, in the order of their offsets."""
    table: Table = {}
    for key, value in records:
        if key is None:
            continue
        if value is None:
            table.pop(key, None)
        else:
            table[key] = value
    return table


def consumed(bootstrap: str, partition: int) -> Table:
    """What a consumer of committed records makes of a partition from 0. Raises TimeoutError; it blocks."""
    consumer = Consumer(
        client_config(
            bootstrap, group_id="none", enable_auto_commit=False, enable_partition_eof=True,
            isolation_level="read_committed", check_crcs=True,
        )
    )  # fmt: skip
    consumer.assign([TopicPartition(TOPIC, partition, 0)])
    records: list[tuple[bytes | None, bytes | None]] = []
    deadline = time.monotonic() + _READ_SECONDS
    try:
        while time.monotonic() < deadline:
            for message in consumer.consume(10_000, 0.3):
                error = message.error()
                if error is None:
                    records.append((_bytes(message.key()), _bytes(message.value())))
                elif error.code() == KafkaError._PARTITION_EOF:
                    return taken(records)
    finally:
        consumer.close()
    raise TimeoutError(f"a consumer of {TOPIC}-{partition} was not told its end in {_READ_SECONDS:g} s")


def end_offsets(bootstrap: str) -> dict[int, int]:
    """The high watermark of each partition; it blocks. Raises KafkaException."""
    consumer = Consumer(client_config(bootstrap, group_id="none"))
    try:
        return {
            partition: consumer.get_watermark_offsets(TopicPartition(TOPIC, partition), 10.0)[1]
            for partition in range(PARTITIONS)
        }
    finally:
        consumer.close()


def local_tables(data: Path, cluster: str) -> list[LocalTable]:
    """Every local log of a node that does not run. Raises LocalLogDamaged."""
    found = []
    for (topic_id, partition), folder in stored_logs(RealDisk(), str(data)).items():
        log = open_log(RealDisk(), folder, LogIdentity(cluster, topic_id, partition))
        batches = []
        for one in log.view.segments:
            for block in one.footer.blocks:
                raw, spans = one.batches(block)
                batches += [raw[at.position - block.position :][: at.length] for at in spans]
        records = ((one.key, one.value) for one in read(batches) if not one.marker)
        found.append(LocalTable(partition, log.manifest.log_end, taken(records)))
        log.close()
    return found


def _bytes(data: bytes | str | None) -> bytes | None:
    return data.encode() if isinstance(data, str) else data
