"""Fetch sessions (KIP-227): what requests and answers may leave out, and how a session ends."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from strandline.node.kafka.handlers import kept_fetches
from strandline.node.kafka.handlers.authorizer import Authorizer
from strandline.node.kafka.handlers.kept_fetch import KeptFetch
from strandline.node.kafka.handlers.kept_fetches import FINAL, IDLE_SECONDS, INITIAL
from strandline.node.kafka.wire.apis import APIS, ApiKey
from strandline.node.kafka.wire.record_batch import boundaries, read_header
from strandline.node.kafka.wire.session import UNNAMED, Session
from strandline.node.objectstore.store import NotDone
from strandline.statemachine.controller.client_quota import DEFAULT, QuotaKey
from strandline.statemachine.controller.controller_commands import AlterClientQuotas
from tests.kafka.handlers.fake_node import FakeNode
from tests.kafka.handlers.fake_partition import FakePartition
from tests.kafka.handlers.fetch_answers import COMMITTED, P, Rights, bases, batch, codes, parts
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
            if not self.number:
                self.epoch = INITIAL
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
    assert node.fetches.partitions == 3
    response = await client.fetch(forgotten={"t": [0, 1, 2], "u": [0]}, max_wait=30.0)
    assert (response.error_code, response.session_id, numbers(response)) == (ErrorCode.none, 0, [])
    assert (node.fetches.sessions, node.fetches.partitions) == (0, 0)


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
    node.partition(number=1).resign()
    for _ in range(2):
        response = await client.fetch()
        assert (numbers(response), codes(response)) == ([1], [ErrorCode.not_leader_or_follower])
    node.partition(number=1).leads = True
    node.partition(number=1).moved()
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
async def test_offsets_are_told_of_what_has_records_that_found_no_room() -> None:
    node = node_with(2)
    client = Client(node)
    await client.fetch({0: 0, 1: 0})
    for number in range(2):
        node.partition(number=number).write(build())
    response = await client.fetch(max_bytes=1)
    assert [(bases(part), part.high_watermark) for part in parts(response)] == [([0], 3), ([], 3)]


@simulated
async def test_a_fetch_beside_one_that_waits_leaves_its_session_alone() -> None:
    node = node_with(2)
    client = Client(node)
    waiting = asyncio.ensure_future(client.fetch({0: 0}, max_wait=30.0))
    await asyncio.sleep(1)
    assert numbers(await node.fetch({1: 0})) == [1]
    node.partition().write(build())
    assert numbers(await waiting) == [0]
    assert numbers(await client.fetch({0: 3})) == []


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
async def test_a_whole_request_takes_the_place_of_a_session() -> None:
    node = node_with(2)
    client = Client(node)
    await client.fetch({0: 0, 1: 0})
    first = client.number
    response = await client.fetch({1: 0}, session_epoch=INITIAL)
    assert (numbers(response), client.number not in (0, first), node.fetches.sessions) == ([1], True, 1)
    client.epoch = 1
    node.partition(number=0).write(build())
    assert numbers(await client.fetch()) == [], "only what the second one names"
    for session in (0, client.number):
        response = await node.fetch({0: 0}, session_id=session, session_epoch=FINAL)
        assert (response.session_id, numbers(response), node.fetches.sessions) == (0, [0], 0)
        assert (await client.fetch()).error_code is ErrorCode.fetch_session_id_not_found
        client.epoch = INITIAL
        await client.fetch({0: 0})


@simulated
async def test_a_client_that_comes_back_ends_its_former_session_and_no_one_elses() -> None:
    node = node_with(1)
    former, other = Client(node, connection=1), Client(node, connection=2)
    await former.fetch({0: 0})
    node.session = Session("internal", "User:eve")
    await other.fetch({0: 0}, session_id=former.number)
    assert node.fetches.sessions == 2, "it is another's"
    node.session = UNNAMED
    again = Client(node, connection=3)
    await again.fetch({0: 0}, session_id=former.number)
    assert node.fetches.sessions == 2
    assert (await former.fetch()).error_code is ErrorCode.fetch_session_id_not_found
    node.session = Session("internal", "User:eve")
    assert numbers(await other.fetch()) == []


# Versions.


@pytest.mark.parametrize(("first", "then"), [(12, 13), (13, 12), (7, 17), (17, 7)])
@pytest.mark.parametrize("what", ["nothing", "named", "forgotten"])
@simulated
async def test_topics_are_named_in_one_way_for_as_long_as_a_session_lasts(
    first: int, then: int, what: str
) -> None:
    node = node_with(3)
    client = Client(node, first)
    await client.fetch({0: 0, 1: 0})
    client.version = then
    asked: dict[str, dict[str, Any]] = {
        "nothing": {},
        "named": {"offsets": {2: 0}},
        "forgotten": {"forgotten": {"t": [0]}},
    }
    response = await client.fetch(**asked[what])
    assert (response.error_code, response.session_id) == (ErrorCode.fetch_session_topic_id_error, 0)
    assert response.responses == ()
    client.epoch = INITIAL
    assert numbers(await client.fetch({0: 0, 1: 0})) == [0, 1]
    node.partition(number=1).write(build())
    response = await client.fetch()
    (topic,) = response.responses
    named = topic.topic_id if then >= 13 else topic.topic
    assert named == (node.topic_id("t") if then >= 13 else "t")


@pytest.mark.parametrize("version", [13, 15])
@simulated
async def test_versions_that_name_topics_alike_may_take_turns(version: int) -> None:
    node = node_with(2)
    client = Client(node, version)
    await client.fetch({0: 0, 1: 0})
    client.version = 17
    node.partition(number=1).write(build())
    assert numbers(await client.fetch()) == [1]
    client.version = version
    assert numbers(await client.fetch({1: 3})) == []


@pytest.mark.parametrize("version", [4, 5, 6])
@simulated
async def test_a_version_without_sessions_is_served_on_a_connection_that_has_one(version: int) -> None:
    node = node_with(2)
    client = Client(node, 11)
    await client.fetch({0: 0})
    response = await node.fetch({0: 0, 1: 0}, version)
    assert [one.partition_index for one in parts(response)] == [0, 1]
    assert (await client.fetch()).error_code is ErrorCode.fetch_session_id_not_found


@simulated
async def test_another_isolation_level_counts_for_all_partitions() -> None:
    node = node_with(1)
    node.partition().write(batch(), transaction=1)
    client = Client(node)
    assert [bases(part) for part in parts(await client.fetch({0: 0}, isolation_level=COMMITTED))] == [[]]
    assert [bases(part) for part in parts(await client.fetch())] == [[0]]
    assert numbers(await client.fetch(isolation_level=COMMITTED)) == []


@simulated
async def test_after_the_last_epoch_comes_the_first() -> None:
    node = node_with(1)
    client = Client(node)
    await client.fetch({0: 0})
    node.fetches._sessions[client.number].epoch = client.epoch = 2**31 - 1
    assert numbers(await client.fetch()) == []
    client.epoch = 1
    assert numbers(await client.fetch()) == []


# What others take away.


@pytest.mark.parametrize("version", [12, 13])
@simulated
async def test_a_right_that_is_taken_away_during_a_session(version: int) -> None:
    node = FakeNode()
    node.topic("t")
    node.topic("u")
    rights = Rights()
    node.authorizer = cast(Authorizer, rights)
    client = Client(node, version)
    await client.fetch({("t", 0): 0, ("u", 0): 0})
    rights.refused.add("t")
    waiting = asyncio.ensure_future(client.fetch(max_wait=30.0))
    await asyncio.sleep(1)
    node.partition("t").write(build())
    node.partition("u").write(build())
    response = await waiting
    assert codes(response) == [ErrorCode.topic_authorization_failed, ErrorCode.none]
    assert [len(part.records) > 0 for part in parts(response)] == [False, True]
    assert codes(await client.fetch({("u", 0): 3})) == [ErrorCode.topic_authorization_failed]
    rights.refused.clear()
    assert [bases(part) for part in parts(await client.fetch())] == [[0]]


@simulated
async def test_another_principal_is_asked_for_its_own_rights() -> None:
    node = node_with(1)
    node.partition().write(build())
    node.session = Session("internal", "User:alice")
    rights = Rights()
    rights.principals.add("User:eve")
    node.authorizer = cast(Authorizer, rights)
    client = Client(node)
    assert [bases(part) for part in parts(await client.fetch({0: 0}))] == [[0]]
    node.session.principal = "User:eve"
    assert codes(await client.fetch()) == [ErrorCode.topic_authorization_failed]


@simulated
async def test_a_topic_that_is_deleted_and_made_again_under_its_name() -> None:
    node = node_with(1)
    node.partition().write(build())
    by_name, by_id = Client(node, 12, connection=1), Client(node, 13, connection=2)
    former = node.topic_id("t")
    for client in (by_name, by_id):
        assert [bases(part) for part in parts(await client.fetch({0: 0}))] == [[0]]
        assert numbers(await client.fetch({0: 3})) == []
    node.delete("t")
    assert codes(await by_name.fetch()) == [ErrorCode.unknown_topic_or_partition]
    node.topic("t")
    assert codes(await by_name.fetch()) == [ErrorCode.offset_out_of_range]
    node.partition().write(build())
    assert [bases(part) for part in parts(await by_name.fetch({0: 0}))] == [[0]]
    response = await by_id.fetch()
    assert (codes(response), response.responses[0].topic_id) == ([ErrorCode.unknown_topic_id], former)
    response = await by_id.fetch({0: 0})
    assert sorted(codes(response)) == [ErrorCode.none, ErrorCode.unknown_topic_id]
    node.connection = by_id.connection
    gone = [{"topic": "t", "topic_id": former, "partitions": [0]}]
    response = await by_id.fetch(forgotten_topics_data=gone)
    assert [bases(part) for part in parts(response)] == [[0]]


@simulated
async def test_a_client_above_its_quota_gets_its_records_later() -> None:
    node = node_with(2)
    node.cluster.apply(AlterClientQuotas(DEFAULT, None, [(QuotaKey.FETCHED_BYTES, 300.0)]))
    node.controller.hear()
    client = Client(node)
    offsets: dict[Any, Any] = {0: 0, 1: 0}
    await client.fetch(offsets)
    for number in range(2):
        node.partition(number=number).write(*[build()] * 40)
    at, rounds, told = {0: 0, 1: 0}, 0, 0
    offsets = {}
    while at != {0: 120, 1: 120}:
        response = await client.fetch(offsets)
        assert response.error_code is ErrorCode.none
        told += len(parts(response))
        offsets = {}
        for part in parts(response):
            assert part.high_watermark == 120
            if part.records:
                assert bases(part)[0] == at[part.partition_index]
                at[part.partition_index] = offsets[part.partition_index] = bases(part)[-1] + 3
        rounds += 1
        assert rounds < 1000
        await asyncio.sleep(1)
    assert rounds > 5, "it was above its quota for some of them"
    assert told < 2 * rounds, "what is told already is not told again without records"


# How many there are.


@simulated
async def test_where_there_is_no_room_a_request_is_served_without_a_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept_fetches, "MAX_PARTITIONS", 4)
    node = node_with(3)
    clients = [Client(node, connection=number) for number in (1, 2, 3)]
    for client in clients:
        assert numbers(await client.fetch({0: 0, 1: 0})) == [0, 1]
    assert [client.number > 0 for client in clients] == [True, True, False]
    await asyncio.sleep(IDLE_SECONDS / 2)
    await clients[0].fetch()
    await asyncio.sleep(IDLE_SECONDS / 2)
    await clients[2].fetch({0: 0, 1: 0})
    assert clients[2].number > 0
    assert (await clients[1].fetch()).error_code is ErrorCode.fetch_session_id_not_found, "was not used"
    assert numbers(await clients[0].fetch()) == []
    assert (node.fetches.sessions, node.fetches.partitions) == (2, 4)


@simulated
async def test_a_session_that_grows_takes_the_room_of_one_that_is_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept_fetches, "MAX_PARTITIONS", 4)
    node = node_with(5)
    first, second = Client(node, connection=1), Client(node, connection=2)
    await first.fetch({0: 0, 1: 0})
    await asyncio.sleep(1)
    await second.fetch({0: 0})
    await second.fetch({1: 0})
    assert (await second.fetch({2: 0})).error_code is ErrorCode.fetch_session_id_not_found
    second.epoch = INITIAL
    await second.fetch({0: 0, 1: 0})
    await asyncio.sleep(IDLE_SECONDS)
    assert numbers(await second.fetch({2: 0})) == [2]
    assert (await first.fetch()).error_code is ErrorCode.fetch_session_id_not_found
    assert (node.fetches.sessions, node.fetches.partitions) == (1, 3)


@simulated
async def test_a_session_has_no_more_partitions_than_a_connection_may_keep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept_fetches, "MAX_OF_CONNECTION", 2)
    node = node_with(3)
    client = Client(node)
    await client.fetch({0: 0, 1: 0})
    assert (await client.fetch({2: 0})).error_code is ErrorCode.fetch_session_id_not_found
    client.epoch = INITIAL
    for _ in range(2):
        assert numbers(await client.fetch({0: 0, 1: 0, 2: 0})) == [0, 1, 2]
        assert client.number == 0
    assert node.fetches.partitions == 0


@simulated
async def test_a_name_that_no_topic_can_have_ends_a_session() -> None:
    node = node_with(1)
    client = Client(node, 12)
    await client.fetch({0: 0})
    response = await client.fetch({("n" * 250, 0): 0})
    assert response.error_code is ErrorCode.fetch_session_id_not_found
    assert (node.fetches.sessions, node.fetches.partitions) == (0, 0)


@simulated
async def test_a_topic_of_which_nothing_is_asked_for_any_more_is_not_kept() -> None:
    node = node_with(1)
    client = Client(node, 12)
    await client.fetch({0: 0})
    for number in range(20):
        await client.fetch({(f"u{number}", 0): 0}, forgotten={f"u{number - 1}": [0]})
    kept = node.fetches._of[1]
    assert isinstance(kept, KeptFetch)
    assert [*kept._topics] == ["t", "u19"]


@simulated
async def test_a_session_ends_with_its_connection() -> None:
    node = node_with(2)
    client = Client(node)
    await client.fetch({0: 0, 1: 0})
    waiting = asyncio.ensure_future(client.fetch(max_wait=30.0))
    await asyncio.sleep(1)
    waiting.cancel()
    node.lost()
    await asyncio.gather(waiting, return_exceptions=True)
    assert (node.fetches.sessions, node.fetches.partitions, len(node.fetches)) == (0, 0, 0)
    assert not any(one.watchers for one in node.partitions.replicas.values())


@simulated
async def test_a_request_that_names_nothing_begins_no_session() -> None:
    assert (await Client(node_with(1)).fetch({})).session_id == 0


# A client that believes what it is told.


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *("write", "open", "end", "fetch", "fetch", "wait", "pause", "cut", "lose", "lead", "delete"),
                *("make", "refuse", "reconnect", "whole", "version", "level"),
            ]
        ),
        st.integers(0, 3),
        st.integers(1, 400),
    ),
    max_size=40,
)


@given(STEPS, st.sampled_from([7, 11, 12, 13, 17]))
@settings(max_examples=250, deadline=None)
def test_a_client_with_a_session_knows_all_that_one_without_knows(
    steps: list[tuple[str, int, int]], version: int
) -> None:
    async def check() -> None:
        node = FakeNode()
        for name in "tu":
            node.topic(name, 2)
        rights = Rights()
        node.authorizer = cast(Authorizer, rights)
        places = [(name, number) for name in "tu" for number in range(2)]
        client = Client(node, version)
        offsets = dict.fromkeys(places, 0)
        known: dict[Any, Any] = {}
        named: dict[Any, Any] = {}
        paused: set[Any] = set()
        written: dict[FakePartition, int] = {}
        level, made, plain = 0, 2, 1000

        def key(place: tuple[str, int]) -> tuple[Any, int]:
            by_id = client.version is not None and client.version >= 13
            return (node.topic_id(place[0]) if by_id else place[0]), place[1]

        def told(response: Any) -> dict[Any, Any]:
            return {
                (topic.topic_id if (client.version or 0) >= 13 else topic.topic, part.partition_index): part
                for topic in response.responses
                for part in topic.partitions
            }

        def facts(part: Any) -> Any:
            return (
                part.error_code,
                part.high_watermark,
                part.last_stable_offset,
                getattr(part, "log_start_offset", 0),
            )

        async def fetch(size: int, wait: float) -> None:
            nonlocal plain
            for _ in range(3):
                if client.epoch == INITIAL:
                    named.clear()
                    known.clear()
                wanted = {key(place): offsets[place] for place in places if place not in paused}
                changed = {one: at for one, at in wanted.items() if named.get(one) != at}
                gone = [
                    {"topic": one[0], "topic_id": one[0], "partitions": [one[1]]}
                    for one in named
                    if one not in wanted and isinstance(one[0], str) == ((client.version or 0) < 13)
                ]
                fields: dict[str, Any] = {"max_bytes": size, "isolation_level": level, "max_wait": wait}
                response = await client.fetch(changed, forgotten_topics_data=gone, **fields)
                if response.error_code is ErrorCode.none:
                    break
                client.epoch = INITIAL
            assert response.error_code is ErrorCode.none
            for one in [one for one in named if one not in wanted]:
                known.pop(one, None)
            named.clear()
            named.update(wanted)
            answered = told(response)
            assert answered.keys() <= wanted.keys()
            known.update({one: facts(part) for one, part in answered.items()})
            # The same of a connection that has nothing kept, and asks for everything.
            plain += 1
            node.connection = plain
            whole = told(await node.fetch(wanted, client.version, isolation_level=level))
            node.lost()
            assert known == {one: facts(part) for one, part in whole.items()}
            rows = [one for one in whole if whole[one].records]
            assert not rows or any(part.records for part in answered.values()), (
                "something to read, and nothing came"
            )
            for place in places:
                part = answered.get(key(place))
                if part is not None and part.records:
                    assert bases(part)[0] == offsets[place]
                    *_, (last, _) = boundaries(part.records)
                    offsets[place] = read_header(part.records, last).next_offset
                elif part is not None and part.error_code is ErrorCode.offset_out_of_range:
                    offsets[place] = 0

        for what, which, size in steps:
            place = places[which]
            topic = node.controller.machine.topic(place[0])
            replica = None if topic is None else node.partitions.get(topic.topic_id, place[1])
            if what in ("fetch", "wait"):
                await fetch(size, 0.0 if what == "fetch" else 1.0)
            elif what == "pause":
                paused ^= {place}
            elif what == "delete" and topic is not None:
                node.delete(place[0])
            elif what == "make" and topic is None:
                node.topic(place[0], 2)
            elif what == "refuse":
                rights.refused ^= {place[0]}
            elif what == "reconnect":
                node.connection = client.connection
                node.lost()
                client = Client(node, client.version, connection=made)
                made += 1
            elif what == "whole":
                client.epoch = INITIAL
            elif what == "version":
                client.version = (7, 11, 12, 13)[which]
            elif what == "level":
                level = which % 2
            elif replica is None or topic is None:
                continue
            elif what == "write":
                replica.write(*[build()] * (1 + size % 3))
            elif what == "open" and replica.machine.producers.first_open_offset is None:
                number = written[replica] = written.get(replica, 0) + 1
                replica.write(batch(number - 1), transaction=number)
            elif what == "end" and replica.machine.producers.first_open_offset is not None:
                replica.end(P, 0, written[replica], size % 2 == 0)
            elif what == "cut":
                replica.trim(replica.high_watermark)
            elif what == "lose":
                replica.resign()
            elif what == "lead":
                replica.leads = True
                replica.moved()

    run(check)
