"""What each copy of the compacted table holds, and whether that is what was written."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from strandline.cluster.kafka_client import client_config
from strandline.node.compaction.local_log import open_log
from strandline.node.compaction.log_folders import stored_logs
from strandline.node.compaction.manifest import LogIdentity
from strandline.node.raft.disk import RealDisk
from strandline.snapshot.aborted import Aborted
from strandline.snapshot.extent_rows import LEVEL_ONE_ROWS, aborted_rows
from strandline.snapshot.level_one_format import batches_of, parse
from strandline.snapshot.spark.newest import newest_document
from strandline.snapshot.spark.session import session
from strandline.snapshot.storage import open_storage
from strandline.statemachine.partition.level_one import LevelOneExtent, level_one_name
from strandline.statemachine.partition.partition_state import snapshot_fields
from tests.compaction.logs import read
from tests.programs.failover.cluster.stores import Storage
from tests.programs.soak.compaction_load import PARTITIONS, TOPIC, Place, partition_of

Table = dict[bytes, bytes]
_READ_SECONDS: Final = 60.0
_SHOWN: Final = 3
_TRANSACTIONAL, _CONTROL = 0x10, 0x20


@dataclass(frozen=True)
class Copy:
    """The records of a partition that a copy of it has, in the order of their offsets; markers left out."""

    partition: int
    end_offset: int
    """The copy says nothing of what comes from here on."""
    records: Sequence[tuple[int, bytes | None, bytes | None]]
    """Offset, key, value."""

    @cached_property
    def table(self) -> Table:
        return taken((key, value) for _, key, value in self.records)

    @cached_property
    def offsets(self) -> set[int]:
        return {offset for offset, _, _ in self.records}

    def tombstones_below(self, ripe: int) -> list[int]:
        """Offsets of the deletions that should be gone."""
        return [offset for offset, _, value in self.records if value is None and offset < ripe]


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


def left_over(where: str, copy: Copy, aborted: Collection[Place], settled: int) -> list[str]:
    """One line if the copy has records of aborted transactions below an offset."""
    there = sorted(
        offset
        for partition, offset in aborted
        if partition == copy.partition and offset < settled and offset in copy.offsets
    )
    if not there:
        return []
    return [f"{where}: {len(there):,} aborted records are there, the first at offset {there[0]}"]


def unripe(where: str, copy: Copy, ripe: int) -> list[str]:
    """One line if the copy has tombstones that may go, and nothing is left to be done."""
    there = copy.tombstones_below(ripe)
    if not there:
        return []
    return [f"{where}: {len(there):,} tombstones below {ripe} are there, the first at offset {there[0]}"]


def removed(copy: Copy, graves: Mapping[bytes, Place]) -> int:
    """How many deleted keys have no tombstone in the copy any more; nothing superseded these."""
    return sum(
        place.partition == copy.partition and place.offset not in copy.offsets for place in graves.values()
    )


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


def consumed(bootstrap: str, partition: int, isolation: str) -> Copy:
    """What a consumer of this isolation level gets of a partition from 0. Raises TimeoutError; it blocks."""
    consumer = Consumer(
        client_config(
            bootstrap, group_id="none", enable_auto_commit=False, enable_partition_eof=True,
            isolation_level=isolation, check_crcs=True,
        )
    )  # fmt: skip
    consumer.assign([TopicPartition(TOPIC, partition, 0)])
    records: list[tuple[int, bytes | None, bytes | None]] = []
    deadline = time.monotonic() + _READ_SECONDS
    try:
        while time.monotonic() < deadline:
            for message in consumer.consume(10_000, 0.3):
                error, offset = message.error(), message.offset()
                assert offset is not None
                if error is None:
                    records.append((offset, _bytes(message.key()), _bytes(message.value())))
                elif error.code() == KafkaError._PARTITION_EOF:
                    return Copy(partition, offset, records)
    finally:
        consumer.close()
    raise TimeoutError(f"a consumer of {TOPIC}-{partition} was not told its end in {_READ_SECONDS:g} s")


def end_offsets(bootstrap: str) -> dict[int, int]:
    """The high watermark of each partition; it blocks. Raises KafkaException.

    A leader that has just changed is looked for again.
    """
    consumer, deadline = Consumer(client_config(bootstrap, group_id="none")), time.monotonic() + _READ_SECONDS
    found: dict[int, int] = {}
    try:
        while len(found) < PARTITIONS:
            place = TopicPartition(TOPIC, len(found))
            try:
                found[place.partition] = consumer.get_watermark_offsets(place, 10.0)[1]
            except KafkaException:
                if time.monotonic() > deadline:
                    raise
                consumer.list_topics(TOPIC, 10.0)
        return found
    finally:
        consumer.close()


def local_copies(data: Path, cluster: str) -> Iterator[Copy]:
    """Every local log of a node that does not run, by its files. Raises LocalLogDamaged."""
    for (topic_id, partition), folder in stored_logs(RealDisk(), str(data)).items():
        log = open_log(RealDisk(), folder, LogIdentity(cluster, topic_id, partition))
        batches = []
        for one in log.view.segments:
            for block in one.footer.blocks:
                raw, spans = one.batches(block)
                batches += [raw[at.position - block.position :][: at.length] for at in spans]
        log.close()
        yield Copy(partition, log.manifest.log_end, _records(batches))


@dataclass(frozen=True)
class LevelOneCopy:
    """Level one as the newest checkpoint of a partition names it."""

    copy: Copy
    """Without what the state's rows call aborted."""
    raw: Copy
    """With it."""
    settled: int
    """Below it nothing aborted may be stored."""


def level_one_copy(
    storage: Storage, cluster: str, partition: int, group: int, topic_id: bytes
) -> LevelOneCopy:
    """Read the objects that the newest checkpoint of a group names. Raises BadObject, StorageError."""
    place = open_storage(storage.url, storage.options)
    found = newest_document(place, cluster, group)
    assert found is not None, "a checkpoint was taken"
    fields = snapshot_fields(found[1].state)
    aborted, end = Aborted(aborted_rows(fields["aborted"]).tobytes()), fields["start_offset"]
    every, committed = list[bytes](), list[bytes]()
    for row in np.frombuffer(fields["level_one"], LEVEL_ONE_ROWS):
        extent = LevelOneExtent._make(row.item())
        name = level_one_name(topic_id, partition, extent.term, extent.unique)
        data = place.get(name)
        footer = parse(name, data)
        for block in footer.blocks:
            for span in batches_of(name, block, data[block.position : block.end], footer.holes):
                batch = data[span.position : span.position + span.length]
                every.append(batch)
                if not (_data_of_transaction(batch) and aborted.has(_producer(batch), span.base_offset)):
                    committed.append(batch)
        end = extent.end_offset
    settled = fields["removals"]["level_one_settled"]
    return LevelOneCopy(
        Copy(partition, end, _records(committed)), Copy(partition, end, _records(every)), settled
    )


def spark_table(storage: Storage) -> dict[int, Table]:
    """By partition what the Spark source makes of the newest checkpoint; it blocks."""
    spark = session("strandline-soak", "local[2]")
    reader = spark.read.format("strandline").option("url", storage.url).option("topic", TOPIC)
    for name, value in storage.options.items():
        reader = reader.option(f"storage.{name}", value)
    rows = reader.load().select("partition", "offset", "key", "value").collect()
    found: dict[int, Table] = {}
    for partition in range(PARTITIONS):
        ordered = sorted(
            (row for row in rows if row["partition"] == partition), key=lambda row: row["offset"]
        )
        found[partition] = taken((_plain(row["key"]), _plain(row["value"])) for row in ordered)
    return found


def _records(batches: Sequence[bytes]) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(one.offset, one.key, one.value) for one in read(batches) if not one.marker]


def _data_of_transaction(batch: bytes) -> bool:
    return bool(batch[22] & _TRANSACTIONAL and not batch[22] & _CONTROL)


def _producer(batch: bytes) -> int:
    return int.from_bytes(batch[43:51], "big", signed=True)


def _plain(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)


def _bytes(data: bytes | str | None) -> bytes | None:
    return data.encode() if isinstance(data, str) else data
