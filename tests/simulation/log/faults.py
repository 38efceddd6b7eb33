"""What goes wrong in a run, when, and for how long: drawn from the seed, one kind of fault a method.

Nothing here exceeds what Raft can take for good: crashes and partitions end, and at most one node at a time
has damaged bits on its disk, until it is whole again.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable

from strandline.node.raft.group import RaftGroup
from tests.simulation.log.clients import Clients
from tests.simulation.log.cluster import FOLDER, Cluster
from tests.simulation.log.operator import Operator
from tests.simulation.log.plan import FAULTS, WIPED
from tests.simulation.world import World


class Faults:
    """Injects the plan's faults until `end`, and undoes all of them on `heal`."""

    def __init__(self, cluster: Cluster, clients: Clients, operator: Operator) -> None:
        self.cluster = cluster
        self.world: World = cluster.world
        self.counts: Counter[str] = Counter()
        self._clients = clients
        self._operator = operator
        self._rng = self.world.rng("faults")
        self._over = False
        self._kinds: dict[str, Callable[[], bool]] = {
            "weather": self._weather,
            "reset": self._reset,
            "partition": self._partition,
            "one-way cut": self._one_way_cut,
            "isolated leader": self._isolated_leader,
            "kill": lambda: self._crash("kill"),
            "power cut": lambda: self._crash("power"),
            "blackout": self._blackout,
            "crash in disk operation": self._crash_in_operation,
            "slow disk": self._slow_disk,
            "stalled disk": self._stalled_disk,
            "full disk": self._full_disk,
            "failed fdatasync": self._failed_sync,
            "snapshot bit flip": self._snapshot_flip,
            "log bit flip": self._log_flip,
            "pause": self._pause,
            "clock jump": self._clock_jump,
            "clock drift": self._clock_drift,
            "transfer": self._transfer,
            "membership": operator.change_membership,
            "forced snapshot": self._forced_snapshot,
            "quiet period": self._quiet_period,
        }
        assert tuple(self._kinds) == FAULTS
        self._kinds[WIPED] = self._wiped_folder
        cluster.restart_after = lambda node: self._rng.choice((0.01, 0.1, 0.5, 1.5))

    def start(self) -> None:
        self._next()

    def _next(self) -> None:
        delay = self._rng.expovariate(1.0 / self.cluster.plan.fault_interval)
        self.world.call_later(delay, self._inject)

    def _inject(self) -> None:
        if self._over:
            return
        kind = self._rng.choice(self.cluster.plan.faults)
        if self._kinds[kind]():
            self.counts[kind] += 1
            self.world.record(0, f"fault: {kind}")
        self._next()

    def heal(self) -> None:
        """End every fault: nothing more goes wrong, and what is down comes up."""
        self._over = True
        self._clients.paused = False
        self.cluster.restart_after = lambda node: 0.05
        self.world.network.set_all(
            loss=0.0, duplication=0.0, reorder=0.0, spike=0.0, split=0.0, delay=(0.0002, 0.002)
        )
        self.world.network.heal_all()
        for node in self.cluster.plan.nodes:
            sim = self.world.nodes[node]
            sim.disk.slow = 1.0
            sim.disk.empty()
            sim.disk.unstall()
            sim.disk.forget_faults()
            if sim.paused:
                sim.resume()
            if node not in self.cluster.held:
                self.cluster.start(node)

    # Choosing.

    def _some_node(self) -> int:
        """A node; often one that leads something, because that is where it hurts."""
        if self._rng.random() < 0.4:
            leader = self._some_leader()
            if leader is not None:
                return leader.host.node_id
        return self._rng.choice(self.cluster.plan.nodes)

    def _some_leader(self) -> RaftGroup | None:
        return self.cluster.leader(self._rng.choice(self.cluster.plan.groups))

    def _duration(self) -> float:
        return self._rng.choice((0.1, 0.4, 1.0, 2.0)) * self._rng.uniform(0.5, 1.5)

    def _later(self, undo: Callable[..., object], *args: object) -> None:
        self.world.call_later(self._duration(), lambda: None if self._over else undo(*args))

    # The network.

    def _weather(self) -> bool:
        chance = self._rng.choice
        weather = {
            "loss": chance((0.0, 0.02, 0.15)),
            "duplication": chance((0.0, 0.05, 0.3)),
            "reorder": chance((0.0, 0.1, 0.5)),
            "spike": chance((0.0, 0.05, 0.2)),
            "spike_seconds": chance((0.5, 0.5, 1.5)),
            "split": chance((0.0, 0.2)),
        }
        if self._rng.random() < 0.5:
            self.world.network.set_all(**weather)
        else:
            a, b = self._rng.sample(self.cluster.plan.nodes, 2)
            for name, value in weather.items():
                setattr(self.world.network.link(a, b), name, value)
        self._later(self._clear_sky)
        return True

    def _clear_sky(self) -> None:
        self.world.network.set_all(loss=0.0, duplication=0.0, reorder=0.0, spike=0.0, split=0.0)

    def _reset(self) -> bool:
        a, b = self._rng.sample(self.cluster.plan.nodes, 2)
        self.world.network.reset(a, b)
        return True

    def _partition(self) -> bool:
        nodes = list(self.cluster.plan.nodes)
        self._rng.shuffle(nodes)
        at = self._rng.randrange(1, len(nodes))
        self._cut(nodes[:at], nodes[at:])
        return True

    def _isolated_leader(self) -> bool:
        leader = self._some_leader()
        if leader is None:
            return False
        node = leader.host.node_id
        self._cut([node], [other for other in self.cluster.plan.nodes if other != node])
        return True

    def _cut(self, side: list[int], other: list[int]) -> None:
        self.world.network.partition(side, other, hold=self._rng.random() < 0.5)
        self._later(self._heal_between, side, other)

    def _heal_between(self, side: list[int], other: list[int]) -> None:
        for a in side:
            for b in other:
                self.world.network.heal(a, b)

    def _one_way_cut(self) -> bool:
        a = self._some_node()
        others = [node for node in self.cluster.plan.nodes if node != a]
        targets = self._rng.sample(others, self._rng.randint(1, len(others)))
        inbound, hold = self._rng.random() < 0.5, self._rng.random() < 0.5
        links = [(b, a) if inbound else (a, b) for b in targets]
        for source, target in links:
            self.world.network.cut(source, target, both=False, hold=hold)
        self._later(self._heal_links, links)
        return True

    def _heal_links(self, links: list[tuple[int, int]]) -> None:
        for source, target in links:
            self.world.network.heal(source, target, both=False)

    # Crashes.

    def _crash(self, kind: str) -> bool:
        node = self._some_node()
        if not self.world.nodes[node].alive:
            return False
        self.cluster.crash(node, kind)
        return True

    def _blackout(self) -> bool:
        kind = self._rng.choice(("power", "kill"))
        for node in self.cluster.plan.nodes:
            self.cluster.crash(node, kind)
        return True

    def _crash_in_operation(self) -> bool:
        node = self._some_node()
        self.world.nodes[node].disk.crash_at(self._rng.randint(1, 25), self._rng.choice(("kill", "power")))
        if self._rng.random() < 0.3:
            self.cluster.crash(node, "kill")  # the operation is then one of recovery's
            self.world.nodes[node].disk.crash_at(self._rng.randint(1, 15), "power")
        return True

    def _pause(self) -> bool:
        sim = self.world.nodes[self._some_node()]
        if not sim.alive or sim.paused:
            return False
        sim.pause()
        boot = sim.boot
        self._later(lambda: sim.resume() if sim.boot == boot and sim.alive else None)
        return True

    # Disks.

    def _slow_disk(self) -> bool:
        disk = self.world.nodes[self._some_node()].disk
        disk.slow = self._rng.choice((5.0, 30.0, 150.0))
        self._later(lambda: setattr(disk, "slow", 1.0))
        return True

    def _stalled_disk(self) -> bool:
        disk = self.world.nodes[self._some_node()].disk
        disk.stall()
        self._later(disk.unstall)
        return True

    def _full_disk(self) -> bool:
        disk = self.world.nodes[self._some_node()].disk
        disk.fill(self._rng.choice((0, 200, 3000)), overwrites_count=self._rng.random() < 0.3)
        self._later(disk.empty)
        return True

    def _failed_sync(self) -> bool:
        node = self._some_node()
        if not self.world.nodes[node].alive:
            return False
        self.cluster.may_fail.add(node)
        self.world.nodes[node].disk.fail_next("datasync", errno.EIO)
        return True

    def _snapshot_flip(self) -> bool:
        """Rot a bit of a stored snapshot, while its node is down or, for those it gives others, while up."""
        node = self._some_node()
        disk = self.world.nodes[node].disk
        if not self._operator.may_damage(node):
            return False
        paths = [path for path in disk.snapshot(durable=True) if path.endswith(".snapshot")]
        if not paths:
            return False
        path = self._rng.choice(paths)
        if self._rng.random() < 0.7:
            self.cluster.crash(node, "kill")
        if not disk.exists_now(path) or not disk.snapshot(durable=True).get(path):
            return False
        disk.flip_bit(path)
        self._operator.damaged(node, path)
        return True

    def _log_flip(self) -> bool:
        """Rot a bit of a log. After a kill, not a power cut: the last record's MARK may not be durable, and
        a damaged record after the last MARK cannot be told from a torn one."""
        node = self._some_node()
        if not self._operator.may_damage(node):
            return False
        self.cluster.crash(node, "kill")
        disk = self.world.nodes[node].disk
        files = disk.snapshot()
        logs = [path for path in files if path.startswith(f"{FOLDER}/wal/") and path.endswith(".log")]
        if not logs:
            return False
        path = self._rng.choice(logs)
        used = len(files[path].rstrip(b"\0"))
        if used < 2 or len(disk.snapshot(durable=True).get(path, b"")) < used:
            return False
        disk.flip_bit(path, self._rng.randrange(used))
        self.cluster.rotten.add(node)
        self._operator.damaged(node, path)
        return True

    def _wiped_folder(self) -> bool:
        """A node comes back with an empty folder under its old id, and nobody has removed it before."""
        node = self._some_node()
        if not self._operator.may_damage(node):
            return False
        self.cluster.wipe(node)
        return True

    # Clocks.

    def _clock_jump(self) -> bool:
        sim = self.world.nodes[self._some_node()]
        # Backward by little: an event loop's timers wait until its clock is again where it was.
        seconds = self._rng.choice((-0.8, -0.3, -0.05, 0.05, 0.3, 5.0))
        if sim.paused and seconds < 0:
            return False  # It would take its lease for younger than it is, and nothing could tell it.
        sim.jump_clock(seconds)
        host = self.cluster.hosts.get(sim.id)
        if seconds < 0 and host is not None and not sim.paused:
            sim.call(host.now)  # Nor could anything if it were paused before it looked at its clock again.
        return True

    def _clock_drift(self) -> bool:
        sim = self.world.nodes[self._some_node()]
        sim.set_drift(self._rng.uniform(-0.02, 0.02))
        return True

    # The operator's wishes.

    def _transfer(self) -> bool:
        leader = self._some_leader()
        if leader is None:
            return False
        target = self._rng.choice((None, *leader.voters))
        self.world.nodes[leader.host.node_id].call(lambda: leader.transfer(target))
        return True

    def _forced_snapshot(self) -> bool:
        replicas = self.cluster.replicas(self._rng.choice(self.cluster.plan.groups))
        if not replicas:
            return False
        replica = self._rng.choice(replicas)
        self.world.nodes[replica.host.node_id].call(
            lambda: replica.taking.take() if replica.failure is None else None
        )
        return True

    def _quiet_period(self) -> bool:
        self._clients.paused = True
        self._later(lambda: setattr(self._clients, "paused", False))
        return True
