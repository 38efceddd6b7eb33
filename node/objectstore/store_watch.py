"""Probes the object store while no other operation does: an idle node notices a missing bucket too.

While something fails, the same is tried again every few seconds, so that trouble ends without a client's
help, and is known to have ended. The answers are noticed where all are, in `StoreHealth`.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from strandline.node.objectstore.retries import RetryingStore
from strandline.node.objectstore.store import ObjectStore, StoreError
from strandline.node.objectstore.store_health import OperationKind
from strandline.node.runtime.rounds import next_round

LOOK_SECONDS: Final = 1.0
IDLE_SECONDS: Final = 30.0
"""An idle store is probed after this long with an empty listing, which costs as much as a put."""
TRIAL_SECONDS: Final = 5.0
"""Time between two trials of what fails."""
TRIAL_BYTES: Final = 64 * 1024
"""Size of the object that is put while puts fail: an almost full disk has room for a few bytes."""
PREFIX: Final = "health/"
"""Below it nothing is kept but the objects of trials, one a node, which go at once."""


class StoreWatch:
    """One node's look at its store. Belongs to `loop`; `start`, and `close` before the store's.

    `owned` is the same store once its owner was seen: until then nothing is put or deleted.
    """

    def __init__(
        self, store: RetryingStore, owned: ObjectStore, node: int, *, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._store = store
        self._owned = owned
        self._key = f"{PREFIX}node-{node}"
        self._loop = loop
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look."""
        self._task = self._loop.create_task(self._run())

    async def close(self) -> None:
        """Stop looking."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        health, tried_at = self._store.health, float("-inf")
        while True:
            await next_round(LOOK_SECONDS)
            health.look()
            now = self._loop.time()
            troubles = health.troubles()
            if now - tried_at < (TRIAL_SECONDS if troubles else IDLE_SECONDS):
                continue
            if not troubles and now - health.last_answer < IDLE_SECONDS:
                continue
            tried_at = now
            for kind in [trouble.kind for trouble in troubles] or [OperationKind.LIST]:
                # What comes of it is in `health`.
                with contextlib.suppress(StoreError):
                    await self._try(kind)

    async def _try(self, kind: OperationKind) -> None:
        store, owned = self._store, self._owned
        match kind:
            case OperationKind.PUT:
                await owned.put(self._key, [bytes(TRIAL_BYTES)])
                await owned.delete_many([self._key])
            case OperationKind.READ:
                await store.size(self._key)
            case OperationKind.LIST:
                await store.list(PREFIX, "", 1)
            case OperationKind.DELETE:
                await owned.delete_many([self._key])
