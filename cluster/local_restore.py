"""A local cluster made of what the storage holds: `strandline cluster restore`.

A folder whose restore broke off is marked, and no command starts its nodes before the restore was repeated:
a part of the nodes with restored data folders, beside others without, would be no cluster.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from strandline.cluster.failure import MISUSED, CommandFailed
from strandline.cluster.folder_lock import new_folder
from strandline.cluster.local import PortChoice, Progress
from strandline.cluster.local_files import DESCRIPTION, RESTORING, Description
from strandline.cluster.node_file import write_private
from strandline.cluster.storage_folder import check_folder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from strandline.node.objectstore.store import ObjectStore
    from strandline.node.restore.stored_point import StoredPoint

T = TypeVar("T")


def look(storage: str, options: Mapping[str, str], point: int | None) -> dict[str, Any]:
    """Describe what a restore would bring back, and change nothing. Raises CommandFailed."""

    async def run(store: ObjectStore) -> dict[str, Any]:
        from strandline.node.restore.stored_point import read_point

        return described(await read_point(store, point))

    return _with_store(storage, options, run)


def described(stored: StoredPoint) -> dict[str, Any]:
    """A restore point in plain values, for JSON."""
    from strandline.statemachine.controller.restored_controller import hosts

    point = stored.point
    return {
        "cluster": stored.owner.cluster,
        "incarnation": stored.owner.incarnation,
        "point": point.number,
        "of_tails": stored.tail_point is not None,
        "taken_ms": point.taken_ms,
        "last_sign_ms": stored.last_sign_ms,
        "missing_seconds": stored.missing_seconds,
        "unusable_points": list(stored.unusable),
        "age_seconds": max(0.0, round(time.time() - point.taken_ms / 1000, 1)),
        "later_points": stored.later_points,
        "nodes": list(hosts(stored.controller)),
        "objects": stored.named_objects,
        "later_objects": stored.later_objects,
        "partitions": [asdict(one) for one in stored.partitions],
    }


def restore(
    folder: Path,
    *,
    storage: str | None,
    options: Mapping[str, str],
    settings: Sequence[str],
    point: int | None,
    choose_ports: PortChoice,
    secure: bool,
    tell: Callable[[dict[str, Any]], None],
    progress: Progress,
    is_clone: bool = False,
) -> dict[str, Any]:
    """Make the data folders of a cluster from its storage, and give the storage to it; starts no node.

    The nodes of the storage of a clone are those of its source, and may run.

    Where the folder still has the cluster's description, that is used, and only the data folders have to be
    gone. `tell` is told what is restored before anything is done. Raises CommandFailed.
    """
    with new_folder(folder, DESCRIPTION):
        there = Description.load(folder)
        if there is not None:
            _check_described(there, storage)
            options = {**node_options(there), **options}
        place = there.storage if there is not None else storage
        if place is None:
            raise CommandFailed(
                f"there is no cluster in {folder} whose storage could be read",
                "name it with --storage",
                MISUSED,
            )

        async def run(store: ObjectStore) -> dict[str, Any]:
            from strandline.node.raft.disk import RealDisk
            from strandline.node.restore import data_folders, restored_states, stored_point, take_over

            progress("reading the storage")
            stored = await stored_point.read_point(store, point)
            plain = described(stored)
            found = there or _description(folder, plain, place, options, settings, choose_ports, secure)
            _check_fits(found, plain)
            running = [] if is_clone else await take_over.running_nodes(stored.controller)
            if running:
                raise CommandFailed(
                    f"the cluster may still run: something listens for {', '.join(running)}",
                    "stop it; if its data folders are whole, start it instead of a restore",
                )
            if there is None:
                _check_new(found)
            tell(plain)
            rng = random.SystemRandom()
            made = await take_over.record_attempt(store, stored, now_ms=time.time_ns() // 1_000_000, rng=rng)
            if there is None:
                found.create()
            write_private(folder / RESTORING, f"point {plain['point']}\n")
            for each in found.nodes.values():
                data_folders.begin_data_folder(each.data)
            progress("writing the data folders")
            disk = RealDisk()
            await data_folders.write_data_folders(
                {node: (disk, str(each.data)) for node, each in found.nodes.items()},
                stored.owner.cluster,
                made,
                restored_states.restored_documents(stored, made),
                stored.controller,
                rng=rng,
            )
            await take_over.take_over(store, stored, made)
            found.ready = True
            found.save()
            (folder / RESTORING).unlink()
            return {**plain, "new_incarnation": made.incarnation}

        return _with_store(place, options, run)


def beside(storage: str, name: str) -> str:
    """The storage of a clone: the folder or prefix of this name beside that of the source.

    Raises CommandFailed for a name that cannot be that of a cluster, and for a bucket without a prefix.
    """
    from strandline.snapshot.names import cluster_prefix

    try:
        cluster_prefix(name)
    except ValueError as error:
        raise CommandFailed(f"--as {name}: {error}", "choose another name", MISUSED) from None
    place = _absolute(storage).rstrip("/")
    scheme, separator, path = place.rpartition("://")
    above, slash, own = path.rpartition("/")
    if not slash or (separator and not above):
        raise CommandFailed(
            f"{storage} has no prefix, and so none beside it that the clone could have",
            "name the storage as s3://bucket/prefix; a cluster in a whole bucket cannot be cloned",
            MISUSED,
        )
    if own == name:
        raise CommandFailed(f"--as {name} is the source itself", "choose another name", MISUSED)
    return f"{scheme}{separator}{above}/{name}"


def clone(
    storage: str, options: Mapping[str, str], name: str, point: int | None, progress: Progress
) -> dict[str, Any]:
    """Copy what a restore point of `storage` names to the storage `beside` it, which is only read.

    Returns what was found in the source. Raises CommandFailed.
    """
    target = beside(storage, name)

    async def run(store: ObjectStore) -> dict[str, Any]:
        from strandline.node.restore import clone
        from strandline.node.restore.stored_point import read_point

        progress("reading the storage")
        stored = await read_point(store, point, leased=True)
        if stored.owner.cluster == name:
            raise CommandFailed(f"the source is cluster {name!r} itself", "choose another name", MISUSED)
        async with _opened(target, options, make=True) as copied:
            if not await clone.check_target(copied, stored, name):
                await clone.copy(store, copied, stored, name, progress)
        return described(stored)

    return _with_store(storage, options, run)


def _check_described(found: Description, storage: str | None) -> None:
    if storage is not None and found.storage not in (storage, _absolute(storage)):
        raise CommandFailed(
            f"the cluster in {found.folder} has its objects in {found.storage}",
            "leave --storage out, or name another folder with --cluster",
            MISUSED,
        )
    running = [str(node.node) for node in found.nodes.values() if node.pid is not None]
    if running:
        raise CommandFailed(
            f"the cluster in {found.folder} still runs: node {', '.join(running)}",
            f"to restore it, take it down, and move its data folders away: strandline cluster down --cluster"
            f" {found.folder}",
        )
    if whole := _whole(found):
        mark = found.folder / RESTORING
        first = f"delete {mark}, and " if mark.exists() else ""
        raise CommandFailed(
            f"data folders are still there: {', '.join(whole)}",
            f"{first}start the cluster with them, if they are of a majority of its nodes; else move them away"
            " first, and what only they hold is lost",
        )


def _whole(found: Description) -> list[str]:
    """Data folders with something that no restore made."""
    from strandline.node.restore.data_folders import removable

    return [str(node.data) for node in found.nodes.values() if not removable(node.data)]


def _description(
    folder: Path,
    plain: Mapping[str, Any],
    storage: str,
    options: Mapping[str, str],
    settings: Sequence[str],
    choose_ports: PortChoice,
    secure: bool,
) -> Description:
    wanted = [*settings, *(f"storage.options.{key}={value}" for key, value in options.items())]
    made = Description.new(folder, choose_ports(plain["nodes"]), _absolute(storage), wanted, secure=secure)
    made.cluster = plain["cluster"]
    return made


def _check_new(found: Description) -> None:
    """Refuse settings that no node takes, and a folder in which something has the place of a data folder."""
    found.check(found.settings)
    if whole := _whole(found):
        raise CommandFailed(
            f"{', '.join(whole)} holds something already",
            "name another folder with --cluster, or move it away; nothing was changed",
        )


def _check_fits(found: Description, plain: Mapping[str, Any]) -> None:
    if found.cluster != plain["cluster"]:
        raise CommandFailed(
            f"the storage is that of cluster {plain['cluster']!r}, and {found.folder} has {found.cluster!r}",
            "name another folder with --cluster, or another storage",
            MISUSED,
        )
    if list(found.nodes) != plain["nodes"]:
        raise CommandFailed(
            f"the restore point is of nodes {', '.join(map(str, plain['nodes']))}, and {found.folder} has"
            f" nodes {', '.join(map(str, found.nodes))}",
            "restore into another folder, with --cluster",
        )


def node_options(found: Description) -> dict[str, str]:
    """Options of the storage, as the nodes have them."""
    from strandline.node.config.node_config import ConfigError, load

    path = next(iter(found.nodes.values())).config
    try:
        return dict(load(str(path), os.environ, ()).storage.options)
    except ConfigError as error:
        raise CommandFailed(str(error), "correct the file", MISUSED) from None


def _absolute(storage: str) -> str:
    return storage if ":" in storage.partition("/")[0] else str(Path(storage).absolute())


def _with_store(
    storage: str, options: Mapping[str, str], work: Callable[[ObjectStore], Coroutine[Any, Any, T]]
) -> T:
    from strandline.node.objectstore.storage_owner import ForeignStorage
    from strandline.node.objectstore.store import StoreError
    from strandline.node.restore.reading import CannotRestore

    async def run() -> T:
        async with _opened(_absolute(storage), options) as store:
            return await work(store)

    try:
        return asyncio.run(run())
    except CannotRestore as error:
        raise CommandFailed(error.cause, error.cure) from None
    except ForeignStorage as error:
        cause, _, cure = str(error).rpartition(": ")
        raise CommandFailed(cause, cure) from None
    except StoreError as error:
        raise CommandFailed(
            f"{storage}: {error}", error.cure or "see to the storage, then try again"
        ) from None


@asynccontextmanager
async def _opened(
    storage: str, options: Mapping[str, str], *, make: bool = False
) -> AsyncIterator[ObjectStore]:
    """The store, made where it is missing if `make`; its operations are tried again for half a minute."""
    from strandline.node.objectstore.opening import StorePlace, open_store
    from strandline.node.objectstore.retries import RetryPolicy
    from strandline.node.raft.disk import RealDisk

    if not make:
        check_folder(storage)
    with ThreadPoolExecutor(4, "store") as threads:
        store = open_store(
            StorePlace(storage, options, f"restore-{os.getpid()}"),
            RetryPolicy(),
            loop=asyncio.get_running_loop(),
            disk=RealDisk(),
            executor=threads,
            rng=random.Random(),
            make=make,
        )
        try:
            yield store
        finally:
            await store.close()
