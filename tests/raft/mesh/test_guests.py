"""Guests of the mesh: one question of a process that proved the secret and is no peer."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from strandline.node.raft.data_folder import Standing
from strandline.node.raft.mesh import guests
from strandline.node.raft.mesh.guests import SeedFailed
from strandline.node.raft.mesh.link import Link
from strandline.node.raft.mesh.mesh import MeshReason
from tests.raft.mesh.mesh_nodes import HOST, Node, assert_unharmed, on_loop, started

SECONDS = 5.0


def answers(node: Node) -> list[tuple[int, Any]]:
    """Have a node answer each question with itself; what it was asked."""
    asked: list[tuple[int, Any]] = []

    async def answer(guest: int, standing: Standing, question: Any) -> Any:
        asked.append((guest, question))
        return ["you asked", question]

    node.mesh.guests.answering = answer
    return asked


async def failure(guest: Node, host: str, port: int, seconds: float = SECONDS) -> str:
    with pytest.raises(SeedFailed) as raised:
        await guest.mesh.ask(host, port, "who", seconds)
    return str(raised.value)


@on_loop
async def test_a_guest_is_answered_whichever_id_is_higher_and_takes_no_peers_place() -> None:
    one, three = Node(1), Node(3)
    async with started(one, three):
        for guest_id, member in ((2, one), (2, three), (9, three)):
            asked, guest = answers(member), Node(guest_id)
            async with started(guest, introduce=False):
                assert await guest.mesh.ask(HOST, member.mesh.port, [1, b"x"], SECONDS) == [
                    "you asked", [1, b"x"]
                ]  # fmt: skip
            assert asked == [(guest_id, [1, b"x"])]
            assert guest.events == []
        assert not one.frames
        assert not three.frames
        assert {event for node in (one, three) for event in node.events} == {("up", 1), ("up", 3)}
        await assert_unharmed(one, three)


@on_loop
async def test_a_guest_with_another_secret_or_cluster_or_a_members_id_is_told_and_asks_nothing() -> None:
    one, two = Node(1), Node(2)
    asked = answers(one)
    async with started(one, two):
        for guest, told in (
            (Node(9, secret=b"wrong"), "it says this node's cluster secret is wrong"),
            (Node(9, cluster_id="red"), "it belongs to cluster 'blue', this node to 'red'"),
            (Node(1, boot_id=77), "it has this node's own id, and runs: give this node a node.id"),
        ):
            async with started(guest, introduce=False):
                said = await failure(guest, HOST, one.mesh.port)
                assert told in said
                assert "node 0" not in said
        assert asked == []
        await assert_unharmed(one, two)


@on_loop
async def test_a_seed_that_cannot_answer_is_told_of() -> None:
    one, guest = Node(1), Node(9)
    async with started(one, guest, introduce=False):
        assert "it is busy, or no member itself" in await failure(guest, HOST, one.mesh.port)
        port = one.mesh.port
    async with started(guest := Node(9), introduce=False):
        assert "does it run, and is the address right?" in await failure(guest, HOST, port)
        with socket.create_server((HOST, 0)) as silent:
            said = await failure(guest, HOST, silent.getsockname()[1], 0.2)
        assert "no answer in time: does it run, and is it a member?" in said


@on_loop
async def test_guests_are_bounded_in_number_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guests, "MOST_GUESTS", 2)
    monkeypatch.setattr(guests, "GUEST_SECONDS", 0.3)
    one = Node(1)
    heard: list[int] = []

    async def never(guest: int, standing: Standing, question: Any) -> Any:
        heard.append(guest)
        await asyncio.sleep(60)

    one.mesh.guests.answering = never
    waiting = [Node(7), Node(8), Node(9)]
    async with started(one, *waiting, introduce=False):
        began = asyncio.get_running_loop().time()
        said = await asyncio.gather(*(failure(guest, HOST, one.mesh.port) for guest in waiting))
        assert all("it ended the connection" in each for each in said)
        assert asyncio.get_running_loop().time() - began < SECONDS
        assert len(heard) == 2, "the third was sent away at once"
        answers(one)
        assert await waiting[0].mesh.ask(HOST, one.mesh.port, 1, SECONDS) == ["you asked", 1]


@on_loop
async def test_a_guest_has_one_question(monkeypatch: pytest.MonkeyPatch) -> None:
    one, guest = Node(1), Node(9)
    heard: list[Any] = []

    async def slow(node: int, standing: Standing, question: Any) -> Any:
        heard.append(question)
        await asyncio.sleep(0.2)
        return question

    one.mesh.guests.answering = slow

    def twice(self: guests.Asking, link: Link) -> None:
        link.write(self._question)
        link.write(self._question)

    monkeypatch.setattr(guests.Asking, "link_up", twice)
    async with started(one, guest, introduce=False):
        assert "it ended the connection" in await failure(guest, HOST, one.mesh.port)
    assert len(heard) < 2


@on_loop
async def test_a_question_that_fails_ends_the_guest_alone(caplog: pytest.LogCaptureFixture) -> None:
    one, two, guest = Node(1), Node(2), Node(9)

    async def fails(node: int, standing: Standing, question: Any) -> Any:
        raise RuntimeError("a bug")

    one.mesh.guests.answering = fails
    async with started(one, two), started(guest, introduce=False):
        assert "it ended the connection" in await failure(guest, HOST, one.mesh.port)
        assert "a question of node 9, which is no member, was not answered" in caplog.text
        await assert_unharmed(one, two)


@on_loop
async def test_a_release_before_guests_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    one, guest = Node(1), Node(9)
    async with started(one, guest, introduce=False):
        # What such a release does: the hello dials another node than this one.
        handshake = one.mesh._connector._handshake

        def older(*args: Any) -> Any:
            made = handshake(*args)
            check = made._check_identity

            def refuses(peer: Any, wanted: int) -> None:
                made.guest = False
                check(peer, wanted)

            monkeypatch.setattr(made, "_check_identity", refuses)
            return made

        monkeypatch.setattr(one.mesh._connector, "_handshake", older)
        assert "its release adds no nodes: upgrade it first" in await failure(guest, HOST, one.mesh.port)
        assert one.mesh.counters[MeshReason.OTHER_NODE] == 1


@on_loop
async def test_a_peer_is_dialled_at_its_other_address_when_the_first_leads_nowhere() -> None:
    one, two = Node(1), Node(2)
    async with started(one, two, introduce=False):
        one.mesh.set_peer(2, HOST, two.mesh.port)
        with socket.socket() as bound:
            bound.bind((HOST, 0))
            two.mesh.set_peer(1, HOST, bound.getsockname()[1], (HOST, one.mesh.port))
            await two.until_up(1)
