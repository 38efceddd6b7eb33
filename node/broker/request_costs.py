"""Cost of a node's requests to its store, and its share of the cluster's budget for them."""

from __future__ import annotations

import asyncio
import random
from typing import Final, Protocol

from strandline.node.compaction.compactor import Compactor
from strandline.node.config.node_config import NodeConfig
from strandline.node.controller.cluster_epoch import ClusterEpoch
from strandline.node.controller.members import Members
from strandline.node.level_one.builder import LevelOneBuilder
from strandline.node.level_one.worker_builder import WorkerBuilder
from strandline.node.level_zero.batcher import Batcher
from strandline.node.level_zero.money_budget import MoneyBudget, Prices
from strandline.node.objectstore.requests import Requests, requests_of
from strandline.node.objectstore.store import ObjectStore

PER_MILLION: Final = 1e-6


class Billed(Protocol):
    """The parts of a node that make requests."""

    config: NodeConfig
    loop: asyncio.AbstractEventLoop
    rng: random.Random
    epoch: ClusterEpoch

    @property
    def members(self) -> Members: ...
    @property
    def store(self) -> ObjectStore: ...
    @property
    def batcher(self) -> Batcher: ...
    @property
    def level_one_builder(self) -> LevelOneBuilder: ...
    @property
    def compactor(self) -> Compactor: ...


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

    The store counts all requests of this process, and the workers tell theirs with each job.
    """
    storage = parts.config.storage
    budget = storage.requests_budget
    if budget is None:
        return None

    def other() -> Requests:
        here, compaction = requests_of(parts.store), parts.compactor.measures
        puts = here.puts - parts.batcher.puts_begun + compaction.puts
        gets = here.gets + compaction.gets
        builder = parts.level_one_builder
        if isinstance(builder, WorkerBuilder):
            # Without a worker the requests are this process's.
            puts += builder.measures.puts
            gets += builder.measures.gets
        return Requests(puts, gets)

    prices = Prices(storage.put_price * PER_MILLION, storage.get_price * PER_MILLION)
    amount = budget.amount
    return MoneyBudget(lambda: amount / max(1, len(parts.members.ids)), prices, other, parts.loop.time)
