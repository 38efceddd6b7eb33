"""Opens the store that a node is configured with: a folder, or a bucket by its URL; operations try again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from urllib.parse import urlsplit

from strandline.node.objectstore.hedging import Hedging
from strandline.node.objectstore.local_store import LocalStore
from strandline.node.objectstore.obstore_store import ObstoreStore
from strandline.node.objectstore.retries import RetryingStore, RetryPolicy
from strandline.node.objectstore.store import ObjectStore
from strandline.node.objectstore.unfinished_files import ObjectDisk


@dataclass(frozen=True, slots=True)
class StorePlace:
    """Place of the objects, and this process's name as a writer."""

    url: str
    """A folder's path, or the URL of a bucket."""
    options: Mapping[str, str]
    """For the client of the bucket; some are secrets."""
    owner: str
    """Names this process among all that share a folder."""

    @property
    def is_folder(self) -> bool:
        """Whether the objects are files below a folder, and `url` its path."""
        return not urlsplit(self.url).scheme

    @property
    def is_shared(self) -> bool:
        """Whether other processes see the same objects."""
        return urlsplit(self.url).scheme != "memory"


def open_store(
    place: StorePlace,
    policy: RetryPolicy,
    *,
    loop: asyncio.AbstractEventLoop,
    disk: ObjectDisk,
    executor: Executor,
    rng: random.Random,
    make: bool = True,
    hedge_puts: bool = False,
) -> ObjectStore:
    """The store, its operations tried again as `policy` says. Blocks. Raises NotDone, which says the cure.

    `make` says whether a folder that is not there is made. Reads of a bucket may be sent twice, and with
    `hedge_puts` so may puts of level-zero objects.
    """
    store: ObjectStore
    hedging = None
    if not place.is_folder:
        plain_http = place.options.get("endpoint", "").startswith("http://")
        store = ObstoreStore(
            place.url,
            options=place.options,
            allow_http=plain_http,
            timeout_seconds=policy.attempt_seconds,
        )
        hedging = Hedging(loop=loop, puts=hedge_puts)
    else:
        store = LocalStore.open(disk, place.url, owner=place.owner, loop=loop, executor=executor, make=make)
    return RetryingStore(store, policy, loop=loop, rng=rng, place=place.url, hedging=hedging)
