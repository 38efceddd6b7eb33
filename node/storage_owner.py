"""Makes sure that a bucket or folder belongs to one cluster.

The names of level-zero objects do not say whose they are, and a collector deletes by names alone: of two
clusters on the same storage, the one that is further on would take the other's objects for its own garbage.
So the first node that comes leaves the cluster's id there, and a node of any other cluster does not start.
"""

from __future__ import annotations

import json
from typing import Final

from node.level_zero.store import ObjectNotFound, ObjectStore

KEY: Final = "cluster"
FORMAT: Final = 1


class ForeignStorage(Exception):
    """The storage is another cluster's, or says so in a way that cannot be read; one line with the cure."""


async def claim(store: ObjectStore, cluster_id: str) -> None:
    """Say whose the storage is, if nobody has. Raises ForeignStorage, or StoreError while nothing is known.

    Two clusters that come at the very same moment may both find nothing; whoever's word was replaced finds
    out when it looks again, or at its next start.
    """
    if not await _is_claimed(store, cluster_id):
        await store.put(KEY, [json.dumps({"format": FORMAT, "cluster": cluster_id}).encode()])
        await _is_claimed(store, cluster_id)


async def _is_claimed(store: ObjectStore, cluster_id: str) -> bool:
    try:
        data = bytes(await store.get(KEY))
    except ObjectNotFound:
        return False
    try:
        said = json.loads(data)
        version, owner = said["format"], said["cluster"]
    except (ValueError, KeyError, TypeError):
        raise ForeignStorage(
            f"storage.url: the object {KEY!r} there is not one of Strandline's: name a folder or prefix that "
            "nothing else writes to"
        ) from None
    if version != FORMAT:
        raise ForeignStorage(f"storage.url: the object {KEY!r} there has format {version}: upgrade this node")
    if owner != cluster_id:
        raise ForeignStorage(
            f"storage.url: what is stored there belongs to cluster {owner!r}, this node to {cluster_id!r}: "
            "give each cluster a folder or prefix of its own"
        )
    return True
