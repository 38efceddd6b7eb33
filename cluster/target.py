"""The target of a command: the named cluster, else that of this folder, else the default address."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from strandline.cluster.admin_client import HTTPS
from strandline.cluster.client_settings import BOOTSTRAP, CURRENT
from strandline.cluster.failure import MISUSED, CommandFailed
from strandline.cluster.local_files import DESCRIPTION, Description
from strandline.cluster.ports import ADMIN, KAFKA, LOOPBACK

DEFAULT_FOLDER: Final = "strandline-cluster"

Bootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        metavar="HOST:PORT,...",
        help=f"Kafka addresses to begin with. Without it: the cluster of --cluster, of ./{DEFAULT_FOLDER}, "
        f"or {LOOPBACK}:{KAFKA}. A login or TLS: `strandline --config FILE` before the command.",
    ),
]
Cluster = Annotated[
    Path | None,
    typer.Option("--cluster", metavar="FOLDER", help="Folder of a local cluster (see `cluster up`)."),
]
Admin = Annotated[
    str | None,
    typer.Option(
        "--admin",
        metavar="[https://]HOST:PORT,...",
        help="HTTP addresses of nodes; https:// for TLS, with the login of `strandline --config FILE`."
        f" Without it: those of --cluster, of ./{DEFAULT_FOLDER}, "
        f"or {LOOPBACK}:{ADMIN}.",
    ),
]


@dataclass(frozen=True, slots=True)
class Target:
    """Addresses of a cluster; `local` is its folder's description if it runs on this machine."""

    bootstrap: str
    admin: tuple[str, ...]
    local: Description | None
    admin_known: bool = True
    """Whether `admin` is of the same nodes as `bootstrap`; not where only the other was named."""


def target(*, bootstrap: str | None = None, admin: str | None = None, folder: Path | None = None) -> Target:
    """Find the cluster that the options of a command name."""
    if folder is not None and (bootstrap is not None or admin is not None):
        raise CommandFailed(
            "--cluster already says where the cluster is", "leave one of the options out", MISUSED
        )
    if bootstrap is None and folder is None:
        bootstrap = CURRENT.get().get(BOOTSTRAP)
    local = None
    if bootstrap is None and admin is None:
        local = described(folder)
    if local is not None:
        return Target(local.bootstrap, tuple(node.admin for node in local.nodes.values()), local)
    return Target(
        ",".join(_addresses("--bootstrap", bootstrap, KAFKA)),
        _addresses("--admin", admin, ADMIN),
        None,
        admin_known=bootstrap is None or admin is not None,
    )


def _addresses(option: str, given: str | None, usual: int) -> tuple[str, ...]:
    """Each host:port; a URL's scheme and path are left out, since copied addresses have them."""
    found = []
    for each in (given if given is not None else f"{LOOPBACK}:{usual}").split(","):
        address = re.sub(r"^(http|PLAINTEXT|plaintext)://", "", each.strip()).rstrip("/")
        tls = HTTPS if option == "--admin" and address.startswith(HTTPS) else ""
        address = address.removeprefix(HTTPS)
        host, colon, port = address.rpartition(":")
        if not colon or address.endswith("]") or (":" in host and not host.startswith("[")):
            name = address or "HOST"
            name = f"[{name}]" if ":" in name and not name.startswith("[") else name
            raise CommandFailed(
                f"{option} {given}: there is no port in {each.strip()!r}", f"write {name}:{usual}", MISUSED
            )
        if not host or not port.isdecimal() or not 1 <= int(port) <= 65535:
            raise CommandFailed(
                f"{option} {given}: {each.strip()!r} is not host:port",
                f"write for example host:{usual}",
                MISUSED,
            )
        found.append(tls + address)
    return tuple(found)


def described(folder: Path | None) -> Description | None:
    """The local cluster of this folder, or of the usual one, where it may be missing."""
    found = Description.load(Path(folder or DEFAULT_FOLDER).absolute())
    if found is None and folder is not None:
        raise CommandFailed(
            f"there is no {DESCRIPTION} in {folder}",
            f"make a cluster there with `strandline cluster up --cluster {folder}`",
            MISUSED,
        )
    return found
