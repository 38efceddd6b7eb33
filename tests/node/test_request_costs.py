"""The requests that a node's budget of money pays for: its own, and those of its workers, each once."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from strandline.node.broker.request_costs import money_budget_of
from strandline.node.compaction.compactor import CompactorMeasures
from strandline.node.config.money import MonthlyBudget
from strandline.node.level_one.builder import LevelOneBuilder
from strandline.node.level_one.level_one_measures import BuilderMeasures
from strandline.node.level_one.worker_builder import WorkerBuilder
from strandline.node.objectstore.retries import RetryingStore, RetryPolicy


@pytest.mark.parametrize("kind", [WorkerBuilder, LevelOneBuilder])
def test_each_request_of_a_node_and_its_workers_is_paid_once(kind: type[LevelOneBuilder]) -> None:
    loop = asyncio.new_event_loop()
    store_of_none = cast(Any, SimpleNamespace(max_object_bytes=0, max_puts=0))
    store = RetryingStore(store_of_none, RetryPolicy(), loop=loop, rng=random.Random(1))
    builder = object.__new__(cast(Any, kind))
    builder.measures = BuilderMeasures(puts=50, gets=70)
    compaction = CompactorMeasures(puts=300, gets=500)
    storage = SimpleNamespace(requests_budget=MonthlyBudget(100.0, "USD"), put_price=5.0, get_price=0.5)
    parts = SimpleNamespace(
        config=SimpleNamespace(storage=storage),
        members=SimpleNamespace(ids=[1, 2]),
        store=store,
        batcher=SimpleNamespace(puts_begun=2),
        level_one_builder=builder,
        compactor=SimpleNamespace(measures=compaction),
        loop=loop,
    )
    budget = money_budget_of(cast(Any, parts))
    assert budget is not None
    assert budget.per_month == 50.0
    store.requests.update(put=12, list=4, get=5, get_range=6, size=7, delete=90)
    workers = (50, 70) if kind is WorkerBuilder else (0, 0)
    # Level-zero puts are paid where they begin.
    puts, gets = 12 + 4 - 2 + 300 + workers[0], 18 + 500 + workers[1]
    assert budget.left < 50.0
    assert budget.spent == pytest.approx((puts * 5.0 + gets * 0.5) * 1e-6)
    loop.close()
