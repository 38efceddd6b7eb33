"""A coordinator of transactions and its leader: what is answered when, and what is done whoever fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import msgpack
import pytest

from strandline.node.controller.client import Unavailable
from strandline.node.controller.leaders import Leader
from strandline.node.coordinator.transactions import markers
from strandline.node.coordinator.transactions import transaction_coordinator as module
from strandline.node.coordinator.transactions.markers import CALL_SECONDS, CALLS_AT_ONCE
from strandline.node.coordinator.transactions.transaction_coordinator import (
    ProducerIdentity,
    TransactionCoordinator,
)
from strandline.node.partition.transaction_markers import MAX_MARKERS
from strandline.node.raft.outcome import Outcome, Overloaded
from strandline.node.refusal import Refusal
from strandline.node.rpc import CallFailed
from strandline.statemachine.controller.controller_commands import DeleteTopic
from strandline.statemachine.kafka_errors import KafkaError
from strandline.statemachine.transactions.transaction_commands import TransactionOpcode
from strandline.statemachine.transactions.transaction_state import (
    LAST_CLIENT_EPOCH,
    Transaction,
    TransactionState,
)
from strandline.statemachine.transactions.transactions import TransactionsMachine
from tests.coordinator.transaction_harness import (
    GROUPS_COORDINATOR,
    Coordinated,
    Member,
    code,
    led,
    lost,
    state,
    turns,
)

MINUTE = 60_000


async def producer(coordinator: TransactionCoordinator, tid: str = "t") -> ProducerIdentity:
    given = await coordinator.init_producer(tid, MINUTE)
    assert isinstance(given, ProducerIdentity)
    return given


async def begun(coordinated: Coordinated, member: Member, *numbers: int, tid: str = "t") -> ProducerIdentity:
    of = await producer(member.coordinator, tid)
    partitions = [coordinated.partition(number) for number in numbers or (0,)]
    assert isinstance(await member.coordinator.enlist(tid, *of, partitions), int)
    return of


async def until(what: Callable[[], bool], seconds: float = 30) -> None:
    for _ in range(int(seconds * 100)):
        if what():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came to be")


# Markers.


def test_every_partition_and_group_gets_its_marker_and_then_it_is_complete() -> None:
    async def test(coordinated: Coordinated, member: Member) -> None:
        of = await begun(coordinated, member, 0, 1, 2)
        await member.coordinator.enlist("t", *of, groups=["g", "h"])
        assert await member.coordinator.end("t", *of, commit=True, raises=False) == of
        await until(lambda: state(member) is TransactionState.COMPLETE_COMMIT)
        groups = [coordinated.raft_group(number) for number in (0, 1, 2)]
        # Both groups have one coordinator: one marker for both.
        assert sorted(sent[1:] for sent in coordinated.sent) == sorted(
            (group, *of, 1, True, 1) for group in (*groups, GROUPS_COORDINATOR)
        )
        assert len({sent.node for sent in coordinated.sent}) == 3
        assert len(coordinated.calls) == 3, "what goes to one node goes together"

    led(test)


@pytest.mark.parametrize("commit", [False, True])
def test_the_end_is_answered_when_it_is_decided_and_the_next_one_begins_when_it_is_carried_out(
    commit: bool,
) -> None:
    async def test(coordinated: Coordinated, member: Member) -> None:
        coordinated.gate = asyncio.Event()
        of = await begun(coordinated, member)
        ended = await member.coordinator.end("t", *of, commit=commit, raises=True)
        assert ended == (of.producer_id, of.epoch + 1)
        assert state(member) is (
            TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
        )
        asked = asyncio.ensure_future(member.coordinator.enlist("t", *ended, [coordinated.partition(1)]))
        await turns(50)
        assert not asked.done()
        assert [sent.epoch for sent in coordinated.sent] == [of.epoch + 1]
        assert [sent.commit for sent in coordinated.sent] == [commit]
        coordinated.gate.set()
        assert await asked == 2
        assert state(member) is TransactionState.ONGOING

    led(test)


def test_what_begins_the_next_transaction_is_not_logged_before_what_completes_the_last_one() -> None:
    async def test(coordinated: Coordinated, member: Member) -> None:
        coordinated.gate = asyncio.Event()
        of = await begun(coordinated, member)
        await member.coordinator.end("t", *of, commit=True, raises=False)
        entries = len(coordinated.log.committed)
        asked = asyncio.ensure_future(member.coordinator.enlist("t", *of, [coordinated.partition(1)]))
        await turns(50)
        assert len(coordinated.log.committed) == entries, "the log would only have refused it"
        # A producer that was fenced does not wait: it is refused at once.
        fenced = await member.coordinator.enlist(
            "t", of.producer_id, of.epoch + 1, [coordinated.partition(1)]
        )
        assert code(fenced) is KafkaError.PRODUCER_FENCED
        coordinated.log.held = True
        coordinated.gate.set()
        await turns(50)
        # Both wait for one round of the log, not the second for the first.
        assert kinds(coordinated) == [TransactionOpcode.COMPLETE, TransactionOpcode.ENLIST]
        again = asyncio.ensure_future(member.coordinator.enlist("t", *of, [coordinated.partition(2)]))
        await turns()
        assert kinds(coordinated)[2:] == [TransactionOpcode.ENLIST], "nor does one that comes then"
        coordinated.log.held = False
        coordinated.log.commit()
        assert (await asked, await again) == (2, 2)
        assert member.coordinator._waiting == {} == member.coordinator._upkeep.completing

    led(test)


def test_a_completion_that_the_log_refuses_lets_the_next_transaction_wait_for_another() -> None:
    async def test(coordinated: Coordinated, member: Member) -> None:
        coordinated.gate = asyncio.Event()
        of = await begun(coordinated, member)
        await member.coordinator.end("t", *of, commit=True, raises=False)
        asked = asyncio.ensure_future(member.coordinator.enlist("t", *of, [coordinated.partition(1)]))
        await turns()
        refused = 0
        propose = member.group.replicate

        def replicate(command: bytes, term: int) -> asyncio.Future[Outcome]:
            nonlocal refused
            if msgpack.unpackb(command)[2] != TransactionOpcode.COMPLETE or refused == 2:
                return propose(command, term)
            refused += 1
            full: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
            full.set_result(Overloaded("full"))
            return full

        member.group.replicate = replicate  # type: ignore[method-assign]
        coordinated.gate.set()
        assert await asked == 2
        assert refused == 2
        assert state(member) is TransactionState.ONGOING
        assert member.coordinator._waiting == {} == member.coordinator._upkeep.completing

    led(test)


def kinds(coordinated: Coordinated) -> list[int]:
    """Of the commands in the log that are not committed."""
    return [msgpack.unpackb(command)[2] for _, _, command, _ in coordinated.log.waiting]


def test_whoever_waits_too_long_for_the_one_before_is_told_to_ask_again() -> None:
    async def test(coordinated: Coordinated, member: Member) -> None:
        coordinated.answer = lambda sent: 1
        of = await begun(coordinated, member)
        await member.coordinator.end("t", *of, commit=True, raises=False)
        before = member.node.loop.time()
        refused = await member.coordinator.enlist("t", *of, [coordinated.partition(0)])
        assert code(refused) is KafkaError.CONCURRENT_TRANSACTIONS
        waited = member.node.loop.time() - before
        assert module.COMPLETING_SECONDS <= waited < module.COMPLETING_SECONDS + 0.5
        assert member.coordinator._waiting == {}
        assert member.coordinator._waits == 0

    led(test)


def test_a_wait_that_is_given_up_leaves_nothing_behind() -> None:
    async def test(coordinated: Coordinated, member: Member) -> None:
        coordinated.answer = lambda sent: 1
        of = await begun(coordinated, member)
        await member.coordinator.end("t", *of, commit=True, raises=False)
        asked = [
            asyncio.ensure_future(member.coordinator.enlist("t", *of, [coordinated.partition(0)]))
            for _ in range(3)
        ]
        await turns(50)
        assert member.coordinator._waits == 3
        for one in asked:
            one.cancel()
        await turns()
        assert (member.coordinator._waits, member.coordinator._waiting) == (0, {})

    led(test)


def test_no_more_than_so_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 2)

    async def test(coordinated: Coordinated, member: Member) -> None:
        coordinated.answer = lambda sent: 1
        of = await begun(coordinated, member)
        await member.coordinator.end("t", *of, commit=True, raises=False)
        asked = [
            asyncio.ensure_future(member.coordinator.enlist("t", *of, [coordinated.partition(0)]))
            for _ in range(3)
        ]
        await turns(50)
        assert [one.done() for one in asked] == [False, False, True]
        assert code(asked[2].result()) is KafkaError.CONCURRENT_TRANSACTIONS
        await asyncio.gather(*asked)

    led(test)


def test_markers_are_sent_again_until_they_are_there_and_only_where_they_are_not() -> None:
    async def test(coordinated: Coordinated, member: Member) -> None:
        of = await begun(coordinated, member, 0, 1, 2)
        stubborn = coordinated.raft_group(1)
        coordinated.answer = lambda sent: int(
            sent.raft_group == stubborn and len([one for one in coordinated.sent if one == sent]) < 40
        )
        await member.coordinator.end("t", *of, commit=True, raises=False)
        await asyncio.sleep(20)
        assert state(member) is TransactionState.PREPARE_COMMIT
        await until(lambda: state(member) is TransactionState.COMPLETE_COMMIT, 60)
        assert [sent.raft_group for sent in coordinated.sent].count(stubborn) == 40
        assert len(coordinated.sent) == 42

    led(test)


@pytest.mark.parametrize("trouble", ["lost", "short", "no leader", "broken", "not connected"])
def test_whatever_happens_to_a_call_the_marker_gets_there(trouble: str) -> None:
    async def test(coordinated: Coordinated, member: Member) -> None:
        of = await begun(coordinated, member, 0)
        node = coordinated.topic.partitions[0].replicas[0]
        handlers = coordinated.cluster.handlers
        good = handlers[node, "transactions.markers"]
        times = 0

        async def bad(peer: int, payload: Any) -> Any:
            nonlocal times
            times += 1
            if trouble == "lost":
                lost(node)
            if trouble == "not connected":
                raise CallFailed("it is not connected", unknown=False)
            return [] if trouble == "short" else "what"

        if trouble == "no leader":
            member.node.leaders.others[coordinated.raft_group(0)] = None
        else:
            handlers[node, "transactions.markers"] = bad
        await member.coordinator.end("t", *of, commit=False, raises=False)
        await asyncio.sleep(5)
        assert state(member) is TransactionState.PREPARE_ABORT
        assert trouble == "no leader" or times > 3
        handlers[node, "transactions.markers"] = good
        member.node.leaders.others.pop(coordinated.raft_group(0), None)
        await until(lambda: state(member) is TransactionState.COMPLETE_ABORT)

    led(test)


def test_a_partition_of_a_deleted_topic_is_let_go_once_that_is_certain() -> None:
    async def test(coordinated: Coordinated, member: Member) -> None:
        other = coordinated.cluster.create("other", partitions=1)
        member.node.controller.hear()
        of = await begun(coordinated, member, 0)
        await member.coordinator.enlist("t", *of, [(other.topic_id, 0)])
        coordinated.cluster.apply(DeleteTopic(other.topic_id))
        member.node.controller.hear()
        # It might as well be that this node has not heard of the topic yet.
        member.node.controller.down = Unavailable("no leader", False)
        await member.coordinator.end("t", *of, commit=True, raises=False)
        await asyncio.sleep(10)
        assert state(member) is TransactionState.PREPARE_COMMIT
        member.node.controller.down = None
        await until(lambda: state(member) is TransactionState.COMPLETE_COMMIT)
        assert [sent.raft_group for sent in coordinated.sent] == [coordinated.raft_group(0)]

    led(test)


def test_what_is_known_does_not_wait_for_what_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(coordinated: Coordinated, member: Member) -> None:
        of = await begun(coordinated, member, 0)
        await member.coordinator.enlist("t", *of, [(b"gone" * 4, n) for n in range(5)], ["g", "h"])
        asked = []

        async def behind(seconds: float) -> bool:
            asked.append("topics")
            await asyncio.sleep(seconds)
            return False

        async def nowhere(group_id: str) -> Refusal:
            asked.append(group_id)
            await asyncio.sleep(5)
            return Refusal(KafkaError.COORDINATOR_NOT_AVAILABLE, "no controller")

        place = member.node.context.coordinators.group_place
        monkeypatch.setattr(member.node.controller, "catch_up", behind)
        monkeypatch.setattr(member.node.context.coordinators, "group_place", nowhere)
        await member.coordinator.end("t", *of, commit=True, raises=False)
        await turns(50)
        assert [sent.raft_group for sent in coordinated.sent] == [coordinated.raft_group(0)]
        await asyncio.sleep(8.1)
        expected = ["g", "topics", "topics", "g", "topics"]
        assert asked == expected, "one question for all topics, and one group's for all"
        monkeypatch.setattr(member.node.context.coordinators, "group_place", place)
        monkeypatch.undo()
        await until(lambda: state(member) is TransactionState.COMPLETE_COMMIT)
        assert len(coordinated.sent) == 2

    led(test)


def test_a_topic_that_this_node_has_not_heard_of_yet_is_not_let_go() -> None:
    async def test(coordinated: Coordinated, member: Member) -> None:
        of = await begun(coordinated, member, 0)
        late = coordinated.cluster.create("late", partitions=1)
        await member.coordinator.enlist("t", *of, [(late.topic_id, 0)])
        assert member.node.controller.machine.topic("late") is None
        await member.coordinator.end("t", *of, commit=True, raises=False)
        await until(lambda: state(member) is TransactionState.COMPLETE_COMMIT)
        assert {sent.raft_group for sent in coordinated.sent} == {
            coordinated.raft_group(0),
            late.partitions[0].group,
        }

    led(test)


def test_a_place_that_says_it_is_gone_is_let_go() -> None:
    async def test(coordinated: Coordinated, member: Member) -> None:
        of = await begun(coordinated, member, 0, 1)
        coordinated.answer = lambda sent: 2
        await member.coordinator.end("t", *of, commit=True, raises=False)
        await until(lambda: state(member) is TransactionState.COMPLETE_COMMIT)
        assert len(coordinated.sent) == 2

    led(test)


def test_many_transactions_share_calls_of_bounded_size_and_number() -> None:
    async def test(coordinated: Coordinated, member: Member) -> None:
        count = 2 * MAX_MARKERS + 110
        tids = [f"t{number}" for number in range(count)]
        given = await asyncio.gather(*(producer(member.coordinator, tid) for tid in tids))
        partition = [coordinated.partition(0)]
        pairs = list(zip(tids, given, strict=True))
        await asyncio.gather(*(member.coordinator.enlist(tid, *of, partition) for tid, of in pairs))
        coordinated.gate = asyncio.Event()
        await asyncio.gather(
            *(member.coordinator.end(tid, *of, commit=True, raises=False) for tid, of in pairs[:-10])
        )
        for tid, of in pairs[-10:]:
            await member.coordinator.end(tid, *of, commit=True, raises=False)
            await turns()
        assert len(coordinated.calls) == CALLS_AT_ONCE
        assert all(size <= MAX_MARKERS for _, size in coordinated.calls)
        coordinated.gate.set()
        await until(lambda: all(state(member, tid) is TransactionState.COMPLETE_COMMIT for tid in tids))
        assert len(coordinated.sent) == count
        assert len(coordinated.calls) == CALLS_AT_ONCE + 1, "what had to wait goes together"

    led(test)


async def hang(node: int) -> None:
    """A node that was stopped: it takes the call, and the call ends by its time."""
    await asyncio.sleep(CALL_SECONDS)
    raise CallFailed(f"node {node} did not answer", unknown=True)


def test_what_waits_for_a_node_that_hangs_goes_to_the_next_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than the calls to it hold, in the calls and behind them."""
    monkeypatch.setattr(markers, "MAX_MARKERS", 2)

    async def test(coordinated: Coordinated, member: Member) -> None:
        group = coordinated.raft_group(0)
        place = coordinated.topic.partitions[0]
        hanging, heir = place.replicas[0], place.replicas[1]
        good = coordinated.cluster.handlers[hanging, "transactions.markers"]
        called = []

        async def receive(peer: int, payload: Any) -> Any:
            called.append(len(payload))
            await hang(hanging)

        coordinated.cluster.handlers[hanging, "transactions.markers"] = receive
        tids = [f"t{number}" for number in range(5 * CALLS_AT_ONCE)]
        for tid in tids:
            of = await begun(coordinated, member, 0, tid=tid)
            await member.coordinator.end(tid, *of, commit=True, raises=False)
            await turns()
        assert len(called) == CALLS_AT_ONCE
        began = member.node.loop.time()
        member.node.leaders.others[group] = Leader(heir, 9)
        member.node.leaders.changed()
        await until(lambda: not member.machine.prepared, 5)
        assert member.node.loop.time() - began < 0.5
        assert {sent.node for sent in coordinated.sent} == {heir}
        coordinated.cluster.handlers[hanging, "transactions.markers"] = good
        await asyncio.sleep(2 * CALL_SECONDS)
        assert len(coordinated.sent) == len(tids), "what it did not answer is not sent again"

    led(test)


def test_a_partition_that_cannot_be_reached_holds_up_no_other_of_its_transaction() -> None:
    async def test(coordinated: Coordinated, member: Member) -> None:
        of = await begun(coordinated, member, 0, 1)
        hanging = coordinated.topic.partitions[1].replicas[0]
        other = next(node for node in (1, 2, 3) if node != hanging)
        member.node.leaders.others[coordinated.raft_group(0)] = Leader(other, 9)
        good = coordinated.cluster.handlers[hanging, "transactions.markers"]
        coordinated.cluster.handlers[hanging, "transactions.markers"] = lambda peer, payload: hang(hanging)
        coordinated.answer = lambda sent: int(len(coordinated.sent) < 3)
        await member.coordinator.end("t", *of, commit=True, raises=False)
        await asyncio.sleep(1)
        assert [sent.raft_group for sent in coordinated.sent] == [coordinated.raft_group(0)] * 3
        assert state(member) is TransactionState.PREPARE_COMMIT
        coordinated.cluster.handlers[hanging, "transactions.markers"] = good
        await until(lambda: state(member) is TransactionState.COMPLETE_COMMIT, 2 * CALL_SECONDS)

    led(test)


def test_a_leadership_that_is_over_listens_to_no_change_of_leaders() -> None:
    async def test(coordinated: Coordinated, member: Member) -> None:
        assert len(member.node.leaders.watchers) == 1
        await coordinated.lead(1)
        assert member.node.leaders.watchers == []

    led(test)


def test_what_waits_for_long_is_not_looked_at_with_every_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []

    def newest_prepared(machine: TransactionsMachine) -> Iterator[Transaction]:
        for one in original(machine):
            looked.append(one.transactional_id)
            yield one

    original = TransactionsMachine.newest_prepared
    monkeypatch.setattr(TransactionsMachine, "newest_prepared", newest_prepared)

    async def test(coordinated: Coordinated, member: Member) -> None:
        coordinated.answer = lambda sent: 1
        for number in range(20):
            of = await begun(coordinated, member, tid=f"t{number}")
            await member.coordinator.end(f"t{number}", *of, commit=True, raises=False)
        await turns()
        assert {sent.producer_id for sent in coordinated.sent} == {4001 + number for number in range(20)}
        looked.clear()
        for number in range(10):
            await producer(member.coordinator, f"u{number}")
        assert len(looked) <= 10
        coordinated.answer = lambda sent: 0
        await until(lambda: not member.machine.prepared)

    led(test)


# Leaders come and go.


@pytest.mark.parametrize("commit", [False, True])
def test_the_next_leader_carries_out_what_was_decided(commit: bool) -> None:
    async def test(coordinated: Coordinated, member: Member) -> None:
        coordinated.gate = asyncio.Event()
        of = await begun(coordinated, member, 0, 1)
        await member.coordinator.enlist("t", *of, groups=["g"])
        ended = await member.coordinator.end("t", *of, commit=commit, raises=True)
        assert isinstance(ended, ProducerIdentity)
        await turns(50)
        coordinated.depose()
        coordinated.gate.set()
        await asyncio.sleep(5)
        assert state(member) in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
        coordinated.sent.clear()
        heir = await coordinated.lead(1)
        await until(
            lambda: (
                state(heir)
                is (TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT)
            )
        )
        assert sorted(sent[1:] for sent in coordinated.sent) == sorted(
            (group, of.producer_id, of.epoch + 1, 1, commit, 2)
            for group in (coordinated.raft_group(0), coordinated.raft_group(1), GROUPS_COORDINATOR)
        )
        assert await heir.coordinator.enlist("t", *ended, [coordinated.partition(0)]) == 2

    led(test)


def test_a_deposed_leader_sends_nothing_more_and_lets_go_who_waits() -> None:
    async def test(coordinated: Coordinated, member: Member) -> None:
        coordinated.answer = lambda sent: 1
        of = await begun(coordinated, member)
        await member.coordinator.end("t", *of, commit=True, raises=False)
        asked = asyncio.ensure_future(member.coordinator.enlist("t", *of, [coordinated.partition(0)]))
        await turns(50)
        coordinated.depose()
        assert code(await asked) is KafkaError.NOT_COORDINATOR
        coordinated.sent.clear()
        await asyncio.sleep(30)
        assert coordinated.sent == []
        for call in (
            member.coordinator.enlist("t", *of, [coordinated.partition(0)]),
            member.coordinator.verify("t", *of, [coordinated.partition(0)]),
            member.coordinator.end("t", *of, commit=True, raises=False),
            member.coordinator.init_producer("t", MINUTE),
            member.coordinator.abort("t", 1),
            member.coordinator.describe("t"),
        ):
            assert code(await call) is KafkaError.NOT_COORDINATOR

    led(test)


def test_a_leader_that_comes_back_begins_anew() -> None:
    async def test(coordinated: Coordinated, member: Member) -> None:
        coordinated.gate = asyncio.Event()
        of = await begun(coordinated, member)
        await member.coordinator.end("t", *of, commit=True, raises=False)
        await turns(50)
        coordinated.depose()
        coordinated.gate = None
        await coordinated.lead(0)
        await until(lambda: state(member) is TransactionState.COMPLETE_COMMIT)
        assert [sent.term for sent in coordinated.sent] == [1, 2]

    led(test)


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("commit", [False, True])
def test_an_end_that_nobody_knows_the_outcome_of_is_answered_by_the_next_leader_as_the_first(
    commit: bool, raises: bool
) -> None:
    async def test(coordinated: Coordinated, member: Member) -> None:
        of = await begun(coordinated, member)
        coordinated.log.held = True
        asked = asyncio.ensure_future(member.coordinator.end("t", *of, commit=commit, raises=raises))
        await turns()
        coordinated.depose()
        assert code(await asked) is KafkaError.NOT_COORDINATOR
        coordinated.log.held = False
        heir = await coordinated.lead(1)
        again = await heir.coordinator.end("t", *of, commit=commit, raises=raises)
        assert again == (of.producer_id, of.epoch + raises)
        await until(
            lambda: state(heir) in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
        )
        assert await heir.coordinator.end("t", *of, commit=commit, raises=raises) == again
        assert {(sent.number, sent.commit) for sent in coordinated.sent} == {(1, commit)}

    led(test)


def test_an_end_that_is_lost_with_its_leader_never_was() -> None:
    async def test(coordinated: Coordinated, member: Member) -> None:
        of = await begun(coordinated, member)
        coordinated.log.held = True
        asked = asyncio.ensure_future(member.coordinator.end("t", *of, commit=True, raises=True))
        await turns()
        coordinated.depose()
        assert code(await asked) is KafkaError.NOT_COORDINATOR
        coordinated.log.lose_uncommitted()
        coordinated.log.held = False
        heir = await coordinated.lead(1)
        await asyncio.sleep(2)
        assert coordinated.sent == []
        assert await heir.coordinator.end("t", *of, commit=False, raises=True) == (of[0], of[1] + 1)

    led(test)


def test_nothing_is_sent_before_it_is_decided() -> None:
    async def test(coordinated: Coordinated, member: Member) -> None:
        of = await begun(coordinated, member)
        coordinated.log.held = True
        asked = asyncio.ensure_future(member.coordinator.end("t", *of, commit=True, raises=False))
        await turns(100)
        assert not asked.done()
        assert coordinated.sent == []
        coordinated.log.held = False
        coordinated.log.commit()
        assert await asked == of
        await until(lambda: state(member) is TransactionState.COMPLETE_COMMIT)

    led(test)


def test_a_complete_that_is_refused_for_now_is_said_again() -> None:
    async def test(coordinated: Coordinated, member: Member) -> None:
        of = await begun(coordinated, member)
        coordinated.gate = asyncio.Event()
        await member.coordinator.end("t", *of, commit=True, raises=False)
        await turns(50)
        member.group.overloaded = True
        coordinated.gate.set()
        await asyncio.sleep(1)
        assert code(await member.coordinator.abort("t", 1)) is KafkaError.COORDINATOR_LOAD_IN_PROGRESS
        assert state(member) is TransactionState.PREPARE_COMMIT
        member.group.overloaded = False
        await until(lambda: state(member) is TransactionState.COMPLETE_COMMIT)
        assert len(coordinated.sent) == 1, "the marker was there all the time"

    led(test)


# Starting.


def test_a_start_aborts_what_is_open_waits_for_it_and_raises_once_more() -> None:
    async def test(coordinated: Coordinated, member: Member) -> None:
        of = await begun(coordinated, member, 0, 1)
        coordinated.gate = asyncio.Event()
        asked = asyncio.ensure_future(member.coordinator.init_producer("t", MINUTE))
        await turns(50)
        assert not asked.done()
        assert {(sent.epoch, sent.commit) for sent in coordinated.sent} == {(of.epoch + 1, False)}
        late = await member.coordinator.enlist("t", *of, [coordinated.partition(2)])
        assert code(late) is KafkaError.PRODUCER_FENCED
        coordinated.gate.set()
        assert await asked == (of.producer_id, of.epoch + 2)

    led(test)


def test_a_start_that_would_wait_too_long_is_to_be_asked_again() -> None:
    async def test(coordinated: Coordinated, member: Member) -> None:
        of = await begun(coordinated, member)
        coordinated.answer = lambda sent: 1
        for _ in range(3):
            asked = await member.coordinator.init_producer("t", MINUTE)
            assert code(asked) is KafkaError.CONCURRENT_TRANSACTIONS
        coordinated.answer = lambda sent: 0
        assert await member.coordinator.init_producer("t", MINUTE) == (of.producer_id, of.epoch + 2)

    led(test)


def test_a_start_with_a_timeout_that_is_too_long_or_none_is_refused() -> None:
    async def test(coordinated: Coordinated, member: Member) -> None:
        most = int(member.node.config.transactions.max_timeout_seconds * 1000)
        assert most == 15 * MINUTE
        for timeout in (0, -1, most + 1):
            refused = await member.coordinator.init_producer("t", timeout)
            assert code(refused) is KafkaError.INVALID_TRANSACTION_TIMEOUT
        assert isinstance(await member.coordinator.init_producer("t", most), ProducerIdentity)

    led(test)


def test_without_producer_ids_a_new_one_is_to_ask_again_and_the_others_go_on() -> None:
    async def test(coordinated: Coordinated, member: Member) -> None:
        of = await producer(member.coordinator, "known")
        member.node.producer_ids.down = Unavailable("no controller", False)
        refused = await member.coordinator.init_producer("t", MINUTE)
        assert code(refused) is KafkaError.COORDINATOR_LOAD_IN_PROGRESS
        assert await member.coordinator.init_producer("known", MINUTE) == (of[0], of[1] + 1)
        assert "t" not in member.machine.transactions

    led(test)


@pytest.mark.parametrize("raises", [False, True])
def test_used_up_epochs_bring_a_new_producer_id(raises: bool) -> None:
    async def test(coordinated: Coordinated, member: Member) -> None:
        of = await producer(member.coordinator)
        for one in coordinated.members:
            one.machine.transactions["t"].epoch = LAST_CLIENT_EPOCH
        last = (of.producer_id, LAST_CLIENT_EPOCH)
        assert await member.coordinator.enlist("t", *last, [coordinated.partition(0)]) == 1
        ended = await member.coordinator.end("t", *last, commit=True, raises=raises)
        assert isinstance(ended, ProducerIdentity)
        if raises:
            assert ended.producer_id != of.producer_id
            assert ended.epoch == 0
        else:
            assert ended == last
        await until(lambda: state(member) is TransactionState.COMPLETE_COMMIT)
        assert [sent[2:4] for sent in coordinated.sent] == [(of[0], LAST_CLIENT_EPOCH + raises)]
        assert await member.coordinator.enlist("t", *ended, [coordinated.partition(0)]) == 2

    led(test)


def test_an_id_that_is_needed_only_when_it_is_applied_is_got_then() -> None:
    async def test(coordinated: Coordinated, member: Member) -> None:
        await producer(member.coordinator)
        coordinated.log.held = True
        asked = asyncio.ensure_future(member.coordinator.init_producer("t", MINUTE))
        await turns()
        for one in coordinated.members:
            one.machine.transactions["t"].epoch = LAST_CLIENT_EPOCH
        coordinated.log.held = False
        coordinated.log.commit()
        given = await asked
        assert isinstance(given, ProducerIdentity)
        assert given.epoch == 0

    led(test)


# Adding and verifying.


def test_what_is_in_the_transaction_already_is_not_written_again() -> None:
    async def test(coordinated: Coordinated, member: Member) -> None:
        of = await begun(coordinated, member, 0, 1)
        entries = len(coordinated.log.committed)
        assert await member.coordinator.enlist("t", *of, [coordinated.partition(1)]) == 1
        assert await member.coordinator.verify("t", *of, [coordinated.partition(0)]) == 1
        assert len(coordinated.log.committed) == entries
        assert await member.coordinator.enlist("t", *of, [coordinated.partition(2)]) == 1
        assert len(coordinated.log.committed) == entries + 1

    led(test)


def test_verifying_never_waits_for_the_next_transaction() -> None:
    async def test(coordinated: Coordinated, member: Member) -> None:
        coordinated.gate = asyncio.Event()
        of = await begun(coordinated, member)
        await member.coordinator.end("t", *of, commit=True, raises=False)
        before = member.node.loop.time()
        late = await member.coordinator.verify("t", *of, [coordinated.partition(0)])
        assert code(late) is KafkaError.INVALID_TXN_STATE
        assert member.node.loop.time() == before

    led(test)


# Time.


def test_a_transaction_that_takes_too_long_is_aborted_against_its_producer() -> None:
    async def test(coordinated: Coordinated, member: Member) -> None:
        of = await begun(coordinated, member)
        await asyncio.sleep(MINUTE / 1000 - 2)
        assert state(member) is TransactionState.ONGOING
        await asyncio.sleep(4)
        assert state(member) is TransactionState.COMPLETE_ABORT
        assert [(sent.epoch, sent.commit) for sent in coordinated.sent] == [(of.epoch + 1, False)]
        ended = await member.coordinator.end("t", *of, commit=True, raises=True)
        assert code(ended) is KafkaError.PRODUCER_FENCED
        assert await member.coordinator.init_producer("t", MINUTE) == (of[0], of[1] + 2)

    led(test)


def test_the_next_leader_aborts_what_takes_too_long_whatever_its_clock_says() -> None:
    async def test(coordinated: Coordinated, member: Member) -> None:
        await begun(coordinated, member)
        await asyncio.sleep(40)
        # An hour behind that of the leader before: time in the state stands still.
        coordinated.wall -= 3_600_000
        heir = await coordinated.lead(2)
        of = await begun(coordinated, heir, tid="new")
        await asyncio.sleep(50)
        assert [state(heir, tid) for tid in ("t", "new")] == [
            TransactionState.ONGOING,
            TransactionState.ONGOING,
        ]
        await asyncio.sleep(13)
        assert [state(heir, tid) for tid in ("t", "new")] == [
            TransactionState.COMPLETE_ABORT,
            TransactionState.COMPLETE_ABORT,
        ]
        assert {sent.term for sent in coordinated.sent} == {2}
        # The next transaction of the same id has its own time.
        again = await heir.coordinator.init_producer("new", MINUTE)
        assert isinstance(again, ProducerIdentity)
        assert again.producer_id == of.producer_id
        await heir.coordinator.enlist("new", *again, [coordinated.partition(0)])
        await asyncio.sleep(50)
        assert state(heir, "new") is TransactionState.ONGOING

    led(test)


def test_a_change_of_leader_gives_a_transaction_no_more_time() -> None:
    async def test(coordinated: Coordinated, member: Member) -> None:
        await begun(coordinated, member)
        await asyncio.sleep(50)
        heir = await coordinated.lead(2)
        await asyncio.sleep(8)
        assert state(heir) is TransactionState.ONGOING
        await asyncio.sleep(4)
        assert state(heir) is TransactionState.COMPLETE_ABORT

    led(test)


def test_one_transaction_after_the_other_is_not_one_that_takes_too_long() -> None:
    async def test(coordinated: Coordinated, member: Member) -> None:
        of = await producer(member.coordinator)
        begin = member.node.loop.time()
        while member.node.loop.time() < begin + 2 * MINUTE / 1000:
            assert isinstance(await member.coordinator.enlist("t", *of, [coordinated.partition(0)]), int)
            await asyncio.sleep(1.7)
            assert await member.coordinator.end("t", *of, commit=True, raises=False) == of

    led(test)


def test_an_abort_that_fails_is_tried_at_the_next_look() -> None:
    async def test(coordinated: Coordinated, member: Member) -> None:
        await begun(coordinated, member)
        member.group.overloaded = True
        await asyncio.sleep(MINUTE / 1000 + 5)
        assert state(member) is TransactionState.ONGOING
        member.group.overloaded = False
        await asyncio.sleep(3)
        assert state(member) is TransactionState.COMPLETE_ABORT

    led(test)


def test_an_unused_id_is_forgotten_after_a_week() -> None:
    async def test(coordinated: Coordinated, member: Member) -> None:
        of = await producer(member.coordinator)
        await producer(member.coordinator, "used")
        day = 24 * 3600 * 1000
        coordinated.wall += 6 * day
        await asyncio.sleep(700)
        assert set(member.machine.transactions) == {"t", "used"}
        await producer(member.coordinator, "used")
        coordinated.wall += day
        await asyncio.sleep(700)
        assert set(member.machine.transactions) == {"used"}
        found = await member.coordinator.describe("t")
        assert code(found) is KafkaError.TRANSACTIONAL_ID_NOT_FOUND
        refused = await member.coordinator.enlist("t", *of, [coordinated.partition(0)])
        assert code(refused) is KafkaError.INVALID_PRODUCER_ID_MAPPING

    led(test)


# Operators.


def test_an_operator_aborts_the_transaction_it_saw_and_no_other() -> None:
    async def test(coordinated: Coordinated, member: Member) -> None:
        of = await begun(coordinated, member)
        found = await member.coordinator.describe("t")
        assert not isinstance(found, Refusal)
        number = found.number
        assert code(await member.coordinator.abort("t", number + 1)) is KafkaError.INVALID_TXN_STATE
        assert code(await member.coordinator.abort("u", 1)) is KafkaError.TRANSACTIONAL_ID_NOT_FOUND
        assert await member.coordinator.abort("t", number) == (of[0], of[1] + 1)
        await until(lambda: state(member) is TransactionState.COMPLETE_ABORT)

    led(test)


def test_an_abort_in_the_log_of_a_leader_that_was_cut_off_is_no_refusal() -> None:
    async def test(coordinated: Coordinated, member: Member) -> None:
        await begun(coordinated, member)
        coordinated.log.held = True
        asked = asyncio.ensure_future(member.coordinator.abort("t", 1))
        await turns()
        coordinated.depose()
        assert await asked is None

    led(test)


# What goes wrong here.


def test_a_defect_in_the_sending_does_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(coordinated: Coordinated, member: Member) -> None:
        of = await begun(coordinated, member)
        broken = True
        leader_of = member.node.leaders.leader_of

        def fails(group: int) -> Any:
            if broken:
                raise RuntimeError("a defect")
            return leader_of(group)

        monkeypatch.setattr(member.node.leaders, "leader_of", fails)
        await member.coordinator.end("t", *of, commit=True, raises=False)
        await asyncio.sleep(5)
        broken = False
        await until(lambda: state(member) is TransactionState.COMPLETE_COMMIT)

    led(test)
