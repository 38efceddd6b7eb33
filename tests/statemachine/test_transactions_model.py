"""The transactions' state machine against a plain model, whoever asks for what, however late and how often.

Two machines apply the same entries; one of them is thrown away at any point and comes back from the other's
snapshot. Beside the model stands the history: which identity was given when, and what became of each number.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from strandline.statemachine.coordinator_machine import encode
from strandline.statemachine.kafka_errors import KafkaError, Refused
from strandline.statemachine.machine import Captured
from strandline.statemachine.transactions.transaction_commands import (
    Abort,
    Complete,
    End,
    Enlist,
    Enlisted,
    ExpireIds,
    Initialized,
    InitializeProducer,
    Prepared,
    ProducerIdNeeded,
    TransactionCommand,
)
from strandline.statemachine.transactions.transaction_state import PREPARED
from strandline.statemachine.transactions.transactions import TransactionsMachine
from tests.statemachine.transaction_log import TOPIC, Log

Identity = tuple[int, int]
NOBODY = (-1, -1)
TOP = 32766
EXPIRY = 1000
ids = st.sampled_from(["t", "u"])
partitions = st.lists(st.tuples(st.just(TOPIC), st.integers(0, 3)), max_size=2)
groups = st.lists(st.sampled_from(["g", "h"]), max_size=1)
which = st.integers(0, 5)


@dataclass
class Producer:
    """What the model knows of a transactional id."""

    present: Identity
    retry: Identity | None = None
    number: int = 0
    open: set[Any] | None = None
    prepared: bool | None = None
    """Whether it commits, while it is prepared."""
    outcome: bool | None = None
    """Whether the newest one was committed, until another producer starts."""
    marker: Identity = NOBODY
    used: int = 0
    given: list[Identity] = field(default_factory=list)
    """Every identity it ever had, the oldest first."""
    outcomes: dict[int, bool] = field(default_factory=dict)

    def become(self, identity: Identity, retry: Identity | None) -> None:
        assert identity not in self.given, "an identity is given once"
        self.present, self.retry = identity, retry
        self.given.append(identity)

    def decide(self, commit: bool) -> None:
        assert self.number not in self.outcomes, "a transaction is decided once"
        self.outcomes[self.number] = commit
        self.open, self.prepared = None, commit


class TransactionsAgainstModel(RuleBasedStateMachine):
    """Every rule says what must come of its command, then looks at what did."""

    @initialize()
    def begin(self) -> None:
        self.log = Log()
        self.other = TransactionsMachine(lambda index, state: None)
        self.other.begin_term(1, 1, 1)
        self.captured: list[tuple[Captured, bytes]] = []
        self.model: dict[str, Producer] = {}
        self.next_id = 5000
        self.time = 0

    def apply(self, command: TransactionCommand) -> Any:
        log = self.log
        self.time = max(self.time, log.now)
        result = log.apply(command)
        assert result == self.other.apply(log.index, log.term, encode(log.term, log.now, command))
        return result

    def identity(self, tid: str, which: int) -> Identity:
        """The present one, one of those before, one that never was."""
        known = self.model.get(tid)
        if known is None:
            return (1, 0)
        return [
            known.present,
            *reversed(known.given[:-1]),
            (99, 0),
            (known.present[0], known.present[1] + 1),
        ][which % (len(known.given) + 2)]

    def new_id(self, wanted: bool) -> int:
        self.next_id += 1
        return self.next_id if wanted else -1

    def refused(self, result: Any, error: KafkaError) -> None:
        assert isinstance(result, Refused), result
        assert result.error is error

    @staticmethod
    def foreign(one: Producer | None, of: Identity) -> KafkaError | None:
        if one is None or of[0] != one.present[0]:
            return KafkaError.INVALID_PRODUCER_ID_MAPPING
        return KafkaError.PRODUCER_FENCED if of != one.present or of[1] > TOP else None

    # Producers.

    @rule(tid=ids, recovers=st.booleans(), which=which, wanted=st.booleans())
    def start(self, tid: str, recovers: bool, which: int, wanted: bool) -> None:
        of = self.identity(tid, which) if recovers else NOBODY
        new_id = self.new_id(wanted)
        result = self.apply(InitializeProducer(tid, 50, *of, new_id))
        one = self.model.get(tid)
        if one is None:
            if not wanted:
                assert result == ProducerIdNeeded()
                return
            assert result == Initialized(new_id, 0)
            self.model[tid] = one = Producer((new_id, 0), given=[(new_id, 0)], used=self.time)
            return
        again = one.open is None and recovers and of == one.retry
        if recovers and of != one.present and not again:
            self.refused(result, KafkaError.PRODUCER_FENCED)
            return
        if one.prepared is not None:
            self.refused(result, KafkaError.CONCURRENT_TRANSACTIONS)
            return
        last = one.present[1] >= TOP
        retry = of if recovers else None
        if one.open is not None:
            if last and recovers and not wanted:
                assert result == ProducerIdNeeded()
                return
            self.raised(one, new_id, retry)
            one.decide(False)
            assert result == Prepared(one.number, *one.present)
        elif again:
            assert result == Initialized(*one.present)
        elif last and not wanted:
            assert result == ProducerIdNeeded()
            return
        else:
            one.become((new_id, 0) if last else (one.present[0], one.present[1] + 1), retry)
            one.outcome = None
            assert result == Initialized(*one.present)
        one.used = self.time

    def raised(self, one: Producer, new_id: int, retry: Identity | None) -> None:
        producer, epoch = one.present
        one.marker = (producer, epoch + 1)
        one.become((new_id, 0) if epoch >= TOP and new_id >= 0 else (producer, epoch + 1), retry)

    @rule(tid=ids)
    def use_up_epochs(self, tid: str) -> None:
        one = self.model.get(tid)
        if one is not None and one.open is None and one.prepared is None and one.present[1] < TOP - 2:
            for machine in (self.log.machine, self.other):
                row = machine._changed(tid)
                assert row is not None
                row.epoch = TOP - 1
            one.become((one.present[0], TOP - 1), one.retry)

    @rule(tid=ids, which=which, partitions=partitions, groups=groups)
    def add(self, tid: str, which: int, partitions: list[tuple[bytes, int]], groups: list[str]) -> None:
        of = self.identity(tid, which)
        result = self.apply(Enlist(tid, of[0], of[1], partitions, groups))
        one = self.model.get(tid)
        error = self.foreign(one, of)
        if error is not None:
            self.refused(result, error)
            return
        assert one is not None
        if one.prepared is not None:
            self.refused(result, KafkaError.CONCURRENT_TRANSACTIONS)
        elif not partitions and not groups:
            self.refused(result, KafkaError.INVALID_REQUEST)
        else:
            if one.open is None:
                one.number += 1
                one.open, one.retry = set(), None
            one.open.update([*partitions, *groups])
            one.used = self.time
            assert result == Enlisted(one.number)

    @rule(tid=ids, which=which, commit=st.booleans(), raises=st.booleans(), wanted=st.booleans())
    def end(self, tid: str, which: int, commit: bool, raises: bool, wanted: bool) -> None:
        of = self.identity(tid, which)
        new_id = self.new_id(wanted)
        result = self.apply(End(tid, *of, commit, raises, new_id))
        one = self.model.get(tid)
        decided = None if one is None else one.outcome if one.prepared is None else one.prepared
        if one is not None and raises and of == one.retry:
            if decided is None:
                self.refused(result, KafkaError.PRODUCER_FENCED)
            elif decided is commit:
                assert result == Prepared(one.number, *one.present)
            else:
                self.refused(result, KafkaError.INVALID_TXN_STATE)
            return
        error = self.foreign(one, of)
        if error is not None:
            self.refused(result, error)
            return
        assert one is not None
        if one.open is not None:
            if raises and one.present[1] >= TOP and not wanted:
                assert result == ProducerIdNeeded()
                return
            if raises:
                self.raised(one, new_id, of)
            else:
                one.marker = of
            one.decide(commit)
        elif not raises and decided is commit:
            assert result == Prepared(one.number, *one.present)
            return
        elif raises and one.prepared is not None:
            self.refused(result, KafkaError.CONCURRENT_TRANSACTIONS)
            return
        elif commit or not raises:
            self.refused(result, KafkaError.INVALID_TXN_STATE)
            return
        elif one.present[1] >= TOP and not wanted:
            assert result == ProducerIdNeeded()
            return
        else:
            one.number += 1
            self.raised(one, new_id, of)
            one.outcomes[one.number] = one.outcome = False
        one.used = self.time
        assert result == Prepared(one.number, *one.present)

    # The coordinator's leader.

    @rule(tid=ids, back=st.integers(0, 2))
    def abort(self, tid: str, back: int) -> None:
        one = self.model.get(tid)
        number = 1 if one is None else one.number - back
        result = self.apply(Abort(tid, number))
        if one is None:
            self.refused(result, KafkaError.TRANSACTIONAL_ID_NOT_FOUND)
        elif back == 0 and one.open is not None:
            self.raised(one, -1, None)
            one.decide(False)
            one.used = self.time
            assert result == Prepared(one.number, *one.present)
        elif back == 0 and (one.prepared is False or (one.prepared is None and one.outcome is False)):
            assert result == Prepared(one.number, *one.present)
        else:
            self.refused(result, KafkaError.INVALID_TXN_STATE)

    @rule(tid=ids, back=st.integers(0, 1))
    def complete(self, tid: str, back: int) -> None:
        one = self.model.get(tid)
        number = 1 if one is None else one.number - back
        result = self.apply(Complete(tid, number))
        counts = one is not None and back == 0 and one.prepared is not None
        assert result is counts
        if one is not None and counts:
            one.outcome, one.prepared = one.prepared, None
            one.used = self.time

    @rule(milliseconds=st.integers(-5, 400))
    def pass_time(self, milliseconds: int) -> None:
        self.log.now = max(0, self.log.now + milliseconds)

    @rule()
    def expire(self) -> None:
        now = self.time = self.log.now  # a clock that most agree on: it may set the time back
        idle = [
            tid
            for tid, one in self.model.items()
            if one.open is None and one.prepared is None and one.used + EXPIRY <= now
        ]
        assert self.log.machine.expires(EXPIRY, now) is bool(idle)
        assert self.apply(ExpireIds(EXPIRY, now)) == len(idle)
        for tid in idle:
            del self.model[tid]
        for one in self.model.values():
            one.used = min(one.used, now)

    @rule()
    def come_back_from_a_snapshot(self) -> None:
        self.other = self.log.restored()

    @rule()
    def capture_a_snapshot(self) -> None:
        self.captured.append((self.log.machine.capture(), self.other.snapshot()))

    @rule()
    def make_what_was_captured(self) -> None:
        """It is what the state was, whatever was applied since."""
        for captured, state in self.captured:
            assert captured() == state
        self.captured.clear()

    @rule()
    def begin_term(self) -> None:
        self.log.index += 1
        self.log.term += 1
        for machine in (self.log.machine, self.other):
            machine.begin_term(self.log.index, self.log.term, 2)

    # What always holds.

    @invariant()
    def machines_are_equal(self) -> None:
        if hasattr(self, "log"):
            assert self.log.machine.snapshot() == self.other.snapshot()
            assert self.other.transactions.keys() == self.model.keys()

    @invariant()
    def state_is_the_models(self) -> None:
        for tid, one in getattr(self, "model", {}).items():
            row = self.log.machine.transactions[tid]
            assert row.identity == one.present
            assert row.number == one.number
            if one.open is not None:
                assert {*row.partitions, *row.groups} == one.open
            assert (row.state in PREPARED) is (one.prepared is not None)
            if one.prepared is not None:
                assert row.commits is one.prepared is one.outcomes[one.number]
                assert {*row.partitions, *row.groups}
                assert (row.marker_producer_id, row.marker_epoch) == one.marker
        machine = getattr(self, "log", Log()).machine
        prepared = {one.transactional_id for one in machine.prepared}
        assert prepared == {
            tid for tid, one in getattr(self, "model", {}).items() if one.prepared is not None
        }


def test_the_machine_does_what_the_model_says() -> None:
    run_state_machine_as_test(
        TransactionsAgainstModel,
        settings=settings(max_examples=100, stateful_step_count=40, deadline=None, derandomize=True),
    )
