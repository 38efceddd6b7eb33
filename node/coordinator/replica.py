"""One coordinator's partition on one node: a replica of its log, and notice of this node's leadership.

It is to a coordinator what `Partition` is to records. Every replica has the state. A leader's transient data
(joining members, running timers, markers that are being sent) belongs to a runtime that follows the
leadership here, and gets into the state only as a command.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

from strandline.node.raft.config import RaftConfig
from strandline.node.raft.outcome import Applied, Outcome, Overloaded, Unknown
from strandline.node.refusal import Reason, Refusal
from strandline.node.replica.led_replica import LedReplica
from strandline.node.replica.replica_machine import Recorder, ReplicaMachine
from strandline.statemachine.controller.hosted_groups import PartitionGroup
from strandline.statemachine.coordinator_machine import (
    CoordinatorCommand,
    CoordinatorMachine,
    OlderTerm,
    encode,
)
from strandline.statemachine.kafka_errors import KafkaError
from strandline.statemachine.machine import Captured

M = TypeVar("M", bound=CoordinatorMachine)

ANSWER_SECONDS = 0.1
"""Time after the loss of leadership before a command in the log is answered without its result. A leader that
handed over learns the result well within it. One that was cut off does not, and its callers must not wait
here while another node leads."""
assert RaftConfig().command_grace_seconds > ANSWER_SECONDS, "after that the log itself gives up"


class CoordinatorReplica(LedReplica, Generic[M]):
    """A replica of a coordinator's partition on this node. Belongs to one event loop.

    Give `machine_for_group` to the log and the group it makes to `attach`; `close` when the replica goes.
    """

    def __init__(
        self,
        machine: Callable[[Callable[[int, Captured], None]], M],
        *,
        place: PartitionGroup,
        loop: asyncio.AbstractEventLoop,
        wall_ms: Callable[[], int],
        recorder: Recorder,
    ) -> None:
        """`machine` makes the plain state machine, given the function to call with a checkpoint."""
        super().__init__(place, "coordinator", loop)
        self.place = place
        self.number = place.partition
        self.term = 0
        """The term this node leads in, from the moment it has applied all of earlier terms; else 0."""
        self.machine_for_group = ReplicaMachine(
            machine(recorder.checkpoint), recorder, self._watchers.changed
        )
        self._wall_ms = wall_ms
        self._followers: list[tuple[Callable[[int], None], Callable[[str], None]]] = []
        self._in_log: dict[asyncio.Future[Outcome], None] = {}
        """Answers to commands that are in the log."""

    # What it is.

    @property
    def machine(self) -> M:
        """The state of this replica, only for reading; it is current after `confirm`.

        A snapshot that is installed replaces its contents: keep no part of it beyond a callback.
        """
        return self.machine_for_group.plain

    # What can be asked of it.

    async def execute(self, command: CoordinatorCommand) -> Any | Refusal:
        """Put a command into the log; returns the result of its apply on this node, or a Refusal.

        A state machine's own refusal is a result (`Refused`). A Refusal is this node's: NOT_COORDINATOR (it
        does not lead), COORDINATOR_LOAD_IN_PROGRESS (too much waits in the log), MESSAGE_TOO_LARGE, or
        COORDINATOR_UNDECIDED; only with the last may the command be applied yet.

        It takes its place in the log before anything is awaited: the order of calls is the order of applies.
        """
        term = self.term
        if not term:
            return Refusal(KafkaError.NOT_COORDINATOR, "this node does not lead the coordinator, or not yet")
        try:
            future = self.group.replicate(encode(term, self._wall_ms(), command), term)
        except ValueError as error:
            return Refusal(KafkaError.MESSAGE_TOO_LARGE, str(error))
        # A separate future: the log's is not cancelled with the caller, and not always awaited.
        answer: asyncio.Future[Outcome] = self._loop.create_future()
        self._in_log[answer] = None
        future.add_done_callback(partial(self._ended, answer))
        return _result(await answer)

    async def settle(self) -> None:
        """Wait for the outcome of every command that is in the log now; bounded as `execute` is."""
        if self._in_log:
            await asyncio.wait([*self._in_log])

    def follow(self, started: Callable[[int], None], stopped: Callable[[str], None]) -> None:
        """Tell a runtime: `started(term)` once this node leads and has applied all of earlier terms, and
        `stopped(reason)` when that ends, by a change of leader or because the replica goes."""
        self._followers.append((started, stopped))
        if self.term:
            started(self.term)

    # Leadership.

    def _begin_term(self, term: int) -> None:
        self.term = term
        for started, _ in self._followers:
            started(term)

    def _end_term(self, reason: str) -> None:
        if not self.term:
            return
        self.term = 0
        if self._in_log:
            self._loop.call_later(ANSWER_SECONDS, self._answer_unknown, [*self._in_log], reason)
        for _, stopped in self._followers:
            stopped(reason)

    # The answers.

    def _ended(self, answer: asyncio.Future[Outcome], outcome: asyncio.Future[Outcome]) -> None:
        self._in_log.pop(answer, None)
        if not answer.done():
            answer.set_result(outcome.result())

    def _answer_unknown(self, answers: list[asyncio.Future[Outcome]], reason: str) -> None:
        """Answer callers that may retry: the command's outcome is unknown, and may stay so for long."""
        for answer in answers:
            if not answer.done():
                answer.set_result(Unknown(reason))


def _result(outcome: Outcome) -> Any | Refusal:
    if isinstance(outcome, Applied):
        if isinstance(outcome.value, OlderTerm):
            reason = f"the entry is of a term before {outcome.value.term}"
            return Refusal(KafkaError.NOT_COORDINATOR, reason)
        return outcome.value
    if isinstance(outcome, Overloaded):
        return Refusal(KafkaError.COORDINATOR_LOAD_IN_PROGRESS, outcome.reason)
    if isinstance(outcome, Unknown):
        return Refusal(Reason.COORDINATOR_UNDECIDED, outcome.reason)
    return Refusal(KafkaError.NOT_COORDINATOR, outcome.reason)
