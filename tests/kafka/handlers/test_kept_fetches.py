"""A connection's fetch is kept for its next one: what is looked at again, what is not, and its end."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from strandline.node.kafka.handlers import kept_fetch, kept_fetches
from strandline.node.kafka.handlers.authorizer import Authorizer
from strandline.node.kafka.handlers.fetch_partition import FetchPartition, FetchTopic
from strandline.node.kafka.handlers.kept_fetch import KeptFetch
from strandline.node.kafka.handlers.kept_fetches import IDLE_SECONDS
from tests.kafka.handlers.fake_cluster import TERM
from tests.kafka.handlers.fake_node import FakeNode
from tests.kafka.handlers.fetch_answers import Rights, bases, codes, only, parts, waiting
from tests.kafka.wire.batches import build
from tests.runtime.jumping_loop import run, simulated


def node_with(partitions: int, *topics: str) -> FakeNode:
    node = FakeNode()
    for name in topics or ("t",):
        node.topic(name, partitions)
    return node


def watchers(node: FakeNode) -> int:
    return sum(len(one.watchers) for one in node.partitions.replicas.values())


def refusing(node: FakeNode) -> Rights:
    rights = Rights()
    node.authorizer = cast(Authorizer, rights)
    return rights


# What moves while a fetch is under way and does not wait.


@simulated
@pytest.mark.parametrize("deleted", [False, True])
async def test_what_moves_while_leadership_is_proved_ends_the_wait(deleted: bool) -> None:
    node = node_with(1, "t", "u")
    doubtful, other = node.partition("t"), node.partition("u")
    doubtful.write(build())

    def meanwhile() -> None:
        doubtful.write(build())
        if deleted:
            node.delete("u")
        else:
            other.write(build())

    doubtful.on_confirm = meanwhile
    began = node.loop.time()
    response = await node.fetch({("t", 0): 6, ("u", 0): 0}, 12, max_wait=30.0)
    assert node.loop.time() - began < 1
    gone = ErrorCode.unknown_topic_or_partition
    assert codes(response) == [ErrorCode.none, gone if deleted else ErrorCode.none]
    assert [bases(part) for part in parts(response)] == [[], [] if deleted else [0]]


@simulated
async def test_what_moves_then_counts_towards_the_bytes_that_a_client_waits_for() -> None:
    node = node_with(2)
    doubtful, other = node.partition(number=0), node.partition(number=1)
    doubtful.write(build())
    size = len(build())

    def meanwhile() -> None:
        doubtful.write(build())
        other.write(build())

    doubtful.on_confirm = meanwhile
    began = node.loop.time()
    asked = waiting(node, {0: 6, 1: 0}, max_wait=30.0, min_bytes=2 * size)
    await asyncio.sleep(1)
    assert not asked.done()
    other.write(build())
    assert [bases(part) for part in parts(await asked)] == [[], [0, 3]]
    assert node.loop.time() - began < 5


@simulated
async def test_the_leader_that_is_named_is_of_the_topic_that_was_refused() -> None:
    """It was made again with fewer partitions meanwhile, and another one's check has looked it up."""
    node = node_with(6)
    node.partition(number=5).resign()
    doubtful = node.partition(number=0)
    doubtful.write(build())

    def meanwhile() -> None:
        node.delete("t")
        node.topic("t", 1)

    doubtful.on_confirm = meanwhile
    assert codes(await node.fetch({0: 9, 5: 0}, 12))[1] is ErrorCode.not_leader_or_follower


@simulated
async def test_a_replica_that_goes_while_others_are_read_is_let_go() -> None:
    node = node_with(2)
    read, going = node.partition(number=0), node.partition(number=1)
    read.write(build())
    read.read_seconds = 1.0
    asked = waiting(node, {0: 0, 1: 0})
    await asyncio.sleep(0.5)
    topic = node.controller.machine.topic("t")
    assert topic is not None
    node.partitions.replicas.pop((topic.topic_id, 1)).resign()
    await asked
    assert len(going.watchers) == 0


# What is not looked at again.


@simulated
async def test_only_what_has_moved_is_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    node = node_with(50, "t", "u")
    wanted = {(name, number): 0 for name in "tu" for number in range(50)}
    await node.fetch(wanted)
    checked: list[tuple[str | None, int]] = []
    looked: list[str | None] = []
    check, look = FetchPartition.check, FetchTopic.look

    def note_check(share: FetchPartition) -> None:
        checked.append((share.topic.name, share.number))
        check(share)

    def note_look(topic: FetchTopic) -> None:
        looked.append(topic.name)
        look(topic)

    monkeypatch.setattr(FetchPartition, "check", note_check)
    monkeypatch.setattr(FetchTopic, "look", note_look)
    await node.fetch(wanted, 12)
    assert len(checked) == 100, "another version, another connection's way to name topics"
    checked.clear()
    looked.clear()
    response = await node.fetch(wanted, 12)
    assert (len(parts(response)), checked, looked) == (100, [], ["t", "u"])
    node.partition("u", 7).write(build())
    response = await node.fetch(wanted, 12)
    assert [one.partition_index for one in parts(response) if one.records] == [7]
    assert checked == [("u", 7)]
    checked.clear()
    await node.fetch({**wanted, ("u", 7): 3, ("t", 2): {"fetch_offset": 0, "current_leader_epoch": TERM}}, 12)
    assert checked == [("t", 2), ("u", 7)], "what is asked for in another way"
    checked.clear()
    asked = waiting(node, {**wanted, ("u", 7): 3}, 12, max_wait=30.0)
    await asyncio.sleep(1)
    assert checked == [("t", 2)]
    node.partition("t", 9).write(build())
    await asked
    assert set(checked) == {("t", 2), ("t", 9)}


@simulated
async def test_what_had_records_or_an_error_is_checked_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    node = node_with(3)
    node.partition(number=0).write(build())
    node.partition(number=1).resign()
    await node.fetch(dict.fromkeys(range(3), 0))
    checked: list[int] = []
    check = FetchPartition.check

    def note_check(share: FetchPartition) -> None:
        checked.append(share.number)
        check(share)

    monkeypatch.setattr(FetchPartition, "check", note_check)
    response = await node.fetch(dict.fromkeys(range(3), 0))
    assert checked == [0, 1]
    assert codes(response) == [ErrorCode.none, ErrorCode.not_leader_or_follower, ErrorCode.none]
    assert [bases(part) for part in parts(response)] == [[0], [], []]


@simulated
async def test_answers_keep_the_order_of_each_request() -> None:
    node = node_with(3)
    for wanted in ((0, 1, 2), (2, 0, 1), (1,), (1, 2, 0)):
        response = await node.fetch(dict.fromkeys(wanted, 0))
        assert [one.partition_index for one in parts(response)] == [*wanted]


# What is.


def lose(node: FakeNode) -> None:
    node.partition(number=1).resign()


def leave(node: FakeNode) -> None:
    topic = node.controller.machine.topic("t")
    assert topic is not None
    node.partitions.replicas.pop((topic.topic_id, 1)).resign()


def fence(node: FakeNode) -> None:
    node.partition(number=1).replica.begin_term(TERM + 1)
    node.partition(number=1).moved()


def trim(node: FakeNode) -> None:
    node.partition(number=1).trim(6)


def make_again(node: FakeNode) -> None:
    node.delete("t")
    node.topic(partitions=2)


CHANGES: tuple[tuple[Callable[[FakeNode], None], ErrorCode, ErrorCode], ...] = (
    (lose, ErrorCode.not_leader_or_follower, ErrorCode.not_leader_or_follower),
    (leave, ErrorCode.not_leader_or_follower, ErrorCode.not_leader_or_follower),
    (fence, ErrorCode.fenced_leader_epoch, ErrorCode.fenced_leader_epoch),
    (trim, ErrorCode.offset_out_of_range, ErrorCode.offset_out_of_range),
    (lambda node: node.delete("t"), ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id),
    (make_again, ErrorCode.offset_out_of_range, ErrorCode.unknown_topic_id),
)


@pytest.mark.parametrize("version", [12, 13])
@pytest.mark.parametrize("case", range(len(CHANGES)))
@simulated
async def test_a_change_between_two_fetches_is_told_by_the_next(version: int, case: int) -> None:
    node = node_with(2)
    for number in range(2):
        node.partition(number=number).write(build())
    wanted = {number: {"fetch_offset": 3, "current_leader_epoch": TERM} for number in range(2)}
    topic = node.controller.machine.topic("t")
    assert topic is not None
    by_id = {(uuid.UUID(bytes=topic.topic_id), number): asked for number, asked in wanted.items()}
    asked: Any = wanted if version == 12 else by_id
    assert codes(await node.fetch(asked, version)) == [ErrorCode.none] * 2
    change, by_name, by_number = CHANGES[case]
    if change is trim:
        node.partition(number=1).write(build())
    change(node)
    assert codes(await node.fetch(asked, version))[1] is (by_name if version == 12 else by_number)


@pytest.mark.parametrize("version", [12, 13])
@simulated
async def test_a_right_that_is_taken_away_is_missed_by_the_next_fetch_and_by_one_that_waits(
    version: int,
) -> None:
    node = node_with(1, "t", "u")
    rights = refusing(node)
    wanted = {("t", 0): 0, ("u", 0): 0}
    assert codes(await node.fetch(wanted, version)) == [ErrorCode.none] * 2
    rights.refused.add("t")
    assert codes(await node.fetch(wanted, version)) == [ErrorCode.topic_authorization_failed, ErrorCode.none]
    rights.refused.clear()
    assert codes(await node.fetch(wanted, version)) == [ErrorCode.none] * 2
    for name in ("t", "u"):
        asked = waiting(node, wanted, version, max_wait=30.0)
        await asyncio.sleep(1)
        rights.refused.add("t")
        node.partition(name).write(build())
        response = await asked
        assert node.loop.time() < 1100
        assert codes(response) == [ErrorCode.topic_authorization_failed, ErrorCode.none]
        assert [len(one.records) > 0 for one in parts(response)] == [False, name == "u"]
        rights.refused.clear()
        wanted["t", 0] += 3 * (name == "t")


@simulated
async def test_a_right_that_is_taken_away_ends_a_wait_with_the_next_record() -> None:
    node = node_with(1)
    rights = refusing(node)
    asked = waiting(node, {0: 0}, max_wait=30.0, min_bytes=10_000)
    await asyncio.sleep(1)
    rights.refused.add("t")
    node.partition().write(build())
    await asyncio.sleep(0.001)
    assert codes(asked.result()) == [ErrorCode.topic_authorization_failed]


@simulated
async def test_leadership_away_and_back_again() -> None:
    node = node_with(1)
    assert codes(await node.fetch({0: 0})) == [ErrorCode.none]
    partition = node.partition()
    partition.resign()
    partition.leads = True
    partition.write(build())
    assert bases(only(await node.fetch({0: 0}))) == [0]
    partition.resign()
    assert codes(await node.fetch({0: 3})) == [ErrorCode.not_leader_or_follower]
    partition.leads = True
    partition.moved()
    assert codes(await node.fetch({0: 3})) == [ErrorCode.none]
    asked = waiting(node, {0: 3}, max_wait=30.0)
    await asyncio.sleep(1)
    partition.write(build())
    assert bases(only(await asked)) == [3]


@simulated
async def test_a_partition_that_was_not_there_is_found_once_it_is() -> None:
    node = node_with(1)
    assert codes(await node.fetch({("u", 0): 0}, 12)) == [ErrorCode.unknown_topic_or_partition]
    node.topic("u")
    node.partition("u").write(build())
    assert bases(only(await node.fetch({("u", 0): 0}, 12))) == [0]


@simulated
async def test_what_moves_while_others_are_looked_at_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_fetch, "SLICE", 2)
    node = node_with(6)
    wanted = dict.fromkeys(range(6), 0)
    for round_ in range(2):
        started = node.loop.time()
        asked = waiting(node, wanted, max_wait=30.0, min_bytes=1 if round_ else 60)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        node.partition(number=0).write(build())
        await asked
        assert node.loop.time() == started
        wanted[0] += 3


# How it ends.


@simulated
async def test_watches_stay_until_the_connection_ends() -> None:
    node = node_with(3)
    for wanted, count in ((range(3), 3), (range(3), 3), (range(1), 1), (range(1, 3), 2)):
        await node.fetch(dict.fromkeys(wanted, 0))
        assert (watchers(node), node.fetches.partitions, len(node.fetches)) == (count, count, 1)
    node.lost()
    assert (watchers(node), node.fetches.partitions, len(node.fetches)) == (0, 0, 0)
    node.lost()
    await node.fetch({0: 0})
    await node.fetch({})
    assert (watchers(node), node.fetches.partitions, len(node.fetches)) == (0, 0, 0)


@simulated
async def test_a_connection_that_ends_while_its_fetch_waits_leaves_no_watch() -> None:
    for before in (False, True):
        node = node_with(3)
        if before:
            await node.fetch(dict.fromkeys(range(3), 0))
        asked = waiting(node, dict.fromkeys(range(3), 0), max_wait=30.0)
        await asyncio.sleep(1)
        assert watchers(node) == 3
        asked.cancel()
        node.lost()
        assert (watchers(node), node.fetches.partitions) == (0, 0)
        await asyncio.gather(asked, return_exceptions=True)
        assert (watchers(node), node.fetches.partitions) == (0, 0)


@simulated
async def test_a_connection_that_ends_in_the_midst_of_a_look_leaves_no_watch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept_fetch, "SLICE", 2)
    for turns in range(12):
        node = node_with(8)
        await node.fetch(dict.fromkeys(range(4), 0))
        asked = waiting(node, dict.fromkeys((6, 7, 0, 1, 2, 5), 0), max_wait=30.0)
        for _ in range(turns):
            await asyncio.sleep(0)
        asked.cancel()
        node.lost()
        await asyncio.gather(asked, return_exceptions=True)
        assert (watchers(node), node.fetches.partitions) == (0, 0)


@simulated
async def test_a_fetch_that_goes_on_without_its_connection_leaves_no_watch() -> None:
    node = node_with(2)
    node.partition(number=0).write(build())
    node.partition(number=0).read_seconds = 1.0
    asked = waiting(node, {0: 0, 1: 0})
    await asyncio.sleep(0.5)
    node.lost()
    await asked
    assert (watchers(node), node.fetches.partitions) == (0, 0)


@simulated
async def test_nothing_is_kept_of_a_replica_that_does_not_lead_any_more() -> None:
    node = node_with(2)
    await node.fetch({0: 0, 1: 0})
    node.partition(number=1).resign()
    assert len(node.partition(number=1).watchers) == 0
    assert codes(await node.fetch({0: 0, 1: 0})) == [ErrorCode.none, ErrorCode.not_leader_or_follower]


@simulated
async def test_records_are_not_kept_beyond_their_answer() -> None:
    node = node_with(1)
    node.partition().write(build())
    await node.fetch({0: 0})
    kept = node.fetches._of[1]
    assert isinstance(kept, KeptFetch)
    (share,) = kept.shares
    assert (share.parts, share.size, share.answer) == ([], 0, None)


@simulated
async def test_fetches_of_one_connection_at_the_same_time_do_not_disturb_each_other() -> None:
    node = node_with(2)
    first = waiting(node, {0: 0}, max_wait=30.0)
    await asyncio.sleep(1)
    second = waiting(node, {1: 0}, max_wait=30.0)
    await asyncio.sleep(1)
    node.partition(number=1).write(build())
    assert bases(only(await second)) == [0]
    assert not first.done()
    node.partition(number=0).write(build())
    assert bases(only(await first)) == [0]
    assert watchers(node) == 1
    node.lost()
    assert watchers(node) == 0


# How much is kept.


@simulated
async def test_no_connection_keeps_more_than_its_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_fetches, "MAX_OF_CONNECTION", 3)
    node = node_with(4)
    for count in (3, 4, 2, 4):
        assert len(parts(await node.fetch(dict.fromkeys(range(count), 0)))) == count
        kept = count if count <= 3 else 0
        assert (node.fetches.partitions, watchers(node)) == (kept, kept)


@simulated
async def test_what_was_not_used_for_long_goes_for_another_if_that_is_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept_fetches, "MAX_PARTITIONS", 5)
    node = node_with(5)

    async def fetch(connection: int, count: int) -> None:
        node.connection = connection
        assert len(parts(await node.fetch(dict.fromkeys(range(count), 0)))) == count

    async def kept() -> list[int]:
        assert node.fetches.partitions == watchers(node)
        return sorted(node.fetches._of)

    await fetch(1, 2)
    await asyncio.sleep(10)
    await fetch(2, 2)
    await fetch(3, 2)
    assert await kept() == [1, 2], "both were used lately"
    await asyncio.sleep(IDLE_SECONDS - 10)
    await fetch(1, 2)
    await asyncio.sleep(10)
    await fetch(3, 4)
    assert await kept() == [1, 2], "one of them is idle, and too small"
    await fetch(3, 2)
    assert await kept() == [1, 3]


@simulated
async def test_a_fetch_that_waits_for_long_is_not_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_fetches, "MAX_PARTITIONS", 1)
    node = node_with(1)
    asked = waiting(node, {0: 0}, max_wait=3 * IDLE_SECONDS)
    await asyncio.sleep(2 * IDLE_SECONDS)
    node.connection = 2
    await node.fetch({0: 0})
    assert [*node.fetches._of] == [1]
    await asked


@simulated
async def test_a_name_that_no_topic_can_have_is_not_kept() -> None:
    node = node_with(1)
    for name in ("n" * 250, "\U0001f600"):
        assert len(parts(await node.fetch({0: 0, (name, 0): 0}, 12))) == 2
        assert (node.fetches.partitions, watchers(node)) == (0, 0)
    await node.fetch({0: 0, ("n" * 249, 0): 0}, 12)
    assert node.fetches.partitions == 2


# The same as without.


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["write", "fetch", "trim", "lose", "lead", "fence", "delete", "make", "refuse", "wait", "leave"]
        ),
        st.integers(0, 3),
        st.integers(1, 400),
    ),
    max_size=30,
)


@given(STEPS, st.sampled_from([4, 11, 12, 13, 17]), st.integers(0, 1))
@settings(max_examples=200, deadline=None)
def test_a_connection_is_told_what_a_new_one_is_told(
    steps: list[tuple[str, int, int]], version: int, level: int
) -> None:
    async def check() -> None:
        node = node_with(2, "t", "u")
        rights = refusing(node)
        offsets = {(name, number): 0 for name in "tu" for number in range(2)}
        connections = 1

        async def fetch(size: int, **fields: Any) -> Any:
            wanted: dict[Any, Any] = {
                place: {"fetch_offset": at, "current_leader_epoch": TERM, "partition_max_bytes": 1 + size}
                for place, at in offsets.items()
            }
            return await node.fetch(wanted, version, max_bytes=size, isolation_level=level, **fields)

        for what, which, size in steps:
            place = "tu"[which // 2], which % 2
            topic = node.controller.machine.topic(place[0])
            replica = None if topic is None else node.partitions.get(topic.topic_id, place[1])
            if what in ("fetch", "wait"):
                for wait in {0.0, 5.0 * (what == "wait")}:
                    asked = []
                    for node.connection in (1, connections + 1):
                        asked.append(asyncio.ensure_future(fetch(size, max_wait=wait)))
                        await asyncio.sleep(0)
                    connections += 1
                    if wait and replica is not None:
                        node.loop.call_later(1, replica.write, build())
                    first, second = await asyncio.gather(*asked)
                    assert first == second
                    node.lost()
                for topic_of, found in enumerate(first.responses):
                    for part in found.partitions:
                        at = "tu"[topic_of], part.partition_index
                        if part.records:
                            offsets[at] = bases(part)[-1] + 3
                        elif part.error_code is ErrorCode.offset_out_of_range:
                            offsets[at] = 0
            elif what == "delete" and topic is not None:
                node.delete(place[0])
            elif what == "make" and topic is None:
                node.topic(place[0], 2)
            elif what == "refuse":
                rights.refused ^= {place[0]}
            elif replica is None or topic is None:
                continue
            elif what == "write":
                replica.write(*[build()] * (1 + size % 3))
            elif what == "trim":
                replica.trim(replica.high_watermark)
            elif what == "lose":
                replica.resign()
            elif what == "lead":
                replica.leads = True
                replica.moved()
            elif what == "fence":
                replica.replica.begin_term(replica.machine.term + 1)
                replica.moved()
            elif what == "leave":
                node.partitions.replicas.pop((topic.topic_id, place[1])).resign()
        node.connection = 1
        node.lost()
        assert watchers(node) == 0

    run(check)
