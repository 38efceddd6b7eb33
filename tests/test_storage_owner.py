"""Whose a bucket or folder is: the first cluster's that comes, and of it the first incarnation's."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from strandline.node.objectstore.storage_owner import (
    KEY,
    ForeignStorage,
    OwnedStore,
    Owner,
    claim,
    draw_incarnation,
    read_owner,
)
from strandline.node.objectstore.store import Buffer, NotDone, ObjectNotFound

HARBOUR = Owner("harbour", "first")


class Shelf:
    """As much of a store as is asked for."""

    max_object_bytes = 1000

    def __init__(self, **objects: bytes) -> None:
        self.objects = objects
        self.down = False
        self.replaced_by: bytes | None = None
        self.puts = 0
        self.asked: list[str] = []

    async def get(self, key: str) -> Buffer:
        if self.down:
            raise NotDone("get", key, "it is down", retriable=True)
        if key not in self.objects:
            raise ObjectNotFound("get", key)
        return self.objects[key]

    async def put(self, key: str, parts: Sequence[Buffer]) -> None:
        self.puts += 1
        self.objects[key] = self.replaced_by or b"".join(parts)

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        async def answer(*_: object) -> str:
            self.asked.append(operation)
            return operation

        return answer


def claimed(shelf: Shelf, owner: Owner) -> None:
    asyncio.run(claim(shelf, owner))


def test_the_first_cluster_leaves_its_name_and_its_nodes_come_again() -> None:
    shelf = Shelf()
    assert asyncio.run(read_owner(shelf)) is None
    for _ in range(3):
        claimed(shelf, HARBOUR)
    assert list(shelf.objects) == [KEY]
    assert shelf.puts == 1
    assert asyncio.run(read_owner(shelf)) == HARBOUR


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (
            Owner("inland", "first"),
            "belongs to cluster 'harbour', incarnation first, this node to cluster 'inland'",
        ),
        (
            Owner("harbour", "second"),
            "belongs to cluster 'harbour', incarnation first, and this node's log is of",
        ),
    ],
)
def test_another_cluster_or_incarnation_is_refused_and_changes_nothing(other: Owner, text: str) -> None:
    shelf = Shelf()
    claimed(shelf, HARBOUR)
    before = dict(shelf.objects)
    with pytest.raises(ForeignStorage, match=text):
        claimed(shelf, other)
    assert shelf.objects == before


def test_the_slower_of_two_finds_out_at_once() -> None:
    shelf = Shelf()
    shelf.replaced_by = b'{"format": 2, "cluster": "harbour", "incarnation": "first"}'
    with pytest.raises(ForeignStorage, match="belongs to cluster 'harbour'"):
        claimed(shelf, Owner("inland", "first"))


@pytest.mark.parametrize("said", [b"", b"{", b"[]", b'{"format": 2}', b'"text"', b"\xff"])
def test_something_else_of_that_name_is_refused_and_kept(said: bytes) -> None:
    shelf = Shelf(**{KEY: said})
    with pytest.raises(ForeignStorage, match="not one of Strandline's"):
        claimed(shelf, HARBOUR)
    assert shelf.objects == {KEY: said}


@pytest.mark.parametrize("version", [1, 3])
def test_another_format_is_refused(version: int) -> None:
    with pytest.raises(ForeignStorage, match=f"has format {version}, this release reads 2"):
        claimed(Shelf(**{KEY: b'{"format": %d, "cluster": "harbour"}' % version}), HARBOUR)


def test_a_store_that_is_down_says_so_itself() -> None:
    shelf = Shelf()
    shelf.down = True
    with pytest.raises(NotDone):
        claimed(shelf, HARBOUR)
    assert shelf.objects == {}


def test_an_incarnation_says_when_it_began() -> None:
    drawn = draw_incarnation(1_800_000_000_123, random.Random(1))
    assert drawn.startswith("2027-01-15T08:00:00Z-")
    assert drawn != draw_incarnation(1_800_000_000_123, random.Random(2))


def test_nothing_is_done_in_storage_whose_owner_was_not_seen() -> None:
    shelf = Shelf()
    store = OwnedStore(shelf)
    calls: dict[str, Callable[[], Any]] = {
        "put": lambda: store.put("a", [b"b"]),
        "get": lambda: store.get("a"),
        "get_range": lambda: store.get_range("a", 0, 1),
        "size": lambda: store.size("a"),
        "list": lambda: store.list("", "", 1),
        "delete_many": lambda: store.delete_many(["a"]),
    }
    for call in calls.values():
        with pytest.raises(
            NotDone, match="has not seen yet that the storage belongs to its cluster"
        ) as caught:
            asyncio.run(call())
        assert caught.value.retriable
    assert (shelf.asked, shelf.puts) == ([], 0)
    store.open_for(HARBOUR)
    for call in calls.values():
        if call is not calls["get"]:
            asyncio.run(call())
    assert (shelf.asked, shelf.puts) == (["get_range", "size", "list", "delete_many"], 1)
