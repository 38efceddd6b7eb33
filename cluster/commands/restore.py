"""`strandline cluster restore`: a cluster out of what its bucket holds."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from strandline.cluster.failure import MISUSED, CommandFailed
from strandline.cluster.local import HEALTHY_SECONDS, LocalCluster
from strandline.cluster.local_files import Description
from strandline.cluster.local_restore import beside, clone, look, node_options
from strandline.cluster.local_restore import restore as restore_folder
from strandline.cluster.output import Json, escaped, plural, progress, show, table
from strandline.cluster.ports import free_ports, usual_ports
from strandline.cluster.stored import StorageOptions, storage_options
from strandline.cluster.target import DEFAULT_FOLDER


def restore(
    storage: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The cluster's object storage. Default: that of --cluster."),
    ] = None,
    option: StorageOptions = None,
    cluster: Annotated[
        Path, typer.Option("--cluster", metavar="FOLDER", help="Folder of the cluster's files, old or new.")
    ] = Path(DEFAULT_FOLDER),
    point: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Restore point. Default: the newest.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="NAME",
            help="Make a clone of this name, in the folder or prefix NAME beside the storage's own, "
            "which is only read.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be restored, and change nothing.")
    ] = False,
    free: Annotated[
        bool, typer.Option("--free-ports", help="Use free ports instead of 9092, 9644, 7101 and up.")
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Setting of every node of a new folder."),
    ] = None,
    secure: Annotated[
        bool, typer.Option("--secure", help="In a new folder: TLS and logins on all ports.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="How long to wait until the nodes are healthy.")
    ] = HEALTHY_SECONDS,
    as_json: Json = False,
) -> None:
    """Make a cluster out of what its bucket holds, when the data folders of all nodes are gone.

    It says first up to which offset each partition is restored. Records after that are lost. With --as it
    makes another cluster of a copy, for tests: the one that has the storage may run, and loses nothing.

    \b
    Examples:
      strandline cluster restore --storage s3://bucket/prefix --dry-run
      strandline cluster restore --storage s3://bucket/prefix --option region=eu-west-1
      strandline cluster restore --cluster /srv/strandline
      strandline cluster restore --storage s3://bucket/prefix --as trial --cluster /tmp/trial --free-ports
    """
    options = storage_options(option)
    if name is not None and storage is None:
        raise CommandFailed("--as needs the storage to clone", "name it with --storage", MISUSED)
    if dry_run:
        with progress(as_json) as tell:
            tell("reading the storage")
            plain = look(*_place(storage, options, cluster), point, leased=name is not None)
        show(as_json, {**plain, "restored": False}, _lines(plain, "would be restored"))
        return
    choose_ports = free_ports if free else usual_ports
    with progress(as_json) as tell:
        if name is not None and storage is not None:
            clone(
                storage,
                options,
                name,
                point,
                tell,
                folder=cluster.absolute(),
                settings=settings or (),
                choose_ports=choose_ports,
                secure=secure,
            )
        plain = restore_folder(
            cluster.absolute(),
            storage=storage if name is None or storage is None else beside(storage, name),
            options=options,
            settings=settings or (),
            point=point if name is None else None,
            choose_ports=choose_ports,
            secure=secure,
            tell=lambda plain: None if as_json else show(False, plain, _lines(plain, "is restored")),
            progress=tell,
        )
        local = LocalCluster(cluster)
        local.up(timeout=timeout, progress=tell)
    found = local.description
    show(
        as_json,
        {**plain, "restored": True, "folder": str(found.folder), "bootstrap": found.bootstrap},
        f"restored and up: {plural(len(found.nodes), 'node')} at {found.bootstrap},"
        f" incarnation {plain['new_incarnation']}",
    )


def _place(storage: str | None, options: dict[str, str], cluster: Path) -> tuple[str, dict[str, str]]:
    if storage is not None:
        return storage, options
    found = Description.load(cluster.absolute())
    if found is None:
        raise CommandFailed(
            f"there is no cluster in {cluster} whose storage could be read", "name it with --storage", MISUSED
        )
    return found.storage, {**node_options(found), **options}


def _lines(plain: dict[str, Any], what: str) -> list[Any]:
    taken = datetime.datetime.fromtimestamp(plain["taken_ms"] / 1000, datetime.UTC)
    missing = plain["missing_seconds"]
    at_most = "unknown" if missing is None else f"{missing:,.1f} s"
    rows = [
        (one["topic"], one["partition"], one["start_offset"], one["end_offset"], at_most)
        for one in plain["partitions"]
    ]
    later = plain["later_objects"]
    told = [
        f"cluster {plain['cluster']}, incarnation {plain['incarnation']}: restore point {plain['point']}"
        f"{' of tails' if plain['of_tails'] else ''},"
        f" taken {taken:%Y-%m-%d %H:%M:%S} UTC, {plain['age_seconds']:,.0f} s ago; each partition {what}"
        " up to this offset:",
    ]
    notes = [f"Passed over: {problem}" for problem in plain["unusable_points"]]
    notes.append(_may_be_missing(plain))
    notes += [
        f"{plural(plain['objects'], 'object')} are named and there;"
        f" {later:,} more may hold later records, which are lost with those that only the nodes had.",
        "Users' passwords are not in the storage: they have to be set again.",
    ]
    header = ("TOPIC", "PARTITION", "FROM", "UP TO", "MISSING AT MOST")
    return [*map(escaped, told), table(header, rows, right=(1, 2, 3, 4)), *map(escaped, notes)]


def _may_be_missing(plain: dict[str, Any]) -> str:
    missing, sign = plain["missing_seconds"], plain["last_sign_ms"]
    if missing is None:
        return (
            "What was acknowledged after the point is missing; nodes published no tails that tell how much."
        )
    last = datetime.datetime.fromtimestamp(sign / 1000, datetime.UTC)
    return (
        f"What was acknowledged after the point is missing: of the last {missing:,.1f} s at most, where nodes"
        f" could publish until the end. Their last tail is of {last:%Y-%m-%d %H:%M:%S} UTC."
    )
