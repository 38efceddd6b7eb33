"""The controller: one replicated state machine with the cluster's metadata.

Nodes, topics, where each partition's replicas lie and which Raft group replicates it, the cluster epoch, and
blocks of producer ids. Group 0 is its own. Each node reads its replica directly: `version` says when what was
derived from it is out of date, `group_changes` what a node has to create and remove. See docs/controller.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from strandline.statemachine.controller import (
    balance_plan,
    controller_groups,
    controller_nodes,
    controller_snapshot,
    controller_topics,
    drain_plan,
    feature_levels,
    hosted_groups,
    node_folders,
    replica_moves,
    scram_credentials,
    view_programs,
)
from strandline.statemachine.controller.acl_set import AclSet
from strandline.statemachine.controller.controller_commands import (
    AdvanceClusterEpoch,
    AlterAcls,
    AlterClientQuotas,
    AlterGroupConfigs,
    AlterScramCredentials,
    Command,
    ControllerCheckpoint,
    DeleteTopic,
    MoveReplicas,
    ProducerIdBlock,
    RaiseFeatureLevel,
    ReplaceGroupConfigs,
    ReplicasMoved,
    SetCollection,
    ViewCommand,
    decode,
)
from strandline.statemachine.controller.controller_groups import GroupCommand
from strandline.statemachine.controller.controller_nodes import NodeCommand
from strandline.statemachine.controller.controller_state import (
    ControllerState,
    Move,
    NodeFolder,
    NodeRegistration,
    PartitionAssignment,
    PartitionPlace,
    Replacement,
    Topic,
)
from strandline.statemachine.controller.controller_topics import TopicCommand
from strandline.statemachine.controller.hosted_groups import GroupChanges
from strandline.statemachine.controller.node_folders import FolderCommand
from strandline.statemachine.controller.quota_set import QuotaSet
from strandline.statemachine.controller.scram_credentials import Credentials
from strandline.statemachine.controller.settings import Configs
from strandline.statemachine.controller.view_state import Programs
from strandline.statemachine.kafka_errors import Refused
from strandline.statemachine.machine import Captured, Corruption, ReadAttributes, ReadState

_NO_CONFIGS: Configs = {}
Result = Topic | NodeRegistration | ProducerIdBlock | int | str | Refused
"""Result of an entry; each command says which type is its answer."""


class Controller:
    """The controller's state machine; see StateMachine for what the log asks of it.

    `on_checkpoint(index, captured)` is called inside the apply of a ControllerCheckpoint, on every replica,
    with the state as of that very entry; when entries are applied again after a restart it gets the same
    again.
    """

    kind = "controller"

    def __init__(self, on_checkpoint: Callable[[int, Captured], None]) -> None:
        self._on_checkpoint = on_checkpoint
        self._state = ControllerState()

    # The log.

    def begin_term(self, index: int, term: int, node: int) -> None:
        """See StateMachine; raises Corruption when the term or the index does not go up."""
        if term <= self._state.term:
            raise Corruption(f"entry {index}: node {node} begins term {term} after term {self._state.term}")
        self._advance(index)
        self._state.term, self._state.leader = term, node

    def apply(self, index: int, term: int, command: bytes) -> Result:
        """See StateMachine; raises Corruption, and then must not be used any more."""
        if term < self._state.term:
            raise Corruption(f"entry {index} of term {term} comes after term {self._state.term} began")
        self._advance(index)
        decoded = decode(command)
        return feature_levels.refusal(self._state.feature_level, decoded) or self._do(index, decoded)

    def snapshot(self, *, secrets: bool = True) -> bytes:
        """The state as canonical bytes (docs/controller.md), for the storage without users' credentials."""
        return controller_snapshot.capture(self._state, secrets=secrets)

    def capture(self) -> Captured:
        """See StateMachine. It has topics, not records, so it is made at once."""
        state = self.snapshot()
        return lambda: state

    def read(self, state: bytes) -> ReadState:
        """See StateMachine."""
        return ReadAttributes(self, {"_state": controller_snapshot.load(state)})

    def restore(self, state: bytes) -> None:
        """See StateMachine."""
        self.read(state).adopt()

    def _advance(self, index: int) -> None:
        if index <= self._state.applied_index:
            raise Corruption(f"entry {index} comes after entry {self._state.applied_index}")
        self._state.applied_index = index

    def _do(self, index: int, command: Command) -> Result:
        state = self._state
        if isinstance(command, ViewCommand):
            return view_programs.apply(state, index, command)
        if isinstance(command, NodeCommand):
            return controller_nodes.apply(state, index, command)
        if isinstance(command, FolderCommand):
            return node_folders.apply(state, index, command)
        match command:
            case MoveReplicas():
                return replica_moves.move(state, index, command)
            case ReplicasMoved():
                return replica_moves.moved(state, index, command)
            case AlterGroupConfigs() | ReplaceGroupConfigs():
                return controller_groups.configure(state, index, command)
            case DeleteTopic():
                return self._delete(index, command)
            case AlterScramCredentials():
                return scram_credentials.alter(state.credentials, command)
            case AlterAcls():
                return state.acls.alter(command)
            case AlterClientQuotas():
                return state.client_quotas.alter(command)
            case AdvanceClusterEpoch():
                state.cluster_epoch = max(state.cluster_epoch, command.epoch)
                return state.cluster_epoch
            case SetCollection():
                state.collection_paused = command.paused
                return command.paused
            case ControllerCheckpoint():
                published = self.snapshot(secrets=False)
                self._on_checkpoint(index, lambda: published)
                return index
            case _:
                return self._put(index, command)

    def _put(self, index: int, command: TopicCommand) -> Topic | Refused:
        planned = controller_topics.plan(self._state, index, command)
        if isinstance(planned, Topic) and planned is not self._state.topics.get(planned.topic_id):
            controller_topics.put(self._state, index, planned)
        return planned

    def _delete(self, index: int, command: DeleteTopic) -> Topic | Refused:
        topic = controller_topics.existing(self._state, command)
        if isinstance(topic, Topic):
            controller_topics.remove(self._state, index, topic)
        return topic

    # What a node asks.

    def validate(self, command: TopicCommand) -> Topic | Refused:
        """The result that applying the command now would give; changes nothing (Kafka's validate_only)."""
        return controller_topics.plan(self._state, self._state.applied_index + 1, command)

    def validate_move(self, command: MoveReplicas) -> Refused | None:
        """The refusal that applying the command now would give; changes nothing."""
        return replica_moves.validate(self._state, command)

    def validate_level(self, command: RaiseFeatureLevel) -> Refused | None:
        """The refusal that applying the command now would give; changes nothing."""
        return controller_nodes.level_refused(self._state, command)

    def validate_group(self, command: GroupCommand) -> Configs | Refused:
        """The configs that applying the command now would give a group; changes nothing."""
        return controller_groups.plan(self._state.group_configs, command)

    def group_configs(self, group_id: str) -> Configs:
        """The configurations that a consumer group sets."""
        return self._state.group_configs.get(group_id, _NO_CONFIGS)

    @property
    def credentials(self) -> Credentials:
        """Users' SCRAM credentials, by user and mechanism."""
        return self._state.credentials

    @property
    def acls(self) -> AclSet:
        """The access control entries; the same object until a snapshot is restored."""
        return self._state.acls

    @property
    def client_quotas(self) -> QuotaSet:
        """The client quotas; the same object until a snapshot is restored."""
        return self._state.client_quotas

    @property
    def view_programs(self) -> Programs:
        """Programs of views by name; a change of one counts in `version`."""
        return self._state.view_programs

    @property
    def configured_groups(self) -> tuple[str, ...]:
        """Ids of the consumer groups that set any config, in the order in which they first did."""
        return tuple(self._state.group_configs)

    def group_changes(self, node: int, hosted: Collection[int]) -> GroupChanges:
        """Replicas that `node`, which has those of the groups `hosted`, has to create and remove."""
        return hosted_groups.changes(self._state, node, hosted)

    def groups_to_remove(self, hosted: Collection[int]) -> tuple[int, ...]:
        """The part of `group_changes` that costs nothing where thousands of groups are still to come."""
        return hosted_groups.gone(self._state, hosted)

    def moved_away(self, node: int, group: int) -> bool:
        """Whether a partition's group is there, and not on this node: see `hosted_groups.moved_away`."""
        return hosted_groups.moved_away(self._state, node, group)

    @property
    def version(self) -> int:
        """Log index of the last entry that changed topics, configs, nodes or the cluster id.

        Equal versions mean equal answers to Metadata and DescribeConfigs, on any node.
        """
        return self._state.version

    @property
    def applied_index(self) -> int:
        """Log index of the last entry applied: a new CreateTopic's `made_at`."""
        return self._state.applied_index

    @property
    def cluster_id(self) -> str | None:
        """None until Bootstrap is applied."""
        return self._state.cluster_id

    @property
    def incarnation(self) -> str | None:
        """The cluster's incarnation; None until Bootstrap is applied."""
        return self._state.incarnation

    @property
    def folders(self) -> Mapping[int, NodeFolder]:
        """The data folder in force, of every node that ever registered."""
        return self._state.folders

    @property
    def replacement(self) -> Replacement | None:
        """The data folder that is on its way into a node's place, if there is one."""
        return self._state.replacement

    @property
    def draining(self) -> Collection[int]:
        """Nodes that get no more replicas."""
        return frozenset(self._state.draining)

    def drain_moves(self, at_once: int) -> list[MoveReplicas]:
        """The moves that empty nodes which are drained: see `drain_plan.moves`."""
        return drain_plan.moves(self._state, at_once)

    def balance(self) -> balance_plan.Balance:
        """The replicas as they lie on the nodes, and the moves that even them out."""
        return balance_plan.Balance(self._state)

    def drains_staying(self) -> dict[int, drain_plan.Staying]:
        """By drained node, the replicas that stay for now: see `drain_plan.staying`."""
        return drain_plan.staying(self._state)

    def stuck_topics(self) -> list[str]:
        """Topics without which the replacement cannot end: see `node_folders.stuck_topics`."""
        return node_folders.stuck_topics(self._state)

    @property
    def moves(self) -> Mapping[int, Move]:
        """The moves that have not ended, by group."""
        return self._state.moves

    @property
    def cluster_epoch(self) -> int:
        """At least 1; only grows. It does not count in `version`."""
        return self._state.cluster_epoch

    @property
    def collection_paused(self) -> bool:
        """Whether nothing is to be deleted from storage. It does not count in `version`."""
        return self._state.collection_paused

    @property
    def feature_level(self) -> int:
        """Feature level of log entries and snapshots."""
        return self._state.feature_level

    @property
    def leader(self) -> int:
        """The node whose term it is, 0 before the first: Kafka's controller id."""
        return self._state.leader

    @property
    def nodes(self) -> Mapping[int, NodeRegistration]:
        """Registrations by node id, in the order of the ids."""
        return self._state.nodes

    @property
    def topics(self) -> tuple[Topic, ...]:
        """All topics, in the order of their creation."""
        return tuple(self._state.topics.values())

    def topic(self, name: str) -> Topic | None:
        """The topic of this name."""
        return self._state.by_name.get(name)

    def topic_by_id(self, topic_id: bytes) -> Topic | None:
        """The topic with this 16-byte id."""
        return self._state.topics.get(topic_id)

    def place_of(self, group: int) -> PartitionPlace | None:
        """The partition that a group replicates; None for a group that is gone or not a partition's."""
        return self._state.places.get(group)

    def topic_is_gone(self, topic_id: bytes, partition: int = 0) -> bool:
        """Whether a topic was deleted, or this partition of it; asked once it was there for certain.

        An unknown one counts as deleted only once some deletions were forgotten, as by a restore.
        """
        state, known = self._state, self._state.topics.get(topic_id)
        if known is not None and partition < len(known.partitions):
            return False
        return topic_id in state.deleted or state.forgotten_index > 0

    def group_is_gone(self, group: int) -> bool:
        """Whether a partition's group went with its topic; false for one that is not known here yet."""
        return hosted_groups.is_gone(self._state, group)

    def partition(self, topic_id: bytes, number: int) -> PartitionAssignment | None:
        """One partition of a topic; None when there is no such topic or partition."""
        topic = self._state.topics.get(topic_id)
        return topic.partitions[number] if topic and 0 <= number < len(topic.partitions) else None
