"""The data requests on three simulated nodes with real partitions, real logs and a store: across leaders."""

from __future__ import annotations

import random
from collections.abc import Coroutine
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader

from strandline.node.config.quotas import QuotasSection
from strandline.node.controller.leaders import Leader
from strandline.node.kafka.handlers.client_throttles import ClientThrottles
from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.handler import BrokerHandler
from strandline.node.kafka.handlers.kept_fetches import KeptFetches
from strandline.node.kafka.wire.apis import APIS, ApiKey
from strandline.node.kafka.wire.codec import RequestHeader, encode_response
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.record_batch import boundaries, read_header
from strandline.statemachine.controller.controller_commands import CreateTopic
from strandline.statemachine.controller.controller_state import Topic
from tests.kafka.wire.batches import Record, build
from tests.kafka.wire.entities import entity_of
from tests.kafka.wire.sent_bytes import sent_bytes
from tests.partition.cluster import GROUP, TOPIC, PartitionCluster
from tests.statemachine.controller_harness import Log

ELSEWHERE = ErrorCode.not_leader_or_follower


class Nodes:
    """Every node of the cluster as its requests see it."""

    def __init__(self, cluster: PartitionCluster) -> None:
        self.cluster = cluster
        log = Log(nodes=3)
        made = log.do(CreateTopic(TOPIC, "orders", 1, 3, None, [], log.index))
        assert isinstance(made, Topic)
        assert made.partitions[0].group == GROUP
        self.machine = log.machine
        cluster.serve()
        self.fetches = {
            node: KeptFetches(one.loop.time, random.Random(node)) for node, one in cluster.world.nodes.items()
        }
        self.sent = 0

    def leader(self) -> int:
        assert self.cluster.world.run_until(lambda: self.cluster.leading() is not None, timeout=30)
        leading = self.cluster.leading()
        assert leading is not None
        return leading

    def leader_of(self, _group: int) -> Leader | None:
        node = self.cluster.leading()
        return None if node is None else Leader(node, self.cluster.partitions[node].leader_epoch)

    def context(self, node: int) -> BrokerContext:
        partition = self.cluster.partitions[node]
        loop = self.cluster.world.nodes[node].loop
        context = SimpleNamespace(
            node_id=node,
            authorizer=None,
            fetches=self.fetches[node],
            throttles=ClientThrottles(lambda: self.machine.client_quotas, QuotasSection(), loop.time),
            loop=loop,
            controller=SimpleNamespace(machine=self.machine),
            leaders=self,
            partitions=SimpleNamespace(get=lambda *_: partition),
            wall_ms=lambda: 1_700_000_000_000 + int(self.cluster.world.now * 1000),
        )
        return cast(BrokerContext, context)

    def ask(self, node: int, key: ApiKey, version: int, **fields: Any) -> list[Any]:
        """Ask at a node; the answer comes into the list. Requests are started in the order of the calls."""
        self.sent += 1
        payload = entity_of(load_request_schema(key, version), fields)
        request = Request(RequestHeader(key, version, self.sent, None), payload, "", 1, 1)
        answers: list[Any] = []

        async def answer() -> None:
            response = await BrokerHandler(self.context(node)).handle(request)
            sent = sent_bytes(encode_response(request.header, response))
            behind_header = 9 if version >= APIS[key].flexible else 8
            read, _ = entity_reader(load_response_schema(key, version))(sent, behind_header)
            answers.append((read, sent))

        self.start(node, answer())
        return answers

    def start(self, node: int, work: Coroutine[Any, Any, None]) -> None:
        sim = self.cluster.world.nodes[node]
        sim.call(lambda: sim.spawn(work))

    def wait(self, *answers: list[Any], timeout: float = 60.0) -> list[Any]:
        assert self.cluster.world.run_until(lambda: all(answers), timeout=timeout)
        return [found[0][0] for found in answers]

    def produce(self, node: int, sequence: int, seconds: float = 30.0) -> list[Any]:
        batch = build([Record(b"%d" % sequence)], producer=(7, 0, sequence))
        return self.ask(
            node,
            ApiKey.PRODUCE,
            12,
            transactional_id=None,
            acks=-1,
            timeout=timedelta(seconds=seconds),
            topic_data=[{"name": "orders", "partition_data": [{"index": 0, "records": batch}]}],
        )

    def fetch(self, node: int, offset: int, max_wait: float = 0.0, limit: int = 1 << 20) -> list[Any]:
        part = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": limit}
        return self.ask(
            node,
            ApiKey.FETCH,
            12,
            max_wait=timedelta(seconds=max_wait),
            min_bytes=1,
            isolation_level=0,
            topics=[{"topic": "orders", "partitions": [part]}],
        )

    def everything(self, node: int) -> list[int]:
        """The sequences of all batches, by reading a few at a time from the start."""
        found: list[int] = []
        offset = 0
        while True:
            (response,) = self.wait(self.fetch(node, offset, limit=300))
            part = response.responses[0].partitions[0]
            assert part.error_code is ErrorCode.none
            if offset == part.high_watermark:
                return found
            data = part.records
            for start, _ in boundaries(data):
                head = read_header(data, start)
                assert head.base_offset == offset
                found.append(head.base_sequence)
                offset = head.next_offset


def produced(response: Any) -> tuple[ErrorCode, int]:
    part = response.responses[0].partition_responses[0]
    return part.error_code, part.base_offset


def fetched(response: Any) -> Any:
    return response.responses[0].partitions[0]


def test_pipelined_batches_keep_their_order_and_are_read_back() -> None:
    with PartitionCluster(1) as cluster:
        nodes = Nodes(cluster)
        leader = nodes.leader()
        polled = nodes.fetch(leader, 0, max_wait=30.0)
        answers = [nodes.produce(leader, number) for number in range(20)]
        assert [produced(one) for one in nodes.wait(*answers)] == [
            (ErrorCode.none, number) for number in range(20)
        ]
        (response,) = nodes.wait(polled, timeout=1.0)
        assert len(fetched(response).records) > 0, "the long poll was woken by the first of them"
        assert nodes.everything(leader) == [*range(20)]
        latest = {"partition_index": 0, "timestamp": -1}
        asked = nodes.ask(
            leader,
            ApiKey.LIST_OFFSETS,
            7,
            replica_id=-1,
            isolation_level=0,
            topics=[{"name": "orders", "partitions": [latest]}],
        )
        (offsets,) = nodes.wait(asked)
        assert offsets.topics[0].partitions[0].offset == 20


def test_a_long_poll_ends_with_its_leader_and_names_the_next_one_or_none() -> None:
    with PartitionCluster(2) as cluster:
        nodes = Nodes(cluster)
        leader = nodes.leader()
        nodes.wait(nodes.produce(leader, 0))
        polled = nodes.fetch(leader, 1, max_wait=600.0)
        cluster.run(1.0)
        assert not polled
        group = cluster.hosts[leader].groups[GROUP]
        cluster.world.nodes[leader].call(lambda: group.transfer())
        (response,) = nodes.wait(polled, timeout=10.0)
        part = fetched(response)
        assert part.error_code is ELSEWHERE
        assert part.current_leader.leader_id != leader
        following = nodes.leader()
        (response,) = nodes.wait(nodes.fetch(leader, 0))
        assert fetched(response).current_leader.leader_id == following
        (response,) = nodes.wait(nodes.fetch(following, 0))
        assert fetched(response).error_code is ErrorCode.none


def test_a_leader_that_is_cut_off_refuses_and_sends_no_consumer_back() -> None:
    with PartitionCluster(3) as cluster:
        nodes = Nodes(cluster)
        old = nodes.leader()
        nodes.wait(*[nodes.produce(old, number) for number in range(5)])
        cluster.world.network.isolate(old)
        hanging = nodes.produce(old, 5)
        timed = nodes.produce(old, 6, seconds=0.05)
        (response,) = nodes.wait(timed, timeout=10.0)
        assert produced(response)[0] in (ErrorCode.request_timed_out, ELSEWHERE)
        assert cluster.world.run_until(lambda: cluster.leading() not in (None, old), timeout=30)
        new = nodes.leader()
        # What comes behind the end of the old leader's log is there, only not here.
        nodes.wait(*[nodes.produce(new, number) for number in range(5, 12)])
        (response,) = nodes.wait(nodes.fetch(old, 12, max_wait=60.0), timeout=50.0)
        assert fetched(response).error_code is ELSEWHERE
        (response,) = nodes.wait(hanging)
        assert produced(response)[0] not in (ErrorCode.none, ErrorCode.out_of_order_sequence_number)
        cluster.world.network.heal_all()
        cluster.settle()
        assert nodes.everything(nodes.leader()) == [*range(12)]
        # A retry of what was unknown is a duplicate, not another record.
        (response,) = nodes.wait(nodes.produce(nodes.leader(), 11))
        assert produced(response) == (ErrorCode.none, 11)
