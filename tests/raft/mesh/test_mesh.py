"""The mesh between honest nodes: frames arrive, bounds hold, connections come back by themselves."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import uvloop

from strandline.node.raft.mesh.frames import FrameKind
from strandline.node.raft.mesh.handshake import Handshake, HandshakeRefused, Identity, Role
from strandline.node.raft.mesh.mesh import Mesh, MeshConfig, MeshListenError, MeshReason
from tests.raft.mesh.mesh_nodes import (
    HOST,
    PATIENCE,
    QUICK,
    SECRET,
    Node,
    RawPeer,
    assert_unharmed,
    on_loop,
    started,
)

PAYLOADS: list[Any] = [None, True, -1, 2**64 - 1, 1.5, "ü", b"\0\xff", [], [1, [2]], {"a": {b"b": 3}}]


@pytest.mark.parametrize(
    "loop_factory", [uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"]
)
def test_nodes_meet_and_payloads_arrive_in_order(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def scenario() -> None:
        nodes = one, two, three = Node(1), Node(2), Node(3)
        async with started(*nodes):
            for sender, receiver in ((one, two), (two, one), (three, one), (one, three)):
                assert all(sender.mesh.send(receiver.node_id, payload) for payload in PAYLOADS)
                expected = [(sender.node_id, payload) for payload in PAYLOADS]
                await receiver.until(lambda r=receiver, e=expected: r.frames[-len(PAYLOADS) :] == e)  # type: ignore[misc]
            assert one.mesh.counters["frames_sent"] == 2 * len(PAYLOADS)
            assert two.mesh.counters["frames_received"] == len(PAYLOADS)
            assert [node.problems for node in nodes] == [[], [], []]
        assert sorted(two.events) == [("down", 1), ("down", 3), ("up", 1), ("up", 3)]

    on_loop(scenario, loop_factory)()


@on_loop
async def test_large_and_small_frames_keep_their_order() -> None:
    one, two = Node(1), Node(2)
    async with started(one, two):
        payloads = [bytes([i % 256]) * (3_000_000 if i % 50 == 0 else i) for i in range(300)]
        for payload in payloads:
            assert one.mesh.send(2, payload)
        await two.until(lambda: len(two.frames) == len(payloads))
        assert two.frames == [(1, payload) for payload in payloads]


@on_loop
async def test_one_payload_goes_to_several_peers() -> None:
    one, two, three = Node(1), Node(2), Node(3)
    async with started(one, two, three):
        assert [one.mesh.send(peer, [1, 2, 3]) for peer in (2, 9, 3)] == [True, False, True]
        for node in (two, three):
            await node.until(lambda n=node: n.frames == [(1, [1, 2, 3])])  # type: ignore[misc]
        assert one.mesh.counters["not_connected"] == 1


@on_loop
async def test_what_cannot_be_sent_is_refused_at_once_and_counted() -> None:
    one = Node(1, config=replace(QUICK, max_frame_bytes=1000, max_backlog_bytes=2000))
    async with started(one):
        assert not one.mesh.send(2, "nobody there")
        one.mesh.set_peer(2, HOST, 1)
        assert not one.mesh.send(2, "not connected yet")
        peer = await RawPeer.enter(one, 2, max_frame_bytes=500)
        await one.until_up(2)
        assert not one.mesh.send(2, bytes(496)), "larger than the peer takes"
        assert one.mesh.send(2, bytes(495))
        assert await peer.read() == [FrameKind.DATA, bytes(495)]
        assert one.mesh.counters["not_connected"] == 2
        assert one.mesh.counters["too_big"] == 1
        peer.close()
        await one.until_down(2)
        peer = await RawPeer.enter(one, 2)
        await one.until_up(2)
        assert not one.mesh.send(2, bytes(996)), "larger than this node itself would take"
        assert one.mesh.send(2, bytes(995))
        peer.close()


@on_loop
async def test_the_backlog_of_a_peer_that_does_not_read_is_bounded() -> None:
    limit = 3_000_000
    one, three = Node(1, config=replace(QUICK, max_frame_bytes=1_000_000, max_backlog_bytes=limit)), Node(3)
    async with started(one, three):
        one.mesh.set_peer(2, HOST, 1)
        peer = await RawPeer.enter(one, 2)
        await one.until_up(2)
        sent = 0
        for _ in range(1000):
            sent += one.mesh.send(2, bytes(100_000))
        assert one.mesh.counters["backlogged"] == 1000 - sent
        assert 29 <= sent < 100, "the backlog and what the kernel took"
        assert one.mesh.send(3, "others are not held up")
        await three.until(lambda: bool(three.frames))
        for _ in range(sent):
            assert (await peer.read())[1] == bytes(100_000)
        assert one.mesh.send(2, bytes(100_000)), "room again"
        peer.close()


@on_loop
async def test_a_payload_msgpack_cannot_encode_is_the_callers_error_and_leaves_nothing_behind() -> None:
    one, two = Node(1), Node(2)
    async with started(one, two):
        for payload in (object(), [1, 2, {3}], 2**64, {"a": [b"x" * 1000, object()]}):
            with pytest.raises((TypeError, ValueError, OverflowError)):
                one.mesh.send(2, payload)
        assert one.mesh.send(2, "clean")
        await two.until(lambda: two.frames == [(1, "clean")])


class FakeTransport(asyncio.Transport):
    """Records writes; like a simulated network, it has no socket to show."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.closed = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        """What is not read, the test does not send."""

    def resume_reading(self) -> None:
        """See pause_reading."""

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True


@on_loop
async def test_each_frame_is_one_write_on_a_transport_without_a_socket() -> None:
    node = Node(1)
    async with started(node):
        node.mesh.set_peer(2, HOST, 1)
        link, transport = node.mesh._connector.accept(), FakeTransport()
        link.connection_made(transport)
        other = Handshake(
            Role.DIALLER, Identity("blue", 2, 5, 9999), secret=SECRET, nonce=bytes(32), dialled=1
        )
        to_node, heard = list(other.start()), 0
        # The link is up once the disk has the other's data folder.
        while node.events != [("up", 2)]:
            while to_node:
                link.data_received(to_node.pop(0))
            for body in transport.writes[heard:]:
                to_node += other.receive(body[4:])
            heard = len(transport.writes)
            await asyncio.sleep(0.001)
        transport.writes.clear()
        node.mesh.send(2, "first")
        node.mesh.send(2, "second")
        assert transport.writes == [b"\0\0\0\x08\x92\x00\xa5first", b"\0\0\0\x09\x92\x00\xa6second"]
        link.connection_lost(None)
        assert node.events == [("up", 2), ("down", 2)]


@on_loop
async def test_small_frames_do_not_wait_for_nagle() -> None:
    one, two = Node(1), Node(2)
    async with started(one, two):
        link = next(iter(two.mesh._open))
        assert link._transport is not None
        sock = link._transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


@on_loop
async def test_a_port_in_use_is_one_clear_line() -> None:
    one = Node(1)
    async with started(one):
        other = Node(2, listen_port=one.mesh.port)
        with pytest.raises(MeshListenError) as caught:
            await other.mesh.start()
        assert str(caught.value).isprintable()
        assert f"cannot listen on {HOST}:{one.mesh.port}: " in str(caught.value)
        assert "in use: stop the process that has it, or configure another mesh.host" in str(caught.value)
    with pytest.raises(MeshListenError, match=r"configure another mesh\.host, which is an address of this"):
        await Node(3, listen_host="203.0.113.1").mesh.start()


@on_loop
async def test_a_peer_that_is_not_there_is_reported_and_found_when_it_comes() -> None:
    one, two = Node(1), Node(2)
    async with started(one, two, introduce=False):
        port = one.mesh.port
        await one.mesh.close()
        two.mesh.set_peer(1, HOST, port)
        problem = await two.problem(MeshReason.UNREACHABLE)
        assert f"node 1 at {HOST}:{port}: " in str(problem)
        assert "is it running, and the address right?" in str(problem)
        assert not problem.fatal
        again = Node(1, listen_port=port)
        async with started(again, introduce=False):
            again.mesh.set_peer(2, HOST, two.mesh.port)
            await two.until_up(1)


@on_loop
async def test_a_host_name_that_cannot_exist_is_a_problem_and_not_an_exception() -> None:
    two = Node(2)
    async with started(two):
        two.mesh.set_peer(1, "x" * 70 + ".invalid", 1)
        await two.problem(MeshReason.UNREACHABLE)
        await two.until(lambda: two.mesh.counters[MeshReason.UNREACHABLE] > 2)


@on_loop
async def test_a_restarted_peer_is_connected_again_from_either_side() -> None:
    one, two = Node(1), Node(2)
    async with started(one, two):
        await two.mesh.close()
        await one.until_down(2)
        two = Node(2, boot_id=2001)
        async with started(two, introduce=False):
            two.mesh.set_peer(1, HOST, one.mesh.port)
            await one.until_up(2)
        port = one.mesh.port
        two = Node(2, boot_id=2002)
        async with started(two, introduce=False):
            two.mesh.set_peer(1, HOST, port)
            await two.until_up(1)
            await one.mesh.close()
            await two.until_down(1)
            again = Node(1, boot_id=1001, listen_port=port)
            async with started(again, introduce=False):
                again.mesh.set_peer(2, HOST, two.mesh.port)
                await two.until_up(1)
        assert [
            p for n in (one, two, again) for p in n.problems if p.reason is not MeshReason.UNREACHABLE
        ] == []


@on_loop
async def test_a_new_address_is_dialled_once_the_old_connection_ends() -> None:
    """An address may also be an old one, of a log that this very connection brings."""
    old, two, new = Node(1), Node(2), Node(1, boot_id=1001)
    async with started(old, two), started(new, introduce=False):
        new.mesh.set_peer(2, HOST, two.mesh.port)
        two.mesh.set_peer(1, HOST, old.mesh.port)
        two.mesh.set_peer(1, HOST, 1)
        two.mesh.set_peer(1, HOST, new.mesh.port)
        await assert_unharmed(two, old)
        assert two.events == [("up", 1)]
        await old.mesh.close()
        await two.until_down(1)
        await two.until_up(1)
        two.mesh.send(1, "moved")
        await new.until(lambda: new.frames == [(2, "moved")])
        new.mesh.set_peer(2, HOST, 1)
        assert new.mesh.connected(2), "the address of a peer that dials is not needed now"


@on_loop
async def test_a_new_address_is_dialled_at_once_where_the_old_one_leads_nowhere() -> None:
    config = replace(QUICK, backoff_min_seconds=60.0, backoff_max_seconds=60.0)
    one, two = Node(1), Node(2, config=config)
    async with started(one, two, introduce=False):
        one.mesh.set_peer(2, HOST, 1)
        two.mesh.set_peer(1, HOST, 1)
        await two.problem(MeshReason.UNREACHABLE)
        two.mesh.set_peer(1, HOST, one.mesh.port)
        await two.until_up(1)


@on_loop
async def test_a_removed_peer_is_disconnected_and_not_let_in_again() -> None:
    one, two = Node(1), Node(2)
    async with started(one, two):
        one.mesh.remove_peer(2)
        assert one.events == [("up", 2), ("down", 2)]
        assert not one.mesh.connected(2)
        assert "it does not know this node's id" in str(await two.problem(MeshReason.UNKNOWN_NODE))
        two.mesh.remove_peer(1)
        two.mesh.remove_peer(1)
        assert not two.mesh.connected(1)
        assert two.events == [("up", 1), ("down", 1)]


@on_loop
async def test_a_callback_may_remove_the_peer_it_is_about() -> None:
    one: Node = Node(1, on_frame=lambda peer, payload: one.mesh.remove_peer(peer))
    two = Node(2)
    async with started(one, two):
        for _ in range(3):
            two.mesh.send(1, 1)
        await two.until_down(1)
        assert one.mesh.counters["frames_received"] == 1
        assert one.events == [("up", 2), ("down", 2)]


@on_loop
async def test_what_was_sent_before_close_still_arrives() -> None:
    one, two = Node(1, config=replace(QUICK, linger_seconds=PATIENCE)), Node(2)
    async with started(one, two):
        sent = 0
        while one.mesh.send(2, bytes(500_000)):
            sent += 1
        assert sent > 30, "more than the kernel takes at once"
        await one.mesh.close()
        assert not one.mesh.send(2, "late")
        await two.until_down(1)
        assert len(two.frames) == sent
        await one.mesh.close()


@on_loop
async def test_after_close_nothing_is_open_and_nothing_opens() -> None:
    one, three = Node(1), Node(3)
    async with started(one, three):
        three.mesh.set_peer(2, HOST, 1)
        await three.problem(MeshReason.UNREACHABLE)
        await three.mesh.close()
        assert not three.mesh._open
        assert asyncio.all_tasks() == {asyncio.current_task()}
        late, transport = three.mesh._connector.accept(), FakeTransport()
        late.connection_made(transport)
        assert transport.closed, "it was on its way when the mesh closed"
        late.connection_lost(None)


@on_loop
async def test_close_does_not_wait_for_a_peer_that_does_not_read() -> None:
    one = Node(1, config=replace(QUICK, linger_seconds=0.05))
    async with started(one):
        one.mesh.set_peer(2, HOST, 1)
        peer = await RawPeer.enter(one, 2)
        await one.until_up(2)
        while one.mesh.send(2, bytes(1_000_000)):
            pass
        await asyncio.wait_for(one.mesh.close(), PATIENCE / 4)
        peer.close()


@on_loop
async def test_a_silent_peer_is_pinged_and_then_given_up() -> None:
    one, three = Node(1, config=replace(QUICK, ping_seconds=0.02, max_unanswered_pings=3)), Node(3)
    async with started(one, three):
        one.mesh.set_peer(2, HOST, 1)
        peer = await RawPeer.enter(one, 2)
        for _ in range(6):
            kind, token = await peer.read()
            assert kind == FrameKind.PING
            peer.send(FrameKind.PONG, token)
        assert one.mesh.connected(2), "it answers"
        for _ in range(3):
            assert (await peer.read())[0] == FrameKind.PING
        assert await peer.until_closed() == b""
        await one.until_down(2)
        assert "node 2 at 127.0.0.1: it did not answer 3 pings" in str(await one.problem(MeshReason.SILENT))
        assert one.events == [("up", 3), ("up", 2), ("down", 2)], "node 3 answers"


@on_loop
async def test_a_frame_counts_as_a_sign_of_life() -> None:
    one = Node(1, config=replace(QUICK, ping_seconds=0.01, max_unanswered_pings=2))
    async with started(one):
        one.mesh.set_peer(2, HOST, 1)
        peer = await RawPeer.enter(one, 2)
        await one.until_up(2)
        for index in range(10):
            peer.data(index)
            await one.until(lambda i=index: len(one.frames) > i)  # type: ignore[misc]
            await asyncio.sleep(0.01)
        assert one.mesh.connected(2)
        peer.close()


@on_loop
async def test_a_ping_is_answered_with_its_token() -> None:
    one = Node(1)
    async with started(one):
        one.mesh.set_peer(2, HOST, 1)
        peer = await RawPeer.enter(one, 2)
        peer.send(FrameKind.PING, 2**63 - 1)
        assert await peer.read() == [FrameKind.PONG, 2**63 - 1]
        peer.close()


@on_loop
async def test_a_second_process_with_a_nodes_id_is_told_to_stop() -> None:
    one, two, three, twin = Node(1), Node(2), Node(3), Node(3, boot_id=3333)
    async with started(one, two, three), started(twin, introduce=False):
        twin.mesh.set_peer(1, HOST, one.mesh.port)
        problem = await twin.problem(MeshReason.DUPLICATE_NODE)
        assert problem.fatal
        assert "another running process has this node's id: stop it, or change its node_id" in str(problem)
        here = await one.problem(MeshReason.DUPLICATE_NODE)
        assert not here.fatal
        assert "a second process with node id 3, while the first answers" in str(here)
        assert twin.events == []
        for node in (two, three):
            assert one.mesh.send(node.node_id, "unharmed")
            await node.until(lambda n=node: (1, "unharmed") in n.frames)  # type: ignore[misc]
        assert one.events == [("up", 2), ("up", 3)] or one.events == [("up", 3), ("up", 2)]


@on_loop
async def test_a_rebooted_node_takes_over_from_its_dead_connection() -> None:
    """The machine lost power: its old connection looks alive, and nobody answers on it."""
    one = Node(1, config=replace(QUICK, duplicate_probe_seconds=0.06))
    async with started(one):
        one.mesh.set_peer(2, HOST, 1)
        dead = await RawPeer.enter(one, 2, boot_id=5)
        await one.until_up(2)
        rebooted = asyncio.create_task(RawPeer.enter(one, 2, boot_id=6))
        tokens = {tuple(await dead.read()) for _ in range(3)}
        assert len(tokens) == 1, "three pings with one token, in case two are lost"
        new = await rebooted
        assert one.events == [("up", 2), ("down", 2), ("up", 2)]
        assert await dead.until_closed() == b""
        assert one.mesh.send(2, "to the new one")
        assert await new.read() == [FrameKind.DATA, "to the new one"]
        assert one.mesh.counters[MeshReason.DUPLICATE_NODE] == 0
        new.close()


@on_loop
async def test_a_proof_that_comes_twice_does_not_disturb_the_question_who_lives() -> None:
    one = Node(1, config=replace(QUICK, duplicate_probe_seconds=0.06))
    async with started(one):
        one.mesh.set_peer(2, HOST, 1)
        dead = await RawPeer.enter(one, 2, boot_id=5)
        new = await RawPeer.dial(one)
        await new.shake_hands(Identity("blue", 2, 6, 1000), 1, repeat=2)
        await one.until(lambda: one.events == [("up", 2), ("down", 2), ("up", 2)])
        await dead.until_closed()
        new.close()


@on_loop
async def test_an_old_pong_does_not_defend_a_node_id() -> None:
    one = Node(1, config=replace(QUICK, duplicate_probe_seconds=0.06))
    async with started(one):
        one.mesh.set_peer(2, HOST, 1)
        dead = await RawPeer.enter(one, 2, boot_id=5)
        rebooted = asyncio.create_task(RawPeer.enter(one, 2, boot_id=6))
        _, token = await dead.read()
        dead.send(FrameKind.PONG, token ^ 1)
        (await rebooted).close()
        await dead.until_closed()


@on_loop
async def test_a_probe_ends_when_the_old_connection_does() -> None:
    one = Node(1, config=replace(QUICK, duplicate_probe_seconds=4))
    async with started(one):
        one.mesh.set_peer(2, HOST, 1)
        old = await RawPeer.enter(one, 2, boot_id=5)
        rebooted = asyncio.create_task(RawPeer.enter(one, 2, boot_id=6))
        await old.read()
        old.close()
        new = await asyncio.wait_for(rebooted, 2)
        assert one.events == [("up", 2), ("down", 2), ("up", 2)]
        new.close()


@on_loop
async def test_a_newcomer_that_gives_up_leaves_the_old_connection_alone() -> None:
    one = Node(1, config=replace(QUICK, duplicate_probe_seconds=0.06))
    async with started(one):
        one.mesh.set_peer(2, HOST, 1)
        old = await RawPeer.enter(one, 2, boot_id=5)
        newcomer = await RawPeer.dial(one)
        entering = asyncio.create_task(newcomer.shake_hands(Identity("blue", 2, 6, 1000), 1))
        await old.read()
        entering.cancel()
        newcomer.close()
        await asyncio.sleep(0.1)
        assert one.events == [("up", 2)]
        old.close()


@on_loop
async def test_a_peer_that_is_removed_while_two_claim_its_id_takes_both_along() -> None:
    one = Node(1, config=replace(QUICK, duplicate_probe_seconds=0.06))
    async with started(one):
        one.mesh.set_peer(2, HOST, 1)
        old = await RawPeer.enter(one, 2, boot_id=5)
        newcomer = asyncio.create_task(RawPeer.enter(one, 2, boot_id=6))
        await old.read()
        one.mesh.remove_peer(2)
        assert one.events == [("up", 2), ("down", 2)]
        await old.until_closed()
        with pytest.raises(asyncio.IncompleteReadError):
            await newcomer
        await asyncio.sleep(0.1)
        assert one.events == [("up", 2), ("down", 2)]


@on_loop
async def test_the_same_process_may_dial_again_at_once() -> None:
    """It noticed before this node did that their connection is dead."""
    one = Node(1, config=replace(QUICK, duplicate_probe_seconds=4))
    async with started(one):
        one.mesh.set_peer(2, HOST, 1)
        old = await RawPeer.enter(one, 2, boot_id=5)
        twin = asyncio.create_task(RawPeer.enter(one, 2, boot_id=6))
        await old.read()
        again = await asyncio.wait_for(RawPeer.enter(one, 2, boot_id=5), 2)
        with pytest.raises(HandshakeRefused, match="another running process has this node's id"):
            await twin
        assert await old.until_closed() == b""
        assert one.events == [("up", 2), ("down", 2), ("up", 2)]
        assert one.mesh.send(2, "x")
        assert await again.read() == [FrameKind.DATA, "x"]
        again.close()


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"handshake_seconds": 0}, "handshake_seconds must be above 0, not 0"),
        ({"max_frame_bytes": -1}, "max_frame_bytes must be above 0, not -1"),
        ({"max_frame_bytes": 2**32, "max_backlog_bytes": 2**33}, "does not fit the u32 length"),
        ({"max_backlog_bytes": 8 * 1024 * 1024}, "must have room for one frame"),
        ({"duplicate_probe_seconds": 5.0}, "must be below handshake_seconds"),
        ({"backoff_min_seconds": 2.0}, "must not be above backoff_max_seconds"),
    ],
)
def test_limits_that_contradict_each_other_are_named(changes: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError, match=line):
        MeshConfig(**changes)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"node_id": 0}, "a node id is 1 to 65535, not 0"),
        ({"node_id": 65536}, "a node id is 1 to 65535, not 65536"),
        ({"secret": b""}, "the cluster secret is empty"),
        ({"boot_id": 2**63}, "a boot id is 0 to"),
        ({"cluster_id": "x" * 256}, "the cluster id is longer than 255 bytes"),
    ],
)
def test_an_impossible_identity_is_named(changes: dict[str, Any], line: str) -> None:
    @on_loop
    async def scenario() -> None:
        with pytest.raises(ValueError, match=line):
            Node(**({"node_id": 1} | changes))

    scenario()


@on_loop
async def test_an_impossible_peer_is_named() -> None:
    mesh: Mesh = Node(1).mesh
    with pytest.raises(ValueError, match="node 1 cannot be a peer of itself"):
        mesh.set_peer(1, HOST, 1)
    with pytest.raises(ValueError, match="a node id is 1 to 65535, not 0"):
        mesh.set_peer(0, HOST, 1)
    with pytest.raises(ValueError, match="the port of node 2 is 1 to 65535, not 0"):
        mesh.set_peer(2, HOST, 0)
