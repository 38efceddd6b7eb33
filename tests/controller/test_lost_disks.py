"""A node on an empty folder joins as new by itself where that is wanted, by the rules of `node replace`."""

from __future__ import annotations

import pytest

from strandline.node.controller.joining import LOST_SECONDS
from strandline.node.controller.lost_disks import KNOCKING_SECONDS
from strandline.node.raft.group import RaftGroup
from strandline.statemachine.controller import node_folders
from strandline.statemachine.controller.controller_commands import ReplaceNode, SetDraining
from strandline.statemachine.controller.controller_state import CONTROLLER_GROUP, ControllerState
from strandline.statemachine.kafka_errors import Refused
from tests.controller.brokers import Brokers


def wipe(brokers: Brokers, node: int) -> None:
    """The node comes back with an empty disk at once; its process before is gone."""
    brokers.crash(node)
    brokers.world.nodes[node].replace_disk()
    brokers.start(node)


def folder_in_force(brokers: Brokers, node: int) -> int:
    by = next(each for each in brokers.nodes if each != node)
    return brokers.brokers[by].controller.machine.folders[node].folder


def test_a_lost_disk_is_replaced_after_a_while_and_the_next_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: set[tuple[int, int]] = set()
    replace = node_folders.replace

    def noted(state: ControllerState, index: int, command: ReplaceNode) -> int | Refused:
        asked.add((command.node, command.generation))
        return replace(state, index, command)

    monkeypatch.setattr(node_folders, "replace", noted)
    with Brokers(4, replace_lost_disks=True) as brokers:
        topic = brokers.create_topic(1, "orders", partitions=4)
        for lost in (3, 4):
            wipe(brokers, lost)
            brokers.world.run(brokers.world.now + KNOCKING_SECONDS - 10)
            assert not brokers.registered(lost), "a disk may be mounted late"
            brokers.wait(lambda lost=lost: brokers.registered(lost), 60.0)
            by = brokers.brokers[1].controller
            brokers.wait(lambda by=by: by.machine.replacement is None, 60.0)
            assert folder_in_force(brokers, lost) == brokers.brokers[lost].host.folder.id
        for partition in topic.partitions:
            for node in partition.replicas:
                group = brokers.brokers[node].host.groups[partition.group]
                brokers.wait(lambda group=group: len(group.voters) == 3)
        assert asked == {(3, 2), (4, 2)}, (
            "each names the folder's generation, so that no duplicate comes late"
        )


def test_a_disk_is_replaced_also_while_a_node_leads_that_joined() -> None:
    """The lost one's file does not name that node, and so it has to ask the other founders for it."""
    with Brokers(replace_lost_disks=True) as brokers:
        brokers.join(4)
        brokers.wait(lambda: 4 in brokers.brokers and brokers.registered(4), 60.0)
        brokers.submit(1, SetDraining(2, True))
        brokers.wait(lambda: _controller(brokers).voters == (1, 3, 4), 60.0)
        brokers.wait(lambda: _leads_or_is_asked_to(brokers, 4), 60.0)
        wipe(brokers, 3)
        brokers.world.run(brokers.world.now + LOST_SECONDS + KNOCKING_SECONDS - 10)
        assert brokers.leader() == 4
        assert not brokers.registered(3), "a disk may be mounted late"
        brokers.wait(lambda: brokers.registered(3), 60.0)
        assert brokers.leader() == 4
        assert folder_in_force(brokers, 3) == brokers.brokers[3].host.folder.id


def _controller(brokers: Brokers) -> RaftGroup:
    return brokers.brokers[brokers.leader()].host.groups[CONTROLLER_GROUP]


def _leads_or_is_asked_to(brokers: Brokers, node: int) -> bool:
    leads = brokers.leader() == node
    if not leads:
        _controller(brokers).transfer(node)
    return leads


def test_nothing_is_replaced_where_it_is_not_wanted() -> None:
    with Brokers() as brokers:
        before = folder_in_force(brokers, 3)
        wipe(brokers, 3)
        brokers.world.run(brokers.world.now + 3 * KNOCKING_SECONDS)
        assert folder_in_force(brokers, 3) == before
        assert not brokers.registered(3)


def test_a_disk_that_had_the_only_replica_is_not_given_up(caplog: pytest.LogCaptureFixture) -> None:
    with Brokers(replace_lost_disks=True) as brokers:
        brokers.create_topic(1, "orders", 3, 1)
        before = folder_in_force(brokers, 3)
        wipe(brokers, 3)
        brokers.world.run(brokers.world.now + 4 * KNOCKING_SECONDS)
        assert folder_in_force(brokers, 3) == before
        said = [line for line in caplog.messages if "comes with an empty folder and cannot join" in line]
        assert len(said) == 1
        assert "one of only one or two replicas of partitions of orders" in said[0]


def test_a_folder_that_was_replaced_is_never_let_in_again() -> None:
    with Brokers(replace_lost_disks=True) as brokers:
        brokers.crash(3)
        old = brokers.world.nodes[3].disk
        brokers.world.nodes[3].replace_disk()
        brokers.start(3)
        brokers.wait(lambda: brokers.registered(3), 90.0)
        new = folder_in_force(brokers, 3)
        brokers.crash(3)
        brokers.world.nodes[3].disk = old
        brokers.start(3)
        brokers.world.run(brokers.world.now + 3 * KNOCKING_SECONDS)
        assert folder_in_force(brokers, 3) == new
