"""Damage to a copy of a stored cluster, done so that digests and checksums are right where they can be.

A bit that rots is found by any digest. What audits are for is a wrong thing that was written down well: so a
document is decoded, changed, and encoded again under its own name.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
from crc32c import crc32c

from strandline.snapshot.document import decode
from strandline.snapshot.extent_rows import EXTENT_ROWS, LEVEL_ONE_ROWS, aborted_rows
from strandline.snapshot.level_one_format import batches_of
from strandline.snapshot.level_one_format import parse as parse_level_one
from strandline.snapshot.level_one_writer import LevelOneWriter
from strandline.snapshot.level_zero_format import Batch, encode, parse
from strandline.snapshot.local_document import LocalDocument, decode_local
from strandline.snapshot.local_rows import rows_of
from strandline.snapshot.log_document import LogDocument, decode_log, pack_entry
from strandline.snapshot.names import (
    SnapshotName,
    checkpoint_prefix,
    local_name,
    log_name,
    parse_name,
    snapshot_name,
)
from strandline.statemachine.object_names import object_id, object_name, parse_object_name
from strandline.statemachine.partition.aborted_transactions import AbortedTransactions
from strandline.statemachine.partition.extent import ObjectExtent
from strandline.statemachine.partition.level_one import level_one_name
from tests.spark.stored_cluster import BLOCK_BYTES, CLUSTER, NODES, StoredCluster

State = dict[str, Any]


class Copy:
    """A copy of a cluster's storage in a folder of its own; `cluster` is the one it was made from."""

    def __init__(self, cluster: StoredCluster, root: Path) -> None:
        shutil.copytree(cluster.root, root)
        self.cluster, self.root = cluster, root

    def path(self, key: str) -> Path:
        return self.root / key

    def group(self, topic: str, number: int) -> int:
        return self.cluster.partitions[topic, number].group

    def indexes(self, group: int) -> list[int]:
        """Log indexes of a group's checkpoints, oldest first."""
        folder = self.path(checkpoint_prefix(CLUSTER, group, 0)).parent
        return sorted(int(path.name) for path in folder.iterdir())

    def change_state(
        self, group: int, index: int, change: Callable[[State], None], nodes: Iterable[int] = NODES
    ) -> None:
        """Change the state in some replicas' documents of a checkpoint; digests are made anew."""
        for node in nodes:
            path = self.path(snapshot_name(CLUSTER, group, index, node))
            document = decode(path.read_bytes())
            state = msgpack.unpackb(document.state)
            change(state)
            path.write_bytes(replace(document, state=msgpack.packb(state)).encode())

    def change_newest(self, group: int, change: Callable[[State], None]) -> int:
        """Change all replicas' documents of a group's newest checkpoint; returns its index."""
        index = self.indexes(group)[-1]
        self.change_state(group, index, change)
        return index

    def extents(self, group: int) -> list[ObjectExtent]:
        for partition in self.cluster.partitions.values():
            if partition.group == group:
                return [extent for extent in partition.machine.extents if isinstance(extent, ObjectExtent)]
        raise KeyError(group)

    def level_one(self, topic: str, number: int) -> list[str]:
        """Names of a partition's level-one objects, in offset order."""
        partition = self.cluster.partitions[topic, number]
        return [partition.level_one_name(one) for one in partition.machine.level_one]

    def without_logs(self) -> Copy:
        """Remove every log, so that nothing can be replayed."""
        for path in self.root.glob("snapshots/*/*/*/log-*"):
            path.unlink()
        return self

    def change_log(self, group: int, index: int, change: Callable[[list[Any]], None]) -> None:
        """Change the entries of the log that leads to a checkpoint."""
        indexes = [0, *self.indexes(group)]
        path = self.path(log_name(CLUSTER, group, indexes[indexes.index(index) - 1], index))
        log = decode_log(path.read_bytes())
        entries = log.read()
        change(entries)
        packed = b"".join(pack_entry(*entry) for entry in entries)
        path.write_bytes(LogDocument(log.cluster, log.kind, log.group, log.after, log.index, packed).encode())

    def rewrite_batch(self, extent: ObjectExtent, change: Callable[[bytearray], None]) -> None:
        """Change one batch in its object; the CRCs of batch, section and footer are made anew."""
        path = self.path(extent.object_name)
        data = path.read_bytes()
        batches = []
        for section in parse(extent.object_name, data).sections:
            at = section.position
            while at < section.end:
                length = struct.unpack_from(">i", data, at + 8)[0] + 12
                batch = bytearray(data[at : at + length])
                if at == extent.position:
                    change(batch)
                    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
                batches.append(Batch(section.topic_id, section.partition, bytes(batch)))
                at += length
        name = parse_object_name(extent.object_name)
        path.write_bytes(b"".join(encode(name.epoch, name.object_id, batches).parts))

    def rewrite_level_one(self, name: str, change: Callable[[bytearray, list[int]], None], nth: int) -> None:
        """Change one batch of a level-one object, and its base offset, end offset, leader epoch and newest
        timestamp; all CRCs are made anew."""
        data = self.path(name).read_bytes()
        footer = parse_level_one(name, data)
        writer = LevelOneWriter(footer.topic_id, footer.partition, footer.term, footer.unique, BLOCK_BYTES)
        spans = [
            span
            for block in footer.blocks
            for span in batches_of(name, block, data[block.position : block.end])
        ]
        for number, (at, length, *stamped) in enumerate(spans):
            batch = bytearray(data[at : at + length])
            if number == nth:
                change(batch, stamped)
                struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
            writer.add(batch, *stamped)
        self.path(name).write_bytes(b"".join(writer.finish().parts))

    def put_level_one(self, topic: str, number: int, term: int) -> str:
        """An object that nothing names, written in a term; returns its name."""
        partition = self.cluster.partitions[topic, number]
        name = level_one_name(partition.topic_id, number, term, bytes(15) + b"\xff")
        self._put(name)
        return name

    def put_level_zero(self, epoch: int) -> str:
        """An object that nothing names, of an epoch; returns its name."""
        name = object_name(epoch, object_id(2, 1, bytes(15) + b"\xff"))
        self._put(name)
        return name

    def _put(self, name: str) -> None:
        self.path(name).parent.mkdir(parents=True, exist_ok=True)
        self.path(name).write_bytes(b"nobody opens it")

    def flip(self, key: str, position: int) -> None:
        """Change one bit of a file and leave everything else."""
        data = bytearray(self.path(key).read_bytes())
        data[position] ^= 0x10
        self.path(key).write_bytes(data)

    def documents(self) -> list[SnapshotName]:
        found = []
        for path in sorted(self.root.glob("snapshots/**/*")):
            if path.is_file():
                name = parse_name(path.relative_to(self.root).as_posix())
                if isinstance(name, SnapshotName):
                    found.append(name)
        return found


def change_extents(change: Callable[[Any], Any]) -> Callable[[State], None]:
    """A change of a state's extents, an array of EXTENT_ROWS; what it returns takes their place."""

    def changed(state: State) -> None:
        rows = np.frombuffer(state["extents"], EXTENT_ROWS).copy()
        state["extents"] = change(rows).tobytes()

    return changed


def change_level_one(change: Callable[[Any], Any]) -> Callable[[State], None]:
    """The same for a state's level-one objects, an array of LEVEL_ONE_ROWS."""

    def changed(state: State) -> None:
        rows = np.frombuffer(state["level_one"], LEVEL_ONE_ROWS).copy()
        state["level_one"] = change(rows).tobytes()

    return changed


def change_aborted(change: Callable[[Any], Any]) -> Callable[[State], None]:
    """The same for a state's aborted transactions, an array of ABORTED_ROWS."""

    def changed(state: State) -> None:
        made = AbortedTransactions()
        for row in change(aborted_rows(state["aborted"])).tolist():
            made.append(*row)
        state["aborted"] = made.packed()

    return changed


def set_extent(number: int, **fields: int) -> Callable[[State], None]:
    """Set fields of one extent."""

    def change(rows: Any) -> Any:
        for name, value in fields.items():
            rows[name][number] = value
        return rows

    return change_extents(change)


def set_fields(**fields: Any) -> Callable[[State], None]:
    """Set fields of a state."""
    return lambda state: state.update(fields)


# Compacted partitions.

Part = tuple[bytes, int, int, int, int]
"""A batch, its base offset, end offset, leader epoch and newest timestamp."""


def rewrite_holes(
    copy: Copy, topic: str, number: int, nth: int, change: Callable[[list[Part]], list[Part]]
) -> None:
    """Change the batches of a level-one object, with holes, and what the newest documents say of it, if that
    is another now; then no log says otherwise."""
    partition = copy.cluster.partitions[topic, number]
    old = list(partition.machine.level_one)[nth]
    name = partition.level_one_name(old)
    data = copy.path(name).read_bytes()
    footer = parse_level_one(name, data)
    parts: list[Part] = []
    for block in footer.blocks:
        for span in batches_of(name, block, data[block.position : block.end], footer.holes):
            at, length, base, end, leader_epoch, newest = span
            parts.append((data[at : at + length], base, end, leader_epoch, newest))
    writer = LevelOneWriter(footer.topic_id, footer.partition, footer.term, footer.unique, BLOCK_BYTES)
    writer.allow_holes(footer.base_offset, footer.end_offset)
    for part in change(parts):
        writer.add(*part)
    encoded = writer.finish()
    copy.path(name).write_bytes(b"".join(encoded.parts))

    def mend(rows: Any) -> Any:
        for field in ("max_timestamp", "size", "index_bytes"):
            rows[field][nth] = getattr(encoded.extent, field)
        return rows

    if encoded.extent != old:
        copy.without_logs().change_newest(partition.group, change_level_one(mend))


def part_of(data: bytes, base: int) -> Part:
    """A batch as it lies in level one."""
    last, newest = struct.unpack_from(">i8xq", data, 23)
    (epoch,) = struct.unpack_from(">i", data, 12)
    return data, base, base + last + 1, epoch, newest


def change_local(
    copy: Copy,
    group: int,
    nodes: Iterable[int],
    change: Callable[[LocalDocument], LocalDocument],
) -> None:
    """Change some replicas' local documents beside a group's newest checkpoint."""
    for node in nodes:
        path = copy.path(local_name(CLUSTER, group, copy.indexes(group)[-1], node))
        path.write_bytes(change(decode_local(path.read_bytes())).encode())


def change_rows(change: Callable[[Any], Any]) -> Callable[[LocalDocument], LocalDocument]:
    """A change of a local document's rows, an array of LOCAL_ROWS."""
    return lambda document: document._replace(rows=change(rows_of(document).copy()).tobytes())


def set_removals(**fields: Any) -> Callable[[State], None]:
    """Set offsets of removal in a state."""
    return lambda state: state["removals"].update(fields)
