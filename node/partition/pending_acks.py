"""Batches that a partition has accepted and not answered yet: their answers, and the failures to remember.

A batch is counted here until its answer. A failure is noted, because no later batch of its producer may pass
(gaps.py); a batch in the log is answered with its outcome there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import chain

from strandline.node.partition.batch import AppendResult
from strandline.node.partition.gaps import Gaps
from strandline.node.partition.lanes import Inline, PendingBatch, is_inline
from strandline.node.partition.refusals import refusal_of
from strandline.node.partition.verifications import Verifications
from strandline.node.raft.config import RaftConfig
from strandline.node.raft.outcome import Applied, Outcome
from strandline.node.refusal import Reason, Refusal
from strandline.statemachine.partition.partition_commands import Appended
from strandline.statemachine.partition.producer_state import NO_PRODUCER, NO_TRANSACTION
from strandline.statemachine.partition.rejection import Rejected, Rejection

ANSWER_SECONDS = 0.1
"""Time after the loss of leadership before a batch with a producer id, in the log, is answered without its
outcome. A leader that handed over learns the outcome well within it. One that was cut off does not; its
producer may send the batch again without harm, and must not wait here while another node leads."""
assert RaftConfig().command_grace_seconds > ANSWER_SECONDS, "after that the log itself gives up"

HELD_SECONDS = 30.0
"""Time that a committed batch waits for more replicas than a commit needs (`min.insync.replicas`) before it
is given up: as long as clients wait for an answer (Kafka's request.timeout.ms)."""


class PendingAcks:
    """The accepted batches of one partition on one node. Belongs to one event loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, when_held: Callable[[int, int], asyncio.Future[bool]]
    ) -> None:
        """`when_held` is the log's: see Reads.when_held."""
        self.batches = 0
        self.bytes = 0
        """Of batches that are accepted and not answered yet."""
        self.inline_bytes = 0
        """Of those that go into the log itself."""
        self.gaps = Gaps()
        self.verifications = Verifications()
        self._loop = loop
        self._when_held = when_held
        self._in_log: dict[int, list[PendingBatch]] = {}
        self._entries = 0

    @property
    def entries(self) -> int:
        """Number of entries in the log whose outcome is not known here yet."""
        return len(self._in_log)

    def accept(self, pending: PendingBatch) -> None:
        """Count a batch until its answer."""
        self.batches += 1
        self.bytes += len(pending.batch.data)

    def goes_inline(self, pending: PendingBatch) -> None:
        """A batch that was accepted goes into the log itself."""
        pending.stored = Inline.IN_THE_ENTRY
        self.inline_bytes += len(pending.batch.data)

    def await_outcome(self, entry: list[PendingBatch], outcome: asyncio.Future[Outcome]) -> None:
        """Answer these batches, which are in the log as one entry, with the entry's outcome."""
        self._entries += 1
        self._in_log[self._entries] = entry
        outcome.add_done_callback(partial(self._ended, self._entries))

    def fail(self, pending: list[PendingBatch], failure: Refusal) -> None:
        """Answer batches that are not in the log, or are not known to be, in their order."""
        now = self._loop.time()
        for each in pending:
            self.gaps.note(each.batch, failure, now)
            self._end(each, failure)

    def term_over(self, reason: str) -> None:
        """Leadership is lost: soon, answer producers that may retry that their outcome is unknown."""
        if self._in_log:
            self._loop.call_later(ANSWER_SECONDS, self._answer_unknown, self._entries, reason)

    def close(self, reason: str) -> None:
        """Answer UNDECIDED for batches in the log: their outcome will not be known here any more."""
        entries, self._in_log = self._in_log, {}
        for entry in entries.values():
            self.fail(entry, Refusal(Reason.UNDECIDED, reason))

    def _ended(self, number: int, future: asyncio.Future[Outcome]) -> None:
        entry = self._in_log.pop(number, None)
        if entry is None:
            return
        outcome = future.result()
        if not isinstance(outcome, Applied):
            self.fail(entry, refusal_of(outcome))
        elif isinstance(outcome.value, Rejected):
            self.fail(entry, refusal_of(outcome.value))
        else:
            short: list[tuple[PendingBatch, Appended]] = []
            for pending, result in zip(entry, chain.from_iterable(outcome.value), strict=True):
                if not isinstance(result, Appended):
                    self._end(pending, self._refused(pending, result))
                elif pending.batch.replicas:
                    short.append((pending, result))
                else:
                    self._end(pending, result)
            if short:
                self._await_replicas(short, outcome.index)

    def _await_replicas(self, short: list[tuple[PendingBatch, Appended]], index: int) -> None:
        """Answer batches that are committed once as many replicas have their entry as they want."""
        held = self._when_held(index, max(pending.batch.replicas for pending, _ in short))
        give_up = self._loop.call_later(HELD_SECONDS, _not_held, held)

        def answer(held: asyncio.Future[bool]) -> None:
            give_up.cancel()
            for pending, result in short:
                self._end(pending, result if held.result() else _too_few_hold(pending.batch.replicas))

        held.add_done_callback(answer)

    def _refused(self, pending: PendingBatch, rejected: Rejected) -> Refusal:
        if rejected.reason is Rejection.OUT_OF_ORDER_SEQUENCE_NUMBER:
            transactional = pending.transaction != NO_TRANSACTION
            now = self._loop.time()
            early = self.gaps.early(pending.batch, rejected.current, now, transactional=transactional)
            if early is not None:
                return early
        return refusal_of(rejected)

    def _answer_unknown(self, newest: int, reason: str) -> None:
        """They stay counted until it is known. Whether they got there, the applied state tells `Gaps`."""
        failure = Refusal(Reason.UNDECIDED, reason)
        now = self._loop.time()
        for number, entry in self._in_log.items():
            for pending in entry if number <= newest else ():
                if pending.batch.producer_id != NO_PRODUCER and not pending.result.done():
                    self.gaps.note(pending.batch, failure, now)
                    pending.result.set_result(failure)

    def _end(self, pending: PendingBatch, result: AppendResult) -> None:
        self.batches -= 1
        self.bytes -= len(pending.batch.data)
        if is_inline(pending):
            self.inline_bytes -= len(pending.batch.data)
        if pending.verified:
            self.verifications.end(pending.batch.producer_id)
        if not pending.result.done():
            pending.result.set_result(result)


def _not_held(held: asyncio.Future[bool]) -> None:
    if not held.done():
        held.set_result(False)


def _too_few_hold(replicas: int) -> Refusal:
    message = f"the batch is in the log, but not on {replicas} replicas, which is min.insync.replicas"
    return Refusal(Reason.TOO_FEW_HOLD, message)
