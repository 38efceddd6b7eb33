"""The coordinator of transactions at the node that leads it, as requests use it.

The state machine decides, by commands in the log. While a transaction is being completed, requests that need
its end wait for a while before their clients have to retry. The leader's background work is in
transaction_upkeep.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from strandline.node.controller.client import Unavailable
from strandline.node.coordinator.context import CoordinatorContext
from strandline.node.coordinator.replica import CoordinatorReplica
from strandline.node.coordinator.transactions.transaction_upkeep import TransactionUpkeep
from strandline.node.refusal import Reason, Refusal
from strandline.statemachine.internal_topics import MAX_KEY_BYTES, is_key
from strandline.statemachine.kafka_errors import KafkaError, Refused
from strandline.statemachine.transactions.transaction_commands import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    Abort,
    End,
    Enlist,
    Enlisted,
    Initialized,
    InitializeProducer,
    Prepared,
    ProducerIdNeeded,
    TransactionCommand,
)
from strandline.statemachine.transactions.transaction_state import PREPARED, Transaction
from strandline.statemachine.transactions.transactions import TransactionsMachine

COMPLETING_SECONDS: Final = 2.0
"""Time that a request waits until the previous transaction is complete. Clients retry after a pause that is
longer than markers usually take."""
_COMPLETING: Final = Refusal(KafkaError.CONCURRENT_TRANSACTIONS, "The transaction before is being completed.")
MAX_WAITING: Final = 10_000
"""Requests that wait so, of one coordinator."""
MAX_GROUPS: Final = 1_000
"""Consumer groups in one transaction. Kafka has at most as many as the offsets' topic has partitions; here
clients name the groups, and every replica keeps them until the transaction ends."""


class ProducerIdentity(NamedTuple):
    """The producer id and epoch that a producer has to use from now on."""

    producer_id: int
    epoch: int


class TransactionCoordinator:
    """The transactional ids of one coordinator. Belongs to one event loop; lives as long as the replica.

    Requests get it from `Coordinators.transactions_for`, which gives it out only while it leads. A Refusal
    whose code is not retriable is certain; an unknown outcome never has such a code.
    """

    def __init__(self, replica: CoordinatorReplica[TransactionsMachine], context: CoordinatorContext) -> None:
        self.replica = replica
        self._context = context
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}
        """Requests that wait until the transaction of an id is complete."""
        self._waits = 0
        self._upkeep = TransactionUpkeep(replica, context, self._wake)
        replica.watch(self._changed)
        replica.follow(lambda term: None, self._stopped)

    @property
    def number(self) -> int:
        """Of the internal topic's partition."""
        return self.replica.number

    @property
    def machine(self) -> TransactionsMachine:
        """The state of this replica, to be read only."""
        return self.replica.machine

    # What producers ask.

    async def init_producer(
        self,
        transactional_id: str,
        timeout_ms: int,
        producer_id: int = NO_PRODUCER_ID,
        epoch: int = NO_EPOCH,
    ) -> ProducerIdentity | Refusal:
        """Identify a producer, which fences all before it; `producer_id` and `epoch`: its own, if any.

        What is open is aborted first. CONCURRENT_TRANSACTIONS when that takes longer than requests wait.
        """
        most = self._context.config.transactions.max_timeout_seconds
        if not 0 < timeout_ms <= most * 1000:
            reason = (
                f"A transaction's timeout is {timeout_ms} ms; transactions.max_timeout_seconds is {most:g}."
            )
            return Refusal(KafkaError.INVALID_TRANSACTION_TIMEOUT, reason)

        def command(new_id: int) -> InitializeProducer:
            return InitializeProducer(transactional_id, timeout_ms, producer_id, epoch, new_id)

        known = self.machine.transactions.get(transactional_id)
        result = await self._decide(transactional_id, command, known is None or known.is_exhausted)
        return ProducerIdentity(*result) if isinstance(result, Initialized) else _failure(result)

    async def enlist(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Sequence[tuple[bytes, int]] = (),
        groups: Sequence[str] = (),
    ) -> int | Refusal:
        """Add partitions (by topic id) and groups to the open transaction, or begin one; its number.

        All of them are added or none. If all are in it already, nothing is written.
        """
        asked = (transactional_id, producer_id, epoch, partitions, groups)
        if not all(map(is_key, groups)):
            return Refusal(
                KafkaError.INVALID_GROUP_ID, f"A group's name is longer than {MAX_KEY_BYTES} bytes."
            )
        known = self.machine.transactions.get(transactional_id)
        if known is not None and len(known.groups) >= MAX_GROUPS and not known.groups.keys() >= {*groups}:
            return Refusal(KafkaError.INVALID_REQUEST, f"{MAX_GROUPS} groups are in the transaction already.")
        if isinstance(self.machine.verify(*asked), Enlisted):
            there = await self.verify(*asked)
            if not isinstance(there, Refusal):
                return there
        result = await self._decide(transactional_id, lambda _: Enlist(*asked), False)
        return result.number if isinstance(result, Enlisted) else _failure(result)

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Sequence[tuple[bytes, int]] = (),
        groups: Sequence[str] = (),
    ) -> int | Refusal:
        """The number of the open transaction that has all of these; INVALID_TXN_STATE when there is none."""
        if not await self.replica.confirm():
            return Refusal(KafkaError.NOT_COORDINATOR, "This node does not lead the coordinator any more.")
        result = self.machine.verify(transactional_id, producer_id, epoch, partitions, groups)
        return result.number if isinstance(result, Enlisted) else _failure(result)

    async def end(
        self, transactional_id: str, producer_id: int, epoch: int, *, commit: bool, raises: bool
    ) -> ProducerIdentity | Refusal:
        """Commit or abort; returns the identity for the producer's next transaction.

        `raises`: transactions version 2 (KIP-890), the epoch rises. The answer comes once the outcome is
        decided: from then on it is carried out under all failures. The next transaction begins once that is
        done.
        """

        def command(new_id: int) -> End:
            return End(transactional_id, producer_id, epoch, commit, raises, new_id)

        known = self.machine.transactions.get(transactional_id)
        wants_id = raises and known is not None and known.is_exhausted
        result = await self._decide(transactional_id, command, wants_id)
        return ProducerIdentity(*result[1:]) if isinstance(result, Prepared) else _failure(result)

    # What operators ask.

    async def describe(self, transactional_id: str) -> Transaction | Refusal:
        """The state of a transactional id; the caller reads it in the same turn of the loop."""
        if not await self.replica.confirm():
            return Refusal(KafkaError.NOT_COORDINATOR, "This node does not lead the coordinator any more.")
        found = self.machine.transactions.get(transactional_id)
        return found or Refusal(KafkaError.TRANSACTIONAL_ID_NOT_FOUND, "No such transactional id is known.")

    async def abort(self, transactional_id: str, number: int) -> ProducerIdentity | Refusal | None:
        """Abort the open transaction of this number, and fence its producer.

        None: the command is in the log, and its outcome is not known yet. A Refusal is certain.
        """
        await self._context.decisions.passed()
        result = await self.replica.execute(Abort(transactional_id, number))
        if isinstance(result, Refusal) and result.reason is Reason.COORDINATOR_UNDECIDED:
            return None
        return ProducerIdentity(*result[1:]) if isinstance(result, Prepared) else _failure(result)

    # Deciding.

    async def _decide(
        self, transactional_id: str, command: Callable[[int], TransactionCommand], wants_id: bool
    ) -> Any:
        """The machine's answer to a command, made of a new producer id (`wants_id`: expected to be needed).

        While the command has to wait for a transaction that is being completed it is repeated, up to
        COMPLETING_SECONDS; a transaction that was aborted for this very request counts as such.
        """
        deadline = self._context.loop.time() + COMPLETING_SECONDS
        new_id = NO_PRODUCER_ID
        while True:
            if wants_id and new_id == NO_PRODUCER_ID:
                given = await self._context.producer_ids.next()
                if isinstance(given, Unavailable):
                    return Refusal(
                        KafkaError.COORDINATOR_LOAD_IN_PROGRESS, f"No producer id: {given.reason}."
                    )
                new_id = given
            made = command(new_id)
            if not isinstance(made, Enlist):
                await self._context.decisions.passed()
            elif self._is_completing(made) and not await self._completed(transactional_id, deadline):
                return _COMPLETING
            result = await self.replica.execute(made)
            wants_id = isinstance(result, ProducerIdNeeded)
            if wants_id:
                continue
            if not _has_to_wait(made, result):
                return result
            if not await self._completed(transactional_id, deadline):
                return _COMPLETING

    def _is_completing(self, command: Enlist) -> bool:
        """Whether the log would only say that the producer's transaction before is still being completed."""
        known = self.machine.transactions.get(command.transactional_id)
        asking = (command.producer_id, command.epoch)
        return known is not None and known.state in PREPARED and known.identity == asking

    async def _completed(self, transactional_id: str, deadline: float) -> bool:
        """Whether it is of use to ask again: what completes the transaction of an id is in the log before the
        deadline, so that another command is applied behind it, or this node does not lead any more."""
        if self._waits >= MAX_WAITING:
            return False
        known = self.machine.transactions.get(transactional_id)
        if known is None or known.state not in PREPARED or not self.replica.leads:
            return True
        if transactional_id in self._upkeep.completing:
            return True
        future: asyncio.Future[None] = self._context.loop.create_future()
        self._waiting.setdefault(transactional_id, []).append(future)
        self._waits += 1
        try:
            async with asyncio.timeout_at(deadline):
                await future
        except TimeoutError:
            return False
        finally:
            self._waits -= 1
            waiting = self._waiting.get(transactional_id)
            if waiting is not None and future in waiting:
                waiting.remove(future)
                if not waiting:
                    del self._waiting[transactional_id]
        return True

    def _stopped(self, reason: str) -> None:
        for transactional_id in [*self._waiting]:
            self._wake(transactional_id)

    def _changed(self) -> None:
        """An entry was applied: wake the requests whose awaited transaction is complete now."""
        transactions = self.machine.transactions
        for transactional_id in [*self._waiting]:
            one = transactions.get(transactional_id)
            if one is None or one.state not in PREPARED:
                self._wake(transactional_id)

    def _wake(self, transactional_id: str) -> None:
        for future in self._waiting.pop(transactional_id, ()):
            if not future.done():
                future.set_result(None)


def _has_to_wait(command: TransactionCommand, result: Any) -> bool:
    """Whether the command has to be repeated once the transaction in progress is complete."""
    if isinstance(result, Refused):
        return result.error is KafkaError.CONCURRENT_TRANSACTIONS
    return isinstance(result, Prepared) and isinstance(command, InitializeProducer)


def _failure(result: Any) -> Refusal:
    if isinstance(result, Refusal):
        # A client asks again, or another node, whether or not the command may be applied yet.
        undecided = result.reason is Reason.COORDINATOR_UNDECIDED
        return Refusal(KafkaError.NOT_COORDINATOR, result.message) if undecided else result
    assert isinstance(result, Refused)
    return Refusal(result.error, result.message)
