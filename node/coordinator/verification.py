"""Asks the coordinator of a transaction, on whichever node it runs, whether a partition or group is in it.

Kafka's protocol trusts that a transactional batch comes after the request that added its partition. The batch
may come late instead, when its transaction is long over, and would then begin one that no producer ever ends.
So the node that is to write the batch asks first (KIP-890), and gets the number of its transaction. For
clients that leave the adding to the broker, the same call adds the partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from strandline.node.coordinator.context import CoordinatorContext
from strandline.node.coordinator.table import Coordinators
from strandline.node.coordinator.told_numbers import ToldNumbers
from strandline.node.partition.batch import Verified
from strandline.node.refusal import Refusal
from strandline.node.rpc import CallFailed
from strandline.statemachine.kafka_errors import KafkaError

VERIFY: Final = "transactions.verify"
DONE: Final = "done"
"""In an answer, in the place of a KafkaError: all of it is in the transaction."""
VERIFY_SECONDS: Final = 5.0
"""Time limit of a batch's verification, with the wait for the previous transaction to complete."""
ATTEMPT_SECONDS: Final = 3.0
"""Time limit of one call to one node."""
RETRY_SECONDS: Final = 0.05
_ASKED_AGAIN: Final = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.CONCURRENT_TRANSACTIONS,
)

Partitions = Sequence[tuple[bytes, int]]


class _Gathering(NamedTuple):
    """The partitions added for one producer in one call: all requests of one turn of the loop."""

    partitions: dict[tuple[bytes, int], None]
    answer: asyncio.Task[Verified | Refusal]


class Verifier:
    """One node's questions to the coordinators, and its answers as one. Belongs to the context's loop.

    A Refusal with one of Kafka's retriable codes means that the answer is not known yet; every other Refusal
    is the coordinator's own, and certain.
    """

    def __init__(self, context: CoordinatorContext, coordinators: Coordinators) -> None:
        self._context = context
        self._coordinators = coordinators
        self._gathering: dict[tuple[str, int, int], _Gathering] = {}
        self._closed = False
        self.told = ToldNumbers(context)
        """Numbers that need no question."""
        context.calls.serve(VERIFY, self._asked)

    def close(self) -> None:
        """Stop with the node: no coordinator is asked any more, and no caller waits."""
        self._closed = True

    async def partitions(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: Partitions, *, add: bool
    ) -> Verified | Refusal:
        """The number of the open transaction that has all these partitions, `add`: once they are in it.

        Answers within 5 s, with CONCURRENT_TRANSACTIONS when the one before is still being completed, and
        with INVALID_TXN_STATE when a partition is in no open transaction and is not to be added.
        """
        if not add:
            return await self._ask(transactional_id, producer_id, epoch, partitions, (), False)
        key = (transactional_id, producer_id, epoch)
        gathering = self._gathering.get(key)
        if gathering is None:
            together: dict[tuple[bytes, int], None] = {}
            task = self._context.loop.create_task(self._add_together(key, together))
            gathering = self._gathering[key] = _Gathering(together, task)
        gathering.partitions.update(dict.fromkeys((topic, number) for topic, number in partitions))
        # Shielded: a request that is given up must not take the answer from the others.
        return await asyncio.shield(gathering.answer)

    async def group(
        self, transactional_id: str, producer_id: int, epoch: int, group_id: str, *, add: bool
    ) -> Verified | Refusal:
        """As `partitions`, for the offsets of a consumer group."""
        return await self._ask(transactional_id, producer_id, epoch, (), (group_id,), add)

    async def _add_together(
        self, key: tuple[str, int, int], together: dict[tuple[bytes, int], None]
    ) -> Verified | Refusal:
        del self._gathering[key]
        return await self._ask(*key, list(together), (), True)

    async def _ask(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Partitions,
        groups: Sequence[str],
        add: bool,
    ) -> Verified | Refusal:
        loop = self._context.loop
        deadline = loop.time() + VERIFY_SECONDS
        question = [
            transactional_id,
            producer_id,
            epoch,
            [list(one) for one in partitions],
            list(groups),
            add,
        ]
        failed = Refusal(KafkaError.COORDINATOR_NOT_AVAILABLE, "The transaction's coordinator has no leader.")
        while (left := deadline - loop.time()) > 0 and not self._closed:
            answer = await self._attempt(transactional_id, question, left)
            if isinstance(answer, Verified):
                return answer
            if answer is not None:
                failed = answer
                if answer.reason not in _ASKED_AGAIN:
                    break
            await asyncio.sleep(min(RETRY_SECONDS, max(0.0, deadline - loop.time())))
        return failed

    async def _attempt(
        self, transactional_id: str, question: list[Any], left: float
    ) -> Verified | Refusal | None:
        """One question to the leader; None when there is none."""
        context = self._context
        try:
            async with asyncio.timeout(left):
                place = await self._coordinators.transaction_place(transactional_id)
        except TimeoutError:
            return None
        if isinstance(place, Refusal):
            return place
        leader = context.leaders.leader_of(place.raft_group)
        if leader is None:
            return None
        try:
            reason, message, number = await context.calls.call(
                leader.node, VERIFY, question, min(left, ATTEMPT_SECONDS)
            )
            if reason == DONE:
                if type(number) is not int or number < 1:
                    # In the log it would stop every replica.
                    raise ValueError(f"{number!r} is not a transaction's number")
                return Verified(number)
            return Refusal(KafkaError(reason), message)
        except (CallFailed, TypeError, ValueError) as error:
            return Refusal(KafkaError.COORDINATOR_NOT_AVAILABLE, f"The transaction's coordinator: {error}")

    # As the coordinator.

    async def _asked(self, peer: int, question: Any) -> Any:
        transactional_id, producer_id, epoch, partitions, groups, add = question
        coordinator = self._coordinators.transactions_for(transactional_id)
        if isinstance(coordinator, KafkaError):
            return [coordinator, "this node does not coordinate the transactional id", -1]
        ask = coordinator.enlist if add else coordinator.verify
        pairs = [(topic_id, number) for topic_id, number in partitions]
        answer = await ask(transactional_id, producer_id, epoch, pairs, groups)
        if isinstance(answer, Refusal):
            assert isinstance(answer.reason, KafkaError), "its rules are Kafka's"
            return [answer.reason, answer.message, -1]
        return [DONE, None, answer]
