"""Coordinators in whole simulated nodes: how they come, where they are led, what is published of them."""

from __future__ import annotations

from typing import Any

import pytest

from strandline.node.broker.broker import Broker
from strandline.node.coordinator.context import CoordinatorPlace
from strandline.node.coordinator.groups.coordinator import GroupCoordinator
from strandline.node.coordinator.transactions.transaction_coordinator import TransactionCoordinator
from strandline.node.gc.collectable_epochs import Maximum
from strandline.node.kafka.handlers import elect_leaders
from strandline.snapshot.document import decode
from strandline.snapshot.names import SnapshotName, group_prefix, parse_name
from strandline.statemachine.coordinator_machine import CoordinatorCheckpoint
from strandline.statemachine.internal_topics import GROUPS_TOPIC, TRANSACTIONS_TOPIC, coordinator_kind
from strandline.statemachine.kafka_errors import KafkaError
from tests.checkpoints.harness import at_once
from tests.controller.brokers import Brokers

__all__ = ["at_once"]

PARTITIONS = 16


def led_groups(made: Brokers) -> list[int]:
    return [len(broker.coordinators.led_groups()) for broker in made.brokers.values()]


def place(made: Brokers, node: int, key: str, *, transaction: bool = False) -> CoordinatorPlace:
    table = made.brokers[node].coordinators
    found = made.run(node, table.transaction_place(key) if transaction else table.group_place(key))
    assert isinstance(found, CoordinatorPlace)
    return found


def settled(made: Brokers, *, transactions: bool = False) -> None:
    """Every coordinator of a kind has a leader that is ready."""

    def ready() -> bool:
        tables = [broker.coordinators for broker in made.brokers.values()]
        led = [len(table.led_transactions() if transactions else table.led_groups()) for table in tables]
        return sum(led) == PARTITIONS

    made.wait(ready)


def leader_of(made: Brokers, key: str) -> int:
    """The node whose coordinator answers for a group; no other node's does."""
    answers = {node: broker.coordinators.groups_for(key) for node, broker in made.brokers.items()}
    ready = [node for node, answer in answers.items() if isinstance(answer, GroupCoordinator)]
    others = {answer for answer in answers.values() if not isinstance(answer, GroupCoordinator)}
    assert len(ready) == 1
    assert others <= {KafkaError.NOT_COORDINATOR}
    return ready[0]


def test_a_cluster_that_nobody_asks_has_none() -> None:
    with Brokers() as made:
        made.world.run(until=made.world.now + 30)
        for broker in made.brokers.values():
            assert broker.controller.machine.topics == ()
            assert list(broker.host.groups) == [0]
            assert list(broker.coordinators) == []


def test_three_nodes_asked_at_once_have_one_topic_spread_over_all() -> None:
    with Brokers() as made:
        began = made.world.now
        asked = [made.world.nodes[n].spawn(made.brokers[n].coordinators.group_place("g")) for n in made.nodes]
        made.wait(lambda: all(task.done() for task in asked))
        assert len({task.result() for task in asked}) == 1
        settled(made)
        assert made.world.now - began < 1
        assert sorted(led_groups(made)) == [5, 5, 6]
        (topic,) = made.brokers[1].controller.machine.topics
        assert (topic.name, len(topic.partitions)) == (GROUPS_TOPIC, PARTITIONS)
        for broker in made.brokers.values():
            assert len(list(broker.coordinators)) == PARTITIONS
            assert {replica.machine.kind for replica in broker.coordinators} == {"groups"}
            assert list(broker.partitions) == []
            assert not broker.replica_manager.failed
        # The other kind comes on its own, for whoever needs that.
        place(made, 2, "t", transaction=True)
        settled(made, transactions=True)
        assert [one.name for one in made.brokers[3].controller.machine.topics] == [
            GROUPS_TOPIC,
            TRANSACTIONS_TOPIC,
        ]


def test_a_place_is_answered_by_its_leader_and_nobody_else() -> None:
    with Brokers() as made:
        where = place(made, 1, "g")
        settled(made)
        leader = leader_of(made, "g")
        table = made.brokers[leader].coordinators
        answer = table.groups_for("g")
        assert isinstance(answer, GroupCoordinator)
        assert answer in table.led_groups()
        assert table.groups_by_raft_group(where.raft_group) is answer
        replica = table.by_group(where.raft_group)
        assert replica is not None
        assert (replica.number, replica.leads) == (where.number, True)
        for other, broker in made.brokers.items():
            if other != leader:
                assert broker.coordinators.groups_by_raft_group(where.raft_group) is None
                assert broker.leaders.leader_of(where.raft_group) is not None
        place(made, 1, "t", transaction=True)
        settled(made, transactions=True)
        led = [
            broker.coordinators.transactions_for("t")
            for broker in made.brokers.values()
            if not isinstance(broker.coordinators.transactions_for("t"), KafkaError)
        ]
        assert len(led) == 1
        assert isinstance(led[0], TransactionCoordinator)


@pytest.mark.parametrize("kind", ["kill", "stop"])
def test_another_node_takes_over_and_gives_it_back(kind: str) -> None:
    with Brokers() as made:
        place(made, 1, "g")
        settled(made)
        first = leader_of(made, "g")
        if kind == "kill":
            made.crash(first)
        else:
            made.stop(first)
        settled(made)
        second = leader_of(made, "g")
        assert second != first
        made.start(first)
        made.wait(lambda: made.registered(first))
        # Leadership goes back to where the controller placed it, as that of partitions does.
        made.wait(lambda: sorted(led_groups(made)) == [5, 5, 6], seconds=120)
        settled(made)
        assert leader_of(made, "g") == first


def test_all_of_them_come_back_after_a_restart_of_everything() -> None:
    with Brokers() as made:
        where = place(made, 1, "g")
        settled(made)
        for node in made.nodes:
            made.crash(node)
        for node in made.nodes:
            made.start(node)
        made.wait(lambda: all(made.registered(node) for node in made.nodes))
        settled(made)
        assert place(made, 2, "g") == where
        assert len(made.brokers[1].controller.machine.topics) == 1


def test_a_command_is_applied_by_every_replica() -> None:
    with Brokers() as made:
        where = place(made, 1, "g")
        settled(made)
        leader = leader_of(made, "g")
        replica = made.brokers[leader].coordinators.by_group(where.raft_group)
        assert replica is not None
        index = made.run(leader, replica.execute(CoordinatorCheckpoint()))
        assert isinstance(index, int)

        def states() -> list[bytes]:
            found = [broker.coordinators.by_group(where.raft_group) for broker in made.brokers.values()]
            return [one.machine.snapshot() for one in found if one is not None]

        made.wait(lambda: len(set(states())) == 1 and replica.machine.time > 0)
        assert len(states()) == 3


def test_an_idle_coordinator_holds_no_collection_back() -> None:
    with Brokers() as made:
        place(made, 1, "g")
        made.create_topic(1, "orders")
        settled(made)

        def level() -> bool:
            return all(broker.collectable.maximum().epoch >= 5 for broker in made.brokers.values())

        made.wait(level, seconds=200)
        for broker in made.brokers.values():
            found: Maximum = broker.collectable.maximum()
            assert found.topic in (None, "orders")


# Checkpoints.


def take(made: Brokers, node: int, topics: list[str] | None = None) -> Any:
    return made.run(node, made.brokers[node].checkpoints.take(topics, 60_000, 20.0))


def published(made: Brokers, broker: Broker, group: int) -> dict[int, dict[int, bytes]]:
    """By index and node: the bytes of the group's documents."""
    found: dict[int, dict[int, bytes]] = {}
    for key in made.store.keys(group_prefix(broker.config.cluster.id, group)):
        name = parse_name(key)
        if isinstance(name, SnapshotName):
            found.setdefault(name.log_index, {})[name.node] = made.store.objects[key]
    return found


@pytest.mark.usefixtures("at_once")
def test_their_checkpoints_are_published_alike_and_the_oldest_go() -> None:
    with Brokers() as made:
        where = place(made, 1, "g")
        settled(made)
        made.create_topic(1, "orders")
        broker = made.brokers[2]
        keep = broker.config.checkpoints.keep
        indexes = []
        for _ in range(keep + 2):
            report = take(made, 2)
            assert report.complete
            indexes += [part.index for part in report.checkpoints if part.group == where.raft_group]
        made.world.run(until=made.world.now + 5)
        documents = published(made, broker, where.raft_group)
        assert list(documents) == indexes[-keep:]
        for copies in documents.values():
            assert sorted(copies) == [1, 2, 3]
            assert len(set(copies.values())) == 1
            document = decode(next(iter(copies.values())))
            assert (document.kind, document.group) == ("groups", where.raft_group)
        # Of some topics only those, and the controller.
        assert [part.topic for part in take(made, 2, ["orders"]).checkpoints] == ["orders", None]
        report = take(made, 2)
        kinds = {coordinator_kind(part.topic) for part in report.checkpoints if part.topic is not None}
        assert kinds == {None, "groups"}


def test_they_have_no_lease_to_renew() -> None:
    with Brokers() as made:
        where = place(made, 1, "g")
        settled(made)
        report = take(made, 2)
        (index,) = [part.index for part in report.checkpoints if part.group == where.raft_group]
        leases = [(where.raft_group, index)]
        renewed = made.run(3, made.brokers[3].checkpoints.renew(leases, 60_000, 5.0))
        (lease,) = renewed.checkpoints
        assert (lease.lease_until_ms, lease.ended) == (None, True)
        assert "has no lease" in lease.error


def test_a_replica_that_goes_takes_all_of_itself_along() -> None:
    """No command takes one away while internal topics stay; the node can let go of it all the same."""
    with Brokers() as made:
        where = place(made, 1, "g")
        settled(made)
        leader = leader_of(made, "g")
        broker = made.brokers[leader]
        replica = broker.coordinators.by_group(where.raft_group)
        assert replica is not None
        broker.replicas.remove(where.raft_group)
        assert not replica.leads
        assert broker.coordinators.by_group(where.raft_group) is None
        assert broker.coordinators.groups_for("g") is KafkaError.NOT_COORDINATOR
        assert where.raft_group not in broker.host.groups
        assert len(broker.coordinators.led_groups()) < len(list(broker.coordinators)) == PARTITIONS - 1
        assert not made.run(leader, replica.confirm())


def test_leadership_is_handed_over_on_request() -> None:
    with Brokers() as made:
        where = place(made, 1, "g")
        settled(made)
        leader = leader_of(made, "g")
        other = next(node for node in made.nodes if node != leader)
        call = made.brokers[other].calls.call(leader, elect_leaders.METHOD, [[where.raft_group, other]], 2.0)
        assert made.run(other, call) == [True]
        made.wait(lambda: made.brokers[other].coordinators.groups_by_raft_group(where.raft_group) is not None)
        settled(made)
        assert leader_of(made, "g") == other
