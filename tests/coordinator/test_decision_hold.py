"""While decisions are held no transaction ends, whoever wants it to; then each goes on where it waited."""

from __future__ import annotations

import asyncio

import pytest

from strandline.node.coordinator.transactions.transaction_coordinator import ProducerIdentity
from strandline.node.coordinator.transactions.transaction_upkeep import CHECK_SECONDS
from strandline.node.rpc import CallFailed
from strandline.statemachine.transactions.transaction_state import TransactionState
from tests.coordinator.transaction_harness import Coordinated, Member, led, state, turns

TOKEN = 5
TIMEOUT_MS = 1_500


async def begun(coordinated: Coordinated, member: Member) -> ProducerIdentity:
    of = await member.coordinator.init_producer("t", TIMEOUT_MS)
    assert isinstance(of, ProducerIdentity)
    assert await member.coordinator.enlist("t", *of, [coordinated.partition(0)]) == 1
    return of


def test_a_commit_waits_until_the_hold_is_over_and_what_is_added_does_not() -> None:
    async def test(coordinated: Coordinated, member: Member) -> None:
        of = await begun(coordinated, member)
        hold = member.node.decisions
        hold.begin(TOKEN, 1.0)
        ended = asyncio.ensure_future(member.coordinator.end("t", *of, commit=True, raises=False))
        aborted = asyncio.ensure_future(member.coordinator.abort("t", 1))
        new = asyncio.ensure_future(member.coordinator.init_producer("t", TIMEOUT_MS))
        assert await member.coordinator.enlist("t", *of, [coordinated.partition(1)]) == 1
        await turns(50)
        assert [one.done() for one in (ended, aborted, new)] == [False] * 3
        assert state(member) is TransactionState.ONGOING
        assert hold.end(TOKEN)
        assert await ended == of
        await asyncio.gather(aborted, new)
        assert {sent.commit for sent in coordinated.sent} == {True}

    led(test)


def test_what_was_decided_gets_its_markers_and_is_not_complete_before_the_hold_is_over() -> None:
    async def test(coordinated: Coordinated, member: Member) -> None:
        of = await begun(coordinated, member)
        coordinated.gate = asyncio.Event()
        await member.coordinator.end("t", *of, commit=True, raises=False)
        await turns(50)
        assert len(coordinated.sent) == 1
        member.node.decisions.begin(TOKEN, 5.0)
        coordinated.gate.set()
        await asyncio.sleep(0.3)
        assert state(member) is TransactionState.PREPARE_COMMIT
        member.node.decisions.end(TOKEN)
        await turns(50)
        assert state(member) is TransactionState.COMPLETE_COMMIT

    led(test)


def test_a_transaction_that_takes_too_long_is_not_ended_during_a_hold() -> None:
    async def test(coordinated: Coordinated, member: Member) -> None:
        await begun(coordinated, member)
        member.node.decisions.begin(TOKEN, 10.0)
        coordinated.wall += 10 * TIMEOUT_MS
        await asyncio.sleep(2.5 * CHECK_SECONDS)
        assert state(member) is TransactionState.ONGOING
        member.node.decisions.end(TOKEN)
        await turns(50)
        assert state(member) is not TransactionState.ONGOING

    led(test)


def test_a_hold_ends_by_itself_and_the_one_that_asked_for_it_is_told() -> None:
    async def test(coordinated: Coordinated, member: Member) -> None:
        hold = member.node.decisions
        hold.begin(TOKEN, 0.2)
        with pytest.raises(CallFailed, match="another restore point is being taken"):
            hold.begin(TOKEN + 1, 0.2)
        await asyncio.wait_for(hold.passed(), 1.0)
        assert not hold.held
        assert not hold.end(TOKEN)

    led(test)
