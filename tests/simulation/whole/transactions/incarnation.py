"""One incarnation of a transactional producer, as Kafka's clients speak the protocol.

Version 1 says itself which partitions and groups are in a transaction, and keeps its epoch until something
failed (KIP-360); version 2 leaves that to the broker and gets another epoch with every end (KIP-890).
Whatever is retriable is sent again with the same sequences. A client that cannot tell what became of its
commit says so; it never guesses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from kio.schema.errors import ErrorCode

from strandline.node.kafka.wire.apis import ApiKey
from tests.histories.history import Transaction
from tests.simulation.whole.ledger import Sent
from tests.simulation.whole.objects import BODY, Place
from tests.simulation.whole.producers import PATIENCE, RETRIABLE
from tests.simulation.whole.retention import START_MS
from tests.simulation.whole.transactions.coordinated import BUSY, GROUP, TRANSACTION, Coordinated, code_of
from tests.simulation.whole.transactions.endings import (
    ABORTS,
    FENCES,
    GONE_MEMBER,
    Abortable,
    Fenced,
    GivenUp,
    InDoubt,
)
from tests.simulation.whole.wire import Connection, Lost

SHORTEST_SECONDS: Final = 0.02
"""Of a wait for an answer, however little patience is left."""


class Incarnation:
    """Begins with `initialize`; then transactions, one after the other: `send`, `commit_offsets`, `end`."""

    def __init__(self, client: Coordinated, transactional_id: str, name: str, *, version: int) -> None:
        self.client = client
        self.name = name
        self.version = version
        self.producer_id = self.epoch = -1
        self.timeout = client.rng.choice(client.load.timeouts)
        self._id = transactional_id
        self._sequences: dict[Place, int] = {}
        self._added: dict[Place | str, None] = {}
        """What is in the transaction by now, as far as this client has told."""
        self._numbers: dict[Place, int] = {}
        self._failed = False
        """Something of this epoch may still arrive: it is not to be used again."""
        self._produce_version = client.rng.choice((9, 11) if version == 1 else (12, 13))

    # Its identity.

    async def initialize(self) -> None:
        """Fence all before it. Raises Fenced, GivenUp."""
        answer, _ = await self._ask(
            ApiKey.INIT_PRODUCER_ID, 4 if self.version == 1 else 5,
            transactional_id=self._id, transaction_timeout=timedelta(seconds=self.timeout),
            producer_id=self.producer_id, producer_epoch=self.epoch,
        )  # fmt: skip
        self._judge("InitProducerId", answer.error_code)
        self._takes(answer.producer_id, answer.producer_epoch)

    def _takes(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != (self.producer_id, self.epoch):
            self._sequences.clear()
            self.client.journal.counts["ids used up"] += self.producer_id not in (-1, producer_id)
        self.producer_id, self.epoch = producer_id, epoch
        self._added.clear()
        self._failed = False

    def _judge(self, what: str, code: ErrorCode) -> None:
        if code is ErrorCode.none:
            return
        self.client.journal.counts[f"{what} {code.name}"] += 1
        if code not in FENCES:
            self.client.ledger.broken("answers", f"{self.name}: {what} was answered {code.name}")
        raise Fenced(code.name)

    # Records.

    async def send(self, transaction: Transaction, places: Mapping[Place, Sequence[list[str]]]) -> None:
        """Batches of values for some partitions; returns once all are acknowledged. Raises Abortable,
        Fenced, GivenUp."""
        waiting = {
            place: [self._make(transaction, place, values) for values in batches]
            for place, batches in places.items()
        }
        if self.version == 1:
            await self._add_partitions([place for place in places if place not in self._added])
        told = await asyncio.gather(
            *(self._deliver(transaction, place, batches) for place, batches in waiting.items()),
            return_exceptions=True,
        )
        for one in told:
            if one is not None:
                self._failed = True
                raise one

    def _make(self, transaction: Transaction, place: Place, values: list[str]) -> tuple[Sent, bytes]:
        client = self.client
        sequence = self._sequences.get(place, 0)
        self._sequences[place] = sequence + len(values)
        time = START_MS + int(1000 * client.world.now)
        data = client.built(values, time, (self.producer_id, self.epoch, sequence))
        number = self._numbers.get(place, 0)
        self._numbers[place] = number + 1
        batch = Sent(self.name, number, place, len(values), data[BODY:], idempotent=True)
        client.ledger.made(batch)
        client.journal.holds(batch, values)
        client.journal.sent(transaction, client.directory.topic(place).name, batch)
        return batch, data

    async def _add_partitions(self, places: list[Place]) -> None:
        if not places:
            return
        topics: dict[str, list[int]] = {}
        for place in places:
            topics.setdefault(self.client.directory.topic(place).name, []).append(place.partition)
        while True:
            answer, _ = await self._ask(
                ApiKey.ADD_PARTITIONS_TO_TXN, 3,
                v3_and_below_transactional_id=self._id, v3_and_below_producer_id=self.producer_id,
                v3_and_below_producer_epoch=self.epoch,
                v3_and_below_topics=[
                    {"name": name, "partitions": numbers} for name, numbers in topics.items()
                ],
            )  # fmt: skip
            code = code_of(ApiKey.ADD_PARTITIONS_TO_TXN, answer)
            if code not in (ErrorCode.unknown_topic_or_partition, ErrorCode.operation_not_attempted):
                break
            await self.client.pause()  # that node has not heard of the topic yet
        self._judge("AddPartitionsToTxn", code)
        self._added.update(dict.fromkeys(places))

    async def _deliver(
        self, transaction: Transaction, place: Place, batches: list[tuple[Sent, bytes]]
    ) -> None:
        client = self.client
        deadline = client.world.now + client.load.patience
        waiting = batches
        while waiting:
            connection = await self._leader(place)
            if connection is not None:
                waiting = await self._attempt(transaction, connection, waiting, deadline)
            if not waiting:
                break
            if client.world.now >= deadline:
                client.journal.counts["batches given up"] += 1
                raise Abortable("batches were not acknowledged in time")
            await client.refresh()
            await client.pause()

    async def _leader(self, place: Place) -> Connection | None:
        client = self.client
        if place not in client.leaders:
            await client.refresh()
        known = client.leaders.get(place)
        if known is None:
            return None
        try:
            return await client.wire.connection(known[0])
        except Lost:
            return None

    async def _attempt(
        self,
        transaction: Transaction,
        connection: Connection,
        batches: list[tuple[Sent, bytes]],
        deadline: float,
    ) -> list[tuple[Sent, bytes]]:
        """Send all, one behind the other; those that are to be sent again."""
        client, seconds = self.client, self.client.cluster.plan.seconds_to_answer
        futures = []
        for batch, data in batches:
            partition = {"index": batch.place.partition, "records": data}
            future = connection.send(
                ApiKey.PRODUCE, self._produce_version, transactional_id=self._id, acks=-1,
                timeout=timedelta(seconds=seconds),
                topic_data=[{**client.asked(batch.place), "partition_data": [partition]}],
            )  # fmt: skip
            futures.append(future)
        left = []
        for (batch, data), future in zip(batches, futures, strict=True):
            try:
                left_seconds = max(deadline - client.world.now, SHORTEST_SECONDS)
                answer = await client.wire.answer(connection, future, min(seconds * PATIENCE, left_seconds))
            except Lost:
                client.journal.counts["produce lost"] += 1
                left.append((batch, data))
                continue
            told = answer.responses[0].partition_responses[0]
            client.journal.counts[f"produce {told.error_code.name}"] += 1
            if told.error_code is ErrorCode.none:
                client.ledger.acked(batch, told.base_offset)
                client.journal.acknowledged(transaction, batch, told.base_offset)
            elif told.error_code in ABORTS:
                raise Abortable(told.error_code.name)
            elif told.error_code in (*RETRIABLE, *BUSY):
                left.append((batch, data))
            else:
                client.ledger.broken("answers", f"{batch} was answered {told.error_code.name}")
                raise Abortable(told.error_code.name)
        return left

    # Offsets.

    async def commit_offsets(
        self, group: str, generation: int, member: str, topic: str, offsets: Mapping[int, int],
        instance: str | None = None,
    ) -> None:  # fmt: skip
        """Make a group's offsets part of the transaction. Raises Abortable, Fenced, GivenUp."""
        if self.version == 1 and group not in self._added:
            answer, _ = await self._ask(
                ApiKey.ADD_OFFSETS_TO_TXN, 3, transactional_id=self._id, group_id=group,
                producer_id=self.producer_id, producer_epoch=self.epoch,
            )  # fmt: skip
            self._judge("AddOffsetsToTxn", answer.error_code)
            self._added[group] = None
        rows = [
            {"partition_index": number, "committed_offset": offset, "committed_leader_epoch": -1,
             "committed_metadata": ""}
            for number, offset in offsets.items()
        ]  # fmt: skip
        answer, _ = await self._ask(
            ApiKey.TXN_OFFSET_COMMIT, 3 if self.version == 1 else 5, GROUP, group,
            transactional_id=self._id, group_id=group, producer_id=self.producer_id,
            producer_epoch=self.epoch, generation_id=generation, member_id=member,
            group_instance_id=instance, topics=[{"name": topic, "partitions": rows}],
        )  # fmt: skip
        code = code_of(ApiKey.TXN_OFFSET_COMMIT, answer)
        if code is not ErrorCode.none:
            self.client.journal.counts[f"TxnOffsetCommit {code.name}"] += 1
            self._failed = True
            if code not in (*ABORTS, *GONE_MEMBER):
                self.client.ledger.broken("answers", f"{self.name}: TxnOffsetCommit: {code.name}")
            raise Abortable(code.name)

    # The end.

    async def end(self, *, commit: bool) -> None:
        """Returns once it is decided so. Raises Fenced when it certainly was not committed, InDoubt when a
        commit may or may not have been decided, Abortable when it is to be aborted."""
        try:
            answer, doubt = await self._ask(
                ApiKey.END_TXN, 4 if self.version == 1 else 5, transactional_id=self._id,
                producer_id=self.producer_id, producer_epoch=self.epoch, committed=commit,
            )  # fmt: skip
        except GivenUp:
            if commit:
                raise InDoubt("the commit was not answered") from None
            raise
        code = answer.error_code
        if code is ErrorCode.none:
            if self.version == 2:
                self._takes(answer.producer_id, answer.producer_epoch)
            elif self._failed:
                await self._bump()
            self._added.clear()
            return
        self.client.journal.counts[f"EndTxn {code.name}"] += 1
        if commit and doubt:
            raise InDoubt(code.name)
        if code is ErrorCode.transaction_abortable and commit:
            raise Abortable(code.name)
        if code is ErrorCode.invalid_txn_state and not commit and self.version == 1:
            await self._bump()  # nothing was in it
            return
        if code is ErrorCode.invalid_txn_state:
            raise Fenced(code.name)
        self._judge("EndTxn", code)

    async def _bump(self) -> None:
        """What was given up may still arrive: under an epoch that is over."""
        await self.initialize()

    async def _ask(
        self, api: int, version: int, kind: int = TRANSACTION, key: str | None = None, /, **fields: Any
    ) -> tuple[Any, bool]:
        """See Coordinated.insist."""
        return await self.client.insist(kind, key or self._id, api, version, **fields)
