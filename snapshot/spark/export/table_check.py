"""Holds a table against the manifests of its rounds: each offset once, and as many records as were written.

An engine may have put other files in the place of those that were exported, so the table's rows count.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from strandline.snapshot.spark.export.documents import Manifest, spans
from strandline.snapshot.spark.export.tables import Tables


@dataclass
class Expected:
    """The content of a topic's table, as the manifests have it."""

    files: int = 0
    bytes: int = 0
    records: int = 0
    topic_ids: set[str | int] = field(default_factory=set)
    """Several if the topic was deleted and created again: then its offsets are there several times."""
    spans: dict[int, tuple[int, int]] = field(default_factory=dict)
    """The offsets of each partition: the first, and the end."""


def expect(manifest: Manifest, missing: Collection[str], expected: dict[str, Expected]) -> None:
    """Add a round to what is expected of each topic's table; the `missing` ones have not got it yet."""
    for topic, files in manifest.by_topic():
        if topic in missing:
            continue
        one = expected.setdefault(topic, Expected())
        one.files += len(files)
        one.bytes += sum(file.bytes for file in files)
        one.records += sum(file.records for file in files)
    for (topic, partition), (first, end) in spans(manifest.plan.units).items():
        if topic in expected and topic not in missing:
            one = expected[topic]
            one.topic_ids.add(manifest.plan.next[topic]["topic_id"])
            before = one.spans.get(partition, (first, end))
            one.spans[partition] = min(before[0], first), max(before[1], end)


def check_table(tables: Tables, topic: str, expected: Expected, problem: Callable[[str], None]) -> int:
    """Tell of what is wrong with a table; returns how many records it has. Raises ExportError."""
    place = tables.place(topic)
    parts: dict[int, list[Any]] = {}
    for batch in tables.offsets(topic):
        partitions, offsets = (batch.column(name).to_numpy() for name in ("partition", "offset"))
        for partition in np.unique(partitions).tolist():
            parts.setdefault(partition, []).append(offsets[partitions == partition])
    records = 0
    for partition, found in sorted(parts.items()):
        offsets = np.concatenate(found)
        records += offsets.size
        first, end = expected.spans.get(partition, (0, 0))
        outside = offsets[(offsets < first) | (offsets >= end)]
        if outside.size:
            problem(f"{place}: {topic}-{partition} offset {int(outside[0])} is in no manifest")
        twice = offsets.size - np.unique(offsets).size
        if twice and len(expected.topic_ids) == 1:
            problem(f"{place}: {topic}-{partition} has {twice} records twice")
    if records != expected.records:
        problem(f"{place} has {records} records, and the manifests say {expected.records}")
    return records
