"""A folder that is to be a cluster's object storage, looked at before it is opened."""

from __future__ import annotations

from pathlib import Path

from strandline.cluster.failure import CommandFailed


def check_folder(storage: str) -> None:
    """Raise CommandFailed if this is the path of a folder without a cluster's objects.

    Buckets are passed over: what they lack is found as they are read.
    """
    from strandline.node.objectstore.unfinished_files import PARTIAL

    place = Path(storage)
    if "://" in storage or (place / PARTIAL).is_dir():
        return
    if not place.exists():
        lacks = "does not exist"
    elif not place.is_dir():
        lacks = "is no folder"
    else:
        lacks = "has no objects of a cluster" if any(place.iterdir()) else "is empty"
    raise CommandFailed(
        f"{storage} {lacks}: there is nothing to restore",
        "name the folder or prefix that the cluster had as storage.url, or mount it",
    )
