"""The two systems that are measured: how three nodes of each come to be. All else is the same for both."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import socket
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from tests.programs.processes.control import NodeFailed, NodeProcess, running

_ELECTION_SECONDS = 60.0
_POLL_SECONDS = 0.05


class System(Protocol):
    """One kind of node process."""

    name: str

    def make_nodes(self, folder: Path, groups: int, ids: Sequence[int], **settings: Any) -> list[NodeProcess]:
        """Nodes that are not started yet; every one of `ids` votes in every group."""

    async def connect(self, nodes: Sequence[NodeProcess]) -> None:
        """Tell those of the nodes that run where the others listen."""


class Strandline:
    """Every group on one loop, one connection for each pair of nodes, one synced log for each node."""

    name = "Strandline"

    def make_nodes(self, folder: Path, groups: int, ids: Sequence[int], **settings: Any) -> list[NodeProcess]:
        own = {"voters": list(ids), "groups": groups, "machine": "counter", **settings}
        return [
            NodeProcess(
                "tests.programs.processes.raft_node",
                {"node": node, "folder": str(folder / f"node-{node}"), **own},
                folder / f"node-{node}",
            )
            for node in ids
        ]

    async def connect(self, nodes: Sequence[NodeProcess]) -> None:
        ports = {node.settings["node"]: node.hello["port"] for node in nodes if node.alive}
        for node in nodes:
            if node.alive:
                peers = {peer: port for peer, port in ports.items() if peer != node.settings["node"]}
                await node.ask("connect", peers=peers)


class StockPySyncObj:
    """A SyncObj with its own thread, port and unsynced journal for each group."""

    name = "PySyncObj 0.3.17"

    def make_nodes(self, folder: Path, groups: int, ids: Sequence[int], **_: Any) -> list[NodeProcess]:
        free = free_ports(len(ids) * groups)
        ports = [free[group * len(ids) : (group + 1) * len(ids)] for group in range(groups)]
        return [
            NodeProcess(
                "tests.programs.bench.stock_node",
                {
                    "node": node,
                    "folder": str(folder / f"node-{node}"),
                    "ports": [[own[place], *own[:place], *own[place + 1 :]] for own in ports],
                },
                folder / f"node-{node}",
            )
            for place, node in enumerate(ids)
        ]

    async def connect(self, nodes: Sequence[NodeProcess]) -> None:
        """They were told at birth."""


def free_ports(count: int) -> list[int]:
    """Ports that nobody has, ascending: of two PySyncObj nodes the one with the higher port dials.

    They lie below those that the system gives to outgoing connections, which would else take them first.
    """
    ports: list[int] = []
    for port in range(random.randrange(10_000, 20_000), 32_000):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            ports.append(port)
        if len(ports) == count:
            return ports
    raise NodeFailed(f"{count} free ports were not to be had")


@contextlib.asynccontextmanager
async def cluster(
    system: System, folder: Path, groups: int, **settings: Any
) -> AsyncIterator[list[NodeProcess]]:
    """Three running nodes that know each other."""
    nodes = system.make_nodes(folder, groups, (1, 2, 3), **settings)
    async with running(nodes):
        await system.connect(nodes)
        yield nodes


async def leaders(nodes: Sequence[NodeProcess], groups: int) -> dict[int, list[int]]:
    """For each place in `nodes` the groups it leads, once every group has one leader that all know."""
    for _ in range(int(_ELECTION_SECONDS / _POLL_SECONDS)):
        answers = await asyncio.gather(*(node.ask("groups") for node in nodes))
        led = list(itertools.chain.from_iterable(answer["led"] for answer in answers))
        known = all(answer["with_leader"] == groups for answer in answers)
        if known and len(led) == len(set(led)) == groups:
            return {place: answer["led"] for place, answer in enumerate(answers) if answer["led"]}
        await asyncio.sleep(_POLL_SECONDS)
    raise NodeFailed(
        f"after {_ELECTION_SECONDS:g} s {len(set(led))} of {groups} groups had a leader, and"
        f" {min(answer['with_leader'] for answer in answers)} were known to have one by every node"
    )
