"""Data folders that are lost: one of them, which `node replace` makes good, and all, which nothing does.

Whole brokers in the simulated world. What the log alone does is in tests/raft/mesh/test_wiped_folder.py.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast
from unittest.mock import patch

import pytest

from strandline.node.controller import replacements
from strandline.node.controller.client import ControllerClient
from strandline.node.controller.replacements import Replacements
from strandline.node.controller.replica_moves import ReplicaMoves
from strandline.node.objectstore.storage_owner import KEY, ForeignStorage, Owner
from strandline.node.objectstore.store import NotDone
from strandline.node.raft.data_folder import NO_FOLDER, Standing
from strandline.node.raft.folder_file import FolderFile, FolderKey
from strandline.node.raft.group import RaftGroup
from strandline.node.raft.host import RaftHost
from strandline.node.raft.outcome import Applied
from strandline.statemachine.controller.controller_commands import (
    CreateInternalTopic,
    DeleteTopic,
    ReplaceNode,
    ReplicasJoined,
)
from strandline.statemachine.controller.controller_state import CONTROLLER_GROUP, NodeFolder, Replacement
from strandline.statemachine.internal_topics import GROUPS_TOPIC
from strandline.statemachine.kafka_errors import Refused
from tests.controller.brokers import Brokers
from tests.simulation.node import SimNode
from tests.simulation.store import SimStore, SimStoreClient


def wipe(brokers: Brokers, *nodes: int) -> None:
    for node in nodes:
        brokers.crash(node)
        brokers.world.nodes[node].replace_disk()


def let_in(brokers: Brokers, node: int, by: int) -> None:
    """What `strandline node replace` asks for, once the node knocks and counts as dead."""
    brokers.wait(lambda: node in brokers.brokers[by].host.mesh.strangers.known)
    brokers.wait(lambda: brokers.brokers[by].controller.machine.nodes[node].fenced)
    stranger = brokers.brokers[by].host.mesh.strangers.known[node]
    assert stranger.folder == brokers.brokers[node].host.folder.id
    assert not isinstance(brokers.submit(by, ReplaceNode(node, stranger.folder)), Refused)


def replaced(brokers: Brokers, by: int) -> bool:
    return brokers.brokers[by].controller.machine.replacement is None


@pytest.mark.parametrize("lost", [1, 2, 3], ids=["all others dial it", "one dials it", "it dials all"])
def test_node_with_a_wiped_folder_is_not_registered_until_it_is_replaced(lost: int) -> None:
    with Brokers() as brokers:
        topic = brokers.create_topic(1, "orders", partitions=4)
        groups = [partition.group for partition in topic.partitions]
        wipe(brokers, lost)
        brokers.start(lost)
        brokers.world.run(brokers.world.now + 20)
        assert not brokers.registered(lost)
        why = brokers.brokers[lost].keeper.why_waiting()
        assert f"the other nodes know node {lost} by another data folder" in why
        assert "since it is empty" in why
        brokers.brokers[lost].host.folder.newcomer = False
        assert "it is not empty" in brokers.brokers[lost].keeper.why_waiting()
        brokers.brokers[lost].host.folder.newcomer = True
        others = [node for node in brokers.nodes if node != lost]
        for other in others:
            assert brokers.brokers[other].host.mesh.strangers.knocking().keys() == {lost}
            assert brokers.brokers[other].keeper.disowned() is None
        by = brokers.leader()
        let_in(brokers, lost, by)
        brokers.wait(lambda: replaced(brokers, by) and brokers.registered(lost), 60.0)
        for group in (0, *groups):
            brokers.wait(lambda group=group: brokers.brokers[lost].host.groups[group].voters == (1, 2, 3))
        assert brokers.brokers[lost].host.folder.generation == 2
        # It counts: with it and one other everything is served.
        away = next(node for node in others if node != brokers.leader())
        brokers.crash(away)
        stays = next(node for node in others if node != away)
        for group in (0, *groups):
            brokers.wait(
                lambda group=group: any(
                    brokers.brokers[node].host.groups[group].is_leader for node in (stays, lost)
                )
            )
        for node in (stays, lost):
            for group in (0, *groups):
                replica = brokers.brokers[node].host.groups[group]
                if replica.is_leader:
                    assert isinstance(brokers.run(node, replica.barrier()), Applied)
        assert not brokers.fatal


@pytest.mark.parametrize("node", [1, 2, 3])
def test_any_node_that_runs_tells_which_folder_knocks(node: int) -> None:
    """Between two nodes the one with the higher id dials, and both sides have to know what became of it."""
    with Brokers() as brokers:
        wipe(brokers, node)
        brokers.start(node)
        others = [each for each in brokers.nodes if each != node]
        brokers.wait(lambda: node in brokers.brokers)
        folder = brokers.brokers[node].host.folder.id
        for by in others:
            brokers.wait(lambda by=by: node in brokers.brokers[by].host.mesh.strangers.known)
            assert brokers.brokers[by].host.mesh.strangers.known[node].folder == folder
            assert brokers.brokers[by].keeper.disowned() is None
        brokers.wait(lambda: brokers.brokers[node].keeper.disowned() is not None)
        let_in(brokers, node, others[0])
        brokers.wait(lambda: replaced(brokers, others[0]) and brokers.registered(node), 60.0)


@pytest.mark.parametrize("seed", range(5))
def test_replacement_goes_on_after_any_node_is_killed(seed: int) -> None:
    with Brokers(seed=seed) as brokers:
        topic = brokers.create_topic(1, "orders", partitions=6)
        wipe(brokers, 3)
        brokers.start(3)
        by = 1
        let_in(brokers, 3, by)
        rng = brokers.world.rng("kills")
        for _ in range(6):
            brokers.world.run(brokers.world.now + rng.uniform(0.2, 3.0))
            victim = rng.choice(brokers.nodes)
            brokers.crash(victim, rng.choice(["kill", "power"]))
            brokers.world.run(brokers.world.now + rng.uniform(0.1, 2.0))
            brokers.start(victim)
        brokers.wait(lambda: all(brokers.registered(node) for node in brokers.nodes), 60.0)
        brokers.wait(lambda: replaced(brokers, by), 120.0)
        for partition in topic.partitions:
            brokers.wait(
                lambda group=partition.group: all(
                    group in broker.host.groups and broker.host.groups[group].voters == (1, 2, 3)
                    for broker in brokers.brokers.values()
                ),
                60.0,
            )
        assert not brokers.fatal


def test_neither_folder_is_let_in_while_a_group_has_still_to_leave_the_node_out() -> None:
    with Brokers() as brokers:
        brokers.create_topic(1, "orders")
        wipe(brokers, 3)
        brokers.start(3)
        by = brokers.leader()

        async def nothing(*_: object) -> None:
            pass

        with patch.object(Replacements, "_go_on", nothing):
            let_in(brokers, 3, by)
            brokers.world.run(brokers.world.now + 5)
            for node in (1, 2):
                host = brokers.brokers[node].host
                assert host.folder.known[3] == FolderKey(2, NO_FOLDER)
                assert not host.connected(3)
        brokers.wait(lambda: replaced(brokers, by) and brokers.registered(3), 60.0)


def test_no_group_leaves_a_node_out_before_a_majority_of_the_others_has_the_present_members() -> None:
    with Brokers() as brokers:
        brokers.create_topic(1, "orders", partitions=2)
        wipe(brokers, 3)
        brokers.start(3)
        by = brokers.leader()
        with patch.object(RaftGroup, "members_held_without", lambda *_: False):
            let_in(brokers, 3, by)
            brokers.world.run(brokers.world.now + 5)
            present = brokers.brokers[by].controller.machine.replacement
            assert present is not None
            assert len(present.leaving) == 3
        brokers.wait(lambda: replaced(brokers, by) and brokers.registered(3), 60.0)


def test_new_folder_hosts_a_group_without_members_until_its_leader_adds_the_node() -> None:
    """With the members of the topic it would have a vote in a group whose history it lacks."""
    with Brokers() as brokers:
        topic = brokers.create_topic(1, "orders", partitions=4)
        groups = [partition.group for partition in topic.partitions]
        wipe(brokers, 3)
        brokers.start(3)
        by = brokers.leader()
        with patch.object(
            Replacements, "_may_join", lambda _, present: present.joining & frozenset([CONTROLLER_GROUP])
        ):
            let_in(brokers, 3, by)
            brokers.wait(lambda: brokers.registered(3), 60.0)
            hosted = brokers.brokers[3].host.groups
            brokers.wait(lambda: all(group in hosted for group in groups))
            brokers.world.run(brokers.world.now + 5)
            for group in groups:
                assert hosted[group].voters == ()
                assert not hosted[group].election.has_vote()
        brokers.wait(lambda: replaced(brokers, by), 60.0)


def test_second_folder_that_is_lost_during_a_replacement_does_not_hold_it_up_for_ever() -> None:
    """Partitions with both nodes have no majority: their topics are deleted, and all the rest comes back."""
    with Brokers() as brokers:
        orders = brokers.create_topic(1, "orders", partitions=2)
        groups = brokers.submit(1, CreateInternalTopic(b"i" * 16, GROUPS_TOPIC, 2, 3))
        wipe(brokers, 3)
        brokers.start(3)
        by = 1
        with patch.object(
            Replacements, "_may_join", lambda _, present: present.joining & frozenset([CONTROLLER_GROUP])
        ):
            let_in(brokers, 3, by)
            brokers.wait(lambda: brokers.registered(3), 60.0)
            brokers.wait(lambda: brokers.brokers[by].host.groups[0].voters == (1, 2, 3), 60.0)
            machine = brokers.brokers[by].controller.machine
            brokers.wait(lambda: machine.replacement is not None and len(machine.replacement.joining) == 4)
            wipe(brokers, 2)
            brokers.start(2)
        brokers.wait(lambda: 2 in brokers.brokers[by].host.mesh.strangers.known)
        brokers.wait(lambda: brokers.brokers[by].controller.machine.nodes[2].fenced)
        brokers.world.run(brokers.world.now + 60)
        assert not replaced(brokers, by), "it waits"
        folder = brokers.brokers[2].host.folder.id
        refused = brokers.submit(by, ReplaceNode(2, folder))
        assert isinstance(refused, Refused)
        assert "while partitions of __consumer_offsets, orders have no majority" in refused.message
        for topic in (orders, groups):
            assert not isinstance(brokers.submit(by, DeleteTopic(topic.topic_id)), Refused)
        brokers.wait(lambda: replaced(brokers, by), 60.0)
        let_in(brokers, 2, by)
        brokers.wait(lambda: replaced(brokers, by) and brokers.registered(2), 60.0)
        again = brokers.submit(by, CreateInternalTopic(b"j" * 16, GROUPS_TOPIC, 2, 3))
        new = [*brokers.create_topic(by, "orders").partitions, *again.partitions]
        for partition in new:
            brokers.wait(
                lambda group=partition.group: any(
                    group in broker.host.groups and broker.host.groups[group].is_leader
                    for broker in brokers.brokers.values()
                )
            )
        assert not brokers.fatal


def test_change_of_members_is_reported_once_it_is_committed() -> None:
    async def changed(index: int, commit: int, *, leads: bool = True) -> bool:
        future = asyncio.get_running_loop().create_future()
        future.set_result(Applied(None, index, 1))
        group = SimpleNamespace(is_leader=leads, commit=commit, configuration=SimpleNamespace(index=index))
        return await replacements._changed(cast(RaftGroup, group), future)

    assert asyncio.run(changed(5, 5))
    assert not asyncio.run(changed(5, 4)), "the members are as wanted, and may yet be others"
    assert not asyncio.run(changed(5, 5, leads=False))


def test_leader_that_has_not_heard_that_a_replacement_is_over_leaves_the_members_alone() -> None:
    """Left out once more, the node would be missing from the group for good: nothing takes it in again."""
    with Brokers() as brokers:
        topic = brokers.create_topic(1, "orders")
        group = topic.partitions[0].group
        wipe(brokers, 3)
        brokers.start(3)
        by = brokers.leader()
        let_in(brokers, 3, by)
        brokers.wait(lambda: replaced(brokers, by) and brokers.registered(3), 60.0)
        leader = next(node for node in brokers.nodes if brokers.brokers[node].host.groups[group].is_leader)
        broker = brokers.brokers[leader]
        stale = Replacement(
            3, broker.controller.machine.folders[3].folder, 0, frozenset([group]), frozenset()
        )
        broker.replacements._phase = (stale.node, stale.folder, True)
        brokers.run(leader, broker.replacements._go_on(stale))
        brokers.world.run(brokers.world.now + 5)
        assert all(each.host.groups[group].voters == (1, 2, 3) for each in brokers.brokers.values())


@pytest.mark.parametrize(
    ("looks", "loses_it"),
    [(True, False), (True, True), (False, False)],
    ids=["it leads on", "it led again", "it cannot look"],
)
def test_leader_changes_members_only_by_a_look_within_its_term(looks: bool, loses_it: bool) -> None:
    """Between two terms another leader may have left the node out, and taken it in again."""
    removed: list[int] = []

    async def remove_member(node: int) -> Applied:
        removed.append(node)
        return Applied(None, 1, 1)

    async def go_on() -> None:
        group = SimpleNamespace(
            is_leader=True,
            term=7,
            commit=1,
            configuration=SimpleNamespace(index=1),
            members_held_without=lambda _: True,
            remove_member=remove_member,
        )
        present = Replacement(3, 0xD, 0, frozenset([5]), frozenset())

        async def catch_up(_: float) -> bool:
            group.term += loses_it
            return looks

        controller = SimpleNamespace(machine=SimpleNamespace(replacement=present), catch_up=catch_up)
        loop = asyncio.get_running_loop()
        part = Replacements(
            cast(RaftHost, SimpleNamespace(groups={5: group})), cast(ControllerClient, controller), loop=loop
        )
        part._turn_to((3, 0xD, True))
        await part._go_on(present)
        await asyncio.sleep(0)

    asyncio.run(go_on())
    assert removed == ([3] if looks and not loses_it else [])


def test_node_that_leads_the_group_it_was_added_to_reports_itself() -> None:
    """The leader that added it lost its leadership before the report, and the new node won it."""
    reported: list[ReplicasJoined] = []

    async def go_on() -> None:
        async def submit(command: ReplicasJoined, _: float) -> int:
            reported.append(command)
            return 0

        async def catch_up(_: float) -> bool:
            return True

        def add_member(node: int) -> asyncio.Future[Applied]:
            is_voter = asyncio.get_running_loop().create_future()
            is_voter.set_result(Applied(None, 7, 2))
            return is_voter

        group = SimpleNamespace(
            is_leader=True,
            term=2,
            commit=8,
            configuration=SimpleNamespace(index=7),
            add_member=add_member,
        )
        present = Replacement(3, 0xD, 0, frozenset(), frozenset([CONTROLLER_GROUP]))
        machine = SimpleNamespace(replacement=present, nodes={})
        controller = SimpleNamespace(machine=machine, catch_up=catch_up, submit=submit)
        host = SimpleNamespace(
            node_id=3,
            groups={CONTROLLER_GROUP: group},
            connected=lambda peer: peer != 3,
            folder_of=lambda node: 0xD,
        )
        loop = asyncio.get_running_loop()
        part = Replacements(cast(RaftHost, host), cast(ControllerClient, controller), loop=loop)
        part._turn_to((3, 0xD, False))
        await part._go_on(present)
        await asyncio.sleep(0)
        await part._go_on(present)

    asyncio.run(go_on())
    assert reported == [ReplicasJoined(3, 0xD, [CONTROLLER_GROUP])]


@pytest.mark.parametrize(("folder", "joins"), [(0xD, True), (0xC, False), (0, False)])
def test_a_node_is_added_only_while_it_is_connected_with_the_folder_in_force(
    folder: int, joins: bool
) -> None:
    """The entry that adds it names the folder of the connection."""
    host = SimpleNamespace(node_id=1, connected=lambda peer: True, folder_of=lambda node: folder)
    present = Replacement(3, 0xD, 0, frozenset(), frozenset([CONTROLLER_GROUP]))
    machine = SimpleNamespace(replacement=present, nodes={}, folders={3: NodeFolder(2, 0xD)})
    controller = SimpleNamespace(machine=machine)
    with asyncio.Runner() as runner:
        parts = cast(RaftHost, host), cast(ControllerClient, controller)
        part = Replacements(*parts, loop=runner.get_loop())
        assert bool(part._may_join(present)) is joins
        assert ReplicaMoves(*parts, loop=runner.get_loop())._is_there(3) is joins


def test_removal_that_ends_when_all_groups_have_left_is_no_joining() -> None:
    """Reported as one, the group would go on without the node for good."""

    async def turn() -> None:
        loop = asyncio.get_running_loop()
        part = Replacements(cast(RaftHost, None), cast(ControllerClient, None), loop=loop)
        part._turn_to((3, 0xD, True))
        removal = loop.create_task(asyncio.sleep(10, True))
        part._changes[5] = removal
        part._turn_to((3, 0xD, True))
        assert part._changes == {5: removal}
        part._turn_to((3, 0xD, False))
        assert part._changes == {}
        await asyncio.wait([removal])
        assert removal.cancelled()

    asyncio.run(turn())


def test_folder_that_was_replaced_is_refused_when_it_comes_back() -> None:
    with Brokers() as brokers:
        brokers.create_topic(1, "orders")
        brokers.crash(3)
        disk = brokers.world.nodes[3].disk
        brokers.world.nodes[3].replace_disk()
        brokers.start(3)
        by = brokers.leader()
        let_in(brokers, 3, by)
        brokers.wait(lambda: replaced(brokers, by) and brokers.registered(3), 60.0)
        brokers.crash(3)
        disk.turn_off()
        brokers.world.nodes[3].disk = disk
        brokers.start(3)
        brokers.world.run(brokers.world.now + 20)
        assert not brokers.registered(3)
        stranger = brokers.brokers[by].host.mesh.strangers.known[3]
        assert stranger.folder == brokers.brokers[3].host.folder.id
        assert stranger.replaced, "`node replace` does not let it in either"


def test_process_stops_when_it_learns_that_another_folder_took_the_place_of_its_own() -> None:
    """It was paused, or cut off from all but a node that had not heard of it."""
    with Brokers() as brokers:
        broker = brokers.brokers[3]
        state = broker.controller.machine._state
        state.folders[3] = NodeFolder(state.folders[3].generation + 1, 0xD)
        brokers.world.nodes[3].call(broker.keeper._follow)
        brokers.wait(lambda: 3 in brokers.fatal)
        assert "data folder 000000000000000d has taken the place of this one" in str(brokers.fatal[3])
        brokers.crash(3)


def test_cluster_whose_folders_are_all_lost_serves_nothing_and_deletes_nothing() -> None:
    with Brokers() as brokers:
        brokers.create_topic(1, "orders")
        brokers.world.run(brokers.world.now + 5)
        owner = brokers.store.objects[KEY]
        wipe(brokers, 1, 2, 3)
        for node in brokers.nodes:
            brokers.start(node)
        brokers.world.run(brokers.world.now + 60)
        for node, broker in brokers.brokers.items():
            assert not broker.registered
            assert not broker.host.groups[0].is_leader
            said = broker.keeper.waits_for()
            assert said is not None
            assert "the storage already belongs to cluster 'simulated', incarnation " in said
            assert f"`strandline node replace {node}`" in said
            assert "If all nodes lost theirs, stop them: `strandline cluster restore`" in said
            assert "nothing there is changed or deleted" in said
        assert brokers.store.objects[KEY] == owner


def start_by_hand(brokers: Brokers, node: int) -> None:
    """Start a node, and raise what its start raises; a node that raises has no vote."""
    sim = brokers.world.nodes[node]
    sim.start(lambda sim: None)
    broker = brokers.made(sim)
    broker.open()
    try:
        brokers.run(node, broker.start())
    except ForeignStorage:
        assert not broker.host.folder.votes
        raise


def test_new_node_does_not_start_on_the_storage_of_another_cluster() -> None:
    with Brokers(start=False) as brokers:
        brokers.store.objects[KEY] = Owner("inland", "first").document().encode()
        with pytest.raises(ForeignStorage, match=r"to cluster .inland., .* this node to cluster .simulated"):
            start_by_hand(brokers, 1)


def test_what_is_left_of_a_cluster_is_kept_though_nothing_says_whose_it_is() -> None:
    """Folders and owner are lost: new folders would found a cluster that takes the rest for its garbage."""
    with Brokers() as brokers:
        brokers.world.run(brokers.world.now + 2)
        wipe(brokers, 1, 2, 3)
        left = "l0/0001/00000000000000000001/1-" + 32 * "0"
        brokers.store.objects = {left: b"of level zero", "l1/x": b"of level one"}
        for node in brokers.nodes:
            with pytest.raises(ForeignStorage, match=f"such as '{left}'"):
                start_by_hand(brokers, node)
        assert brokers.store.objects == {left: b"of level zero", "l1/x": b"of level one"}


@pytest.mark.parametrize("lost", [1, 3])
def test_a_replaced_node_makes_no_other_storage_the_clusters(lost: int) -> None:
    """As where the storage's folder is not mounted yet, and an empty one is in its place. What is put there
    is missed by the others, and by all once the folder is mounted."""
    with Brokers() as brokers:
        brokers.create_topic(1, "orders", partitions=4)
        wipe(brokers, lost)
        unmounted, mounted = SimStore(brokers.world), brokers.store.client

        def client(node: SimNode) -> SimStoreClient:
            return unmounted.client(node) if node.id == lost else mounted(node)

        by = next(node for node in brokers.nodes if node != lost)
        with patch.object(brokers.store, "client", client):
            brokers.start(lost)
            let_in(brokers, lost, by)
            brokers.wait(lambda: lost in brokers.fatal)
        assert "nothing there says that it belongs to cluster 'simulated'" in str(brokers.fatal.pop(lost))
        assert unmounted.objects == {}
        brokers.crash(lost)
        brokers.start(lost)
        brokers.wait(lambda: replaced(brokers, by) and brokers.registered(lost), 60.0)
        assert not brokers.fatal


def test_a_founder_that_comes_late_makes_no_other_storage_the_clusters() -> None:
    """As one whose storage.url has a slip of the pen."""
    with Brokers(start=False) as brokers:
        for node in (1, 2):
            brokers.start(node)
        brokers.wait(lambda: brokers.registered(1) and brokers.registered(2))
        other = SimStore(brokers.world)
        with patch.object(brokers.store, "client", other.client):
            brokers.start(3)
            brokers.wait(lambda: 3 in brokers.fatal)
        assert "whose other nodes have storage that does" in str(brokers.fatal.pop(3))
        assert other.objects == {}
        brokers.crash(3)
        brokers.start(3)
        brokers.wait(lambda: brokers.registered(3), 60.0)


@pytest.mark.parametrize("elsewhere", [1, 2, 3])
def test_founders_with_two_places_make_one_of_them_the_clusters(elsewhere: int) -> None:
    """As three machines of which each has a folder of its own under the one name. The node that leads the
    controller makes its place the cluster's, and all that have another one end."""
    with Brokers(start=False) as brokers:
        other, client = SimStore(brokers.world), brokers.store.client

        def place(node: SimNode) -> SimStoreClient:
            return other.client(node) if node.id == elsewhere else client(node)

        with patch.object(brokers.store, "client", place):
            for node in brokers.nodes:
                brokers.start(node)
            alone, rest = {elsewhere}, {*brokers.nodes} - {elsewhere}
            brokers.wait(lambda: {*brokers.fatal} in (alone, rest))
        for error in brokers.fatal.values():
            assert "whose other nodes have storage that does" in str(error)
        claimed = [one for one in (brokers.store, other) if "cluster" in one.objects]
        assert claimed == [other if elsewhere not in brokers.fatal else brokers.store]
        brokers.fatal.clear()


def test_node_waits_for_a_bucket_that_is_gone_and_says_so() -> None:
    """A bucket that is missing is not another cluster's, and the nodes need not be started again for it."""
    missing = NotDone("list", "", "the bucket is missing", retriable=False)
    with Brokers() as brokers:
        brokers.world.run(brokers.world.now + 2)
        gone, brokers.store.objects = brokers.store.objects, {}
        with patch.object(SimStoreClient, "list", side_effect=missing):
            brokers.world.run(brokers.world.now + 90)
        assert not brokers.fatal
        for broker in brokers.brokers.values():
            assert "the bucket is missing" in str(broker.owned.trouble)
        brokers.store.objects = gone
        brokers.wait(lambda: all(b.owned.trouble is None for b in brokers.brokers.values()), 90.0)


def test_new_node_that_comes_late_joins_and_gets_a_vote() -> None:
    with Brokers(start=False) as brokers:
        brokers.start(1)
        brokers.start(2)
        brokers.wait(lambda: brokers.registered(1) and brokers.registered(2))
        brokers.start(3)
        brokers.wait(lambda: brokers.registered(3))
        assert brokers.brokers[3].host.folder.votes
        # Kept for the next start, when the storage may be seen before the controller's log.
        assert brokers.brokers[3].host.folder.incarnation == brokers.brokers[1].controller.machine.incarnation
        assert not brokers.brokers[3].host.newcomer
        brokers.crash(brokers.leader())
        brokers.wait(lambda: any(b.host.groups[0].is_leader for b in brokers.brokers.values()))


def test_founders_that_crash_before_they_are_registered_found_the_cluster_all_the_same() -> None:
    for seconds in (0.01, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5):
        with Brokers(start=False) as brokers:
            for node in brokers.nodes:
                brokers.start(node)
            brokers.world.run(seconds)
            for node in brokers.nodes:
                brokers.crash(node, "power")
            for node in brokers.nodes:
                brokers.start(node)
            brokers.wait(lambda: all(brokers.registered(node) for node in brokers.nodes))


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (
            b'{"format": 2, "cluster": "inland", "incarnation": "i"}',
            "belongs to cluster 'inland', incarnation i",
        ),
        (
            b'{"format": 2, "cluster": "simulated", "incarnation": "other"}',
            "this node's log is of incarnation",
        ),
        (b'{"format": 1, "cluster": "simulated"}', "has format 1, this release reads 2"),
        (b"[]", "is damaged, or not one of Strandline's"),
        (b"", 'write this into the object \'cluster\': {"format": 2, "cluster": "simulated"'),
        (None, "nothing there says that it belongs to cluster 'simulated'"),
        (None, 'write this into the object \'cluster\': {"format": 2, "cluster": "simulated"'),
    ],
)
def test_node_stops_when_its_storage_turns_out_to_be_of_another(said: bytes | None, text: str) -> None:
    with Brokers() as brokers:
        brokers.world.run(brokers.world.now + 2)
        if said is None:
            del brokers.store.objects[KEY]
        else:
            brokers.store.objects[KEY] = said
        brokers.wait(lambda: len(brokers.fatal) == 3, 90.0)
        for error in brokers.fatal.values():
            assert isinstance(error, ForeignStorage)
            assert text in str(error)


def test_node_stops_when_it_cannot_look_at_its_storage_any_more() -> None:
    with Brokers() as brokers:
        with patch.object(SimStoreClient, "get", side_effect=RecursionError("so deep a document")):
            brokers.wait(lambda: len(brokers.fatal) == 3, 90.0)
        assert all("so deep a document" in str(error) for error in brokers.fatal.values())


def test_what_keeps_the_owner_of_the_storage_from_being_seen_is_told_with_every_refusal() -> None:
    with Brokers() as brokers:
        brokers.crash(3)
        brokers.store.cut(3)
        brokers.start(3)
        brokers.wait(lambda: 3 in brokers.brokers)
        broker = brokers.brokers[3]
        brokers.wait(lambda: broker.owned.trouble is not None)
        # It saw whose the storage is in an earlier life, and serves what needs no storage.
        brokers.wait(lambda: brokers.registered(3))
        assert broker.owned.owner is None
        with pytest.raises(NotDone, match=r"has not seen yet that the storage belongs to its cluster: .+"):
            brokers.run(3, broker.owned.get("l0/x"))
        assert broker.keeper.unseen() == broker.owned.trouble
        brokers.store.heal(3)
        brokers.wait(lambda: broker.owned.owner is not None, 60.0)
        assert broker.owned.trouble is None


def test_full_disk_is_asked_to_note_the_folders_once_a_second_and_told_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Brokers() as brokers:
        broker, tries = brokers.brokers[1], []
        broker.controller.machine._state.folders[3] = NodeFolder(7, 0xD)

        def full(*_: object) -> None:
            tries.append(brokers.world.now)
            raise OSError(28, "No space left on device")

        with patch.object(FolderFile, "write", full):
            for _ in range(20):
                brokers.world.nodes[1].call(broker.keeper._follow)
            brokers.world.run(brokers.world.now + 10)
        assert 8 < len(tries) <= 13
        disk = brokers.world.nodes[1].disk
        disk.stall()
        for generation in range(8, 60):
            broker.controller.machine._state.folders[3] = NodeFolder(generation, 0xD)
            brokers.world.nodes[1].call(broker.keeper._follow)
        brokers.world.run(brokers.world.now + 0.1)
        assert len(broker.host.folder._waiting) <= 1, "a disk that hangs costs no memory"
        disk.unstall()
        brokers.wait(lambda: broker.host.folder.has_stored(3, Standing(FolderKey(59, 0xD))))
        told = [line for line in caplog.messages if "cannot store the controller's list" in line]
        assert told == [
            "cannot store the controller's list of data folders: [Errno 28] No space left on device: repair"
            " the disk"
        ]


def test_founders_whose_disks_are_full_say_so_and_found_the_cluster_once_there_is_space() -> None:
    with Brokers(start=False) as brokers:
        brokers.store.stall()
        for node in brokers.nodes:
            brokers.start(node)
        brokers.wait(lambda: len(brokers.brokers) == 3)
        brokers.wait(lambda: all(broker.owned.trouble is not None for broker in brokers.brokers.values()))
        disks = [brokers.world.nodes[node].disk for node in brokers.nodes]
        for disk in disks:
            disk.fill(0)
        brokers.store.unstall()
        brokers.world.run(brokers.world.now + 40)
        for broker in brokers.brokers.values():
            said = str(broker.keeper.waits_for())
            assert "its disk does not take the node's vote: " in said
            assert "No space left" in said
            assert "free space, or mend the disk" in said
            assert broker.owned.trouble is None, "the storage answers"
            assert not broker.host.groups[0].is_leader
        for disk in disks:
            disk.empty()
        brokers.wait(lambda: all(brokers.registered(node) for node in brokers.nodes), 30.0)
