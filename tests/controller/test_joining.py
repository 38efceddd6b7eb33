"""A machine joins a cluster that runs: whole brokers on simulated machines."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from strandline.node.config.node_config import ClusterSection, SeedAddress
from strandline.node.controller.controller_voters import AWAY_SECONDS, ControllerVoters
from strandline.node.controller.joining import LOST_AGAIN_SECONDS, LOST_SECONDS, MEMBERS_WORD, REFUSED_WORD
from strandline.node.controller.voter_choice import Act, Change
from strandline.node.objectstore.storage_owner import KEY
from strandline.node.raft.data_folder import Standing
from strandline.node.raft.folder_file import FolderKey
from strandline.node.raft.group import RaftGroup
from strandline.node.raft.mesh.mesh import Mesh
from strandline.statemachine.controller.controller_commands import (
    AddNode,
    MoveReplicas,
    RemoveNode,
    ReplaceNode,
    SetDraining,
    encode,
)
from strandline.statemachine.controller.controller_state import REMOVED, Replacement
from strandline.statemachine.controller.feature_levels import GROWTH
from tests.controller.brokers import MESH_PORT, Brokers
from tests.simulation.node import SimNode
from tests.simulation.store import SimStore

JOINS = 4


def members(brokers: Brokers, node: int) -> set[int]:
    return set(brokers.brokers[node].controller.machine.nodes)


def joined(brokers: Brokers, node: int = JOINS) -> bool:
    """Whether all know the node, and it serves."""
    return brokers.registered(node) and all(
        node in members(brokers, each) and not brokers.brokers[each].controller.machine.nodes[node].fenced
        for each in brokers.brokers
    )


def trouble(brokers: Brokers, node: int = JOINS) -> str:
    """What keeps the node from joining, once it says so."""
    brokers.wait(lambda: node in brokers.brokers and brokers.brokers[node].joining.trouble is not None, 40.0)
    said = brokers.brokers[node].joining.trouble or ""
    assert said in brokers.brokers[node].keeper.why_waiting()
    return said


def test_a_machine_joins_by_seeds_and_takes_replicas() -> None:
    with Brokers() as brokers:
        topic = brokers.create_topic(1, "t")
        brokers.join(JOINS)
        brokers.wait(lambda: joined(brokers))
        group = brokers.brokers[brokers.leader()].host.groups[0]
        brokers.wait(lambda: JOINS in group.configuration.learners)
        assert group.voters == (1, 2, 3), "three of four vote"
        brokers.submit(1, MoveReplicas(topic.topic_id, 0, (JOINS, 2, 3)))
        brokers.wait(lambda: not brokers.brokers[1].controller.machine.moves, 60.0)
        replica = topic.partitions[0].group
        brokers.wait(lambda: brokers.brokers[JOINS].host.groups[replica].is_leader, 60.0)
        assert all(brokers.brokers[each].members.ids == [1, 2, 3, 4] for each in brokers.brokers)
        assert brokers.brokers[1].clock.trusted
        # One that was the cluster's only seed is not needed any more, nor is any of them at a start.
        brokers.seeds = ()
        brokers.crash(JOINS)
        brokers.start(JOINS)
        brokers.wait(lambda: brokers.registered(JOINS))


@pytest.mark.parametrize("seed", range(3))
def test_a_join_goes_on_whatever_is_killed(seed: int) -> None:
    with Brokers(seed=seed) as brokers:
        rng = brokers.world.rng("kills")
        brokers.join(JOINS)
        for _ in range(5):
            brokers.world.run(brokers.world.now + rng.uniform(0.0, 1.0))
            victim = rng.choice([1, 2, 3, JOINS])
            brokers.crash(victim, rng.choice(["kill", "power"]))
            brokers.world.run(brokers.world.now + rng.uniform(0.1, 2.0))
            brokers.start(victim)
        brokers.wait(lambda: all(brokers.registered(node) for node in (1, 2, 3)), 60.0)
        brokers.wait(lambda: joined(brokers), 60.0)
        brokers.wait(lambda: JOINS in brokers.brokers[brokers.leader()].host.groups[0].configuration.members)
        assert not brokers.fatal


def test_founders_with_their_old_files_find_a_node_that_joined() -> None:
    """Also one with a lower id than they have, which they have to dial."""
    with Brokers(nodes=3) as brokers:
        brokers.join(JOINS)
        brokers.wait(lambda: joined(brokers))
        brokers.wait(lambda: JOINS in brokers.brokers[3].host.groups[0].configuration.members)
        for node in (1, 2, 3, JOINS):
            brokers.crash(node)
        for node in (1, 2, 3, JOINS):
            brokers.start(node)
        brokers.wait(lambda: joined(brokers), 60.0)
        brokers.crash(1)
        brokers.crash(2)
        # 3 voters: without two of them there is no leader, and the joined one cannot help.
        brokers.world.run(brokers.world.now + 10)
        assert not brokers.brokers[3].host.groups[0].is_leader
        assert not brokers.brokers[JOINS].host.groups[0].is_leader


@pytest.mark.parametrize("away", [3, 5])
def test_a_node_that_was_cut_off_while_another_joined_finds_it_when_it_leads(away: int) -> None:
    """It would learn of the newcomer from the log alone, which only the newcomer sends: each needs to know
    the other, whichever of both has to dial."""
    with Brokers(leader_rebalance=False) as brokers:
        if away == 5:
            brokers.join(away)
            brokers.wait(lambda: joined(brokers, away))
        brokers.world.network.isolate(away)
        brokers.join(JOINS)
        others = sorted({1, 2, 3, JOINS} - {away})
        brokers.wait(lambda: all(JOINS in members(brokers, each) for each in others))
        if away == 5:
            brokers.stop(3)
            others.remove(3)
        votes = brokers.brokers[others[0]].host.groups[0]
        brokers.wait(lambda: JOINS in votes.voters, AWAY_SECONDS + 60.0)
        leader = next(each for each in others if brokers.brokers[each].host.groups[0].is_leader)
        assert leader == JOINS or brokers.brokers[leader].host.groups[0].transfer(JOINS)
        brokers.wait(lambda: brokers.brokers[JOINS].host.groups[0].is_leader)
        brokers.world.network.heal_all()
        brokers.wait(lambda: JOINS in members(brokers, away), LOST_SECONDS + 5.0)
        brokers.wait(lambda: brokers.brokers[away].host.connected(JOINS))


def test_a_lost_node_that_starts_cut_off_from_the_storage_asks_as_well() -> None:
    """It may register, as it has served before; so it may also find the member that leads."""
    with Brokers(leader_rebalance=False) as brokers:
        brokers.crash(3)
        brokers.join(JOINS)
        brokers.wait(lambda: joined(brokers))
        votes = brokers.brokers[1].host.groups[0]
        brokers.wait(lambda: JOINS in votes.voters, AWAY_SECONDS + 60.0)
        leader = brokers.leader()
        assert leader == JOINS or brokers.brokers[leader].host.groups[0].transfer(JOINS)
        brokers.wait(lambda: brokers.brokers[JOINS].host.groups[0].is_leader)
        brokers.store.cut(3)
        brokers.start(3)
        brokers.wait(lambda: 3 in brokers.brokers and brokers.registered(3), LOST_SECONDS + 30.0)
        assert brokers.brokers[JOINS].host.groups[0].is_leader


@pytest.mark.parametrize("away", [3, 5])
def test_a_node_that_was_cut_off_finds_a_removed_id_that_came_back_and_leads(away: int) -> None:
    """Its own log says that there is no such node; the members say that there is one."""
    with Brokers(leader_rebalance=False) as brokers:
        for node in {JOINS, away} - set(brokers.nodes):
            brokers.join(node)
            brokers.wait(lambda node=node: joined(brokers, node), 60.0)
        brokers.stop(JOINS)
        brokers.wait(lambda: brokers.brokers[1].controller.machine.nodes[JOINS].fenced)
        assert brokers.submit(1, RemoveNode(JOINS)) == 1
        brokers.wait(lambda: all(is_removed(brokers, each) for each in brokers.brokers), 60.0)
        brokers.world.network.isolate(away)
        brokers.world.nodes[JOINS].replace_disk()
        brokers.start(JOINS)
        strangers = brokers.brokers[1].host.mesh.strangers
        brokers.wait(lambda: JOINS in strangers.knocking() and not strangers.knocking()[JOINS].replaced, 60.0)
        assert isinstance(brokers.submit(1, ReplaceNode(JOINS, strangers.knocking()[JOINS].folder)), int)
        brokers.wait(lambda: brokers.registered(JOINS), 60.0)
        if away == 5:
            brokers.stop(3)
        votes = brokers.brokers[1].host.groups[0]
        brokers.wait(lambda: JOINS in votes.voters, AWAY_SECONDS + 60.0)
        leader = brokers.brokers[brokers.leader()].host.groups[0]
        assert leader.is_leader
        assert brokers.leader() == JOINS or leader.transfer(JOINS)
        brokers.wait(lambda: brokers.brokers[JOINS].host.groups[0].is_leader)
        brokers.world.network.heal_all()
        brokers.wait(lambda: JOINS in members(brokers, away), LOST_SECONDS + 5.0)
        brokers.wait(lambda: brokers.brokers[away].host.connected(JOINS))
        brokers.world.run(brokers.world.now + 2)
        assert brokers.brokers[away].host.connected(JOINS)


def test_an_answer_that_the_own_log_has_overtaken_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may name an address of before, and the log says the newer one only once."""
    with Brokers() as brokers:
        brokers.join(JOINS)
        brokers.wait(lambda: joined(brokers))
        broker = brokers.brokers[3]
        incarnation = broker.joining._incarnation()

        async def late(*_: Any) -> list[Any]:
            await asyncio.sleep(5.0 if overtaken else 0.0)
            return [MEMBERS_WORD, [[JOINS, "before", 1]]]

        monkeypatch.setattr(broker.host.mesh, "ask", late)
        overtaken = True
        asked = brokers.world.nodes[3].spawn(broker.joining._ask_members(incarnation, []))
        brokers.create_topic(1, "t")
        assert not asked.done()
        brokers.wait(asked.done)
        assert broker.host.known_addresses[JOINS] == (brokers.world.nodes[JOINS].host, MESH_PORT)
        overtaken = False
        brokers.run(3, broker.joining._ask_members(incarnation, []))
        assert broker.host.known_addresses[JOINS] == ("before", 1), "a member's word, before one's own log"


def test_a_node_asks_only_while_it_hears_no_leader_and_then_now_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each answer is an entry of the controller's log."""
    asked: list[int] = []
    ask = Mesh.ask

    async def noted(mesh: Mesh, host: str, port: int, question: Any, seconds: float) -> Any:
        asked.append(port)
        return await ask(mesh, host, port, question, seconds)

    monkeypatch.setattr(Mesh, "ask", noted)
    with Brokers() as brokers:
        brokers.world.run(brokers.world.now + 2 * LOST_SECONDS)
        assert not asked
        brokers.crash(1)
        brokers.crash(2)
        brokers.world.run(brokers.world.now + LOST_SECONDS - 2.0)
        assert not asked
        rounds = 4
        brokers.world.run(brokers.world.now + 2.0 + rounds * LOST_AGAIN_SECONDS)
        assert 2 <= len(asked) <= 2 * rounds, "the two others, and not itself"


def is_removed(brokers: Brokers, node: int) -> bool:
    """Whether this node knows that JOINS was removed, and that this is over."""
    machine = brokers.brokers[node].controller.machine
    folder = machine.folders.get(JOINS)
    return folder is not None and folder.folder == REMOVED and machine.replacement is None


def test_founders_change_to_seeds_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each learns the others' addresses while there is a leader, so that all may start together later."""
    with Brokers() as brokers:
        seeds = tuple(SeedAddress(brokers.world.nodes[node].host, MESH_PORT) for node in (1, 2, 3))
        section = ClusterSection("simulated", "secret", seeds=seeds)
        monkeypatch.setattr(brokers, "_cluster", lambda node, founders: section)
        for node in (1, 2, 3):
            brokers.crash(node)
            brokers.start(node)
            brokers.wait(lambda node=node: brokers.registered(node), 60.0)
        for node in (1, 2, 3):
            brokers.crash(node)
        for node in (1, 2, 3):
            brokers.start(node)
        brokers.wait(lambda: all(map(brokers.registered, (1, 2, 3))), 60.0)


def test_a_node_whose_seeds_are_gone_and_that_has_moved_asks_the_members_that_it_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has the lowest id, so that it dials none, and the others dial it where it was."""
    with Brokers() as brokers:
        seeds = [SeedAddress(brokers.world.nodes[node].host, MESH_PORT) for node in (2, 3)]
        founders = brokers._cluster
        monkeypatch.setattr(
            brokers,
            "_cluster",
            lambda node, peers: (
                ClusterSection("simulated", "secret", seeds=tuple(seeds))
                if node == 1
                else founders(node, peers)
            ),
        )
        brokers.crash(1)
        brokers.start(1)
        brokers.wait(lambda: brokers.registered(1), 60.0)
        brokers.crash(1)
        seeds[:] = [SeedAddress(brokers.world.nodes[1].host, MESH_PORT + 9)]
        brokers.mesh_ports[1] = MESH_PORT + 1
        brokers.start(1)
        brokers.wait(lambda: brokers.registered(1), LOST_SECONDS + 30.0)
        brokers.world.run(brokers.world.now + 2)
        assert brokers.brokers[1].joining.trouble is None
        assert brokers.brokers[2].members.addresses()[1][1] == MESH_PORT + 1


def test_a_node_with_another_address_is_found_by_a_leader_that_has_to_dial_it() -> None:
    """It hears the other members, but not the one that has to take its registration."""
    with Brokers(leader_rebalance=False) as brokers:
        for node in (JOINS, 5):
            brokers.join(node)
            brokers.wait(lambda node=node: joined(brokers, node), 60.0)
        brokers.wait(lambda: whole(brokers), 60.0)
        assert brokers.brokers[brokers.leader()].host.groups[0].transfer(5)
        brokers.wait(lambda: brokers.brokers[5].host.groups[0].is_leader)
        brokers.crash(JOINS)
        brokers.mesh_ports[JOINS] = MESH_PORT + 1
        brokers.start(JOINS)
        brokers.wait(lambda: joined(brokers), 60.0)
        assert brokers.brokers[5].host.groups[0].is_leader
        assert brokers.brokers[1].members.addresses()[JOINS][1] == MESH_PORT + 1
        assert not brokers.brokers[JOINS].joining.trouble
        index = brokers.brokers[5].host.groups[0].commit
        brokers.world.run(brokers.world.now + 4)
        assert brokers.brokers[5].controller.machine.version <= index, "it asks no more"


def test_an_id_in_use_is_refused_and_says_what_to_do() -> None:
    with Brokers() as brokers:
        brokers.join(JOINS)
        brokers.wait(lambda: joined(brokers))
        brokers.crash(JOINS)
        brokers.world.nodes[JOINS].replace_disk()
        brokers.start(JOINS)
        said = trouble(brokers)
        assert "node 4 of this cluster had another: bring that one back" in said
        assert "`strandline node replace 4`" in said
        assert brokers.brokers[JOINS].keeper.disowned() == said, "a word for programs as well: folder_refused"
        assert "give the new machine a node.id that no node has, or had" in said
        before = brokers.brokers[1].controller.machine.folders[JOINS]
        strangers = brokers.brokers[1].host.mesh.strangers
        assert strangers.knocking()[JOINS].folder != before.folder, "node replace finds it"
        brokers.wait(lambda: brokers.brokers[1].controller.machine.nodes[JOINS].fenced)
        assert isinstance(brokers.submit(1, ReplaceNode(JOINS, strangers.knocking()[JOINS].folder)), int)
        brokers.wait(lambda: joined(brokers), 60.0)


@pytest.mark.parametrize("seeds", [(1,), (3,)])
def test_a_lost_disk_is_replaced_also_where_the_seeds_are_few(seeds: tuple[int, ...]) -> None:
    """The leader lets it in by itself, wherever it is: so the new folder has to knock at every member."""
    with Brokers(replace_lost_disks=True) as brokers:
        brokers.join(JOINS)
        brokers.wait(lambda: joined(brokers))
        brokers.wait(lambda: JOINS in brokers.brokers[brokers.leader()].host.groups[0].configuration.members)
        brokers.crash(JOINS)
        brokers.world.nodes[JOINS].replace_disk()
        brokers.seeds = seeds
        brokers.start(JOINS)
        brokers.wait(lambda: JOINS in brokers.brokers and joined(brokers), 120.0)
        assert brokers.brokers[1].controller.machine.folders[JOINS].generation == 2


def test_an_id_that_founds_the_cluster_and_is_still_to_come_is_not_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may have voted before it registered."""
    with Brokers(start=False) as brokers:
        for node in (1, 2):
            brokers.start(node)
        brokers.wait(lambda: brokers.registered(1) and brokers.registered(2), 40.0)
        founders = brokers._cluster
        seeds = tuple(SeedAddress(brokers.world.nodes[node].host, MESH_PORT) for node in (1, 2))
        monkeypatch.setattr(
            brokers,
            "_cluster",
            lambda node, peers: (
                ClusterSection("simulated", "secret", seeds=seeds) if node == 3 else founders(node, peers)
            ),
        )
        brokers.start(3)
        assert "node 3 is one that founds the cluster and is still to come, and may have voted" in trouble(
            brokers, 3
        )
        assert members(brokers, 1) == {1, 2}


def test_a_folder_of_another_incarnation_that_asks_without_its_storage_is_told_of_the_folder() -> None:
    """Its storage.url may be the right one."""
    with Brokers() as brokers:
        asks = brokers.brokers[3]
        assert asks.joining._command is not None
        standing = Standing(FolderKey(1, asks.host.folder.id), "earlier", False)
        question = [encode(asks.joining._command), "earlier"]

        async def answered() -> Any:
            answering = brokers.brokers[1].host.mesh.guests.answering
            assert answering is not None
            return await answering(3, standing, question)

        answer = brokers.run(1, answered())
        assert answer[0] == REFUSED_WORD
        assert "its data folder is of another incarnation of this cluster (earlier" in answer[1]


def test_another_incarnations_storage_is_refused_before_anything_is_done() -> None:
    with Brokers() as brokers, Brokers(nodes=1, seed=2) as other:
        brokers.store, store = SimStore(brokers.world), brokers.store
        owner = other.run(1, other.store.client(other.world.nodes[1]).get(KEY))
        copied = SimStore(brokers.world)
        brokers.run(1, copied.client(brokers.world.nodes[1]).put(KEY, [owner]))
        brokers.store = copied
        brokers.join(JOINS)
        assert "leads to another incarnation of the cluster" in trouble(brokers)
        assert members(brokers, 1) == {1, 2, 3}
        brokers.store = store
        brokers.crash(JOINS)


def test_all_founders_may_go_and_those_that_joined_start_again_without_seeds() -> None:
    """Machine by machine the whole cluster moves elsewhere."""
    with Brokers() as brokers:
        topic = brokers.create_topic(1, "t", partitions=4)
        for node in (4, 5, 6):
            brokers.join(node)
            brokers.wait(lambda node=node: joined(brokers, node), 60.0)
        by = 6
        for node in (1, 2, 3):
            brokers.submit(by, SetDraining(node, True))
            brokers.wait(lambda node=node: hosts_nothing(brokers, node), 120.0)
            brokers.stop(node)
            brokers.wait(lambda node=node: brokers.brokers[by].controller.machine.nodes[node].fenced)
            assert isinstance(brokers.submit(by, RemoveNode(node)), int)
            brokers.wait(lambda: brokers.brokers[by].controller.machine.replacement is None, 60.0)
        brokers.wait(lambda: brokers.brokers[brokers.leader()].host.groups[0].voters == (4, 5, 6), 60.0)
        brokers.seeds = ()
        for node in (4, 5, 6):
            brokers.crash(node)
        for node in (4, 5, 6):
            brokers.start(node)
        brokers.wait(lambda: all(brokers.registered(node) for node in (4, 5, 6)), 60.0)
        assert brokers.brokers[4].members.ids == [4, 5, 6]
        now = brokers.brokers[4].controller.machine.topic_by_id(topic.topic_id)
        assert now is not None
        assert all(set(part.replicas) == {4, 5, 6} for part in now.partitions)


def test_a_founder_with_its_old_file_finds_a_majority_that_joined() -> None:
    """Its log alone has the others, and of that it knows nothing committed before it hears them."""
    with Brokers() as brokers:
        for node in (4, 5):
            brokers.join(node)
            brokers.wait(lambda node=node: joined(brokers, node), 60.0)
        brokers.wait(lambda: whole(brokers), 60.0)
        stays = next(node for node in (1, 2, 3) if brokers.brokers[node].host.groups[0].snapshot_index == 0)
        for node in {1, 2, 3} - {stays}:
            brokers.submit(4, SetDraining(node, True))
            brokers.wait(lambda: whole(brokers), 60.0)
            brokers.stop(node)
            brokers.wait(lambda node=node: brokers.brokers[4].controller.machine.nodes[node].fenced)
            assert isinstance(brokers.submit(4, RemoveNode(node)), int)
            brokers.wait(lambda: brokers.brokers[4].controller.machine.replacement is None, 60.0)
            brokers.wait(lambda: whole(brokers), 60.0)
        assert brokers.brokers[brokers.leader()].host.groups[0].voters == (stays, 4, 5)
        assert brokers.brokers[stays].host.groups[0].snapshot_index == 0
        for node in (stays, 4, 5):
            brokers.crash(node)
        for node in (stays, 4):
            brokers.start(node)
        brokers.wait(lambda: all(brokers.registered(node) for node in (stays, 4)), 60.0)


def test_votes_stay_while_the_group_has_a_folder_to_replace() -> None:
    """What makes a replacement safe counts on its own steps alone."""
    with Brokers() as brokers:
        brokers.join(JOINS)
        brokers.wait(lambda: joined(brokers))
        leader = brokers.brokers[brokers.leader()]
        brokers.wait(lambda: JOINS in leader.host.groups[0].configuration.learners)
        brokers.submit(leader.node_id, SetDraining(1 + leader.node_id % 3, True))
        group, state = leader.host.groups[0], leader._replica.plain._state
        assert leader.voters._next(group) is not None, "the vote of a drained node goes elsewhere"
        state.replacement = Replacement(9, 9, 0, frozenset({0}), frozenset())
        assert leader.voters._next(group) is None
        state.replacement = Replacement(9, 9, 0, frozenset(), frozenset({0}))
        assert leader.voters._next(group) is None
        state.replacement = Replacement(9, 9, 0, frozenset({7}), frozenset({8}))
        assert leader.voters._next(group) is not None
        state.replacement = None


def test_who_counts_as_there_and_as_away(monkeypatch: pytest.MonkeyPatch) -> None:
    with Brokers() as brokers:
        leader = brokers.brokers[brokers.leader()]
        voters, group, state = leader.voters, leader.host.groups[0], leader._replica.plain._state
        one, other = (node for node in (1, 2, 3) if node != leader.node_id)
        brokers.wait(lambda: voters._view(group).there == {1, 2, 3})
        silence: dict[int, float | None] = {
            one: AWAY_SECONDS + 1,
            other: AWAY_SECONDS - 1,
            leader.node_id: None,
        }
        monkeypatch.setattr(voters, "_silent_seconds", silence.get)
        assert voters._view(group).away == {one}
        registered = state.nodes[one]
        state.put_node(registered._replace(fenced=True))
        assert voters._view(group).there == {leader.node_id, other}, "a dead one is not there"
        state.put_node(registered)
        monkeypatch.setattr(RaftGroup, "keeps_up", lambda self, node: node != other)
        assert voters._view(group).there == {leader.node_id, one}, "nor is one that lags"


def test_a_leader_that_cannot_know_what_holds_now_changes_no_members(monkeypatch: pytest.MonkeyPatch) -> None:
    with Brokers() as brokers:
        leader = brokers.brokers[brokers.leader()]
        brokers.submit(1, SetDraining(1 + leader.node_id % 3, True))

        async def never(seconds: float) -> bool:
            return False

        monkeypatch.setattr(leader.voters._controller, "catch_up", never)
        monkeypatch.setattr(leader.voters, "_next", lambda group: Change(Act.UNVOTE, 1 + leader.node_id % 3))
        brokers.world.run(brokers.world.now + 3)
        assert leader.host.groups[0].voters == (1, 2, 3)


async def answer_to(brokers: Brokers, node: int, folder: int, command: AddNode) -> list[Any]:
    """Node 1's answer to a guest with that id and folder, which asks with that command."""
    answering = brokers.brokers[1].host.mesh.guests.answering
    assert answering is not None
    incarnation = brokers.brokers[1].controller.machine.incarnation
    answer: list[Any] = await answering(node, Standing(FolderKey(0, folder)), [encode(command), incarnation])
    return answer


def test_a_question_about_another_folder_than_the_one_that_asks_is_refused() -> None:
    with Brokers() as brokers:
        command = brokers.brokers[2].joining._command
        assert command is not None
        for node, folder in ((2, command.folder + 2), (3, command.folder)):
            answer = brokers.run(1, answer_to(brokers, node, folder, command))
            assert answer == ["refused", "that is no question about the node that asks"]


def test_a_member_that_cannot_know_the_members_lets_none_in(monkeypatch: pytest.MonkeyPatch) -> None:
    with Brokers() as brokers:
        member, command = brokers.brokers[1], brokers.brokers[2].joining._command
        assert command is not None

        async def never(seconds: float) -> bool:
            return False

        with monkeypatch.context() as alone:
            alone.setattr(member.controller, "catch_up", never)
            kind, why = brokers.run(1, answer_to(brokers, 2, command.folder, command))
            assert kind == "refused"
            assert why.startswith("the controller has no leader that it hears: start more nodes")
        monkeypatch.setattr(member.keeper, "disowned", lambda: "it was replaced")
        answer = brokers.run(1, answer_to(brokers, 2, command.folder, command))
        assert answer == ["refused", "it cannot let another in: it was replaced"]


def whole(brokers: Brokers) -> bool:
    """Whether nothing is to be done about the members of the controller's group."""
    leader = brokers.brokers[brokers.leader()]
    return leader.voters._under_way is None and leader.voters._next(leader.host.groups[0]) is None


def hosts_nothing(brokers: Brokers, node: int) -> bool:
    return set(brokers.brokers[node].host.groups) == {0}


def test_a_removed_id_is_not_given_again_by_itself() -> None:
    with Brokers() as brokers:
        brokers.join(JOINS)
        brokers.wait(lambda: joined(brokers))
        brokers.wait(lambda: JOINS in brokers.brokers[brokers.leader()].host.groups[0].configuration.members)
        brokers.stop(JOINS)
        brokers.wait(lambda: brokers.brokers[1].controller.machine.nodes[JOINS].fenced)
        assert brokers.submit(1, RemoveNode(JOINS)) == 1
        brokers.wait(lambda: brokers.brokers[1].controller.machine.replacement is None)
        assert brokers.brokers[1].members.ids == [1, 2, 3]
        assert not any(broker.host.known_addresses for broker in brokers.brokers.values()), "nor dialled"
        assert brokers.brokers[1].members.writers == {1, 2, 3, JOINS}, "its objects are still collected"
        brokers.start(JOINS)
        brokers.world.run(brokers.world.now + 5)
        assert "or the node was removed, start this node with an empty one" in (
            brokers.brokers[JOINS].keeper.why_waiting()
        )
        brokers.crash(JOINS)
        brokers.world.nodes[JOINS].replace_disk()
        brokers.start(JOINS)
        assert "node 4 was removed from this cluster" in trouble(brokers)
        assert brokers.brokers[1].controller.machine.folders[JOINS].folder == REMOVED
        assert members(brokers, 1) == {1, 2, 3}


def test_wrong_secrets_and_silent_seeds_are_told_and_change_nothing() -> None:
    with Brokers() as brokers:
        brokers.secrets[JOINS] = "another"
        brokers.join(JOINS)
        assert "its secret is another than this node's" in trouble(brokers) or "secret is wrong" in trouble(
            brokers
        )
        brokers.crash(JOINS)
        brokers.secrets.clear()
        brokers.seeds = (1,)
        brokers.crash(1)
        brokers.start(JOINS)
        said = trouble(brokers)
        assert "no seed lets node 4 in: 10.0.0.1:9000:" in said
        assert brokers.brokers[JOINS].keeper.disowned() is None
        assert "does it run" in said
        assert members(brokers, 2) == {1, 2, 3}
        brokers.start(1)
        brokers.wait(lambda: joined(brokers), 60.0)
        assert brokers.brokers[JOINS].joining.trouble is None


def test_below_the_feature_level_no_node_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strandline.node.controller.controller_leader.FEATURE_LEVEL", GROWTH - 1)
    with Brokers() as brokers:
        brokers.join(JOINS)
        said = f"AddNode needs feature level {GROWTH}, the cluster is at {GROWTH - 1}"
        assert said in trouble(brokers)
        assert "strandline cluster upgrade" in trouble(brokers)
        assert members(brokers, 1) == {1, 2, 3}


def test_a_node_that_joins_with_another_storage_stops_before_it_asks() -> None:
    with Brokers() as brokers:
        store, brokers.store = brokers.store, SimStore(brokers.world)
        brokers.world.add_node(JOINS)
        sim = brokers.world.nodes[JOINS]
        errors: list[BaseException] = []

        def main(node: SimNode) -> None:
            broker = brokers.brokers[JOINS] = brokers.made(node)
            broker.open()
            task = node.loop.create_task(broker.start())
            task.add_done_callback(lambda ended: errors.append(ended.exception() or AssertionError()))

        sim.start(main)
        brokers.wait(lambda: bool(errors))
        assert "name the folder or prefix that the other nodes have" in str(errors[0])
        assert members(brokers, 1) == {1, 2, 3}
        brokers.store = store
        brokers.crash(JOINS)


def test_a_node_that_is_drained_gives_its_vote_to_one_that_joined() -> None:
    with Brokers() as brokers:
        brokers.join(JOINS)
        brokers.wait(lambda: joined(brokers))
        leader = brokers.leader()
        brokers.submit(1, SetDraining(leader, True))

        def moved() -> bool:
            return all(
                set(brokers.brokers[each].host.groups[0].voters) == {1, 2, 3, JOINS} - {leader}
                for each in brokers.brokers
            )

        brokers.wait(moved, 60.0)
        assert brokers.leader() != leader
        assert leader in brokers.brokers[leader].host.groups[0].configuration.learners


def without_learners(monkeypatch: pytest.MonkeyPatch) -> None:
    """No node is taken into the controller's group."""

    async def look(self: ControllerVoters) -> None:
        pass

    monkeypatch.setattr(ControllerVoters, "_look", look)


def test_no_node_serves_without_the_controllers_log(monkeypatch: pytest.MonkeyPatch) -> None:
    without_learners(monkeypatch)
    with Brokers() as brokers:
        brokers.join(JOINS)
        brokers.world.run(brokers.world.now + 15)
        assert JOINS in members(brokers, 1)
        assert not brokers.registered(JOINS)
        assert brokers.brokers[1].controller.machine.nodes[JOINS].fenced
