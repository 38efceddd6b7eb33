"""Finds the transaction of each transactional batch in a produce request, by its number.

Nothing in Kafka's protocol orders a batch behind the request that began its transaction, or before the one
that ended it. So a partition takes a transactional batch only under the number of a transaction that is known
to have the partition in it (KIP-890). The partition's applied state has the number of an open transaction;
the transaction coordinator is asked for the number of a new one. Newer clients do not add partitions at the
coordinator before they write; for them the same question adds the partition.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from itertools import cycle
from typing import Final

from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.record_batch import BatchHeader
from strandline.node.partition.batch import Verification, Verified
from strandline.node.partition.partition import Partition
from strandline.node.refusal import Reason, Refusal
from strandline.node.runtime.gather import gather_bounded
from strandline.statemachine.controller.controller_state import Topic
from strandline.statemachine.kafka_errors import KafkaError

log = logging.getLogger(__name__)

_ABORTS_SINCE: Final = 11
"""First version whose clients abort on TRANSACTION_ABORTABLE (KIP-1050)."""
_ADDS_SINCE: Final = 12
"""Clients of this version and later leave it to the produce request to add partitions (KIP-890)."""
_TRY_AGAIN: Final = (
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
)
"""Answers of a coordinator's that producers would not take for retriable, or would look for leaders on."""

_Answers = dict[tuple[bytes, int], Verification]
"""Awaited verifications by topic id and partition."""


class Questions:
    """The questions of one produce request to the transaction coordinator, asked once, behind the last batch.

    There is one question for each producer id and epoch, for all its partitions together.
    """

    def __init__(self, context: BrokerContext, request: Request, transactional_id: str) -> None:
        self._context = context
        self._version = request.header.api_version
        self._transactional_id = transactional_id
        self._questions: dict[tuple[int, int], _Answers] = {}

    def transaction_of(
        self, partition: Partition, topic: Topic, number: int, header: BatchHeader
    ) -> int | Verification | Refusal:
        """The number of a batch's transaction, or its verification; or the refusal of the batch."""
        producer, epoch = header.producer_id, header.producer_epoch
        known = partition.transaction_of(producer, epoch)
        if known is not None:
            return known
        row = partition.machine.producers.get(producer)
        if self._version >= _ADDS_SINCE and header.base_sequence and row is None:
            # With these clients each transaction has an epoch of its own, so its first batch in a partition
            # has sequence 0: another one was sent before this and has not arrived.
            return Refusal(Reason.OUT_OF_ORDER, "sequence 0 is expected next")
        told = self._context.verifier.told.take(producer, epoch, (topic.topic_id, number))
        # If that transaction has ended here, the producer is in a later one: of that nothing was heard.
        if told is not None and (row is None or told.number > row.ended):
            verified: Verification = self._context.loop.create_future()
            verified.set_result(told)
            return verified
        answers = self._questions.setdefault((producer, epoch), {})
        answer = answers.get((topic.topic_id, number))
        if answer is None:
            answer = answers[topic.topic_id, number] = self._context.loop.create_future()
        return answer

    def ask(self) -> None:
        """Ask all questions; the answers are set in tasks of their own, even if the request is cancelled."""
        for (producer, epoch), answers in self._questions.items():
            asking = self._context.loop.create_task(self._answer(producer, epoch, answers))
            asking.add_done_callback(partial(_leave_none_waiting, answers))

    async def _answer(self, producer: int, epoch: int, answers: _Answers) -> None:
        """Ask for all partitions of a producer at once, and set their answers.

        An older client's batches are verified each for its own partition: one that is in no open transaction
        is refused alone, as in Kafka. The single questions are asked only if not all partitions are in one.
        """
        partitions = [*answers]
        found = [await self._verified(producer, epoch, partitions)]
        if len(partitions) > 1 and self._version < _ADDS_SINCE and _is_in_none(found[0]):
            found = await gather_bounded(partitions, lambda one: self._verified(producer, epoch, [one]))
        for waiting, answer in zip(answers.values(), cycle(found), strict=False):
            waiting.set_result(self._failed(answer) if isinstance(answer, Refusal) else answer)

    async def _verified(
        self, producer: int, epoch: int, partitions: list[tuple[bytes, int]]
    ) -> Verified | Refusal:
        return await self._context.verifier.partitions(
            self._transactional_id, producer, epoch, partitions, add=self._version >= _ADDS_SINCE
        )

    def _failed(self, refusal: Refusal) -> Refusal:
        """In the words a producer of this version expects; see Kafka's ReplicaManager.handleProduceAppend
        and AddPartitionsToTxnManager."""
        reason = refusal.reason
        name = reason.value
        not_yet = reason is KafkaError.CONCURRENT_TRANSACTIONS and self._version < _ADDS_SINCE
        if reason in _TRY_AGAIN or not_yet:
            message = f"the partition's transaction could not be verified: {name}: {refusal.message}"
            return Refusal(Reason.NOT_NOW, message)
        if reason is KafkaError.PRODUCER_FENCED:
            reason = Reason.STALE_PRODUCER_EPOCH
        elif reason is KafkaError.INVALID_TXN_STATE and _ABORTS_SINCE <= self._version < _ADDS_SINCE:
            # Older ones can only end on it; the partitions of newer ones are added, not looked for.
            reason = Reason.TRANSACTION_ABORTABLE
        return Refusal(reason, refusal.message or name)


def _is_in_none(answer: Verified | Refusal) -> bool:
    return isinstance(answer, Refusal) and answer.reason is KafkaError.INVALID_TXN_STATE


def _leave_none_waiting(answers: _Answers, asking: asyncio.Task[None]) -> None:
    """Cancel the questions that were not answered and never will be: the task failed, or the node stops."""
    if not asking.cancelled() and (error := asking.exception()) is not None:
        log.error("a transaction could not be verified", exc_info=error)
    for waiting in answers.values():
        if not waiting.done():
            waiting.cancel()
