"""Asking a transaction's coordinator over the mesh: found wherever it is, bounded, never a guess."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from strandline.node.controller.leaders import Leader
from strandline.node.coordinator.transactions.transaction_coordinator import ProducerIdentity
from strandline.node.coordinator.verification import VERIFY, VERIFY_SECONDS
from strandline.node.partition.batch import Verified
from strandline.node.refusal import Refusal
from strandline.node.rpc import CallFailed
from strandline.statemachine.internal_topics import MAX_KEY_BYTES
from strandline.statemachine.kafka_errors import KafkaError
from strandline.statemachine.transactions.transaction_state import TransactionState
from tests.coordinator.transaction_harness import PLACE, Coordinated, Member, code, turns
from tests.runtime.jumping_loop import run

MINUTE = 60_000
Test = Callable[[Coordinated, Member, ProducerIdentity], Coroutine[Any, Any, None]]


def asked(test: Test) -> None:
    """Run a test that asks node 1, which leads, from node 2; with a producer that has partition 0 in."""

    async def body() -> None:
        coordinated = Coordinated()
        try:
            leader = await coordinated.lead()
            of = await leader.coordinator.init_producer("t", MINUTE)
            assert isinstance(of, ProducerIdentity)
            assert await leader.coordinator.enlist("t", *of, [coordinated.partition(0)], ["g"]) == 1
            await test(coordinated, coordinated.members[1], of)
        finally:
            coordinated.close()
            await turns()

    run(body)


def test_what_is_in_the_open_transaction_has_its_number() -> None:
    async def test(coordinated: Coordinated, here: Member, of: ProducerIdentity) -> None:
        ask = here.verifier
        assert await ask.partitions("t", *of, [coordinated.partition(0)], add=False) == Verified(1)
        assert await ask.group("t", *of, "g", add=False) == Verified(1)
        other = await ask.partitions("t", *of, [coordinated.partition(1)], add=False)
        assert code(other) is KafkaError.INVALID_TXN_STATE
        assert code(await ask.group("t", *of, "h", add=False)) is KafkaError.INVALID_TXN_STATE
        assert list(coordinated.members[0].machine.transactions["t"].partitions) == [coordinated.partition(0)]

    asked(test)


def test_adding_is_asking() -> None:
    async def test(coordinated: Coordinated, here: Member, of: ProducerIdentity) -> None:
        ask = here.verifier
        assert await ask.partitions("t", *of, [coordinated.partition(1)], add=True) == Verified(1)
        assert await ask.group("t", *of, "h", add=True) == Verified(1)
        row = coordinated.members[0].machine.transactions["t"]
        assert coordinated.partition(1) in row.partitions
        assert "h" in row.groups

    asked(test)


def test_what_is_added_in_one_go_is_one_call_and_one_entry() -> None:
    async def test(coordinated: Coordinated, here: Member, of: ProducerIdentity) -> None:
        entries, calls = len(coordinated.log.committed), counted(here)
        answers = await asyncio.gather(
            *(here.verifier.partitions("t", *of, [coordinated.partition(n)], add=True) for n in (1, 2))
        )
        assert answers == [Verified(1), Verified(1)]
        assert (len(coordinated.log.committed) - entries, len(calls)) == (1, 1)
        assert here.verifier._gathering == {}

    asked(test)


def test_a_group_of_too_long_a_name_is_not_added_for_another_node_either() -> None:
    async def test(coordinated: Coordinated, here: Member, of: ProducerIdentity) -> None:
        entries = len(coordinated.log.committed)
        long = "x" * (MAX_KEY_BYTES + 1)
        assert code(await here.verifier.group("t", *of, long, add=True)) is KafkaError.INVALID_GROUP_ID
        assert len(coordinated.log.committed) == entries

    asked(test)


def test_whoever_gives_up_leaves_the_others_their_answer() -> None:
    async def test(coordinated: Coordinated, here: Member, of: ProducerIdentity) -> None:
        both = [
            asyncio.ensure_future(here.verifier.partitions("t", *of, [coordinated.partition(n)], add=True))
            for n in (1, 2)
        ]
        await asyncio.sleep(0)
        both[0].cancel()
        assert await both[1] == Verified(1)
        assert coordinated.partition(1) in coordinated.members[0].machine.transactions["t"].partitions

    asked(test)


@pytest.mark.parametrize("add", [False, True])
def test_a_refusal_is_told_at_once(add: bool) -> None:
    async def test(coordinated: Coordinated, here: Member, of: ProducerIdentity) -> None:
        before, calls = here.node.loop.time(), counted(here)
        partition = [coordinated.partition(0)]
        stale = await here.verifier.partitions("t", of[0], of[1] + 5, partition, add=add)
        assert code(stale) is KafkaError.PRODUCER_FENCED
        assert isinstance(stale, Refusal)
        assert stale.message
        foreign = await here.verifier.partitions("t", 99, of[1], partition, add=add)
        assert code(foreign) is KafkaError.INVALID_PRODUCER_ID_MAPPING
        unknown = await here.verifier.partitions("u", *of, partition, add=add)
        assert code(unknown) is KafkaError.INVALID_PRODUCER_ID_MAPPING
        assert (here.node.loop.time(), len(calls)) == (before, 3)

    asked(test)


@pytest.mark.parametrize("add", [False, True])
def test_the_next_leader_is_found(add: bool) -> None:
    async def test(coordinated: Coordinated, here: Member, of: ProducerIdentity) -> None:
        coordinated.depose()
        waiting = asyncio.ensure_future(
            here.verifier.partitions("t", *of, [coordinated.partition(0)], add=add)
        )
        await asyncio.sleep(1)
        # One that does not lead any more is still believed to, for a moment.
        here.node.leaders.others[PLACE.group] = _leads(1)
        await asyncio.sleep(1)
        assert not waiting.done()
        await coordinated.lead(2)
        assert await waiting == Verified(1)

    asked(test)


@pytest.mark.parametrize(
    "trouble", ["no leader", "no answer", "nonsense", "number 0", "no place", "not the coordinator"]
)
def test_without_an_answer_it_is_to_be_asked_again_and_the_wait_has_an_end(trouble: str) -> None:
    async def test(coordinated: Coordinated, here: Member, of: ProducerIdentity) -> None:
        async def silent(peer: int, payload: Any) -> Any:
            raise CallFailed("no answer", unknown=True)

        async def strange(peer: int, payload: Any) -> Any:
            return [7]

        async def nought(peer: int, payload: Any) -> Any:
            return ["done", None, 0]

        match trouble:
            case "no leader":
                here.node.leaders.others[PLACE.group] = None
            case "no answer":
                coordinated.cluster.handlers[1, VERIFY] = silent
            case "nonsense":
                coordinated.cluster.handlers[1, VERIFY] = strange
            case "number 0":
                coordinated.cluster.handlers[1, VERIFY] = nought
            case "no place":
                here.no_place = True
            case _:
                here.node.leaders.others[PLACE.group] = _leads(3)
        before = here.node.loop.time()
        answer = await here.verifier.partitions("t", *of, [coordinated.partition(0)], add=True)
        expected = "NOT_COORDINATOR" if trouble == "not the coordinator" else "COORDINATOR_NOT_AVAILABLE"
        assert code(answer).name == expected
        assert VERIFY_SECONDS <= here.node.loop.time() - before < VERIFY_SECONDS + 0.5

    asked(test)


def test_a_node_that_stops_asks_nobody_any_more() -> None:
    async def test(coordinated: Coordinated, here: Member, of: ProducerIdentity) -> None:
        here.node.leaders.others[PLACE.group] = None
        waiting = asyncio.ensure_future(
            here.verifier.partitions("t", *of, [coordinated.partition(1)], add=True)
        )
        await asyncio.sleep(1)
        before = here.node.loop.time()
        here.verifier.close()
        assert code(await waiting) is KafkaError.COORDINATOR_NOT_AVAILABLE
        assert here.node.loop.time() - before < 0.1
        here.node.leaders.others[PLACE.group] = _leads(1)
        later = await here.verifier.group("t", *of, "g", add=False)
        assert code(later) is KafkaError.COORDINATOR_NOT_AVAILABLE

    asked(test)


def test_adding_waits_for_what_is_being_completed_and_not_for_ever() -> None:
    async def test(coordinated: Coordinated, here: Member, of: ProducerIdentity) -> None:
        coordinated.answer = lambda sent: 1
        leader = coordinated.members[0]
        ended = await leader.coordinator.end("t", *of, commit=True, raises=True)
        assert isinstance(ended, ProducerIdentity)
        before = here.node.loop.time()
        late = await here.verifier.partitions("t", *ended, [coordinated.partition(0)], add=True)
        assert code(late) is KafkaError.CONCURRENT_TRANSACTIONS
        assert VERIFY_SECONDS - 1 <= here.node.loop.time() - before < VERIFY_SECONDS + 2.5
        waiting = asyncio.ensure_future(
            here.verifier.partitions("t", *ended, [coordinated.partition(0)], add=True)
        )
        await asyncio.sleep(0.5)
        coordinated.answer = lambda sent: 0
        assert await waiting == Verified(2)

    asked(test)


def test_a_late_batch_of_an_ended_transaction_never_begins_another() -> None:
    async def test(coordinated: Coordinated, here: Member, of: ProducerIdentity) -> None:
        leader = coordinated.members[0]
        ended = await leader.coordinator.end("t", *of, commit=True, raises=True)
        assert isinstance(ended, ProducerIdentity)
        await asyncio.sleep(1)
        assert leader.machine.transactions["t"].state is TransactionState.COMPLETE_COMMIT
        for add in (False, True):
            late = await here.verifier.partitions("t", *of, [coordinated.partition(0)], add=add)
            assert code(late) is KafkaError.PRODUCER_FENCED
        assert leader.machine.transactions["t"].state is TransactionState.COMPLETE_COMMIT

    asked(test)


def counted(member: Member) -> list[str]:
    """The methods this member calls from now on."""
    called: list[str] = []
    calls = member.node.calls
    good = calls.call

    async def call(node: int, method: str, payload: Any, timeout: float) -> Any:  # noqa: ASYNC109
        called.append(method)
        return await good(node, method, payload, timeout)

    calls.call = call  # type: ignore[method-assign]
    return called


def _leads(node: int) -> Leader:
    return Leader(node, 1)
