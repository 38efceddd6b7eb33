"""The groups' machine against a plain model, under any order of commits, markers, generations and restarts.

The model never holds an offset. It keeps the whole history and says by definition what must be there: of all
commits for a partition since it was last removed, plain ones and those of transactions that committed, the
one that came last.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from strandline.statemachine.groups.classic_group import ClassicGroup
from strandline.statemachine.groups.group_commands import (
    AssignGeneration,
    CommitOffsets,
    CommitTransactionOffsets,
    DeleteGroup,
    DeleteOffsets,
    EndGroupTransaction,
    ExpireOffsets,
    ForgetTopics,
    PartitionOffset,
    ReplaceStaticMember,
    StartGeneration,
    TopicOffsets,
)
from strandline.statemachine.kafka_errors import KafkaError, Refused
from strandline.statemachine.machine import Captured, packed
from tests.statemachine.groups_harness import NAMES, Groups, member

TOPICS = list(NAMES)
PARTITIONS = range(3)
RETENTION, PRODUCER_EXPIRY = 300, 500
group_ids = st.sampled_from(["g", "h"])
producer_ids = st.sampled_from([1, 2, 3])
member_ids = st.sampled_from(["", "a", "b", "c", "d"])
instances = st.sampled_from([None, None, "i", "j"])
offs = st.sampled_from([0, 0, 0, 0, -1, 1])
"""How far a number in a command is from the right one: mostly it is right."""
keys = st.lists(st.tuples(st.sampled_from(TOPICS), st.sampled_from(PARTITIONS)), min_size=1, unique=True)


class Commit(NamedTuple):
    """One offset of one commit; number 0: of no transaction."""

    log_index: int
    offset: int
    time: int
    retention: int | None
    producer: int = 0
    number: int = 0


@dataclass
class ModelGroup:
    generation: int = 0
    members: dict[str, str | None] = field(default_factory=dict)
    """Instance id by member id."""
    assigned: bool = True
    since: int = 0
    there: bool = False

    def refusal(self, member_id: str, instance: str | None, generation: int, transaction: bool) -> Any:
        """Kafka's table, by its order."""
        anonymous = (member_id, instance, generation) == ("", None, -1)
        if not self.members and generation == -1:
            return None
        if not self.there:
            return KafkaError.ILLEGAL_GENERATION if transaction else KafkaError.GROUP_ID_NOT_FOUND
        if not self.generation:
            return KafkaError.UNKNOWN_MEMBER_ID
        if anonymous:
            return None if transaction else KafkaError.UNKNOWN_MEMBER_ID
        holders = [one for one, held in self.members.items() if instance is not None and held == instance]
        if instance is not None and holders != [member_id]:
            return KafkaError.FENCED_INSTANCE_ID if holders else KafkaError.UNKNOWN_MEMBER_ID
        if member_id not in self.members:
            return KafkaError.UNKNOWN_MEMBER_ID
        if generation != self.generation:
            return KafkaError.ILLEGAL_GENERATION
        return None if transaction or self.assigned else KafkaError.REBALANCE_IN_PROGRESS


@dataclass
class ModelProducer:
    epoch: int = -1
    ended: int = 0
    open: int = 0
    time: int = 0


class GroupsAgainstModel(RuleBasedStateMachine):
    """Every rule says what must come of its command; the invariants look at all that is there."""

    @initialize()
    def start(self) -> None:
        self.real, self.twin = Groups(), Groups()
        self.captured: list[tuple[Captured, bytes]] = []
        self.groups: dict[str, ModelGroup] = {}
        self.producers: dict[int, ModelProducer] = {}
        self.history: dict[tuple[str, tuple[bytes, int]], list[Commit]] = defaultdict(list)
        """All commits for a group's partition, in their order."""
        self.removed: dict[tuple[str, tuple[bytes, int]], int] = {}
        """Index at which a group's partition was last removed."""
        self.committed: set[tuple[int, int]] = set()
        """Transactions that committed, by producer and number."""

    def do(self, command: Any) -> Any:
        before = packed(self.real.machine.fields())
        result = self.real.do(command)
        assert self.twin.do(command) == result
        if isinstance(result, Refused):
            assert packed(self.real.machine.fields()) == before
        return result

    def expect(self, command: Any, refusal: KafkaError | None) -> bool:
        result = self.do(command)
        assert result == (Refused(refusal) if refusal else result)
        assert isinstance(result, Refused) == (refusal is not None)
        return refusal is None

    @property
    def now(self) -> int:
        return self.real.time

    def winner(self, group: str, key: tuple[bytes, int]) -> Commit | None:
        gone = self.removed.get((group, key), 0)
        last = None
        for one in self.history[group, key]:
            counts = not one.number or (one.producer, one.number) in self.committed
            if one.log_index > gone and counts:
                last = one
        return last

    def is_pending(self, group: str, key: tuple[bytes, int]) -> bool:
        gone = self.removed.get((group, key), 0)
        return any(
            one.log_index > gone
            and one.number != 0
            and self.producers.get(one.producer, ModelProducer()).open == one.number
            for one in self.history[group, key]
        )

    def remove(self, group: str, key: tuple[bytes, int]) -> bool:
        there = self.winner(group, key) is not None or self.is_pending(group, key)
        self.removed[group, key] = self.real.index
        return there

    def all_keys(self) -> list[tuple[bytes, int]]:
        return [(topic, partition) for topic in TOPICS for partition in PARTITIONS]

    # Membership.

    @rule(group=group_ids, wanted=st.lists(member_ids.filter(bool), unique=True), off=offs, data=st.data())
    def a_generation_starts(self, group: str, wanted: list[str], off: int, data: st.DataObject) -> None:
        held = dict(zip(wanted, data.draw(st.permutations(["i", "j", None, None])), strict=False))
        present = self.groups.get(group, ModelGroup())
        generation = max(present.generation + 1 + off, 1)
        members = [member(one, held[one], "events") for one in wanted]
        leader = wanted[0] if wanted else ""
        command = StartGeneration(group, generation, "consumer", "range", leader, members)
        right = present.generation in (0, generation - 1)
        if self.expect(command, None if right else KafkaError.ILLEGAL_GENERATION):
            self.groups[group] = ModelGroup(generation, held, not wanted, self.now, True)

    @rule(group=group_ids, off=offs)
    def a_generation_is_assigned(self, group: str, off: int) -> None:
        present = self.groups.get(group, ModelGroup())
        refusal = None
        if not present.generation:
            refusal = KafkaError.UNKNOWN_MEMBER_ID
        elif off:
            refusal = KafkaError.ILLEGAL_GENERATION
        elif present.assigned:
            refusal = KafkaError.REBALANCE_IN_PROGRESS
        if self.expect(AssignGeneration(group, present.generation + off, {"a": b"x"}), refusal):
            present.assigned = True

    @rule(group=group_ids, old=member_ids, instance=st.sampled_from(["i", "j"]), off=offs, data=st.data())
    def a_static_member_comes_back(
        self, group: str, old: str, instance: str, off: int, data: st.DataObject
    ) -> None:
        present = self.groups.get(group, ModelGroup())
        new = data.draw(member_ids.filter(lambda one: one and (one == old or one not in present.members)))
        command = ReplaceStaticMember(group, present.generation + off, old, member(new, instance))
        refusal = None
        if not present.generation:
            refusal = KafkaError.UNKNOWN_MEMBER_ID
        elif off:
            refusal = KafkaError.ILLEGAL_GENERATION
        elif present.members.get(old) != instance:
            refusal = KafkaError.UNKNOWN_MEMBER_ID
        if self.expect(command, refusal):
            present.members = {new if one == old else one: held for one, held in present.members.items()}

    # Commits.

    def said(self, data: st.DataObject, group: str) -> tuple[str, int, str | None]:
        """Member, generation and instance as a client would say, right or wrong."""
        present = self.groups.get(group, ModelGroup())
        if data.draw(st.booleans()):
            return "", -1, None
        member_id = data.draw(st.sampled_from([*present.members, "", "z"]))
        instance = data.draw(st.sampled_from([None, present.members.get(member_id), "j"]))
        return member_id, present.generation + data.draw(offs), instance

    def rows(self, chosen: list[tuple[bytes, int]], offset: int) -> list[TopicOffsets]:
        topics = dict.fromkeys(topic for topic, _ in chosen)
        return [
            TopicOffsets(
                topic,
                NAMES[topic],
                [PartitionOffset(number, offset, 1, "m") for one, number in chosen if one == topic],
            )
            for topic in topics
        ]

    @rule(
        data=st.data(),
        group=group_ids,
        chosen=keys,
        offset=st.integers(0, 99),
        retention=st.sampled_from([-1, -1, 100]),
    )
    def offsets_are_committed(
        self, data: st.DataObject, group: str, chosen: list[tuple[bytes, int]], offset: int, retention: int
    ) -> None:
        member_id, generation, instance = self.said(data, group)
        present = self.groups.get(group, ModelGroup())
        refusal = present.refusal(member_id, instance, generation, False)
        command = CommitOffsets(group, member_id, generation, instance, self.rows(chosen, offset), retention)
        if self.expect(command, refusal):
            present.there = True
            self.groups[group] = present
            own = None if retention == -1 else retention
            for key in chosen:
                self.history[group, key].append(Commit(self.real.index, offset, self.now, own))

    @rule(
        data=st.data(),
        group=group_ids,
        chosen=keys,
        offset=st.integers(0, 99),
        producer=producer_ids,
        off=offs,
        epoch_off=offs,
    )
    def offsets_join_a_transaction(
        self,
        data: st.DataObject,
        group: str,
        chosen: list[tuple[bytes, int]],
        offset: int,
        producer: int,
        off: int,
        epoch_off: int,
    ) -> None:
        member_id, generation, instance = self.said(data, group)
        known = self.producers.get(producer, ModelProducer())
        number = max((known.open or known.ended + 1) + off, 1)
        epoch = max(known.epoch + epoch_off, 0)
        present = self.groups.get(group, ModelGroup())
        if epoch < known.epoch:
            refusal = KafkaError.INVALID_PRODUCER_EPOCH
        elif number <= known.ended or (known.open and number < known.open):
            refusal = KafkaError.INVALID_TXN_STATE
        elif known.open and number > known.open:
            refusal = KafkaError.CONCURRENT_TRANSACTIONS
        else:
            refusal = present.refusal(member_id, instance, generation, True)
        command = CommitTransactionOffsets(
            group, member_id, generation, instance, producer, epoch, number, self.rows(chosen, offset)
        )
        if self.expect(command, refusal):
            present.there = True
            self.groups[group] = present
            self.producers[producer] = ModelProducer(epoch, known.ended, number, self.now)
            for key in chosen:
                one = Commit(self.real.index, offset, self.now, None, producer, number)
                self.history[group, key].append(one)

    @rule(producer=producer_ids, off=offs, epoch_off=offs, commit=st.booleans())
    def a_marker_comes(self, producer: int, off: int, epoch_off: int, commit: bool) -> None:
        known = self.producers.get(producer, ModelProducer())
        number = max((known.open or known.ended + 1) + off, 1)
        epoch = max(known.epoch + epoch_off, 0)
        result = self.do(EndGroupTransaction(producer, epoch, number, commit, 4))
        assert result.ignored == (number <= known.ended)
        if result.ignored:
            return
        if commit and known.open == number:
            self.committed.add((producer, number))
        still_open = known.open if known.open > number else 0
        self.producers[producer] = ModelProducer(max(epoch, known.epoch), number, still_open, self.now)

    # Ends.

    @rule(group=group_ids)
    def a_group_is_deleted(self, group: str) -> None:
        present = self.groups.get(group)
        refusal = KafkaError.GROUP_ID_NOT_FOUND if present is None else None
        if present is not None and present.members:
            refusal = KafkaError.NON_EMPTY_GROUP
        if self.expect(DeleteGroup(group), refusal):
            del self.groups[group]
            for key in self.all_keys():
                self.remove(group, key)

    @rule(group=group_ids, chosen=keys)
    def offsets_are_deleted(self, group: str, chosen: list[tuple[bytes, int]]) -> None:
        command = DeleteOffsets(group, [(topic, NAMES[topic], [number]) for topic, number in chosen])
        present = self.groups.get(group)
        result = self.do(command)
        if present is None:
            assert result == Refused(KafkaError.GROUP_ID_NOT_FOUND)
            return
        # Every member is subscribed to events, and to nothing else.
        free = [key for key in chosen if not present.members or NAMES[key[0]] != "events"]
        assert result.offsets == sum([self.remove(group, key) for key in free])
        assert len(result.subscribed) == len(chosen) - len(free)

    @rule(topic=st.sampled_from(TOPICS))
    def a_topic_is_deleted(self, topic: bytes) -> None:
        gone = self.do(ForgetTopics([*self.groups], [topic]))
        keys = [(group, (topic, number)) for group in self.groups for number in PARTITIONS]
        assert gone.offsets == sum([self.remove(*one) for one in keys])

    @rule(passed=st.sampled_from([1, 50, 150, 400]))
    def time_passes(self, passed: int) -> None:
        self.real.time += passed
        self.twin.time += passed

    @rule(ahead=st.sampled_from([0, 0, 120]))
    def what_is_old_goes(self, ahead: int) -> None:
        """By a clock that most agree on; the leaders' before may have been ahead of it."""
        now = max(self.now - ahead, 0)
        result = self.do(ExpireOffsets([*self.groups], now, RETENTION, PRODUCER_EXPIRY))
        for known in self.producers.values():
            known.time = min(known.time, now)
        old = []
        for group, present in self.groups.items():
            for key in [] if present.members else self.all_keys():
                there = self.winner(group, key)
                if there is None or self.is_pending(group, key):
                    continue
                ends = there.time + there.retention if there.retention is not None else 0
                if now >= (ends or max(there.time, present.since) + RETENTION):
                    old.append((group, key))
        for one in old:
            self.remove(*one)
        empty = [
            group
            for group, present in self.groups.items()
            if not present.members
            and not any(self.winner(group, key) or self.is_pending(group, key) for key in self.all_keys())
        ]
        for group in empty:
            del self.groups[group]
        quiet = [
            producer
            for producer, known in self.producers.items()
            if not known.open and known.time < now - PRODUCER_EXPIRY
        ]
        for producer in quiet:
            # It counts from the beginning: what it committed before is no transaction of these numbers.
            del self.producers[producer]
            for commits in self.history.values():
                commits[:] = [
                    one._replace(number=self.former(one.number)) if one.producer == producer else one
                    for one in commits
                ]
            self.committed = {
                (one, self.former(number) if one == producer else number) for one, number in self.committed
            }
        assert result == (len(old), empty, len(quiet))

    def former(self, number: int) -> int:
        """A number that no transaction has from now on."""
        return number + 1000 * self.real.index if number < 1000 else number

    # The log.

    @rule()
    def another_leads(self) -> None:
        self.real.begin_term()
        self.twin.begin_term()

    @rule()
    def one_of_them_restarts_from_a_snapshot(self) -> None:
        self.twin.machine.restore(self.real.machine.snapshot())

    @rule()
    def a_snapshot_is_captured_and_made_later(self) -> None:
        self.captured.append((self.real.machine.capture(), self.twin.machine.snapshot()))

    @rule()
    def it_is_made(self) -> None:
        """With what the state was, whatever was applied since; twice, as after a disk that was full."""
        for captured, state in self.captured:
            assert captured() == state
            assert captured() == state
        self.captured.clear()

    @invariant()
    def the_totals_are_those_that_a_replica_counts_that_restored(self) -> None:
        fresh = Groups()
        fresh.machine.restore(self.twin.machine.snapshot())
        for totals in (self.real.machine.totals, self.twin.machine.totals):
            counted = fresh.machine.totals
            assert (totals.offsets, totals.bytes) == (counted.offsets, counted.bytes)
            assert totals.topics == counted.topics

    @invariant()
    def replicas_agree_byte_for_byte(self) -> None:
        assert self.real.machine.snapshot() == self.twin.machine.snapshot()

    @invariant()
    def the_offsets_are_those_of_the_history(self) -> None:
        assert set(self.real.machine.groups) == set(self.groups)
        for group in self.groups:
            for key in self.all_keys():
                there, must = self.real.row(key[1], key[0], group), self.winner(group, key)
                assert (there is None) == (must is None)
                if there is not None and must is not None:
                    assert (there.offset, there.log_index, there.time) == (
                        must.offset,
                        must.log_index,
                        must.time,
                    )
                assert self.real.pending(key[1], key[0], group) == self.is_pending(group, key)

    @invariant()
    def members_and_producers_are_the_models(self) -> None:
        for group, present in self.groups.items():
            membership = self.real.machine.groups[group].membership
            assert (membership is None) == (present.generation == 0)
            if isinstance(membership, ClassicGroup):
                assert membership.generation == present.generation
                held = {one.member_id: one.instance_id for one in membership.members.values()}
                assert held == present.members
                assert membership.awaits_assignment == (not present.assigned)
        real = {
            producer: ModelProducer(known.epoch, known.ended, known.open, known.last_time)
            for producer, known in self.real.machine.producers
        }
        assert real == self.producers


def test_groups_keep_to_the_model() -> None:
    run_state_machine_as_test(
        GroupsAgainstModel, settings=settings(max_examples=60, stateful_step_count=30, deadline=None)
    )
