"""State of the controller, and its look-ups.

Topics, partitions and nodes are immutable values: a change puts another one in their place, so a node can
tell by identity whether what it cached is still true, and a reader keeps a consistent picture. The lookups
beside them are derived, never stored, and rebuilt from a snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from strandline.statemachine.controller.acl_set import AclSet
from strandline.statemachine.controller.assignment import Load
from strandline.statemachine.controller.quota_set import QuotaSet
from strandline.statemachine.controller.scram_credentials import ScramCredential
from strandline.statemachine.controller.settings import Configs
from strandline.statemachine.controller.view_state import ViewProgram

DEFAULT_LISTENER = "kafka"
"""The listener of a node that names none."""
CONTROLLER_GROUP = 0
REMEMBERED_DELETIONS = 1024
"""Most ids of deleted topics that are remembered; older commands are refused by their `made_at`."""


class PartitionAssignment(NamedTuple):
    """One partition; its number is its place in the topic."""

    group: int
    """Raft group id, never used for anything else before or after."""
    replicas: tuple[int, ...]
    """Node ids, the preferred leader first. While the partition moves: those of the target, then the others
    that may still be members."""
    creation_epoch: int
    """Cluster epoch when the partition was created: it refuses older ones."""


class Topic(NamedTuple):
    """A topic as of `version`, the log index of its last change."""

    topic_id: bytes
    name: str
    partitions: tuple[PartitionAssignment, ...]
    configs: Configs
    creation_epoch: int
    version: int

    @property
    def replication_factor(self) -> int:
        """Replicas of the first partition, as in Kafka: moves may give others more or fewer."""
        return len(self.partitions[0].replicas)


class ListenerAddress(NamedTuple):
    """The address that clients of one listener of a node are told."""

    name: str
    host: str
    port: int


class NodeRegistration(NamedTuple):
    """A broker process: where it is reached, and whether it counts as alive."""

    node: int
    boot_id: int
    kafka_host: str
    kafka_port: int
    mesh_host: str
    mesh_port: int
    admin_port: int
    min_feature_level: int
    max_feature_level: int
    fenced: bool
    heard_index: int
    """Log index of its last registration or heartbeat."""
    heard_time: int
    """The controller's time at that entry, in ms."""
    listeners: tuple[ListenerAddress, ...] = ()
    """Of a node that names its listeners; the first is where `kafka_host` and `kafka_port` point."""
    rack: str = ""
    """The rack that it says it stands in; empty where it names none."""

    def address(self, listener: str) -> ListenerAddress | None:
        """The address that clients which came by `listener` are told; None for a node without it."""
        for address in self.listeners:
            if address.name == listener:
                return address
        if not self.listeners and listener == DEFAULT_LISTENER:
            return ListenerAddress(listener, self.kafka_host, self.kafka_port)
        return None


class NodeFolder(NamedTuple):
    """The data folder that is in force for a node."""

    generation: int
    """Number of folders that the node has had; 1 for its first."""
    folder: int
    """The identity that the folder drew when it was made."""


REMOVED = 0
"""In place of the folder of a node that was removed: no folder has this identity."""


class Replacement(NamedTuple):
    """Another data folder on its way into a node's place, or a node that is removed."""

    node: int
    folder: int
    """REMOVED for a node in whose place there is none."""
    boot_id: int
    """Of the last process on the folder before, 0 for none: it counts as dead from here on."""
    leaving: frozenset[int]
    """Groups that still have the old folder as a member."""
    joining: frozenset[int]
    """Groups that left the node out, and do not have it back yet."""


class Move(NamedTuple):
    """A partition on its way to other nodes (KIP-455)."""

    target: tuple[int, ...]
    """Its replicas in the end, the preferred leader first."""
    original: tuple[int, ...]
    """Its replicas before, which it goes back to when the move is cancelled."""
    since: int
    """Log index of the command that set the target: a late report may be of an earlier move to the same."""


class PartitionPlace(NamedTuple):
    """The partition that a Raft group replicates."""

    topic_id: bytes
    partition: int


class ControllerState:
    """Everything the controller's log has said so far."""

    def __init__(self) -> None:
        self.cluster_id: str | None = None
        self.incarnation: str | None = None
        """The cluster's incarnation, which its storage names too."""
        self.feature_level = 1
        self.cluster_epoch = 1
        self.next_group = CONTROLLER_GROUP + 1
        self.next_producer_id = 0
        self.time = 0
        """The highest time any command carried, in ms; nothing is decided by it."""
        self.term = 0
        self.leader = 0
        self.applied_index = 0
        self.version = 0
        """Log index of the last entry that changed what Metadata or DescribeConfigs answer."""
        self.collection_paused = False
        """Whether the nodes' collectors are to delete nothing for now."""
        self.topics: dict[bytes, Topic] = {}
        """By id, in the order of their creation."""
        self.nodes: dict[int, NodeRegistration] = {}
        """By id, in the order of the ids."""
        self.folders: dict[int, NodeFolder] = {}
        """By node id, of every node that ever registered, also of those that were removed since."""
        self.draining: set[int] = set()
        """Nodes that get no more replicas, because an operator is emptying them."""
        self.balancing = False
        """Whether replicas are to move by themselves until the nodes are even."""
        self.replacement: Replacement | None = None
        self.moves: dict[int, Move] = {}
        """By group, in the order in which they were first asked for."""
        self.moved: set[int] = set()
        """Groups that ended a move. A node without anything of them learns their members from the leader."""
        self.deleted: dict[bytes, int] = {}
        """Log index at which each remembered topic was deleted, in that order."""
        self.forgotten_index = 0
        """Log index of the newest deletion that is no longer remembered; 0 for none."""
        self.group_configs: dict[str, Configs] = {}
        """Of the groups that set any, in the order in which they first did."""
        self.credentials: dict[tuple[str, int], ScramCredential] = {}
        """By user and mechanism, in the order in which they came."""
        self.acls = AclSet()
        self.client_quotas = QuotaSet()
        self.view_programs: dict[str, ViewProgram] = {}
        """By name, in the order in which they came."""
        self.by_name: dict[str, Topic] = {}
        self.colliding: dict[str, str] = {}
        """The name of the topic whose metrics would go by this one, see `metric_name`."""
        self.places: dict[int, PartitionPlace] = {}
        self.hosted: dict[int, set[int]] = {}
        """Groups each node has a replica of."""
        self.led: dict[int, int] = {}
        """Number of partitions that each node is the preferred leader of."""

    def put_topic(self, topic: Topic) -> None:
        """Add a topic, or put its successor in its place; partitions it already has stay as they are."""
        known = self.topics.get(topic.topic_id)
        self.topics[topic.topic_id] = self.by_name[topic.name] = topic
        self.colliding[metric_name(topic.name)] = topic.name
        first = len(known.partitions) if known else 0
        for number, partition in enumerate(topic.partitions[first:], first):
            self.places[partition.group] = PartitionPlace(topic.topic_id, number)
            self.led[partition.replicas[0]] = self.led.get(partition.replicas[0], 0) + 1
            for node in partition.replicas:
                self.hosted.setdefault(node, set()).add(partition.group)

    def put_replicas(self, topic: Topic, number: int, replicas: tuple[int, ...]) -> None:
        """Put one partition of a topic on other nodes; `topic` is the one in the state."""
        present = topic.partitions[number]
        self.led[present.replicas[0]] -= 1
        self.led[replicas[0]] = self.led.get(replicas[0], 0) + 1
        for node in present.replicas:
            self.hosted[node].remove(present.group)
        for node in replicas:
            self.hosted.setdefault(node, set()).add(present.group)
        partitions = list(topic.partitions)
        partitions[number] = present._replace(replicas=replicas)
        self.topics[topic.topic_id] = self.by_name[topic.name] = topic._replace(
            partitions=tuple(partitions), version=self.applied_index
        )

    def rename_topics(self, names: Mapping[bytes, str]) -> None:
        """Give topics other names, by id: all at once, so that two may take each other's."""
        for topic_id in names:
            old = self.topics[topic_id].name
            del self.by_name[old], self.colliding[metric_name(old)]
        for topic_id, name in names.items():
            self.put_topic(self.topics[topic_id]._replace(name=name, version=self.applied_index))

    def remove_topic(self, topic: Topic, index: int) -> None:
        """Forget a topic, and remember its id for as long as there is room."""
        del self.topics[topic.topic_id], self.by_name[topic.name], self.colliding[metric_name(topic.name)]
        for partition in topic.partitions:
            del self.places[partition.group]
            self.moves.pop(partition.group, None)
            self.moved.discard(partition.group)
            self.led[partition.replicas[0]] -= 1
            for node in partition.replicas:
                self.hosted[node].remove(partition.group)
        self.deleted[topic.topic_id] = index
        if len(self.deleted) > REMEMBERED_DELETIONS:
            self.forgotten_index = self.deleted.pop(next(iter(self.deleted)))

    def put_program(self, program: ViewProgram, index: int) -> None:
        """Add a program of views, or put its successor in its place."""
        self.view_programs[program.name] = program
        self.version = index

    def put_node(self, registration: NodeRegistration) -> None:
        """Add or replace a node's registration; a reader of the nodes keeps its consistent picture."""
        self.nodes = dict(sorted({**self.nodes, registration.node: registration}.items()))

    def forget_node(self, node: int) -> None:
        """Drop the registration of a node that has no replicas."""
        self.nodes = {other: known for other, known in self.nodes.items() if other != node}
        self.draining.discard(node)

    def racks(self) -> dict[int, str]:
        """Nodes that may get replicas, in the order of their ids, each with its rack."""
        return {
            node: registration.rack
            for node, registration in self.nodes.items()
            if not registration.fenced and node not in self.draining
        }

    def loads(self) -> dict[int, Load]:
        """Load of each registered node."""
        return {node: Load(self.led.get(node, 0), len(self.hosted.get(node, ()))) for node in self.nodes}


def metric_name(name: str) -> str:
    """A topic's name in Kafka's metrics, which cannot tell '.' from '_'."""
    return name.replace(".", "_")
