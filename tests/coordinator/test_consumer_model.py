"""Consumer groups of KIP-848 under any order of heartbeats, lost answers, crashes and changes of topics.

Every member is a client that does what it is told, late or never. Whatever happens, no partition is ever
really had by two of them, and once they may all speak the group comes to rest where its target says.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from strandline.node.coordinator.groups.consumer_draft import size_of
from strandline.node.coordinator.groups.consumer_matches import size_of_matches
from strandline.node.coordinator.groups.consumer_member import LEAVING, Partition
from strandline.node.refusal import Refusal
from strandline.statemachine.groups.consumer_group_commands import LEFT_FOR_A_WHILE, STABLE, partitions_of
from tests.coordinator.consumers import Cluster, Consumer, Log, settle

NAMES = ["events", "clicks", "event.log"]
PATTERNS = ["", "e.*", "(clicks|other)"]
Subscription = tuple[tuple[str, ...], str]
subscriptions: st.SearchStrategy[Subscription] = st.tuples(
    st.lists(st.sampled_from(NAMES), unique=True).map(lambda names: tuple(sorted(names))),
    st.sampled_from(PATTERNS),
)


class Consumers(RuleBasedStateMachine):
    """Clients that are alive, those that are gone without a word, and the coordinator."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster()
        self.log = Log(self.cluster, max_members=6)
        self.alive: list[Consumer] = []
        self.silent: list[Consumer] = []
        self.count = 0

    @initialize(
        sizes=st.lists(st.integers(1, 6), min_size=2, max_size=2),
        members=st.lists(subscriptions, min_size=2, max_size=5),
    )
    def begin(self, sizes: list[int], members: list[Subscription]) -> None:
        for name, size in zip(NAMES, sizes, strict=False):
            self.cluster.create(name, size)
        for subscription in members:
            self.come(subscription, None, None)

    def one(self, data: st.DataObject) -> Consumer:
        return data.draw(st.sampled_from(self.alive))

    # Clients.

    @rule(
        subscription=subscriptions,
        instance=st.sampled_from([None, None, "i", "k"]),
        assignor=st.sampled_from([None, "uniform", "range"]),
    )
    def join(self, subscription: Subscription, instance: str | None, assignor: str | None) -> None:
        self.come(subscription, instance, assignor)

    def come(self, subscription: Subscription, instance: str | None, assignor: str | None) -> None:
        self.count += 1
        consumer = Consumer(f"m{self.count}", *subscription, instance, assignor)
        answer = self.log.say(consumer.word())[0]
        if not isinstance(answer, Refusal):
            consumer.hear(answer)
            self.alive.append(consumer)

    @precondition(lambda self: len(self.alive) > 1)
    @rule(data=st.data())
    def everybody_in_some_order(self, data: st.DataObject) -> None:
        for consumer in data.draw(st.permutations(self.alive)):
            consumer.hear(self.log.say(consumer.word())[0])
            if data.draw(st.booleans()):
                consumer.obey()

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), lost=st.booleans())
    def heartbeat(self, data: st.DataObject, lost: bool) -> None:
        consumer = self.one(data)
        answer = self.log.say(consumer.word())[0]
        if lost:
            consumer.missed()
        else:
            consumer.hear(answer)

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def several_at_once(self, data: st.DataObject) -> None:
        some = data.draw(st.lists(st.sampled_from(self.alive), unique_by=id))
        for consumer, answer in zip(some, self.log.say(*(one.word() for one in some)), strict=True):
            consumer.hear(answer)

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def obey(self, data: st.DataObject) -> None:
        self.one(data).obey()

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), subscription=subscriptions)
    def subscribe(self, data: st.DataObject, subscription: Subscription) -> None:
        consumer = self.one(data)
        consumer.topics, consumer.pattern = subscription
        consumer.says_all = True

    @precondition(lambda self: len(self.alive) > 1)
    @rule(data=st.data(), how=st.sampled_from(["leaves", "leaves for a while", "falls silent"]))
    def somebody_goes(self, data: st.DataObject, how: str) -> None:
        consumer = self.one(data)
        self.alive.remove(consumer)
        if how == "leaves":
            self.log.say(consumer.word(LEAVING))
            return
        if how == "leaves for a while" and consumer.instance_id:
            self.log.say(consumer.word(LEFT_FOR_A_WHILE))
            consumer.owned = frozenset()
        self.silent.append(consumer)

    @precondition(lambda self: self.silent)
    @rule(data=st.data())
    def somebody_wakes(self, data: st.DataObject) -> None:
        """Who was silent is heard again; if its time was over, it is fenced."""
        consumer = data.draw(st.sampled_from(self.silent))
        self.silent.remove(consumer)
        self.alive.append(consumer)

    @precondition(lambda self: self.alive or self.silent)
    @rule(data=st.data())
    def time_is_over(self, data: st.DataObject) -> None:
        self.log.overdue(data.draw(st.sampled_from(self.silent or self.alive)).member_id)

    # Around them.

    @rule(size=st.integers(1, 4))
    def topic_comes_or_goes(self, size: int) -> None:
        if self.cluster.topic("event.log") is None:
            self.cluster.create("event.log", size)
        else:
            self.cluster.delete("event.log")

    @rule(more=st.integers(1, 2))
    def topic_grows(self, more: int) -> None:
        self.cluster.grow("events", min(len(self.cluster.topic("events").partitions) + more, 12))

    @rule()
    def coordinator_restarts(self) -> None:
        self.log.groups.restart()
        self.log.groups.begin_term()

    # What is promised.

    @invariant()
    def nobody_shares_a_partition(self) -> None:
        members = {} if self.log.group is None else self.log.group.members
        owners: dict[Partition, str] = {}
        for consumer in self.alive + self.silent:
            if consumer.member_id in members:  # a member whose time is over is fenced wherever it matters
                for partition in consumer.owned:
                    assert owners.setdefault(partition, consumer.member_id) == consumer.member_id
                    assert self.log.present.owners.get(partition) == consumer.member_id

    @invariant()
    def every_partition_of_the_target_is_somebodys(self) -> None:
        group = self.log.group
        if group is None:
            return
        wanted = [part for target in group.targets.values() for part in partitions_of(target)]
        assert len(set(wanted)) == len(wanted)
        assert set(group.targets) <= set(group.members)
        assert set(group.static.values()) <= set(group.members)

    @invariant()
    def what_it_takes_is_counted(self) -> None:
        group = self.log.group
        if group is not None:
            said = sum(size_of(member) for member in group.members.values())
            assert self.log.bytes == said + size_of_matches(group.matches)

    def teardown(self) -> None:
        """Who is silent is fenced, the others speak until they have said all: the group is at rest."""
        for consumer in self.silent:
            self.log.overdue(consumer.member_id)
        if self.log.group is not None:
            gone = set(self.log.group.members) - {consumer.member_id for consumer in self.alive}
            assert not gone, f"{gone} have neither left nor fallen silent"
        settle(self.log, self.alive)
        group = self.log.group
        if not self.alive or group is None:
            return
        said = len(self.log.changes)
        settle(self.log, self.alive, 1)
        assert len(self.log.changes) == said, "a steady heartbeat is in the log"
        joined = [consumer for consumer in self.alive if consumer.member_id in group.members]
        for consumer in joined:
            member = group.members[consumer.member_id]
            target = group.targets.get(consumer.member_id, ())
            assert (member.state, member.epoch, member.assigned) == (STABLE, group.epoch, target)
            assert consumer.owned == frozenset(partitions_of(target))
        wanted: set[Partition] = set()
        for consumer in joined:
            names = set(consumer.topics)
            if consumer.pattern:
                names |= {name for name in NAMES if name in self.matching(consumer.pattern)}
            for name in names:
                if self.cluster.topic(name) is not None:
                    wanted |= self.cluster.parts(name)
        assert set(group.owners) == wanted

    @staticmethod
    def matching(pattern: str) -> set[str]:
        return {"events", "event.log"} if pattern == "e.*" else {"clicks"}


def test_no_partition_is_had_by_two_and_every_group_comes_to_rest() -> None:
    run_state_machine_as_test(
        Consumers, settings=settings(max_examples=100, stateful_step_count=40, deadline=None)
    )
