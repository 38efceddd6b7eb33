"""The object storage of a restore or a clone, opened for one command that is no node."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from strandline.cluster.failure import CommandFailed
from strandline.cluster.storage_folder import check_folder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from strandline.node.objectstore.store import ObjectStore

T = TypeVar("T")


def absolute(storage: str) -> str:
    """The URL, or the folder's whole path."""
    return storage if ":" in storage.partition("/")[0] else str(Path(storage).absolute())


def with_store(
    storage: str, options: Mapping[str, str], work: Callable[[ObjectStore], Coroutine[Any, Any, T]]
) -> T:
    """Run `work` with the store at `storage`; what it refuses, or the store fails with, is CommandFailed."""
    from strandline.node.objectstore.storage_owner import ForeignStorage
    from strandline.node.objectstore.store import StoreError
    from strandline.node.restore.reading import CannotRestore

    async def run() -> T:
        async with opened(absolute(storage), options) as store:
            return await work(store)

    try:
        return asyncio.run(run())
    except CannotRestore as error:
        raise CommandFailed(error.cause, error.cure) from None
    except ForeignStorage as error:
        cause, _, cure = str(error).rpartition(": ")
        raise CommandFailed(cause, cure) from None
    except StoreError as error:
        raise CommandFailed(
            f"{storage}: {error}", error.cure or "see to the storage, then try again"
        ) from None


@asynccontextmanager
async def opened(
    storage: str, options: Mapping[str, str], *, make: bool = False
) -> AsyncIterator[ObjectStore]:
    """The store, made where it is missing if `make`; its operations are tried again for half a minute."""
    from strandline.node.objectstore.opening import StorePlace, open_store
    from strandline.node.objectstore.retries import RetryPolicy
    from strandline.node.raft.disk import RealDisk

    if not make:
        check_folder(storage)
    with ThreadPoolExecutor(4, "store") as threads:
        store = open_store(
            StorePlace(storage, options, f"restore-{os.getpid()}"),
            RetryPolicy(),
            loop=asyncio.get_running_loop(),
            disk=RealDisk(),
            executor=threads,
            rng=random.Random(),
            make=make,
        )
        try:
            yield store
        finally:
            await store.close()
