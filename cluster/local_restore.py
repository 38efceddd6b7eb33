"""A local cluster made of what the storage holds: `strandline cluster restore`.

A folder whose restore broke off is marked, and no command starts its nodes before the restore was repeated:
a part of the nodes with restored data folders, beside others without, would be no cluster.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strandline.cluster.failure import MISUSED, CommandFailed
from strandline.cluster.folder_lock import new_folder
from strandline.cluster.local import PortChoice, Progress, check_ports
from strandline.cluster.local_files import DESCRIPTION, RESTORING, Description
from strandline.cluster.node_file import write_private
from strandline.cluster.ports import usual_ports
from strandline.cluster.restore_storage import absolute, opened, with_store

if TYPE_CHECKING:
    from strandline.node.objectstore.store import ObjectStore
    from strandline.node.restore.stored_point import StoredPoint


def look(
    storage: str, options: Mapping[str, str], point: int | None, *, leased: bool = False
) -> dict[str, Any]:
    """Describe what a restore would bring back, or with `leased` a clone; changes nothing. Raises
    CommandFailed."""

    async def run(store: ObjectStore) -> dict[str, Any]:
        from strandline.node.restore.stored_point import read_point

        return described(await read_point(store, point, leased=leased))

    return with_store(storage, options, run)


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
) -> dict[str, Any]:
    """Make the data folders of a cluster from its storage, and give the storage to it; starts no node.

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
            from strandline.node.restore import (
                clone,
                data_folders,
                restored_states,
                stored_point,
                take_over,
            )

            progress("reading the storage")
            stored = await stored_point.read_point(store, point)
            plain = described(stored)
            found = there or _description(folder, plain, place, options, settings, choose_ports, secure)
            _check_fits(found, plain)
            of_source = await clone.is_of_source(store, stored)
            running = [] if of_source else await take_over.running_nodes(stored.controller)
            if running:
                raise CommandFailed(
                    f"the cluster may still run: something listens for {', '.join(running)}",
                    "stop it; if its data folders are whole, start it instead of a restore",
                )
            _check_place(found, new=there is None)
            tell(plain)
            rng = random.SystemRandom()
            made = await take_over.record_attempt(store, stored, now_ms=time.time_ns() // 1_000_000, rng=rng)
            write_private(folder / RESTORING, f"point {plain['point']}\n")
            if there is None:
                found.create()
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

        return with_store(place, options, run)


def beside(storage: str, name: str) -> str:
    """The storage of a clone: the folder or prefix of this name beside that of the source.

    Raises CommandFailed for a name that cannot be that of a cluster, and for a bucket without a prefix.
    """
    from strandline.snapshot.names import cluster_prefix

    try:
        cluster_prefix(name)
    except ValueError as error:
        raise CommandFailed(f"--as {name}: {error}", "choose another name", MISUSED) from None
    place = absolute(storage).rstrip("/")
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
    storage: str,
    options: Mapping[str, str],
    name: str,
    point: int | None,
    progress: Progress,
    *,
    folder: Path,
    settings: Sequence[str] = (),
    choose_ports: PortChoice = usual_ports,
    secure: bool = False,
) -> None:
    """Copy what a restore point of `storage` names to the storage `beside` it, which is only read.

    Refused before anything is copied where `restore` could not go on from the copy in this folder. Does
    nothing where it broke off there: the copy is whole then. Raises CommandFailed.
    """
    target = beside(storage, name)
    there = Description.load(folder)
    if there is not None:
        if there.storage != target:
            raise CommandFailed(
                f"{folder} has the cluster {there.cluster!r} already, and a clone needs a folder of its own",
                "name another with --cluster",
                MISUSED,
            )
        _check_described(there, target)
        if not there.ready or (folder / RESTORING).exists():
            return

    async def run(store: ObjectStore) -> None:
        from strandline.node.restore import clone
        from strandline.node.restore.stored_point import read_point

        progress("reading the storage")
        stored = await read_point(store, point, leased=True)
        if stored.owner.cluster == name:
            raise CommandFailed(f"the source is cluster {name!r} itself", "choose another name", MISUSED)
        plain = {**described(stored), "cluster": name}
        found = there or _description(folder, plain, target, options, settings, choose_ports, secure)
        _check_fits(found, plain)
        _check_place(found, new=there is None)
        async with opened(target, options, make=True) as copied:
            if not await clone.check_target(copied, stored, name):
                await clone.copy(store, copied, stored, name, progress)

    with_store(storage, options, run)


def _check_described(found: Description, storage: str | None) -> None:
    if storage is not None and found.storage not in (storage, absolute(storage)):
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
    made = Description.new(folder, choose_ports(plain["nodes"]), absolute(storage), wanted, secure=secure)
    made.cluster = plain["cluster"]
    return made


def _check_place(found: Description, *, new: bool) -> None:
    """Refuse ports that are in use; in a new folder also settings that no node takes, and something that has
    the place of a data folder."""
    if new:
        found.check(found.settings)
        if whole := _whole(found):
            raise CommandFailed(
                f"{', '.join(whole)} holds something already",
                "name another folder with --cluster, or move it away; nothing was changed",
            )
    check_ports(list(found.nodes.values()))


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
            f"restore into another folder: --storage {found.storage} --cluster FOLDER",
        )


def node_options(found: Description) -> dict[str, str]:
    """Options of the storage, as the nodes have them."""
    from strandline.node.config.node_config import ConfigError, load

    path = next(iter(found.nodes.values())).config
    try:
        return dict(load(str(path), os.environ, ()).storage.options)
    except ConfigError as error:
        raise CommandFailed(str(error), "correct the file", MISUSED) from None
