"""The mesh on a simulated network that loses, doubles and reorders: it never breaks for ever, nor raises."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from strandline.node.raft.mesh.mesh import Mesh, MeshConfig, MeshProblem, MeshReason
from tests.raft.memory_folder import memory_folder
from tests.simulation.node import SimNode
from tests.simulation.world import World

NODES = (1, 2, 3, 4)
PORT = 7001
CONFIG = MeshConfig()
RECONNECTED = 20.0
"""Seconds in which any loss is made good: a silence noticed, a handshake's time-out, a few dials."""


class Cluster:
    """A mesh on each simulated node; every payload received is checked to be one that was sent."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.meshes: dict[int, Mesh] = {}
        self.up: dict[tuple[int, int], bool] = {}
        self.received = 0
        self.problems: list[MeshProblem] = []
        for node_id in NODES:
            world.add_node(node_id).start(self.main)

    def main(self, node: SimNode) -> None:
        boot = node.boot
        for peer in NODES:
            self.up[node.id, peer] = False

        def turned(peer: int, up: bool) -> None:
            assert self.up[node.id, peer] is not up, "up and down alternate"
            self.up[node.id, peer] = up

        def frame(peer: int, payload: Any) -> None:
            assert self.up[node.id, peer]
            assert payload[0] == peer
            assert payload[1:] == [node.id, b"x" * len(payload[2])]
            self.received += 1

        mesh = Mesh(
            loop=node.loop,
            node_id=node.id,
            cluster_id="simulated",
            secret=b"secret",
            boot_id=node.id * 1000 + boot,
            listen_host=node.host,
            listen_port=PORT,
            config=CONFIG,
            rng=node.rng("mesh"),
            on_frame=frame,
            on_connect=lambda peer: turned(peer, True),
            on_disconnect=lambda peer: turned(peer, False),
            on_problem=self.problems.append,
        )
        mesh.folder = memory_folder(node.id)
        self.meshes[node.id] = mesh
        node.spawn(mesh.start())
        for peer in NODES:
            if peer != node.id:
                mesh.set_peer(peer, self.world.nodes[peer].host, PORT)
        self.chatter(node, node.rng("chatter"))

    def chatter(self, node: SimNode, rng: random.Random) -> None:
        peer = rng.choice([other for other in NODES if other != node.id])
        self.meshes[node.id].send(peer, [node.id, peer, b"x" * rng.randrange(2000)])
        node.loop.call_later(0.05 * rng.random(), self.chatter, node, rng)

    def connected(self) -> bool:
        pairs = [(one, other) for one in NODES for other in NODES if one != other]
        return all(self.up.get(pair) and self.meshes[pair[0]].connected(pair[1]) for pair in pairs)

    def settled(self) -> bool:
        return self.world.run_until(self.connected, timeout=RECONNECTED)

    def counted(self, reason: MeshReason) -> int:
        return sum(mesh.counters[reason] for mesh in self.meshes.values())


def harmless(world: World, cluster: Cluster) -> None:
    """Nothing but delay: TCP as it should be."""
    world.network.set_all(split=0.2)


def lossy(world: World, cluster: Cluster) -> None:
    world.network.set_all(loss=0.1)


def doubling(world: World, cluster: Cluster) -> None:
    world.network.set_all(duplication=0.3)


def reordering(world: World, cluster: Cluster) -> None:
    world.network.set_all(reorder=0.2, delay=(0.001, 0.05))


def everything(world: World, cluster: Cluster) -> None:
    """Bad links, and every half second a cut, a pause, a reset, a jump or the end of a process."""
    world.network.set_all(loss=0.03, duplication=0.05, reorder=0.05, spike=0.01)
    rng = world.rng("chaos")

    def strike() -> None:
        one, other = rng.sample(NODES, 2)
        node = world.nodes[one]
        blow = rng.randrange(6)
        if blow == 0:
            world.network.cut(one, other, both=rng.random() < 0.5, hold=rng.random() < 0.5)
        elif blow == 1:
            world.network.heal_all()
        elif blow == 2:
            world.network.reset(one, other)
        elif blow == 3:
            node.restart(cluster.main)
        elif blow == 4:
            node.crash("power")
            node.start(cluster.main)
        elif node.paused:
            node.resume()
        else:
            node.pause()
        if world.now < 30:
            world.call_later(0.5, strike)

    world.call_later(0.5, strike)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("trouble", [harmless, lossy, doubling, reordering, everything])
def test_every_pair_is_connected_soon_after_trouble_ends(
    trouble: Callable[[World, Cluster], None], seed: int
) -> None:
    with World(seed) as world:
        cluster = Cluster(world)
        assert cluster.settled()
        trouble(world, cluster)
        world.run(until=world.now + 31)
        if trouble in (harmless, doubling):
            assert cluster.connected(), "no reason to lose a connection"
        world.network.set_all(loss=0.0, duplication=0.0, reorder=0.0)
        world.network.heal_all()
        for node in world.nodes.values():
            node.resume()
        assert cluster.settled()
        world.run(until=world.now + RECONNECTED)
        assert cluster.connected(), "and stays so"
        assert cluster.received > 1000
        assert not any(problem.fatal for problem in cluster.problems)
        assert cluster.counted(MeshReason.WRONG_SECRET) == 0
        world.check()


def test_a_peer_that_lost_power_is_noticed_by_its_silence_alone() -> None:
    with World(1) as world:
        cluster = Cluster(world)
        assert cluster.settled()
        world.nodes[1].crash("power")
        world.run(until=world.now + 2 * CONFIG.ping_seconds)
        assert cluster.up[3, 1]
        world.run(until=world.now + (CONFIG.max_unanswered_pings + 1) * CONFIG.ping_seconds)
        assert not any(cluster.up[other, 1] for other in (2, 3, 4))
        world.nodes[1].start(cluster.main)
        assert cluster.settled()


@pytest.mark.parametrize("seconds", [3.0, 60.0])
def test_a_paused_process_blames_nobody_when_it_wakes(seconds: float) -> None:
    with World(2) as world:
        cluster = Cluster(world)
        assert cluster.settled()
        world.nodes[2].pause()
        world.run(until=world.now + seconds)
        world.nodes[2].resume()
        assert cluster.settled()
        assert not [p for p in cluster.problems if p.reason is MeshReason.SILENT and p.peer != 2]
        if seconds < CONFIG.max_unanswered_pings * CONFIG.ping_seconds:
            assert cluster.problems == []


def test_dials_back_off_to_the_longest_pause_and_start_small_again() -> None:
    with World(3) as world:
        cluster = Cluster(world)
        world.nodes[1].crash("kill")
        world.run(until=20)
        two = cluster.meshes[2]
        longest = CONFIG.backoff_max_seconds
        assert 20 / longest <= two.counters[MeshReason.UNREACHABLE] <= 20 / (longest / 2) + 6
        world.nodes[1].start(cluster.main)
        assert world.run_until(lambda: two.connected(1), timeout=longest + 0.1)
        world.run(until=world.now + 2 * longest)
        world.nodes[1].restart(cluster.main)
        assert world.run_until(lambda: not two.connected(1), timeout=0.1)
        assert world.run_until(lambda: two.connected(1), timeout=0.3)


def test_a_dial_into_a_cut_network_ends_in_time() -> None:
    with World(4) as world:
        cluster = Cluster(world)
        world.network.cut(1, 2)
        world.run(until=20)
        two = cluster.meshes[2]
        seconds = CONFIG.connect_seconds
        assert (
            20 / (seconds + CONFIG.backoff_max_seconds) - 1
            <= two.counters[MeshReason.UNREACHABLE]
            <= 20 / seconds
        )
        problem = next(problem for problem in cluster.problems if problem.peer == 1)
        assert "node 1 at 10.0.0.1:7001: no answer in time: is it running" in str(problem)
        world.network.heal_all()
        assert world.run_until(lambda: two.connected(1), timeout=seconds + CONFIG.backoff_max_seconds + 0.1)


def test_one_seed_is_one_run() -> None:
    def digest() -> str:
        with World(7) as world:
            everything(world, Cluster(world))
            world.run(until=10)
            return world.digest()

    assert digest() == digest()
