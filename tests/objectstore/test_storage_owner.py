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
    find_owner,
    read_owner,
)
from strandline.node.objectstore.store import Buffer, NotDone, ObjectNotFound

HARBOUR = Owner("harbour", "first")


class Shelf:
    """As much of a store as is asked for."""

    max_object_bytes = 1000
    max_puts = 1
    has_files = False

    def __init__(self, **objects: bytes) -> None:
        self.objects = objects
        self.down = False
        self.replaced_by: bytes | None = None
        self.comes_with_a_listing: dict[str, bytes] = {}
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

    async def list(self, prefix: str, after: str, limit: int) -> list[str]:
        self.asked.append("list")
        found = [key for key in self.objects if key.startswith(prefix)]
        self.objects |= self.comes_with_a_listing
        return found

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        async def answer(*_: object) -> str:
            self.asked.append(operation)
            return operation

        return answer


def claimed(shelf: Shelf, owner: Owner) -> None:
    asyncio.run(claim(shelf, owner, lambda: True, lambda: True))


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


def test_storage_that_says_nothing_is_not_that_of_a_cluster_that_has_lived() -> None:
    """It is a folder that is not mounted, or another one: what is put there would be missed."""
    shelf = Shelf()
    with pytest.raises(ForeignStorage, match="whose other nodes have storage that does: mount it"):
        asyncio.run(claim(shelf, HARBOUR, lambda: False, lambda: True))
    assert shelf.objects == {}
    claimed(shelf, HARBOUR)
    asyncio.run(claim(shelf, HARBOUR, lambda: False, lambda: True))


def test_a_founder_whose_look_came_before_anothers_word_takes_that() -> None:
    """The other one has registered meanwhile, so that the cluster is not new any more."""
    shelf = Shelf()

    def is_new() -> bool:
        shelf.objects[KEY] = HARBOUR.document().encode()
        return False

    asyncio.run(claim(shelf, HARBOUR, is_new, lambda: True))
    assert shelf.puts == 0


@pytest.mark.parametrize("said", [b"", b"{", b"[]", b'{"format": 2}', b'"text"', b"\xff"])
def test_something_else_of_that_name_is_refused_and_kept(said: bytes) -> None:
    shelf = Shelf(**{KEY: said})
    with pytest.raises(ForeignStorage, match="not one of Strandline's"):
        claimed(shelf, HARBOUR)
    assert shelf.objects == {KEY: said}


@pytest.mark.parametrize("name", ["l0/0001/x", "l1/x", "snapshots/harbour/x"])
def test_storage_with_a_clusters_objects_and_no_owner_belongs_to_no_new_cluster(name: str) -> None:
    """The object that named the owner was deleted, and all folders are lost: this is the last copy."""
    shelf = Shelf(**{name: b"x"})
    for look in (find_owner(shelf), claim(shelf, HARBOUR, lambda: True, lambda: True)):
        with pytest.raises(ForeignStorage, match=rf"such as '{name}'.* the object 'cluster' was deleted"):
            asyncio.run(look)
    assert shelf.objects == {name: b"x"}


def test_founder_that_looked_before_the_first_object_sees_the_owner_that_came_with_it() -> None:
    shelf = Shelf(**{"l0/0001/x": b"x"})
    shelf.comes_with_a_listing = {KEY: HARBOUR.document().encode()}
    assert asyncio.run(find_owner(shelf)) == HARBOUR
    with pytest.raises(ForeignStorage, match="belongs to cluster 'harbour', incarnation first"):
        claimed(shelf, Owner("harbour", "second"))
    assert asyncio.run(read_owner(shelf)) == HARBOUR


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (Owner("inland", "first").document().encode(), "belongs to cluster 'inland', incarnation first now"),
        (Owner("harbour", "second").document().encode(), "belongs to cluster 'harbour', incarnation second"),
        (None, "names no owner now, and belonged to cluster 'harbour', incarnation first before"),
        (b"{", "is damaged, or not one of Strandline's"),
    ],
)
def test_nothing_is_deleted_where_the_storage_is_another_one_by_now(said: bytes | None, text: str) -> None:
    shelf = Shelf(**{KEY: HARBOUR.document().encode()})
    store = OwnedStore(shelf)
    store.open_for(HARBOUR)
    asyncio.run(store.delete_many(["l0/x"]))
    assert shelf.asked == ["delete_many"]
    if said is None:
        del shelf.objects[KEY]
    else:
        shelf.objects[KEY] = said
    with pytest.raises(NotDone, match=text):
        asyncio.run(store.delete_many(["l0/x"]))
    assert shelf.asked == ["delete_many"]


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
    shelf.objects[KEY] = HARBOUR.document().encode()
    for call in calls.values():
        if call is not calls["get"]:
            asyncio.run(call())
    assert (shelf.asked, shelf.puts) == (["get_range", "size", "list", "delete_many"], 1)
