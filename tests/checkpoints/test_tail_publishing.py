"""Tails of a node: what each begins with, and that a reader of the storage misses nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from strandline.node.checkpoints import tail_publishing, tail_sections
from strandline.node.checkpoints.context import CheckpointContext
from strandline.node.checkpoints.recorders import CheckpointRecorders
from strandline.node.checkpoints.tail_pruning import ABSENT_MS, OWN_TAILS_MS, POINT_MS, remove_tails
from strandline.node.checkpoints.tail_publishing import TailPublishing
from strandline.node.raft.host import RaftHost
from strandline.snapshot.spark.tails import Tails
from strandline.snapshot.tail_document import (
    OWNER_NAME,
    Section,
    TailDocument,
    decode_tail,
    parse_tail_name,
    tail_name,
)
from strandline.snapshot.tail_point import TailPoint
from strandline.statemachine.controller.controller import Controller
from strandline.statemachine.controller.controller_commands import (
    AlterScramCredentials,
    Bootstrap,
    CreateTopic,
    encode,
)
from strandline.statemachine.controller.controller_state import CONTROLLER_GROUP
from strandline.statemachine.partition.epoch_window import EpochWindow
from strandline.statemachine.partition.partition_commands import AdvanceEpoch
from tests.checkpoints.harness import CLUSTER, GROUP, Replica, node_and_store, publisher, world
from tests.level_zero.samples import run
from tests.simulation.whole.tails import BucketNow
from tests.simulation.world import World
from tests.statemachine.controller_harness import registration, topic_id

INCARNATION = "2026-11-26T13:02:53Z-00000001"
SECONDS = 2.0
KEY = bytes(range(32))


class Node:
    """A node that leads one partition and the controller, with all of its parts but the log."""

    def __init__(self, made: World) -> None:
        self.world = made
        self.node, self.store = node_and_store(made)
        self.raft = {group: self._raft() for group in (CONTROLLER_GROUP, GROUP)}
        host: Any = SimpleNamespace(groups=self.raft)
        self.handlers: dict[str, Any] = {}
        self.publisher = publisher(self.node, self.store)
        self.recorders = CheckpointRecorders(CLUSTER, cast(RaftHost, host), self.publisher, lambda *_: None)
        self.replica = Replica(self.publisher)
        self.replica.recorder = self.recorders.make(GROUP, "partition")
        self.controller = Controller(lambda *_: None)
        self.recorders.make(CONTROLLER_GROUP, "controller")
        self.now_ms = 1_764_000_000_000
        self.leader: SimpleNamespace | None = SimpleNamespace(node=1)
        """Leader of each group, if it has one."""
        self.context = SimpleNamespace(
            config=SimpleNamespace(
                cluster=SimpleNamespace(id=CLUSTER),
                node=SimpleNamespace(id=1),
                publish=SimpleNamespace(seconds=SECONDS),
            ),
            host=host,
            controller=SimpleNamespace(machine=self.controller, leader=1),
            leaders=SimpleNamespace(leader_of=lambda group: self.leader),
            partitions=SimpleNamespace(by_group=lambda group: self._partition(group)),
            coordinators=SimpleNamespace(by_group=lambda group: None),
            calls=SimpleNamespace(serve=self.handlers.__setitem__),
            rng=random.Random(1),
            wall_ms=lambda: self.now_ms + int(1000 * made.now),
            store=self.store.client(self.node),
        )
        self.control(Bootstrap(CLUSTER, INCARNATION))
        self.control(registration(1))
        self.control(CreateTopic(topic_id(9), "first", 1, 1, None, [], 3))
        self.store.objects = {OWNER_NAME: b'{"incarnation": "%s"}' % INCARNATION.encode()}
        self.tails = self.publishing()
        self.reader = Tails(BucketNow(self.store), CLUSTER)
        self.reader.follow([CONTROLLER_GROUP, GROUP])

    def publishing(self) -> TailPublishing:
        context = cast(CheckpointContext, self.context)
        return TailPublishing(
            context, self.recorders, self.publisher, loop=self.node.loop, pool=self.node.executor
        )

    def _raft(self) -> SimpleNamespace:
        return SimpleNamespace(is_leader=True, leads_for_sure=True, applied=0, term=1)

    def _partition(self, group: int) -> Any:
        return SimpleNamespace(machine=self.replica.machine) if group == GROUP else None

    def control(self, command: Any) -> None:
        raft = self.raft[CONTROLLER_GROUP]
        raft.applied += 1
        if raft.applied == 1:
            self.controller.begin_term(1, 1, 1)
            raft.applied += 1
        recorder = self.recorders.of_group(CONTROLLER_GROUP)
        assert recorder is not None
        recorder.applied(raft.applied, 1, encode(command))
        self.controller.apply(raft.applied, 1, encode(command))

    def write(self, count: int = 1, data: bytes = b"batch") -> None:
        for _ in range(count):
            if not self.replica.term:
                self.replica.begin_term(1)
            self.raft[GROUP].applied = self.replica.write(data)

    def passes(self, seconds: float = SECONDS) -> None:
        self.world.run(self.world.now + seconds)

    @property
    def documents(self) -> list[TailDocument]:
        return [decode_tail(self.store.objects[name]) for name in self.names]

    @property
    def names(self) -> list[str]:
        return self.store.keys("tails/")

    @property
    def sections(self) -> list[Section]:
        """Of the partition."""
        return [one for tail in self.documents for one in tail.sections if one.group == GROUP]

    def first_seen(self) -> bytes | None:
        """The partition's state as a reader that begins now has it."""
        fresh = Tails(BucketNow(self.store), CLUSTER)
        fresh.follow([CONTROLLER_GROUP, GROUP])
        fresh.read()
        assert fresh.state(CONTROLLER_GROUP, None) is not None
        found = fresh.state(GROUP, None)
        return None if found is None else found[1].state

    def seen(self) -> bytes | None:
        """The partition's state as a reader has it."""
        self.reader.read()
        found = self.reader.state(GROUP, None)
        return None if found is None else found[1].state


@pytest.fixture
def node() -> Iterator[Node]:
    with world() as made:
        made_node = Node(made)
        made_node.node.call(made_node.tails.start)
        yield made_node
        made_node.node.call(made_node.tails.close)
        made_node.passes(0.1)


def test_a_leader_begins_with_the_state_and_goes_on_with_entries(node: Node) -> None:
    node.write(3)
    node.passes()
    assert [one.state is None for one in node.sections] == [False]
    assert node.seen() == node.replica.machine.snapshot()
    for _ in range(3):
        node.write(2)
        node.passes()
        assert node.seen() == node.replica.machine.snapshot()
    assert [one.state is None for one in node.sections] == [False, True, True, True]
    assert [one.after for one in node.sections[1:]] == [one.log_index for one in node.sections[:-1]]
    assert node.recorders.open_tails.used == 0
    assert node.tails.measures.published == len(node.documents)
    assert node.tails.measures.states == 2  # the controller's is one
    assert sum(len(node.store.objects[name]) for name in node.names) == node.tails.measures.published_bytes
    assert [parse_tail_name(name).node for name in node.names] == [1] * len(node.names)


def test_nothing_is_put_where_no_reader_would_see_anything_new(node: Node) -> None:
    node.write()
    node.passes()
    stored = node.names
    for epoch in range(3, 9):
        node.raft[GROUP].applied = node.replica.apply(AdvanceEpoch(EpochWindow(1, epoch - 1, epoch)))
        node.passes()
    assert node.names == stored
    age = node.tails.age
    assert age is not None
    assert age <= SECONDS
    node.write()
    node.passes()
    assert GROUP not in node.recorders.touched
    # With it comes what was left out.
    assert len(node.names) == len(stored) + 1
    assert node.seen() == node.replica.machine.snapshot()


def test_a_replica_that_does_not_lead_keeps_and_puts_nothing(node: Node) -> None:
    node.raft[GROUP].is_leader = False
    node.write(3)
    node.passes()
    assert node.sections == []
    assert node.recorders.open_tails.used == 0
    node.raft[GROUP].is_leader = True
    node.passes()
    assert node.seen() == node.replica.machine.snapshot()
    # Another leads for a while, and this one again: what the other has published is not known here.
    node.raft[GROUP].is_leader = False
    node.write()
    node.passes()
    node.raft[GROUP].is_leader = True
    node.write()
    node.passes()
    assert [one.state is None for one in node.sections] == [False, False]


def test_entries_that_do_not_fit_are_published_as_a_state(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.recorders.open_tails.limit = 1_000
    node.write()
    node.passes()
    node.store.stall()
    for _ in range(20):
        node.write(data=b"x" * 100)
        node.passes()
        assert node.recorders.open_tails.used <= 1_000
    assert node.recorders.open_tails.overflows == 1
    node.store.unstall()
    node.passes(3 * SECONDS)
    assert node.seen() == node.replica.machine.snapshot()


def test_a_state_that_was_installed_begins_anew(node: Node) -> None:
    node.write()
    node.passes()
    other = Replica(node.publisher)
    other.begin_term(1)
    for _ in range(5):
        other.write()
    node.replica.restore(other.index, other.machine.snapshot())
    node.write()
    node.passes()
    assert [one.state is None for one in node.sections] == [False, False]
    assert node.seen() == node.replica.machine.snapshot()


def test_a_store_that_is_away_for_an_hour_costs_nothing_but_time(node: Node) -> None:
    node.write()
    node.passes()
    node.store.refused = 1.0
    for _ in range(60):
        node.write(3)
        node.passes(60.0)
    age = node.tails.age
    assert age is not None
    assert age > 3000
    node.store.refused = 0.0
    node.passes(30.0)
    assert node.seen() == node.replica.machine.snapshot()
    age = node.tails.age
    assert age is not None
    assert age <= SECONDS


def test_a_node_that_stops_publishes_the_rest(node: Node) -> None:
    node.write()
    node.passes()
    node.write()
    run(node.world, node.node, node.tails.finish(2.0))
    assert node.seen() == node.replica.machine.snapshot()
    node.store.stall()
    again = node.tails = node.publishing()
    node.node.call(again.start)
    node.write()
    node.passes(0.1)
    began = node.world.now
    run(node.world, node.node, again.finish(2.0))
    assert node.world.now - began < 4.0
    node.store.unstall()


def test_a_put_that_is_broken_off_is_made_good_by_a_state(node: Node) -> None:
    node.write()
    node.passes()
    node.store.stall()
    node.write()
    node.passes()
    again = node.tails
    task = again._task
    assert task is not None
    node.node.call(again.close)
    node.passes(0.1)
    assert task.done()
    node.store.unstall()
    node.node.call(again.start)
    node.passes()
    assert node.seen() == node.replica.machine.snapshot()
    assert node.sections[-1].state is not None


def test_the_controller_is_published_as_it_changes_without_credentials(node: Node) -> None:
    node.passes()
    before = node.names
    node.control(AlterScramCredentials("alice", (), ((1, 4096, b"salt", KEY, KEY),)))
    node.control(CreateTopic(topic_id(1), "orders", 1, 1, None, [], 4))
    node.passes()
    assert len(node.names) == len(before) + 1
    (section,) = node.documents[-1].sections
    assert KEY in node.controller.snapshot()
    assert KEY not in (section.state or KEY)
    assert section.kind == Controller.kind
    assert section.state == node.controller.snapshot(secrets=False)


def test_a_new_partition_without_an_entry_is_not_published(node: Node) -> None:
    node.passes(3 * SECONDS)
    assert node.sections == []


def test_nothing_is_published_where_it_is_not_wanted() -> None:
    with world() as made:
        node = Node(made)
        node.context.config.publish.seconds = 0.0
        publishing = node.publishing()
        node.node.call(publishing.start)
        node.write()
        node.passes(10.0)
        assert node.names == []
        assert publishing.age is None
        run(made, node.node, publishing.finish(1.0))
        assert node.names == []


def test_states_come_again_after_so_many_tails_and_those_before_go(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail_publishing, "STATES_EVERY", 5)
    most = 0
    for _ in range(40):
        node.write()
        node.passes()
        most = max(most, len(node.names))
        assert node.seen() == node.replica.machine.snapshot()
        assert node.first_seen() == node.replica.machine.snapshot()
    assert 5 < most <= 11
    # An idle node puts nothing, whatever there is.
    stored = node.names
    node.passes(60.0)
    assert node.names == stored


def test_tails_go_of_absent_nodes_and_ended_lives_and_no_others(node: Node) -> None:
    node.write()
    node.passes()
    own, now = node.names, node.context.wall_ms()
    old, new = now - 2 * ABSENT_MS, now - ABSENT_MS // 2
    stays = [
        tail_name(CLUSTER, INCARNATION, old, 2, 1),  # registered, and alive
        tail_name(CLUSTER, INCARNATION, new, 3, 1),
        tail_name(CLUSTER, "before", new, 1, 1),
        "tails/harbour/stray",
    ]
    goes = [tail_name(CLUSTER, INCARNATION, old, 3, 2), tail_name(CLUSTER, "before", old, 1, 2)]
    earlier = tail_name(CLUSTER, INCARNATION, now + ABSENT_MS, 1, 9)  # the clock has gone back since
    node.store.objects = {**node.store.objects, **dict.fromkeys([*stays, *goes, earlier], b"")}
    everything = node.names
    context = cast(CheckpointContext, node.context)

    def remove(started_ms: int = 0) -> list[str]:
        run(node.world, node.node, remove_tails(context, frozenset(own), started_ms))
        return sorted(set(everything) - set(node.names))

    node.control(registration(2))
    leader, node.leader = node.leader, None
    assert remove() == []
    node.leader = leader
    node.store.refused = 1.0
    assert remove() == []
    node.store.refused = 0.0
    node.context.controller.leader = 2
    assert remove() == [earlier]
    node.context.controller.leader = 1
    assert remove() == sorted([earlier, *goes])


def control_often(node: Node, count: int, first: int) -> None:
    """Have the node put so many tails, with nothing of the partition."""
    for number in range(first, first + count):
        made_at = node.raft[CONTROLLER_GROUP].applied
        node.control(CreateTopic(topic_id(number), f"topic-{number}", 1, 1, None, [], made_at))
        node.passes()


def test_what_a_node_published_stays_while_the_next_leader_publishes_nothing(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail_publishing, "STATES_EVERY", 3)
    node.write(3)
    node.passes()
    state = node.replica.machine.snapshot()
    node.raft[GROUP].is_leader = False
    control_often(node, 12, 20)
    assert node.first_seen() == state
    assert len(node.names) <= 8
    # Not for ever: it is the next leader's to publish.
    monkeypatch.setattr(tail_sections, "CARRIED_SECONDS", 0.0)
    control_often(node, 12, 40)
    assert node.sections == []
    assert GROUP not in node.tails._sections._led
    # Nor where the replica is gone.
    node.raft[GROUP].is_leader = True
    node.write()
    node.passes()
    assert GROUP in node.tails._sections._led
    node.recorders.forget(GROUP)
    control_often(node, 6, 60)
    assert GROUP not in node.tails._sections._led


def test_a_look_at_many_groups_gives_others_their_turn(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.passes()
    monkeypatch.setattr(tail_sections, "GROUPS_AT_ONCE", 2)
    asked: list[int] = []

    def replica(group: int) -> None:
        # The first turn of others comes amid the look.
        if not asked:
            node.node.loop.call_soon(lambda: turns.append(len(asked)))
        if group not in asked:
            asked.append(group)

    turns: list[int] = []
    node.context.partitions.by_group = replica
    for group in range(100, 120):
        node.raft[group] = SimpleNamespace(is_leader=True, applied=1)
        node.recorders.make(group, "partition")
    node.passes()
    assert len(asked) == 20
    assert turns[0] <= 2


def test_tails_of_the_process_before_stay_for_an_hour(node: Node) -> None:
    now = node.context.wall_ms()
    before = tail_name(CLUSTER, INCARNATION, now - 2 * ABSENT_MS, 1, 1)
    node.store.objects = {**node.store.objects, before: b""}
    context = cast(CheckpointContext, node.context)
    run(node.world, node.node, remove_tails(context, frozenset(), now))
    assert before in node.names
    node.now_ms += ABSENT_MS
    run(node.world, node.node, remove_tails(context, frozenset(), now))
    assert before not in node.names


def test_tails_stay_of_a_node_that_leads_though_the_controller_does_not_hear_it(node: Node) -> None:
    old = tail_name(CLUSTER, INCARNATION, node.context.wall_ms() - 2 * ABSENT_MS, 2, 1)
    node.store.objects = {**node.store.objects, old: b""}
    context = cast(CheckpointContext, node.context)
    node.leader = SimpleNamespace(node=2)
    run(node.world, node.node, remove_tails(context, frozenset(), 0))
    assert old in node.names
    node.leader = SimpleNamespace(node=1)
    run(node.world, node.node, remove_tails(context, frozenset(), 0))
    assert old not in node.names


def test_what_the_newest_tail_point_needs_stays(node: Node) -> None:
    """It is old where none was taken since, and its tails are dispensable to everything else."""
    now = node.context.wall_ms()
    names = [tail_name(CLUSTER, INCARNATION, now - age, 1, age) for age in (900, 500, 100)]
    kept: list[str] = []

    def left(point: TailPoint | None, data: bytes | None = None) -> list[str]:
        node.store.objects = {OWNER_NAME: node.store.objects[OWNER_NAME], **dict.fromkeys(names, b"")}
        if point is not None:
            node.store.objects[point.name] = point.encode() if data is None else data
        context = cast(CheckpointContext, node.context)
        run(node.world, node.node, remove_tails(context, frozenset(kept), 0))
        return [name for name in names if name in node.store.objects]

    point = TailPoint(CLUSTER, INCARNATION, 1, now, 1, 5_000, ((1, now - 500),), ())
    assert left(None) == []
    assert left(point) == names[1:]
    assert left(replace(point, incarnation="another")) == [], "what that one needs is of another life"
    assert left(replace(point, floors=((2, 0),))) == []
    assert left(point, b"damaged") == names, "what it needs cannot be known"


def test_what_an_old_tail_point_needs_stays_for_an_hour_from_when_more_was_published(node: Node) -> None:
    """Nothing may have been written for days before, and then what it names is still there."""
    taken = node.context.wall_ms()
    needed = [tail_name(CLUSTER, INCARNATION, taken + age, 1, 1) for age in (-900, OWN_TAILS_MS - 1)]
    point = TailPoint(CLUSTER, INCARNATION, 1, taken, 1, 5_000, ((1, taken - 900),), ())
    node.store.objects |= {point.name: point.encode(), **dict.fromkeys(needed, b"")}
    context = cast(CheckpointContext, node.context)

    def left() -> list[str]:
        run(node.world, node.node, remove_tails(context, frozenset(), 0))
        return [name for name in needed if name in node.store.objects]

    node.now_ms += 24 * POINT_MS
    node.store.objects[f"{needed[0].rpartition('/')[0]}/1/stray"] = b""
    assert left() == needed, "nothing was published since"
    node.store.objects[tail_name(CLUSTER, INCARNATION, node.context.wall_ms(), 1, 2)] = b""
    node.now_ms += POINT_MS - 1
    assert left() == needed
    node.now_ms += 2
    assert left() == []


def test_what_a_restore_went_on_from_stays_until_there_is_a_point_of_this_life(node: Node) -> None:
    """All folders may be lost again before: tails and point of the life before are what there is, of whatever
    age."""
    old = node.context.wall_ms() - 24 * POINT_MS
    names = [
        tail_name(CLUSTER, "before", old + made, writer, made) for made in (0, 500, 900) for writer in (1, 2)
    ]
    node.store.objects |= dict.fromkeys(names, b"")
    before = TailPoint(CLUSTER, "before", 1, old + 1_000, 1, 5_000, ((1, old + 500), (2, old + 900)), ())
    node.store.objects[before.name] = before.encode()
    context = cast(CheckpointContext, node.context)

    def left() -> list[str]:
        run(node.world, node.node, remove_tails(context, frozenset(), 0))
        return [name for name in names if name in node.store.objects]

    assert left() == [names[2], names[4], names[5]]
    # A restore may have passed over the newest point, and have gone on from the one before.
    names.append(tail_name(CLUSTER, "before", old + 600, 2, 7))
    node.store.objects[names[-1]] = b""
    earlier = replace(before, taken_ms=old + 950, floors=((1, old + 500), (2, old + 600)))
    node.store.objects[earlier.name] = earlier.encode()
    assert left() == [names[2], names[4], names[5], names[6]]
    now = node.context.wall_ms()
    own = TailPoint(CLUSTER, INCARNATION, 2, now, 2, 5_000, ((1, now),), ())
    node.store.objects[own.name] = own.encode()
    assert left() == []
