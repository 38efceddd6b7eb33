"""Faults that last for minutes: disks that stay full, and replicas that stay stopped.

They come after everything else of a run, one kind in some of the seeds. Little happens meanwhile, so that
minutes cost little: what is looked for is what grows with time, and what does not come back.
"""

from __future__ import annotations

from tests.simulation.log.clients import Clients
from tests.simulation.log.cluster import Cluster
from tests.simulation.log.watch import WatchedHost

BEGINS_SECONDS = 20.0
"""Until all has been buffered that ever will be, and what cannot move by itself has begun to be moved."""
ELECTION_EVERY = 4
SPARE_RECORDS = 2
"""Records of each group that may come late: the first term that rises after the beginning, and its vote."""
SPARE_SEGMENTS = 6


class Endurance:
    """One long fault, by the name the plan gives it."""

    def __init__(self, cluster: Cluster, clients: Clients) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self._clients = clients
        self._rng = self.world.rng("endurance")
        groups = cluster.plan.groups
        idle = self._rng.choice(groups) if len(groups) > 1 and self._rng.random() < 0.5 else 0
        self._busy = [group for group in groups if group != idle]

    def run(self, kind: str, seconds: float) -> None:
        """Let it last for so long, and end it."""
        if kind == "stopped replica":
            self._stopped_replica(min(seconds, 60.0))
        else:
            self._full_disks(seconds, majority=kind == "full majority")

    # Full disks.

    def _full_disks(self, seconds: float, *, majority: bool) -> None:
        voters = self._voters()
        full = self._rng.sample(voters, len(voters) // 2 + 1 if majority else 1)
        counts = self._rng.random() < 0.5
        for node in full:
            self.world.nodes[node].disk.fill(self._rng.choice((0, 700)), overwrites_count=counts)
        self._work(BEGINS_SECONDS, pause=0.5)
        # One that had room in its last segment may not have noticed yet.
        noticed = [node for node in full if self.cluster.hosts[node].disk_stalled()]
        before = {node: self._held(self.cluster.hosts[node]) for node in noticed}
        self._work(seconds - BEGINS_SECONDS, pause=1.0)
        for node in noticed:
            self._check_held(node, before[node])
            self._check_led(node)
        for node in full:
            self.world.nodes[node].disk.empty()

    @staticmethod
    def _held(host: WatchedHost) -> tuple[int, int]:
        return len(host.records.waiting), len(host.records.after_sync)

    def _check_held(self, node: int, before: tuple[int, int]) -> None:
        host = self.cluster.hosts[node]
        now, spare = self._held(host), SPARE_RECORDS * len(host.groups)
        messages = spare * len(self.cluster.plan.nodes)
        if now[0] > before[0] + spare or now[1] > before[1] + messages:
            self.cluster.ledger.broken(
                "a full disk costs no memory",
                f"node {node} holds {now} records and messages, after {BEGINS_SECONDS:.0f} s it had {before}",
            )

    def _check_led(self, node: int) -> None:
        host = self.cluster.hosts[node]
        led = [group.id for group in host.groups.values() if group.is_leader]
        if led:
            self.cluster.ledger.broken("a full node leads nothing", f"node {node} leads {led}")

    # Stopped replicas.

    def _stopped_replica(self, seconds: float) -> None:
        """One replica fails in its state machine; its node's log must not grow for it."""
        group = self._rng.choice(self._busy)
        node = self._rng.choice(self._voters(group))
        replica = self.cluster.group(node, group)
        assert replica is not None
        self.cluster.may_stop.add((node, group))

        def fail(*_: object) -> None:
            raise RuntimeError("a fault of the state machine")

        replica.machine.apply = fail  # type: ignore[method-assign, assignment]
        self._work(BEGINS_SECONDS, pause=0.1)
        host = self.cluster.hosts[node]
        first, current = host.wal.first_segment, host.wal.current_segment
        self._work(seconds - BEGINS_SECONDS, pause=0.1)
        written, dropped = host.wal.current_segment - current, host.wal.first_segment - first
        if replica.failure is not None and dropped < written / 2 - SPARE_SEGMENTS:
            self.cluster.ledger.broken(
                "a stopped replica does not keep the log",
                f"node {node} wrote {written} segments and dropped {dropped}, the log has"
                f" {host.wal.current_segment - host.wal.first_segment + 1}",
            )
        self.cluster.crash(node, self._rng.choice(("kill", "power")))

    # What goes on meanwhile.

    def _voters(self, group: int | None = None) -> list[int]:
        leader = self.cluster.leader(group or self.cluster.plan.groups[0])
        assert leader is not None, "everything was well before"
        return list(leader.voters)

    def _work(self, seconds: float, *, pause: float) -> None:
        """A command for each group but one now and then, and leaders that change."""
        end, turn = self.world.now + seconds, 0
        while self.world.now < end and not self.cluster.ledger.findings:
            for group in self._busy:
                self._clients.write(0, group, f"e{int(self.world.now)}").retries = 0
                if turn % max(int(ELECTION_EVERY / pause), 1) == 0:
                    self._change_leader(group)
            turn += 1
            self.world.run(min(self.world.now + pause, end))

    def _change_leader(self, group: int) -> None:
        leader = self.cluster.leader(group)
        if leader is not None:
            self.world.nodes[leader.host.node_id].call(leader.transfer)
