"""No producer id is given out twice, by whichever node and process, and few cost a round trip."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from strandline.node.controller.client import Unavailable
from strandline.node.controller.producer_ids import BLOCK, ProducerIds
from strandline.statemachine.controller.controller_commands import ProducerIdBlock
from strandline.statemachine.kafka_errors import KafkaError, Refused
from tests.controller.brokers import Brokers


def test_no_id_is_given_twice_over_nodes_restarts_and_elections() -> None:
    with Brokers() as brokers:
        given: list[int] = []

        async def take(node: int, count: int) -> None:
            ids = brokers.brokers[node].producer_ids
            got = await asyncio.gather(*(ids.next() for _ in range(count)))
            assert all(isinstance(number, int) for number in got)
            given.extend(got)  # type: ignore[arg-type]

        for node in brokers.nodes:
            brokers.run(node, take(node, 5))
        leader = brokers.leader()
        brokers.crash(leader)
        for node in brokers.brokers:
            brokers.run(node, take(node, BLOCK + 200))
        brokers.start(leader)
        brokers.wait(lambda: brokers.registered(leader))
        brokers.run(leader, take(leader, 10))
        assert len(set(given)) == len(given) == 15 + 2 * (BLOCK + 200) + 10


class Blocks:
    """A controller that answers when it is told to."""

    def __init__(self) -> None:
        self.asked = 0
        self.gate = asyncio.Event()
        self.failure: Any = None

    async def submit(self, command: Any, seconds: float) -> Any:
        self.asked += 1
        number = self.asked
        await self.gate.wait()
        return self.failure or ProducerIdBlock((number - 1) * BLOCK, BLOCK)


def ids_of(blocks: Any) -> ProducerIds:
    return ProducerIds(blocks, 1, loop=asyncio.get_running_loop())


def test_the_next_block_is_there_before_the_first_is_used_up() -> None:
    async def run() -> None:
        blocks = Blocks()
        blocks.gate.set()
        ids = ids_of(blocks)
        assert [await ids.next() for _ in range(BLOCK // 2)] == list(range(BLOCK // 2))
        assert blocks.asked == 1
        await ids.next()
        await asyncio.sleep(0)
        assert blocks.asked == 2
        blocks.gate.clear()
        rest = [await asyncio.wait_for(ids.next(), 1) for _ in range(BLOCK // 2 - 1)]
        assert rest == list(range(BLOCK // 2 + 1, BLOCK))
        assert await asyncio.wait_for(ids.next(), 1) == BLOCK
        ids.close()

    asyncio.run(run())


def test_one_fetch_serves_all_who_wait_and_one_who_goes_away_takes_nothing() -> None:
    async def run() -> None:
        blocks = Blocks()
        ids = ids_of(blocks)
        waiting = [asyncio.ensure_future(ids.next()) for _ in range(4)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.sleep(0)
        blocks.gate.set()
        assert await asyncio.gather(*waiting[1:]) == [0, 1, 2]
        assert blocks.asked == 1

    asyncio.run(run())


@pytest.mark.parametrize(
    "failure", [Unavailable("no leader", True), Refused(KafkaError.UNKNOWN_SERVER_ERROR, "all used up")]
)
def test_a_failure_is_told_to_all_who_wait_and_the_next_one_asks_again(failure: Any) -> None:
    async def run() -> None:
        blocks = Blocks()
        blocks.failure = failure
        blocks.gate.set()
        ids = ids_of(blocks)
        failed = await asyncio.gather(ids.next(), ids.next())
        assert all(isinstance(each, Unavailable) for each in failed)
        blocks.failure = None
        assert await ids.next() == (blocks.asked - 1) * BLOCK

    asyncio.run(run())
