"""Cost of a node's requests to its store, and its share of the cluster's budget for them."""

from __future__ import annotations

import asyncio
import random
from typing import Final, Protocol

from strandline.node.config.node_config import NodeConfig
from strandline.node.controller.cluster_epoch import ClusterEpoch
from strandline.node.level_one.builder import LevelOneBuilder
from strandline.node.level_zero.batcher import Batcher
from strandline.node.level_zero.money_budget import MoneyBudget, Prices, Requests
from strandline.node.objectstore.retries import RetryingStore
from strandline.node.objectstore.store import ObjectStore

PER_MILLION: Final = 1e-6
_PUTS: Final = ("put", "list")
_GETS: Final = ("get", "get_range", "size")


class Billed(Protocol):
    """The parts of a node that make requests."""

    config: NodeConfig
    loop: asyncio.AbstractEventLoop
    rng: random.Random
    epoch: ClusterEpoch

    @property
    def store(self) -> ObjectStore: ...
    @property
    def batcher(self) -> Batcher: ...
    @property
    def level_one_builder(self) -> LevelOneBuilder: ...


def batcher_of(parts: Billed, store: ObjectStore) -> Batcher:
    """The way to a store for what the node takes from producers, within the configured budgets."""
    config = parts.config
    return Batcher(
        store,
        config.batching,
        loop=parts.loop,
        rng=parts.rng,
        node=config.node.id,
        shard=config.node.id,
        epoch=parts.epoch.current,
        money=money_budget_of(parts),
    )


def money_budget_of(parts: Billed) -> MoneyBudget | None:
    """This node's equal share of `storage.requests_budget`; None without one.

    The store counts all requests of this process, those that were tried again among them. The level-one
    worker tells its own with each job. Deletions cost nothing in any of the stores.
    """
    storage, nodes = parts.config.storage, len(parts.config.cluster.nodes)
    if storage.requests_budget is None:
        return None

    def other() -> Requests:
        store, worker = parts.store, parts.level_one_builder.measures
        counted = store.requests if isinstance(store, RetryingStore) else {}
        puts = sum(counted.get(kind, 0) for kind in _PUTS) - parts.batcher.puts_begun
        return Requests(puts + worker.puts, sum(counted.get(kind, 0) for kind in _GETS) + worker.gets)

    prices = Prices(storage.put_price * PER_MILLION, storage.get_price * PER_MILLION)
    return MoneyBudget(storage.requests_budget.amount / nodes, prices, other, parts.loop.time)
