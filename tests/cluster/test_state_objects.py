"""Runs of a state are stored beside each other, as far as memory allows; none that fails is passed over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from strandline.cluster.view_worker import state_objects
from strandline.cluster.view_worker.state_objects import StateObjects
from strandline.cluster.view_worker.store_thread import StoreThread
from strandline.node.objectstore.local_store import PARTIAL
from strandline.node.objectstore.opening import StorePlace
from strandline.node.objectstore.store import OutcomeUnknown
from strandline.snapshot.views.operator import StateManifest
from strandline.snapshot.views.run import Layout, Run, run_of

LAYOUT = Layout((pl.Int64(),), (0,))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StoreThread]:
    (tmp_path / "store" / PARTIAL).mkdir(parents=True)
    made = StoreThread(StorePlace(str(tmp_path / "store"), {}, "owner"))
    yield made
    made.close()


def run(value: int) -> Run:
    return run_of(LAYOUT, pl.DataFrame({"c0": [value]}), (np.ones(1, np.int64),))


def state(count: int) -> dict[str, StateManifest]:
    return {"one": StateManifest((tuple(run(value) for value in range(count)),), b"")}


def test_runs_are_stored_beside_each_other_in_bounded_numbers(
    store: StoreThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    puts: list[int] = []
    whole = store.put_all

    def noted(objects: Sequence[tuple[str, Any]]) -> None:
        puts.append(len(objects))
        whole(objects)

    monkeypatch.setattr(store, "put_all", noted)
    objects = StateObjects(store, tmp_path / "files", 5, 7, 1)
    name, needed = objects.save(state(state_objects.AT_ONCE + 3), {})
    assert puts == [state_objects.AT_ONCE, 3]
    assert len(needed) == state_objects.AT_ONCE + 4
    assert {*store.list("views/", "", 100)} == needed
    found, _, _ = StateObjects(store, tmp_path / "elsewhere", 5, 7, 2).load(name)
    assert [each.rows.item() for each in found["one"].runs[0]] == [*range(state_objects.AT_ONCE + 3)]
    puts.clear()
    monkeypatch.setattr(state_objects, "AT_ONCE_BYTES", 1)
    objects.save(state(3), {})
    assert puts == [1, 1, 1]


def test_a_run_that_is_not_stored_ends_it_before_a_state_names_it(
    store: StoreThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = store._store.put

    async def failing(key: str, parts: Sequence[Any]) -> None:
        if key.endswith("2.run"):
            raise OutcomeUnknown("put", key, "it is lost")
        await put(key, parts)

    monkeypatch.setattr(store._store, "put", failing)
    with pytest.raises(OutcomeUnknown, match=r"2\.run"):
        StateObjects(store, tmp_path / "files", 5, 7, 1).save(state(4), {})
    stored = store.list("views/", "", 100)
    assert len(stored) == 3
    assert not [one for one in stored if one.endswith(".state")]
