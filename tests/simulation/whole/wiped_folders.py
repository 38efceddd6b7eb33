"""A node's disk is replaced while it is down; an operator notices, and lets the new folder in.

What the ledger keeps of a process goes by its boot, and what it keeps of a group is what was committed, so a
wiped replica leaves nothing behind that it would have to forget.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from strandline.node.controller.voter_choice import wanted_voters
from strandline.statemachine.controller.controller_commands import ReplaceNode, ReplicasLeft, decode
from strandline.statemachine.controller.controller_state import CONTROLLER_GROUP, REMOVED
from strandline.statemachine.controller.hosted_groups import PartitionGroup
from strandline.statemachine.controller.node_folders import replacing
from tests.simulation.whole.cluster import WholeCluster
from tests.simulation.whole.plan import WIPED
from tests.simulation.whole.sim_broker import SimBroker

LOOK_SECONDS = 0.1
SUBMIT_SECONDS = 3.0
LET_IN_SECONDS = 30.0
"""Once the faults are over: silence until the node counts as dead, then its groups, one after the other."""
NOTICED_SECONDS = (0.5, 2.5)
FIRST_SECONDS = (0.2, 2.0)
BETWEEN_SECONDS = (0.2, 1.5)
BEHIND_SECONDS = (0.3, 1.0)
AWAY_SECONDS = 4.0
DEAF_SECONDS = (1.0, 3.0)


@dataclass(slots=True)
class _Wiped:
    """The node whose folder is gone."""

    node: int
    noticed_at: float
    asking: bool = False


class WipedFolders:
    """Wipes one folder after the other, each when the one before is made good, until `heal`."""

    def __init__(
        self,
        cluster: WholeCluster,
        counts: Counter[str],
        preferred: Callable[[SimBroker], bool] = lambda broker: False,
    ) -> None:
        """`preferred`: nodes whose folders half of those wiped at random belong to, where there are any."""
        self._cluster = cluster
        self._preferred = preferred
        self._world = cluster.world
        self._ledger = cluster.ledger
        self._counts = counts
        self._rng = cluster.world.rng("folders that are wiped")
        self._wiped: _Wiped | None = None
        self._next: float | None = None
        self._over = False
        upheaval = cluster.plan.upheaval
        self._asks = upheaval is None or not upheaval.replaces_disks
        """Whether an operator lets folders in; else the controller does by itself."""
        self._wipes = Counter[int]()
        """By node, the folders that it has lost."""
        self.lets: Callable[[], bool] = lambda: True
        """Whether a folder may be wiped now: a removal under way counts on the disks that there are."""

    def start(self) -> None:
        self._ledger.on_controller.append(self._applied)
        self._ledger.on_replica = self._begins
        self._next = self._world.now + self._rng.uniform(*FIRST_SECONDS)
        self._look()

    def heal(self) -> None:
        """Wipe no more; what is wiped is still made good."""
        self._over = True

    @property
    def is_idle(self) -> bool:
        """Whether no folder is wiped that was not seen to be made good."""
        return self._wiped is None

    def missing(self) -> str | None:
        """Why a wiped folder is not made good yet; None when none is left."""
        controller = self._ledger.objects.controller()
        assert controller is not None
        if controller.replacement is not None:
            return f"{controller.replacement} is under way"
        if self._wiped is None:
            return None
        node = self._wiped.node
        broker, folder = self._cluster.brokers.get(node), controller.folders[node]
        if broker is None or folder.folder != broker.host.folder.id:
            return f"node {node} has not been let in, its folder is {folder}"
        return None if broker.registered else f"node {node} is not registered with its new folder"

    def check(self) -> None:
        """Every folder that was wiped was counted, and every group has all of its members."""
        controller = self._ledger.objects.controller()
        assert controller is not None
        found = {node: folder.generation for node, folder in controller.folders.items()}
        wanted_generations = {
            node: 1 + self._wipes[node] + (folder.folder == REMOVED)
            for node, folder in controller.folders.items()
        }
        if found != wanted_generations:
            self._ledger.broken("folders", f"generations are {found}, not {wanted_generations}")
        nodes = self._cluster.plan.nodes
        for group in self._cluster.groups():
            leader = self._cluster.leader(group)
            place = None if leader is None else leader.places.get(group)
            if leader is None or (place is None and group != CONTROLLER_GROUP):
                continue
            topic = None if place is None else controller.topic_by_id(place.topic_id)
            if place is not None and topic is None:
                continue
            if topic is None and self._cluster.plan.joining:
                continue  # Not all of its members vote; membership.py judges them.
            configuration = leader.host.groups[group].configuration
            if topic is None or place is None:
                wanted = nodes
                chosen = len(configuration.voters) in {wanted_voters(len(nodes)), len(nodes)}
                whole = chosen and set(configuration.members) == set(nodes)
            else:
                wanted = topic.partitions[place.partition].replicas
                whole = configuration.voters == tuple(sorted(wanted)) and not configuration.learners
            if not whole:
                self._ledger.broken(
                    "folders",
                    f"group {group} has voters {configuration.voters}, learners {configuration.learners},"
                    f" and belongs to nodes {wanted}",
                )

    # Wiping.

    def _look(self) -> None:
        if self._wiped is not None:
            self._check_unheard(self._wiped.node)
            if self.missing() is None:
                self._world.record(self._wiped.node, "its new folder is in force")
                self._counts["folder replaced"] += 1
                self._wiped = None
                self._next = self._world.now + self._rng.uniform(*BETWEEN_SECONDS)
            elif self._world.now >= self._wiped.noticed_at and not self._wiped.asking and self._asks:
                self._let_in(self._wiped)
        elif not self._over and self._next is not None and self._world.now >= self._next and self._may_wipe():
            self._next = None
            if self._rng.random() < 0.5 or not self._wipe_when_needed_most():
                self._wipe(self._some_node())
        self._world.call_later(LOOK_SECONDS, self._look)

    def _some_node(self) -> int:
        preferred = [node for node, broker in self._cluster.brokers.items() if self._preferred(broker)]
        if preferred and self._rng.random() < 0.5:
            self._counts["wiped for what it does"] += 1
            return self._rng.choice(sorted(preferred))
        return self._rng.choice(self._known())

    def _known(self) -> list[int]:
        """The nodes that the controller knows by a folder, which is not yet so for one that is to join."""
        controller = self._ledger.objects.controller()
        return [node for node in self._cluster.plan.nodes if controller and node in controller.folders]

    def _may_wipe(self) -> bool:
        """A disk that cannot be written may be all that is left of the rest."""
        controller = self._ledger.objects.controller()
        if controller is None or not set(self._cluster.founders) <= controller.folders.keys():
            return False
        disks = [self._world.nodes[node].disk for node in self._cluster.plan.nodes]
        return all(disk.space is None for disk in disks) and self.missing() is None and self.lets()

    def _wipe(self, node: int) -> None:
        if self._over or self._wiped is not None:
            return
        if node not in self._known() or not self.lets():
            self._next = self._world.now + BETWEEN_SECONDS[1]  # Chosen a while ago, it may be leaving.
            return
        self._cluster.crash(node, "kill")
        old = self._world.nodes[node].disk
        self._world.nodes[node].replace_disk()
        for wiped in self._cluster.on_wiped:
            wiped(node, old)
        self._world.record(node, "fault: its folder is wiped")
        self._counts[WIPED] += 1
        self._wipes[node] += 1
        self._wiped = _Wiped(node, self._world.now + self._rng.uniform(*NOTICED_SECONDS))
        if self._rng.random() < 0.25:
            # The others come back with what their disks say of this one.
            self._counts["wiped in a blackout"] += 1
            kind = self._rng.choice(("kill", "power"))
            for other in self._cluster.plan.nodes:
                self._cluster.crash(other, kind)

    def _wipe_when_needed_most(self) -> bool:
        """Two of three acknowledge while the third hears nothing; then one of the two comes back empty,
        while only the third is there."""
        brokers = [self._cluster.leader(group) for group in self._cluster.groups() if group]
        leaders = [broker for broker in brokers if broker is not None]
        if not leaders:
            return False
        leader = self._rng.choice(leaders)
        groups = [group for group, hosted in leader.host.groups.items() if group and hosted.is_leader]
        if not groups:
            return False
        voters = leader.host.groups[self._rng.choice(groups)].voters
        others = [node for node in voters if node != leader.node_id]
        if len(others) != 2:
            return False
        self._rng.shuffle(others)
        victim, behind = others
        self._counts["wiped when needed most"] += 1
        nodes = self._cluster.plan.nodes
        rest = [node for node in nodes if node != behind]
        self._world.network.partition([behind], rest)
        self._next = None

        def turn() -> None:
            for node in rest:
                self._world.network.heal(behind, node)
            if self._over:
                return
            far = [node for node in nodes if node != leader.node_id]
            self._world.network.partition([leader.node_id], far)
            self._world.call_later(AWAY_SECONDS, self._heal, leader.node_id, far)
            self._wipe(victim)

        self._world.call_later(self._rng.uniform(*BEHIND_SECONDS), turn)
        return True

    def _heal(self, node: int, others: list[int]) -> None:
        for other in others:
            self._world.network.heal(node, other)

    # The operator.

    def _let_in(self, wiped: _Wiped) -> None:
        """As POST /api/nodes/replace at a node that the new folder knocks at."""
        asked = [
            broker
            for broker in self._cluster.brokers.values()
            if wiped.node in broker.host.mesh.strangers.known and not broker.sim.paused
        ]
        if not asked:
            return
        broker = self._rng.choice(asked)
        folder = broker.host.mesh.strangers.known[wiped.node].folder
        boot = broker.boot
        wiped.asking = True

        async def ask() -> None:
            machine = broker.controller.machine
            command = replacing(machine.folders, machine.feature_level, wiped.node, folder)
            await broker.controller.submit(command, SUBMIT_SECONDS)
            wiped.asking = False

        def give_up() -> None:
            wiped.asking = False

        broker.sim.call(lambda: broker.sim.spawn(ask()) if broker.boot == boot else None)
        # The node may die meanwhile; asked twice, nothing more happens.
        self._world.call_later(2 * SUBMIT_SECONDS, give_up)

    def _hold_back(self, node: int) -> None:
        """One group cannot commit for a while that it leaves the node out, and all others can."""
        groups = [group for group in self._cluster.groups() if group and node in self._replicas(group)]
        if self._over or not groups:
            return
        group = self._rng.choice(groups)
        leader = self._cluster.leader(group)
        deaf = [
            (other, group)
            for other in self._replicas(group)
            if other != node and (leader is None or other != leader.node_id)
        ]
        self._counts["left out late"] += 1
        self._cluster.mishaps.deaf.update(dict.fromkeys(deaf))
        seconds = self._rng.uniform(*DEAF_SECONDS)
        for replica in deaf:
            self._world.call_later(seconds, self._cluster.mishaps.deaf.pop, replica, None)

    # Rules.

    def _check_unheard(self, node: int) -> None:
        """No node keeps a connection to a folder that was not let in."""
        controller = self._ledger.objects.controller()
        wiped = self._cluster.brokers.get(node)
        if controller is None or wiped is None:
            return
        folder, present = wiped.host.folder.id, controller.replacement
        leaving = present is not None and present.node == node and present.leaving
        if controller.folders[node].folder == folder and not leaving:
            return
        for broker in self._cluster.brokers.values():
            peer = broker.host.mesh._peers.get(node)
            if peer is not None and peer.link is not None and peer.link.standing.key.folder == folder:
                self._ledger.broken(
                    "folders", f"node {broker.node_id} hears node {node} with a folder that was not let in"
                )

    def _applied(self, command: bytes) -> None:
        """The first replica of the controller is about to apply a command."""
        decoded = decode(command)
        if isinstance(decoded, ReplaceNode) and self._rng.random() < 0.5:
            self._hold_back(decoded.node)
        if isinstance(decoded, ReplicasLeft):
            for group in self._counted(decoded):
                self._check_left(group, decoded.node)

    def _counted(self, report: ReplicasLeft) -> frozenset[int]:
        """The groups that a report changes something for. A report that comes twice, the second time when the
        new folder is a member already, changes nothing."""
        controller = self._ledger.objects.controller()
        assert controller is not None
        present = controller.replacement
        if present is None or (present.node, present.folder) != (report.node, report.folder):
            return frozenset()
        return present.leaving & set(report.groups)

    def _check_left(self, group: int, node: int) -> None:
        """A removal that is reported is in the logs of a majority of the others; a log that cannot be seen
        now may have it."""
        controller = self._ledger.objects.controller()
        assert controller is not None
        others = [each for each in self._voters(group) if each != node]
        without = 0
        for each in others:
            broker = self._cluster.brokers.get(each)
            hosted = None if broker is None else broker.host.groups.get(group)
            without += hosted is None or node not in hosted.voters
        if others and without <= len(others) // 2:
            self._ledger.broken(
                "folders", f"group {group} is said to be without node {node}, and {others} do not know it"
            )

    def _replicas(self, group: int) -> tuple[int, ...]:
        controller = self._ledger.objects.controller()
        assert controller is not None
        if group == CONTROLLER_GROUP:
            return self._cluster.plan.nodes
        for topic in controller.topics:
            for partition in topic.partitions:
                if partition.group == group:
                    return partition.replicas
        return ()

    def _voters(self, group: int) -> tuple[int, ...]:
        """By the newest configuration that a replica has: no voter changes while a replacement needs one."""
        brokers = self._cluster.brokers.values()
        known = [one.host.groups[group].configuration for one in brokers if group in one.host.groups]
        return max(known, key=lambda one: one.index).voters if known else ()

    def _begins(self, broker: SimBroker, place: PartitionGroup) -> None:
        """A new folder begins the groups of the one before without members: it has to learn them."""
        controller = self._ledger.objects.controller()
        present = None if controller is None else controller.replacement
        if present is None or present.node != broker.node_id or place.joins:
            return
        known = place.group in broker.host.stored_groups()
        if place.group in present.leaving | present.joining and not known:
            self._ledger.broken(
                "folders", f"node {broker.node_id} begins group {place.group} anew, as one of its founders"
            )
