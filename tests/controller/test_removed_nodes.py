"""A node that leaves for good: drained, stopped, removed. Its folder comes back; its id is on a new machine.

Whole brokers in the simulated world.
"""

from __future__ import annotations

from unittest.mock import patch

import pytest

from strandline.node.raft.data_folder import Folder, Standing
from strandline.statemachine.controller import node_folders
from strandline.statemachine.controller.controller_commands import RemoveNode, ReplaceNode, SetDraining
from strandline.statemachine.controller.controller_state import (
    CONTROLLER_GROUP,
    REMOVED,
    ControllerState,
    NodeFolder,
)
from strandline.statemachine.kafka_errors import Refused
from tests.controller.brokers import Brokers

LEAVES = 4


def others(brokers: Brokers) -> list[int]:
    return [node for node in brokers.brokers if node != LEAVES]


def drained(brokers: Brokers, by: int) -> bool:
    machine = brokers.brokers[by].controller.machine
    return not machine.moves and not any(
        LEAVES in partition.replicas for topic in machine.topics for partition in topic.partitions
    )


def dead(brokers: Brokers, by: int) -> bool:
    return brokers.brokers[by].controller.machine.nodes[LEAVES].fenced


def gone(brokers: Brokers, by: int) -> bool:
    """It is not registered, no member of the controller's group, and nothing is under way."""
    broker = brokers.brokers[by]
    machine, group = broker.controller.machine, broker.host.groups[CONTROLLER_GROUP]
    return LEAVES not in machine.nodes and machine.replacement is None and LEAVES not in group.voters


def emptied(brokers: Brokers) -> None:
    """Node 4 gets replicas, loses them again and stops."""
    brokers.create_topic(1, "orders", partitions=8)
    by = others(brokers)[0]
    assert not isinstance(brokers.submit(by, SetDraining(LEAVES, True)), Refused)
    brokers.wait(lambda: drained(brokers, by), 120.0)
    brokers.stop(LEAVES)
    brokers.wait(lambda: dead(brokers, by))


def served(brokers: Brokers) -> bool:
    """Every partition has one leader among its three replicas."""
    topics = brokers.brokers[1].controller.machine.topics
    replicas = [partition for broker in brokers.brokers.values() for partition in broker.partitions]
    leaders = [partition.group.id for partition in replicas if partition.leads]
    return sorted(leaders) == sorted(one.group for topic in topics for one in topic.partitions)


def test_a_node_is_refused_while_it_lives_or_has_replicas_and_is_forgotten_after_that() -> None:
    with Brokers(nodes=4) as brokers:
        brokers.create_topic(1, "orders", partitions=8)
        alive = brokers.submit(1, RemoveNode(LEAVES))
        assert isinstance(alive, Refused)
        assert "is alive: stop its process first" in alive.message
        brokers.submit(1, SetDraining(LEAVES, True))
        brokers.stop(LEAVES)
        brokers.wait(lambda: dead(brokers, 1))
        held = brokers.submit(1, RemoveNode(LEAVES))
        assert isinstance(held, Refused)
        assert "has replicas of orders: move them to other nodes first" in held.message
        brokers.wait(lambda: drained(brokers, 1), 120.0)
        assert brokers.submit(1, RemoveNode(LEAVES)) == 1
        brokers.wait(lambda: all(gone(brokers, by) for by in others(brokers)))
        assert brokers.brokers[1].host.groups[CONTROLLER_GROUP].voters == (1, 2, 3)
        brokers.wait(lambda: served(brokers))
        # Two of the three are a majority now; of four they would not be.
        brokers.crash(brokers.follower())
        brokers.create_topic(brokers.leader(), "more", partitions=1, replicas=2)


def test_of_two_nodes_one_is_drained_stopped_and_removed_and_the_other_goes_on() -> None:
    with Brokers(nodes=2) as brokers:
        leader, leaves = brokers.leader(), brokers.leader()
        stays = 3 - leaves
        assert not isinstance(brokers.submit(leader, SetDraining(leaves, True)), Refused)
        group = brokers.brokers[stays].host.groups[CONTROLLER_GROUP]
        brokers.wait(lambda: group.voters == (stays,) and group.is_leader)
        brokers.stop(leaves)
        machine = brokers.brokers[stays].controller.machine
        brokers.wait(lambda: machine.nodes[leaves].fenced)
        assert brokers.submit(stays, RemoveNode(leaves)) == 1
        brokers.wait(lambda: leaves not in machine.nodes and machine.replacement is None)
        brokers.create_topic(stays, "goes-on", partitions=1, replicas=1)


def test_the_folder_of_a_removed_node_stays_out_and_says_why_and_an_empty_one_takes_its_id() -> None:
    with Brokers(nodes=4) as brokers:
        emptied(brokers)
        assert brokers.submit(1, RemoveNode(LEAVES)) == 1
        brokers.wait(lambda: all(gone(brokers, by) for by in others(brokers)))
        brokers.start(LEAVES)
        brokers.world.run(brokers.world.now + 20)
        assert not brokers.registered(LEAVES)
        assert not any(brokers.brokers[by].host.mesh.connected(LEAVES) for by in others(brokers))
        why = brokers.brokers[LEAVES].keeper.why_waiting()
        assert "if that one is lost or the node was removed, start this node with an empty one" in why
        assert all(gone(brokers, by) for by in others(brokers))
        assert brokers.brokers[1].host.mesh.strangers.known[LEAVES].replaced, "node replace refuses it"

        brokers.crash(LEAVES)
        brokers.world.nodes[LEAVES].replace_disk()
        brokers.start(LEAVES)
        strangers = brokers.brokers[1].host.mesh.strangers
        brokers.wait(lambda: LEAVES in strangers.known and not strangers.known[LEAVES].replaced)
        assert brokers.submit(1, ReplaceNode(LEAVES, strangers.known[LEAVES].folder)) == 1
        brokers.wait(lambda: brokers.registered(LEAVES), 60.0)
        brokers.wait(lambda: LEAVES in brokers.brokers[1].host.groups[CONTROLLER_GROUP].configuration.members)
        brokers.create_topic(LEAVES, "more", partitions=8)
        machine = brokers.brokers[1].controller.machine
        (more,) = [topic for topic in machine.topics if topic.name == "more"]
        assert any(LEAVES in partition.replicas for partition in more.partitions)
        assert not brokers.fatal


@pytest.mark.parametrize("after", [0.0, 0.5, 1.5, 5.0])
def test_a_new_machine_that_is_lost_while_it_joins_is_removed_and_the_cluster_goes_on(after: float) -> None:
    with Brokers(nodes=4) as brokers:
        emptied(brokers)
        assert brokers.submit(1, RemoveNode(LEAVES)) == 1
        brokers.wait(lambda: all(gone(brokers, by) for by in others(brokers)))
        brokers.world.nodes[LEAVES].replace_disk()
        brokers.start(LEAVES)
        strangers = brokers.brokers[1].host.mesh.strangers
        brokers.wait(lambda: LEAVES in strangers.known and not strangers.known[LEAVES].replaced)
        assert brokers.submit(1, ReplaceNode(LEAVES, strangers.known[LEAVES].folder)) == 1
        brokers.world.run(brokers.world.now + after)
        brokers.crash(LEAVES)
        brokers.wait(
            lambda: LEAVES not in brokers.brokers[1].controller.machine.nodes or dead(brokers, 1), 60.0
        )
        assert brokers.submit(1, RemoveNode(LEAVES)) == 1
        brokers.wait(lambda: all(gone(brokers, by) for by in others(brokers)), 60.0)
        assert brokers.brokers[1].host.groups[CONTROLLER_GROUP].voters == (1, 2, 3)
        brokers.start(LEAVES)
        brokers.world.run(brokers.world.now + 10)
        assert not any(brokers.brokers[by].host.mesh.connected(LEAVES) for by in others(brokers))
        brokers.wait(lambda: served(brokers))


def removed_amid_kills(brokers: Brokers) -> None:
    """Nodes are killed all the while, and the one that goes is started again with its old folder."""
    emptied(brokers)
    rng = brokers.world.rng("kills")
    assert brokers.submit(others(brokers)[0], RemoveNode(LEAVES)) == 1
    for _ in range(5):
        brokers.world.run(brokers.world.now + rng.uniform(0.0, 1.0))
        victim = rng.choice([1, 2, 3])
        brokers.crash(victim, rng.choice(["kill", "power"]))
        if LEAVES not in brokers.brokers and rng.random() < 0.5:
            brokers.start(LEAVES)
        brokers.world.run(brokers.world.now + rng.uniform(0.1, 2.0))
        brokers.start(victim)
    brokers.wait(lambda: all(brokers.registered(node) for node in (1, 2, 3)), 60.0)
    brokers.wait(lambda: all(gone(brokers, by) for by in (1, 2, 3)), 60.0)
    if LEAVES not in brokers.brokers:
        brokers.start(LEAVES)
    brokers.world.run(brokers.world.now + 10)


def heard(brokers: Brokers) -> bool:
    """Whether a node has a connection to the one that was removed."""
    return any(brokers.brokers[by].host.mesh.connected(LEAVES) for by in (1, 2, 3))


@pytest.mark.parametrize("seed", range(4))
def test_a_removal_goes_on_whatever_is_killed_and_the_old_folder_is_heard_by_no_node(seed: int) -> None:
    with Brokers(nodes=4, seed=seed) as brokers:
        removed_amid_kills(brokers)
        assert not heard(brokers)
        assert not brokers.registered(LEAVES)
        brokers.wait(lambda: served(brokers), 30.0)
        for by in (1, 2, 3):
            assert brokers.brokers[by].controller.machine.folders[LEAVES].folder == REMOVED
            assert brokers.brokers[by].host.groups[CONTROLLER_GROUP].voters == (1, 2, 3)


def _lets_anything_in(self: Folder, peer: int, claim: Standing) -> str | None:
    return None


def _no_tombstone(state: ControllerState, index: int, command: RemoveNode) -> int | Refused:
    """As remove, but the node's folder stays the one that is known."""
    folder = state.folders[command.node]
    result = _remove(state, index, command)
    state.folders[command.node] = folder
    return result


_remove = node_folders.remove


@pytest.mark.parametrize("sabotage", ["any folder", "no tombstone"])
def test_an_old_folder_that_is_let_in_would_be_seen(sabotage: str) -> None:
    part, name, rule = {
        "any folder": (Folder, "reason_to_refuse", _lets_anything_in),
        "no tombstone": (node_folders, "remove", _no_tombstone),
    }[sabotage]
    with patch.object(part, name, rule), Brokers(nodes=4) as brokers:
        removed_amid_kills(brokers)
        assert heard(brokers)


def test_a_removed_node_that_hears_of_it_stops_and_says_so() -> None:
    with Brokers() as brokers:
        broker = brokers.brokers[3]
        state = broker.controller.machine._state
        state.folders[3] = NodeFolder(state.folders[3].generation + 1, REMOVED)
        brokers.world.nodes[3].call(broker.keeper._follow)
        brokers.wait(lambda: 3 in brokers.fatal)
        assert "node 3 was removed from this cluster" in str(brokers.fatal[3])
        brokers.crash(3)
