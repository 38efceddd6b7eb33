"""The mesh through TLS: what is let in, what a certificate alone is worth, and files that change."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from strandline.node.raft.mesh.mesh import MeshListenError, MeshReason
from strandline.node.tls import keeper
from strandline.node.tls.keeper import TlsSettings, load
from tests.kafka.wire.certificates import Authority, Pair
from tests.raft.mesh.mesh_nodes import HOST, Node, on_loop, started

Scenario = Callable[[], Coroutine[Any, Any, None]]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Scenario], None]:
    return lambda scenario: on_loop(scenario, request.param)()


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def tls(pair: Pair, authority: Authority) -> TlsSettings:
    return TlsSettings(*pair, authority.path, "required", "1.3", dials=True)


def node(number: int, pair: Pair, authority: Authority, **changes: Any) -> Node:
    return Node(number, tls=tls(pair, authority), **changes)


def test_nodes_meet_and_nothing_is_to_be_read_between_them(
    run: Callable[[Scenario], None], ours: Authority
) -> None:
    async def scenario() -> None:
        pair = ours.issue("node")
        one, two = node(1, pair, ours), node(2, pair, ours)
        for each in (one, two):
            await each.mesh.start()
        wire = await Wire.before(one)
        one.mesh.set_peer(2, HOST, 1)
        two.mesh.set_peer(1, HOST, wire.port)
        try:
            await one.until_up(2)
            await two.until_up(1)
            for number in range(50):
                assert one.mesh.send(2, b"a word in the clear" * number)
                assert two.mesh.send(1, b"another word")
            await two.until(lambda: len(two.frames) == 50)
            await one.until(lambda: len(one.frames) == 50)
            assert b"word" not in wire.seen
            assert b"strandline-mesh" not in wire.seen
            assert one.mesh.certificate_end is not None
            assert [one.problems, two.problems] == [[], []]
        finally:
            for each in (one, two):
                await each.mesh.close()
            await wire.close()

    run(scenario)


def test_a_mesh_that_does_not_listen_yet_tells_no_end_of_its_certificate(ours: Authority) -> None:
    async def scenario() -> None:
        assert node(1, ours.issue("one"), ours).mesh.certificate_end is None

    on_loop(scenario)()


def test_a_large_frame_and_a_full_backlog(run: Callable[[Scenario], None], ours: Authority) -> None:
    async def scenario() -> None:
        pair = ours.issue("node")
        one, two = node(1, pair, ours), node(2, pair, ours)
        async with started(one, two):
            big = bytes(4 << 20)
            taken = 0
            while one.mesh.send(2, big):
                taken += 1
            assert 4 <= taken <= 10, "32 MiB, and what the sockets hold"
            assert one.mesh.counters["backlogged"] == 1
            await two.until(lambda: len(two.frames) == taken)
            assert two.frames[-1] == (1, big)

    run(scenario)


def test_another_authority_is_refused_and_both_sides_say_why(
    run: Callable[[Scenario], None], ours: Authority, tmp_path: Path
) -> None:
    theirs = Authority(tmp_path, "stranger")

    async def scenario() -> None:
        one, two = node(1, ours.issue("one"), ours), node(2, theirs.issue("two"), theirs)
        async with started(one, two, introduce=False):
            one.mesh.set_peer(2, HOST, 1)
            two.mesh.set_peer(1, HOST, one.mesh.port)
            dialler, acceptor = await two.problem(MeshReason.NO_TLS), await one.problem(MeshReason.NO_TLS)
            assert "node 1 at" in str(dialler)
            assert "the other node's certificate is not accepted: self-signed certificate in" in str(dialler)
            assert "mesh.ca" in str(dialler)
            assert "a connection from 127.0.0.1: the mesh: the other node left during the TLS" in str(
                acceptor
            )
            assert one.events == two.events == []

    run(scenario)


def test_the_acceptor_refuses_a_certificate_that_has_expired(
    run: Callable[[Scenario], None], ours: Authority
) -> None:
    async def scenario() -> None:
        one, two = node(1, ours.issue("one"), ours), node(2, ours.issue("two", days=-1), ours)
        async with started(one, two, introduce=False):
            one.mesh.set_peer(2, HOST, 1)
            two.mesh.set_peer(1, HOST, one.mesh.port)
            acceptor = await one.problem(MeshReason.NO_TLS)
            assert "the other node's certificate is not accepted: certificate has expired" in str(acceptor)
            dialler = await two.problem(MeshReason.HANDSHAKE_DROPPED)
            assert "if its log says that it does not accept this node's certificate, give every" in str(
                dialler
            )
            assert one.events == two.events == []

    run(scenario)


def test_a_certificate_without_the_secret_is_no_member(
    run: Callable[[Scenario], None], ours: Authority
) -> None:
    async def scenario() -> None:
        pair = ours.issue("node")
        one, two = node(1, pair, ours), node(2, pair, ours, secret=b"another secret of tests")
        async with started(one, two, introduce=False):
            one.mesh.set_peer(2, HOST, 1)
            two.mesh.set_peer(1, HOST, one.mesh.port)
            told = await one.problem(MeshReason.WRONG_SECRET)
            assert "give every node the same secret, and let nothing between them end TLS" in str(told)
            assert one.events == two.events == []

    run(scenario)


def test_a_process_between_with_a_certificate_of_the_authority_passes_on_no_proof(
    run: Callable[[Scenario], None], ours: Authority
) -> None:
    async def scenario() -> None:
        pair = ours.issue("node")
        one, two = node(1, pair, ours), node(2, pair, ours)
        async with started(one, two, introduce=False):
            between = load(tls(ours.issue("between"), ours))
            wire = await Wire.before(one, between)
            one.mesh.set_peer(2, HOST, 1)
            two.mesh.set_peer(1, HOST, wire.port)
            await one.problem(MeshReason.WRONG_SECRET)
            await two.problem(MeshReason.WRONG_SECRET)
            assert b"strandline-mesh" in wire.seen, "it does read the hellos"
            assert one.events == two.events == []
            await wire.close()

    run(scenario)


def test_a_node_without_tls_is_told_of(run: Callable[[Scenario], None], ours: Authority) -> None:
    async def scenario() -> None:
        one, two = node(1, ours.issue("one"), ours), Node(2)
        async with started(one, two, introduce=False):
            one.mesh.set_peer(2, HOST, 1)
            two.mesh.set_peer(1, HOST, one.mesh.port)
            told = await one.problem(MeshReason.NO_TLS)
            assert "the other node does not speak TLS" in str(told)
            there = await two.problem(MeshReason.HANDSHAKE_DROPPED)
            assert (
                "if its log says that this node does not speak TLS, give every node a mesh.certificate"
                in str(there)
            )
            assert one.events == two.events == []

    run(scenario)


def test_a_node_with_tls_is_told_of_by_one_without(run: Callable[[Scenario], None], ours: Authority) -> None:
    async def scenario() -> None:
        one, two = Node(1), node(2, ours.issue("two"), ours)
        async with started(one, two, introduce=False):
            one.mesh.set_peer(2, HOST, 1)
            two.mesh.set_peer(1, HOST, one.mesh.port)
            acceptor, dialler = await one.problem(MeshReason.NO_TLS), await two.problem(MeshReason.NO_TLS)
            assert "it speaks TLS, and this node's mesh does not: give every node" in str(acceptor)
            assert "ended the TLS handshake, as a node without TLS does: give every node" in str(dialler)
            assert one.events == two.events == []

    run(scenario)


def test_strangers_that_say_nothing_keep_no_peer_out(
    run: Callable[[Scenario], None], ours: Authority
) -> None:
    async def scenario() -> None:
        pair = ours.issue("node")
        one, two = node(1, pair, ours), node(2, pair, ours)
        async with started(one, two, introduce=False):
            silent = []
            for _ in range(100):
                silent.append(socket.create_connection((HOST, one.mesh.port)))
                await asyncio.sleep(0)
            one.mesh.set_peer(2, HOST, 1)
            two.mesh.set_peer(1, HOST, one.mesh.port)
            await one.until_up(2)
            for each in silent:
                each.close()

    run(scenario)


def test_a_new_authority_comes_in_without_a_restart(
    run: Callable[[Scenario], None], ours: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        keeper.TlsKeeper.__init__, "__kwdefaults__", {"watch_seconds": 0.05, "wall": lambda: 0.0}
    )
    later = Authority(tmp_path, "later")

    async def scenario() -> None:
        files = ours.issue("one")
        one, two = node(1, files, ours), node(2, later.issue("two"), later)
        async with started(one, two, introduce=False):
            one.mesh.set_peer(2, HOST, 1)
            two.mesh.set_peer(1, HOST, one.mesh.port)
            await one.problem(MeshReason.NO_TLS)
            new = later.issue("one")
            for source, place in (
                (new.key, files.key),
                (new.certificate, files.certificate),
                (later.path, ours.path),
            ):
                os.replace(source, place)
            await one.until_up(2)
            await two.until_up(1)

    run(scenario)


def test_a_certificate_that_other_nodes_cannot_accept_stops_the_node(ours: Authority, tmp_path: Path) -> None:
    theirs = Authority(tmp_path, "stranger")
    pair = theirs.issue("one")

    async def scenario() -> None:
        one = node(1, pair, ours)
        with pytest.raises(MeshListenError) as told:
            await one.mesh.start()
        assert str(told.value).startswith(f"mesh: {pair.certificate}: the other nodes cannot accept it (")
        assert f"{ours.path} must have the authority that signed it" in str(told.value)

    on_loop(scenario)()


class Wire:
    """Stands between a dialler and a node; with `ends` it ends TLS on both sides."""

    _server: asyncio.Server

    def __init__(self) -> None:
        self.seen = bytearray()
        self._writers: list[asyncio.StreamWriter] = []

    @classmethod
    async def before(cls, to: Node, ends: keeper.Loaded | None = None) -> Wire:
        wire = cls()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there = await asyncio.open_connection(HOST, to.mesh.port, ssl=ends.dialling if ends else None)
            wire._writers += [writer, there[1]]
            await asyncio.gather(wire._passed(reader, there[1]), wire._passed(there[0], writer))

        wire._server = await asyncio.start_server(connected, HOST, 0, ssl=ends.context if ends else None)
        return wire

    @property
    def port(self) -> int:
        return int(self._server.sockets[0].getsockname()[1])

    async def _passed(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                self.seen += data
                writer.write(data)
        except OSError:
            pass
        writer.close()

    async def close(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()
        await asyncio.sleep(0.05)
