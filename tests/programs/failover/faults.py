"""The faults, each on the node that leads at that moment, and how each is undone."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from tests.programs.failover.links import Link
from tests.programs.processes.control import NodeDied, NodeFailed, NodeProcess

_LEADER_SECONDS = 10.0
_POLL_SECONDS = 0.05


class Cluster:
    """Three nodes, with a link between every two of them that can be cut."""

    def __init__(self, folder: Path) -> None:
        ids = (1, 2, 3)
        self.nodes = [
            NodeProcess(
                "tests.programs.processes.raft_node",
                {
                    "node": node, "folder": str(folder / f"node-{node}"), "voters": ids, "groups": 1,
                    "machine": "register-map", "raft": {"snapshot_entries": 5_000},
                },
                folder / f"node-{node}",
            )
            for node in ids
        ]  # fmt: skip
        self.links = [Link(dialler, target) for target, dialler in itertools.combinations(ids, 2)]

    async def connect(self, *places: int) -> None:
        """Tell these nodes, newly started, how to reach the others, and the links where they listen."""
        for place in places:
            node = self.nodes[place]
            for link in self.links:
                if link.ends[1] == place + 1:
                    link.target_port = node.hello["port"]
        for place in places:
            peers = {}
            for link in self.links:
                dialler, target = link.ends
                if dialler == place + 1:
                    peers[target] = link.port
                elif target == place + 1:
                    # The dialler's own port does not matter: this node only waits for it.
                    peers[dialler] = link.port
            await self.nodes[place].ask("connect", peers=peers)

    async def leader(self) -> int:
        """Place of the node that leads, once all nodes follow it and have what it has committed."""
        commit = -1
        for _ in range(int(_LEADER_SECONDS / _POLL_SECONDS)):
            try:
                states = await asyncio.gather(
                    *(node.ask("status", within=2.0, group=0) for node in self.nodes)
                )
            except (NodeDied, NodeFailed):
                states = []
            leading = [place for place, state in enumerate(states) if state["role"] == "leader"]
            agreed = {(state["term"], state["leader"]) for state in states}
            if len(leading) == 1 and len(agreed) == 1:
                if commit >= 0 and all(state["applied"] >= commit for state in states):
                    return leading[0]
                commit = max(commit, states[leading[0]]["commit"])
            await asyncio.sleep(_POLL_SECONDS)
        told = [
            {key: state[key] for key in ("role", "term", "leader", "applied", "commit")} for state in states
        ]
        raise NodeFailed(f"after {_LEADER_SECONDS:g} s the nodes have not recovered: {told}")

    def links_of(self, place: int) -> Sequence[Link]:
        return [link for link in self.links if place + 1 in link.ends]


async def kill(cluster: Cluster, place: int, seconds: float) -> None:
    """kill -9; started again on the same folder a moment later."""
    await cluster.nodes[place].kill()
    await asyncio.sleep(seconds)
    await cluster.nodes[place].start()
    await cluster.connect(place)


async def pause(cluster: Cluster, place: int, seconds: float) -> None:
    """SIGSTOP, then SIGCONT: what it had begun goes on as if no time had passed."""
    cluster.nodes[place].pause()
    await asyncio.sleep(seconds)
    cluster.nodes[place].resume()


async def cut(cluster: Cluster, place: int, seconds: float) -> None:
    """Neither follower can be reached, nor reaches it."""
    await _cut(cluster, place, seconds, out=True, back=True)


async def cut_out(cluster: Cluster, place: int, seconds: float) -> None:
    """What it sends gets lost; it still hears the others."""
    await _cut(cluster, place, seconds, out=True, back=False)


async def cut_in(cluster: Cluster, place: int, seconds: float) -> None:
    """It is heard, and hears nothing."""
    await _cut(cluster, place, seconds, out=False, back=True)


async def _cut(cluster: Cluster, place: int, seconds: float, *, out: bool, back: bool) -> None:
    for link in cluster.links_of(place):
        link.cut(end for end in link.ends if (out if end == place + 1 else back))
    await asyncio.sleep(seconds)
    for link in cluster.links:
        link.heal()


Fault = Callable[[Cluster, int, float], Awaitable[None]]

FAULTS: dict[str, Fault] = {
    "kill -9": kill,
    "SIGSTOP": pause,
    "links cut": cut,
    "links cut, outgoing": cut_out,
    "links cut, incoming": cut_in,
}


def schedule(rounds: int, rng: random.Random) -> list[str]:
    """Each kind equally often, in random order."""
    kinds = [kind for kind, _ in zip(itertools.cycle(FAULTS), range(rounds), strict=False)]
    rng.shuffle(kinds)
    return kinds
