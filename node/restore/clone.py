"""Copies what a restore point names into another storage, under another cluster's name: a clone's beginning.

The source is only read. The copy is a storage of a cluster of its own, with one restore point, and everything
after that is a restore like any other: it draws a new incarnation, and its nodes and collectors know
no storage but the copy. The copy's owner comes last, so what broke off is no storage of a cluster.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Protocol

from strandline.node.objectstore.storage_owner import KEY, Owner, read_owner
from strandline.node.objectstore.store import MAX_LIST, Buffer, ObjectNotFound, ObjectStore
from strandline.node.restore.reading import CannotRestore, for_each, names_below
from strandline.node.restore.stored_point import StoredPoint
from strandline.snapshot.document import SnapshotDocument
from strandline.snapshot.names import snapshot_name
from strandline.snapshot.restore_point import point_name
from strandline.statemachine.controller import controller_snapshot
from strandline.statemachine.controller.controller_state import CONTROLLER_GROUP

AT_ONCE: Final = 4
"""Objects that are copied at the same time; each is in memory, and one of level one has up to 64 MiB."""

VIEW_OBJECTS: Final = "views/"
"""Prefix of the objects in which versions of views keep their state (`node/views/view_host.py`)."""


class Source(Protocol):
    """The storage that is copied; it can only be read here."""

    async def get(self, key: str) -> Buffer: ...
    async def list(self, prefix: str, after: str, limit: int) -> list[str]: ...


def begun_name(name: str) -> str:
    """The object that says that a copy is under way, and of what: a copy that broke off is begun again."""
    return f"restore/{name}/clone"


async def check_target(target: ObjectStore, stored: StoredPoint, name: str) -> bool:
    """Whether the copy is there already, and belongs to no cluster that was restored from it.

    An attempt that ended before the storage was given to its cluster changed nothing in the copy. Raises
    CannotRestore where the target has anything but such a copy, or a part of one.
    """
    owner = await read_owner(target)
    names = await target.list("", "", MAX_LIST)
    if not names:
        return False
    try:
        begun = bytes(await target.get(begun_name(name)))
    except ObjectNotFound:
        begun = b""
    if begun != _begun(stored):
        raise CannotRestore(
            f"the storage for the clone is not empty: it has {names[0]!r}"
            + (", and was begun from another restore point" if begun else ""),
            "choose another name with --as, or delete what is there",
        )
    if owner is None:
        return False
    if owner != Owner(name, stored.point.incarnation):
        raise CannotRestore(
            f"{owner} was restored from this clone already",
            "choose another name with --as, or start that one in its folder: `strandline cluster start"
            " --cluster FOLDER`; if its restore broke off, repeat that there: `strandline cluster restore"
            " --cluster FOLDER`",
        )
    return True


async def is_of_source(store: Source, stored: StoredPoint) -> bool:
    """Whether the point is the one that the storage was copied with: its nodes are the source's, and may run.

    A clone has it until it has taken a point of its own.
    """
    try:
        begun = bytes(await store.get(begun_name(stored.owner.cluster)))
    except ObjectNotFound:
        return False
    return stored.tail_point is None and begun.split()[-1:] == [b"%d" % stored.point.number]


async def copy(
    source: Source, target: ObjectStore, stored: StoredPoint, name: str, tell: Callable[[str], None]
) -> None:
    """Copy the point and all that it names. Raises StoreError, and CannotRestore if an object is gone."""
    await target.put(begun_name(name), [_begun(stored)])
    done = 0

    async def copy_one(key: str) -> None:
        nonlocal done
        await target.put(key, [await _object(source, key)])
        done += 1
        tell(f"copying: {done} of {stored.named_objects} objects")

    await for_each(sorted(stored.named), copy_one, AT_ONCE)
    await _copy_views(source, target)
    nodes = {named.group: named.node for named in stored.point.groups}
    for group, document in stored.documents.items():
        renamed = _renamed(document, name)
        await target.put(snapshot_name(name, group, document.index, nodes[group]), list(renamed.parts()))
    point = replace(stored.point, cluster=name)
    await target.put(point_name(name, point.number), [point.encode()])
    await target.put(KEY, [Owner(name, stored.point.incarnation).document().encode()])


async def _copy_views(source: Source, target: ObjectStore) -> None:
    """Copy the states of views; one that goes meanwhile is not of the newest, which a version begins with."""
    async for key in names_below(source, VIEW_OBJECTS):
        with contextlib.suppress(ObjectNotFound):
            await target.put(key, [await source.get(key)])


async def _object(source: Source, key: str) -> Buffer:
    try:
        return await source.get(key)
    except ObjectNotFound:
        raise CannotRestore(
            f"{key}, which the restore point names, was deleted while it was copied",
            "take another point with `strandline checkpoint --lease` of an hour or more, and repeat this",
        ) from None


def _renamed(document: SnapshotDocument, name: str) -> SnapshotDocument:
    state = document.state
    if document.group == CONTROLLER_GROUP:
        controller = controller_snapshot.load(state)
        controller.cluster_id = name
        state = controller_snapshot.capture(controller)
    return replace(document, cluster=name, state=state)


def _begun(stored: StoredPoint) -> bytes:
    return f"{stored.owner} {stored.point.number}\n".encode()
