"""Three Strandline nodes on this machine, as the benchmarks need them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tests.processes.control import NodeFailed, NodeProcess, running

MODULE = "tests.processes.raft_node"
_ELECTION_SECONDS = 30.0


def make_nodes(folder: Path, groups: int, *, ids: tuple[int, ...] = (1, 2, 3), **settings: Any) -> list[NodeProcess]:
    """Nodes that have not been started, of groups that all of them vote in."""
    return [
        NodeProcess(
            MODULE,
            {
                "node": node,
                "folder": str(folder / f"node-{node}"),
                "voters": ids,
                "groups": groups,
                "machine": "counter",
                **settings,
            },
            folder / f"node-{node}",
        )
        for node in ids
    ]


async def connect(nodes: list[NodeProcess]) -> None:
    """Tell every running node where the others listen."""
    ports = {node.settings["node"]: node.hello["port"] for node in nodes if node.alive}
    for node in nodes:
        if node.alive:
            peers = {peer: port for peer, port in ports.items() if peer != node.settings["node"]}
            await node.ask("connect", peers=peers)


async def leaders(nodes: list[NodeProcess], groups: int) -> dict[int, list[int]]:
    """For each node's place in the list the groups it leads, once every group has one leader."""
    for _ in range(int(_ELECTION_SECONDS / 0.05)):
        answers = await asyncio.gather(*(node.ask("groups") for node in nodes))
        led = [group for answer in answers for group in answer["led"]]
        if len(led) == len(set(led)) == groups:
            return {place: answer["led"] for place, answer in enumerate(answers) if answer["led"]}
        await asyncio.sleep(0.05)
    raise NodeFailed(f"{len(set(led))} of {groups} groups had a leader after {_ELECTION_SECONDS:g} s")


@contextlib.asynccontextmanager
async def cluster(folder: Path, groups: int, **settings: Any) -> AsyncIterator[list[NodeProcess]]:
    """Three nodes that know each other."""
    nodes = make_nodes(folder, groups, **settings)
    async with running(nodes):
        await connect(nodes)
        yield nodes
