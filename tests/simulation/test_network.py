"""The simulated network: TCP when nothing is wrong, and each fault when it is asked for."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator
from typing import Any, cast

import pytest

from tests.simulation.node import SimNode
from tests.simulation.world import World

PORT = 7000


class Recorder(asyncio.Protocol):
    """Keeps all that happens to it."""

    def __init__(self) -> None:
        self.units: list[bytes] = []
        self.events: list[str] = []
        self.lost: Exception | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.events.append("made")

    def data_received(self, data: bytes) -> None:
        self.units.append(data)

    def eof_received(self) -> None:
        self.events.append("eof")

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = error
        self.events.append("lost")

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")


class Pair:
    """A client on node 1, a server on node 2, and what came of `connect()`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.client, self.server = world.add_node(1), world.add_node(2)
        self.accepted: list[Recorder] = []
        self.error: BaseException | None = None
        self.near = Recorder()
        self.client.start(lambda node: None)
        self.server.start(self.listen)
        world.run(0.1)

    def listen(self, node: SimNode) -> None:
        async def go() -> None:
            await node.loop.create_server(self._accept, "0.0.0.0", PORT)

        node.spawn(go())

    def _accept(self) -> Recorder:
        self.accepted.append(Recorder())
        return self.accepted[-1]

    def connect(self, seconds: float = 1.0) -> Recorder:
        self.near, self.error = Recorder(), None

        async def go(near: Recorder) -> None:
            try:
                await self.client.loop.create_connection(lambda: near, self.server.host, PORT)
            except OSError as error:
                self.error = error

        self.client.spawn(go(self.near))
        self.run(seconds)
        return self.near

    @property
    def far(self) -> Recorder:
        return self.accepted[-1]

    def run(self, seconds: float = 1.0) -> None:
        self.world.run(self.world.now + seconds)
        self.world.check()

    def send(self, count: int, start: int = 0) -> list[bytes]:
        units = [b"%06d" % n for n in range(start, start + count)]
        for unit in units:
            self.client.call(self.near.transport.write, unit)
        return units


@pytest.fixture
def pair() -> Iterator[Pair]:
    with World(1) as world:
        yield Pair(world)


def test_a_connection_carries_units_in_order_and_closes(pair: Pair) -> None:
    near = pair.connect()
    assert near.transport.get_extra_info("peername") == (pair.server.host, PORT)
    assert pair.far.transport.get_extra_info("peername") == near.transport.get_extra_info("sockname")
    units = pair.send(500)
    pair.client.call(near.transport.close)
    pair.client.call(near.transport.write, b"after close")
    pair.run()
    assert pair.far.units == units
    assert pair.far.events == ["made", "eof", "lost"]
    assert near.events == ["made", "lost"]
    assert near.lost is None
    assert pair.far.lost is None


def test_streams_work(pair: Pair) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.readuntil(b".")).upper())
        await writer.drain()
        writer.close()

    async def main() -> Any:
        loop = pair.server.loop

        def factory() -> asyncio.StreamReaderProtocol:
            reader = asyncio.StreamReader(loop=loop)
            return asyncio.StreamReaderProtocol(reader, serve, loop=loop)

        server = await loop.create_server(factory, None, 0)
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("localhost", port)
        writer.write(b"hello.")
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        return answer

    task = pair.server.spawn(main())
    pair.run()
    assert task.result() == b"HELLO."


def test_a_port_is_taken_once_and_free_again(pair: Pair) -> None:
    async def go() -> None:
        loop = pair.server.loop
        with pytest.raises(OSError, match="in use") as taken:
            await loop.create_server(Recorder, "0.0.0.0", PORT)
        assert taken.value.errno == errno.EADDRINUSE
        server = await loop.create_server(Recorder, "0.0.0.0", 1)
        server.close()
        await server.wait_closed()
        async with await loop.create_server(Recorder, "0.0.0.0", 1) as again:
            assert again.is_serving()

    pair.server.spawn(go())
    pair.run()


def test_connects_are_refused_or_time_out(pair: Pair) -> None:
    pair.server.crash("kill")
    pair.connect()
    assert isinstance(pair.error, ConnectionRefusedError)
    pair.server.crash("power")
    pair.connect(30.0)
    assert isinstance(pair.error, TimeoutError)
    pair.server.start(pair.listen)
    pair.world.network.cut(1, 2)
    pair.connect(30.0)
    assert isinstance(pair.error, TimeoutError)
    pair.world.network.heal(1, 2)
    pair.world.network.cut(2, 1, both=False)
    pair.connect(30.0)
    assert isinstance(pair.error, TimeoutError)
    pair.world.network.heal_all()
    assert pair.connect().events == ["made"]
    counts = pair.world.network.counts
    assert (counts["refused"], counts["timed out"]) == (1, 3)


def test_a_connect_that_was_given_up_leaves_nothing_behind(pair: Pair) -> None:
    pair.world.network.set_all(delay=(0.3, 0.3))

    async def go() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.4):
                await pair.client.loop.create_connection(Recorder, pair.server.host, PORT)

    pair.client.spawn(go())
    pair.run(30.0)
    assert pair.far.events == ["made", "lost"]
    assert pair.client.ends == pair.server.ends == {}


def test_a_paused_process_still_accepts(pair: Pair) -> None:
    pair.server.pause()
    near = pair.connect()
    units = pair.send(3)
    pair.run()
    assert near.events == ["made"]
    assert pair.accepted == []
    pair.server.resume()
    pair.run()
    assert pair.far.units == units


def test_a_killed_process_resets_or_closes_its_connections() -> None:
    ends = set()
    for seed in range(20):
        with World(seed) as world:
            pair = Pair(world)
            near = pair.connect()
            pair.server.crash("kill")
            pair.run()
            assert near.events[-1] == "lost"
            ends.add(type(near.lost))
            assert pair.far.events == ["made"], "a dead process hears nothing"
            assert pair.server.ends == {}
    assert ends == {type(None), ConnectionResetError}


def test_a_host_without_power_is_silent_until_it_is_back(pair: Pair) -> None:
    near = pair.connect()
    pair.server.crash("power")
    pair.send(3)
    pair.run(60.0)
    assert near.events == ["made"]
    pair.server.start(pair.listen)
    pair.run(60.0)
    assert near.events == ["made"]
    pair.send(1)
    pair.run()
    assert isinstance(near.lost, ConnectionResetError)


@pytest.mark.parametrize("hold", [False, True])
def test_a_cut_drops_or_holds(pair: Pair, hold: bool) -> None:
    near = pair.connect()
    pair.world.network.cut(1, 2, both=False, hold=hold)
    held = pair.send(3)
    pair.server.call(pair.far.transport.write, b"the other way")
    pair.run(60.0)
    assert pair.far.units == []
    assert near.units == [b"the other way"]
    pair.world.network.heal(1, 2)
    later = pair.send(3, start=3)
    pair.run()
    assert pair.far.units == (held + later if hold else later)
    assert near.events == ["made"]


def test_what_a_host_without_power_held_is_gone(pair: Pair) -> None:
    pair.connect()
    pair.world.network.cut(1, 2, hold=True)
    pair.send(3)
    pair.run()
    pair.server.call(pair.far.transport.write, b"held by the other")
    pair.run()
    pair.client.crash("power")
    held = {pair.world.network.link(a, b).held == [] for a, b in ((1, 2), (2, 1))}
    assert held == {True, False}
    pair.world.network.heal_all()
    pair.run()
    assert pair.far.units == []


def test_partition_and_isolate_cut_the_right_links(pair: Pair) -> None:
    world = pair.world
    for i in (3, 4):
        world.add_node(i)

    def cuts() -> set[tuple[int, int]]:
        return {(a, b) for a in world.nodes for b in world.nodes if world.network.link(a, b).cut}

    world.network.partition([1, 2], [3, 4])
    assert cuts() == {(a, b) for a in world.nodes for b in world.nodes if (a < 3) != (b < 3)}
    world.network.heal_all()
    world.network.isolate(3)
    assert cuts() == {(3, n) for n in (1, 2, 4)} | {(n, 3) for n in (1, 2, 4)}


def test_a_reset_reaches_both_ends(pair: Pair) -> None:
    near = pair.connect()
    pair.send(3)
    pair.world.network.reset(2, 1)
    pair.run()
    for end in (near, pair.far):
        assert end.events == ["made", "lost"]
        assert isinstance(end.lost, ConnectionResetError)
    assert pair.client.ends == pair.server.ends == {}


def test_writing_to_a_closed_end_resets(pair: Pair) -> None:
    near = pair.connect()
    pair.world.network.cut(2, 1, both=False)
    pair.server.call(pair.far.transport.abort)
    pair.run()
    assert near.events == ["made"], "the reset was lost"
    pair.world.network.heal_all()
    pair.send(1)
    pair.run()
    assert isinstance(near.lost, ConnectionResetError)


def test_without_reordering_each_connection_is_first_in_first_out(pair: Pair) -> None:
    pair.world.network.set_all(delay=(0.0, 1.0), spike=0.2, loss=0.2, duplication=0.2)
    pair.connect(60.0)
    units = pair.send(500)
    pair.run(60.0)
    got = pair.far.units
    assert got == sorted(got)
    assert set(got) < set(units)
    assert len(got) > len(set(got))
    counts = pair.world.network.counts
    assert counts["lost"] == 500 - len(set(got)) > 50
    assert counts["duplicated"] == len(got) - len(set(got)) > 50
    assert counts["reordered"] == 0


def test_nothing_arrives_before_the_connection_is_made(pair: Pair) -> None:
    class Greeter(Recorder):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            self.transport.write(b"welcome")

    pair.world.network.set_all(delay=(0.0, 1.0), reorder=0.5)
    pair.server.listeners[PORT].factory = Greeter
    for _ in range(20):
        assert pair.connect(5.0).units == [b"welcome"]


def test_reordering_is_for_the_link_that_asks_for_it(pair: Pair) -> None:
    pair.world.network.set_all(delay=(0.0, 1.0))
    pair.world.network.link(1, 2).reorder = 0.5
    near = pair.connect(5.0)
    units = pair.send(300)
    back = [b"%06d" % n for n in range(300)]
    for unit in back:
        pair.server.call(pair.far.transport.write, unit)
    pair.client.call(near.transport.write_eof)
    pair.run(5.0)
    assert near.units == back
    assert sorted(pair.far.units) == units != pair.far.units
    assert pair.far.events == ["made", "eof", "lost"], "the end comes after all that was sent"


def test_units_may_arrive_in_pieces(pair: Pair) -> None:
    pair.world.network.set_all(split=0.5)
    pair.connect()
    units = pair.send(100)
    pair.run()
    assert b"".join(pair.far.units) == b"".join(units)
    assert 120 < len(pair.far.units) < 180


def test_a_slow_reader_pushes_back(pair: Pair) -> None:
    pair.world.network.set_all(duplication=1.0)
    near = pair.connect()
    pair.server.call(pair.far.transport.pause_reading)
    pair.server.pause()
    for _ in range(10):
        pair.client.call(near.transport.write, bytes(100_000))
    pair.run()
    assert near.events == ["made", "pause"]
    unsent = near.transport.get_write_buffer_size()
    assert unsent > 500_000
    pair.server.resume()
    pair.run()
    assert near.events == ["made", "pause", "resume"]
    assert near.transport.get_write_buffer_size() == 0
    assert pair.far.units == []
    pair.server.call(pair.far.transport.resume_reading)
    pair.run()
    assert len(pair.far.units) == 20
    pair.server.pause()
    pair.client.call(near.transport.write, bytes(1_000_000))
    pair.run()
    assert near.transport.get_write_buffer_size() == unsent


def test_a_buffered_protocol_gets_every_byte(pair: Pair) -> None:
    class Small(asyncio.BufferedProtocol):
        def __init__(self) -> None:
            self.buffer = bytearray(4)
            self.got = b""

        def get_buffer(self, sizehint: int) -> bytearray:
            return self.buffer

        def buffer_updated(self, nbytes: int) -> None:
            self.got += self.buffer[:nbytes]

    pair.connect()
    small = Small()
    pair.far.transport.set_protocol(small)
    pair.send(2)
    pair.run()
    assert small.got == b"000000000001"


def test_unknown_hosts_and_knobs_are_refused(pair: Pair) -> None:
    with pytest.raises(ValueError, match="no knob 'lag'"):
        pair.world.network.set_all(lag=1.0)

    async def go() -> None:
        with pytest.raises(OSError, match="no simulated node"):
            await pair.client.loop.create_connection(Recorder, "example", PORT)
        with pytest.raises(NotImplementedError, match="ssl"):
            await pair.client.loop.create_connection(Recorder, pair.server.host, PORT, ssl=True)

    pair.client.spawn(go())
    pair.run()
