"""Offsets and lag of the consumer groups that this node coordinates, a bounded number of samples.

Lag needs two numbers that may lie on different nodes: the committed offset at the group's coordinator, the
high watermark at the partition's replicas. It is told where this node has both, which on a cluster with as
many replicas as nodes is always; the offset is told in any case, so that Prometheus can join the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from strandline.node.admin.exposition import Page, label
from strandline.node.admin.replica_sources import PartitionSource
from strandline.node.admin.source import AdminSource
from strandline.node.runtime.slices import Slices

MAX_OFFSETS: Final = 5_000
"""Most committed offsets of a node's groups in the metrics, by the groups' names; two series each."""


class _Committed(NamedTuple):
    group: str
    topic: str
    partition: int
    offset: int


async def groups(
    page: Page, source: AdminSource, replicas: Iterable[PartitionSource], slices: Slices
) -> None:
    """Committed offsets and lags of the groups coordinated here; `replicas` are those on this node."""
    here = {(replica.topic, replica.number): replica for replica in replicas}
    told = left_out = 0
    for committed in _committed(source):
        if told >= MAX_OFFSETS:
            left_out += 1
            continue
        told += 1
        labels = ",".join(
            label(name, value)
            for name, value in zip(("group", "topic", "partition"), committed[:3], strict=True)
        )
        page.add("strandline_consumer_group_offset", committed.offset, labels)
        replica = here.get((committed.topic, committed.partition))
        if replica is not None:
            # A follower's high watermark may be behind what a consumer has read from the leader.
            lag = max(replica.machine.high_watermark - committed.offset, 0)
            page.add("strandline_consumer_group_lag", lag, labels)
        await slices.breathe()
    page.add("strandline_consumer_group_offsets_left_out", left_out)


def _committed(source: AdminSource) -> Iterator[_Committed]:
    """By group, topic and partition; of topics that are there, under the names they have."""
    machine = source.controller.machine
    led = {
        name: group
        for coordinator in list(source.coordinators.led_groups())
        for name, group in coordinator.machine.groups.items()
    }
    for name in sorted(led):
        for topic_id, partitions in sorted(led[name].offsets.committed.items()):
            topic = machine.topic_by_id(topic_id)
            if topic is not None:
                for partition, offset in sorted(partitions.items()):
                    yield _Committed(name, topic.name, partition, offset.offset)
