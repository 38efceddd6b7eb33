"""A node of plain objects around the real controller, asked through real frames, in a time that jumps."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, Future
from datetime import timedelta
from functools import partial
from typing import Any, cast

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader

from strandline.node.coordinator.context import CoordinatorContext
from strandline.node.coordinator.decision_hold import DecisionHold
from strandline.node.coordinator.table import Coordinators
from strandline.node.coordinator.told_numbers import ToldNumbers
from strandline.node.kafka.handlers import describe_quorum
from strandline.node.kafka.handlers.action_log import ActionLog
from strandline.node.kafka.handlers.authorizer import Authorizer
from strandline.node.kafka.handlers.client_throttles import ClientThrottles
from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.handler import TABLE, BrokerHandler
from strandline.node.kafka.handlers.kept_fetches import KeptFetches
from strandline.node.kafka.handlers.login_turns import LoginTurns
from strandline.node.kafka.wire.apis import APIS, ApiKey
from strandline.node.kafka.wire.codec import RequestHeader, decode_request, encode_parts, encode_response
from strandline.node.kafka.wire.handler import EncodedBody, Request
from strandline.node.kafka.wire.response_types import response_types
from strandline.node.kafka.wire.session import UNNAMED
from strandline.node.raft.disk import DiskUsage
from strandline.statemachine.controller.controller_commands import DeleteTopic
from strandline.statemachine.controller.controller_state import Topic
from tests.kafka.handlers.fake_cluster import (
    Cluster,
    FakeCalls,
    FakeController,
    FakeLeaders,
    FakeProducerIds,
    FakeVerifier,
    config,
)
from tests.kafka.handlers.fake_partition import NOW, FakeGroup, FakePartition
from tests.kafka.wire.entities import encoded, entity_of, head
from tests.kafka.wire.sent_bytes import sent_bytes


class FakePartitions:
    """The partitions that a node has a replica of, as `PartitionTable` has them."""

    def __init__(self, controller: FakeController) -> None:
        self.replicas: dict[tuple[bytes, int], FakePartition] = {}
        self.transfers: list[tuple[int, int]] = []
        """The group and target of each transfer of leadership that was asked for."""
        self.transfer: Callable[[int, int], bool] = lambda group, target: True
        """Whether one begins."""
        self._controller = controller

    def host(self, topic: Topic) -> None:
        """Have a replica of each partition of a topic."""
        for number in range(len(topic.partitions)):
            self.replicas[topic.topic_id, number] = FakePartition()

    def drop(self, topic_id: bytes) -> None:
        """Have none of a topic any more."""
        for key in [key for key in self.replicas if key[0] == topic_id]:
            self.replicas.pop(key).resign()

    def get(self, topic_id: bytes, number: int) -> FakePartition | None:
        return self.replicas.get((topic_id, number))

    def by_group(self, group: int) -> FakePartition | None:
        place = self._controller.machine.place_of(group)
        replica = None if place is None else self.get(place.topic_id, place.partition)
        if replica is not None:
            replica.group = FakeGroup(partial(self._transfer, group))
        return replica

    def _transfer(self, group: int, target: int) -> bool:
        self.transfers.append((group, target))
        return self.transfer(group, target)


class AtOnce(Executor):
    """Runs what it is given at once: a virtual clock cannot wait for threads."""

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class FakeDisk:
    """A disk of 1000 bytes with 400 free, or one that fails."""

    error: OSError | None = None

    def usage(self, path: str) -> DiskUsage:
        if self.error is not None:
            raise self.error
        return DiskUsage(1000, 400)


class FakeNode:
    """One node of the cluster; a `BrokerContext`. It leads each partition of topics that `topic` makes."""

    def __init__(self, cluster: Cluster | None = None, node_id: int = 1, **topics: Any) -> None:
        self.cluster = cluster or Cluster()
        self.node_id = node_id
        self.config = config(node_id, **topics)
        self.loop = asyncio.get_running_loop()
        self.controller = FakeController(self.cluster)
        self.leaders = FakeLeaders(self.controller)
        self.calls = FakeCalls(self.cluster, node_id)
        self.producer_ids = FakeProducerIds()
        self.rng = random.Random(node_id)
        self.decisions = DecisionHold(self.loop)
        self.coordinators = Coordinators(self.coordinator_context)
        self.verifier = FakeVerifier(ToldNumbers(self.coordinator_context))
        self.partitions = FakePartitions(self.controller)
        self.work_executor: Executor | None = AtOnce()
        self.disk = FakeDisk()
        self.authorizer: Authorizer | None = None
        self.actions = ActionLog(self.loop.time)
        self.login_turns = LoginTurns()
        self.fetches = KeptFetches(self.loop.time, random.Random(node_id))
        self.throttles = ClientThrottles(
            lambda: self.controller.machine.client_quotas, self.config.quotas, self.loop.time
        )
        self.now_ms = NOW
        self.connection = 1
        """Number of the connection by which `ask` sends."""
        self.session = UNNAMED
        """Of the client whose requests `ask` sends."""
        self.controller.hear()
        describe_quorum.serve(self.context)

    @property
    def context(self) -> BrokerContext:
        return cast(BrokerContext, self)

    @property
    def coordinator_context(self) -> CoordinatorContext:
        return cast(CoordinatorContext, self)

    async def ask(self, key: ApiKey, version: int | None = None, /, **asked_for: Any) -> Any:
        """Ask through a frame of this version (the newest), and read the frame that answers.

        Nested structures are dicts; what a version has no field for is left out.
        """
        version = APIS[key].last if version is None else version
        asked = entity_of(load_request_schema(key, version), asked_for)
        header, payload = decode_request(memoryview(head(key, version) + encoded(asked)), 200_000)
        assert payload == asked
        request = Request(header, payload, "127.0.0.1", 100, self.connection, self.session)
        answer = await TABLE[key](self.context, request, response_types(key, version))
        made = (
            encode_parts(header, answer.parts)
            if isinstance(answer, EncodedBody)
            else encode_response(header, answer)
        )
        frame = sent_bytes(made)
        behind_header = 9 if version >= APIS[key].flexible else 8
        response, size = entity_reader(load_response_schema(key, version))(frame, behind_header)
        assert behind_header + size == len(frame)
        return response

    def lost(self) -> None:
        """The connection ends by which `ask` sends."""
        self.fetches.lost(self.connection)

    def wall_ms(self) -> int:
        return self.now_ms

    def topic(self, name: str = "t", partitions: int = 1, **configs: Any) -> Topic:
        made = self.cluster.create(name, partitions, **configs)
        self.controller.hear()
        self.partitions.host(made)
        return made

    def partition(self, name: str = "t", number: int = 0) -> FakePartition:
        topic = self.controller.machine.topic(name)
        assert topic is not None
        return self.partitions.replicas[topic.topic_id, number]

    def delete(self, name: str) -> None:
        """The topic goes, as on a real node: first the controller's replica knows, then the rest."""
        topic = self.controller.machine.topic(name)
        assert topic is not None
        self.cluster.apply(DeleteTopic(topic.topic_id))
        self.controller.hear()
        self.partitions.drop(topic.topic_id)

    # Requests. Where a version has ids in place of names, the name becomes the id.

    async def produce(
        self,
        batches: Mapping[Any, bytes | None],
        version: int | None = None,
        *,
        acks: int = -1,
        seconds: float = 1.0,
        transactional_id: str | None = None,
    ) -> Any:
        """`batches`: records by (topic, partition) or by the partition of topic t; answers by the same."""
        asked = self._topics(batches, lambda number, data: {"index": number, "records": data})
        data = [
            {"name": name, "topic_id": self.topic_id(name), "partition_data": parts} for name, parts in asked
        ]
        fields: dict[str, Any] = {
            "transactional_id": transactional_id,
            "acks": acks,
            "timeout": timedelta(seconds=seconds),
            "topic_data": data,
        }
        if acks == 0:
            return await self.unframed(ApiKey.PRODUCE, version, **fields)
        response = await self.ask(ApiKey.PRODUCE, version, **fields)
        assert response.throttle_time == timedelta(0)
        return response

    async def unframed(self, key: ApiKey, version: int | None, **fields: Any) -> Any:
        """What the request's function returns, for answers that no frame holds."""
        version = APIS[key].last if version is None else version
        payload = entity_of(load_request_schema(key, version), fields)
        request = Request(RequestHeader(key, version, 1, None), payload, "127.0.0.1", 100, 1)
        return await BrokerHandler(self.context).handle(request)

    async def fetch(
        self,
        offsets: Mapping[Any, int | dict[str, Any]],
        version: int | None = None,
        *,
        max_wait: float = 0.0,
        min_bytes: int = 1,
        max_bytes: int = 1 << 30,
        **fields: Any,
    ) -> Any:
        """`offsets`: the offset, or fields of FetchPartition, by (topic, partition) or by the partition."""

        def part(number: int, wanted: int | dict[str, Any]) -> dict[str, Any]:
            more = {"fetch_offset": wanted} if isinstance(wanted, int) else wanted
            return {"partition": number, "partition_max_bytes": 1 << 20, **more}

        data = [
            {"topic": name, "topic_id": self.topic_id(name), "partitions": parts}
            for name, parts in self._topics(offsets, part)
        ]
        response = await self.ask(
            ApiKey.FETCH,
            version,
            max_wait=timedelta(seconds=max_wait),
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            **{"isolation_level": 0, "topics": data, **fields},
        )
        assert response.throttle_time == timedelta(0)
        return response

    async def list_offsets(
        self,
        times: Iterable[tuple[int, int]],
        version: int | None = None,
        *,
        topic: str = "t",
        seconds: float = 1.0,
        committed: bool = False,
        **more: Any,
    ) -> list[Any]:
        """`times`: (partition, timestamp); the partitions' answers in that order."""
        parts = [{"partition_index": number, "timestamp": time, **more} for number, time in times]
        response = await self.ask(
            ApiKey.LIST_OFFSETS,
            version,
            replica_id=-1,
            isolation_level=int(committed),
            topics=[{"name": topic, "partitions": parts}],
            timeout=timedelta(seconds=seconds),
        )
        return [*response.topics[0].partitions]

    def _topics(
        self, wanted: Mapping[Any, Any], part: Callable[[int, Any], Any]
    ) -> list[tuple[Any, list[Any]]]:
        """Neighbours of one topic are one entry, in the order given."""
        found: list[tuple[Any, list[Any]]] = []
        for key, value in wanted.items():
            name, number = key if isinstance(key, tuple) else ("t", key)
            if not found or found[-1][0] != name:
                found.append((name, []))
            found[-1][1].append(part(number, value))
        return found

    def topic_id(self, name: Any) -> Any:
        """The id of a topic, if there is one of this name."""
        topic = self.controller.machine.topic(name) if isinstance(name, str) else None
        if name is None or isinstance(name, uuid.UUID) or topic is None:
            return name if not isinstance(name, str) else uuid.UUID(int=404)
        return uuid.UUID(bytes=topic.topic_id)
