"""What the leader has forgotten when a coordinator has more transactional ids than it should remember."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import msgpack
import pytest

from strandline.node.coordinator.transactions import transaction_upkeep as upkeep
from strandline.node.coordinator.transactions.transaction_upkeep import EXPIRE_SECONDS
from strandline.statemachine.transactions.transaction_commands import (
    Enlist,
    InitializeProducer,
    TransactionOpcode,
)
from strandline.statemachine.transactions.transaction_state import TransactionState
from tests.coordinator.transaction_harness import PLACE, Coordinated, Member, led, state

MINUTE = 60_000
HOUR = 60 * MINUTE
LOOK = EXPIRE_SECONDS + PLACE.partition + 0.5
"""From the election until after the first look; each coordinator of a node has a turn of its own."""


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "MAX_IDS", 3)


async def use(coordinated: Coordinated, member: Member, ids: str, minutes: int = 1) -> None:
    """Producers of these ids start, so long after one another; none of them ever begins a transaction."""
    for name in ids:
        given = 5000 + len(member.machine.transactions)
        await member.replica.execute(InitializeProducer(name, 100 * HOUR, -1, -1, given))
        coordinated.wall += minutes * MINUTE


async def begin(coordinated: Coordinated, member: Member, name: str) -> tuple[int, int]:
    await use(coordinated, member, name, 0)
    of = member.machine.transactions[name].identity
    await member.replica.execute(Enlist(name, *of, [coordinated.partition(0)]))
    return of


def remembered(member: Member) -> str:
    return "".join(sorted(member.machine.transactions))


def limits(coordinated: Coordinated) -> list[int]:
    """What each ExpireIds in the log says, in ms."""
    entries = [msgpack.unpackb(entry) for entry in coordinated.log.committed]
    return [entry[3] for entry in entries if entry[2] == TransactionOpcode.EXPIRE_IDS]


@pytest.mark.parametrize(("quiet_minutes", "left"), [(40, "abcdef"), (55, "cdef"), (100, "def")])
def test_the_ids_beyond_the_bound_go_but_none_that_was_used_within_the_hour(
    quiet_minutes: int, left: str
) -> None:
    """A sink with an id for each checkpoint: at the look the first is six minutes older than it was quiet."""

    async def test(coordinated: Coordinated, member: Member) -> None:
        await use(coordinated, member, "abcdef")
        coordinated.wall += quiet_minutes * MINUTE - int(EXPIRE_SECONDS * 1000)
        await asyncio.sleep(LOOK)
        assert remembered(member) == left
        assert len(limits(coordinated)) == (left != "abcdef")
        states = [one.machine.snapshot() for one in coordinated.members]
        assert states[1:] == states[:-1], "what the leader decides is in the entry"

    led(test)


def test_an_id_with_a_transaction_stays_however_old_it_is() -> None:
    async def test(coordinated: Coordinated, member: Member) -> None:
        coordinated.answer = lambda sent: 1
        await begin(coordinated, member, "o")
        of = await begin(coordinated, member, "p")
        await member.coordinator.end("p", *of, commit=True, raises=False)
        await use(coordinated, member, "abcdef")
        coordinated.wall += 2 * HOUR
        await asyncio.sleep(LOOK)
        assert remembered(member) == "defop"
        assert [state(member, name) for name in "op"] == [
            TransactionState.ONGOING,
            TransactionState.PREPARE_COMMIT,
        ]

    led(test)


def test_as_many_as_there_may_be_are_remembered_for_as_long_as_is_configured() -> None:
    async def test(coordinated: Coordinated, member: Member) -> None:
        await use(coordinated, member, "abc")
        coordinated.wall += 24 * HOUR
        await asyncio.sleep(LOOK)
        assert (remembered(member), limits(coordinated)) == ("abc", [])
        coordinated.wall += 6 * 24 * HOUR
        await asyncio.sleep(LOOK)
        assert (remembered(member), limits(coordinated)) == ("", [7 * 24 * HOUR])

    led(test)


@pytest.mark.parametrize("configured", [10 * MINUTE, 7 * 24 * HOUR])
def test_the_limit_is_never_longer_than_what_is_configured(configured: int) -> None:
    async def test(coordinated: Coordinated, member: Member) -> None:
        section = replace(member.node.config.transactions, id_expiration_seconds=configured / 1000)
        member.node.config = replace(member.node.config, transactions=section)
        await use(coordinated, member, "abcdef")
        coordinated.wall += 8 * 24 * HOUR
        await asyncio.sleep(LOOK)
        assert (remembered(member), limits(coordinated)) == ("", [configured])

    led(test)


def test_after_a_leader_whose_clock_was_ahead_they_go_by_the_one_that_most_agree_on() -> None:
    async def test(coordinated: Coordinated, member: Member) -> None:
        await use(coordinated, member, "abcdef", 30)
        coordinated.wall -= 5 * HOUR
        heir = await coordinated.lead(1)
        await asyncio.sleep(LOOK)
        assert remembered(heir) == "abcdef", "for all that is known they were used just now"
        assert heir.machine.time <= heir.node.context.wall_ms()
        coordinated.wall += HOUR
        await use(coordinated, heir, "ghi")
        await asyncio.sleep(LOOK)
        assert remembered(heir) == "ghi"

    led(test)


def test_nothing_goes_by_a_clock_that_the_others_do_not_agree_with() -> None:
    async def test(coordinated: Coordinated, member: Member) -> None:
        await use(coordinated, member, "abcdef")
        coordinated.wall += 8 * 24 * HOUR
        coordinated.clock_is_trusted = False
        await asyncio.sleep(3 * LOOK)
        assert (remembered(member), limits(coordinated)) == ("abcdef", [])
        coordinated.clock_is_trusted = True
        await asyncio.sleep(LOOK)
        assert remembered(member) == ""

    led(test)


def test_coordinators_of_one_node_do_not_look_together() -> None:
    async def test(coordinated: Coordinated, member: Member) -> None:
        await use(coordinated, member, "abcdef")
        coordinated.wall += 2 * HOUR
        await asyncio.sleep(EXPIRE_SECONDS + PLACE.partition - 0.5)
        assert remembered(member) == "abcdef"
        await asyncio.sleep(1)
        assert remembered(member) == "def"

    led(test)
