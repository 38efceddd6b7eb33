"""Calls between nodes on the simulated network: each ends, and says truly whether it was carried out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from strandline.node.raft.bad_message import BadMessage
from strandline.node.raft.host import RaftHost
from strandline.node.raft.host_settings import HostSettings
from strandline.node.raft.wal.write_ahead_log import WalConfig
from strandline.node.rpc import FRAME, MAX_SERVED, CallFailed, MeshCalls
from tests.simulation.node import SimNode
from tests.simulation.world import World

PORT = 9000
WAL = WalConfig(segment_bytes=1 << 20)


class Caller:
    """Two hosts without groups, each with its calls; node 2 counts what it carries out."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.hosts: dict[int, RaftHost] = {}
        self.calls: dict[int, MeshCalls] = {}
        self.carried_out: list[Any] = []
        self.gate: asyncio.Future[None] | None = None
        for node in (1, 2):
            world.add_node(node)
        for node in (1, 2):
            world.nodes[node].start(self._main)
        assert world.run_until(lambda: 1 in self.hosts and self.hosts[1].connected(2), timeout=5)

    def _main(self, sim: SimNode) -> None:
        rng = sim.rng("raft")
        settings = HostSettings(
            sim.id, "calls", b"secret", 1 + rng.getrandbits(60), "/data", sim.host, PORT, wal=WAL
        )
        host = self.hosts[sim.id] = RaftHost(
            settings, loop=sim.loop, disk=sim.disk, wal_executor=None, snapshot_executor=sim.executor,
            rng=rng, nonces=sim.rng("nonces"), on_fatal=lambda error: None,
            on_group_failed=lambda group, error: None,
        )  # fmt: skip
        peer = 3 - sim.id
        host.set_peer(peer, self.world.nodes[peer].host, PORT)
        calls = self.calls[sim.id] = MeshCalls(host, loop=sim.loop)
        calls.serve("double", self._double)
        calls.serve("refuse", self._refuse)
        calls.serve("fail", self._fail)
        calls.serve("hold", self._hold)
        calls.serve("object", self._object)
        host.open()
        sim.spawn(host.start())

    async def _double(self, peer: int, payload: Any) -> Any:
        self.carried_out.append((peer, payload))
        return payload * 2

    async def _refuse(self, peer: int, payload: Any) -> Any:
        raise CallFailed("not today", unknown=False)

    async def _fail(self, peer: int, payload: Any) -> Any:
        raise KeyError("a mistake")

    async def _hold(self, peer: int, payload: Any) -> Any:
        self.carried_out.append((peer, payload))
        if self.gate is None:
            self.gate = self.world.nodes[2].loop.create_future()
        await asyncio.shield(self.gate)
        return payload

    async def _object(self, peer: int, payload: Any) -> Any:
        return object()

    def open(self, gate: asyncio.Future[None] | None) -> None:
        """Let node 2 answer who waits at this gate."""
        assert gate is not None
        self.world.nodes[2].call(gate.set_result, None)

    def start(self, call: Callable[[MeshCalls], Awaitable[Any]], node: int = 1) -> asyncio.Task[Any]:
        async def run() -> Any:
            try:
                return await call(self.calls[node])
            except CallFailed as failed:
                return failed

        return self.world.nodes[node].spawn(run())

    def result(self, call: Callable[[MeshCalls], Awaitable[Any]], node: int = 1) -> Any:
        task = self.start(call, node)
        assert self.world.run_until(task.done, timeout=30)
        return task.result()


def to(node: int, method: str, payload: Any, seconds: float) -> Callable[[MeshCalls], Awaitable[Any]]:
    return lambda calls: calls.call(node, method, payload, seconds)


def failure(result: Any) -> tuple[str, bool]:
    assert isinstance(result, CallFailed), result
    return result.reason, result.unknown


def test_a_call_gives_what_the_handler_gave_here_and_there() -> None:
    with World(1) as world:
        caller = Caller(world)
        for node in (1, 2):
            assert caller.result(to(node, "double", [b"x", 3], 1.0)) == [
                b"x", 3, b"x", 3,
            ]  # fmt: skip
        assert [peer for peer, _ in caller.carried_out] == [1, 1]
        world.check()


@pytest.mark.parametrize("node", [1, 2])
def test_a_refusal_is_definite_and_a_handlers_mistake_is_not(node: int) -> None:
    with World(1) as world:
        caller = Caller(world)
        assert failure(caller.result(to(node, "refuse", None, 1.0))) == (
            "not today",
            False,
        )
        reason, unknown = failure(caller.result(to(node, "fail", None, 1.0)))
        assert "a mistake" in reason
        assert unknown
        reason, unknown = failure(caller.result(to(node, "nothing", None, 1.0)))
        assert "does not know" in reason
        assert not unknown


def test_an_answer_that_cannot_be_sent_is_a_failure_not_silence() -> None:
    with World(1) as world:
        caller = Caller(world)
        reason, unknown = failure(caller.result(to(2, "object", None, 60.0)))
        assert "cannot be encoded" in reason
        assert unknown
        too_large = bytes(9 * 1024 * 1024)
        assert not failure(caller.result(to(2, "double", too_large, 1.0)))[1]
        half = bytes(5 * 1024 * 1024)
        reason, unknown = failure(caller.result(to(2, "double", half, 60.0)))
        assert "too large" in reason
        assert unknown


def test_a_lost_connection_leaves_the_call_unknown_at_once() -> None:
    with World(1) as world:
        caller = Caller(world)
        task = caller.start(to(2, "hold", 1, 60.0))
        assert world.run_until(lambda: bool(caller.carried_out), timeout=5)
        lost_at = world.now
        world.nodes[2].crash("kill")
        assert world.run_until(task.done, timeout=5)
        reason, unknown = failure(task.result())
        assert "lost" in reason
        assert unknown
        assert world.now - lost_at < 1
        assert not failure(caller.result(to(2, "double", 1, 1.0)))[1]


def test_time_running_out_leaves_the_call_unknown_and_a_late_answer_harmless() -> None:
    with World(1) as world:
        caller = Caller(world)
        reason, unknown = failure(caller.result(to(2, "hold", 1, 0.5)))
        assert "within 0.5 s" in reason
        assert unknown
        caller.open(caller.gate)
        assert caller.result(to(2, "double", 4, 1.0)) == 8
        world.check()


def test_an_answer_does_not_reach_the_process_after_the_one_that_asked() -> None:
    with World(1) as world:
        caller = Caller(world)
        caller.start(to(2, "hold", "old", 60.0))
        assert world.run_until(lambda: bool(caller.carried_out), timeout=5)
        old_gate, caller.gate = caller.gate, None
        world.nodes[1].crash("kill")
        del caller.hosts[1]
        world.nodes[1].start(caller._main)
        assert world.run_until(lambda: 1 in caller.hosts and caller.hosts[1].connected(2), timeout=10)
        # The same number as the first process's call, and another answer that is on its way.
        task = caller.start(to(2, "hold", "new", 60.0))
        assert world.run_until(lambda: len(caller.carried_out) == 2, timeout=5)
        caller.open(old_gate)
        world.run(world.now + 1)
        assert not task.done()
        caller.open(caller.gate)
        assert world.run_until(task.done, timeout=5)
        assert task.result() == "new"


def test_a_peer_cannot_have_more_carried_out_than_the_bound() -> None:
    with World(1) as world:
        caller = Caller(world)
        tasks = [caller.start(to(2, "hold", n, 60.0)) for n in range(MAX_SERVED + 5)]
        assert world.run_until(lambda: sum(task.done() for task in tasks) == 5, timeout=5)
        assert [failure(task.result())[1] for task in tasks if task.done()] == [False] * 5
        caller.open(caller.gate)
        assert world.run_until(lambda: all(task.done() for task in tasks), timeout=5)
        assert caller.result(to(2, "double", 1, 1.0)) == 2


def test_a_request_that_comes_twice_is_carried_out_once() -> None:
    with World(1) as world:
        caller = Caller(world)
        world.network.link(1, 2).duplication = 1.0
        assert caller.result(to(2, "double", 3, 1.0)) == 6
        world.run(world.now + 1.0)
        assert caller.carried_out == [(1, 3)]


def test_what_is_told_is_carried_out_without_an_answer() -> None:
    with World(1) as world:
        caller = Caller(world)
        assert caller.calls[1].tell(2, "double", 7)
        assert caller.calls[1].tell(1, "double", 8)
        assert world.run_until(lambda: len(caller.carried_out) == 2, timeout=5)
        world.nodes[2].crash("kill")
        assert world.run_until(lambda: not caller.hosts[1].connected(2), timeout=5)
        assert not caller.calls[1].tell(2, "double", 7)


def test_what_was_told_over_a_lost_connection_is_not_carried_out_after_it() -> None:
    """A handler that forgets a peer's words with the connection must not hear them behind that."""
    with World(1) as world:
        caller = Caller(world)
        calls = caller.calls[2]

        def told_and_lost() -> None:
            calls._on_frame(1, [FRAME, 3, "double", "old"])
            calls._on_disconnect(1)
            calls._on_connect(1)
            calls._on_frame(1, [FRAME, 3, "double", "new"])

        world.nodes[2].call(told_and_lost)
        world.run(world.now + 1)
        assert caller.carried_out == [(1, "new")]


def test_closing_ends_calls_as_unknown_and_handlers_with_them() -> None:
    with World(1) as world:
        caller = Caller(world)
        task = caller.start(to(2, "hold", 1, 60.0))
        assert world.run_until(lambda: bool(caller.carried_out), timeout=5)
        world.nodes[1].call(caller.calls[1].close)
        assert world.run_until(task.done, timeout=1)
        assert failure(task.result()) == ("this node is stopping", True)
        world.nodes[2].call(caller.calls[2].close)
        world.run(world.now + 1)
        world.check()


@pytest.mark.parametrize(
    "frame",
    [
        [FRAME],
        [FRAME, 9, 1],
        [FRAME, [], 1],
        [FRAME, 0, 1, "double"],
        [FRAME, 0, "1", "double", 1],
        [FRAME, 0, True, "double", 1],
        [FRAME, 1, 1],
        [FRAME, 2, 1, "reason", 1],
        [FRAME, 3, 5, None],
    ],
)
def test_a_malformed_frame_is_the_peers_fault(frame: list[Any]) -> None:
    with World(1) as world:
        caller = Caller(world)
        with pytest.raises(BadMessage):
            caller.hosts[1].peer_traffic.on_frame(2, frame)


def test_an_answer_counts_only_from_the_node_that_was_asked() -> None:
    with World(1) as world:
        caller = Caller(world)
        task = caller.start(to(2, "hold", "true", 60.0))
        assert world.run_until(lambda: bool(caller.carried_out), timeout=5)
        (number,) = caller.calls[1]._pending
        caller.hosts[1].peer_traffic.on_frame(3, [FRAME, 1, number, "forged"])
        caller.open(caller.gate)
        assert world.run_until(task.done, timeout=5)
        assert task.result() == "true"


def test_an_answer_to_nothing_is_ignored() -> None:
    with World(1) as world:
        caller = Caller(world)
        caller.hosts[1].peer_traffic.on_frame(2, [FRAME, 1, 12345, None])
        caller.hosts[1].peer_traffic.on_frame(2, [FRAME, 2, 12345, "reason", False])
        world.check()
