"""A small run with every kind of event in it, by which the simulator itself is tested."""

from __future__ import annotations

import asyncio
import sys
from typing import cast

from tests.simulation.clock import Clock
from tests.simulation.node import SimNode
from tests.simulation.world import World

PORT = 9000
NODES = (1, 2, 3)


class Gossip(asyncio.Protocol):
    """Answers every message it gets with another, for a while, and writes each to a file."""

    def __init__(self, node: SimNode) -> None:
        self.node = node

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.node.spawn(self.answer(data))

    async def answer(self, data: bytes) -> None:
        await asyncio.sleep(self.node.rng("pause").random() * 0.05)
        await self.node.loop.run_in_executor(self.node.executor, append, self.node, data)
        if len(data) < 200:
            self.transport.write(data + bytes([self.node.id]))


def append(node: SimNode, data: bytes) -> None:
    disk = node.disk
    with_name = disk.open("log") if disk.exists("log") else disk.open("log", create=True)
    with_name.pwrite(data, with_name.size())
    with_name.datasync()
    disk.sync_dir(".")


def main(node: SimNode) -> None:
    async def live() -> None:
        await node.loop.create_server(lambda: Gossip(node), node.host, PORT)
        while True:
            for other in NODES:
                try:
                    async with asyncio.timeout(0.3):
                        host = node.world.nodes[other].host
                        transport, _ = await node.loop.create_connection(lambda: Gossip(node), host, PORT)
                        transport.write(b"hello")
                except (OSError, TimeoutError):
                    node.world.record(node.id, f"no way to {other}")
            await asyncio.sleep(0.5)

    node.spawn(live())


def run(seed: int, *, tracing: bool = False) -> World:
    """Two virtual seconds of gossip among faults; returns the world, closed."""
    with World(seed, tracing=tracing) as world:
        for i in NODES:
            world.add_node(i, clock=Clock(offset=100.0 * i, drift=1e-3 * i)).start(main)
        world.network.set_all(loss=0.02, duplication=0.02, reorder=0.1, spike=0.05, split=0.1)
        chance = world.rng("faults")
        for moment in range(1, 10):
            node = world.nodes[chance.choice(NODES)]
            when = moment * 0.2
            match chance.randrange(4):
                case 0:
                    kind = chance.choice(("kill", "power"))
                    world.call_at(when, node.crash, kind)
                    world.call_at(when + 0.15, node.restart, main)
                case 1:
                    world.call_at(when, lambda n=node: n.pause() if n.alive else None)
                    world.call_at(when + 0.15, lambda n=node: n.resume() if n.alive else None)
                case 2:
                    world.call_at(when, world.network.isolate, node.id)
                    world.call_at(when + 0.15, world.network.heal_all)
                case _:
                    world.call_at(when, node.jump_clock, chance.uniform(-0.1, 0.1))
        world.run(2.0)
        world.check()
        return world


if __name__ == "__main__":
    print(*(run(int(seed)).digest() for seed in sys.argv[1:]))
