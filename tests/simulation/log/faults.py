"""What goes wrong in a run, when, and for how long: drawn from the seed, one kind of fault a method.

Nothing here exceeds what Raft can take for good: crashes and partitions end, and at most one node at a time
has damaged bits on its disk, until it is whole again.
"""

from __future__ import annotations

import errno

from strandline.node.raft.group import RaftGroup
from tests.simulation.faults import Faults
from tests.simulation.log.clients import Clients
from tests.simulation.log.cluster import FOLDER, Cluster
from tests.simulation.log.operator import Operator
from tests.simulation.log.plan import FAULTS, WIPED


class LogFaults(Faults):
    """Injects the plan's faults until `end`, and undoes all of them on `heal`."""

    def __init__(self, cluster: Cluster, clients: Clients, operator: Operator) -> None:
        super().__init__(cluster)
        self.cluster = cluster
        self._clients = clients
        self._operator = operator
        self._kinds |= {
            "weather": self._weather,
            "isolated leader": self._isolated_leader,
            "stalled disk": self._stalled_disk,
            "full disk": self._full_disk,
            "failed fdatasync": self._failed_sync,
            "snapshot bit flip": self._snapshot_flip,
            "log bit flip": self._log_flip,
            "clock jump": self._clock_jump,
            "transfer": self._transfer,
            "membership": operator.change_membership,
            "forced snapshot": self._forced_snapshot,
            "quiet period": self._quiet_period,
        }
        assert set(self._kinds) == set(FAULTS)
        self._kinds[WIPED] = self._wiped_folder

    def heal(self) -> None:
        """End every fault: nothing more goes wrong, and what is down comes up."""
        self.end()
        self._clients.paused = False
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

    def _leading_node(self) -> int | None:
        leader = self._some_leader()
        return None if leader is None else leader.host.node_id

    def _some_leader(self) -> RaftGroup | None:
        return self.cluster.leader(self._rng.choice(self.cluster.plan.groups))

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

    def _isolated_leader(self) -> bool:
        leader = self._some_leader()
        if leader is None:
            return False
        node = leader.host.node_id
        others = [other for other in self.nodes if other != node]
        self._cut([node], others, hold=self._rng.random() < 0.5)
        return True

    # Disks.

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
        jumped = self._jumped()
        if jumped is None:
            return False
        node, seconds = jumped
        sim, host = self.world.nodes[node], self.cluster.hosts.get(node)
        if seconds < 0 and host is not None and not sim.paused:
            # Nothing could tell it how old its lease is, were it paused before it looked at its clock again.
            sim.call(host.now)
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
