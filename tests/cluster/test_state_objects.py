"""Objects of stored states, and their files: what is written, what is held for them, and what may go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import polars as pl
import pytest

from strandline.cluster.view_worker import state_objects
from strandline.cluster.view_worker.holds import hold
from strandline.cluster.view_worker.node_link import TopicPlace
from strandline.cluster.view_worker.state_objects import StateObjects
from strandline.cluster.view_worker.store_thread import StoreThread
from strandline.cluster.view_worker.stored_states import StoredStates
from strandline.node.objectstore.opening import StorePlace
from strandline.node.objectstore.store import OutcomeUnknown
from strandline.node.objectstore.unfinished_files import PARTIAL
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


def test_a_start_deletes_the_files_that_its_state_does_not_need(store: StoreThread, tmp_path: Path) -> None:
    """On a disk that they fill it could store no state, and they would stay."""
    before = StateObjects(store, tmp_path / "files", 5, 7, 1)
    name, _ = before.save(state(2), {})
    needed = {path for path in (tmp_path / "files").rglob("*") if path.is_file()}
    before.keep(run(9))
    assert {path for path in (tmp_path / "files").rglob("*") if path.is_file()} > needed
    StateObjects(store, tmp_path / "files", 5, 7, 2).load(name)
    left = {path for path in (tmp_path / "files").rglob("*") if path.is_file()}
    assert {path.name for path in left} - {"begun"} == {path.name for path in needed} - {"begun"}


def test_leftovers_are_those_of_attempts_up_to_this_one_but_for_the_one_that_runs(
    store: StoreThread, tmp_path: Path
) -> None:
    own = {
        attempt: StateObjects(store, tmp_path / "files", 5, attempt, 1).save(state(1), {})[1]
        for attempt in (6, 7, 8, 10)
    }
    objects = StateObjects(store, tmp_path / "files", 5, 8, 2)
    needed = frozenset(sorted(own[8])[:1])
    assert objects.leftovers(5, 8, needed, 7) == (own[6] | own[8]) - needed
    assert objects.leftovers(5, 8, needed, 0) == (own[6] | own[7] | own[8]) - needed


def test_an_object_that_either_of_the_newest_two_states_needs_is_not_deleted() -> None:
    deleted: list[set[str]] = []
    given = iter([{"1", "x", "y"}, {"2", "y"}, {"3"}, {"4"}])

    class Objects:
        def save(self, states: Any, cut: Any) -> tuple[str, frozenset[str]]:
            return "name", frozenset(next(given))

        def leftovers(self, *_: Any) -> frozenset[str]:
            return frozenset()

        def delete(self, names: frozenset[str]) -> None:
            deleted.append({*names})

    states = StoredStates(cast(Any, Objects()), 5, 7)
    for _ in range(4):
        states.save({}, {}, 0)
        states.remove_older()
    assert [one for one in deleted if one] == [{"1", "x"}, {"2", "y"}]


def test_a_partition_that_a_cut_does_not_have_is_held_from_its_beginning() -> None:
    held: list[Mapping[int, int | None]] = []
    place = TopicPlace("sales", 3, True, 1 << 20, b"id")
    link: Any = SimpleNamespace(
        known=SimpleNamespace(topics={b"id": place}),
        hold=lambda topic, reader, offsets, lease: held.append(offsets),
    )
    hold(link, [("sales", b"id")], "reader", {("sales", 0): 5, ("sales", 2): 0})
    hold(link, [("sales", b"id")], "reader", None)
    assert held == [{0: 5, 1: 0, 2: 0}, {0: None, 1: None, 2: None}]
