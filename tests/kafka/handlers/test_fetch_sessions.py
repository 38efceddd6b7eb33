"""Fetch sessions (KIP-227): what requests and answers may leave out, and how a session ends."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from strandline.node.kafka.handlers import fetch_sessions
from strandline.node.kafka.handlers.fetch_sessions import FINAL, IDLE_SECONDS, INITIAL
from strandline.node.kafka.wire.apis import APIS, ApiKey
from strandline.node.objectstore.store import NotDone
from tests.kafka.handlers.fake_node import FakeNode
from tests.kafka.handlers.fetch_answers import COMMITTED, P, bases, batch, codes, parts
from tests.kafka.wire.batches import build
from tests.runtime.jumping_loop import run, simulated

VERSIONS = [
    version for version in range(APIS[ApiKey.FETCH].first, APIS[ApiKey.FETCH].last + 1) if version >= 7
]


class Client:
    """One connection's fetches, as a client with a session sends them."""

    def __init__(self, node: FakeNode, version: int | None = None, *, connection: int = 1) -> None:
        self.node = node
        self.version = version
        self.connection = connection
        self.number, self.epoch = 0, INITIAL

    async def fetch(
        self, offsets: Mapping[Any, Any] = {}, *, forgotten: Mapping[str, list[int]] = {}, **fields: Any
    ) -> Any:
        self.node.connection = self.connection
        gone = [
            {"topic": name, "topic_id": self.node.topic_id(name), "partitions": numbers}
            for name, numbers in forgotten.items()
        ]
        response = await self.node.fetch(
            offsets,
            self.version,
            **{
                "session_id": self.number,
                "session_epoch": self.epoch,
                "forgotten_topics_data": gone,
                **fields,
            },
        )
        if response.error_code is ErrorCode.none:
            self.number, self.epoch = response.session_id, self.epoch + 1
        return response


def numbers(response: Any) -> list[int]:
    assert response.error_code is ErrorCode.none
    return [part.partition_index for part in parts(response)]


def node_with(partitions: int) -> FakeNode:
    node = FakeNode()
    node.topic(partitions=partitions)
    return node


@pytest.mark.parametrize("version", VERSIONS)
@simulated
async def test_a_session_names_all_once_and_then_what_has_changed(version: int) -> None:
    node = node_with(3)
    client = Client(node, version)
    response = await client.fetch({0: 0, 1: 0, 2: 0})
    assert (numbers(response), client.number > 0) == ([0, 1, 2], True)
    assert numbers(await client.fetch(max_wait=0.5)) == []
    node.partition(number=1).write(build())
    response = await client.fetch()
    assert (numbers(response), bases(parts(response)[0]), parts(response)[0].high_watermark) == ([1], [0], 3)
    assert response.session_id == client.number
    assert numbers(await client.fetch({1: 3})) == []
    assert numbers(await client.fetch()) == []


@simulated
async def test_what_the_client_has_not_moved_on_from_comes_again() -> None:
    node = node_with(2)
    node.partition(number=1).write(build())
    client = Client(node)
    for _ in range(3):
        response = await client.fetch({0: 0, 1: 0} if client.epoch == INITIAL else {})
        assert bases(parts(response)[-1]) == [0]
    assert numbers(response) == [1]


@simulated
async def test_a_wait_is_ended_by_a_partition_that_the_request_does_not_name() -> None:
    node = node_with(2)
    client = Client(node)
    await client.fetch({0: 0, 1: 0})
    waiting = asyncio.ensure_future(client.fetch(max_wait=30.0))
    await asyncio.sleep(1)
    assert not waiting.done()
    node.partition(number=1).write(build())
    began = node.loop.time()
    assert numbers(await waiting) == [1]
    assert node.loop.time() - began < 1


@simulated
async def test_partitions_are_added_and_forgotten() -> None:
    node = node_with(3)
    node.topic("u")
    client = Client(node)
    assert numbers(await client.fetch({0: 0, 1: 0})) == [0, 1]
    response = await client.fetch({2: 0, ("u", 0): 0}, forgotten={"t": [0, 7]})
    assert numbers(response) == [2, 0]
    for name, number in (("t", 0), ("t", 1), ("t", 2), ("u", 0)):
        node.partition(name, number).write(build())
    assert numbers(await client.fetch()) == [1, 2, 0]
    assert node.fetch_sessions.partitions == 3
    await client.fetch(forgotten={"t": [0, 1, 2], "u": [0]})
    assert (len(node.fetch_sessions), node.fetch_sessions.partitions) == (1, 0)


@simulated
async def test_a_partition_that_is_forgotten_and_named_again_counts_as_told_nothing() -> None:
    node = node_with(1)
    client = Client(node)
    await client.fetch({0: 0})
    await client.fetch(forgotten={"t": [0]})
    assert numbers(await client.fetch({0: 0})) == [0]


@simulated
async def test_an_error_comes_each_time_and_so_does_its_end() -> None:
    node = node_with(2)
    client = Client(node)
    await client.fetch({0: 0, 1: 0})
    node.partition(number=1).leads = False
    for _ in range(2):
        response = await client.fetch()
        assert (numbers(response), codes(response)) == ([1], [ErrorCode.not_leader_or_follower])
    node.partition(number=1).leads = True
    response = await client.fetch()
    assert (numbers(response), codes(response)) == ([1], [ErrorCode.none])
    assert numbers(await client.fetch()) == []
    node.partition(number=0).write(build())
    node.partition(number=0).read_error = NotDone("get_range", "l0/x", "down", retriable=True)
    assert codes(await client.fetch()) == [ErrorCode.kafka_storage_error]


@simulated
async def test_offsets_that_moved_are_told_also_without_records() -> None:
    node = node_with(2)
    partition = node.partition()
    client = Client(node)
    await client.fetch({0: 0, 1: 0}, isolation_level=COMMITTED)
    partition.write(
        batch(), transaction=1
    )  # of a transaction that is open: a committed reader has nothing of it
    (part,) = parts(await client.fetch(isolation_level=COMMITTED))
    assert (bases(part), part.high_watermark, part.last_stable_offset) == ([], 1, 0)
    assert numbers(await client.fetch(isolation_level=COMMITTED)) == []
    partition.end(P, 0, 1)
    (part,) = parts(await client.fetch(isolation_level=COMMITTED))
    assert (part.high_watermark, part.last_stable_offset, bases(part)) == (2, 2, [0, 1])
    await client.fetch({0: 2}, isolation_level=COMMITTED)
    partition.trim(1)
    (part,) = parts(await client.fetch(isolation_level=COMMITTED))
    assert (part.log_start_offset, part.records) == (1, b"")


@simulated
async def test_what_has_given_records_comes_last_the_next_time() -> None:
    node = node_with(3)
    for number in range(3):
        node.partition(number=number).write(*[build()] * 3)
    client = Client(node)
    given = []
    offsets: dict[int, int] = {0: 0, 1: 0, 2: 0}
    for _ in range(6):
        response = await client.fetch(offsets, max_bytes=1)
        ((number, base),) = [(one.partition_index, bases(one)[0]) for one in parts(response) if one.records]
        given.append((number, base))
        offsets = {number: base + 3}
    assert given == [(0, 0), (1, 0), (2, 0), (0, 3), (1, 3), (2, 3)]


@simulated
async def test_another_request_than_the_next_is_refused_and_the_session_goes_on() -> None:
    node = node_with(1)
    client = Client(node)
    await client.fetch({0: 0})
    for epoch in (2, 5):
        response = await client.fetch(session_epoch=epoch)
        assert (response.error_code, response.session_id) == (ErrorCode.invalid_fetch_session_epoch, 0)
    assert numbers(await client.fetch()) == []
    assert (await client.fetch(session_epoch=1)).error_code is ErrorCode.invalid_fetch_session_epoch


@pytest.mark.parametrize("version", VERSIONS)
@simulated
async def test_a_session_that_is_not_there_is_not_found(version: int) -> None:
    node = node_with(1)
    client = Client(node, version)
    await client.fetch({0: 0})
    for number, epoch, connection in ((client.number + 1, 1, 1), (0, 1, 1), (client.number, 1, 2)):
        node.connection = connection
        response = await node.fetch({}, version, session_id=number, session_epoch=epoch, max_wait=30.0)
        assert response.error_code is ErrorCode.fetch_session_id_not_found
        assert (response.session_id, response.responses) == (0, ())
    assert numbers(await client.fetch()) == []


@simulated
async def test_a_whole_request_ends_a_session_or_begins_the_next() -> None:
    node = node_with(2)
    client = Client(node)
    await client.fetch({0: 0, 1: 0})
    first = client.number
    response = await node.fetch({0: 0}, session_id=0, session_epoch=FINAL)
    assert (response.session_id, numbers(response)) == (0, [0])
    assert numbers(await client.fetch()) == [], "a request without a session leaves it as it is"
    response = await client.fetch({1: 0}, session_epoch=INITIAL)
    assert (numbers(response), client.number != first, len(node.fetch_sessions)) == ([1], True, 1)
    client.epoch = 1
    node.partition(number=0).write(build())
    assert numbers(await client.fetch()) == [], "only what the second one names"
    response = await client.fetch({0: 0}, session_epoch=FINAL)
    assert (response.session_id, numbers(response)) == (0, [0])
    assert (len(node.fetch_sessions), node.fetch_sessions.partitions) == (0, 0)


@simulated
async def test_topics_are_named_in_one_way_for_as_long_as_a_session_lasts() -> None:
    node = node_with(2)
    client = Client(node, 12)
    await client.fetch({0: 0})
    client.version = 13
    assert (await client.fetch({1: 0})).error_code is ErrorCode.fetch_session_topic_id_error
    assert (await client.fetch()).error_code is ErrorCode.fetch_session_id_not_found


@simulated
async def test_after_the_last_epoch_comes_the_first() -> None:
    node = node_with(1)
    client = Client(node)
    await client.fetch({0: 0})
    node.fetch_sessions._sessions[1].epoch = client.epoch = 2**31 - 1
    assert numbers(await client.fetch()) == []
    client.epoch = 1
    assert numbers(await client.fetch()) == []


# How many there are.


@simulated
async def test_where_there_is_no_room_a_request_is_served_without_a_session() -> None:
    node = node_with(3)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(fetch_sessions, "MAX_SESSIONS", 2)
        clients = [Client(node, connection=number) for number in (1, 2, 3)]
        for client in clients:
            assert numbers(await client.fetch({0: 0, 1: 0})) == [0, 1]
        assert [client.number > 0 for client in clients] == [True, True, False]
        await asyncio.sleep(IDLE_SECONDS / 2)
        await clients[0].fetch()
        await asyncio.sleep(IDLE_SECONDS / 2)
        clients[2].epoch = INITIAL
        await clients[2].fetch({0: 0, 1: 0})
        assert clients[2].number > 0
        assert (await clients[1].fetch()).error_code is ErrorCode.fetch_session_id_not_found, "was not used"
        assert numbers(await clients[0].fetch()) == []
        assert (len(node.fetch_sessions), node.fetch_sessions.partitions) == (2, 4)


@simulated
async def test_a_session_that_is_used_is_not_ended_for_another() -> None:
    node = node_with(1)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(fetch_sessions, "MAX_SESSIONS", 1)
        first, second = Client(node, connection=1), Client(node, connection=2)
        await first.fetch({0: 0})
        for _ in range(3):
            await asyncio.sleep(IDLE_SECONDS - 1)
            assert numbers(await first.fetch()) == []
        await second.fetch({0: 0})
        assert second.number == 0
        assert numbers(await first.fetch()) == []


@simulated
async def test_the_partitions_of_all_sessions_are_bounded() -> None:
    node = node_with(4)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(fetch_sessions, "MAX_PARTITIONS", 5)
        first, second = Client(node, connection=1), Client(node, connection=2)
        await first.fetch(dict.fromkeys(range(3), 0))
        await second.fetch(dict.fromkeys(range(3), 0))
        assert (first.number > 0, second.number) == (True, 0)
        second.epoch = INITIAL
        await second.fetch({0: 0, 1: 0})
        assert second.number > 0
        assert (await second.fetch({2: 0})).error_code is ErrorCode.fetch_session_id_not_found
        assert numbers(await first.fetch()) == []
        assert node.fetch_sessions.partitions == 3


@simulated
async def test_a_request_that_names_nothing_begins_no_session() -> None:
    assert (await Client(node_with(1)).fetch({})).session_id == 0


# A client that believes what it is told.


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 3), st.integers(1, 3)),
        st.tuples(st.just("fetch"), st.integers(1, 400), st.just(0)),
        st.tuples(st.just("pause"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("cut"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("lose"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("reconnect"), st.just(0), st.just(0)),
    ),
    max_size=40,
)


@given(STEPS)
@settings(max_examples=150, deadline=None)
def test_a_client_with_a_session_sees_all_that_one_without_sees(steps: list[tuple[str, int, int]]) -> None:
    async def check() -> None:
        node = node_with(4)
        client = Client(node)
        offsets, told = dict.fromkeys(range(4), 0), dict[int, tuple[ErrorCode, int, int]]()
        named, paused = dict[int, int](), set[int]()

        async def fetch(size: int) -> None:
            if client.epoch == INITIAL:
                named.clear()
            wanted = {number: at for number, at in offsets.items() if number not in paused}
            changed = {number: at for number, at in wanted.items() if named.get(number) != at}
            forgotten = [number for number in named if number not in wanted]
            response = await client.fetch(changed, forgotten={"t": forgotten}, max_bytes=size)
            assert response.error_code is ErrorCode.none
            named.clear()
            named.update(wanted)
            for part in parts(response):
                number = part.partition_index
                assert number in wanted
                told[number] = (part.error_code, part.high_watermark, part.log_start_offset)
                for base in bases(part) if part.records else []:
                    assert base == offsets[number]
                    offsets[number] = base + 3
                if part.error_code is ErrorCode.offset_out_of_range:
                    offsets[number] = node.partition(number=number).machine.start_offset

        for what, number, count in steps:
            partition = node.partition(number=number % 4)
            if what == "write":
                partition.write(*[build()] * count)
            elif what == "fetch":
                await fetch(number)
            elif what == "pause":
                paused ^= {number}
            elif what == "cut":
                partition.trim(partition.machine.high_watermark)
            elif what == "lose":
                partition.leads = not partition.leads
            else:
                client = Client(node, connection=client.connection + 1)
        paused.clear()
        for number in range(4):
            node.partition(number=number).leads = True
        for _ in range(200):
            await fetch(1 << 20)
        for number, at in offsets.items():
            machine = node.partition(number=number).machine
            assert at == machine.high_watermark
            assert told[number] == (ErrorCode.none, machine.high_watermark, machine.start_offset)

    run(check)
