"""Requests of a process to its object store, by what stores charge for them."""

from __future__ import annotations

from typing import Final, NamedTuple

from strandline.node.objectstore.retries import RetryingStore
from strandline.node.objectstore.store import ObjectStore

_PUTS: Final = ("put", "list")
_GETS: Final = ("get", "get_range", "size")


class Requests(NamedTuple):
    """So many of each price. Deletions cost nothing in any of the stores."""

    puts: int
    """And listings."""
    gets: int


def requests_of(store: ObjectStore) -> Requests:
    """All that this process has made since it opened the store, those that were tried again among them."""
    counted = store.requests if isinstance(store, RetryingStore) else {}
    return Requests(sum(counted.get(kind, 0) for kind in _PUTS), sum(counted.get(kind, 0) for kind in _GETS))
