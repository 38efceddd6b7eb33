"""What deleted topics left goes, and nothing of a topic that is there, or that never was this cluster's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from strandline.node.config.node_config import CollectorSection
from strandline.node.gc.gone_topics import MAX_PAGES, PAGE, GoneTopics
from strandline.node.objectstore.store import NotDone
from strandline.node.raft.outcome import Applied, NotLeader
from strandline.snapshot.names import log_name, snapshot_name
from strandline.statemachine.controller.controller_commands import CreateTopic, DeleteTopic, SetCollection
from strandline.statemachine.controller.controller_state import REMEMBERED_DELETIONS, Topic
from strandline.statemachine.partition.level_one import level_one_name
from tests.gc.cluster import GcBrokers
from tests.gc.parts import ListedStore
from tests.level_zero.samples import run, started
from tests.simulation.world import World
from tests.statemachine.controller_harness import Log, topic_id

CLUSTER = "c"
UNKNOWN = bytes(range(16))


def objects(identity: bytes, count: int = 3, partition: int = 0) -> list[str]:
    return [level_one_name(identity, partition, 1, n.to_bytes(16, "big")) for n in range(count)]


def documents(group: int, cluster: str = CLUSTER) -> list[str]:
    return [snapshot_name(cluster, group, 7, 1), log_name(cluster, group, 0, 7)]


class Site:
    """The controller's leader, as far as is needed: `leads`, and what happens in its barrier."""

    def __init__(self, *, rate: int = 1_000_000, grace: float = 0.0) -> None:
        self.world = World(1)
        self.sim = started(self.world)
        self.store = ListedStore()
        self.log = Log(3)
        self.machine = self.log.machine
        self.is_leader, self.leads = True, True
        self.barriers = 0
        self.meanwhile: list[Any] = []
        self.groups = {0: self}
        self.cluster_id = CLUSTER
        me = cast(Any, self)
        section = CollectorSection(grace_seconds=grace, deletes_per_second=rate)
        self.gone = GoneTopics(self.store, me, me, 10.0, section, loop=self.sim.loop)

    async def barrier(self) -> Any:
        self.barriers += 1
        for command in self.meanwhile:
            self.log.do(command)
        self.meanwhile = []
        return Applied(None, 1, 1) if self.leads else NotLeader(None, "deposed")

    def topic(self, number: int) -> Topic:
        return self.log.topic(self.log.creation(number, partitions=2))

    def delete(self, *topics: Topic) -> None:
        for topic in topics:
            self.log.do(DeleteTopic(topic.topic_id))

    def sweep(self) -> None:
        run(self.world, self.sim, self.gone.sweep())


def groups(topic: Topic) -> list[int]:
    return [partition.group for partition in topic.partitions]


def test_what_a_topic_left_stays_for_as_long_as_a_tail_point_may_need_it() -> None:
    """Also what comes late, and not longer for each page; what is found after all had gone waits anew."""
    site = Site(grace=60.0)
    with site.world:
        gone = site.topic(1)
        site.delete(gone)
        names = objects(gone.topic_id, PAGE + 10)
        site.store.names = sorted(names)
        for seconds, left in ((0.0, PAGE + 10), (58.0, PAGE + 10), (3.0, 0)):
            site.world.run(site.world.now + seconds)
            site.sweep()
            assert len(site.store.names) == left
        site.sweep()
        site.store.names = names[:1]
        site.sweep()
        assert len(site.store.names) == 1
        site.world.run(site.world.now + 61.0)
        site.sweep()
        assert not site.store.names


def test_what_deleted_topics_left_goes_and_all_else_stays() -> None:
    site = Site()
    with site.world:
        kept, gone = site.topic(1), site.topic(2)
        site.delete(gone)
        staying = [
            *objects(kept.topic_id), *objects(kept.topic_id, partition=99), *objects(UNKNOWN), *documents(0),
            *documents(groups(kept)[0]), *documents(9_999), *documents(groups(gone)[0], "d"),
            "l1/notes", f"l1/{gone.topic_id.hex()}/notes", f"l1/{gone.topic_id.hex()}-x/y", "snapshots/c/0/x",
        ]  # fmt: skip
        going = [*objects(gone.topic_id), *objects(gone.topic_id, partition=1), *documents(groups(gone)[0]),
                 *documents(groups(gone)[1])]  # fmt: skip
        site.store.add([*staying, *going])
        site.sweep()
        assert site.store.names == sorted(staying)
        assert site.gone.deleted == len(going)
        assert site.gone.foreign == 4


def test_a_topic_this_cluster_never_had_is_not_taken_for_a_deleted_one() -> None:
    """As a fresh cluster sees what another, or itself before it lost its log, has in the same bucket."""
    site = Site()
    with site.world:
        site.store.add([*objects(UNKNOWN), *documents(5)])
        site.sweep()
        assert not site.store.deletions
        assert site.barriers == 0


def test_once_deletions_are_forgotten_an_unknown_topic_is_a_deleted_one() -> None:
    site = Site()
    with site.world:
        first = site.topic(1)
        site.delete(first)
        for number in range(2, REMEMBERED_DELETIONS + 2):
            site.log.do(CreateTopic(topic_id(number), f"t{number}", 1, 1, None, [], site.log.index))
            site.log.do(DeleteTopic(topic_id(number)))
        assert site.machine.topic_is_gone(UNKNOWN)
        site.store.add([*objects(first.topic_id), *objects(topic_id(50))])
        site.sweep()
        assert not site.store.names


def test_a_restored_cluster_takes_what_it_does_not_know_for_what_was_made_after_its_point() -> None:
    """Topics and added partitions; also where a topic that is there fills more than a page."""
    site = Site()
    with site.world:
        kept = site.topic(1)
        site.store.add(
            [*objects(kept.topic_id, PAGE + 10), *objects(kept.topic_id, partition=2), *objects(UNKNOWN)]
        )
        before = site.store.names
        site.sweep()
        assert site.store.names == before
        site.machine._state.forgotten_index = 1  # as restored_controller.py makes it
        site.sweep()
        assert site.store.names == sorted(objects(kept.topic_id, PAGE + 10))


def test_a_topic_that_the_state_did_not_know_when_its_objects_were_listed_is_kept() -> None:
    site = Site()
    with site.world:
        for number in range(1, REMEMBERED_DELETIONS + 2):
            site.log.do(CreateTopic(topic_id(number), f"t{number}", 1, 1, None, [], site.log.index))
            site.log.do(DeleteTopic(topic_id(number)))
        young = topic_id(5_000)
        site.meanwhile = [CreateTopic(young, "young", 1, 1, None, [], site.log.index)]
        site.store.add(objects(young))
        site.sweep()
        assert site.barriers == 1
        assert site.store.names == objects(young)


def test_nothing_is_deleted_by_one_that_does_not_lead() -> None:
    site = Site()
    with site.world:
        gone = site.topic(1)
        site.delete(gone)
        site.store.add(objects(gone.topic_id))
        site.leads = False
        site.sweep()
        assert (site.barriers, site.store.deletions) == (2, []) or site.barriers == 1
        site.is_leader = False
        lists = len(site.store.lists)
        site.sweep()
        assert len(site.store.lists) == lists
        assert not site.store.deletions


def test_nothing_is_deleted_while_collecting_is_paused() -> None:
    site = Site()
    with site.world:
        gone = site.topic(1)
        site.delete(gone)
        site.store.add(objects(gone.topic_id))
        site.log.do(SetCollection(True))
        site.sweep()
        site.log.do(SetCollection(False))
        site.meanwhile = [SetCollection(True)]
        site.sweep()
        assert site.barriers == 1
        assert not site.store.deletions
        site.log.do(SetCollection(False))
        site.sweep()
        assert not site.store.names


def test_a_large_topic_costs_one_listing() -> None:
    site = Site()
    with site.world:
        large, gone = site.topic(1), site.topic(2)
        site.delete(gone)
        site.store.add([*objects(large.topic_id, 20 * PAGE), *objects(gone.topic_id)])
        site.sweep()
        assert site.store.names == objects(large.topic_id, 20 * PAGE)
        assert [prefix for prefix, _ in site.store.lists] == ["l1/", "l1/", "snapshots/c/"]


def test_a_round_is_bounded_and_the_next_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strandline.node.gc.gone_topics.MAX_PAGES", 3)
    monkeypatch.setattr("strandline.node.gc.gone_topics.PAGE", 10)
    site = Site()
    with site.world:
        gone = [site.topic(number) for number in range(1, 6)]
        site.delete(*gone)
        site.store.add([name for topic in gone for name in objects(topic.topic_id, 20)])
        left = []
        for _ in range(4):
            site.sweep()
            left.append(len(site.store.names))
        assert left == [70, 40, 10, 0]
        site.store.add(objects(gone[0].topic_id))
        site.sweep()
        site.sweep()
        assert not site.store.names, "what is late is found in a round from the start"
    assert MAX_PAGES > 3


def test_what_a_topic_left_goes_after_its_grace_where_a_look_at_all_takes_many_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("strandline.node.gc.gone_topics.MAX_PAGES", 3)
    monkeypatch.setattr("strandline.node.gc.gone_topics.PAGE", 10)
    site = Site(grace=60.0)
    with site.world:
        gone = [site.topic(number) for number in range(1, 6)]
        site.delete(*gone)
        site.store.add([name for topic in gone for name in objects(topic.topic_id, 20)])
        for _ in range(20):
            site.sweep()
            assert site.world.now < 60.0 or len(site.store.names) < 100
            site.world.run(site.world.now + 15.0)
        assert not site.store.names


def test_what_is_known_of_the_gone_is_bounded_and_the_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strandline.node.gc.gone_topics.MAX_SEEN", 1)
    site = Site(grace=60.0)
    with site.world:
        gone = [site.topic(1), site.topic(2)]
        site.delete(*gone)
        site.store.add([name for topic in gone for name in objects(topic.topic_id)])
        site.sweep()
        site.world.run(site.world.now + 61.0)
        site.sweep()
        assert len(site.store.names) == 3, "of one of both it is known since when"
        site.sweep()
        site.sweep()
        site.world.run(site.world.now + 61.0)
        site.sweep()
        assert not site.store.names


def test_a_store_that_fails_is_asked_again() -> None:
    site = Site()
    with site.world:
        gone = site.topic(1)
        site.delete(gone)
        site.store.add(objects(gone.topic_id))
        site.store.fail["list"] = [NotDone("list", "l1/", "it is down", retriable=True)]
        site.sim.call(site.gone.start)
        site.world.run(site.world.now + 11)
        assert str(site.gone.last_error) == "list l1/: it is down"
        site.world.run(site.world.now + 11)
        assert site.gone.last_error is None
        assert not site.store.names
        run(site.world, site.sim, site.gone.close())
        site.world.check()


def test_deletions_keep_to_the_rate() -> None:
    site = Site(rate=100)
    with site.world:
        gone = site.topic(1)
        site.delete(gone)
        site.store.add(objects(gone.topic_id, 2_500))
        began = site.world.now
        site.sweep()
        assert 25 <= site.world.now - began < 26


def test_in_a_cluster_a_topics_objects_go_when_it_does() -> None:
    with GcBrokers() as brokers:
        # Of a partition that is nobody's: each leader looks after its own.
        kept, gone = brokers.create_topic(1, "kept", 2, 3), brokers.create_topic(2, "gone", 2, 3)
        names: Sequence[str] = [
            *objects(gone.topic_id, partition=9), *documents(groups(gone)[0], "simulated"), *objects(UNKNOWN),
            *documents(groups(kept)[1], "simulated"),
        ]  # fmt: skip
        brokers.put([*names])
        brokers.pass_time(6)
        assert {*names} <= {*brokers.stored("l1/"), *brokers.stored("snapshots/")}
        brokers.submit(1, DeleteTopic(gone.topic_id))
        left = {*objects(UNKNOWN), *documents(groups(kept)[1], "simulated")}
        brokers.wait(lambda: {*brokers.stored("l1/"), *brokers.stored("snapshots/")} == left, 20)
        leader = brokers.leader()
        brokers.crash(leader)
        brokers.put(objects(gone.topic_id, partition=9))
        brokers.wait(lambda: not any(gone.topic_id.hex() in name for name in brokers.stored("l1/")), 30)
