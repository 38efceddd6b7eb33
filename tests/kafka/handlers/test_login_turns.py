"""Turns of logins: by address, in order, and none is lost with a client that leaves."""

from __future__ import annotations

import asyncio

import pytest

from strandline.node.kafka.handlers.login_turns import MAX_CHECKS, MAX_OF_ADDRESS, LoginTurns, NoPlace
from tests.raft.mesh.mesh_nodes import on_loop


@pytest.mark.parametrize(
    ("address", "same", "other"),
    [
        ("10.0.0.1", "::ffff:10.0.0.1", "10.0.0.2"),
        ("2001:db8:0:1::1", "2001:db8:0:1:ffff::2", "2001:db8:0:2::1"),
        ("", "", "a name"),
    ],
)
def test_an_address_has_its_places(address: str, same: str, other: str) -> None:
    turns = LoginTurns()
    places = [turns.place((address, same)[number % 2]) for number in range(MAX_OF_ADDRESS)]
    keys = {place.__enter__() for place in places}
    assert len(keys) == 1
    for taken in (address, same):
        with pytest.raises(NoPlace, match="8 logins from this address"), turns.place(taken):
            pass
    with turns.place(other) as key:
        assert key not in keys
    places[0].__exit__(None, None, None)
    with turns.place(same):
        pass


@on_loop
async def test_addresses_have_turns_one_after_the_other() -> None:
    turns, order = LoginTurns(), list[str]()
    gates = [asyncio.Event() for _ in range(MAX_CHECKS)]

    async def holds(gate: asyncio.Event) -> None:
        async with turns.turn("first"):
            await gate.wait()

    async def login(key: str) -> None:
        async with turns.turn(key):
            order.append(key)
            await asyncio.sleep(0)

    holding = [asyncio.create_task(holds(gate)) for gate in gates]
    await asyncio.sleep(0)
    rest = [asyncio.create_task(login(key)) for key in "aaaabbc"]
    await asyncio.sleep(0)
    assert order == []
    gates[0].set()
    await asyncio.gather(*rest)
    assert order == [*"abcabaa"]
    gates[1].set()
    await asyncio.gather(*holding)


@on_loop
async def test_a_client_that_leaves_takes_no_turn_with_it() -> None:
    turns, gate, told = LoginTurns(), asyncio.Event(), list[str]()

    async def holds() -> None:
        async with turns.turn("a"):
            await gate.wait()

    async def login(name: str) -> None:
        async with turns.turn("b"):
            told.append(name)

    waiting: list[asyncio.Task[None]] = []
    holding = [asyncio.create_task(holds()) for _ in range(MAX_CHECKS - 1)]

    async def last() -> None:
        async with turns.turn("a"):
            waiting.extend(asyncio.create_task(login(name)) for name in ("given", "waits", "stays"))
            await asyncio.sleep(0)
            waiting[1].cancel()
            await asyncio.sleep(0)
        waiting[0].cancel()  # in the very turn of the loop in which it was given its turn

    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await last()
        await waiting[2]
        gate.set()
        await asyncio.gather(*holding, *waiting, return_exceptions=True)
    assert told == ["stays"]
    assert turns._free == MAX_CHECKS
