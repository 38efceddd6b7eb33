"""A transaction's number, told to the leaders of its partitions before they ask."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from strandline.node.controller.leaders import Leader
from strandline.node.coordinator import told_numbers
from strandline.node.coordinator.told_numbers import KEPT_SECONDS, TOLD, ToldNumbers
from strandline.node.partition.batch import Verified
from strandline.node.rpc import CallFailed
from tests.kafka.handlers.fake_node import FakeNode
from tests.runtime.jumping_loop import run

P, T = 9, bytes(16)
Test = Callable[[FakeNode, ToldNumbers], Coroutine[Any, Any, None]]


def on_a_node(test: Test) -> None:
    async def body() -> None:
        node = FakeNode()
        await test(node, node.verifier.told)

    run(body)


async def hear(node: FakeNode, payload: Any) -> None:
    await node.cluster.handlers[node.node_id, TOLD](2, payload)


def test_each_leader_is_told_of_its_own_partitions() -> None:
    async def test(node: FakeNode, told: ToldNumbers) -> None:
        topic = node.topic(partitions=4)
        for number, leader in enumerate((Leader(2, 7), Leader(2, 7), None, Leader(1, 7))):
            node.leaders.others[topic.partitions[number].group] = leader
        told.tell(P, 4, 6, [*((topic.topic_id, number) for number in range(4)), (b"gone", 0)])
        assert node.calls.told == [
            (2, TOLD, [P, 4, 6, [[topic.topic_id, 0], [topic.topic_id, 1]]]),
            (1, TOLD, [P, 4, 6, [[topic.topic_id, 3]]]),
        ]

    on_a_node(test)


def test_a_number_is_used_once_and_by_its_producer_alone() -> None:
    async def test(node: FakeNode, told: ToldNumbers) -> None:
        await hear(node, [P, 4, 6, [[T, 0], [T, 1]]])
        others = [(P, 5, (T, 0)), (8, 4, (T, 0)), (P, 4, (T, 2)), (P, 4, (b"t", 0))]
        assert [told.take(*one) for one in others] == [None] * 4
        assert [told.take(P, 4, (T, 0)), told.take(P, 4, (T, 0))] == [Verified(6), None]
        await hear(node, [P, 4, 7, [[T, 1]]])
        assert told.take(P, 4, (T, 1)) == Verified(7), "the newest"

    on_a_node(test)


def test_a_number_is_not_used_after_a_while_and_does_not_stay() -> None:
    async def test(node: FakeNode, told: ToldNumbers) -> None:
        await hear(node, [P, 4, 6, [[T, 0], [T, 1], [T, 2]]])
        await asyncio.sleep(KEPT_SECONDS - 0.1)
        assert told.take(P, 4, (T, 0)) == Verified(6)
        await asyncio.sleep(0.2)
        assert told.take(P, 4, (T, 1)) is None
        await hear(node, [8, 0, 1, [[T, 0]]])
        assert len(told) == 1

    on_a_node(test)


def test_the_oldest_go_where_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(told_numbers, "MAX_KEPT", 3)

    async def test(node: FakeNode, told: ToldNumbers) -> None:
        await hear(node, [P, 4, 6, [[T, number] for number in range(5)]])
        assert [told.take(P, 4, (T, number)) for number in range(5)] == [None] * 2 + [Verified(6)] * 3
        await hear(node, [P, 4, 7, [[T, 0], [T, 1], [T, 2]]])
        await hear(node, [P, 4, 8, [[T, 0], [T, 3]]])
        assert told.take(P, 4, (T, 1)) is None, "the one of which nothing was heard for longest"
        assert told.take(P, 4, (T, 0)) == Verified(8)

    on_a_node(test)


@pytest.mark.parametrize(
    "payload",
    [
        None,
        [],
        [P, 4, 0, [[T, 0]]],
        [P, 4, True, [[T, 0]]],
        [P, 4, 6, None],
        [P, 4, 6, [None]],
        [P, 4, 6, [[T]]],
        [P, 4, 6, [["t", 0]]],
        [P, 4, 6, [[T, 0], [T, True]]],
        [P, 4, 6, [[T, 0]], 1],
    ],
)
def test_what_cannot_be_is_refused(payload: Any) -> None:
    async def test(node: FakeNode, told: ToldNumbers) -> None:
        with pytest.raises(CallFailed):
            await hear(node, payload)
        assert not len(told)

    on_a_node(test)
