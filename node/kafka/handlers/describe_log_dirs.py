"""DescribeLogDirs (KIP-113, KIP-827): the replicas of this node with their sizes, and its data folder's disk.

A node has one folder, and no partition's records lie in it: they are in the object storage, once for all
replicas. So a size is that of the records which the replica's state refers to, in level zero, in level one
and in the log, and the same on each replica that is level with the others. The total and the free bytes are
those of the disk that the folder is on.
"""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from strandline.node.kafka.handlers.authorization import NO_CLUSTER, may_with_cluster
from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.deadlines import NO_THROTTLE
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.response_types import ResponseTypes
from strandline.node.raft.disk import DiskUsage
from strandline.node.runtime.slices import Slices
from strandline.statemachine.controller.acl import Operation

_UNKNOWN: Final = DiskUsage(-1, -1)
"""Kafka's word for what is not known."""


async def describe_log_dirs(context: BrokerContext, request: Request, a: ResponseTypes) -> Any:
    """All replicas here, or those of the partitions that are asked for."""
    if not may_with_cluster(context, request, Operation.DESCRIBE):
        return a.DescribeLogDirsResponse(throttle_time=NO_THROTTLE, error_code=NO_CLUSTER.code, results=())
    code, usage = ErrorCode.none, _UNKNOWN
    folder = context.config.node.data
    try:
        told = await context.loop.run_in_executor(context.work_executor, context.disk.usage, folder)
        usage = told or _UNKNOWN
    except OSError:
        code = ErrorCode.kafka_storage_error
    asked = request.payload.topics
    named = None if asked is None else {topic.topic: set(topic.partitions) for topic in asked}
    topics = await _topics(context, a, named)
    result = a.DescribeLogDirsResult(
        error_code=code,
        log_dir=folder,
        topics=topics if code is ErrorCode.none else (),
        total_bytes=usage.total,
        usable_bytes=usage.free,
    )
    return a.DescribeLogDirsResponse(throttle_time=NO_THROTTLE, error_code=ErrorCode.none, results=(result,))


async def _topics(
    context: BrokerContext, a: ResponseTypes, named: dict[str, set[int]] | None
) -> tuple[Any, ...]:
    slices, found = Slices(), []
    for topic in context.controller.machine.topics:
        if named is not None and topic.name not in named:
            continue
        rows = tuple(
            a.DescribeLogDirsPartition(
                partition_index=number,
                partition_size=_size(context, topic.topic_id, number),
                offset_lag=0,
                is_future_key=False,
            )
            for number, partition in enumerate(topic.partitions)
            if context.node_id in partition.replicas and (named is None or number in named[topic.name])
        )
        if rows:
            found.append(a.DescribeLogDirsTopic(name=topic.name, partitions=rows))
        await slices.breathe()
    return tuple(found)


def _size(context: BrokerContext, topic_id: bytes, number: int) -> int:
    """Bytes of a replica's records; none where it is on its way here, or is a coordinator's."""
    partition = context.partitions.get(topic_id, number)
    return 0 if partition is None else partition.machine.extents.bytes + partition.machine.level_one.bytes
