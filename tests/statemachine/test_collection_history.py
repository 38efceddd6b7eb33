"""Random histories of a cluster that collects level zero by epoch, on the real state machines.

Uploads are stamped with an epoch their node believes in, land whenever they like, and are fenced after that.
Leaders change, and what they had in their logs is kept in part. What they say of M(p) arrives late, in any
order, at nodes whose state of the controller is old. Any node deletes at any time what its M allows, without
a grace. Then no object may be gone that a partition names, or that an entry names which can still commit.
docs/epoch-gc.md has the argument for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from strandline.statemachine.controller.controller import Controller
from strandline.statemachine.controller.controller_commands import (
    AdvanceClusterEpoch,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
)
from strandline.statemachine.controller.controller_commands import Command as ControllerCommand
from strandline.statemachine.controller.controller_commands import encode as encode_controller
from strandline.statemachine.object_names import object_id
from strandline.statemachine.partition.epoch_window import EpochStatus, EpochWindow
from strandline.statemachine.partition.extent import ObjectExtent
from strandline.statemachine.partition.level_one import LevelOneExtent
from strandline.statemachine.partition.partition import PartitionStateMachine
from strandline.statemachine.partition.partition_commands import (
    AdvanceEpoch,
    AdvanceReconciled,
    Append,
    Checkpoint,
    Command,
    SetStartOffset,
    encode,
)
from strandline.statemachine.partition.placeholder import Placeholder
from tests.statemachine.controller_harness import registration, topic_id

NODES = range(2)
nodes = st.sampled_from(NODES)
picks = st.integers(0, 5)


@dataclass
class Upload:
    epoch: int
    identity: bytes


@dataclass
class Hold:
    """A fence that was granted, and is kept until its entry is in the leader's log."""

    window: EpochWindow
    upload: Upload


@dataclass
class Replicas:
    """A partition: what is committed and applied, and what its present leader has besides."""

    machine: PartitionStateMachine
    leased: dict[int, tuple[int, frozenset[bytes]]] = field(default_factory=dict)
    """By log index of a checkpoint: when its lease ends, and the objects it names."""
    window: EpochWindow = field(init=False)
    holds: list[Hold] = field(default_factory=list)
    log: list[list[Command]] = field(default_factory=list)
    index: int = 0
    clock: int = 1000

    def __post_init__(self) -> None:
        self.lead()

    def lead(self) -> None:
        self.index += 1
        self.machine.begin_term(self.index, self.machine.term + 1, 1)
        self.window = EpochWindow.recovered(self.machine.term, self.machine.max_applied_epoch)

    def commit(self, count: int) -> None:
        for commands in self.log[:count]:
            self.index += 1
            self.machine.apply(self.index, self.machine.term, encode(self.machine.term, self.clock, commands))
            for command in commands:
                if isinstance(command, Checkpoint):
                    self.leased[self.index] = (self.clock + command.lease, self.named())
        del self.log[:count]

    def named(self) -> frozenset[bytes]:
        return frozenset(one.object_id for one in self.machine.extents if isinstance(one, ObjectExtent))

    def needed(self) -> set[bytes]:
        """What it names, what its leased checkpoints name, and what an entry names that may yet commit."""
        needed = set(self.named())
        for until, named in self.leased.values():
            if until > self.machine.time:
                needed |= named
        for commands in self.log:
            for command in commands:
                if isinstance(command, Append):
                    needed |= {one.object_id for one in command.placeholders}
        return needed


class CollectionHistory(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.controller_log: list[bytes] = []
        self.newest = self.fresh_controller()
        self.views = [self.fresh_controller() for _ in NODES]
        self.heard: list[dict[int, int]] = [{} for _ in NODES]
        self.highest = [0 for _ in NODES]
        self.told: list[tuple[int, int]] = []
        """(group, value) of all that leaders ever said."""
        self.partitions: dict[int, Replicas] = {}
        self.uploads: list[Upload] = []
        """Named, and neither landed nor given up."""
        self.landed: list[Upload] = []
        self.stored: dict[bytes, int] = {}
        self.made = 0
        self.topics = 0
        self.do(registration(1))
        self.create_topic(2)

    # The controller.

    def fresh_controller(self) -> Controller:
        controller = Controller(lambda index, state: None)
        controller.begin_term(1, 1, 1)
        return controller

    def do(self, command: ControllerCommand) -> None:
        self.controller_log.append(encode_controller(command))
        self.newest.apply(len(self.controller_log) + 1, 1, self.controller_log[-1])
        groups = {group: epoch for topic in self.newest.topics for group, _, epoch in topic.partitions}
        self.partitions = {group: one for group, one in self.partitions.items() if group in groups}
        for group, creation_epoch in groups.items():
            if group not in self.partitions:
                machine = PartitionStateMachine(creation_epoch, lambda index, state: None)
                self.partitions[group] = Replicas(machine)

    @rule(count=st.integers(1, 2))
    def create_topic(self, count: int) -> None:
        if len(self.partitions) < 5:
            self.topics += 1
            index = len(self.controller_log) + 1
            self.do(CreateTopic(topic_id(self.topics), f"t{self.topics}", count, 1, None, (), index))

    @rule(which=picks, grows=st.booleans())
    def change_topic(self, which: int, grows: bool) -> None:
        topics = self.newest.topics
        if len(topics) < 2:
            return
        topic = topics[which % len(topics)]
        if grows:
            self.do(CreatePartitions(topic.topic_id, len(topic.partitions) + 1, None))
        else:
            self.do(DeleteTopic(topic.topic_id))

    @rule(by=st.sampled_from([1, 1, 1, 2, 5]))
    def advance_the_cluster_epoch(self, by: int) -> None:
        self.do(AdvanceClusterEpoch(self.newest.cluster_epoch + by))

    @rule(node=nodes, entries=st.integers(1, 9))
    def a_node_catches_up(self, node: int, entries: int) -> None:
        view = self.views[node]
        at = view.applied_index - 1
        for entry in self.controller_log[at : at + entries]:
            view.apply(view.applied_index + 1, 1, entry)

    # Producing.

    @rule(node=nodes, lag=st.sampled_from([0, 0, 0, 1, 3]))
    def begin_upload(self, node: int, lag: int) -> None:
        """Named with the epoch the node knows, or knew when it last asked."""
        self.name_upload(self.views[node].cluster_epoch - lag)

    def name_upload(self, epoch: int) -> None:
        self.made += 1
        self.uploads.append(Upload(max(epoch, 0), object_id(1, 1, self.made.to_bytes(16, "big"))))

    @rule(which=picks)
    def an_upload_lands(self, which: int) -> None:
        if self.uploads:
            upload = self.uploads.pop(which % len(self.uploads))
            self.stored[upload.identity] = upload.epoch
            self.landed.append(upload)

    def windows(self) -> list[tuple[int | None, int | None]]:
        return [(one.window.oldest, one.window.newest) for one in self.partitions.values()]

    def extents(self, group: int) -> list[ObjectExtent]:
        extents = self.partitions[group].machine.extents
        return [one for one in extents if isinstance(one, ObjectExtent)]

    def partition(self, which: int) -> Replicas | None:
        groups = sorted(self.partitions)
        return self.partitions[groups[which % len(groups)]] if groups else None

    @rule(which=picks, upload=picks)
    def a_leader_is_asked_for_a_fence(self, which: int, upload: int) -> None:
        partition = self.partition(which)
        if partition is None or not self.landed:
            return
        wanted = self.landed[upload % len(self.landed)]
        status = partition.window.classify(wanted.epoch)
        if status is EpochStatus.NEW and not partition.holds:
            partition.window = partition.window.slide(wanted.epoch)
        elif status is not EpochStatus.IN_WINDOW:
            return
        partition.holds.append(Hold(partition.window, wanted))

    @rule(which=picks, hold=picks)
    def a_leader_takes_an_entry(self, which: int, hold: int) -> None:
        partition = self.partition(which)
        if partition is not None and partition.holds:
            one = partition.holds.pop(hold % len(partition.holds))
            placeholder = Placeholder(2, 0, 10, one.upload.epoch, 0, one.upload.identity)
            partition.log.append([Append(one.window, [placeholder])])

    @rule(which=picks, lag=st.sampled_from([0, 0, 1, 2, 3]))
    def a_batch_is_written_at_once(self, which: int, lag: int) -> None:
        """By a node that asked what the newest epoch is, just now or a while ago."""
        self.name_upload(self.newest.cluster_epoch - lag)
        self.an_upload_lands(len(self.uploads) - 1)
        self.a_leader_is_asked_for_a_fence(which, len(self.landed) - 1)
        self.a_leader_takes_an_entry(which, 99)

    # What leaders do besides.

    @rule(node=nodes, which=picks)
    def follow_the_epoch(self, node: int, which: int) -> None:
        self.follow(which, self.views[node].cluster_epoch)

    def follow(self, which: int, epoch: int) -> None:
        partition = self.partition(which)
        if partition is not None and not partition.holds and epoch > partition.machine.max_applied_epoch:
            if partition.window.classify(epoch) is EpochStatus.NEW:
                partition.window = partition.window.slide(epoch)
            if partition.window.classify(epoch) is EpochStatus.IN_WINDOW:
                partition.log.append([AdvanceEpoch(partition.window)])

    @rule(
        by=st.sampled_from([1, 1, 4]),
        creates=st.booleans(),
        lags=st.lists(st.integers(0, 3), max_size=2),
        left=st.sampled_from([-1, -1, 0, 1, 9]),
    )
    def a_while_passes(self, by: int, creates: bool, lags: list[int], left: int) -> None:
        """Everybody writes, epochs go by and all follow them; level zero is lifted, but for one partition."""
        if creates:
            self.create_topic(1)
        for lag in lags:
            for which in range(len(self.partitions)):
                self.a_batch_is_written_at_once(which, lag)
        for _ in range(2):
            self.advance_the_cluster_epoch(by)
            for which in range(len(self.partitions)):
                self.follow(which, self.newest.cluster_epoch)
                self.commit(which, 9)
                if which != left % len(self.partitions):
                    self.reconcile(which, 99)
                    self.commit(which, 9)

    @rule(which=picks, batches=st.integers(1, 3))
    def reconcile(self, which: int, batches: int) -> None:
        partition = self.partition(which)
        if partition is None or not len(partition.machine.extents):
            return
        extents = list(partition.machine.extents)[:batches]
        self.made += 1
        first, end = extents[0].base_offset, extents[-1].end_offset
        unique = self.made.to_bytes(16, "big")
        one = LevelOneExtent(first, end, 0, 100, 10, partition.machine.term, unique)
        partition.log.append([AdvanceReconciled(first, [one])])

    @rule(which=picks, records=st.integers(0, 4))
    def delete_records(self, which: int, records: int) -> None:
        if (partition := self.partition(which)) is not None:
            machine = partition.machine
            partition.log.append([SetStartOffset(min(machine.start_offset + records, machine.next_offset))])

    @rule(which=picks, lease=st.integers(0, 50), passes=st.integers(0, 40))
    def checkpoint(self, which: int, lease: int, passes: int) -> None:
        if (partition := self.partition(which)) is not None:
            partition.clock += passes
            partition.log.append([Checkpoint(lease)])

    @rule(which=picks, entries=st.integers(1, 9))
    def commit(self, which: int, entries: int) -> None:
        if (partition := self.partition(which)) is not None:
            partition.commit(entries)

    @rule(which=picks, survive=st.integers(0, 3))
    def elect(self, which: int, survive: int) -> None:
        if (partition := self.partition(which)) is not None:
            partition.commit(survive)
            partition.log.clear()
            partition.holds.clear()
            partition.lead()

    # Collecting.

    @rule()
    def leaders_tell(self) -> None:
        self.told += [
            (group, one.machine.max_collectable_epoch) for group, one in sorted(self.partitions.items())
        ]

    @rule(node=nodes, back=st.integers(1, 8), count=st.integers(1, 8))
    def a_node_hears(self, node: int, back: int, count: int) -> None:
        """Something that was said some time ago, perhaps not for the first time."""
        first = max(len(self.told) - back, 0)
        for group, value in self.told[first : first + count]:
            self.heard[node][group] = max(value, self.heard[node].get(group, 0))

    def maximum(self, node: int) -> int:
        """M as a node takes it from the state of the controller that it has applied."""
        view, heard = self.views[node], self.heard[node]
        values = [
            max(heard.get(group, 0), creation_epoch - 1)
            for topic in view.topics
            for group, _, creation_epoch in topic.partitions
        ]
        return min([view.cluster_epoch - 1, *values])

    @rule(node=nodes)
    def a_node_collects(self, node: int) -> None:
        highest = self.maximum(node)
        assert highest >= self.highest[node]
        self.highest[node] = highest
        self.stored = {identity: epoch for identity, epoch in self.stored.items() if epoch > highest}

    @rule(node=nodes, other=nodes, entries=st.sampled_from([0, 0, 1, 9]))
    def all_is_told_and_collected(self, node: int, other: int, entries: int) -> None:
        self.a_node_catches_up(node, entries)
        self.leaders_tell()
        self.a_node_hears(node, len(self.partitions), len(self.partitions))
        self.a_node_collects(node)
        self.a_node_collects(other)

    @invariant()
    def no_object_is_gone_that_is_needed(self) -> None:
        for group, partition in self.partitions.items():
            gone = partition.needed() - self.stored.keys()
            assert not gone, f"group {group} needs {sorted(gone)}"


@pytest.fixture
def history() -> CollectionHistory:
    """Two partitions, in windows that both skipped from 5 to 9, and a node that knows everything."""
    history = CollectionHistory()
    history.start()
    history.a_while_passes(by=4, creates=False, lags=[], left=9)
    history.all_is_told_and_collected(node=0, other=0, entries=9)
    assert history.windows() == [(5, 9), (5, 9)]
    assert history.highest[0] == 4
    return history


def test_a_topic_that_a_node_does_not_know_yet_is_safe_from_it(history: CollectionHistory) -> None:
    history.a_while_passes(by=1, creates=True, lags=[0], left=-1)
    history.all_is_told_and_collected(node=0, other=0, entries=0)
    assert history.highest[0] == 8
    history.no_object_is_gone_that_is_needed()


def test_a_partition_whose_leader_was_never_heard_is_safe(history: CollectionHistory) -> None:
    history.a_while_passes(by=1, creates=True, lags=[0], left=-1)
    history.a_node_catches_up(node=0, entries=99)
    history.leaders_tell()
    history.a_node_hears(node=0, back=3, count=2)
    history.a_node_collects(node=0)
    assert history.highest[0] == 8
    history.no_object_is_gone_that_is_needed()


def test_a_batch_in_the_middle_of_its_window_does_not_close_what_is_below_it(
    history: CollectionHistory,
) -> None:
    history.name_upload(7)
    history.a_batch_is_written_at_once(which=0, lag=1)
    history.commit(which=0, entries=9)
    history.reconcile(which=0, batches=9)
    history.commit(which=0, entries=9)
    history.all_is_told_and_collected(node=0, other=0, entries=9)
    history.an_upload_lands(0)
    history.a_leader_is_asked_for_a_fence(which=0, upload=1)
    history.a_node_collects(node=0)
    history.a_leader_takes_an_entry(which=0, hold=0)
    history.no_object_is_gone_that_is_needed()
    history.commit(which=0, entries=9)
    assert [one.epoch for one in history.extents(1)] == [7]


def test_an_upload_that_lands_after_its_epoch_was_collected_is_refused(history: CollectionHistory) -> None:
    history.name_upload(9)
    history.a_while_passes(by=1, creates=False, lags=[], left=9)
    history.a_while_passes(by=1, creates=False, lags=[], left=9)
    history.all_is_told_and_collected(node=0, other=0, entries=9)
    assert history.highest[0] >= 9
    history.an_upload_lands(0)
    history.a_leader_is_asked_for_a_fence(which=0, upload=0)
    assert history.partitions[1].holds == []
    history.elect(which=0, survive=0)
    history.a_leader_is_asked_for_a_fence(which=0, upload=0)
    assert history.partitions[1].holds == []


def test_entries_come_in_the_order_of_their_windows(history: CollectionHistory) -> None:
    """An upload of a new epoch has to wait until the entry of one that was granted before is in the log."""
    history.advance_the_cluster_epoch(by=1)
    for number, epoch in enumerate((7, 10)):
        history.name_upload(epoch)
        history.an_upload_lands(0)
        history.a_leader_is_asked_for_a_fence(which=0, upload=number)
    history.a_leader_takes_an_entry(which=0, hold=1)
    history.a_leader_takes_an_entry(which=0, hold=0)
    history.commit(which=0, entries=9)
    assert [one.epoch for one in history.extents(1)] == [7]


def test_what_a_leased_checkpoint_names_stays_and_goes_with_the_lease(history: CollectionHistory) -> None:
    history.a_batch_is_written_at_once(which=0, lag=0)
    history.commit(which=0, entries=9)
    history.checkpoint(which=0, lease=50, passes=0)
    history.commit(which=0, entries=9)
    history.a_while_passes(by=1, creates=False, lags=[], left=9)
    history.all_is_told_and_collected(node=0, other=0, entries=9)
    assert history.highest[0] == 8
    history.no_object_is_gone_that_is_needed()
    history.checkpoint(which=0, lease=0, passes=50)
    history.commit(which=0, entries=9)
    history.all_is_told_and_collected(node=0, other=0, entries=9)
    assert history.highest[0] == 9
    assert not history.stored


TestCollectionHistory = CollectionHistory.TestCase
TestCollectionHistory.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)
