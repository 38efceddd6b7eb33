"""What must hold while little or nothing is wrong: speed, silence, leaders that stay or go as they should.

Random faults hardly ever leave a cluster calm enough to see these rules broken, so each run begins with
one of these set pieces.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from strandline.node.raft.group import RaftGroup
from strandline.node.raft.outcome import Applied, NotLeader, Outcome
from strandline.node.raft.pysyncobj_seam import LEADER
from tests.raft.register_map import set_register
from tests.simulation.log.clients import Clients, Command
from tests.simulation.log.cluster import Cluster
from tests.simulation.log.drill_steps import ELECTION_SECONDS, DrillEnded
from tests.simulation.log.folder_drills import FolderDrills
from tests.simulation.log.late_drills import LateDrills
from tests.simulation.log.liveness import QUIET_SECONDS, check_quiet

CALM_COMMIT_SECONDS = 0.05
"""Half a heartbeat: nothing that commits may wait for one. Three disk jobs and two journeys take 0.013 s."""

MOST_WAITING = 20
"""Commands that end within a transfer's time although the disks are 20 times as slow as usual."""


class Drills(LateDrills, FolderDrills):
    """The set pieces, on a cluster without faults whose groups are all led."""

    def __init__(self, cluster: Cluster, clients: Clients) -> None:
        super().__init__(cluster, clients)
        self._drills: dict[str, Callable[[], None]] = {
            "calm commits": self._calm_commits,
            "idle groups": self._idle_groups,
            "returning node": self._returning_node,
            "transfer under load": self._transfer_under_load,
            "leader cut off": self._leader_cut_off,
            "no leader": self._no_leader,
            "late answers": self._late_answers,
            "lost folder": self._lost_folder,
        }

    def run(self, name: str) -> None:
        with suppress(DrillEnded):
            self._drills[name]()

    # The set pieces.

    def _calm_commits(self) -> None:
        """A commit takes far less than a heartbeat, and no follower is sent anything twice."""
        self._for(1.0)
        traffic = self.cluster.traffic
        traffic.watch_resends = True
        elections = self.cluster.ledger.elections
        for _ in range(6):
            for group in self.cluster.plan.groups:
                command = self._write(group)
                if not self._until("calm commits", command.has_ended, 1.0):
                    return
                taken = command.operation.returned - command.operation.called
                if not isinstance(command.outcome, Applied) or taken > CALM_COMMIT_SECONDS:
                    self._broken("calm commits", f"took {taken:.3f} s: {command.outcome}")
                    return
                self._for(0.003)
        burst = [self._write(group) for group in self.cluster.plan.groups for _ in range(15)]
        self._until("calm commits", lambda: all(command.outcome is not None for command in burst), 2.0)
        traffic.watch_resends = False
        if traffic.resent:
            self._broken("sent once", traffic.resent[0])
        if self.cluster.ledger.elections != elections:
            self._broken("calm commits", "an election, though nothing went wrong")

    def _idle_groups(self) -> None:
        """Groups that share a heartbeat fall silent; one whose leader steps down still gets another."""
        groups = self.cluster.plan.groups
        chosen = self._leader(groups[0]).host.node_id
        for group in groups[1:]:
            for _ in range(20):
                if self._leader(group).host.node_id == chosen:
                    break
                leader = self._leader(group)
                self.world.nodes[leader.host.node_id].call(leader.transfer, chosen)
                self._for(0.3)
                if not self._until("idle groups are quiet", self.cluster.all_led, ELECTION_SECONDS):
                    return
        check_quiet(self.cluster)
        if self.cluster.ledger.findings:
            return
        given_up = self._leader(groups[-1])
        term = given_up.term
        self.world.nodes[given_up.host.node_id].call(given_up.roles.step_down)
        self._for(0.01)

        def led_again() -> bool:
            leader = self.cluster.leader(groups[-1])
            return leader is not None and leader.term > term

        if self._until("idle groups elect", led_again, ELECTION_SECONDS):
            self._woken_while_asked(self._rng.choice(groups))

    def _woken_while_asked(self, group: int) -> None:
        """Followers of a quiet group lose their leader's connection just before another asks for their votes:
        the heartbeat that they heard a moment ago keeps them from electing it while a lease may run."""
        leader = self._leader(group)
        node = leader.host.node_id
        lonely, *rest = [voter for voter in leader.voters if voter != node]
        follow = [self.cluster.group(follower, group) for follower in rest]

        def quiet() -> bool:
            return all(replica is not None and replica.quiesced_under == node for replica in follow)

        if not self._until("idle groups are quiet", quiet, QUIET_SECONDS):
            return
        self.world.network.cut(node, lonely)
        self._for(self.cluster.plan.raft.election_max_seconds)
        asks = self._replica(lonely, group)
        self._until(
            "idle groups elect", lambda: 0.01 < asks.deadline - asks.host.now() < 0.08, ELECTION_SECONDS
        )
        for follower in rest:
            self.world.network.cut(node, follower)
            self.world.network.reset(node, follower)
        self._for(0.2)
        self.world.network.heal_all()
        self._until("serves again", self.cluster.all_led, ELECTION_SECONDS)

    def _returning_node(self) -> None:
        """A node that was cut off, or could not hear, deposes no healthy leader, then or when it returns."""
        self._for(0.3)
        leads: dict[int, int] = dict.fromkeys(self.cluster.plan.voters, 0)
        for group in self.cluster.plan.groups:
            leads[self._leader(group).host.node_id] += 1
        node = min(leads, key=lambda candidate: leads[candidate])
        watched = [g for g in self.cluster.plan.groups if self._leader(g).host.node_id != node]
        terms = self._terms()
        if self._rng.random() < 0.5:
            # In an idle cluster nobody's log is too old to win votes.
            self._clients.start()
        hears, crash = self._rng.random() < 0.5, self._rng.random() < 0.2
        if crash:
            self.cluster.crash(node, "kill")
        else:
            for other in self._others(node):
                self.world.network.cut(other, node, both=hears)
        self._for(self._rng.uniform(0.5, 2.5))
        self.world.network.heal_all()
        self._for(1.5)
        self._clients.stop()
        for group in watched:
            leader = self.cluster.leader(group)
            if not self.cluster.ledger.findings and (leader is None or leader.term != terms[group]):
                self._broken(
                    "a healthy leader stays", f"group {group}: node {node} came back and it was deposed"
                )

    def _transfer_under_load(self) -> None:
        """Leadership changes hands at once, and no command ends but as applied or definitely rejected."""
        self._for(0.5)
        self._clients.start()
        before = self._clients.outcomes["unknown"]
        for _ in range(3):
            group = self._rng.choice(self.cluster.plan.groups)
            leader = self._leader(group)
            node, term = leader.host.node_id, leader.term
            # One that is level: the time it takes to catch up is not the transfer's.
            target = max(leader.progress, key=lambda peer: leader.progress[peer].match)
            slow = self._rng.random() < 0.5
            self.world.nodes[target].disk.slow = 1.0
            for other in self._others(target):
                # What the target has is then not committed yet.
                self.world.nodes[other].disk.slow = 20.0 if slow else 1.0
            self._for(self._rng.uniform(0.1, 0.3))
            if leader.role != LEADER or not leader.leadership_transfer.can_take_over(target):
                continue  # Small logs are cut soon: it has come to need a snapshot.
            if slow and len(leader.waiting) > MOST_WAITING:
                continue
            self.world.nodes[node].call(leader.transfer, target)

            def handed_over(group: int = group, node: int = node) -> bool:
                now = self.cluster.leader(group)
                return now is not None and now.host.node_id != node

            if not self._until("transfer", handed_over, self.cluster.plan.raft.election_max_seconds):
                return
            if self._leader(group).term != term + 1:
                self._broken("transfer", f"took {self._leader(group).term - term} terms")
        for other in self.cluster.plan.nodes:
            self.world.nodes[other].disk.slow = 1.0
        self._for(0.3)
        self._clients.stop()
        self._until("every command ends", lambda: not self._clients.unended(), 2.0)
        if self._clients.outcomes["unknown"] != before:
            self._broken(
                "transfer", "a command's outcome is unknown though leadership was handed over in peace"
            )

    def _leader_cut_off(self) -> None:
        """A leader that hears nobody stops leading within an election timeout, and never serves old state."""
        self._for(0.5)
        group = self._rng.choice(self.cluster.plan.groups)
        old = self._leader(group)
        node = old.host.node_id
        written = self._write(group)
        self._until("calm commits", written.has_ended, 1.0)
        ways = (self._pause, self._cut_off, self._cut_off_among_restarts, self._cut_off_in_transfer)
        self._rng.choice(ways)(old)
        paused, began = self.world.nodes[node].paused, self.world.now
        self._read_while_others_write(group, node)
        raft = self.cluster.plan.raft
        if paused:
            self.world.nodes[node].resume()
            began = self.world.now
        limit = began + raft.election_min_seconds + 3 * raft.heartbeat_seconds
        self._until("check quorum", lambda: old.role != LEADER, max(0.01, limit - self.world.now))
        self._read_at(node, group)
        self.world.network.heal_all()
        self._for(1.0)

    def _pause(self, leader: RaftGroup) -> None:
        """With answers waiting that it will read when it goes on, and nothing that tells of its successor."""
        self._write(leader.id)
        self._for(0.0004)
        self.world.nodes[leader.host.node_id].pause()
        self._for(0.005)
        for other in self._others(leader.host.node_id):
            self.world.network.cut(leader.host.node_id, other)

    def _cut_off(self, leader: RaftGroup) -> None:
        hold = self._rng.random() < 0.5
        for other in self._others(leader.host.node_id):
            self.world.network.cut(leader.host.node_id, other, hold=hold)

    def _cut_off_among_restarts(self, leader: RaftGroup) -> None:
        """One voter misses the leader for long; the others have just been restarted when it asks them."""
        node = leader.host.node_id
        missing, *restarted = [voter for voter in leader.voters if voter != node]
        self.world.network.cut(node, missing)
        self._for(1.5)
        self._cut_off(leader)
        for other in restarted:
            self.cluster.crash(other, "kill")
            self.cluster.start(other)

    def _cut_off_in_transfer(self, leader: RaftGroup) -> None:
        """The order to take over is the last thing that leaves it."""
        self._for(self.cluster.plan.raft.heartbeat_seconds)
        self.world.nodes[leader.host.node_id].call(leader.transfer)
        self._for(0.0001)
        self._cut_off(leader)

    def _read_while_others_write(self, group: int, node: int) -> None:
        """Write through whoever is elected, and read at the old leader whenever that was acknowledged."""
        command: Command | None = None
        end, reads = self.world.now + ELECTION_SECONDS, 0
        while self.world.now < end and reads < 12 and not self.cluster.ledger.findings:
            leader = self.cluster.leader(group)
            elected = leader is not None and leader.host.node_id != node
            if elected and (command is None or command.has_ended()):
                if command is not None:
                    reads += 1
                    self._read_at(node, group)
                command = self._write(group)
            self._for(0.004)
        if not reads and not self.cluster.ledger.findings:
            self._broken("serves again", f"nothing was written within {ELECTION_SECONDS} s")

    def _read_at(self, node: int, group: int) -> None:
        self._clients.read(0, group, f"drill{group}", at=node)
        self._for(0.002)

    def _no_leader(self) -> None:
        """With a majority away, commands are refused at once; those under way end; then all comes back."""
        self._for(0.3)
        group = self._rng.choice(self.cluster.plan.groups)
        leader = self._leader(group)
        stays = [leader.host.node_id]
        away = [node for node in self.cluster.plan.voters if node not in stays]
        self.cluster.held.update(away)
        for node in away:
            self.cluster.crash(node, self._rng.choice(("kill", "power")))
        pending = [self._write(group) for _ in range(3)]
        raft = self.cluster.plan.raft
        limit = raft.election_max_seconds + raft.command_grace_seconds + 0.3
        ended = self._until(
            "every command ends",
            lambda: all(c.outcome is not None for c in pending) and leader.role != LEADER,
            limit,
        )
        if ended:
            self._refused_at_once(leader)
        if any(isinstance(command.outcome, Applied) for command in pending):
            self._broken("outcome", "a command was applied with a majority of the voters away")
        self.cluster.held.clear()
        for node in away:
            self.cluster.start(node)
        self._until("serves again", self.cluster.all_led, ELECTION_SECONDS + 2.0)

    def _refused_at_once(self, replica: RaftGroup) -> None:
        answers: list[Outcome | None] = []

        def ask() -> None:
            future = replica.replicate(set_register(0, "refused", 0), replica.term)
            answers.append(future.result() if future.done() else None)

        self.world.nodes[replica.host.node_id].call(ask)
        self._for(0.001)
        if not answers or not isinstance(answers[0], NotLeader):
            self._broken("no leader", f"a command without a leader was answered {answers}")
