"""Deletes the level-zero objects whose epoch is not above M as it was a grace period ago.

The collector needs no list of garbage. An object's name begins with its epoch, so a shard's names come in the
order of their epochs, and a sweep starts at the lowest and stops at the first that has to stay. It keeps no
state either: the next sweep repairs a sweep that broke off, a deletion with an unknown outcome, an upload
that lands long after its epoch was collected, and another node's work on the same shard.

A node collects the shard it writes itself; shards of nodes that are not alive are shared out among the rest.
docs/epoch-gc.md tells why no object that it deletes can be needed, now or later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from strandline.node.config.node_config import CollectorSection
from strandline.node.controller.client import ControllerClient
from strandline.node.controller.controller_leader import EPOCH_NEEDED
from strandline.node.gc.collectable_epochs import CollectableEpochs
from strandline.node.gc.grace import Grace
from strandline.node.level_zero.shards import (
    NotThisCluster,
    behind_epoch,
    check_epochs,
    collectable,
    shards_of,
)
from strandline.node.objectstore.store import MAX_DELETE, ObjectStore, StoreError
from strandline.node.rpc import MeshCalls
from strandline.statemachine.object_names import parse_object_name, shard_prefix

log = logging.getLogger(__name__)

PAGE: Final = 1_000
"""Names in one listing: what S3 gives at a time, and all that is in memory of a shard."""
FULL_SWEEP_SECONDS: Final = 300.0
"""Time between two sweeps from the lowest name although M did not move: they find uploads that were late."""
MAX_PAUSE_SECONDS: Final = 300.0
"""The longest pause after failures; each doubles it."""


@dataclass(slots=True)
class CollectorMeasures:
    """The collector's counters since the process started, or since it was reset."""

    sweeps: int = 0
    """Sweeps over all shards of this node that came to their end."""
    lists: int = 0
    listed: int = 0
    """Names that listings gave."""
    deleted: int = 0
    """Names whose deletion was answered."""
    foreign: int = 0
    """Names in the last full sweep that are no level-zero object's; they stay where they are."""
    errors: int = 0


class DryRun(NamedTuple):
    """Objects that a sweep would delete now."""

    epoch: int
    """Up to which epoch."""
    objects: dict[int, int]
    """Number of objects by shard, for the shards this node collects."""
    names: list[str]
    """The first of them."""
    more: bool
    """Whether counting stopped before the end."""


class Collector:
    """One node's collector. Everything belongs on `loop`."""

    def __init__(
        self,
        store: ObjectStore,
        config: CollectorSection,
        collectable: CollectableEpochs,
        controller: ControllerClient,
        node: int,
        writers: Callable[[], Collection[int]],
        *,
        loop: asyncio.AbstractEventLoop,
        calls: MeshCalls,
        newest_epoch: Callable[[], int],
        written_epoch: Callable[[], int],
        may_begin: Callable[[], bool],
    ) -> None:
        """`writers()` are all nodes that may have objects, removed ones too; `newest_epoch` is what names
        this node's objects, `written_epoch` what named the last of them. `may_begin` says whether the local
        replica of the controller has what was committed when this process started: an old state may not know
        that collecting is paused."""
        self.measures = CollectorMeasures()
        self.broken: str | None = None
        """The broken invariant, if any; nothing is deleted here until `reset`."""
        self.last_error: str | None = None
        """Of the store, as long as the last sweep failed."""
        self._store = store
        self._config = config
        self._collectable = collectable
        self._controller = controller
        self._node = node
        self._writers = writers
        self._loop = loop
        self._newest_epoch = newest_epoch
        self._written_epoch = written_epoch
        self._may_begin = may_begin
        self._grace = Grace(config.grace_seconds)
        self._swept: tuple[int, tuple[int, ...]] | None = None
        """Bound and shards of the last sweep that came to its end."""
        self._above = True
        """Whether the last sweep left an object above the bound, or may have."""
        self._rested_at = float("-inf")
        """When no newer epoch was needed last."""
        self._full_at = 0.0
        self._fronts: dict[int, str] = {}
        """By shard, the last of the foreign names in front of all others: skipped but for full sweeps."""
        self._free_at = 0.0
        """When the next deletion may begin, for the rate."""
        self._failures = 0
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        calls.serve(EPOCH_NEEDED, self._on_asked)

    def start(self) -> None:
        """Begin to sweep."""
        self._task = self._loop.create_task(self._run())

    async def close(self) -> None:
        """Stop; a deletion under way may still take effect."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def reset(self) -> None:
        """Forget measures, failures and hints, and sweep this node's shards from their lowest names."""
        self.measures = CollectorMeasures()
        self.broken = self.last_error = None
        self._swept = None
        self._fronts.clear()
        self._full_at = 0.0
        self._failures = 0
        if self._task is not None and not self._closed:
            self._task.cancel()
            self.start()

    # What can be seen of it.

    @property
    def paused(self) -> bool:
        """Whether collecting is paused in the whole cluster, as far as this node knows."""
        return self._controller.machine.collection_paused

    @property
    def bound(self) -> int:
        """Epoch up to which objects may go: M as it was a grace period ago."""
        return self._grace.bound

    @property
    def lag_epochs(self) -> int:
        """Closed epochs whose objects are not collected yet."""
        return self._controller.machine.cluster_epoch - 1 - self.bound

    @property
    def lag_seconds(self) -> float:
        """Seconds since the oldest of them was closed, as far as this process saw; 0 while none has
        objects."""
        if not self.needs_newer_epoch:
            return 0.0
        now = self._loop.time()
        return min(self._grace.lag_seconds(now), now - self._rested_at)

    @property
    def needs_newer_epoch(self) -> bool:
        """Whether there are objects above the bound, or may be: the bound rises only behind a newer epoch."""
        return self._above or self._written_epoch() > self.bound

    def status(self) -> dict[str, Any]:
        """Plain values for people."""
        measures = self.measures
        return {
            "paused": self.paused,
            "waiting": not self._may_begin(),
            "broken": self.broken,
            "last_error": self.last_error,
            "bound": self.bound,
            "lag_epochs": self.lag_epochs,
            "lag_seconds": self.lag_seconds,
            "shards": self.shards(),
            **{name: getattr(measures, name) for name in CollectorMeasures.__slots__},
        }

    def shards(self) -> list[int]:
        """The shards this node collects."""
        return shards_of(self._node, self._writers(), self._controller.machine.nodes)

    async def dry_run(self, limit: int = PAGE) -> DryRun:
        """The objects that a sweep would delete now, up to `limit`; raises StoreError."""
        bound, counts = self._observe(), dict.fromkeys(self.shards(), 0)
        names: list[str] = []
        more = False
        for shard in counts:
            after, ended = "", False
            while not ended and not more:
                listed = await self._store.list(shard_prefix(shard), after, PAGE)
                page = collectable(listed, bound)
                taken = page.names[: limit - len(names)]
                names += taken
                counts[shard] += len(taken)
                more = len(taken) < len(page.names)
                ended = page.ended or len(listed) < PAGE
                after = listed[-1] if listed else after
        return DryRun(bound, counts, names, more)

    # Sweeping.

    async def _run(self) -> None:
        while True:
            try:
                await self._turn()
            except StoreError as error:
                self._failed(error)
            except NotThisCluster as error:
                self.broken = str(error)
                log.critical("the collector stops: %s", error)
                return
            except Exception as error:
                # An invariant of deletion may be broken: leak objects rather than delete live ones.
                self.broken = f"{type(error).__name__}: {error}"
                self._loop.call_exception_handler({"message": "the collector stops", "exception": error})
                return
            pause = self._config.sweep_seconds * 2 ** min(self._failures, 16)
            await asyncio.sleep(min(pause, max(MAX_PAUSE_SECONDS, self._config.sweep_seconds)))

    async def _turn(self) -> None:
        """Take note of M, and sweep if there is a reason to."""
        bound, now = self._observe(), self._loop.time()
        if not self.needs_newer_epoch:
            self._rested_at = now
        if not bound or not self._may_delete():
            return
        shards = tuple(self.shards())
        full = now >= self._full_at
        if not full and self._swept == (bound, shards):
            return
        if full:
            behind = behind_epoch(self._node, self._newest_epoch())
            check_epochs(await self._store.list(shard_prefix(self._node), behind, PAGE), self._newest_epoch())
            self._fronts.clear()
        foreign, above = 0, False
        for shard in shards:
            more, left = await self._sweep(shard)
            foreign, above = foreign + more, above or left
            if not self._may_delete():
                return
        self._above = above
        self._swept = (bound, shards)
        if full:
            self._full_at = now + FULL_SWEEP_SECONDS
            self.measures.foreign = foreign
        self.measures.sweeps += 1
        if self._failures:
            log.info("the collector recovered")
        self._failures, self.last_error = 0, None

    def _observe(self) -> int:
        """Take note of M as it is now; gives the bound."""
        maximum = self._collectable.maximum()
        return self._grace.observe(maximum.epoch, maximum.cluster_epoch, self._loop.time())

    def _may_delete(self) -> bool:
        return self._may_begin() and not self.paused

    async def _sweep(self, shard: int) -> tuple[int, bool]:
        """Delete collectable objects of one shard, lowest name first; returns the number of foreign names,
        and whether an object stayed."""
        prefix, after = shard_prefix(shard), self._fronts.get(shard, "")
        foreign, front, left = 0, True, True
        while self._may_delete():
            names = await self._store.list(prefix, after, PAGE)
            self.measures.lists += 1
            self.measures.listed += len(names)
            bound = self._observe()
            page = collectable(names, bound)
            foreign += page.foreign
            if front and page.front:
                self._fronts[shard] = page.front
            front = front and not page.names
            await self._delete(page.names, shard, bound)
            if page.ended or len(names) < PAGE:
                left = page.ended
                break
            assert names[-1] > after, f"a listing of {prefix} behind {after} ends with {names[-1]}"
            after = names[-1]
        return foreign, left

    async def _on_asked(self, _peer: int, _payload: Any) -> bool:
        """`[]` gives whether this node needs a newer cluster epoch."""
        return self.needs_newer_epoch

    async def _delete(self, names: Sequence[str], shard: int, bound: int) -> None:
        """Delete at the configured rate, as long as collecting is not paused."""
        rate = self._config.deletes_per_second
        size = min(MAX_DELETE, rate)
        for first in range(0, len(names), size):
            batch = names[first : first + size]
            # Bounded as well in case that the clock was set back.
            await asyncio.sleep(min(max(0.0, self._free_at - self._loop.time()), size / rate))
            if not self._may_delete():
                return
            self._free_at = self._loop.time() + len(batch) / rate
            for name in batch:
                # The last look before it is gone: parse_object_name takes nothing but what a batcher names.
                assert name.startswith(shard_prefix(shard)), f"{name} is not of shard {shard}"
                assert parse_object_name(name).epoch <= bound <= self.bound, f"{name} is above {bound}"
            await self._store.delete_many(batch)
            self.measures.deleted += len(batch)

    def _failed(self, error: StoreError) -> None:
        self.measures.errors += 1
        self.last_error = str(error)
        if not self._failures:
            log.warning("the collector's sweep failed and will be retried: %s", error)
        self._failures += 1
