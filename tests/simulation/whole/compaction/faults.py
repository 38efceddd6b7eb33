"""Faults that are aimed at local logs: nodes that are away for long, files that are lost or rot, crashes amid
a change of a log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.simulation.disk import SimDisk
from tests.simulation.inode import Inode
from tests.simulation.whole.cluster import WholeCluster
from tests.simulation.whole.compaction.watch import LogWatch

FOLDER: Final = "/data/compacted/"
HELD_DOWN_SECONDS: Final = ((2.0, 5.0), (2.0, 5.0), (6.0, 9.0))
"""Longer than tombstones wait, and than leaders take to notice; at times almost as long as faults go on."""


class LogFaults:
    """`kinds` by name, for WholeFaults. One node at a time is held down."""

    def __init__(self, cluster: WholeCluster, watch: LogWatch) -> None:
        self._cluster = cluster
        self._watch = watch
        self._rng = cluster.world.rng("faults of local logs")
        self._held: int | None = None
        self._over = False
        self.kinds: dict[str, Callable[[], bool]] = {
            "held down": self._held_down,
            "lost log": self._lost_log,
            "rotten log": self._rotten_log,
            "crash in a round": self._crash_in_round,
        }

    def start(self) -> None:
        """Nodes that are held down stay down from now on; to be called when the other faults are set up."""
        cluster, restart_after = self._cluster, self._cluster.restart_after

        def after(node: int) -> float:
            if node == self._held and not self._over:
                return self._rng.uniform(*self._rng.choice(HELD_DOWN_SECONDS))
            return restart_after(node)

        cluster.restart_after = after
        table = cluster.plan.table
        if table is not None and table.old_files:
            cluster.on_wiped.append(self._keep_logs)

    def _keep_logs(self, node: int, old: SimDisk) -> None:
        """Local logs are not what makes a folder: they may have been on a disk of their own, or restored."""
        disk = self._cluster.world.nodes[node].disk
        for name in self._files_of(old):
            disk._inodes_made += 1
            kept = disk._names[name] = disk._durable_names[name] = Inode(disk._inodes_made)
            kept.write(0, bytes(old._names[name].live))
            kept.sync()
        disk._folders |= {name: None for name in old._folders if f"{name}/".startswith(FOLDER)}

    def heal(self) -> None:
        self._over = True

    def _node(self) -> int:
        return self._rng.choice(self._cluster.plan.nodes)

    def _held_down(self) -> bool:
        """A node is away for longer than tombstones wait."""
        up = [*self._cluster.brokers]
        if len(up) < len(self._cluster.plan.nodes):
            return False
        self._held = self._rng.choice(up)
        self._cluster.crash(self._held, self._rng.choice(("kill", "power")))
        self._held = None
        return True

    def _files(self, node: int) -> list[str]:
        return self._files_of(self._cluster.world.nodes[node].disk)

    @staticmethod
    def _files_of(disk: SimDisk) -> list[str]:
        return sorted(name for name in disk._names if name.startswith(FOLDER))

    def _lost_log(self) -> bool:
        """A node dies, and comes back without its local logs, or some of their files."""
        node = self._node()
        files = self._files(node)
        if not files or node not in self._cluster.brokers:
            return False
        self._cluster.crash(node, "kill")
        disk = self._cluster.world.nodes[node].disk
        lost = files if self._rng.random() < 0.5 else self._rng.sample(files, 1)
        for name in lost:
            disk._names.pop(name, None)
            disk._durable_names.pop(name, None)
        disk._pending[:] = [one for one in disk._pending if not one[1].startswith(FOLDER)]
        self._watch.lost(node, lost)
        return True

    def _rotten_log(self) -> bool:
        """A bit of a segment rots while the node runs."""
        node = self._node()
        disk = self._cluster.world.nodes[node].disk
        files = [name for name in self._files(node) if name.endswith(".seg") and disk._names[name].durable]
        if not files:
            return False
        rotten = self._rng.choice(files)
        disk.flip_bit(rotten)
        self._watch.rots(node, rotten)
        return True

    def _crash_in_round(self) -> bool:
        """A crash in one of the next operations of a local log's files."""
        node = self._node()
        disk = self._cluster.world.nodes[node].disk
        if node not in self._cluster.brokers:
            return False
        begin, left = disk.begin, [self._rng.randint(1, 12)]

        def begun(operation: str, name: str, torn: Callable[[], None] | None = None) -> None:
            if FOLDER in name and not self._over and not disk._off:
                left[0] -= 1
                if not left[0]:
                    disk.begin = begin  # type: ignore[method-assign]
                    disk.crash_at(1, self._rng.choice(("kill", "power")))
            begin(operation, name, torn)

        disk.begin = begun  # type: ignore[method-assign]
        return True
