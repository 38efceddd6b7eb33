"""Whose a bucket or folder is: the first cluster's that comes, and no other may start on it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from node.level_zero.store import Buffer, NotDone, ObjectNotFound
from node.storage_owner import KEY, ForeignStorage, claim


class Shelf:
    """As much of a store as is asked for."""

    def __init__(self, **objects: bytes) -> None:
        self.objects = objects
        self.down = False
        self.replaced_by: bytes | None = None
        self.puts = 0

    async def get(self, key: str) -> Buffer:
        if self.down:
            raise NotDone("get", key, "it is down", retriable=True)
        if key not in self.objects:
            raise ObjectNotFound("get", key)
        return self.objects[key]

    async def put(self, key: str, parts: Sequence[Buffer]) -> None:
        self.puts += 1
        self.objects[key] = self.replaced_by or b"".join(parts)


def claimed(shelf: Shelf, cluster: str) -> None:
    asyncio.run(claim(shelf, cluster))  # type: ignore[arg-type]


def test_the_first_cluster_leaves_its_id_and_its_nodes_come_again() -> None:
    shelf = Shelf()
    for _ in range(3):
        claimed(shelf, "harbour")
    assert list(shelf.objects) == [KEY]
    assert shelf.puts == 1


def test_another_cluster_is_refused_and_changes_nothing() -> None:
    shelf = Shelf()
    claimed(shelf, "harbour")
    before = dict(shelf.objects)
    with pytest.raises(
        ForeignStorage, match="belongs to cluster 'harbour', this node to 'inland': give each"
    ):
        claimed(shelf, "inland")
    assert shelf.objects == before


def test_whoever_was_too_slow_of_two_finds_out_at_once() -> None:
    shelf = Shelf()
    shelf.replaced_by = b'{"format": 1, "cluster": "harbour"}'
    with pytest.raises(ForeignStorage, match="belongs to cluster 'harbour'"):
        claimed(shelf, "inland")


@pytest.mark.parametrize("said", [b"", b"{", b"[]", b'{"format": 1}', b'"text"', b"\xff"])
def test_something_else_of_that_name_is_refused_and_kept(said: bytes) -> None:
    shelf = Shelf(**{KEY: said})
    with pytest.raises(ForeignStorage, match="not one of Strandline's"):
        claimed(shelf, "harbour")
    assert shelf.objects == {KEY: said}


def test_a_newer_format_says_to_upgrade() -> None:
    with pytest.raises(ForeignStorage, match="has format 2: upgrade this node"):
        claimed(Shelf(**{KEY: b'{"format": 2, "cluster": "harbour"}'}), "harbour")


def test_a_store_that_is_down_says_so_itself() -> None:
    shelf = Shelf()
    shelf.down = True
    with pytest.raises(NotDone):
        claimed(shelf, "harbour")
    assert shelf.objects == {}
