"""Connections between simulated nodes, with everything that can go wrong on the way.

A `transport.write()` is one unit on its way: it may be delayed, lost, doubled, overtaken or delivered in two
pieces. Without loss, duplication and reordering a connection is what TCP gives. Handshakes, closes and resets
are handled by the "kernel" of a host: a paused process still accepts connections, a killed one closes or
resets them, a host without power says nothing at all.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from tests.simulation.loop import DEAD, Call, SimLoop
from tests.simulation.transport import SimServer, SimTransport, reset_error

if TYPE_CHECKING:
    from tests.simulation.node import SimNode
    from tests.simulation.world import World

FIRST_FREE_PORT = 40_000
RETRANSMIT_SECONDS = 1.0


class Link:
    """One direction between two nodes; every field is a knob. Times in seconds, the rest chances from 0 to 1.

    `delay` is the shortest and longest way; `spike` of the units take up to `spike_seconds` longer; `reorder`
    of the units do not keep their place in line; `split` of them arrive in two pieces. While `cut`, units are
    dropped, or with `hold` kept until the link heals, as TCP's retransmission would.
    """

    __slots__ = (
        "cut", "delay", "duplication", "held", "hold", "loss", "reorder", "rng", "spike", "spike_seconds",
        "split",
    )  # fmt: skip

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.delay = (0.0002, 0.002)
        self.spike = 0.0
        self.spike_seconds = 0.5
        self.loss = 0.0
        self.duplication = 0.0
        self.reorder = 0.0
        self.split = 0.0
        self.cut = False
        self.hold = False
        self.held: list[Callable[[], None]] = []

    def travel(self) -> float:
        """Seconds that the next unit takes."""
        random = self.rng.random
        low, high = self.delay
        seconds = low + (high - low) * random()
        if self.spike and random() < self.spike:
            seconds += self.spike_seconds * random()
        return seconds


class SimNetwork:
    """All links, and the kernels' part of every connection."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.connect_timeout = 20.0
        self.early_ports = True
        """Whether a port takes connections before its server is told to. None does outside of here; but the
        seeds that tests name would mean other runs without it."""
        self.counts = {
            "delivered": 0, "lost": 0, "duplicated": 0, "reordered": 0, "resets": 0, "refused": 0,
            "timed out": 0,
        }  # fmt: skip
        self._links: dict[tuple[int, int], Link] = {}
        self._knobs: dict[str, Any] = {}
        self._hosts: dict[str, SimNode] = {}
        self._connections = 0

    # Knobs.

    def link(self, source: int, target: int) -> Link:
        """The link from one node to another, with its knobs."""
        link = self._links.get((source, target))
        if link is None:
            link = self._links[source, target] = Link(self.world.rng(f"link {source} {target}"))
            for name, value in self._knobs.items():
                setattr(link, name, value)
        return link

    def set_all(self, **knobs: Any) -> None:
        """Set knobs of `Link` on every link there is and will be."""
        for name, value in knobs.items():
            if name not in Link.__slots__:
                raise ValueError(f"a link has no knob {name!r}")
            self._knobs[name] = value
            for link in self._links.values():
                setattr(link, name, value)

    def cut(self, source: int, target: int, *, both: bool = True, hold: bool = False) -> None:
        """Nothing that is sent from now on arrives; what is on its way does."""
        self.world.note("cut", source, target, both)
        for pair in ((source, target), (target, source))[: 1 + both]:
            link = self.link(*pair)
            link.cut, link.hold = True, hold

    def heal(self, source: int, target: int, *, both: bool = True) -> None:
        self.world.note("heal", source, target, both)
        for pair in ((source, target), (target, source))[: 1 + both]:
            link = self.link(*pair)
            link.cut = False
            held, link.held = link.held, []
            for send in held:
                send()

    def partition(self, *sides: Iterable[int], hold: bool = False) -> None:
        """Cut every link between nodes of different sides."""
        groups = [list(side) for side in sides]
        for i, side in enumerate(groups):
            for other in groups[i + 1 :]:
                for a in side:
                    for b in other:
                        self.cut(a, b, hold=hold)

    def isolate(self, node: int, *, hold: bool = False) -> None:
        self.partition([node], [other for other in self.world.nodes if other != node], hold=hold)

    def heal_all(self) -> None:
        for (a, b), link in list(self._links.items()):
            if link.cut:
                self.heal(a, b, both=False)

    def reset(self, a: int, b: int) -> None:
        """Reset every connection between two nodes, at both ends, now."""
        self.world.note("reset", a, b, 0)
        for end in list(self.world.nodes[a].ends.values()):
            if end.peer.loop.node.id == b:
                self.counts["resets"] += 1
                for side in (end, end.peer):
                    error = reset_error()
                    self._post(self.world.now, side.loop, side.ended, (error,))

    # Opening.

    def add_host(self, node: SimNode) -> None:
        self._hosts[node.host] = node

    def listen(self, loop: SimLoop, factory: Callable[[], asyncio.BaseProtocol], port: int) -> SimServer:
        node = loop.node
        if not port:
            port = FIRST_FREE_PORT
            while port in node.listeners:
                port += 1
        if port in node.listeners:
            raise OSError(errno.EADDRINUSE, f"{os.strerror(errno.EADDRINUSE)}: port {port}")
        server = SimServer(loop, factory, port)  # type: ignore[abstract]
        if loop.state != DEAD:
            node.listeners[port] = server
        return server

    def connect(
        self, loop: SimLoop, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> asyncio.Future[Any]:
        source = loop.node
        target = source if host in ("127.0.0.1", "localhost", "::1") else self._hosts.get(host)
        if target is None:
            raise OSError(f"no simulated node has the address {host!r}")
        answer = loop.create_future()
        world = self.world
        late = Call(world.context, self._timed_out, (answer, host, port))
        world.push(world.now + self.connect_timeout, loop, late)
        link = self.link(source.id, target.id)
        if not link.cut:
            delay = link.travel()
            while link.loss and link.rng.random() < min(link.loss, 0.9):
                delay += RETRANSMIT_SECONDS
            arrive = Call(world.context, self._asked, (loop, target, factory, port, answer, late))
            world.push(world.now + delay, None, arrive)
        return answer

    def _timed_out(self, answer: asyncio.Future[Any], host: str, port: int) -> None:
        if not answer.done():
            self.counts["timed out"] += 1
            answer.set_exception(TimeoutError(errno.ETIMEDOUT, f"connect to {host}:{port} timed out"))

    def _asked(
        self,
        loop: SimLoop,
        target: SimNode,
        factory: Callable[[], asyncio.BaseProtocol],
        port: int,
        answer: asyncio.Future[Any],
        late: Call,
    ) -> None:
        """The target host's kernel has the request to connect: it accepts or refuses for the process."""
        source = loop.node
        back = self.link(target.id, source.id)
        if back.cut or not target.powered or answer.done() or loop.state == DEAD:
            return
        world = self.world
        when = world.now + back.travel()
        server = target.listeners.get(port)
        if server is None or not server.accepts:
            late.cancel()
            self.counts["refused"] += 1
            self._post(when, loop, refuse, (answer, target.host, port))
            return
        self._connections += 1
        number = self._connections
        world.note("connect", source.id, target.id, number)
        here = (source.host, 50_000 + number % 15_000)
        there = (target.host, port)
        caller = SimTransport(self, number, loop, self.link(source.id, target.id), here, there)
        callee = SimTransport(self, number, target.loop, back, there, here)
        caller.peer, callee.peer = callee, caller
        callee.floor = callee.last = callee.horizon = when
        source.ends[2 * number] = caller
        target.ends[2 * number + 1] = callee
        caller.number, callee.number = 2 * number, 2 * number + 1
        self._post(world.now, target.loop, self._accepted, (callee, server))
        self._post(when, loop, self._connected, (caller, factory, answer, late))

    def _accepted(self, end: SimTransport, server: SimServer) -> None:
        if not end.is_closing():
            end.open(server.factory())

    def _connected(
        self,
        end: SimTransport,
        factory: Callable[[], asyncio.BaseProtocol],
        answer: asyncio.Future[Any],
        late: Call,
    ) -> None:
        late.cancel()
        if end.is_closing():
            if not answer.done():
                answer.set_exception(reset_error())
            return
        if answer.done():
            end.open(asyncio.Protocol())
            end.abort()
            return
        protocol = factory()
        end.open(protocol)
        answer.set_result((end, protocol))

    # Sending.

    def send(self, end: SimTransport, data: bytes) -> None:
        """Put one unit on its way from `end` to its peer."""
        link = end.link
        if link.cut:
            if link.hold:
                link.held.append(lambda: self.send(end, data))
            else:
                self._lose(end, data)
            return
        random = link.rng.random
        if link.loss and random() < link.loss:
            self._lose(end, data)
            return
        self._launch(end, data, True)
        if link.duplication and random() < link.duplication:
            self.counts["duplicated"] += 1
            self._launch(end, data, False)

    def _launch(self, end: SimTransport, data: bytes, first: bool) -> None:
        link = end.link
        world = self.world
        when = world.now + link.travel()
        if link.reorder and link.rng.random() < link.reorder:
            self.counts["reordered"] += 1
            when = max(when, end.floor)
        else:
            end.last = when = max(when, end.last)
        if when > end.horizon:
            end.horizon = when
        peer = end.peer
        world.push(
            when, peer.loop, Call(world.context, peer.arrive, (data, first), lambda: self._nobody_there(peer))
        )

    def _lose(self, end: SimTransport, data: bytes) -> None:
        self.counts["lost"] += 1
        end.left(len(data))

    def _nobody_there(self, end: SimTransport) -> None:
        """A unit for a process that is gone: its host, if it has power, answers with a reset."""
        if end.loop.node.powered:
            self.send_end(end, reset_error())

    def send_end(self, end: SimTransport, error: OSError | None) -> None:
        """Send a close (None) or a reset after all that was sent; only a cut link keeps it from arriving."""
        link = end.link
        if link.cut:
            if link.hold:
                link.held.append(lambda: self.send_end(end, error))
            return
        end.horizon = end.last = max(self.world.now + link.travel(), end.horizon)
        self._post(end.horizon, end.peer.loop, end.peer.ended, (error,))

    def process_died(self, node: SimNode, kind: str) -> None:
        """Killed: the kernel closes or resets the process's connections. Without power: silence."""
        ends = list(node.ends.values())
        node.ends.clear()
        node.listeners.clear()
        if kind == "power":
            for (source, _), link in self._links.items():
                if source == node.id:
                    link.held.clear()
        for end in ends:
            if kind == "kill":
                clean = end.link.rng.random() < 0.5
                error = reset_error()
                self.send_end(end, None if clean else error)

    def _post(self, when: float, loop: SimLoop, callback: Callable[..., None], args: tuple[Any, ...]) -> None:
        self.world.push(when, loop, Call(self.world.context, callback, args))


def refuse(answer: asyncio.Future[Any], host: str, port: int) -> None:
    if not answer.done():
        answer.set_exception(
            ConnectionRefusedError(errno.ECONNREFUSED, f"{os.strerror(errno.ECONNREFUSED)}: {host}:{port}")
        )
