"""The object storage of commands that read it and ask no node: `audit`, `export`, `sql`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from strandline.cluster.failure import MISUSED, CommandFailed
from strandline.cluster.target import described
from strandline.node.config.values import VALUE_READERS
from strandline.snapshot.extras import ExtraMissing, require

StorageUrl = Annotated[
    str | None, typer.Option(metavar="URL", help="Object storage. Default: that of the local cluster.")
]
ClusterId = Annotated[
    str | None,
    typer.Option(metavar="ID", help="Id of the cluster; needed if --storage has those of several."),
]
StorageOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--option", metavar="KEY=VALUE", help="Option of the object storage: endpoint, region, keys."
    ),
]


def local_storage(folder: Path | None) -> tuple[str, str]:
    """Object storage and id of the cluster of this folder, or of the usual one; raises CommandFailed."""
    local = described(folder)
    if local is None:
        raise CommandFailed(
            "there is no local cluster here whose storage could be read",
            "name one with --cluster, or an object storage with --storage and --cluster-id",
            MISUSED,
        )
    return local.storage, local.cluster


def where(storage: str | None, cluster_id: str | None, folder: Path | None) -> tuple[str, str | None]:
    """Object storage and id of the wanted cluster; None is the only one there. Raises CommandFailed."""
    if storage is not None:
        return storage, cluster_id
    if cluster_id is not None:
        raise CommandFailed(
            "--cluster-id belongs to --storage", "name both, or none for a local cluster", MISUSED
        )
    return local_storage(folder)


def pairs(options: list[str] | None, named: str) -> dict[str, str]:
    """The keys and values of an option that is given once for each; raises CommandFailed."""
    found = {}
    for option in options or ():
        key, equals, value = option.partition("=")
        if not equals or not key:
            raise CommandFailed(f"{named} {option} has no key and value", f"write {named} KEY=VALUE", MISUSED)
        found[key] = value
    return found


def storage_options(options: list[str] | None, named: str = "--option") -> dict[str, str]:
    """As `pairs`, of options of an object storage: those that no storage takes are refused."""
    found = pairs(options, named)
    try:
        VALUE_READERS["storage.options"](found)
    except ValueError as error:
        cause, _, cure = str(error).rpartition(": ")
        raise CommandFailed(f"{named} {cause}", cure, MISUSED) from None
    return found


def need(*extras: str) -> None:
    """Raise CommandFailed unless the libraries of all these extras are installed."""
    try:
        for extra in extras:
            require(extra)
    except ExtraMissing as error:
        raise CommandFailed(error.cause, error.cure, MISUSED) from None


def said(error: Exception) -> CommandFailed:
    """An error whose text is `cause: cure`, as readers of storage raise them, as a command's end."""
    cause, colon, cure = str(error).rpartition(": ")
    if not colon:
        cause, cure = cure, "see docs/spark.md"
    return CommandFailed(cause, cure)
