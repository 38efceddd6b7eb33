"""What is done to the cluster in a round, and how each of it is undone."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import NamedTuple

from tests.programs.failover.cluster.nodes import NODES, Nodes

_SECONDS = (1.0, 2.5)
_PAUSE_SECONDS = (1.0, 5.0)
_DISK_SECONDS = (2.0, 4.0)
_STORE_DELAYS = (0.05, 0.6)


class Class(Enum):
    """What a fault takes away, which says how long clients may have to wait."""

    LEADER = "leader lost"
    PAUSE = "process stopped"
    DISK = "disk full"
    STORE = "object store"


class Fault(NamedTuple):
    """`do` returns when it is undone."""

    kind: Class
    do: Callable[[Nodes, random.Random], Awaitable[None]]


async def _a_leader(nodes: Nodes, rng: random.Random) -> int:
    leaders = await nodes.leaders()
    return leaders[rng.choice(sorted(leaders))]


async def kill_leader(nodes: Nodes, rng: random.Random) -> None:
    """kill -9 to the leader of some partition; started again a moment later."""
    node = await _a_leader(nodes, rng)
    await nodes.kill(node)
    await asyncio.sleep(rng.uniform(*_SECONDS))
    await nodes.start(node)


async def kill_each(nodes: Nodes, rng: random.Random) -> None:
    """kill -9 to each node, the next when the one before is healthy again."""
    for node in rng.sample(NODES, len(NODES)):
        await nodes.kill(node)
        await asyncio.sleep(rng.uniform(0.0, 1.0))
        await nodes.start(node)


async def restart_leader(nodes: Nodes, rng: random.Random) -> None:
    """SIGTERM to the leader of some partition, which hands over; started again."""
    node = await _a_leader(nodes, rng)
    await nodes.stop(node)
    await nodes.start(node)


async def pause_leader(nodes: Nodes, rng: random.Random) -> None:
    """SIGSTOP to the leader of some partition, and SIGCONT: it goes on as if no time had passed."""
    node = await _a_leader(nodes, rng)
    nodes.pause(node)
    try:
        await asyncio.sleep(rng.uniform(*_PAUSE_SECONDS))
    finally:
        nodes.resume(node)


async def cut_two(nodes: Nodes, rng: random.Random) -> None:
    """Two nodes do not hear each other; the third hears both."""
    one, other = rng.sample(NODES, 2)
    await _cut(nodes, rng, [one], [other])


async def cut_leader(nodes: Nodes, rng: random.Random) -> None:
    """The leader of some partition and the other nodes do not hear each other; clients reach all of them."""
    node = await _a_leader(nodes, rng)
    await _cut(nodes, rng, [node], [other for other in NODES if other != node])


async def _cut(nodes: Nodes, rng: random.Random, some: list[int], others: list[int]) -> None:
    for link in nodes.links_between(some, others):
        link.cut(link.ends)
    try:
        await asyncio.sleep(rng.uniform(*_SECONDS))
    finally:
        for link in nodes.links:
            link.heal()


async def full_disk(nodes: Nodes, rng: random.Random) -> None:
    """The disk of one node's log is full for a while."""
    assert nodes.disk is not None
    await nodes.fill_disk()
    try:
        await asyncio.sleep(rng.uniform(*_DISK_SECONDS))
    finally:
        await asyncio.to_thread(nodes.disk.free)


async def full_store(nodes: Nodes, rng: random.Random) -> None:
    """The disk of the objects is full for a while."""
    disk = nodes.storage.disk
    assert disk is not None
    await asyncio.to_thread(disk.fill)
    try:
        await asyncio.sleep(rng.uniform(*_DISK_SECONDS))
    finally:
        await asyncio.to_thread(disk.free)


async def store_refuses(nodes: Nodes, rng: random.Random) -> None:
    """Nobody reaches the store for a while."""
    proxy = nodes.storage.proxy
    assert proxy is not None
    proxy.refuse()
    try:
        await asyncio.sleep(rng.uniform(*_SECONDS))
    finally:
        proxy.calm()


async def store_resets(nodes: Nodes, rng: random.Random) -> None:
    """A third of the requests to the store end in a broken connection, some after they were carried out."""
    proxy = nodes.storage.proxy
    assert proxy is not None
    proxy.reset_chance = 0.33
    try:
        await asyncio.sleep(rng.uniform(*_DISK_SECONDS))
    finally:
        proxy.calm()


async def store_slow(nodes: Nodes, rng: random.Random) -> None:
    """Every request to the store takes long, each another time, so they end in any order."""
    proxy = nodes.storage.proxy
    assert proxy is not None
    proxy.delays = _STORE_DELAYS
    try:
        await asyncio.sleep(rng.uniform(*_DISK_SECONDS))
    finally:
        proxy.calm()


FAULTS = {
    "kill -9, a leader": Fault(Class.LEADER, kill_leader),
    "kill -9, each node in turn": Fault(Class.LEADER, kill_each),
    "SIGTERM, a leader": Fault(Class.LEADER, restart_leader),
    "links cut, two nodes": Fault(Class.LEADER, cut_two),
    "links cut, a leader": Fault(Class.LEADER, cut_leader),
    "SIGSTOP, a leader": Fault(Class.PAUSE, pause_leader),
    "disk full, one node": Fault(Class.DISK, full_disk),
    "store full": Fault(Class.STORE, full_store),
    "store refuses": Fault(Class.STORE, store_refuses),
    "store breaks off": Fault(Class.STORE, store_resets),
    "store slow": Fault(Class.STORE, store_slow),
}


def impossible(nodes: Nodes) -> dict[str, str]:
    """Why a kind cannot be done here, for each that cannot."""
    missing = {}
    if nodes.disk is None:
        missing["disk full, one node"] = "needs root, to mount a small disk"
    if nodes.storage.disk is None:
        local = nodes.storage.proxy is None
        missing["store full"] = "needs root, to mount a small disk" if local else "needs --storage local"
    if nodes.storage.proxy is None:
        missing |= dict.fromkeys(("store refuses", "store breaks off", "store slow"), "needs --storage s3")
    return missing


def schedule(rounds: int, kinds: list[str], rng: random.Random) -> list[str]:
    """Each kind equally often, in random order."""
    drawn = list(itertools.islice(itertools.cycle(kinds), rounds))
    rng.shuffle(drawn)
    return drawn
