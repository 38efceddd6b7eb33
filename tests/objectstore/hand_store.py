"""An object store whose puts end when, and how, a test says."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from strandline.node.objectstore.store import Buffer, ObjectStore, StoreError
from strandline.snapshot.level_zero_format import Footer, parse


@dataclass
class Put:
    """A put under way."""

    name: str
    data: bytes
    began: float
    done: asyncio.Future[None]

    @property
    def footer(self) -> Footer:
        return parse(self.name, self.data)

    def succeed(self) -> None:
        self.done.set_result(None)

    def fail(self, error: Exception) -> None:
        self.done.set_exception(error)


class HandStore(ObjectStore):
    """Puts wait in `under_way`, in the order in which they began; `begun` has all there ever were."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.max_object_bytes = 1 << 30
        self.begun: list[Put] = []
        self._loop = loop

    @property
    def under_way(self) -> list[Put]:
        return [put for put in self.begun if not put.done.done()]

    async def put(self, key: str, parts: Sequence[Buffer]) -> None:
        put = Put(key, b"".join(parts), self._loop.time(), self._loop.create_future())
        self.begun.append(put)
        await put.done

    async def get(self, key: str) -> Buffer:
        raise StoreError("get", key, "only puts here", retriable=False)

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        raise StoreError("get_range", key, "only puts here", retriable=False)

    async def size(self, key: str) -> int:
        raise StoreError("size", key, "only puts here", retriable=False)

    async def list(self, prefix: str, after: str, limit: int) -> list[str]:
        raise StoreError("list", prefix, "only puts here", retriable=False)

    async def delete_many(self, keys: Sequence[str]) -> None:
        raise StoreError("delete", "", "only puts here", retriable=False)

    async def close(self) -> None:
        """Nothing to let go of."""
