"""Registering, being heard, fenced, replaced, leaving; and what the controller's leader does for all."""

from __future__ import annotations

import asyncio
from unittest.mock import patch

import pytest

from strandline.node.broker.broker import UncleanStop
from strandline.node.controller.controller_leader import (
    HEARTBEAT,
    LEAVING,
    SILENT_SECONDS,
    ControllerLeader,
)
from strandline.node.controller.registration import Displaced, Registration
from strandline.node.kafka.handlers import cluster
from strandline.statemachine.controller.controller import Result
from strandline.statemachine.controller.controller_commands import (
    FEATURE_LEVEL,
    Bootstrap,
    Command,
    RaiseFeatureLevel,
    RegisterNode,
    SetDraining,
)
from strandline.statemachine.controller.controller_state import NodeRegistration
from strandline.statemachine.kafka_errors import Refused
from tests.controller.brokers import ADMIN_PORT, KAFKA_PORT, MESH_PORT, Brokers


def registration(brokers: Brokers, of: int) -> NodeRegistration:
    """As the controller's leader knows it."""
    return brokers.brokers[brokers.leader()].controller.machine.nodes[of]


def led(brokers: Brokers) -> int:
    """How many partitions have a leader that takes records."""
    return sum(partition.leads for broker in brokers.brokers.values() for partition in broker.partitions)


def test_nodes_register_where_they_are_reached_and_the_cluster_gets_its_name() -> None:
    with Brokers() as brokers:
        machine = brokers.brokers[brokers.follower()].controller.machine
        assert machine.cluster_id == "simulated"
        assert list(machine.nodes) == [1, 2, 3]
        for node, known in machine.nodes.items():
            host = brokers.world.nodes[node].host
            assert (known.kafka_host, known.kafka_port) == (host, KAFKA_PORT)
            assert (known.mesh_host, known.mesh_port, known.admin_port) == (host, MESH_PORT, ADMIN_PORT)
            assert known.boot_id == brokers.brokers[node].boot_id
            assert not known.fenced


def test_a_silent_node_is_fenced_in_three_seconds_and_comes_back_as_a_new_process() -> None:
    with Brokers() as brokers:
        node = brokers.follower()
        before = registration(brokers, node)
        crashed_at = brokers.world.now
        brokers.crash(node)
        brokers.wait(lambda: registration(brokers, node).fenced)
        assert SILENT_SECONDS - 0.6 < brokers.world.now - crashed_at < SILENT_SECONDS + 1
        brokers.start(node)
        brokers.wait(lambda: brokers.registered(node))
        now = registration(brokers, node)
        assert not now.fenced
        assert now.boot_id == brokers.brokers[node].boot_id != before.boot_id


def test_a_node_that_was_cut_off_is_fenced_and_heard_again() -> None:
    with Brokers() as brokers:
        node = brokers.follower()
        boot_id = registration(brokers, node).boot_id
        brokers.world.nodes[node].pause()
        brokers.wait(lambda: registration(brokers, node).fenced)
        brokers.world.nodes[node].resume()
        brokers.wait(lambda: not registration(brokers, node).fenced)
        assert registration(brokers, node).boot_id == boot_id
        assert not brokers.fatal


def test_nobody_who_is_alive_is_fenced_by_a_new_leader_or_one_that_was_paused() -> None:
    with Brokers() as brokers:
        for _ in range(3):
            leader = brokers.leader()
            brokers.world.nodes[leader].pause()
            brokers.world.run(brokers.world.now + 2.0)
            brokers.world.nodes[leader].resume()
            brokers.world.run(brokers.world.now + 6.0)
            machine = brokers.brokers[brokers.leader()].controller.machine
            assert not [node for node, known in machine.nodes.items() if known.fenced]


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_pause_of_everybody_fences_nobody(nodes: int) -> None:
    with Brokers(nodes) as brokers:
        brokers.world.run(brokers.world.now + 1)
        machine = brokers.brokers[1].controller.machine
        heard = {node: known.heard_index for node, known in machine.nodes.items()}
        for node in brokers.nodes:
            brokers.world.nodes[node].pause()
        brokers.world.run(brokers.world.now + 30)
        for node in brokers.nodes:
            brokers.world.nodes[node].resume()
        brokers.world.run(brokers.world.now + 5)
        # A fence and its end would have left an entry each.
        assert {node: known.heard_index for node, known in machine.nodes.items()} == heard


def test_the_death_of_the_leader_is_noticed_by_the_next_one() -> None:
    with Brokers() as brokers:
        leader = brokers.leader()
        brokers.crash(leader)
        brokers.wait(lambda: registration(brokers, leader).fenced)
        assert not registration(brokers, brokers.leader()).fenced


def test_a_process_whose_place_was_taken_stops() -> None:
    with Brokers() as brokers:
        node = brokers.follower()
        known = registration(brokers, node)
        folder = brokers.brokers[node].controller.machine.folders[node].folder
        other = RegisterNode(node, 12345, known.boot_id, "h", 1, "h", 2, 3, 1, FEATURE_LEVEL, 0, folder)
        assert isinstance(brokers.submit(brokers.leader(), other), NodeRegistration)
        brokers.wait(lambda: node in brokers.fatal)
        assert isinstance(brokers.fatal[node], Displaced)
        assert list(brokers.fatal) == [node]


def test_a_node_registers_when_it_comes_up_long_before_the_others() -> None:
    with Brokers(start=False) as brokers:
        brokers.start(2)
        brokers.world.run(15)
        assert not brokers.registered(2)
        assert not brokers.fatal
        brokers.start(3)
        brokers.wait(lambda: brokers.registered(2) and brokers.registered(3))


def test_one_node_alone_is_a_cluster() -> None:
    with Brokers(nodes=1) as brokers:
        topic = brokers.create_topic(1, "t", 3, 1)
        brokers.wait(lambda: all(partition.leads for partition in brokers.brokers[1].partitions))
        assert len(brokers.brokers[1].partitions) == len(topic.partitions) == 3


def test_the_cluster_epoch_advances_in_its_time_whoever_leads() -> None:
    with Brokers() as brokers:
        began = brokers.world.now
        brokers.world.run(began + 35)
        brokers.crash(brokers.leader())
        brokers.world.run(brokers.world.now + 40)
        for broker in brokers.brokers.values():
            assert 7 <= broker.epoch.current() <= 8


@pytest.mark.parametrize("which", ["leader", "follower"])
def test_a_clean_stop_leaves_no_time_without_a_leader_and_is_not_waited_for(which: str) -> None:
    with Brokers() as brokers:
        brokers.create_topic(1, "t", 6)
        brokers.wait(
            lambda: (
                sum(partition.leads for broker in brokers.brokers.values() for partition in broker.partitions)
                == 6
            )
        )
        node = brokers.leader() if which == "leader" else brokers.follower()
        assert brokers.stop(node) < 2.0
        election = brokers.brokers[brokers.leader()].host.config.election_min_seconds
        brokers.wait(lambda: led(brokers) == 6, election / 2)
        brokers.wait(lambda: registration(brokers, node).fenced, 1.0)
        assert not brokers.fatal


@pytest.mark.parametrize("third", ["stays", "is dead"])
@pytest.mark.parametrize("seed", [2, 3, 6])
def test_two_nodes_that_stop_together_give_each_other_no_leadership(third: str, seed: int) -> None:
    """They handed the controller and every partition to and fro, a term each time, until one was gone."""
    with Brokers(seed=seed) as brokers:
        brokers.create_topic(1, "t", 6)
        brokers.world.run(brokers.world.now + 1.0 + seed / 7)
        leader = brokers.leader()
        other, last = (node for node in brokers.nodes if node != leader)
        if third == "is dead":
            brokers.crash(last)
        terms = {node: max(group.term for group in broker.host.groups.values())
                 for node, broker in brokers.brokers.items()}  # fmt: skip
        tasks, apart = {}, 0.03 * (seed % 3)
        for node in (leader, other):
            tasks[node] = brokers.world.nodes[node].spawn(brokers.brokers[node].stop())
            brokers.world.run(brokers.world.now + apart)
        brokers.wait(lambda: all(task.done() for task in tasks.values()), 8.0)
        for node, task in tasks.items():
            task.result()
            reached = max(group.term for group in brokers.brokers[node].host.groups.values())
            # To one that is told only then, and on.
            assert reached <= terms[node] + (2 if apart else 1)
            assert not any(group.is_leader for group in brokers.brokers[node].host.groups.values())
        assert not brokers.fatal


def test_a_part_that_hangs_keeps_neither_leaderships_nor_the_stop(caplog: pytest.LogCaptureFixture) -> None:
    with Brokers() as brokers:
        brokers.create_topic(1, "t", 6)
        node = brokers.leader()
        broker = brokers.brokers[node]
        broker.compaction.close = lambda: asyncio.sleep(1_000)  # type: ignore[method-assign]
        began = brokers.world.now
        with pytest.raises(UncleanStop, match="compaction did not end within 4 s"):
            brokers.run(node, broker.stop())
        assert brokers.world.now - began < 8.0
        assert not any(group.is_leader for group in broker.host.groups.values())
        assert "stopping: compaction did not end within 4 s: the node goes on without it" in caplog.text
        caplog.clear()
        brokers.crash(node)

        node = brokers.leader()
        broker = brokers.brokers[node]
        broker.batcher.close = lambda: asyncio.sleep(1_000)  # type: ignore[method-assign]
        assert brokers.stop(node) < 8.0, "its log is closed by then"
        assert "the batcher did not end" in caplog.text


def test_without_a_majority_no_node_is_taken_for_the_controller() -> None:
    with Brokers() as brokers:
        leader, last = brokers.leader(), brokers.follower()
        for node in brokers.nodes:
            if node != last:
                brokers.crash(node)
        broker = brokers.brokers[last]
        brokers.wait(lambda: cluster.controller_id(broker) == last, seconds=2)
        assert broker.controller.machine.leader == leader
        assert not broker.controller.machine.nodes[leader].fenced


def fences(brokers: Brokers, boot_id: int) -> list[float]:
    """When, from now on, the controller's leader counts a process as dead."""
    found: list[float] = []
    machine = brokers.brokers[brokers.leader()].controller.machine

    def look() -> None:
        found.extend(
            brokers.world.now
            for node in machine.nodes.values()
            if (node.boot_id, node.fenced) == (boot_id, True)
        )

    brokers.brokers[brokers.leader()].controller.on_change(look)
    return found


def test_a_process_that_has_just_registered_has_the_full_time_for_its_first_heartbeat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def late(self: Registration) -> None:
        await asyncio.sleep(SILENT_SECONDS - 0.5)
        await beat(self)

    beat = Registration._beat
    with Brokers() as brokers:
        node = brokers.follower()
        brokers.crash(node)
        brokers.wait(lambda: registration(brokers, node).fenced)
        monkeypatch.setattr(Registration, "_beat", late)
        brokers.start(node)
        brokers.world.run(brokers.world.now + 0.01)
        found = fences(brokers, brokers.brokers[node].boot_id)
        brokers.wait(lambda: brokers.registered(node))
        brokers.world.run(brokers.world.now + SILENT_SECONDS)
        assert not registration(brokers, node).fenced
        assert found == []


@pytest.mark.parametrize("method", [HEARTBEAT, LEAVING])
def test_a_late_word_of_the_process_before_says_nothing_of_this_one(method: str) -> None:
    with Brokers() as brokers:
        node = brokers.follower()
        before = registration(brokers, node).boot_id
        brokers.crash(node)
        brokers.start(node)
        brokers.wait(lambda: brokers.registered(node))
        brokers.world.run(brokers.world.now + SILENT_SECONDS + 1)
        found = fences(brokers, brokers.brokers[node].boot_id)
        calls, leader = brokers.brokers[node].calls, brokers.leader()
        for _ in range(10):
            brokers.run(node, calls.call(leader, method, [before], 1.0))
            brokers.world.run(brokers.world.now + 0.1)
        assert found == []
        # Nor does it keep a dead one alive.
        controller_leader = brokers.brokers[leader].controller_leader
        brokers.crash(node)
        crashed = brokers.world.now
        while not registration(brokers, node).fenced:
            brokers.world.nodes[leader].spawn(controller_leader._on_heartbeat(node, [before]))
            brokers.world.run(brokers.world.now + 0.1)
            assert brokers.world.now < crashed + SILENT_SECONDS + 1


def test_cluster_is_named_though_its_leader_was_refused_the_first_time() -> None:
    """Its disk hung, or it was about to hand over and did not; no later term need come to name it."""
    refused: list[int] = []
    propose = ControllerLeader._propose

    async def refuses_the_first(leader: ControllerLeader, term: int, command: Command) -> Result | None:
        if isinstance(command, Bootstrap) and not refused:
            refused.append(term)
            return None
        return await propose(leader, term, command)

    with patch.object(ControllerLeader, "_propose", refuses_the_first), Brokers() as brokers:
        assert refused
        assert brokers.brokers[1].controller.machine.cluster_id == "simulated"


def test_a_rack_is_told_and_told_again_once_the_feature_level_allows_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As if a node of an earlier release had founded the cluster.
    monkeypatch.setattr("strandline.node.controller.controller_leader.FEATURE_LEVEL", 1)
    with Brokers(racks={1: "east", 2: "west", 3: "west"}) as brokers:
        machine = brokers.brokers[brokers.follower()].controller.machine
        assert machine.feature_level == 1
        assert {known.rack for known in machine.nodes.values()} == {""}
        refused = brokers.submit(1, SetDraining(1, True))
        assert isinstance(refused, Refused)
        assert "strandline cluster upgrade" in refused.message
        assert brokers.submit(1, RaiseFeatureLevel(FEATURE_LEVEL)) == FEATURE_LEVEL
        brokers.wait(lambda: [known.rack for known in machine.nodes.values()] == ["east", "west", "west"])
        node = brokers.follower()
        brokers.crash(node)
        brokers.start(node)
        brokers.wait(lambda: brokers.registered(node))
        assert registration(brokers, node).rack == brokers.racks[node]
