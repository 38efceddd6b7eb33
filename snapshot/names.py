"""Names of published checkpoints.

Everything of one checkpoint of one group lies under one prefix, numbers padded with zeros, so that listing
order is log order: one listing tells which checkpoints a group has, which replicas published them, and which
of them have the log that leads there. Only the name says which node wrote a document; the bytes do not, so
that replicas can be compared byte for byte.
"""

from __future__ import annotations

import re
from typing import NamedTuple

PREFIX = "snapshots/"
CLUSTER_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.=+-]{0,199}"
"""Regular expression of a cluster id that can stand in names."""
_CLUSTER_ID = re.compile(CLUSTER_NAME)
_NAME = re.compile(
    rf"snapshots/({CLUSTER_NAME})/([0-9]{{10}})/([0-9]{{20}})/(?:([1-9][0-9]{{0,4}})(\.local)?|log-([0-9]{{20}}))"
)


class SnapshotName(NamedTuple):
    """One replica's document of a group's state after the entry `log_index`."""

    cluster: str
    group: int
    log_index: int
    node: int


class LogName(NamedTuple):
    """A group's log between two checkpoints: its entries above `after`, which is 0 at the start."""

    cluster: str
    group: int
    after: int
    log_index: int


class LocalName(NamedTuple):
    """One replica's document of its own log of a compacted partition, after the entry `log_index`."""

    cluster: str
    group: int
    log_index: int
    node: int


def snapshot_name(cluster: str, group: int, index: int, node: int) -> str:
    """`snapshots/<cluster>/<group, 10 digits>/<index, 20 digits>/<node>`."""
    return f"{checkpoint_prefix(cluster, group, index)}{node}"


def local_name(cluster: str, group: int, index: int, node: int) -> str:
    """`snapshots/<cluster>/<group>/<index>/<node>.local`."""
    return f"{snapshot_name(cluster, group, index, node)}.local"


def log_name(cluster: str, group: int, after: int, index: int) -> str:
    """`snapshots/<cluster>/<group>/<index>/log-<after, 20 digits>`.

    It names no node: every replica that has the whole log publishes the same bytes.
    """
    return f"{checkpoint_prefix(cluster, group, index)}log-{after:020d}"


def cluster_prefix(cluster: str) -> str:
    """Prefix of the names of all checkpoints of a cluster.

    Raises ValueError for an id that cannot be part of an object's name.
    """
    if not _CLUSTER_ID.fullmatch(cluster):
        raise ValueError(
            f"cluster id {cluster!r} cannot stand in an object's name: letters, digits and _.=+-, up to 200, "
            "the first one a letter, a digit or _"
        )
    return f"{PREFIX}{cluster}/"


def group_prefix(cluster: str, group: int) -> str:
    """Prefix of the names of a group's checkpoints; a listing gives them in log order."""
    return f"{cluster_prefix(cluster)}{group:010d}/"


def checkpoint_prefix(cluster: str, group: int, index: int) -> str:
    """Prefix of the names of one checkpoint's documents."""
    return f"{group_prefix(cluster, group)}{index:020d}/"


def parse_name(name: str) -> SnapshotName | LogName | LocalName:
    """Read a name back; raises ValueError for anything the functions above do not give."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"{name!r} is not the name of a published checkpoint")
    cluster, group, index, node, is_local, after = match.groups()
    if node is None:
        return LogName(cluster, int(group), int(after), int(index))
    kind = LocalName if is_local else SnapshotName
    return kind(cluster, int(group), int(index), int(node))
