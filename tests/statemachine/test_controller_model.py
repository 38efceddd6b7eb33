"""The controller against a plain model, under any sequence of commands, retries, restarts and lost nodes.

Two machines apply the same entries; one of them is thrown away at any point and comes back from the other's
snapshot. The model keeps what was promised: it shares no code with the controller but its commands.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from strandline.statemachine.controller import controller_state
from strandline.statemachine.controller.controller import Controller, Result
from strandline.statemachine.controller.controller_commands import (
    AdvanceClusterEpoch,
    AllocateProducerIds,
    AlterGroupConfigs,
    AlterTopicConfigs,
    Command,
    ConfigChange,
    ConfigOperation,
    CreateInternalTopic,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    FenceNode,
    Heartbeat,
    ProducerIdBlock,
    ReplaceGroupConfigs,
    SetCollection,
    encode,
)
from strandline.statemachine.controller.controller_state import NodeRegistration, PartitionAssignment, Topic
from strandline.statemachine.internal_topics import GROUPS_TOPIC, TRANSACTIONS_TOPIC
from strandline.statemachine.kafka_errors import KafkaError, Refused
from strandline.statemachine.machine import Captured
from tests.statemachine.controller_harness import registration, topic_id

NODES = range(1, 6)
REMEMBERED = 3
names = st.sampled_from(["a", "b", "c", "d", "a.b", "a_b", "no/name", GROUPS_TOPIC, "__transaction.state"])
RESERVED = (GROUPS_TOPIC, "__transaction.state")
internal_names = st.sampled_from([GROUPS_TOPIC, TRANSACTIONS_TOPIC])
node_ids = st.sampled_from(NODES)


@dataclass
class ModelTopic:
    name: str
    replicas: list[tuple[int, ...]]
    groups: list[int]
    epochs: list[int]
    configs: dict[str, str] = field(default_factory=dict)


@dataclass
class ModelNode:
    boot_id: int
    heard_index: int
    fenced: bool = False


def ignore(index: int, captured: Captured) -> None:
    """Checkpoints are not published here."""


class ControllerAgainstModel(RuleBasedStateMachine):
    """Every rule says what must come of its command, then looks at what did."""

    @initialize()
    def start(self) -> None:
        self.machine, self.twin = Controller(ignore), Controller(ignore)
        self.index = self.term = 0
        self.nodes: dict[int, ModelNode] = {}
        self.topics: dict[bytes, ModelTopic] = {}
        self.deletions: list[tuple[bytes, int]] = []
        self.creations: list[CreateTopic] = []
        self.groups_given: set[int] = set()
        self.producer_ids_given = 0
        self.epoch = 1
        self.collection_paused = False
        self.group_configs: dict[str, dict[str, str]] = {}
        self.boots = 0
        self.hosted: dict[int, set[int]] = {node: set() for node in NODES}
        self.begin_term()
        for node in (1, 2, 3, 4):
            self.a_process_starts(node)

    def do(self, command: Command) -> Result:
        self.index += 1
        entry = encode(command)
        version = self.machine.version
        result = self.machine.apply(self.index, self.term, entry)
        assert self.twin.apply(self.index, self.term, entry) == result
        assert self.machine.version in (version, self.index)
        if isinstance(result, Refused):
            assert self.machine.version == version
            assert result.message
        return result

    def refuse(self, command: Command, *errors: KafkaError) -> None:
        result = self.do(command)
        assert isinstance(result, Refused)
        assert result.error in errors

    def live(self) -> list[int]:
        return sorted(node for node, registered in self.nodes.items() if not registered.fenced)

    def take(self, partitions: tuple[PartitionAssignment, ...], count: int, replication_factor: int) -> None:
        """New partitions are where they may be, and in groups nobody had before."""
        assert len(partitions) == count
        for group, replicas, epoch in partitions:
            assert group > 0
            assert group not in self.groups_given
            self.groups_given.add(group)
            assert epoch == self.epoch
            assert len(replicas) == len(set(replicas)) == replication_factor
            assert set(replicas) <= set(self.live())

    @rule()
    def begin_term(self) -> None:
        self.index += 1
        self.term += 1
        for machine in (self.machine, self.twin):
            machine.begin_term(self.index, self.term, 1)

    @rule(node=node_ids)
    def a_process_starts(self, node: int) -> None:
        known = self.nodes.get(node)
        self.boots += 1
        self.do(registration(node, self.boots, replaces=known.boot_id if known else 0))
        self.nodes[node] = ModelNode(self.boots, self.index)

    @rule(node=node_ids, late=st.booleans())
    def a_heartbeat_comes(self, node: int, late: bool) -> None:
        known = self.nodes.get(node)
        boot_id = known.boot_id - late if known else 1
        command = Heartbeat(node, max(boot_id, 1), self.index)
        if known is None:
            self.refuse(command, KafkaError.BROKER_ID_NOT_REGISTERED)
        elif known.boot_id != command.boot_id:
            self.refuse(command, KafkaError.STALE_BROKER_EPOCH)
        else:
            assert isinstance(self.do(command), NodeRegistration)
            self.nodes[node] = ModelNode(known.boot_id, self.index)

    @rule(data=st.data(), behind=st.booleans())
    def a_node_is_fenced(self, data: st.DataObject, behind: bool) -> None:
        node = data.draw(st.sampled_from(sorted(self.nodes)))
        known = self.nodes[node]
        result = self.do(FenceNode(node, known.heard_index - behind, 0))
        known.fenced = known.fenced or not behind
        assert isinstance(result, NodeRegistration)
        assert result.fenced == known.fenced

    @rule(data=st.data(), name=names, partitions=st.integers(1, 9))
    def a_topic_is_created(self, data: st.DataObject, name: str, partitions: int) -> None:
        replication_factor = data.draw(st.integers(1, max(len(self.live()), 1)))
        self.a_topic_is_asked_for(name, partitions, replication_factor)

    @rule(name=names, partitions=st.integers(0, 2), replication_factor=st.integers(0, 5))
    def a_topic_is_asked_for(self, name: str, partitions: int, replication_factor: int) -> None:
        identity = topic_id(len(self.creations) + 1)
        command = CreateTopic(identity, name, partitions, replication_factor, None, (), self.index)
        self.creations.append(command)
        self.create(command)

    @precondition(lambda self: self.creations)
    @rule(data=st.data())
    def a_creation_is_retried(self, data: st.DataObject) -> None:
        self.create(data.draw(st.sampled_from(self.creations)))

    def create(self, command: CreateTopic) -> None:
        present = self.topics.get(command.topic_id)
        forgotten = [index for _, index in self.deletions[:-REMEMBERED]]
        if present:
            result = self.do(command)
            assert isinstance(result, Topic)
            assert [partition.group for partition in result.partitions] == present.groups
        elif command.topic_id in [identity for identity, _ in self.deletions[-REMEMBERED:]]:
            self.refuse(command, KafkaError.UNKNOWN_TOPIC_ID)
        elif forgotten and command.made_at < forgotten[-1]:
            self.refuse(command, KafkaError.REQUEST_TIMED_OUT)
        elif refusals := self.refusals(command):
            self.refuse(command, *refusals)
        else:
            # An id that was deleted never gets as far as here.
            assert command.topic_id not in [identity for identity, _ in self.deletions]
            result = self.do(command)
            assert isinstance(result, Topic)
            assert (result.topic_id, result.name, result.creation_epoch) == (
                command.topic_id,
                command.name,
                self.epoch,
            )
            self.take(result.partitions, command.partitions, command.replication_factor)
            replicas = [partition.replicas for partition in result.partitions]
            self.check_even(replicas)
            self.topics[command.topic_id] = ModelTopic(
                command.name,
                replicas,
                [partition.group for partition in result.partitions],
                [self.epoch] * command.partitions,
            )

    @rule(name=internal_names, partitions=st.integers(1, 5), replication_factor=st.integers(1, 5))
    def coordinators_are_needed(self, name: str, partitions: int, replication_factor: int) -> None:
        # Every node that finds it missing draws an id of its own.
        command = CreateInternalTopic(topic_id(10**6 + self.index), name, partitions, replication_factor)
        present = next((one for one in self.topics.values() if one.name == name), None)
        if present is not None:
            result = self.do(command)
            assert isinstance(result, Topic)
            assert [partition.group for partition in result.partitions] == present.groups
            assert self.machine.version < self.index
        elif replication_factor > len(self.live()):
            self.refuse(command, KafkaError.INVALID_REPLICATION_FACTOR)
        else:
            result = self.do(command)
            assert isinstance(result, Topic)
            self.take(result.partitions, partitions, replication_factor)
            self.topics[command.topic_id] = ModelTopic(
                name,
                [partition.replicas for partition in result.partitions],
                [partition.group for partition in result.partitions],
                [self.epoch] * partitions,
            )

    def is_internal(self, identity: bytes) -> bool:
        return self.topics[identity].name in (GROUPS_TOPIC, TRANSACTIONS_TOPIC)

    def refusals(self, command: CreateTopic) -> list[KafkaError]:
        """All that is wrong with a new topic; which of it is told is not promised."""
        taken = {topic.name for topic in self.topics.values()}
        refusals = []
        if "/" in command.name or command.name in RESERVED:
            refusals.append(KafkaError.INVALID_TOPIC_EXCEPTION)
        if command.name in taken:
            refusals.append(KafkaError.TOPIC_ALREADY_EXISTS)
        elif command.name in ("a.b", "a_b") and taken & {"a.b", "a_b"}:
            refusals.append(KafkaError.INVALID_TOPIC_EXCEPTION)
        if command.partitions < 1:
            refusals.append(KafkaError.INVALID_PARTITIONS)
        if not 1 <= command.replication_factor <= len(self.live()):
            refusals.append(KafkaError.INVALID_REPLICATION_FACTOR)
        return refusals

    def check_even(self, replicas: list[tuple[int, ...]]) -> None:
        for counts in (
            Counter(nodes[0] for nodes in replicas),
            Counter(node for nodes in replicas for node in nodes),
        ):
            load = [counts[node] for node in self.live()]
            assert max(load) - min(load) <= 1

    @precondition(lambda self: self.topics)
    @rule(data=st.data(), more=st.integers(-1, 5))
    def a_topic_grows(self, data: st.DataObject, more: int) -> None:
        identity = data.draw(st.sampled_from(sorted(self.topics)))
        topic = self.topics[identity]
        count, replication_factor = len(topic.groups) + more, len(topic.replicas[0])
        command = CreatePartitions(identity, count, None)
        if self.is_internal(identity):
            self.refuse(command, KafkaError.INVALID_TOPIC_EXCEPTION)
        elif more < 1:
            self.refuse(command, KafkaError.INVALID_PARTITIONS)
        elif replication_factor > len(self.live()):
            self.refuse(command, KafkaError.INVALID_REPLICATION_FACTOR)
        else:
            result = self.do(command)
            assert isinstance(result, Topic)
            new = result.partitions[len(topic.groups) :]
            self.take(new, more, replication_factor)
            topic.replicas += [partition.replicas for partition in new]
            topic.groups += [partition.group for partition in new]
            topic.epochs += [self.epoch] * more

    @precondition(lambda self: self.topics)
    @rule(data=st.data())
    def a_topic_is_deleted(self, data: st.DataObject) -> None:
        identity = data.draw(st.sampled_from(sorted(self.topics)))
        if self.is_internal(identity):
            self.refuse(DeleteTopic(identity), KafkaError.INVALID_TOPIC_EXCEPTION)
            return
        assert isinstance(self.do(DeleteTopic(identity)), Topic)
        del self.topics[identity]
        self.deletions.append((identity, self.index))
        self.refuse(DeleteTopic(identity), KafkaError.UNKNOWN_TOPIC_ID)

    @precondition(lambda self: self.topics)
    @rule(data=st.data(), value=st.integers(-3, 5), unset=st.booleans())
    def a_config_is_altered(self, data: st.DataObject, value: int, unset: bool) -> None:
        identity = data.draw(st.sampled_from(sorted(self.topics)))
        operation = ConfigOperation.DELETE if unset else ConfigOperation.SET
        command = AlterTopicConfigs(identity, [ConfigChange(operation, "retention.ms", f" {value}")])
        if self.is_internal(identity):
            self.refuse(command, KafkaError.INVALID_TOPIC_EXCEPTION)
        elif unset:
            self.do(command)
            self.topics[identity].configs.clear()
        elif value < -1:
            self.refuse(command, KafkaError.INVALID_CONFIG)
        else:
            self.do(command)
            self.topics[identity].configs["retention.ms"] = str(value)

    @rule(data=st.data(), epoch=st.integers(1, 30), size=st.integers(1, 1000))
    def the_cluster_counts_on(self, data: st.DataObject, epoch: int, size: int) -> None:
        self.epoch = max(self.epoch, epoch)
        assert self.do(AdvanceClusterEpoch(epoch)) == self.epoch
        node = data.draw(st.sampled_from(sorted(self.nodes)))
        assert self.do(AllocateProducerIds(node, size)) == ProducerIdBlock(self.producer_ids_given, size)
        self.producer_ids_given += size

    @rule(group=st.sampled_from("gh"), value=st.integers(-1, 3), unset=st.booleans(), whole=st.booleans())
    def a_group_is_configured(self, group: str, value: int, unset: bool, whole: bool) -> None:
        name = "consumer.session.timeout.ms"
        before = self.group_configs.get(group)
        command: Command
        if whole:
            command = ReplaceGroupConfigs(group, [] if unset else [(name, f"{value}")])
        else:
            operation = ConfigOperation.DELETE if unset else ConfigOperation.SET
            command = AlterGroupConfigs(group, [ConfigChange(operation, name, f" {value}")])
        if value < 1 and not unset:
            self.refuse(command, KafkaError.INVALID_CONFIG)
        else:
            version = self.machine.version
            assert self.do(command) == (0 if unset else 1)
            if unset:
                self.group_configs.pop(group, None)
            else:
                self.group_configs[group] = {name: str(value)}
            assert (self.machine.version == version) == (before == self.group_configs.get(group))
        assert self.machine.group_configs(group) == self.group_configs.get(group, {})
        assert set(self.machine.configured_groups) == set(self.group_configs)

    @rule(paused=st.booleans())
    def collection_is_set(self, paused: bool) -> None:
        version = self.machine.version
        assert self.do(SetCollection(paused)) is paused
        assert self.machine.version == version
        self.collection_paused = paused

    @rule()
    def one_of_them_restarts_from_a_snapshot(self) -> None:
        self.twin = Controller(ignore)
        self.twin.restore(self.machine.snapshot())

    @rule(node=node_ids)
    def a_node_catches_up(self, node: int) -> None:
        changes = self.machine.group_changes(node, self.hosted[node])
        for spec in changes.create:
            topic = self.topics[spec.topic_id]
            assert topic.groups[spec.partition] == spec.group
            assert topic.epochs[spec.partition] == spec.creation_epoch
            assert topic.replicas[spec.partition] == spec.replicas
            assert topic.name == spec.topic
        self.hosted[node] |= {spec.group for spec in changes.create}
        self.hosted[node] -= set(changes.remove)
        assert self.hosted[node] == {
            group
            for topic in self.topics.values()
            for group, replicas in zip(topic.groups, topic.replicas, strict=True)
            if node in replicas
        }

    @invariant()
    def replicas_agree_byte_for_byte(self) -> None:
        assert self.machine.snapshot() == self.twin.snapshot()

    @invariant()
    def the_state_is_the_models(self) -> None:
        for machine in (self.machine, self.twin):
            assert machine.cluster_epoch == self.epoch
            assert machine.collection_paused is self.collection_paused
            assert {
                topic.topic_id: ModelTopic(
                    topic.name,
                    [partition.replicas for partition in topic.partitions],
                    [partition.group for partition in topic.partitions],
                    [partition.creation_epoch for partition in topic.partitions],
                    dict(topic.configs),
                )
                for topic in machine.topics
            } == self.topics
            assert {
                node: ModelNode(known.boot_id, known.heard_index, known.fenced)
                for node, known in machine.nodes.items()
            } == self.nodes
            for topic in machine.topics:
                assert machine.topic(topic.name) is machine.topic_by_id(topic.topic_id) is topic


def test_the_controller_keeps_to_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_state, "REMEMBERED_DELETIONS", REMEMBERED)
    run_state_machine_as_test(
        ControllerAgainstModel,
        settings=settings(max_examples=120, stateful_step_count=50, deadline=None),
    )
