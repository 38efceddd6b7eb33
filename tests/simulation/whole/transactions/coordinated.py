"""A client that knows coordinators: looks for them, asks them, and asks again as Kafka's clients do."""

from __future__ import annotations

import traceback
from collections.abc import Coroutine, Mapping
from types import MappingProxyType
from typing import Any, Final

from kio.schema.errors import ErrorCode

from strandline.node.kafka.wire.apis import ApiKey
from tests.kafka.wire.batches import Record, build
from tests.simulation.whole.client import Client, Directory
from tests.simulation.whole.cluster import WholeCluster
from tests.simulation.whole.transactions.endings import GivenUp
from tests.simulation.whole.transactions.journal import Journal
from tests.simulation.whole.transactions.load import Load
from tests.simulation.whole.wire import Lost

GROUP: Final = 0
TRANSACTION: Final = 1
TRANSACTIONAL: Final = 0x10
"""The bit of a batch's attributes."""
FIND_SECONDS: Final = 1.5
GIVE_UP_SECONDS: Final = 10.0
"""How long one question is asked again before its client gives up what it was about."""

MOVED: Final = (ErrorCode.not_coordinator, ErrorCode.coordinator_not_available)
BUSY: Final = (ErrorCode.coordinator_load_in_progress, ErrorCode.concurrent_transactions)


_WAIT: Final[Mapping[int, tuple[ErrorCode, ...]]] = MappingProxyType(
    {ApiKey.TXN_OFFSET_COMMIT: (ErrorCode.unknown_topic_or_partition, ErrorCode.request_timed_out)}
)
"""What else is asked again, by request."""


class Coordinated(Client):
    """`journal` takes what it does."""

    def __init__(
        self, cluster: WholeCluster, directory: Directory, name: str, machine: int, journal: Journal
    ) -> None:
        super().__init__(cluster, directory, name, machine)
        assert cluster.plan.load is not None
        self.load: Load = cluster.plan.load
        self.journal = journal
        self._coordinators: dict[tuple[int, str], int] = {}

    def spawn(self, coro: Coroutine[Any, Any, Any]) -> None:
        super().spawn(self._watched(coro))

    async def _watched(self, coro: Coroutine[Any, Any, Any]) -> None:
        """A client that fails would look like one that is done."""
        try:
            await coro
        except Exception:
            self.ledger.broken("clients", f"{self.name} failed: {traceback.format_exc()}")

    async def coordinated(
        self, kind: int, key: str, api: int, version: int, seconds: float, /, **fields: Any
    ) -> Any:
        """One answer of the coordinator of a key; raises Lost."""
        node = self._coordinators.get((kind, key))
        if node is None:
            node = self._coordinators[kind, key] = await self._find(kind, key)
        try:
            return await self.wire.ask(node, api, version, seconds, **fields)
        except Lost:
            self.moved(kind, key)
            raise

    async def insist(self, kind: int, key: str, api: int, version: int, /, **fields: Any) -> tuple[Any, bool]:
        """An answer that is not to be asked for again, and whether an earlier attempt may have done it;
        raises GivenUp."""
        deadline = self.world.now + GIVE_UP_SECONDS
        doubt = False
        while True:
            try:
                answer = await self.coordinated(kind, key, api, version, self.load.answer_seconds, **fields)
                code = code_of(api, answer)
                if code in MOVED:
                    self.moved(kind, key)
                elif code not in (*BUSY, *_WAIT.get(api, ())):
                    return answer, doubt
                doubt = doubt or code is not ErrorCode.concurrent_transactions
            except Lost:
                doubt = True
            if self.world.now >= deadline:
                self.journal.counts["given up"] += 1
                raise GivenUp(f"{self.name}: {ApiKey(api).name}")
            await self.pause()

    def built(self, values: list[str], time: int, producer: tuple[int, int, int]) -> bytes:
        """A transactional batch of a record for each of these values; no other batch has these bytes."""
        filler = "." * self.rng.choice((0, 20, 200))
        records = [Record(f"{value} {filler}".encode(), time) for value in values]
        return build(records, producer=producer, attributes=TRANSACTIONAL)

    def dawdles(self) -> bool:
        """Whether to stand still in the midst of a transaction; nobody does once the faults are over."""
        return self.rng.random() < self.load.dawdle and not self.journal.calm

    def ending(self) -> bool:
        """Whether nothing new is to be begun; to be asked after every wait."""
        return self.stopped

    def moved(self, kind: int, key: str) -> None:
        """The coordinator is to be looked for."""
        self._coordinators.pop((kind, key), None)

    async def _find(self, kind: int, key: str) -> int:
        version = self.rng.choice((3, 4))
        answer = await self.wire.ask(
            self.rng.choice(self.wire.nodes), ApiKey.FIND_COORDINATOR, version, FIND_SECONDS,
            key=key, key_type=kind, coordinator_keys=[key],
        )  # fmt: skip
        found = answer if version < 4 else answer.coordinators[0]
        if found.error_code is ErrorCode.coordinator_not_available:
            raise Lost("no coordinator is known")
        if found.error_code is not ErrorCode.none:
            self.ledger.broken("coordinators", f"{self.name}, looking for {key}: {found.error_code.name}")
            raise Lost(found.error_code.name)
        return int(found.node_id)


def code_of(api: int, answer: Any) -> ErrorCode:
    """The one code that decides what a client does with an answer."""
    if api == ApiKey.ADD_PARTITIONS_TO_TXN:
        codes = [
            one.partition_error_code
            for topic in answer.results_by_topic_v3_and_below
            for one in topic.results_by_partition
        ]
    elif api == ApiKey.TXN_OFFSET_COMMIT:
        codes = [one.error_code for topic in answer.topics for one in topic.partitions]
    else:
        return ErrorCode(answer.error_code)
    return next((code for code in codes if code is not ErrorCode.none), ErrorCode.none)
