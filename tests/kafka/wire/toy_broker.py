"""A broker of one node that keeps its log in a list: enough of Kafka for real clients to talk to.

It proves the protocol package without anything behind it. It is no model of the real broker: nothing is
replicated, nothing is durable, configurations are taken and forgotten.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from kio.schema.errors import ErrorCode

from strandline.node.kafka.handlers.error_codes import code_of
from strandline.node.kafka.wire.apis import ApiKey
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.record_batch import BatchLimits, InvalidBatch, stamped, validate_produced
from strandline.node.kafka.wire.record_lookup import first_at_or_after, newest
from strandline.node.kafka.wire.response_encoder import Buffer, as_records
from strandline.node.kafka.wire.response_types import ResponseTypes, response_types

NODE = 1
NO_THROTTLE = timedelta(0)
MAX_DECOMPRESSED_BYTES = 16 << 20


@dataclass
class Partition:
    """Batches as they came, each with its base offset."""

    batches: list[tuple[int, bytes]] = field(default_factory=list)
    next_offset: int = 0


@dataclass
class Topic:
    name: str
    partitions: list[Partition]
    id: uuid.UUID = field(default_factory=uuid.uuid4)


class ToyBroker:
    """A `Handler`; `address` is what Metadata tells clients to connect to."""

    def __init__(self, loop: asyncio.AbstractEventLoop, partitions: int = 3) -> None:
        self.loop = loop
        self.address = ("127.0.0.1", 0)
        self.default_partitions = partitions
        self.topics: dict[str, Topic] = {}
        self.seen: set[tuple[int, int]] = set()
        """Every (api key, version) a client has used."""
        self._appended: asyncio.Future[None] = loop.create_future()
        self._next_producer_id = 1000

    async def handle(self, request: Request) -> Any:
        header = request.header
        self.seen.add((header.api_key, header.api_version))
        answer = response_types(header.api_key, header.api_version)
        return await getattr(self, f"_{ApiKey(header.api_key).name.lower()}")(answer, request.payload, header)

    def create(self, name: str, partitions: int) -> Topic:
        topic = self.topics[name] = Topic(name, [Partition() for _ in range(partitions)])
        return topic

    # Metadata and topics.

    async def _metadata(self, a: ResponseTypes, ask: Any, _header: Any) -> Any:
        wanted: list[Topic | str]
        if not ask.topics if ask.__version__ == 0 else ask.topics is None:
            wanted = list(self.topics.values())
        else:
            wanted = []
            for topic in ask.topics:
                by_id = self._by_id(getattr(topic, "topic_id", None))
                if topic.name is None:
                    wanted.append(by_id or "")
                elif topic.name in self.topics or not getattr(ask, "allow_auto_topic_creation", True):
                    wanted.append(self.topics.get(topic.name, topic.name))
                else:
                    wanted.append(self.create(topic.name, self.default_partitions))
        host, port = self.address
        return a.MetadataResponse(
            throttle_time=NO_THROTTLE,
            brokers=(a.MetadataResponseBroker(node_id=NODE, host=host, port=port, rack=None),),
            cluster_id="toy",
            controller_id=NODE,
            topics=tuple(self._describe(a, topic) for topic in wanted),
            error_code=ErrorCode.none,
        )

    def _describe(self, a: ResponseTypes, topic: Topic | str) -> Any:
        if isinstance(topic, str):
            code = ErrorCode.unknown_topic_or_partition
            return a.MetadataResponseTopic(
                error_code=code, name=topic, topic_id=None, is_internal=False, partitions=()
            )
        partitions = tuple(
            a.MetadataResponsePartition(
                error_code=ErrorCode.none,
                partition_index=index,
                leader_id=NODE,
                leader_epoch=7,
                replica_nodes=(NODE,),
                isr_nodes=(NODE,),
                offline_replicas=(),
            )
            for index in range(len(topic.partitions))
        )
        return a.MetadataResponseTopic(
            error_code=ErrorCode.none,
            name=topic.name,
            topic_id=topic.id,
            is_internal=False,
            partitions=partitions,
        )

    def _by_id(self, topic_id: uuid.UUID | None) -> Topic | None:
        return next((topic for topic in self.topics.values() if topic.id == topic_id), None)

    def _find(self, topic: Any, index: int) -> Partition | None:
        name = getattr(topic, "name", None) or getattr(topic, "topic", None)
        found = self.topics.get(name) if name is not None else self._by_id(topic.topic_id)
        return found.partitions[index] if found and 0 <= index < len(found.partitions) else None

    async def _create_topics(self, a: ResponseTypes, ask: Any, _header: Any) -> Any:
        results = []
        for topic in ask.topics:
            count = topic.num_partitions if topic.num_partitions > 0 else self.default_partitions
            error = ErrorCode.topic_already_exists if topic.name in self.topics else ErrorCode.none
            if error is ErrorCode.none:
                self.create(topic.name, count)
            results.append(
                a.CreatableTopicResult(
                    name=topic.name,
                    topic_id=self.topics[topic.name].id,
                    error_code=error,
                    error_message=None,
                    num_partitions=count,
                    replication_factor=1,
                    configs=(),
                )
            )
        return a.CreateTopicsResponse(throttle_time=NO_THROTTLE, topics=tuple(results))

    async def _delete_topics(self, a: ResponseTypes, ask: Any, _header: Any) -> Any:
        names = [state.name for state in ask.topics] if ask.__version__ >= 6 else list(ask.topic_names)
        results = []
        for name in names:
            gone = self.topics.pop(name, None)
            error = ErrorCode.none if gone else ErrorCode.unknown_topic_or_partition
            results.append(
                a.DeletableTopicResult(name=name, topic_id=None, error_code=error, error_message=None)
            )
        return a.DeleteTopicsResponse(throttle_time=NO_THROTTLE, responses=tuple(results))

    async def _create_partitions(self, a: ResponseTypes, ask: Any, _header: Any) -> Any:
        results = []
        for topic in ask.topics:
            partitions = self.topics[topic.name].partitions
            partitions += [Partition() for _ in range(topic.count - len(partitions))]
            results.append(
                a.CreatePartitionsTopicResult(name=topic.name, error_code=ErrorCode.none, error_message=None)
            )
        return a.CreatePartitionsResponse(throttle_time=NO_THROTTLE, results=tuple(results))

    async def _describe_configs(self, a: ResponseTypes, ask: Any, _header: Any) -> Any:
        results = tuple(
            a.DescribeConfigsResult(
                error_code=ErrorCode.none,
                error_message=None,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=(
                    a.DescribeConfigsResourceResult(
                        name="cleanup.policy",
                        value="delete",
                        read_only=False,
                        config_source=5,
                        is_sensitive=False,
                        synonyms=(),
                        config_type=7,
                        documentation=None,
                    ),
                ),
            )
            for resource in ask.resources
        )
        return a.DescribeConfigsResponse(throttle_time=NO_THROTTLE, results=results)

    async def _alter_configs(self, a: ResponseTypes, ask: Any, _header: Any) -> Any:
        taken = tuple(
            a.AlterConfigsResourceResponse(
                error_code=ErrorCode.none,
                error_message=None,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource in ask.resources
        )
        return a.AlterConfigsResponse(throttle_time=NO_THROTTLE, responses=taken)

    async def _incremental_alter_configs(self, a: ResponseTypes, ask: Any, _header: Any) -> Any:
        taken = tuple(
            a.AlterConfigsResourceResponse(
                error_code=ErrorCode.none,
                error_message=None,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource in ask.resources
        )
        return a.IncrementalAlterConfigsResponse(throttle_time=NO_THROTTLE, responses=taken)

    async def _describe_cluster(self, a: ResponseTypes, _ask: Any, _header: Any) -> Any:
        host, port = self.address
        return a.DescribeClusterResponse(
            throttle_time=NO_THROTTLE,
            error_code=ErrorCode.none,
            error_message=None,
            cluster_id="toy",
            controller_id=NODE,
            brokers=(
                a.DescribeClusterBroker(broker_id=NODE, host=host, port=port, rack=None, is_fenced=False),
            ),
        )

    async def _elect_leaders(self, a: ResponseTypes, _ask: Any, _header: Any) -> Any:
        return a.ElectLeadersResponse(
            throttle_time=NO_THROTTLE, error_code=ErrorCode.none, replica_election_results=()
        )

    async def _init_producer_id(self, a: ResponseTypes, _ask: Any, _header: Any) -> Any:
        self._next_producer_id += 1
        return a.InitProducerIdResponse(
            throttle_time=NO_THROTTLE,
            error_code=ErrorCode.none,
            producer_id=self._next_producer_id,
            producer_epoch=0,
        )

    async def _find_coordinator(self, a: ResponseTypes, ask: Any, _header: Any) -> Any:
        none = {
            "error_code": ErrorCode.coordinator_not_available,
            "error_message": None,
            "node_id": -1,
            "host": "",
            "port": -1,
        }
        keys = getattr(ask, "coordinator_keys", ())
        coordinators = tuple(a.Coordinator(key=key, **none) for key in keys)
        return a.FindCoordinatorResponse(throttle_time=NO_THROTTLE, coordinators=coordinators, **none)

    # Records.

    async def _produce(self, a: ResponseTypes, ask: Any, header: Any) -> Any:
        topics = []
        for topic in ask.topic_data:
            partitions = tuple(
                self._append(a, self._find(topic, data.index), data, header.api_version)
                for data in topic.partition_data
            )
            topics.append(a.TopicProduceResponse(**_named(topic), partition_responses=partitions))
        self._appended.set_result(None)
        self._appended = self.loop.create_future()
        if ask.acks == 0:
            return None
        return a.ProduceResponse(responses=tuple(topics), throttle_time=NO_THROTTLE)

    def _append(self, a: ResponseTypes, partition: Partition | None, data: Any, version: int) -> Any:
        error, message, base = ErrorCode.none, None, -1
        if partition is None:
            error = ErrorCode.unknown_topic_or_partition
        else:
            try:
                (batch,) = validate_produced(data.records, version=version, limits=BatchLimits())
            except InvalidBatch as invalid:
                error, message = code_of(invalid.refusal), str(invalid)
            else:
                base = partition.next_offset
                partition.batches.append((base, data.records))
                partition.next_offset = base + batch.record_count
        return a.PartitionProduceResponse(
            index=data.index,
            error_code=error,
            base_offset=base,
            log_append_time=None,
            log_start_offset=0,
            record_errors=(),
            error_message=message,
        )

    async def _fetch(self, a: ResponseTypes, ask: Any, _header: Any) -> Any:
        deadline = self.loop.time() + ask.max_wait.total_seconds()
        while self._available(ask) < ask.min_bytes and self.loop.time() < deadline:
            left = deadline - self.loop.time()
            await asyncio.wait([self._appended], timeout=left)
        topics = []
        budget = ask.max_bytes
        for topic in ask.topics:
            partitions = []
            for wanted in topic.partitions:
                answer, size = self._read(a, self._find(topic, wanted.partition), wanted, budget)
                budget -= size
                partitions.append(answer)
            topics.append(a.FetchableTopicResponse(**_named(topic), partitions=tuple(partitions)))
        return a.FetchResponse(
            throttle_time=NO_THROTTLE, error_code=ErrorCode.none, session_id=0, responses=tuple(topics)
        )

    def _available(self, ask: Any) -> int:
        total = 0
        for topic in ask.topics:
            for wanted in topic.partitions:
                partition = self._find(topic, wanted.partition)
                if partition is None or wanted.fetch_offset > partition.next_offset:
                    return 1 << 31
                total += sum(len(batch) for _, batch in _from(partition, wanted.fetch_offset))
        return total

    def _read(
        self, a: ResponseTypes, partition: Partition | None, wanted: Any, budget: int
    ) -> tuple[Any, int]:
        parts: list[Buffer] = []
        error = ErrorCode.none
        if partition is None:
            error = ErrorCode.unknown_topic_or_partition
        elif not 0 <= wanted.fetch_offset <= partition.next_offset:
            error = ErrorCode.offset_out_of_range
        else:
            room = min(budget, wanted.partition_max_bytes)
            for base, batch in _from(partition, wanted.fetch_offset):
                if parts and room < len(batch):
                    break
                parts += stamped(batch, base, 7)
                room -= len(batch)
        records = as_records(parts)
        end = partition.next_offset if partition else -1
        return a.PartitionData(
            partition_index=wanted.partition,
            error_code=error,
            high_watermark=end,
            last_stable_offset=end,
            log_start_offset=0,
            aborted_transactions=None,
            records=records,
        ), len(records)

    async def _list_offsets(self, a: ResponseTypes, ask: Any, _header: Any) -> Any:
        topics = []
        for topic in ask.topics:
            partitions = []
            for wanted in topic.partitions:
                partition = self._find(topic, wanted.partition_index)
                error = ErrorCode.none if partition else ErrorCode.unknown_topic_or_partition
                offset, timestamp = _look_up(partition, wanted.timestamp) if partition else (-1, -1)
                partitions.append(
                    a.ListOffsetsPartitionResponse(
                        partition_index=wanted.partition_index,
                        error_code=error,
                        offset=offset,
                        timestamp=timestamp,
                        leader_epoch=7 if partition else -1,
                    )
                )
            topics.append(a.ListOffsetsTopicResponse(name=topic.name, partitions=tuple(partitions)))
        return a.ListOffsetsResponse(throttle_time=NO_THROTTLE, topics=tuple(topics))

    async def _offset_for_leader_epoch(self, a: ResponseTypes, ask: Any, _header: Any) -> Any:
        topics = []
        for topic in ask.topics:
            found = self.topics[topic.topic]
            partitions = tuple(
                a.EpochEndOffset(
                    error_code=ErrorCode.none,
                    partition=wanted.partition,
                    leader_epoch=7,
                    end_offset=found.partitions[wanted.partition].next_offset,
                )
                for wanted in topic.partitions
            )
            topics.append(a.OffsetForLeaderTopicResult(topic=topic.topic, partitions=partitions))
        return a.OffsetForLeaderEpochResponse(throttle_time=NO_THROTTLE, topics=tuple(topics))


def _named(topic: Any) -> dict[str, Any]:
    return {key: getattr(topic, key) for key in ("name", "topic", "topic_id") if hasattr(topic, key)}


def _from(partition: Partition, offset: int) -> Iterator[tuple[int, bytes]]:
    ends = [base for base, _ in partition.batches[1:]] + [partition.next_offset]
    return (batch for batch, end in zip(partition.batches, ends, strict=False) if end > offset)


def _look_up(partition: Partition, timestamp: int) -> tuple[int, int]:
    if timestamp == -1:
        return partition.next_offset, -1
    if timestamp in (-2, -4):
        return 0, -1
    if timestamp == -3:
        best = [
            newest(batch, base_offset=base, max_decompressed_bytes=MAX_DECOMPRESSED_BYTES)
            for base, batch in partition.batches
        ]
        return max((found for found in best if found), key=lambda found: found.timestamp, default=(-1, -1))
    for base, batch in partition.batches:
        found = first_at_or_after(
            batch, timestamp, base_offset=base, max_decompressed_bytes=MAX_DECOMPRESSED_BYTES
        )
        if found:
            return found
    return -1, -1
