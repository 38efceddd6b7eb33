"""What a node knows of M: told in any order, doubled, lost, by leaders that are none any more."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from strandline.node.controller.leaders import Leader
from strandline.node.gc import collectable_epochs
from strandline.node.gc.collectable_epochs import (
    ROWS,
    SILENT_SECONDS,
    SLICE,
    TELL,
    TELL_ALL_SECONDS,
    CollectableEpochs,
    ReportedEpoch,
)
from strandline.node.rpc import CallFailed
from strandline.statemachine.controller.controller_commands import (
    AdvanceClusterEpoch,
    CreatePartitions,
    DeleteTopic,
)
from tests.gc.parts import GcNode, Post, Replica, drive
from tests.runtime.manual_loop import manual_loop
from tests.statemachine.controller_harness import Log, topic_id


class Small:
    """Three nodes that know the same controller, with a topic of some partitions led by node 1."""

    def __init__(self, partitions: int = 2) -> None:
        self.loop, self.post, self.log = manual_loop(), Post(), Log(3)
        self.log.do(AdvanceClusterEpoch(10))
        self.topic = self.log.topic(self.log.creation(1, partitions=partitions))
        self.log.do(AdvanceClusterEpoch(50))
        self.nodes = {n: GcNode(self.post, n, self.log.machine, self.loop) for n in (1, 2, 3)}
        for node in self.nodes.values():
            for peer in self.nodes:
                if peer != node.node_id:
                    node.on_connect(peer)
        self.groups = [partition.group for partition in self.topic.partitions]
        self.replicas = [self.lead(1, group, 9) for group in self.groups]

    def lead(self, node: int, group: int, value: int, term: int = 1) -> Replica:
        replica = self.nodes[node].replicas[group] = Replica(group, value)
        replica.leads, replica.leader_epoch = True, term
        return replica


def test_m_is_the_lowest_of_all_partitions_and_of_the_epoch_before_the_present() -> None:
    small = Small()
    one = small.nodes[1].epochs
    assert one.maximum().epoch == 9, "nobody was heard: the creation epoch less one"
    assert one.maximum().reported is None
    small.replicas[0].collectable_epoch, small.replicas[1].collectable_epoch = 30, 20
    small.nodes[1].look()
    held = one.maximum()
    assert held[:5] == (20, 50, small.groups[1], "t1", 1)
    assert held.reported == ReportedEpoch(20, 1, small.loop.time())
    for replica in small.replicas:
        replica.collectable_epoch = 80
    small.nodes[1].look()
    assert one.maximum()[:4] == (49, 50, None, None), "the cap: partitions may come that are not known here"
    small.post.deliver_all()
    assert small.nodes[2].epochs.maximum() == small.nodes[3].epochs.maximum() == one.maximum()


def test_what_reads_held_back_is_taken_up_when_they_end() -> None:
    small = Small()
    for replica in small.replicas:
        replica.held_by_reads, replica.collectable_epoch = True, 20
    node = small.nodes[1]
    node.look()
    node.look()
    assert node.epochs.maximum().epoch == 20
    for replica in small.replicas:
        replica.end_reads(30)
    node.look()
    assert node.epochs.maximum().epoch == 30


def test_a_partition_that_has_not_changed_is_not_asked_again() -> None:
    small = Small()
    asked: list[int] = []

    class Counted(Replica):
        def __getattribute__(self, name: str) -> object:
            if name == "collectable_epoch":
                asked.append(object.__getattribute__(self, "group").id)
            return object.__getattribute__(self, name)

    for group in small.groups:
        replica = small.nodes[1].replicas[group] = Counted(group, 20)
        replica.leads, replica.leader_epoch = True, 1
    for _ in range(3):
        small.nodes[1].look()
    assert asked == small.groups
    small.nodes[1].replicas[small.groups[1]].collectable_epoch = 30
    small.nodes[1].look()
    assert asked == [*small.groups, small.groups[1]]


def test_without_topics_only_the_cluster_epoch_counts() -> None:
    post, log = Post(), Log(3)
    node = GcNode(post, 1, log.machine, manual_loop())
    assert node.epochs.maximum().epoch == 0, "so a controller that has applied nothing yet deletes nothing"
    log.do(AdvanceClusterEpoch(7))
    assert node.epochs.maximum().epoch == 6


def test_a_new_topic_changes_nothing_and_then_holds_m_at_its_creation() -> None:
    small = Small()
    for replica in small.replicas:
        replica.collectable_epoch = 60
    node = small.nodes[1]
    node.look()
    assert node.epochs.maximum().epoch == 49
    topic = small.log.topic(small.log.creation(2))
    assert node.epochs.maximum().epoch == 49
    small.log.do(AdvanceClusterEpoch(70))
    held = node.epochs.maximum()
    assert (held.epoch, held.topic, held.reported) == (49, "t2", None)
    small.log.do(DeleteTopic(topic.topic_id))
    assert node.epochs.maximum().epoch == 60
    small.log.do(DeleteTopic(small.topic.topic_id))
    assert node.epochs.maximum().epoch == 69


def test_an_m_that_goes_down_is_not_given() -> None:
    small = Small()
    small.replicas[0].collectable_epoch = small.replicas[1].collectable_epoch = 30
    small.nodes[1].look()
    assert small.nodes[1].epochs.maximum().epoch == 30
    del small.nodes[1].epochs._table[small.groups[0]]
    with pytest.raises(AssertionError, match="M is 9 and was 30"):
        small.nodes[1].epochs.maximum()


def test_only_what_rose_is_told_and_each_node_is_heard_all_the_same() -> None:
    small = Small()
    small.nodes[1].look()
    assert [len(sent.payload[1]) for sent in small.post.sent] == [2, 2]
    small.post.deliver_all()
    small.replicas[1].collectable_epoch = 12
    small.nodes[1].look()
    assert [sent.payload[1] for sent in small.post.sent] == [[[small.groups[1], 1, 12]]] * 2
    small.post.sent.clear()
    small.loop.advance(SILENT_SECONDS)
    small.nodes[1].look()
    assert [sent.payload for sent in small.post.sent] == [[int(1000 * small.loop.time()), []]] * 2
    assert small.nodes[2].epochs.unheard_seconds(1) == SILENT_SECONDS
    small.post.deliver_all()
    assert small.nodes[2].epochs.unheard_seconds(1) == 0.0
    assert small.nodes[2].epochs.unheard_seconds(3) is None


def test_replicas_that_do_not_lead_or_failed_make_no_values() -> None:
    small = Small()
    small.replicas[0].leads = False
    small.replicas[1].group.failure = RuntimeError("corrupt")
    small.nodes[1].look()
    assert small.nodes[1].values() == {}


def test_what_a_leader_was_too_far_away_to_say_comes_by_others() -> None:
    small = Small()
    small.nodes[1].look()
    small.post.sent = [sent for sent in small.post.sent if sent.receiver == 2]
    small.post.deliver_all()
    assert small.nodes[3].values() == {}
    small.nodes[2].tell_all()
    small.post.deliver_all()
    assert small.nodes[3].values() == small.nodes[1].values() == dict.fromkeys(small.groups, 9)


def test_a_word_that_could_not_leave_is_said_again() -> None:
    small = Small()
    one = small.nodes[1]
    one.epochs._owed.clear()
    one.full = True
    one.look()
    assert not small.post.sent
    assert [*one.epochs._owed] == [2, 3]
    one.full = False
    drive(one.epochs._tell_all())
    small.post.deliver_all()
    assert small.nodes[2].values() == small.nodes[3].values() == dict.fromkeys(small.groups, 9)


def test_who_connects_is_told_everything_and_who_is_gone_nothing() -> None:
    small = Small()
    one = small.nodes[1]
    one.look()
    small.post.sent.clear()
    one.epochs._owed.clear()
    one.on_disconnect(2)
    one.look()
    assert {sent.receiver for sent in small.post.sent} == {3}
    small.post.sent.clear()
    one.on_connect(2)
    drive(one.epochs._tell_all())
    assert [(sent.receiver, len(sent.payload[1])) for sent in small.post.sent] == [(2, 2)]


def test_everything_is_told_to_so_many_peers_in_one_go_and_to_each_in_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = Small(4)
    one = small.nodes[1]
    one.look()
    monkeypatch.setattr(collectable_epochs, "MOST_TOLD", 7)
    told: list[int] = []
    for _ in range(4):
        small.post.sent.clear()
        one.epochs._owed.update(one.epochs._peers)
        drive(one.epochs._tell_all())
        told += {sent.receiver for sent in small.post.sent}
        assert sum(len(sent.payload[1]) for sent in small.post.sent) == 4
    assert told == [2, 3, 2, 3]
    monkeypatch.setattr(collectable_epochs, "MOST_TOLD", 8)
    small.post.sent.clear()
    drive(one.epochs._tell_all())
    drive(one.epochs._tell_all())
    assert {sent.receiver for sent in small.post.sent} == {2}, "the last one that was owed it"
    one.epochs._owed.update(one.epochs._peers)
    small.post.sent.clear()
    drive(one.epochs._tell_all())
    assert {sent.receiver for sent in small.post.sent} == {2, 3}


def test_a_lower_value_and_an_older_term_change_nothing() -> None:
    small = Small()
    note = small.nodes[1].epochs._note
    group = small.groups[0]
    assert note(group, 5, 20)
    assert not note(group, 9, 19)
    assert not note(group, 4, 20)
    assert small.nodes[1].epochs._table[group][:2] == (20, 5)
    assert not note(group, 6, 20)
    assert small.nodes[1].epochs._table[group][:2] == (20, 6)
    assert note(group, 1, 21), "what an old leader said of the past stays true"


def test_groups_that_are_gone_are_forgotten_and_those_not_created_here_yet_are_kept() -> None:
    small = Small()
    note = small.nodes[1].epochs._note
    for group in (*small.groups, 77):
        note(group, 1, 20)
    small.log.do(DeleteTopic(small.topic.topic_id))
    small.nodes[1].epochs._forget_gone(small.log.machine)
    assert small.nodes[1].values() == {77: 20}


@pytest.mark.parametrize(
    "payload",
    [None, [], [1], [1, None], ["1", []], [1, [1]], [1, [[1, 2]]], [1, [[1, 2, 3, 4]]], [1, [[1, 2, "3"]]],
     [1, [[True, 2, 3]]], [1, [[1, 2, 3.0]]]],
)  # fmt: skip
def test_garbage_is_refused_whole(payload: Any) -> None:
    small = Small()
    with pytest.raises(CallFailed):
        drive(small.nodes[1].handlers[TELL](2, payload))
    assert small.nodes[1].values() == {}
    assert small.nodes[1].epochs.unheard_seconds(2) is None


def test_frames_and_turns_are_bounded() -> None:
    small = Small(5_000)
    one = small.nodes[1]
    looking, turns = one.epochs._look(), 1
    while True:
        try:
            looking.send(None)
        except StopIteration:
            break
        turns += 1
    assert turns == 1 + 5_000 // SLICE
    one.epochs._tell_raised()
    assert [len(sent.payload[1]) for sent in small.post.sent if sent.receiver == 2] == [ROWS, ROWS, 1_000]
    small.post.deliver_all()
    assert len(small.nodes[3].values()) == 5_000
    small.nodes[3].tell_all()
    assert max(len(sent.payload[1]) for sent in small.post.sent) == ROWS
    assert sum(len(sent.payload[1]) for sent in small.post.sent) == 10_000


def test_the_reason_comes_from_whoever_leads() -> None:
    small = Small()
    two = small.nodes[2]

    def reason() -> str:
        return drive(two.epochs.held_back()).reason

    assert reason() == "no_leader"
    two.known_leaders[small.groups[0]] = Leader(1, 1)
    assert reason() == "unheard"
    small.nodes[1].look()
    small.post.deliver_all()
    machine = _machine(previous=10)
    cast(Any, small.replicas[0]).machine = machine
    assert reason() == "idle"
    machine.extents.oldest_epoch = 10
    assert drive(two.epochs.held_back())[1:] == ("unreconciled", 123)
    machine.checkpoints.oldest = 10
    assert reason() == "checkpoint"
    small.replicas[0].collectable_epoch = 8
    assert reason() == "reader"
    assert drive(small.nodes[1].epochs.held_back()).reason == "reader"
    small.replicas[0].leads = False
    assert reason() == "unheard"
    del small.post.nodes[1]
    assert reason() == "unheard"
    small.loop.advance(SILENT_SECONDS + 1)
    assert reason() == "unheard"
    for replica in small.replicas:
        replica.collectable_epoch, replica.leads = 60, True
    small.nodes[1].look()
    assert drive(small.nodes[1].epochs.held_back()).reason == "nothing"


class _machine:
    """As much of a partition's state as a reason needs."""

    class Extents:
        oldest_epoch: int | None = None
        first_offset = 0

    class Checkpoints:
        oldest: int | None = None

        def oldest_epoch(self, time: int) -> int | None:
            return self.oldest

    time = next_offset = 0

    def __init__(self, previous: int) -> None:
        self.extents, self.checkpoints = self.Extents(), self.Checkpoints()
        self.max_collectable_epoch = previous - 1

    def extents_between(self, first: int, end: int, max_bytes: int) -> list[Any]:
        return [cast(Any, type("Extent", (), {"max_timestamp": 123}))]


class Histories(RuleBasedStateMachine):
    """Nodes whose controllers lag, partitions that come and go, leaders that were deposed and do not know it.

    A partition's `truth` stands for what its newest state needs: no value that was ever said may be above it,
    and nothing that any node takes for collectable may be needed by any partition that there is, or will be.
    """

    def __init__(self) -> None:
        super().__init__()
        self.loop, self.post, self.log = manual_loop(), Post(), Log(3)
        self.logs: dict[int, Log] = {}
        self.nodes: dict[int, GcNode] = {}
        self.truth: dict[int, int] = {}
        self.said: dict[int, int] = {}
        self.terms: dict[int, int] = {}
        self.topics = 0
        self.deleted: list[int] = []
        self.last: dict[tuple[int, int], int] = {}
        self.tables: dict[int, dict[int, int]] = {}
        for node in (1, 2, 3):
            self.restart(node)

    @rule(node=st.integers(1, 3))
    def restart(self, node: int) -> None:
        lag = Log()
        for index, entry in enumerate(self.log.entries[: len(self.logs[node].entries)] if node in self.logs
                                      else [], 2):  # fmt: skip
            lag.machine.apply(index, 1, entry)
            lag.entries.append(entry)
        self.logs[node] = lag
        self.nodes[node] = one = GcNode(self.post, node, lag.machine, self.loop)
        self.tables.pop(node, None)
        for key in [key for key in self.last if key[0] == node]:
            del self.last[key]
        for other in self.nodes.values():
            if other is not one:
                one.on_connect(other.node_id)
                other.on_disconnect(node)
                other.on_connect(node)

    @rule(node=st.integers(1, 3), entries=st.integers(1, 4))
    def apply(self, node: int, entries: int) -> None:
        log = self.logs[node]
        for entry in self.log.entries[len(log.entries) :][:entries]:
            log.entries.append(entry)
            log.machine.apply(1 + len(log.entries), 1, entry)

    @rule(by=st.integers(1, 5))
    def advance(self, by: int) -> None:
        self.log.do(AdvanceClusterEpoch(self.log.machine.cluster_epoch + by))

    @rule(partitions=st.integers(1, 2))
    def create(self, partitions: int) -> None:
        self.topics += 1
        self.log.topic(self.log.creation(self.topics, partitions=partitions))
        self._note_partitions()

    @precondition(lambda self: self.topics > len(self.deleted))
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from([n for n in range(1, self.topics + 1) if n not in self.deleted]))
        self.deleted.append(number)
        self.log.do(DeleteTopic(topic_id(number)))

    @precondition(lambda self: self.topics > len(self.deleted))
    @rule(data=st.data())
    def grow(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from([n for n in range(1, self.topics + 1) if n not in self.deleted]))
        topic = self.log.machine.topic_by_id(topic_id(number))
        assert topic is not None
        self.log.do(CreatePartitions(topic.topic_id, len(topic.partitions) + 1, None))
        self._note_partitions()

    def _note_partitions(self) -> None:
        for topic in self.log.machine.topics:
            for partition in topic.partitions:
                self.truth.setdefault(partition.group, partition.creation_epoch - 1)

    @precondition(lambda self: self.truth)
    @rule(data=st.data(), by=st.integers(1, 10))
    def rise(self, data: st.DataObject, by: int) -> None:
        group = data.draw(st.sampled_from(sorted(self.truth)))
        self.truth[group] = min(self.truth[group] + by, self.log.machine.cluster_epoch - 1)

    @precondition(lambda self: self.truth)
    @rule(data=st.data(), node=st.integers(1, 3), behind=st.integers(0, 6))
    def lead(self, data: st.DataObject, node: int, behind: int) -> None:
        """A node comes to lead; whoever led before may not know yet. Its state may be some entries behind."""
        group = data.draw(st.sampled_from(sorted(self.truth)))
        if self.logs[node].machine.place_of(group) is None:
            return
        self.terms[group] = self.terms.get(group, 0) + 1
        known = self.nodes[node].replicas.get(group)
        replica = self.nodes[node].replicas[group] = known or Replica(group, 0)
        # M(p) of a replica never goes down, and is never below the partition's creation.
        lowest = replica.collectable_epoch if known else 0
        replica.collectable_epoch = max(lowest, self.truth[group] - behind)
        replica.leads, replica.leader_epoch = True, self.terms[group]

    @precondition(lambda self: self.truth)
    @rule(data=st.data(), node=st.integers(1, 3))
    def catch_up(self, data: st.DataObject, node: int) -> None:
        for replica in self.nodes[node].replicas.values():
            replica.collectable_epoch = max(replica.collectable_epoch, self.truth[replica.group.id])

    @rule(node=st.integers(1, 3))
    def depose(self, node: int) -> None:
        for replica in self.nodes[node].replicas.values():
            replica.leads = replica.leader_epoch == self.terms[replica.group.id]

    @rule(node=st.integers(1, 3))
    def look(self, node: int) -> None:
        for replica in self.nodes[node].replicas.values():
            if replica.leads:
                group = replica.group.id
                self.said[group] = max(self.said.get(group, 0), replica.collectable_epoch)
        self.nodes[node].look()

    @rule(node=st.integers(1, 3))
    def tell_all(self, node: int) -> None:
        self.nodes[node].epochs._forget_gone(self.logs[node].machine)
        self.nodes[node].tell_all()

    @precondition(lambda self: self.post.sent)
    @rule(data=st.data(), doubled=st.booleans())
    def deliver(self, data: st.DataObject, doubled: bool) -> None:
        position = data.draw(st.integers(0, len(self.post.sent) - 1))
        sent = self.post.sent[position]
        if not doubled:
            self.post.sent.pop(position)
        self.post.deliver(sent)

    @precondition(lambda self: self.post.sent)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        self.post.sent.pop(data.draw(st.integers(0, len(self.post.sent) - 1)))

    @invariant()
    def nobody_knows_more_than_was_said(self) -> None:
        for node, one in self.nodes.items():
            values = one.values()
            for group, value in values.items():
                assert value <= self.said[group] <= self.truth[group]
            for group, value in self.tables.get(node, {}).items():
                gone = self.logs[node].machine.group_is_gone(group)
                assert gone or values[group] >= value, "a value went down"
            self.tables[node] = values

    @invariant()
    def nothing_that_is_needed_is_collectable(self) -> None:
        newest = self.log.machine
        needed = min(
            [newest.cluster_epoch, *(self.truth[p.group] for t in newest.topics for p in t.partitions)]
        )
        for node, one in self.nodes.items():
            m = one.epochs.maximum().epoch
            key = (node, id(one))
            assert self.last.get(key, 0) <= m <= needed
            assert m < newest.cluster_epoch, "a partition may be created now, and accept this very epoch"
            self.last[key] = m

    def teardown(self) -> None:
        """After a quiet end everybody knows what everybody said."""
        self.post.sent.clear()
        for node in self.nodes:
            self.look(node)
        self.post.deliver_all()
        for _ in range(2):
            for one in self.nodes.values():
                one.tell_all()
            self.post.deliver_all()
        known = [one.values() for one in self.nodes.values()]
        there = {p.group for t in self.log.machine.topics for p in t.partitions}
        for group in there:
            values = [of.get(group) for of in known]
            assert values[0] == values[1] == values[2]
            leading = [
                one.replicas[group].collectable_epoch
                for one in self.nodes.values()
                if group in one.replicas and one.replicas[group].leads
            ]
            if leading:
                assert values[0] is not None
                assert max(leading) <= values[0] <= self.said[group]
        super().teardown()


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def test_a_loop_that_fails_says_so() -> None:
    small = Small()
    told: list[Any] = []
    cast(Any, small.loop).call_exception_handler = told.append
    task = cast(Any, type("Task", (), {"cancelled": lambda: False, "exception": lambda: ValueError("x")}))
    CollectableEpochs._ended(small.nodes[1].epochs, task)
    assert "collectable epochs" in told[0]["message"]
    assert TELL_ALL_SECONDS > 0
