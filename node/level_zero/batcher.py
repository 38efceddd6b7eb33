"""Gathers the batches of many partitions into objects, and decides when each object is uploaded.

With no upload in progress a batch is uploaded at once. While uploads are in progress batches gather, and are
uploaded when one returns, when they fill an object, or when the oldest has waited for the linger time, with
as many uploads in parallel as the store has shown to bear (upload_window.py). So at low load latency is one
put, at high load objects are large, and nothing needs tuning. A budget of puts per second, for stores that
bill them, makes objects fewer and larger. docs/level-zero.md.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from strandline.node.level_zero.batcher_config import BatcherConfig
from strandline.node.level_zero.measures import BatcherMeasures, FlushReason
from strandline.node.level_zero.money_budget import MoneyBudget
from strandline.node.level_zero.put_budget import PutBudget
from strandline.node.level_zero.upload_window import UploadWindow
from strandline.node.objectstore.store import Buffer, ObjectStore, StoreError
from strandline.node.refusal import Reason, Refusal
from strandline.snapshot.level_zero_format import Batch, encode, overhead
from strandline.statemachine.object_names import object_id, object_name


@dataclass(frozen=True, slots=True)
class Stored:
    """The batch is durable: the byte range of an object, named by the epoch it was made in and its id."""

    epoch: int
    object_id: bytes
    position: int
    length: int


Result = Stored | Refusal
"""STORAGE_FAILED: nothing refers to the batch's object, and if it appears the collector takes it."""


@dataclass(frozen=True, slots=True)
class _Staged:
    batch: Batch
    size: int
    since: float
    future: asyncio.Future[Result]


class Batcher:
    """Writes one node's batches to level zero.

    `epoch()` is called at the moment an object is made, and gives the cluster epoch in its name. `shard` is
    the node's share of the key space. Names are unique by 80 bits of `rng` and a counter, so `rng` needs a
    new seed in every process.
    """

    def __init__(
        self,
        store: ObjectStore,
        config: BatcherConfig,
        *,
        loop: asyncio.AbstractEventLoop,
        rng: random.Random,
        node: int,
        shard: int,
        epoch: Callable[[], int],
        money: MoneyBudget | None = None,
    ) -> None:
        """`money` is this node's budget for requests, beside that of puts in `config`."""
        if config.max_object_bytes + overhead(config.max_staged_batches) > store.max_object_bytes:
            raise ValueError(
                f"the store takes objects of up to {store.max_object_bytes} bytes: too few for "
                f"max_object_bytes {config.max_object_bytes} and an index"
            )
        self.measures = BatcherMeasures()
        self.staged_bytes = 0
        self.staged_batches = 0
        self.uploads = 0
        """Uploads in progress."""
        self.newest_epoch = 0
        """Of the newest object whose upload was begun; 0 without one."""
        self.window = UploadWindow(
            min(config.max_uploads, store.max_puts), config.max_upload_bytes, loop.time
        )
        """It has to hear of the store's attempts; until then it stays as it is."""

        self._store = store
        self._config = config
        self.money = money
        budgeted = money is not None or config.puts_per_second is not None
        self._object_bytes = config.max_object_bytes if budgeted else config.target_bytes
        """Batches of an object, in bytes; a larger batch goes alone."""
        self._loop = loop
        self._node = node
        self._shard = shard
        self._epoch = epoch
        self._boot = rng.getrandbits(80)
        self._made = 0
        self._pending: deque[_Staged] = deque()
        self._pending_bytes = 0
        self._uploading_bytes = 0
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._turn: asyncio.Handle | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._budget = PutBudget(config.puts_per_second, config.max_uploads, loop.time)
        self._replenishing: asyncio.TimerHandle | None = None
        self._closing = False
        self._idle: asyncio.Future[None] | None = None

    @property
    def puts_begun(self) -> int:
        """Objects whose upload was begun."""
        return self._made

    @property
    def waited_seconds(self) -> float:
        """Age of the oldest batch that is not in an upload, in seconds; 0 without one."""
        return self._loop.time() - self._pending[0].since if self._pending else 0.0

    @property
    def gathered_bytes(self) -> int:
        """Bytes staged that are not in an upload yet."""
        return self._pending_bytes

    def stage(self, topic_id: bytes, partition: int, data: Buffer) -> asyncio.Future[Result]:
        """Take a batch, exactly as its producer sent it and not to be changed any more.

        The result never is an exception. NOT_NOW means that nothing was staged. Cancelling the future
        gives the batch up, if it is not in an upload yet. ValueError for a batch that fits into no object.
        """
        config = self._config
        size = len(data)
        if not 0 < size <= config.max_object_bytes or len(topic_id) != 16:
            raise ValueError(f"a batch of {size} bytes fits no object; {config.max_object_bytes} would")
        future: asyncio.Future[Result] = self._loop.create_future()
        refusal = self._refusal(size)
        if refusal is not None:
            self.measures.batches_refused += 1
            future.set_result(Refusal(Reason.NOT_NOW, refusal))
            return future
        self.staged_bytes += size
        self.staged_batches += 1
        self._pending_bytes += size
        self._pending.append(_Staged(Batch(topic_id, partition, data), size, self._loop.time(), future))
        if not self.uploads:
            # The next turn and not now: what the same turn brings goes along.
            if self._turn is None:
                self._turn = self._loop.call_soon(self._flush, FlushReason.IDLE)
        elif self._pending_bytes >= config.target_bytes:
            self._flush(FlushReason.FULL)
        elif self._linger is None and self._has_room():
            self._linger = self._loop.call_at(self._lingers_until(), self._flush, FlushReason.LINGER)
        return future

    async def close(self) -> None:
        """Refuse new batches, let the gathered leave within the budget, and wait for all uploads to end."""
        self._closing = True
        # What was given up need not wait for the budget.
        self._pending = deque(staged for staged in self._pending if not self._is_given_up(staged))
        self._flush(FlushReason.CLOSING)
        if self._tasks or self._pending:
            if self._idle is None:
                self._idle = self._loop.create_future()
            await asyncio.shield(self._idle)

    def _refusal(self, size: int) -> str | None:
        config = self._config
        if self._closing:
            return "the node is stopping"
        if self.staged_bytes + size > config.max_staged_bytes:
            return f"{self.staged_bytes} bytes wait for the object store"
        if self.staged_batches >= config.max_staged_batches:
            return f"{self.staged_batches} batches wait for the object store"
        return None

    def _flush(self, why: FlushReason) -> None:
        """Upload the gathered batches, as far as the window of uploads and the budget of puts allow."""
        for timer in (self._turn, self._linger):
            if timer is not None:
                timer.cancel()
        self._turn = self._linger = None
        while self._pending:
            if not self._has_room():
                self.window.in_the_way(self.uploads)
                break
            if not self._may_put():
                break
            staged = self._seal()
            if staged:
                self._budget.spend()
                if self.money is not None:
                    self.money.spend()
                self._upload(staged, why)
            after = self._flush_reason()
            if after is None:
                break
            why = after
        # Without room a timer could flush nothing: the next upload that ends does it.
        if self._pending and self._has_room() and self._flush_reason() is None:
            self._linger = self._loop.call_at(self._lingers_until(), self._flush, FlushReason.LINGER)
        # Also where nothing left: the callers of all that waited for a put may be gone.
        if self._idle is not None and not self._tasks and not self._pending:
            self._idle.set_result(None)
            self._idle = None

    def _has_room(self) -> bool:
        """Whether the window has room for what would leave now."""
        size = max(min(self._pending_bytes, self._object_bytes), self._pending[0].size)
        return self.window.has_room(self.uploads, self._uploading_bytes, size)

    def _flush_reason(self) -> FlushReason | None:
        """The reason to upload the gathered batches now; None if they may gather on."""
        if self._closing:
            return FlushReason.CLOSING
        if self._pending_bytes >= self._config.target_bytes:
            return FlushReason.FULL
        lingered = self._pending and self._loop.time() >= self._lingers_until()
        return FlushReason.LINGER if lingered else None

    def _lingers_until(self) -> float:
        return self._pending[0].since + self._config.linger_seconds

    def _seal(self) -> list[_Staged]:
        """Take the oldest batches, as many as go into one object; drop those whose callers are gone."""
        taken: list[_Staged] = []
        size = 0
        pending = self._pending
        while pending and (not taken or size + pending[0].size <= self._object_bytes):
            staged = pending.popleft()
            if self._is_given_up(staged):
                continue
            self._pending_bytes -= staged.size
            taken.append(staged)
            size += staged.size
        return taken

    def _is_given_up(self, staged: _Staged) -> bool:
        """Whether the caller of a gathered batch is gone; it is then no longer counted."""
        if not staged.future.done():
            return False
        self.measures.batches_abandoned += 1
        self._pending_bytes -= staged.size
        self._release(staged)
        return True

    def _upload(self, staged: list[_Staged], why: FlushReason) -> None:
        epoch = self.newest_epoch = self._epoch()
        self._made += 1
        unique = self._boot.to_bytes(10, "big") + self._made.to_bytes(6, "big")
        identity = object_id(self._shard, self._node, unique)
        encoded = encode(epoch, identity, [item.batch for item in staged])
        now = self._loop.time()
        measures = self.measures
        measures.left[why] += 1
        measures.object_bytes.add(encoded.size)
        measures.object_batches.add(len(staged))
        for item in staged:
            measures.wait_seconds.add(now - item.since)
        results = [
            Stored(epoch, identity, position, item.size)
            for position, item in zip(encoded.positions, staged, strict=True)
        ]
        self.uploads += 1
        self._uploading_bytes += encoded.size
        number = self._made
        self._tasks[number] = self._loop.create_task(
            self._put(number, object_name(epoch, identity), encoded.parts, encoded.size, staged, results)
        )

    async def _put(
        self,
        number: int,
        name: str,
        parts: list[Buffer],
        size: int,
        staged: list[_Staged],
        results: list[Stored],
    ) -> None:
        started = self._loop.time()
        failure: Refusal | None = None
        try:
            await self._store.put(name, parts)
        except StoreError as error:
            reason = f"{error.reason}: {error.cure}" if error.cure else error.reason
            failure = _not_stored(name, reason)
        except Exception as error:
            failure = _not_stored(name, f"{type(error).__name__}: {error}")
            self._loop.call_exception_handler({"message": f"putting {name}", "exception": error})
        except asyncio.CancelledError:
            # By the store's client. The callers wait for an answer all the same, and uploads are few.
            failure = _not_stored(name, "the put was cancelled")
        self.measures.upload_seconds.add(self._loop.time() - started)
        self._upload_done(number, size, staged, failure, results)

    def _upload_done(
        self,
        number: int,
        size: int,
        staged: list[_Staged],
        failure: Refusal | None,
        results: list[Stored],
    ) -> None:
        del self._tasks[number]
        self.uploads -= 1
        self._uploading_bytes -= size
        measures = self.measures
        if failure is None:
            measures.objects_stored += 1
            measures.batches_stored += len(staged)
            measures.bytes_stored += size
        else:
            measures.objects_failed += 1
            measures.batches_failed += len(staged)
        for item, result in zip(staged, results, strict=True):
            self._release(item)
            if not item.future.done():
                item.future.set_result(failure or result)
        self._flush(FlushReason.RETURNED)

    def _release(self, staged: _Staged) -> None:
        self.staged_bytes -= staged.size
        self.staged_batches -= 1

    def _may_put(self) -> bool:
        """Whether the budgets have a put left; if not, look again when they will."""
        wait = self._budget.seconds_to_next()
        if self.money is not None:
            wait = max(wait, self.money.seconds_to_next())
        if wait and self._replenishing is None:
            self._replenishing = self._loop.call_later(wait, self._replenished)
        return not wait

    def _replenished(self) -> None:
        self._replenishing = None
        self._flush(FlushReason.BUDGET)


def _not_stored(name: str, reason: str) -> Refusal:
    return Refusal(Reason.STORAGE_FAILED, f"object {name}: {reason}")
