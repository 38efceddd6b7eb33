"""What one group's log tells of transactions, and from where on it is believed; no Spark is needed."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from strandline.snapshot.names import log_name
from strandline.snapshot.spark.audits.documents import listing
from strandline.snapshot.spark.audits.replay import GroupReplay
from strandline.snapshot.spark.audits.run import find_places
from strandline.snapshot.spark.audits.transaction_events import (
    COMPLETED,
    COVERED,
    DECIDED,
    ENLISTED,
    KNOWN,
    MARKER,
    OUTSIDE,
    WRITTEN,
    Event,
    Targets,
    TransactionEvents,
)
from strandline.snapshot.spark.audits.work import ClusterStorage
from strandline.snapshot.storage import open_storage
from strandline.statemachine.coordinator_machine import encode as of_coordinator
from strandline.statemachine.groups.consumer_group_commands import (
    NOTHING,
    STABLE,
    ChangeConsumerGroup,
    ConsumerGroupMoved,
    ConsumerMember,
)
from strandline.statemachine.groups.group_commands import (
    CommitOffsets,
    CommitTransactionOffsets,
    Member,
    PartitionOffset,
    StartGeneration,
    TopicOffsets,
)
from strandline.statemachine.groups.groups import GroupsMachine
from strandline.statemachine.internal_topics import coordinator_of
from strandline.statemachine.kafka_errors import Refused
from strandline.statemachine.machine import StateMachine
from strandline.statemachine.partition.partition import PartitionStateMachine
from strandline.statemachine.partition.partition_commands import AppendInline, EndTransaction
from strandline.statemachine.partition.partition_commands import encode as of_partition
from strandline.statemachine.partition.placeholder import InlineBatch
from strandline.statemachine.transactions.transaction_commands import End, Enlist, InitializeProducer
from strandline.statemachine.transactions.transactions import TransactionsMachine
from tests.spark.damage import Copy
from tests.spark.stored_cluster import CLUSTER
from tests.spark.transactional_cluster import COORDINATORS, TransactionalCluster, build_transactional


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> TransactionalCluster:
    return build_transactional(tmp_path_factory.mktemp("told") / "objects")


@pytest.fixture
def copy(stored: TransactionalCluster, tmp_path: Path) -> Copy:
    return Copy(stored.cluster, tmp_path / "objects")


def events(copy: Copy, group: int) -> list[Event]:
    storage = ClusterStorage(open_storage(str(copy.root)), CLUSTER)
    found = listing(storage)
    replay = GroupReplay(
        storage.storage,
        [tuple(name) for name in found.documents if name.group == group],
        [tuple(name) for name in found.logs if name.group == group],
        Targets(find_places(storage, found).by_group),
    )
    for index in sorted(replay.names):
        replay.outcome(index)
    return replay.events.found()


def told(found: list[Event], event: str) -> list[tuple[int | None, int | None]]:
    """(producer id, transaction's number) of each event of a kind."""
    return [(one.producer_id, one.transaction) for one in found if one.event == event]


def coordinator(stored: TransactionalCluster, name: str) -> int:
    return stored.transactions[coordinator_of(name, COORDINATORS)].group


def without_log(copy: Copy, group: int, round_: int) -> None:
    indexes = [0, *copy.indexes(group)]
    copy.path(log_name(CLUSTER, group, indexes[round_], indexes[round_ + 1])).unlink()


def test_a_partition_tells_what_was_written_and_what_ended(stored: TransactionalCluster, copy: Copy) -> None:
    found = events(copy, copy.group("payments", 1))
    (covered,) = (one for one in found if one.event == COVERED)
    assert (covered.time, covered.committed) == (0, True)
    machine = stored.partition("payments", 1).machine
    assert covered.until == machine.time
    assert not told(found, KNOWN)
    markers = told(found, MARKER)
    # All that was written in has ended, but for the last one.
    assert told(found, WRITTEN)[:3] == markers[:3] == [(100, 1), (100, 2), (101, 2)]
    opened = machine.open_transaction(101)
    assert opened is not None
    assert [one for one in told(found, WRITTEN) if one not in markers] == [(101, opened.number)]
    assert all(one.open_number == one.transaction for one in found if one.event == MARKER)


def test_a_coordinator_tells_what_it_decided_of_whom(stored: TransactionalCluster, copy: Copy) -> None:
    found = events(copy, coordinator(stored, "transfers"))
    transfers = [one for one in found if one.producer_id == 100]
    decided = [(one.transaction, one.committed) for one in transfers if one.event == DECIDED]
    assert decided[:4] == [(1, True), (2, False), (3, True), (4, False)]
    assert [(one.transaction, one.committed) for one in transfers if one.event == COMPLETED] == decided
    parts = {one.target for one in transfers if one.event == ENLISTED and one.transaction == 1}
    partitions = [copy.group("payments", 0), copy.group("payments", 1), copy.group("receipts", 0)]
    assert parts == {*partitions, stored.group.group}
    # The one that is open.
    assert max(number for _, number in told(found, ENLISTED) if number) == 13


def test_a_group_tells_of_offsets(stored: TransactionalCluster, copy: Copy) -> None:
    found = events(copy, stored.group.group)
    assert told(found, WRITTEN) == told(found, MARKER) == [(100, 1), (100, 5), (100, 9)]


def test_where_the_first_log_is_gone_the_state_says_what_is_history(
    stored: TransactionalCluster, copy: Copy
) -> None:
    group, transfers = copy.group("payments", 0), coordinator(stored, "transfers")
    for one in (group, transfers):
        without_log(copy, one, 0)
    found = events(copy, group)
    (covered,) = (one for one in found if one.event == COVERED)
    assert covered.time > 0
    assert not covered.committed
    assert sorted(told(found, KNOWN)) == [(7, 0), (100, 2), (101, 1)]
    assert min(number for producer, number in told(found, MARKER) if producer == 100 and number) == 5
    assert (100, 4) in told(events(copy, transfers), KNOWN)


def test_a_gap_makes_all_before_it_history(stored: TransactionalCluster, copy: Copy) -> None:
    group = copy.group("payments", 0)
    without_log(copy, group, 1)
    found = events(copy, group)
    assert (100, 6) in told(found, KNOWN)
    assert min(number for producer, number in told(found, MARKER) if producer == 100 and number) == 9


def test_a_log_that_does_not_reach_the_newest_checkpoint_tells_nothing(
    stored: TransactionalCluster, copy: Copy
) -> None:
    group = copy.group("payments", 0)
    without_log(copy, group, 2)
    assert events(copy, group) == []


def test_what_is_open_is_taken_over_from_the_state(tmp_path: Path) -> None:
    stored = build_transactional(tmp_path / "objects")
    stored.checkpoint()
    copy = Copy(stored.cluster, tmp_path / "copy")
    payments, receipts = copy.group("payments", 1), copy.group("receipts", 0)
    steady, raising = coordinator(stored, "ledger"), coordinator(stored, "transfers")
    for group in (payments, receipts, steady, raising):
        without_log(copy, group, 2)

    # One is prepared and has a marker outstanding, one is ongoing.
    decided = [one for one in events(copy, steady) if one.producer_id == 101]
    (number,) = (one.transaction for one in decided if one.event == DECIDED)
    assert (101, number) not in told(decided, COMPLETED)
    assert {one.target for one in decided if one.event == ENLISTED} == {copy.group("payments", 0), payments}
    # Those before them are history, they are not.
    assert (101, number) not in told(decided, KNOWN)
    assert (100, 12) in told(events(copy, raising), KNOWN)
    ongoing = [one for one in events(copy, raising) if one.event == ENLISTED and one.producer_id == 100]
    assert [(one.target, one.transaction) for one in ongoing] == [(receipts, 13)]
    assert told(events(copy, payments), WRITTEN) == [(101, number)]
    assert told(events(copy, receipts), WRITTEN) == [(100, 13)]


def test_a_retried_batch_and_a_retried_end_are_told_once() -> None:
    partition = PartitionStateMachine(1, lambda index, state: None)
    machine = TransactionsMachine(lambda index, state: None)
    batch = InlineBatch(1, 5, b"batch", 100, 0, 0, 1)
    logs: list[tuple[StateMachine, list[bytes]]] = [
        (
            partition,
            [
                of_partition(1, 5, [AppendInline([batch])]),
                of_partition(1, 5, [EndTransaction(100, 0, 1, True, 1, 5, b"marker")]),
                of_partition(1, 5, [AppendInline([batch])]),
            ],
        ),
        (
            machine,
            [
                of_coordinator(1, 5, command)
                for command in (
                    InitializeProducer("ledger", 60_000, -1, -1, 100),
                    Enlist("ledger", 100, 0, [(bytes(16), 0)]),
                    End("ledger", 100, 0, True, False, -1),
                    End("ledger", 100, 0, True, False, -1),
                )
            ],
        ),
    ]
    found = []
    for one, entries in logs:
        one.begin_term(1, 1, 1)
        told_of = TransactionEvents(Targets({}))
        told_of.begin(one, whole=True)
        for index, entry in enumerate(entries, 2):
            told_of.applied(one, index, entry, one.apply(index, 1, entry))
        found += [event.event for event in told_of.found()]
    assert found == [COVERED, WRITTEN, MARKER, COVERED, ENLISTED, DECIDED]


def _told_of(*commands: Any) -> list[int | None]:
    """The transactions whose offsets are told to have come from no member, of these commands in a new log."""
    return _told_and_refused(*commands)[0]


def _told_and_refused(*commands: Any) -> tuple[list[int | None], list[int | None]]:
    """The same, and those whose offsets the machine refused."""
    machine, found = GroupsMachine(lambda index, state: None), TransactionEvents(Targets({}))
    machine.begin_term(1, 1, 1)
    found.begin(machine, whole=True)
    refused: list[int | None] = []
    for index, command in enumerate(commands, 2):
        entry = of_coordinator(1, 1000 * index, command)
        result = machine.apply(index, 1, entry)
        found.applied(machine, index, entry, result)
        if isinstance(command, CommitTransactionOffsets):
            refused += [command.transaction] if isinstance(result, Refused) else []
        else:
            assert not isinstance(result, Refused | ConsumerGroupMoved), result
    return [number for _, number in told(found.found(), OUTSIDE)], refused


def _offsets(
    number: int, member_id: str, generation: int, instance_id: str | None = None
) -> CommitTransactionOffsets:
    offsets = [TopicOffsets(bytes(16), "payments", [PartitionOffset(0, number, -1, "")])]
    return CommitTransactionOffsets("g", member_id, generation, instance_id, 100 + number, 0, number, offsets)


def test_offsets_of_no_member_are_told_in_a_classic_group() -> None:
    member = Member("m", None, "client", "host", 10_000, 10_000, [("range", b"")])
    first = StartGeneration("g", 1, "consumer", "range", "m", [member])
    commits = [
        _offsets(1, "m", 1), _offsets(2, "", -1), _offsets(3, "m", 0), _offsets(4, "other", 1),
        _offsets(5, "m", 2), _offsets(6, "", 1),
    ]  # fmt: skip
    assert _told_of(first, *commits) == [3, 4, 5, 6]
    # The same commits, with the group one generation on.
    assert _told_of(first, replace(first, generation=2), *commits) == [1, 3, 4, 6]
    assert _told_of(*commits) == [1, 3, 4, 5, 6]
    # Whoever names no generation assigns itself its partitions, unless there are members that have them.
    alone = [_offsets(1, "m", -1), _offsets(2, "other", -1)]
    assert _told_of(first, *alone) == [1, 2]
    assert _told_of(first, replace(first, generation=2, protocol="", leader="", members=[]), *alone) == []
    assert _told_of(*alone) == []


def test_offsets_of_no_member_are_told_in_a_consumer_group() -> None:
    member = ConsumerMember(
        "m", None, None, "client", "host", 10_000, ("payments",), "", None, 3, 2, STABLE, NOTHING, NOTHING
    )
    change = ChangeConsumerGroup("g", 0, 4, None, None, [], [member], {})
    assert _told_of(change, _offsets(1, "m", 3), _offsets(2, "m", 4), _offsets(3, "n", 3)) == [2, 3]


def _classic(generation: int, *members: Member) -> StartGeneration:
    protocol, leader = ("range", members[0].member_id) if members else ("", "")
    return StartGeneration("g", generation, "consumer", protocol, leader, members)


def _member_at(member_id: str, instance_id: str | None, epoch: int) -> ConsumerMember:
    return ConsumerMember(
        member_id,
        instance_id,
        None,
        "client",
        "host",
        10_000,
        (),
        "",
        None,
        epoch,
        2,
        STABLE,
        NOTHING,
        NOTHING,
    )


_DYNAMIC = Member("m", None, "client", "host", 10_000, 10_000, [("range", b"")])
_STATIC = Member("s", "i", "client", "host", 10_000, 10_000, [("range", b"")])
_CONSUMERS = ChangeConsumerGroup(
    "g",
    0,
    3,
    b"",
    None,
    [],
    [_member_at("m", None, 3), _member_at("s", "i", 2), _member_at("a", "j", -2)],
    {},
)
_OWN = CommitOffsets("g", "", -1, None, [TopicOffsets(bytes(16), "payments", [])])


@pytest.mark.parametrize(
    "before",
    [
        pytest.param([], id="no group"),
        pytest.param([_OWN], id="a group of offsets alone"),
        pytest.param([_classic(2, _DYNAMIC, _STATIC)], id="classic"),
        pytest.param([_classic(1, _DYNAMIC, _STATIC), _classic(2)], id="classic, empty"),
        pytest.param([_CONSUMERS], id="consumers"),
        pytest.param(
            [_CONSUMERS, ChangeConsumerGroup("g", 2, 4, None, None, ["m", "s", "a"], [], {})],
            id="consumers, empty",
        ),
    ],
)
def test_who_is_told_to_be_no_member_is_who_the_log_refuses(before: list[Any]) -> None:
    """Else a correct history has findings, or what came in through a hole in the fence has none."""
    claims = product(("", "m", "s", "a", "other"), (-2, -1, 0, 1, 2, 3), (None, "i", "j", "none"))
    commits = [_offsets(number, *claim) for number, claim in enumerate(claims, 1)]
    outside, refused = _told_and_refused(*before, *commits)
    assert outside == refused
    assert 0 < len(refused) < len(commits)
