"""Tail points of whole brokers: what was acknowledged is in the next one, and when there is none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from strandline.node.checkpoints import tail_points
from strandline.node.checkpoints.context import CheckpointContext
from strandline.node.checkpoints.recorders import CheckpointRecorders
from strandline.node.checkpoints.tail_publishing import CUT, DUE
from strandline.node.checkpoints.tail_sections import PHASES, TailSections, _Seen
from strandline.node.config.node_config import NodeConfig, PublishSection
from strandline.node.coordinator.decision_hold import HOLD
from strandline.node.objectstore.store import MAX_DELETE, NotDone
from strandline.node.raft.outcome import Applied, NotLeader, Outcome
from strandline.node.restore.stored_point import StoredPoint, read_point
from strandline.node.rpc import CallFailed
from strandline.snapshot.tail_point import (
    GroupEntry,
    TailPoint,
    TailPointDamaged,
    TailPointTooNew,
    decode_tail_point,
    tail_point_name,
    tail_points_prefix,
)
from strandline.statemachine.controller.controller_state import Topic
from strandline.statemachine.internal_topics import GROUPS_TOPIC, TRANSACTIONS_TOPIC
from tests.controller.batch_client import BatchClient
from tests.controller.brokers import Brokers
from tests.simulation.node import SimNode

READER = 50
"""A machine that outlives the nodes."""
CLUSTER = "simulated"


SECONDS = 0.8
"""`publish.seconds`."""


class Publishing(Brokers):
    """Nodes that publish often."""

    def config(self, node: int) -> NodeConfig:
        return replace(super().config(node), publish=PublishSection(SECONDS))


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    with Publishing() as made:
        made.world.add_node(READER)
        made.world.nodes[READER].start(_nothing)
        yield made


def _nothing(sim: SimNode) -> None:
    """It only reads."""


def points(brokers: Brokers) -> list[TailPoint]:
    return [
        decode_tail_point(brokers.store.objects[name])
        for name in brokers.store.keys(tail_points_prefix(CLUSTER))
    ]


def pass_time(brokers: Brokers, seconds: float) -> None:
    brokers.world.run(brokers.world.now + seconds)


def created(brokers: Brokers, partitions: int = 1, replicas: int = 3) -> Topic:
    """The first topic, once there are points."""
    topic = brokers.create_topic(1, "t", partitions, replicas)
    brokers.wait(lambda: points(brokers), 40)
    return topic


def stored(brokers: Brokers) -> StoredPoint:
    """What a restore would go on from."""
    store = brokers.store.client(brokers.world.nodes[READER])
    found: StoredPoint = brokers.run(READER, read_point(store))
    return found


def test_what_is_acknowledged_is_in_the_next_point(brokers: Brokers) -> None:
    topic = created(brokers, 3)
    client = BatchClient(brokers, topic)
    pass_time(brokers, 4)
    acknowledged = dict(client.acked)
    at_ms = int(1000 * brokers.world.now)
    brokers.wait(lambda: points(brokers)[-1].taken_ms >= at_ms, 5)
    for node in brokers.nodes:
        brokers.crash(node, "power")
    found = stored(brokers)
    assert found.tail_point == points(brokers)[-1]
    ends = {one.partition: one.end_offset for one in found.partitions}
    assert all(ends[number] >= count for number, count in acknowledged.items())
    assert all(ends[number] <= client.acked[number] + 1 for number in ends)
    assert found.missing_seconds is not None
    assert found.missing_seconds < 3


def test_where_nothing_is_new_nothing_is_put(brokers: Brokers) -> None:
    topic = created(brokers, 2)
    client = BatchClient(brokers, topic)
    pass_time(brokers, 2)
    client.on = False
    pass_time(brokers, 2)
    before = points(brokers)
    names = brokers.store.keys("tails/")
    pass_time(brokers, 6)
    assert points(brokers) == before
    assert brokers.store.keys("tails/") == names
    ends = {one.partition: one.end_offset for one in stored(brokers).partitions}
    assert ends == dict(client.acked)


def test_what_a_node_published_by_itself_is_in_a_point_as_well(brokers: Brokers) -> None:
    """It is not due any more, and no point has it."""
    topic = created(brokers, 3)
    pass_time(brokers, 2)
    driver = brokers.brokers[brokers.leader()]
    driver.tail_points.close()
    client = BatchClient(brokers, topic)
    pass_time(brokers, 1)
    client.on = False
    pass_time(brokers, 2)
    assert not any(broker.tails._sections.is_due() for broker in brokers.brokers.values())
    driver.tail_points.start()
    pass_time(brokers, 1)
    assert {one.partition: one.end_offset for one in stored(brokers).partitions} == dict(client.acked)


def test_there_is_no_point_while_a_group_has_no_leader_and_one_once_it_has(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tail_points, "WARN_SECONDS", 2.0)
    caplog.set_level("INFO", "strandline.node.checkpoints.tail_points")
    created(brokers, 3, replicas=1)
    pass_time(brokers, 2)
    driver = brokers.brokers[brokers.leader()].tail_points
    assert driver.age is not None
    assert driver.age < 1
    taken = driver.measures.taken
    assert taken
    assert all(
        brokers.brokers[node].tail_points.age is None for node in brokers.nodes if node != brokers.leader()
    )
    gone = brokers.follower()
    brokers.crash(gone)
    pass_time(brokers, 3)
    newest = points(brokers)[-1]
    brokers.create_topic(brokers.leader(), "u", 1, 2)
    pass_time(brokers, 4)
    assert points(brokers)[-1] == newest
    assert driver.age > 3
    assert driver.measures.missed > 3
    (told,) = [one.message for one in caplog.records if one.name == tail_points.log.name]
    assert told.startswith("no tail point for")
    brokers.start(gone)
    brokers.wait(lambda: points(brokers)[-1] != newest, 40)
    pass_time(brokers, 1)
    assert driver.age < 2
    assert driver.measures.taken > taken
    assert "a restore would go on from a tail point of some seconds again" in caplog.messages
    assert {one.topic for one in stored(brokers).partitions} == {"t", "u"}


def test_few_points_stay(brokers: Brokers) -> None:
    client = BatchClient(brokers, created(brokers, 1))
    pass_time(brokers, 18)
    client.on = False
    most = tail_points.KEPT_POINTS + tail_points.DELETED_AT_ONCE
    assert len(points(brokers)) < most
    assert points(brokers) == sorted(points(brokers), key=lambda point: (point.number, point.taken_ms))


def test_points_that_cannot_be_deleted_cost_no_point_and_go_once_they_can(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tail_points, "MOST_LEFT", tail_points.DELETED_AT_ONCE)
    client = BatchClient(brokers, created(brokers, 1))
    driver = brokers.brokers[brokers.leader()].tail_points
    store = driver._context.store
    delete_many = store.delete_many

    async def denied(keys: Sequence[str]) -> None:
        raise NotDone("delete", keys[0], "access denied", retriable=False)

    most = tail_points.KEPT_POINTS + tail_points.DELETED_AT_ONCE
    with monkeypatch.context() as patched:
        patched.setattr(store, "delete_many", denied)
        brokers.wait(lambda: len(points(brokers)) > most + 3, 40)
    assert driver.measures.missed == 0, "each point is there"
    assert driver.age is not None
    assert driver.age < 1
    assert [one.message for one in caplog.records if one.name == tail_points.log.name] == [
        f"tail points before the newest 3 are kept for now: delete {points(brokers)[0].name}: access denied"
    ]
    assert store.delete_many == delete_many
    pass_time(brokers, 2)
    client.on = False
    assert len(points(brokers)) < most


def test_points_that_are_more_than_one_request_deletes_go_one_request_after_the_other(
    brokers: Brokers,
) -> None:
    """They were left while none could be deleted."""
    client = BatchClient(brokers, created(brokers, 1))
    for number in range(MAX_DELETE + 100):
        brokers.store.objects[tail_point_name(CLUSTER, 1, number)] = b""
    brokers.brokers[brokers.leader()].tail_points._names = None
    pass_time(brokers, 8)
    client.on = False
    left = brokers.store.keys(tail_points_prefix(CLUSTER))
    assert len(left) < tail_points.KEPT_POINTS + tail_points.DELETED_AT_ONCE
    assert tail_point_name(CLUSTER, 1, MAX_DELETE) not in left


def test_a_new_leader_of_the_controller_goes_on(brokers: Brokers) -> None:
    client = BatchClient(brokers, created(brokers, 1))
    pass_time(brokers, 2)
    before = points(brokers)[-1]
    brokers.crash(brokers.leader())
    pass_time(brokers, 8)
    client.on = False
    pass_time(brokers, 2)
    after = points(brokers)[-1]
    assert after.number > before.number
    (partition,) = stored(brokers).partitions
    assert partition.end_offset == client.acked[0]


@pytest.mark.parametrize("method", [DUE, HOLD, CUT])
def test_a_node_that_does_not_answer_leaves_no_point_and_no_hold(
    brokers: Brokers, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = BatchClient(brokers, created(brokers, 3))
    pass_time(brokers, 2)
    driver = brokers.brokers[brokers.leader()]
    call = driver.calls.call

    async def refused(node: int, name: str, payload: Any, timeout: float) -> Any:  # noqa: ASYNC109
        if name == method and node == 3 and (method != CUT or payload[1] == 1):
            raise CallFailed("it is not to be", unknown=True)
        return await call(node, name, payload, timeout)

    monkeypatch.setattr(driver.calls, "call", refused)
    pass_time(brokers, 1)
    before = points(brokers)
    pass_time(brokers, 2)
    assert points(brokers) == before
    assert not any(broker.decisions.held for broker in brokers.brokers.values())
    monkeypatch.setattr(driver.calls, "call", call)
    client.on = False
    pass_time(brokers, 2)
    assert {one.partition: one.end_offset for one in stored(brokers).partitions} == dict(client.acked)


def test_a_hold_that_ended_before_the_last_group_was_asked_leaves_no_point(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was decided since may be in some groups of the point and not in others."""
    client = BatchClient(brokers, created(brokers, 3))
    pass_time(brokers, 2)
    driver, late = brokers.brokers[brokers.leader()], brokers.brokers[brokers.follower()]
    call = driver.calls.call

    async def ended(node: int, name: str, payload: Any, timeout: float) -> Any:  # noqa: ASYNC109
        if name == CUT and payload[1] == len(PHASES) - 1:
            late.decisions.end(late.decisions._token)
        return await call(node, name, payload, timeout)

    monkeypatch.setattr(driver.calls, "call", ended)
    pass_time(brokers, 1)
    before = points(brokers)
    pass_time(brokers, 2)
    assert points(brokers) == before
    monkeypatch.setattr(driver.calls, "call", call)
    client.on = False
    pass_time(brokers, 2)
    assert points(brokers) != before


def test_of_two_leaders_of_a_group_the_later_one_counts() -> None:
    earlier, later = GroupEntry(5, 12, 3, 1), GroupEntry(5, 11, 4, 2)
    for entries in ((earlier, later), (later, earlier)):
        chosen: dict[int, GroupEntry] = {}
        for entry in entries:
            tail_points._choose(chosen, entry)
        assert chosen == {5: later}


def test_a_clock_that_goes_back_puts_no_point_before_the_last(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = BatchClient(brokers, created(brokers, 1))
    pass_time(brokers, 4)
    before = points(brokers)[-1]
    for broker in brokers.brokers.values():
        monkeypatch.setattr(broker, "wall_ms", lambda: 1)  # before all tails
    pass_time(brokers, 2)
    client.on = False
    pass_time(brokers, 2)
    assert points(brokers)[-1] != before
    (partition,) = stored(brokers).partitions
    assert partition.end_offset == client.acked[0]


# One part by itself.


class Group:
    """The log of a group that this node may lead."""

    def __init__(self, group: int, *, sure: bool, outcome: Outcome | None = None) -> None:
        self.id, self.term, self.applied, self.commit = group, 4, 7, 7
        self.is_leader, self.leads_for_sure = True, sure
        self._outcome = outcome

    async def barrier(self) -> Outcome:
        assert self._outcome is not None, "it need not be asked"
        return self._outcome


def test_a_node_says_of_no_group_that_it_leads_it_unless_that_is_sure(brokers: Brokers) -> None:
    groups = {
        1: Group(1, sure=True),
        2: Group(2, sure=False, outcome=NotLeader(2)),
        3: Group(3, sure=False, outcome=Applied(None, 7, 4)),
    }
    recorders: Any = {group: SimpleNamespace(kind="partition") for group in groups}
    context: Any = SimpleNamespace(host=SimpleNamespace(groups=groups))

    class Recorders(dict[int, Any]):
        def of_group(self, group: int) -> Any:
            return self.get(group)

    loop = brokers.world.nodes[READER].loop
    sections = TailSections(
        cast(CheckpointContext, context), cast(CheckpointRecorders, Recorders(recorders)), loop=loop
    )
    assert brokers.run(READER, sections.led(PHASES[1])) == {1: 4, 3: 4}
    assert brokers.run(READER, sections.led(PHASES[0])) == {}


def test_a_leadership_that_is_another_by_now_names_no_entry(brokers: Brokers) -> None:
    """In between another node may have led, and what was asked of this one before does not hold."""
    group = Group(1, sure=True)
    context: Any = SimpleNamespace(host=SimpleNamespace(groups={1: group}))
    loop = brokers.world.nodes[READER].loop
    sections = TailSections(cast(CheckpointContext, context), cast(CheckpointRecorders, {}), loop=loop)
    sections._seen[1] = _Seen((1,), 7)
    assert sections.entries({1: 4}) == [(1, 7, 4)]
    group.term = 6
    assert sections.entries({1: 4}) == []
    group.is_leader = False
    assert sections.entries({1: 6}) == []


def test_the_kinds_of_all_groups_have_a_phase_and_groups_come_before_partitions() -> None:
    assert [sorted(kinds) for kinds in PHASES] == [["groups"], ["partition"], ["controller", "transactions"]]
    assert {GROUPS_TOPIC, TRANSACTIONS_TOPIC} == {"__consumer_offsets", "__transaction_state"}


def test_a_point_is_read_back_and_a_damaged_one_is_not() -> None:
    point = TailPoint("c", "i", 7, 12, 3, 5_000, ((1, 11), (2, 9)), ())
    data = point.encode()
    assert decode_tail_point(data) == point
    for at in range(len(data)):
        with pytest.raises(TailPointDamaged):
            decode_tail_point(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    with pytest.raises(TailPointDamaged):
        decode_tail_point(data[:-1])


def test_a_point_of_a_later_release_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strandline.snapshot.tail_point.FORMAT", 2)
    data = TailPoint("c", "i", 7, 12, 3, 5_000, (), ()).encode()
    monkeypatch.undo()
    with pytest.raises(TailPointTooNew, match="upgrade it"):
        decode_tail_point(data)


def test_a_checkpoint_waits_for_the_hold_of_a_tail_point_and_is_a_restore_point(brokers: Brokers) -> None:
    created(brokers)
    taker = brokers.brokers[brokers.follower()]
    for broker in brokers.brokers.values():
        broker.decisions.begin(7, 0.5)
    report = brokers.run(taker.config.node.id, taker.checkpoints.take(None, 60_000, 10.0))
    assert report.restore_point is not None, report.no_restore_point


def test_a_checkpoint_does_not_wait_for_a_long_hold(brokers: Brokers) -> None:
    created(brokers)
    taker = brokers.brokers[brokers.follower()]
    for broker in brokers.brokers.values():
        broker.decisions.begin(7, 5.0)
    report = brokers.run(taker.config.node.id, taker.checkpoints.take(None, 60_000, 10.0))
    assert "another restore point is being taken" in report.no_restore_point
