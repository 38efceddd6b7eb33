"""Every rule of the transactions' state machine by name: fences, retries, outcomes that nobody knows."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from strandline.statemachine.coordinator_machine import OlderTerm, encode
from strandline.statemachine.kafka_errors import KafkaError, Refused
from strandline.statemachine.machine import Corruption
from strandline.statemachine.transactions.transaction_commands import (
    LAST_EPOCH,
    End,
    Enlist,
    Enlisted,
    Initialized,
    InitializeProducer,
    Prepared,
    ProducerIdNeeded,
)
from strandline.statemachine.transactions.transaction_state import LAST_CLIENT_EPOCH, TransactionState
from strandline.statemachine.transactions.transactions import TransactionsMachine
from tests.statemachine.transaction_log import DAY, P0, P1, TOPIC, Log


def code(result: Any) -> KafkaError:
    assert isinstance(result, Refused), result
    return result.error


def exhausted(log: Log) -> tuple[int, int]:
    """A producer with the last epoch that a producer can have."""
    (producer, _) = log.init()
    log.row().epoch = LAST_CLIENT_EPOCH
    return producer, LAST_CLIENT_EPOCH


def states(log: Log) -> list[Any]:
    row = log.row()
    return [row.state, row.number, row.identity, (row.marker_producer_id, row.marker_epoch)]


# Who the producer is.


def test_a_new_transactional_id_gets_the_new_producer_id_and_epoch_0() -> None:
    log = Log()
    assert log.init() == Initialized(4001, 0)
    assert log.init(tid="other") == Initialized(4002, 0)


def test_without_a_new_producer_id_a_new_transactional_id_is_not_made() -> None:
    log = Log()
    assert log.apply(InitializeProducer("t", 1000, -1, -1, -1)) == ProducerIdNeeded()
    assert "t" not in log.machine.transactions


def test_every_start_raises_the_epoch_and_fences_the_one_before() -> None:
    log = Log()
    old = log.init()
    new = log.init()
    assert new == Initialized(4001, 1)
    assert code(log.add(old, P0)) is KafkaError.PRODUCER_FENCED
    assert code(log.end(old, raises=False)) is KafkaError.PRODUCER_FENCED
    assert code(log.end(old, raises=True)) is KafkaError.PRODUCER_FENCED
    assert log.add(new, P0) == Enlisted(1)


def test_a_producer_that_recovers_keeps_its_id_and_gets_the_next_epoch_and_a_retry_the_same() -> None:
    log = Log()
    old = log.init()
    assert log.init(of=old) == Initialized(4001, 1)
    assert log.init(of=old) == Initialized(4001, 1)
    assert log.init(of=(4001, 1)) == Initialized(4001, 2)
    assert code(log.init(of=old)) is KafkaError.PRODUCER_FENCED


def test_a_retry_of_a_recovery_is_fenced_once_another_process_started() -> None:
    log = Log()
    old = log.init()
    log.init()
    assert code(log.init(of=old)) is KafkaError.PRODUCER_FENCED


def test_a_foreign_producer_id_is_not_of_this_transactional_id() -> None:
    log = Log()
    _, epoch = log.init()
    assert code(log.add((77, epoch), P0)) is KafkaError.INVALID_PRODUCER_ID_MAPPING
    assert code(log.end((77, epoch), raises=True)) is KafkaError.INVALID_PRODUCER_ID_MAPPING
    assert code(log.init(of=(77, epoch))) is KafkaError.PRODUCER_FENCED
    assert code(log.add((4001, 0), P0, tid="unknown")) is KafkaError.INVALID_PRODUCER_ID_MAPPING
    assert code(log.end((4001, 0), raises=False, tid="unknown")) is KafkaError.INVALID_PRODUCER_ID_MAPPING
    assert states(log) == [TransactionState.EMPTY, 0, (4001, 0), (-1, -1)]


@pytest.mark.parametrize("raises", [False, True])
def test_a_client_that_says_no_producer_id_is_nobody(raises: bool) -> None:
    log = Log()
    of = log.init()
    log.add(of, P0)
    log.end(of, raises=False)
    assert code(log.end((-1, -1), raises=raises)) is KafkaError.INVALID_PRODUCER_ID_MAPPING
    assert code(log.add((-1, -1), P0)) is KafkaError.INVALID_PRODUCER_ID_MAPPING


def test_the_timeout_is_that_of_the_newest_start() -> None:
    log = Log()
    log.init(timeout=10)
    log.init(timeout=20)
    assert log.row().timeout_ms == 20


# Beginning.


def test_the_first_partition_or_group_begins_the_next_transaction() -> None:
    log = Log()
    of = log.init()
    log.now = 5000
    assert log.add(of, P0) == Enlisted(1)
    log.now = 6000
    assert log.add(of, P1, groups=["g"]) == Enlisted(1)
    row = log.row()
    assert (row.state, row.number, row.started) == (TransactionState.ONGOING, 1, 5000)
    assert list(row.partitions) == [P0, P1]
    assert list(row.groups) == ["g"]
    assert log.add(of, groups=["g"]) == Enlisted(1)


def test_nothing_begins_no_transaction() -> None:
    log = Log()
    of = log.init()
    assert code(log.add(of)) is KafkaError.INVALID_REQUEST
    assert states(log)[:2] == [TransactionState.EMPTY, 0]


@pytest.mark.parametrize("commit", [False, True])
def test_the_next_transaction_waits_until_the_one_before_is_complete(commit: bool) -> None:
    log = Log()
    of = log.init()
    log.add(of, P0)
    log.end(of, commit, raises=False)
    assert code(log.add(of, P1)) is KafkaError.CONCURRENT_TRANSACTIONS
    assert list(log.row().partitions) == [P0]
    assert log.complete(1) is True
    assert log.add(of, P1) == Enlisted(2)
    assert list(log.row().partitions) == [P1]


# Being asked whether.


def test_what_is_verified_is_in_the_open_transaction() -> None:
    log = Log()
    of = log.init()
    log.add(of, P0, groups=["g"])
    assert log.machine.verify("t", of[0], of[1], [P0], ["g"]) == Enlisted(1)
    assert code(log.machine.verify("t", of[0], of[1], [P0, P1], [])) is KafkaError.INVALID_TXN_STATE
    assert code(log.machine.verify("t", of[0], of[1], [P0], ["h"])) is KafkaError.INVALID_TXN_STATE
    assert code(log.machine.verify("t", of[0], 5, [P0], [])) is KafkaError.PRODUCER_FENCED
    assert code(log.machine.verify("t", 5, of[1], [P0], [])) is KafkaError.INVALID_PRODUCER_ID_MAPPING
    assert code(log.machine.verify("u", of[0], of[1], [P0], [])) is KafkaError.INVALID_PRODUCER_ID_MAPPING


def test_what_comes_while_a_transaction_is_completed_belongs_to_none() -> None:
    """CONCURRENT_TRANSACTIONS would have it wait and be taken for a part of the next one."""
    log = Log()
    of = log.init()
    log.add(of, P0)
    log.end(of, raises=False)
    assert code(log.machine.verify("t", of[0], of[1], [P0], [])) is KafkaError.INVALID_TXN_STATE
    log.complete(1)
    assert code(log.machine.verify("t", of[0], of[1], [P0], [])) is KafkaError.INVALID_TXN_STATE


# Ending, transactions version 1.


@pytest.mark.parametrize("commit", [False, True])
def test_version_1_keeps_the_epoch_and_a_retry_answers_as_the_first(commit: bool) -> None:
    log = Log()
    of = log.init()
    log.add(of, P0)
    first = log.end(of, commit, raises=False)
    assert first == Prepared(1, *of)
    assert states(log) == [
        TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT,
        1,
        of,
        of,
    ]
    assert log.end(of, commit, raises=False) == first
    assert code(log.end(of, not commit, raises=False)) is KafkaError.INVALID_TXN_STATE
    assert log.complete(1) is True
    assert log.end(of, commit, raises=False) == first
    assert code(log.end(of, not commit, raises=False)) is KafkaError.INVALID_TXN_STATE
    assert states(log)[0] is (TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT)


@pytest.mark.parametrize("commit", [False, True])
def test_version_1_has_nothing_to_end_before_the_first_transaction(commit: bool) -> None:
    log = Log()
    of = log.init()
    assert code(log.end(of, commit, raises=False)) is KafkaError.INVALID_TXN_STATE


# Ending, transactions version 2: TransactionCoordinator.scala's table, but that it answers at prepare.


@pytest.mark.parametrize("commit", [False, True])
def test_version_2_raises_the_epoch_and_a_retry_with_the_former_answers_as_the_first(commit: bool) -> None:
    log = Log()
    of = log.init()
    log.add(of, P0)
    first = log.end(of, commit, raises=True)
    new = (4001, 1)
    assert first == Prepared(1, *new)
    assert states(log) == [
        TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT,
        1,
        new,
        new,
    ]
    assert log.end(of, commit, raises=True) == first
    assert code(log.end(of, not commit, raises=True)) is KafkaError.INVALID_TXN_STATE
    assert code(log.end(new, commit, raises=True)) is KafkaError.CONCURRENT_TRANSACTIONS
    assert code(log.end((4001, 7), commit, raises=True)) is KafkaError.PRODUCER_FENCED
    log.complete(1)
    assert log.end(of, commit, raises=True) == first
    assert code(log.end(of, not commit, raises=True)) is KafkaError.INVALID_TXN_STATE
    assert code(log.end(new, True, raises=True)) is KafkaError.INVALID_TXN_STATE


def test_a_late_end_of_version_2_never_ends_the_next_transaction() -> None:
    log = Log()
    of = log.init()
    log.add(of, P0)
    _, *new = log.end(of, False, raises=True)
    log.complete(1)
    log.add((new[0], new[1]), P0)
    assert code(log.end(of, True, raises=True)) is KafkaError.PRODUCER_FENCED
    assert code(log.end(of, False, raises=True)) is KafkaError.PRODUCER_FENCED
    assert states(log)[:2] == [TransactionState.ONGOING, 2]


def test_a_late_addition_of_version_2_never_begins_the_next_transaction() -> None:
    log = Log()
    of = log.init()
    log.add(of, P0)
    log.end(of, raises=True)
    assert code(log.add(of, P1)) is KafkaError.PRODUCER_FENCED
    log.complete(1)
    assert code(log.add(of, P1)) is KafkaError.PRODUCER_FENCED


@pytest.mark.parametrize("before", ["nothing", "commit", "abort"])
def test_version_2_may_abort_what_nobody_knows_of_and_not_commit_it(before: str) -> None:
    log = Log()
    of = tuple(log.init())
    number = 0
    if before != "nothing":
        log.add((of[0], of[1]), P0)
        _, *raised = log.end((of[0], of[1]), before == "commit", raises=True)
        log.complete(1)
        of, number = tuple(raised), 1
    now = (of[0], of[1])
    assert code(log.end(now, True, raises=True)) is KafkaError.INVALID_TXN_STATE
    first = log.end(now, False, raises=True)
    assert first == Prepared(number + 1, now[0], now[1] + 1)
    assert states(log)[:2] == [TransactionState.COMPLETE_ABORT, number + 1]
    assert log.machine.prepared == []
    assert log.end(now, False, raises=True) == first
    assert log.add((now[0], now[1] + 1), P0) == Enlisted(number + 2)


def test_a_recovery_after_an_unanswered_end_gets_the_raised_epoch() -> None:
    log = Log()
    of = log.init()
    log.add(of, P0)
    log.end(of, True, raises=True)
    assert code(log.init(of=of)) is KafkaError.CONCURRENT_TRANSACTIONS
    log.complete(1)
    assert log.init(of=of) == Initialized(4001, 1)
    assert states(log)[0] is TransactionState.COMPLETE_COMMIT


# Raise first, then abort.


def test_a_start_aborts_what_is_open_with_a_raised_epoch_and_raises_once_more() -> None:
    log = Log()
    old = log.init()
    log.add(old, P0)
    assert log.init() == Prepared(1, 4001, 1)
    assert states(log) == [TransactionState.PREPARE_ABORT, 1, (4001, 1), (4001, 1)]
    # The zombie finds no gap: not while it aborts, not after, whatever it says.
    for _ in range(2):
        for raises in (False, True):
            assert code(log.end(old, True, raises=raises)) is KafkaError.PRODUCER_FENCED
            assert code(log.end(old, False, raises=raises)) is KafkaError.PRODUCER_FENCED
        assert code(log.add(old, P1)) is KafkaError.PRODUCER_FENCED
        assert code(log.init(of=old)) is KafkaError.PRODUCER_FENCED
        log.complete(1)
    assert log.init() == Initialized(4001, 2)
    assert log.add((4001, 2), P0) == Enlisted(2)


def test_a_recovery_aborts_its_own_transaction_and_its_retry_gets_the_raised_epoch() -> None:
    log = Log()
    old = log.init()
    log.add(old, P0)
    assert log.init(of=old) == Prepared(1, 4001, 1)
    assert code(log.init(of=old)) is KafkaError.CONCURRENT_TRANSACTIONS
    assert code(log.init()) is KafkaError.CONCURRENT_TRANSACTIONS
    log.complete(1)
    assert log.init(of=old) == Initialized(4001, 1)


def test_a_zombie_that_recovers_does_not_abort_its_successors_transaction() -> None:
    log = Log()
    old = log.init()
    new = log.init()
    log.add(new, P0)
    assert code(log.init(of=old)) is KafkaError.PRODUCER_FENCED
    late = log.init(of=(4001, 7))
    assert code(late) is KafkaError.PRODUCER_FENCED
    assert states(log)[:2] == [TransactionState.ONGOING, 1]


def test_a_late_recovery_does_not_abort_what_the_same_process_began_since() -> None:
    log = Log()
    old = log.init()
    _, epoch = log.init(of=old)
    log.add((4001, epoch), P0)
    assert code(log.init(of=old)) is KafkaError.PRODUCER_FENCED
    assert states(log)[0] is TransactionState.ONGOING


def test_a_transaction_that_takes_too_long_is_aborted_with_a_raised_epoch() -> None:
    log = Log()
    of = log.init(timeout=1000)
    log.now = 5000
    log.add(of, P0)
    assert [(one.transactional_id, one.started, one.timeout_ms) for one in log.machine.ongoing] == [
        ("t", 5000, 1000)
    ]
    first = log.abort(1)
    assert first == Prepared(1, 4001, 1)
    assert states(log) == [TransactionState.PREPARE_ABORT, 1, (4001, 1), (4001, 1)]
    assert log.machine.ongoing == []
    assert code(log.end(of, True, raises=True)) is KafkaError.PRODUCER_FENCED
    assert code(log.end(of, False, raises=True)) is KafkaError.PRODUCER_FENCED
    assert log.abort(1) == first
    log.complete(1)
    assert log.abort(1) == first
    assert log.init() == Initialized(4001, 2)


def test_a_late_timeout_leaves_the_next_transaction_and_what_was_committed_alone() -> None:
    log = Log()
    of = log.init()
    log.add(of, P0)
    log.end(of, raises=False)
    assert code(log.abort(1)) is KafkaError.INVALID_TXN_STATE
    log.complete(1)
    assert code(log.abort(1)) is KafkaError.INVALID_TXN_STATE
    log.add(of, P0)
    assert code(log.abort(1)) is KafkaError.INVALID_TXN_STATE
    assert code(log.abort(3)) is KafkaError.INVALID_TXN_STATE
    assert states(log)[:3] == [TransactionState.ONGOING, 2, of]
    assert code(log.abort(1, tid="unknown")) is KafkaError.TRANSACTIONAL_ID_NOT_FOUND


# Completing.


def test_complete_counts_once_and_for_its_own_number() -> None:
    log = Log()
    of = log.init()
    log.add(of, P0, groups=["g"])
    assert log.complete(1) is False
    log.end(of, raises=False)
    assert [one.transactional_id for one in log.machine.prepared] == ["t"]
    assert log.complete(2) is False
    assert log.complete(1, tid="unknown") is False
    assert log.complete(1) is True
    assert log.complete(1) is False
    assert (log.row().partitions, log.row().groups, log.machine.prepared) == ({}, {}, [])
    log.add(of, P1)
    log.end(of, False, raises=False)
    assert log.complete(1) is False
    assert states(log)[0] is TransactionState.PREPARE_ABORT


# Epochs are used up.


def test_version_2_with_the_last_epoch_goes_on_with_a_new_producer_id() -> None:
    log = Log()
    old = exhausted(log)
    log.add(old, P0)
    assert log.apply(End("t", *old, True, True, -1)) == ProducerIdNeeded()
    assert states(log)[0] is TransactionState.ONGOING
    first = log.apply(End("t", *old, True, True, 5000))
    assert first == Prepared(1, 5000, 0)
    assert states(log) == [TransactionState.PREPARE_COMMIT, 1, (5000, 0), (4001, LAST_EPOCH)]
    assert log.apply(End("t", *old, True, True, 5001)) == first
    assert code(log.add((5000, 0), P0)) is KafkaError.CONCURRENT_TRANSACTIONS
    log.complete(1)
    assert log.init(of=old) == Initialized(5000, 0)
    assert log.add((5000, 0), P0) == Enlisted(2)
    assert code(log.end(old, raises=True)) is KafkaError.INVALID_PRODUCER_ID_MAPPING


def test_a_start_with_the_last_epoch_gets_a_new_producer_id_and_the_number_goes_on() -> None:
    log = Log()
    old = exhausted(log)
    log.add(old, P0)
    assert log.apply(InitializeProducer("t", 1, -1, -1, -1)) == Prepared(1, 4001, LAST_EPOCH)
    assert states(log)[3] == (4001, LAST_EPOCH)
    log.complete(1)
    # The epoch above the last was raised to against somebody, and is nobody's.
    nobody = (4001, LAST_EPOCH)
    assert code(log.add(nobody, P0)) is KafkaError.PRODUCER_FENCED
    assert code(log.end(nobody, False, raises=True)) is KafkaError.PRODUCER_FENCED
    assert code(log.machine.verify("t", nobody[0], nobody[1], [], [])) is KafkaError.PRODUCER_FENCED
    assert log.apply(InitializeProducer("t", 1, -1, -1, -1)) == ProducerIdNeeded()
    assert log.apply(InitializeProducer("t", 1, -1, -1, 6000)) == Initialized(6000, 0)
    assert log.add((6000, 0), P0) == Enlisted(2)


def test_a_recovery_with_the_last_epoch_gets_a_new_producer_id_and_its_retry_the_same() -> None:
    log = Log()
    old = exhausted(log)
    assert log.apply(InitializeProducer("t", 1, *old, -1)) == ProducerIdNeeded()
    assert log.apply(InitializeProducer("t", 1, *old, 6000)) == Initialized(6000, 0)
    assert log.apply(InitializeProducer("t", 1, *old, 6001)) == Initialized(6000, 0)


def test_a_recovery_with_the_last_epoch_and_an_open_transaction_aborts_it_first() -> None:
    log = Log()
    old = exhausted(log)
    log.add(old, P0)
    assert log.apply(InitializeProducer("t", 1, *old, -1)) == ProducerIdNeeded()
    assert log.apply(InitializeProducer("t", 1, *old, 6000)) == Prepared(1, 6000, 0)
    assert states(log)[3] == (4001, LAST_EPOCH)
    log.complete(1)
    assert log.apply(InitializeProducer("t", 1, *old, 6001)) == Initialized(6000, 0)


# Expiry.


def test_an_unused_transactional_id_is_forgotten_by_the_entries_time() -> None:
    log = Log()
    log.init("idle")
    of = log.init("open")
    log.add(of, P0, tid="open")
    log.now += 7 * DAY - 1
    assert not log.machine.expires(7 * DAY, log.now)
    assert log.expire() == 0
    log.now += 1
    assert log.machine.expires(7 * DAY, log.now)
    assert log.expire() == 1
    assert list(log.machine.transactions) == ["open"]
    assert code(log.add((4001, 0), P0, tid="idle")) is KafkaError.INVALID_PRODUCER_ID_MAPPING
    # It comes back as somebody else.
    assert log.init("idle") == Initialized(4003, 0)


def test_since_when_the_newest_ids_were_used_is_known_in_whatever_order_that_was() -> None:
    log = Log()
    for name in "abcd":
        log.init(name)
        log.now += 10
    log.init("b")
    # By last use: a, c, d, b.
    for machine in (log.machine, log.restored()):
        assert [machine.newest_since(count) for count in (1, 2, 3, 4, 5)] == [1040, 1030, 1020, None, None]


def test_a_prepared_transaction_is_never_forgotten() -> None:
    log = Log()
    of = log.init()
    log.add(of, P0)
    log.end(of, raises=True)
    log.now += 100 * DAY
    assert log.expire() == 0
    log.complete(1)
    assert log.expire() == 0, "completing it counts as use"


# The log.


def test_an_entry_of_an_earlier_term_changes_nothing() -> None:
    log = Log()
    of = log.init()
    before = log.machine.snapshot()
    log.machine.begin_term(10, 2, 3)
    late = encode(1, 99_999, Enlist("t", of[0], of[1], [P0]))
    assert log.machine.apply(11, 2, late) == OlderTerm(2)
    assert log.machine.transactions["t"].state is TransactionState.EMPTY
    assert msgpack.unpackb(before)["transactions"] == msgpack.unpackb(log.machine.snapshot())["transactions"]


def test_what_no_leader_writes_stops_the_replica() -> None:
    log = Log()
    for entry in ([1, 0, 99, "t"], [1, 0, 2, "t"], [1, 0, 5, "t", 1, 2], [2, 0, 5, "t", 1], "x"):
        with pytest.raises(Corruption):
            log.machine.apply(2, 1, msgpack.packb(entry))


# Snapshots.


def test_a_snapshot_gives_the_same_machine_whatever_the_order_things_came_in() -> None:
    def history(order: list[tuple[bytes, int]], groups: list[str]) -> Log:
        log = Log()
        of = log.apply(InitializeProducer("t", 60_000, -1, -1, 1))
        for partition in order:
            log.apply(Enlist("t", of[0], of[1], [partition], groups))
        log.apply(InitializeProducer("s", 60_000, -1, -1, 2))
        log.apply(Enlist("s", 2, 0, [P0]))
        log.apply(End("s", 2, 0, True, True, -1))
        return log

    log = history([P0, P1], ["g", "h"])
    other = history([P1, P0], ["h", "g"])
    assert log.machine.snapshot() == other.machine.snapshot()
    restored = log.restored()
    assert restored.snapshot() == log.machine.snapshot()
    assert dict(restored.transactions) == dict(log.machine.transactions)
    assert [one.transactional_id for one in restored.prepared] == ["s"]
    assert [one.transactional_id for one in restored.ongoing] == ["t"]


def spoiled(log: Log, **changes: Any) -> bytes:
    names = ["id", "producer", "epoch", "timeout", "former_producer", "former_epoch", "state", "number"]
    names += ["marker_producer", "marker_epoch", "started", "updated", "partitions", "groups"]
    state = msgpack.unpackb(log.machine.snapshot())
    for name, value in changes.items():
        state["transactions"][0][names.index(name)] = value
    packed: bytes = msgpack.packb(state)
    return packed


@pytest.mark.parametrize(
    "changes",
    [
        {"epoch": -1},
        {"epoch": LAST_EPOCH + 1},
        {"producer": -1},
        {"state": "Dead"},
        {"state": "CompleteCommit"},
        {"partitions": []},
        {"number": 0},
        {"number": -1},
        {"marker_epoch": -1, "state": "PrepareAbort"},
    ],
)
def test_a_snapshot_of_what_cannot_be_is_refused_and_changes_nothing(changes: dict[str, Any]) -> None:
    log = Log()
    log.add(log.init(), (TOPIC, 4))
    machine = TransactionsMachine(lambda index, state: None)
    with pytest.raises(ValueError, match="cannot be read"):
        machine.restore(spoiled(log, **changes))
    assert not machine.transactions
    machine.restore(spoiled(log))
    assert list(machine.transactions) == ["t"]
