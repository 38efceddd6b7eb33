"""Client quotas in force: windows that slide, throttle times, mutes with a bound, and what is not counted."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode

from strandline.node.config.quotas import QuotasSection
from strandline.node.kafka.handlers import client_throttles
from strandline.node.kafka.handlers.client_throttles import MAX_MUTE_SECONDS, OTHERS, ClientThrottles
from strandline.node.kafka.handlers.handler import BrokerHandler
from strandline.node.kafka.handlers.timed_steps import TimedSteps
from strandline.node.kafka.wire.apis import APIS, ApiKey
from strandline.node.kafka.wire.codec import RequestHeader
from strandline.node.kafka.wire.handler import EncodedBody, Request, Throttled
from strandline.node.kafka.wire.rate_window import RateWindow, TokenBucket
from strandline.node.kafka.wire.session import Session
from strandline.statemachine.controller.client_quota import CONNECTION_RATE, QuotaKey
from strandline.statemachine.controller.controller_commands import AlterClientQuotas
from strandline.statemachine.controller.feature_levels import ADDRESSES
from strandline.statemachine.controller.quota_set import QuotaSet
from tests.kafka.handlers.fake_node import FakeNode
from tests.kafka.wire.batches import Record, build
from tests.kafka.wire.entities import entity_of
from tests.runtime.jumping_loop import simulated

KB = 1000
PRODUCED, FETCHED = QuotaKey.PRODUCED_BYTES, QuotaKey.FETCHED_BYTES
TIME, MUTATIONS = QuotaKey.REQUEST_TIME, QuotaKey.MUTATIONS


def quota(node: FakeNode, user: str | None, client_id: str | None, **values: float) -> None:
    assert node.cluster.apply(AlterClientQuotas(user, client_id, [*values.items()])) == len(values)
    node.controller.hear()


class Client:
    """Sends requests of its user and id through the node's handler."""

    def __init__(self, node: FakeNode, user: str = "alice", client_id: str | None = "app") -> None:
        self.node, self.client_id = node, client_id
        self.session = Session("kafka", f"User:{user}")

    async def ask(self, key: ApiKey, size: int = 100, version: int | None = None, **fields: Any) -> Any:
        version = APIS[key].last if version is None else version
        payload = entity_of(load_request_schema(key, version), fields)
        header = RequestHeader(key, version, 1, self.client_id)
        request = Request(header, payload, "127.0.0.1", size, 1, self.session)
        return await BrokerHandler(self.node.context).handle(request)

    async def produce(self, size: int, acks: int = -1) -> float:
        """Seconds for which the connection is muted, after a request of this size."""
        answer = await self.ask(
            ApiKey.PRODUCE,
            size,
            transactional_id=None,
            acks=acks,
            timeout=timedelta(seconds=1),
            topic_data=[],
        )
        seconds = muted(answer)
        if acks:
            told = (answer.answer if seconds else answer).throttle_time.total_seconds()
            assert 0 <= told - seconds < 0.002
        return seconds

    async def fetch(self, offset: int = 0) -> tuple[int, float]:
        """Bytes of records, and seconds for which the connection is muted."""
        part = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
        topic = self.node.controller.machine.topic("t")
        assert topic is not None
        answer = await self.ask(
            ApiKey.FETCH, version=12, max_wait=timedelta(0), min_bytes=1, max_bytes=1 << 30,
            isolation_level=0, topics=[{"topic": "t", "partitions": [part]}],
        )  # fmt: skip
        seconds = muted(answer)
        response = answer.answer if seconds else answer
        assert response.error_code is ErrorCode.none
        return sum(len(one.records or b"") for one in response.responses[0].partitions), seconds


def muted(answer: Any) -> float:
    return answer.seconds if isinstance(answer, Throttled) else 0.0


# Windows.


def test_a_window_slides() -> None:
    window = RateWindow(QuotasSection(windows=11, window_seconds=1.0))
    for second in range(11):
        window.record(second + 0.5, 1000)
    assert window.room(10.5, 1100) == pytest.approx(1100 * 10 - 11000)
    assert window.excess(11.4, 1000) == pytest.approx((11000 / 10.9 - 1000) / 1000 * 10.9)
    assert window.room(11.5, 1000) == pytest.approx(1000 * 10 - 10000)  # the first second is over
    assert window.room(100.0, 1000) == pytest.approx(1000 * 10)  # and now all are


def test_a_rate_is_over_all_the_parts_but_one_at_least() -> None:
    window = RateWindow(QuotasSection(windows=11, window_seconds=1.0))
    window.record(0.0, 20 * KB)
    assert window.excess(0.0, KB) == pytest.approx(10.0)  # (2 KB/s - 1 KB/s) of 1 KB/s, of 10 s
    assert window.excess(0.5, KB) == pytest.approx(9.5)


def test_a_bucket_fills_to_a_window_and_may_owe() -> None:
    bucket = TokenBucket(QuotasSection(windows=10, window_seconds=1.0))
    bucket.record(1000.0, 25, 2.0)
    assert bucket.excess(1000.0, 2.0) == pytest.approx(2.5)
    assert bucket.excess(1002.5, 2.0) == pytest.approx(0.0)
    bucket.record(5000.0, 20, 2.0)
    assert bucket.excess(5000.0, 2.0) == pytest.approx(0.0)


# Produce.


@simulated
async def test_a_producer_above_its_quota_is_muted_until_it_is_below() -> None:
    node = FakeNode()
    quota(node, None, "app", producer_byte_rate=10.0 * KB)
    client = Client(node)
    assert await client.produce(100 * KB) == 0.0  # ten seconds' worth at once, as in Kafka
    assert await client.produce(50 * KB) == pytest.approx(5.0)
    await asyncio.sleep(5.0)
    assert await client.produce(0) == pytest.approx(5.0)  # all of it is still in the window
    await asyncio.sleep(6.0)
    assert await client.produce(100 * KB) == 0.0
    assert await client.produce(50 * KB, acks=0) == pytest.approx(5.0)


@simulated
async def test_a_producer_that_obeys_has_its_quota_in_the_long_run() -> None:
    node = FakeNode()
    quota(node, "alice", None, producer_byte_rate=10.0 * KB)
    client, sent, began = Client(node), 0, node.loop.time()
    while node.loop.time() - began < 300:
        await asyncio.sleep(max(await client.produce(7 * KB), 0.001))
        sent += 7 * KB
    assert sent / 300 == pytest.approx(10 * KB, rel=0.1)


@simulated
async def test_a_mute_has_a_bound() -> None:
    node = FakeNode()
    quota(node, None, "app", producer_byte_rate=1.0)
    assert await Client(node).produce(100 << 20) == MAX_MUTE_SECONDS == 60.0


@simulated
async def test_clients_share_what_the_entity_names() -> None:
    node = FakeNode()
    quota(node, "", None, producer_byte_rate=10.0 * KB)
    alice, bob = Client(node, "alice"), Client(node, "bob")
    assert await alice.produce(100 * KB) == 0.0
    assert await Client(node, "alice", "other").produce(50 * KB) > 4.0
    assert await bob.produce(100 * KB) == 0.0  # each user has the default's by itself
    quota(node, None, "app", producer_byte_rate=1.0)
    assert await bob.produce(0) == 0.0  # a user's default comes before a client id
    quota(node, "bob", "app", producer_byte_rate=1000.0 * KB)
    assert await bob.produce(5000 * KB) == 0.0


@simulated
async def test_the_default_client_id_is_each_client_by_itself() -> None:
    node = FakeNode()
    quota(node, None, "", producer_byte_rate=10.0 * KB)
    assert await Client(node, client_id="a").produce(150 * KB) == pytest.approx(5.0)
    assert await Client(node, client_id="b").produce(0) == 0.0
    assert await Client(node, client_id=None).produce(150 * KB) == 0.0


@simulated
async def test_nothing_is_counted_without_quotas_or_after_they_are_gone() -> None:
    node = FakeNode()
    client = Client(node)
    assert await client.produce(1 << 30) == 0.0
    quota(node, None, "app", producer_byte_rate=10.0 * KB)
    assert await client.produce(150 * KB) > 0.0
    node.cluster.apply(AlterClientQuotas(None, "app", [(PRODUCED, None)]))
    node.controller.hear()
    assert await client.produce(1 << 30) == 0.0


# Fetch.


def filled(batches: int, size: int = 10 * KB) -> FakeNode:
    node = FakeNode()
    node.topic()
    node.partition().write(*[build([Record(bytes(size))])] * batches)
    return node


@simulated
async def test_a_consumer_gets_what_its_quota_has_room_for() -> None:
    node = filled(60)
    quota(node, None, "app", consumer_byte_rate=10.0 * KB)
    client = Client(node)
    size, seconds = await client.fetch()
    assert 80 * KB < size <= 100 * KB  # the room of an untouched window, in whole batches
    assert seconds == 0.0
    size, seconds = await client.fetch()
    assert 10 * KB < size < 11 * KB  # the first batch comes whatever its size
    assert 0.0 < seconds < 1.0
    size, again = await client.fetch()
    assert size == 0  # nothing for those that do not wait
    assert again == pytest.approx(seconds)
    await asyncio.sleep(seconds + 0.01)
    assert (await client.fetch())[0] > 10 * KB


@simulated
async def test_a_batch_above_the_whole_window_comes_once_a_window() -> None:
    node = filled(1, 50 * KB)
    quota(node, None, "app", consumer_byte_rate=1.0 * KB)
    client = Client(node)
    size, seconds = await client.fetch()
    assert size > 50 * KB
    assert seconds == pytest.approx(40.0, rel=0.02)
    await asyncio.sleep(seconds)
    assert (await client.fetch())[0] == size


@simulated
async def test_two_reads_at_the_same_time_do_not_both_use_the_room() -> None:
    node = filled(20)
    quota(node, None, "app", consumer_byte_rate=1.0 * KB)
    throttles, asked = node.throttles, RequestHeader(ApiKey.FETCH, 12, 1, "app")
    request = Request(asked, None, "", 100, 1)
    assert throttles.fetch_room(request) == throttles.fetch_room(request) == 10 * KB
    assert throttles.fetched(request, 15 * KB)
    assert not throttles.fetched(request, 15 * KB)
    assert throttles.fetch_room(request) == 0


# Request time.


@simulated
async def test_steps_are_timed_and_waits_are_not() -> None:
    loop = asyncio.get_running_loop()
    spent = 0.0

    def work(seconds: float) -> None:
        nonlocal spent
        spent += seconds

    async def request() -> str:
        work(1.0)
        await asyncio.sleep(100.0)
        work(2.0)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(loop.create_future(), 50.0)
        work(4.0)
        return "answer"

    steps = TimedSteps(request(), lambda: spent)
    others = asyncio.ensure_future(asyncio.sleep(10.0))
    others.add_done_callback(lambda _: work(1000.0))  # of other requests, while this one waits
    assert await steps == "answer"
    assert steps.seconds == 7.0


@simulated
async def test_request_time_counts_the_loop_s_and_no_waiting() -> None:
    node = filled(1)
    spent = iter(range(0, 10_000, 1))
    node.throttles = ClientThrottles(
        lambda: node.controller.machine.client_quotas,
        node.config.quotas,
        node.loop.time,
        processor=lambda: float(next(spent)),  # each step of a request takes a second
    )
    quota(node, "alice", None, request_percentage=1.0)
    client = Client(node)
    assert muted(await client.ask(ApiKey.LIST_GROUPS, states_filter=[], types_filter=[])) == 1.0
    metadata = await client.ask(
        ApiKey.METADATA, topics=[], allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )
    assert isinstance(metadata, Throttled)  # for a window's part at most, as in Kafka
    assert metadata.seconds == 1.0
    body = metadata.answer
    first = body.parts[0] if isinstance(body, EncodedBody) else b""
    assert isinstance(first, bytes)
    assert first[:4] == (1000).to_bytes(4, "big")
    assert muted(await Client(node, "bob").ask(ApiKey.LIST_GROUPS, states_filter=[], types_filter=[])) == 0.0


@simulated
async def test_a_request_that_is_cancelled_is_counted_and_ends() -> None:
    node = filled(0)
    quota(node, "alice", None, request_percentage=50.0)
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    asked = Client(node).ask(
        ApiKey.FETCH, version=12, max_wait=timedelta(seconds=50), min_bytes=1, max_bytes=1000,
        isolation_level=0, topics=[{"topic": "t", "partitions": [part]}],
    )  # fmt: skip
    task = asyncio.ensure_future(asked)
    await asyncio.sleep(1.0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# Changes of topics.


async def created(
    client: Client, names: list[str], version: int | None = None
) -> tuple[list[ErrorCode], float]:
    topics = [
        {"name": name, "num_partitions": 5, "replication_factor": 1, "assignments": [], "configs": []}
        for name in names
    ]
    answer = await client.ask(
        ApiKey.CREATE_TOPICS,
        version=version,
        topics=topics,
        timeout=timedelta(seconds=1),
        validate_only=False,
    )
    response = answer.answer if muted(answer) else answer
    return [topic.error_code for topic in response.topics], muted(answer)


@simulated
async def test_changes_of_topics_wait_for_tokens() -> None:
    node = FakeNode()
    quota(node, "alice", None, controller_mutation_rate=0.5)  # 5.5 at once
    client, throttled = Client(node), ErrorCode.throttling_quota_exceeded
    codes, seconds = await created(client, ["a", "b", "c"])
    assert codes == [ErrorCode.none, ErrorCode.none, throttled]
    assert seconds == pytest.approx(9.0, abs=2.0)
    codes, seconds = await created(client, ["d"], version=5)
    assert codes == [ErrorCode.none]  # versions without the code are let through, and pay
    assert seconds == pytest.approx(17.0, abs=4.0)
    await asyncio.sleep(seconds)
    deleted = await client.ask(
        ApiKey.DELETE_TOPICS, topics=[{"name": "a"}, {"name": "b"}], timeout=timedelta(seconds=1)
    )
    response = deleted.answer if muted(deleted) else deleted
    assert [one.error_code for one in response.responses] == [ErrorCode.none, throttled]


@simulated
async def test_changes_that_are_refused_take_no_tokens() -> None:
    node = FakeNode()
    quota(node, "alice", None, controller_mutation_rate=1.0)  # 11 at once
    client = Client(node)
    assert await created(client, ["a"]) == ([ErrorCode.none], 0.0)
    for _ in range(5):
        assert await created(client, ["a"]) == ([ErrorCode.topic_already_exists], 0.0)
        grown = await client.ask(
            ApiKey.CREATE_PARTITIONS, validate_only=False, timeout=timedelta(seconds=1),
            topics=[{"name": "a", "count": 9, "assignments": [{"broker_ids": [99]}]}],
        )  # fmt: skip
        assert muted(grown) == 0.0
        assert grown.results[0].error_code is ErrorCode.invalid_replica_assignment
    assert await created(client, ["b"]) == ([ErrorCode.none], 0.0)
    assert (await created(client, ["c"]))[1] > 3.0


# What is told, and its bounds.


@simulated
async def test_metrics_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_throttles, "MAX_SERIES", 2)
    node = FakeNode()
    for name in ("a", "b", "c", "d"):
        quota(node, None, name, producer_byte_rate=1.0)
        await Client(node, client_id=name).produce(1000)
    quota(node, None, "", producer_byte_rate=1.0)
    key = PRODUCED.value
    assert node.throttles.throttled == {(key, "client-id=a"): 1, (key, "client-id=b"): 1, (key, OTHERS): 2}
    assert node.throttles.seconds[key, OTHERS] == 2 * MAX_MUTE_SECONDS


@simulated
async def test_a_client_with_ever_new_ids_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_throttles, "MAX_TRACKED", 3)
    node = FakeNode()
    quota(node, None, "", producer_byte_rate=10.0 * KB)
    for number in range(10):
        await Client(node, client_id="steady").produce(15 * KB)
        await Client(node, client_id=f"id-{number}").produce(10)
    assert len(node.throttles._counters[True]) == 3
    assert await Client(node, client_id="steady").produce(0) > 4.0  # what is used is not forgotten


@simulated
async def test_a_user_keeps_what_it_used_whatever_client_ids_it_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_throttles, "MAX_TRACKED", 3)
    node = FakeNode()
    quota(node, "alice", None, producer_byte_rate=1.0 * KB)
    quota(node, None, "", request_percentage=50.0)
    assert await Client(node).produce(100 * KB) == MAX_MUTE_SECONDS
    for number in range(5):
        await Client(node, client_id=f"id-{number}").ask(ApiKey.METADATA, topics=[])
    assert await Client(node).produce(1) == MAX_MUTE_SECONDS


@simulated
async def test_long_client_ids_are_counted_and_not_kept() -> None:
    node, limits = FakeNode(), set[int]()
    quota(node, None, "", producer_byte_rate=1.0 * KB)
    one, other = "x" * 32_000 + "1", "x" * 32_000 + "2"
    assert await Client(node, client_id=one).produce(100 * KB) == MAX_MUTE_SECONDS
    assert await Client(node, client_id=other).produce(1) == 0
    assert await Client(node, client_id=one).produce(1) == MAX_MUTE_SECONDS
    for _, entity in node.throttles._counters[True]:
        limits.add(len(entity.client_id or ""))
    limits.update(len(asked[2]) for asked in node.throttles._limits)
    assert max(limits) <= client_throttles.MAX_CLIENT_ID


@simulated
async def test_a_quota_is_looked_up_once_until_a_quota_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_throttles, "MAX_TRACKED", 8)
    node, asked = FakeNode(), list[str]()
    quota(node, None, "app", producer_byte_rate=1.0 * KB)
    look_up = QuotaSet.limit

    def limit(quotas: QuotaSet, key: QuotaKey, user: str, client_id: str) -> Any:
        if key is PRODUCED:
            asked.append(client_id)
        return look_up(quotas, key, user, client_id)

    monkeypatch.setattr(QuotaSet, "limit", limit)
    for _ in range(3):
        await Client(node).produce(1)
        await Client(node, client_id="none").produce(1)
    assert sorted(asked) == ["app", "none"]
    quota(node, None, "none", producer_byte_rate=1.0)
    assert await Client(node, client_id="none").produce(1000) > 0
    for number in range(20):
        await Client(node, client_id=f"id-{number}").produce(1)
    assert len(node.throttles._limits) <= 8


# Requests.


ENTRY = {"entity": [{"entity_type": "client-id", "entity_name": "app"}]}


def op(key: str, value: float = 0.0, remove: bool = False) -> Mapping[str, Any]:
    return {"key": key, "value": value, "remove": remove}


@pytest.mark.parametrize("version", [0, 1])
@simulated
async def test_quotas_are_set_and_shown_and_in_force(version: int) -> None:
    node = FakeNode()
    user = {"entity": [{"entity_type": "user", "entity_name": None}]}

    async def alter(*entries: Mapping[str, Any], validate_only: bool = False) -> list[tuple[Any, Any]]:
        answer = await node.ask(
            ApiKey.ALTER_CLIENT_QUOTAS, version, entries=entries, validate_only=validate_only
        )
        return [(entry.error_code, entry.error_message) for entry in answer.entries]

    async def shown(*components: tuple[str, int, str | None], strict: bool = False) -> Any:
        asked = [
            {"entity_type": kind, "match_type": match, "match": name} for kind, match, name in components
        ]
        answer = await node.ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, version, components=asked, strict=strict)
        if answer.entries is None:
            return answer.error_code
        return [
            (
                [(part.entity_type, part.entity_name) for part in entry.entity],
                {value.key: value.value for value in entry.values},
            )
            for entry in answer.entries
        ]

    done = (ErrorCode.none, None)
    assert await shown() == []
    assert await alter({**ENTRY, "ops": [op(PRODUCED, KB)]}, validate_only=True) == [done]
    assert await shown() == []
    codes = await alter(
        {**ENTRY, "ops": [op(PRODUCED, KB), op(FETCHED, 2)]},
        {**user, "ops": [op(TIME, 12.5)]},
        {**user, "ops": [op(TIME, 13.5)]},
        {"entity": [{"entity_type": "ip", "entity_name": "host"}], "ops": []},
        {"entity": [], "ops": []},
    )
    invalid = ErrorCode.invalid_request
    assert [code for code, _ in codes] == [ErrorCode.none, ErrorCode.none, invalid, invalid, invalid]
    app = ([("client-id", "app")], {PRODUCED: KB, FETCHED: 2})
    default = ([("user", None)], {TIME: 12.5})
    assert await shown() == [app, default]
    assert await shown(("client-id", 0, "app")) == [app]
    assert await shown(("user", 1, None), strict=True) == [default]
    assert await shown(("user", 2, None)) == [default]
    assert await shown(("ip", 2, None)) == []
    assert await shown(("group", 2, None)) is ErrorCode.unsupported_version
    assert await shown(("user", 9, None)) is invalid
    assert await Client(node).produce(50 * KB) > 1.0
    assert await alter({**ENTRY, "ops": [op(PRODUCED, remove=True)]}) == [done]
    assert await shown(("client-id", 0, "app")) == [([("client-id", "app")], {FETCHED: 2})]

    address = {"entity": [{"entity_type": "ip", "entity_name": "2001:DB8:0::1"}]}
    rate = [op(CONNECTION_RATE, 20.0)]
    for validate_only in (True, False):
        ((code, message),) = await alter({**address, "ops": rate}, validate_only=validate_only)
        assert code is ErrorCode.unsupported_version
        assert "needs feature level 4" in message
    node.controller.machine._state.feature_level = ADDRESSES
    assert await alter({**address, "ops": rate}) == [done]
    assert await alter({"entity": [{"entity_type": "ip", "entity_name": None}], "ops": rate}) == [done]
    one = ([("ip", "2001:db8::1")], {CONNECTION_RATE: 20.0})
    assert await shown(("ip", 2, None)) == [one, ([("ip", None)], {CONNECTION_RATE: 20.0})]
    assert await shown(("ip", 0, "2001:db8::0001"), strict=True) == [one]
    assert await alter({**address, "ops": [op(CONNECTION_RATE, remove=True)]}) == [done]
    assert await shown(("ip", 0, "2001:db8::1")) == []
