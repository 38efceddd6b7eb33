"""The mesh against the misconfigured, the broken and the hostile: one line each, and no harm done."""

from __future__ import annotations

import asyncio
import struct
from dataclasses import replace
from typing import Any

import msgpack
import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.node.raft.mesh.frames import HANDSHAKE_FRAME_BYTES, FrameKind
from strandline.node.raft.mesh.handshake import (
    MAGIC,
    NONCE_BYTES,
    Handshake,
    HandshakeRefused,
    Identity,
    Role,
)
from strandline.node.raft.mesh.mesh import MeshReason
from strandline.node.raft.mesh.problems import MeshProblem, ProblemLog
from tests.raft.mesh.mesh_nodes import HOST, QUICK, Node, RawPeer, assert_unharmed, on_loop, started

NODE_9 = Identity("blue", 9, 5, 1000)


@on_loop
async def test_a_wrong_secret() -> None:
    one, two, wrong = Node(1), Node(2), Node(9, secret=b"wrong")
    async with started(one, two), started(wrong, introduce=False):
        one.mesh.set_peer(9, HOST, wrong.mesh.port)
        wrong.mesh.set_peer(1, HOST, one.mesh.port)
        here, there = await one.problem(MeshReason.WRONG_SECRET), await wrong.problem(MeshReason.WRONG_SECRET)
        assert str(here) == (
            "mesh: wrong_secret: a connection from 127.0.0.1 that says it is node 9: "
            "its proof of the cluster secret is wrong: give every node the same secret"
        )
        assert f"node 1 at 127.0.0.1:{one.mesh.port}: it says this node's cluster secret is wrong" in str(
            there
        )
        assert (here.peer, there.peer) == (None, 1), "an unproved id is no peer"
        assert not one.mesh.connected(9)
        assert wrong.events == []
        await assert_unharmed(one, two)


@on_loop
async def test_another_cluster() -> None:
    one, two, wrong = Node(1), Node(2), Node(9, cluster_id="red")
    async with started(one, two), started(wrong, introduce=False):
        wrong.mesh.set_peer(1, HOST, one.mesh.port)
        assert "it belongs to cluster 'red', this node to 'blue'" in str(
            await one.problem(MeshReason.WRONG_CLUSTER)
        )
        assert "it belongs to cluster 'blue', this node to 'red'" in str(
            await wrong.problem(MeshReason.WRONG_CLUSTER)
        )
        await assert_unharmed(one, two)


@on_loop
async def test_a_node_nobody_introduced() -> None:
    one, two, stranger = Node(1), Node(2), Node(9)
    async with started(one, two), started(stranger, introduce=False):
        stranger.mesh.set_peer(1, HOST, one.mesh.port)
        here = await one.problem(MeshReason.UNKNOWN_NODE)
        assert "node 9 at 127.0.0.1: as this node knows the cluster, it is not a member" in str(here)
        assert "first add the node to the cluster" in str(await stranger.problem(MeshReason.UNKNOWN_NODE))
        assert (stranger.events, one.mesh.connected(9)) == ([], False)
        await assert_unharmed(one, two)
        one.mesh.set_peer(9, HOST, stranger.mesh.port)
        await one.until_up(9)


@on_loop
async def test_a_node_that_is_not_the_one_dialled() -> None:
    one, two, lost = Node(1), Node(2), Node(9)
    async with started(one, two), started(lost, introduce=False):
        lost.mesh.set_peer(5, HOST, one.mesh.port)
        here = str(await one.problem(MeshReason.OTHER_NODE))
        assert "node 9 dials node 5 here, but this is node 1: correct the address of node 5 there" in here
        assert "it is node 1, not 5: correct the peer's address" in str(
            await lost.problem(MeshReason.OTHER_NODE)
        )
        await assert_unharmed(one, two)


@on_loop
async def test_a_node_that_dials_itself_or_its_twin() -> None:
    one, two, twin = Node(1), Node(2), Node(2, boot_id=22)
    async with started(one, two), started(twin, introduce=False):
        twin.mesh.set_peer(1, HOST, two.mesh.port)
        assert "it has this node's own id, 2" in str(await twin.problem(MeshReason.OWN_NODE_ID))
        assert not (await two.problem(MeshReason.OWN_NODE_ID)).fatal, "no stranger may stop this node"
        await assert_unharmed(one, two)
        two.problems.clear()
        two.mesh.remove_peer(1)
        two.mesh.set_peer(1, HOST, two.mesh.port)
        assert "it is this node itself, 2: correct the peer's address" in str(
            await two.problem(MeshReason.OWN_NODE_ID)
        )


@on_loop
async def test_a_lower_node_that_dials() -> None:
    two, three = Node(2), Node(3)
    async with started(two, three):
        two.mesh.set_peer(1, HOST, 1)
        refused = await (await RawPeer.dial(two)).refusal(two, Identity("blue", 1, 5, 1000))
        assert refused.reason is MeshReason.WRONG_DIRECTION
        assert "the one with the higher id has to dial" in str(await two.problem(MeshReason.WRONG_DIRECTION))
        await assert_unharmed(two, three)


@on_loop
async def test_a_newer_node_that_dials() -> None:
    one, two = Node(1), Node(2)
    async with started(one, two):
        refused = await (await RawPeer.dial(one)).refusal(one, replace(NODE_9, versions=(3, 4)))
        assert "it speaks mesh protocol version 2, this node versions 3 to 4: upgrade that one" in str(
            refused
        )
        problem = await one.problem(MeshReason.WRONG_VERSION)
        assert "it speaks mesh protocol versions 3 to 4, this node version 2: upgrade this node" in str(
            problem
        )
        assert not problem.fatal
        await assert_unharmed(one, two)


@on_loop
async def test_a_newer_node_that_is_dialled() -> None:
    """The upgraded node has the lower id: this node learns both versions from its answer."""
    two, three, served = Node(2), Node(3), []

    async def newer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = RawPeer(reader, writer)
        served.append((await peer.read())[:4])
        peer.send(FrameKind.HELLO, MAGIC, 4, 5, "whatever", "comes", "then")
        await peer.until_closed()

    server = await asyncio.start_server(newer, HOST, 0)
    async with server, started(two, three):
        two.mesh.set_peer(1, HOST, server.sockets[0].getsockname()[1])
        problem = await two.problem(MeshReason.WRONG_VERSION)
        assert "node 1 at" in str(problem)
        assert "it speaks mesh protocol versions 4 to 5, this node version 2: upgrade this node" in str(
            problem
        )
        assert served[0] == [FrameKind.HELLO, MAGIC, 2, 2]
        await assert_unharmed(two, three)
        two.mesh.remove_peer(1)


@on_loop
async def test_refusal_of_a_folder_is_believed_only_where_it_is_signed() -> None:
    """Any process may answer at a peer's address. A node that is disowned says so in /health, and lets no
    other node be replaced."""
    two, three = Node(2), Node(3)

    async def liar(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = RawPeer(reader, writer)
        one = Identity("blue", 1, 77, 1000)
        handshake = Handshake(Role.ACCEPTOR, one, secret=b"a guess", nonce=bytes(NONCE_BYTES))
        writer.writelines(handshake.receive(await peer.read_body()))
        await peer.read()
        peer.send(FrameKind.REFUSE, str(MeshReason.OTHER_FOLDER), b"")
        await peer.until_closed()

    server = await asyncio.start_server(liar, HOST, 0)
    async with server, started(two, three):
        two.mesh.set_peer(1, HOST, server.sockets[0].getsockname()[1])
        problem = await two.problem(MeshReason.OTHER_FOLDER)
        assert problem.peer == 1
        assert not two.mesh.strangers.is_disowned()
        await assert_unharmed(two, three)
        two.mesh.remove_peer(1)


def framed(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


BEFORE = {
    "http": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", MeshReason.OVERSIZED, "above the limit of 4096"),
    "one byte too large": (struct.pack(">I", HANDSHAKE_FRAME_BYTES + 1), MeshReason.OVERSIZED, "4097 bytes"),
    "not msgpack": (framed(b"\xc1"), MeshReason.GARBAGE, "not valid msgpack"),
    "empty frame": (framed(b""), MeshReason.GARBAGE, "not valid msgpack"),
    "extension": (framed(msgpack.packb([1, msgpack.ExtType(1, b"x")])), MeshReason.GARBAGE, "max_ext_len"),
    "no hello": (framed(msgpack.packb([1, "hello"])), MeshReason.GARBAGE, "not the hello of a mesh node"),
    "data first": (
        framed(msgpack.packb([0, "x"])),
        MeshReason.GARBAGE,
        "does not belong in state AWAIT_HELLO",
    ),
    "ping first": (framed(msgpack.packb([5, 1])), MeshReason.GARBAGE, "does not belong in state AWAIT_HELLO"),
}


@pytest.mark.parametrize(("sent", "reason", "line"), BEFORE.values(), ids=BEFORE.keys())
def test_nonsense_before_the_handshake(sent: bytes, reason: MeshReason, line: str) -> None:
    @on_loop
    async def scenario() -> None:
        one, two = Node(1), Node(2)
        async with started(one, two):
            one.mesh.set_peer(9, HOST, 1)
            stranger = await RawPeer.dial(one)
            stranger.writer.write(sent)
            assert await stranger.until_closed() == b"", "a stranger learns nothing"
            problem = await one.problem(reason)
            assert "a connection from 127.0.0.1: " in str(problem)
            assert line in str(problem)
            assert one.mesh.counters[reason] == 1
            await assert_unharmed(one, two)

    scenario()


AFTER = {
    "oversized": (
        struct.pack(">I", 2000),
        MeshReason.OVERSIZED,
        "a frame of 2000 bytes is above the limit of 1999",
    ),
    "not msgpack": (framed(b"\x92\x00\xc1"), MeshReason.GARBAGE, "not valid msgpack"),
    "extension": (
        framed(msgpack.packb([0, msgpack.ExtType(1, b"x")])),
        MeshReason.GARBAGE,
        "not valid msgpack",
    ),
    "timestamp": (
        framed(b"\x92\x00\xd6\xff\0\0\0\1"),
        MeshReason.GARBAGE,
        "not valid msgpack",
    ),
    "not an array": (framed(b"\x01"), MeshReason.GARBAGE, "not an array that begins with a kind"),
    "unknown kind": (framed(b"\x92\x07\x01"), MeshReason.GARBAGE, "unknown kind 7 with 2 elements"),
    "data of three": (framed(b"\x93\x00\x01\x01"), MeshReason.GARBAGE, "unknown kind 0 with 3 elements"),
    "ping without a token": (framed(b"\x92\x05\xa1x"), MeshReason.GARBAGE, "without a valid token"),
    "pong with a negative token": (framed(b"\x92\x06\xff"), MeshReason.GARBAGE, "without a valid token"),
}


@pytest.mark.parametrize(("sent", "reason", "line"), AFTER.values(), ids=AFTER.keys())
def test_nonsense_after_the_handshake(sent: bytes, reason: MeshReason, line: str) -> None:
    @on_loop
    async def scenario() -> None:
        one, two = Node(1, config=replace(QUICK, max_frame_bytes=1999)), Node(2)
        async with started(one, two):
            one.mesh.set_peer(9, HOST, 1)
            peer = await RawPeer.enter(one, 9)
            peer.writer.write(
                framed(msgpack.packb([0, "good"])) + sent + framed(msgpack.packb([0, "too late"]))
            )
            await peer.until_closed()
            problem = await one.problem(reason)
            assert "node 9 at 127.0.0.1: " in str(problem)
            assert line in str(problem)
            assert problem.peer == 9
            await one.until_down(9)
            assert one.frames == [(9, "good")]
            await assert_unharmed(one, two)

    scenario()


@on_loop
async def test_a_frame_above_a_strangers_limit_is_fine_after_the_handshake() -> None:
    one = Node(1)
    async with started(one):
        one.mesh.set_peer(9, HOST, 1)
        peer = await RawPeer.enter(one, 9)
        peer.data(bytes(10 * HANDSHAKE_FRAME_BYTES))
        await one.until(lambda: one.frames == [(9, bytes(10 * HANDSHAKE_FRAME_BYTES))])
        peer.close()


@on_loop
async def test_a_handshake_frame_repeated_by_the_network_is_no_offence() -> None:
    one = Node(1)
    async with started(one):
        one.mesh.set_peer(9, HOST, 1)
        peer = await RawPeer.enter(one, 9)
        peer.send(FrameKind.PROOF, bytes(32))
        peer.data("x")
        await one.until(lambda: one.frames == [(9, "x")])
        peer.close()


@on_loop
async def test_an_exception_in_the_owner_ends_only_that_connection() -> None:
    def explode(peer: int, payload: Any) -> None:
        raise RuntimeError("a bug of the owner")

    contexts: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: contexts.append(context))
    one, two, three = Node(1, on_frame=explode), Node(2), Node(3)
    async with started(one, two, three):
        three.mesh.send(1, "x")
        await three.until_down(1)
        assert "a bug of the owner" in str(contexts[0]["exception"])
        assert one.mesh.connected(2)


@pytest.mark.parametrize("said", [b"", b"\0", framed(b"x")[:-1]], ids=["nothing", "one byte", "half a frame"])
def test_a_slow_stranger_runs_out_of_time(said: bytes) -> None:
    @on_loop
    async def scenario() -> None:
        one, two = (
            Node(1, config=replace(QUICK, handshake_seconds=0.05, duplicate_probe_seconds=0.01)),
            Node(2),
        )
        async with started(one, two):
            stranger = await RawPeer.dial(one)
            stranger.writer.write(said)
            assert await stranger.until_closed() == b""
            problem = await one.problem(MeshReason.HANDSHAKE_TIMEOUT)
            assert "a connection from 127.0.0.1: the handshake was not finished within 0.05 s" in str(problem)
            await assert_unharmed(one, two)

    scenario()


@on_loop
async def test_drop_by_drop_is_too_slow_as_well() -> None:
    """Each byte is progress, and none of it moves the deadline."""
    one = Node(1, config=replace(QUICK, handshake_seconds=0.05, duplicate_probe_seconds=0.01))
    async with started(one):
        stranger = await RawPeer.dial(one)
        closed = asyncio.create_task(stranger.until_closed())
        began = asyncio.get_running_loop().time()
        for byte in framed(msgpack.packb([1, MAGIC, 1, 1, "x" * 200])):
            if closed.done():
                break
            stranger.writer.write(bytes([byte]))
            await asyncio.sleep(0.005)
        await closed
        assert asyncio.get_running_loop().time() - began < 0.5
        await one.problem(MeshReason.HANDSHAKE_TIMEOUT)


@on_loop
async def test_a_dialled_node_that_says_nothing_runs_out_of_time() -> None:
    two, three = Node(2, config=replace(QUICK, handshake_seconds=0.05, duplicate_probe_seconds=0.01)), Node(3)

    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(mute, HOST, 0)
    async with server, started(two, three):
        two.mesh.set_peer(1, HOST, server.sockets[0].getsockname()[1])
        problem = await two.problem(MeshReason.HANDSHAKE_TIMEOUT)
        assert "node 1 at 127.0.0.1:" in str(problem)
        await two.until(lambda: two.mesh.counters[MeshReason.HANDSHAKE_TIMEOUT] >= 2)
        await assert_unharmed(two, three)
        two.mesh.remove_peer(1)


@on_loop
async def test_a_dialled_node_that_hangs_up_is_reported() -> None:
    two = Node(2)

    async def rude(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(rude, HOST, 0)
    async with server, started(two):
        two.mesh.set_peer(1, HOST, server.sockets[0].getsockname()[1])
        problem = await two.problem(MeshReason.HANDSHAKE_DROPPED)
        assert "it closed the connection during the handshake" in str(problem)
        two.mesh.remove_peer(1)


@on_loop
async def test_idle_strangers_are_bounded_and_keep_nobody_out() -> None:
    one, two = Node(1, config=replace(QUICK, max_strangers=4)), Node(2)
    async with started(one, two):
        strangers = [await RawPeer.dial(one) for _ in range(10)]
        for stranger in strangers[:6]:
            assert await stranger.until_closed() == b""
        assert one.mesh.counters[MeshReason.CROWDED] == 6
        problem = await one.problem(MeshReason.CROWDED)
        assert "more than 4 connections are in their handshake" in str(problem)
        one.mesh.set_peer(9, HOST, 1)
        peer = await RawPeer.enter(one, 9)
        await one.until_up(9)
        assert one.mesh.counters[MeshReason.CROWDED] == 7
        assert len(one.mesh._in_handshake) == 3
        await assert_unharmed(one, two)
        for rest in (*strangers[6:], peer):
            rest.close()


@on_loop
async def test_strangers_that_leave_make_room() -> None:
    one = Node(1, config=replace(QUICK, max_strangers=2))
    async with started(one):
        one.mesh.set_peer(9, HOST, 1)
        for _ in range(5):
            (await RawPeer.enter(one, 9)).close()
            stranger = await RawPeer.dial(one)
            stranger.send("x")
            await stranger.until_closed()
        assert one.mesh.counters[MeshReason.CROWDED] == 0


@on_loop
async def test_the_same_problem_is_counted_each_time_and_reported_once() -> None:
    one, wrong = Node(1, config=replace(QUICK, problem_interval_seconds=60)), Node(9, cluster_id="red")
    async with started(one, wrong, introduce=False):
        wrong.mesh.set_peer(1, HOST, one.mesh.port)
        await wrong.until(lambda: len(wrong.problems) >= 5)
        assert one.mesh.counters[MeshReason.WRONG_CLUSTER] >= 5
        assert [problem.reason for problem in one.problems] == [MeshReason.WRONG_CLUSTER]


class Report:
    """A ProblemLog with a clock to turn."""

    def __init__(self) -> None:
        self.now = 100.0
        self.lines: list[str] = []
        self.counters: dict[str, int] = {}
        self.log = ProblemLog(
            time=lambda: self.now,
            interval=10.0,
            counters=self.counters,
            report=lambda problem: self.lines.append(str(problem)),
        )

    def add(self, text: str = "x", *, peer: int | None = None, host: str = "h", fatal: bool = False) -> None:
        self.log.add(MeshProblem(MeshReason.GARBAGE, text, peer=peer, address=host, fatal=fatal))


def test_a_repeated_problem_is_reported_again_after_the_interval_with_its_number() -> None:
    report = Report()
    for _ in range(5):
        report.add()
    report.add("other peer", peer=2)
    report.now += 9.9
    report.add()
    report.now += 0.2
    report.add()
    assert report.lines == [
        "mesh: garbage: x",
        "mesh: garbage: other peer",
        "mesh: garbage: x (5 more since the last report)",
    ]
    assert report.counters["garbage"] == 8
    assert report.counters["problems_suppressed"] == 5


def test_a_fatal_problem_does_not_hide_behind_a_harmless_one() -> None:
    report = Report()
    report.add("harmless")
    report.add("fatal", fatal=True)
    report.add("fatal", fatal=True)
    assert report.lines == ["mesh: garbage: harmless", "mesh: garbage: fatal"]


def test_many_causes_at_once_are_bounded_but_a_fatal_one_gets_through() -> None:
    report = Report()
    for number in range(1000):
        report.add(host=f"host {number}")
    assert len(report.lines) == 256
    report.add("fatal", fatal=True)
    assert report.lines[-1] == "mesh: garbage: fatal"
    report.now += 11
    report.add("after the flood", host="new")
    assert report.lines[-1] == "mesh: garbage: after the flood"
    assert report.counters["garbage"] == 1002


HELLO_OF_9 = framed(msgpack.packb([1, MAGIC, 1, 1, "blue", 9, 5, 1000, 1, bytes(32)]))

stranger_bytes = st.lists(
    st.one_of(
        st.binary(max_size=100),
        st.binary(max_size=100).map(framed),
        st.lists(st.integers(0, 7) | st.binary(max_size=32) | st.text(max_size=5), max_size=4).map(
            lambda message: framed(msgpack.packb(message))
        ),
        st.just(HELLO_OF_9),
        st.binary(min_size=32, max_size=32).map(lambda mac: framed(msgpack.packb([2, mac]))),
    ),
    max_size=5,
)


def test_whatever_a_stranger_sends_never_raises_and_never_arrives() -> None:
    unhandled: list[dict[str, Any]] = []

    async def open_nodes() -> tuple[Node, Node]:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
        one, two = Node(1), Node(2)
        async with started(one, two):
            nodes.extend((one, two))
            ready.set()
            await finish.wait()
            await assert_unharmed(one, two)
        return one, two

    async def attack(pieces: list[bytes]) -> None:
        stranger = await RawPeer.dial(nodes[0])
        for piece in pieces:
            stranger.writer.write(piece)
        if stranger.writer.can_write_eof():
            stranger.writer.write_eof()
        await stranger.until_closed()
        assert nodes[0].frames == []
        assert nodes[0].events == [("up", 2)]
        assert unhandled == []

    nodes: list[Node] = []
    ready, finish = asyncio.Event(), asyncio.Event()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        loop = runner.get_loop()
        serving = loop.create_task(open_nodes())
        loop.run_until_complete(ready.wait())
        nodes[0].mesh.set_peer(9, HOST, 1)

        @settings(max_examples=100, deadline=None)
        @given(stranger_bytes)
        def random_strangers(pieces: list[bytes]) -> None:
            loop.run_until_complete(attack(pieces))

        random_strangers()
        finish.set()
        loop.run_until_complete(serving)
    assert unhandled == []


payloads = st.recursive(
    st.none() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=5) | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=60, deadline=None)
@given(good=st.lists(payloads, max_size=5), bad=st.binary(max_size=60), cut=st.integers(0, 200))
def test_of_a_peer_gone_mad_only_whole_frames_arrive(good: list[Any], bad: bytes, cut: int) -> None:
    @on_loop
    async def scenario() -> None:
        one, two = Node(1), Node(2)
        async with started(one, two):
            one.mesh.set_peer(9, HOST, 1)
            peer = await RawPeer.enter(one, 9)
            stream = b"".join(framed(msgpack.packb([0, payload])) for payload in good)
            stream += framed(b"\x93" + bad)
            peer.writer.write(stream[:cut])
            await asyncio.sleep(0)
            peer.writer.write(stream[cut:])
            peer.writer.write_eof()
            await peer.until_closed()
            await one.until_down(9)
            assert one.frames == [(9, payload) for payload in good]
            await assert_unharmed(one, two)

    scenario()


@on_loop
async def test_a_refused_peer_hears_the_reason_before_the_connection_ends() -> None:
    one = Node(1)
    async with started(one):
        for _ in range(20):
            stranger = await RawPeer.dial(one)
            with pytest.raises(HandshakeRefused, match="it says this node's cluster secret is wrong"):
                await stranger.shake_hands(NODE_9, 1, secret=b"wrong")
            assert await stranger.until_closed() == b""
