"""Reads the names in a shard of level zero: the shard's node, the objects that may be deleted, their writers.

A shard has the id of the node that writes it. Its names begin with their epochs, so they are listed in the
order in which they may be deleted. Other names may lie among them; garbage collection leaves those alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from strandline.statemachine.controller.controller_state import NodeRegistration
from strandline.statemachine.object_names import parse_object_name, shard_prefix


class NotThisCluster(Exception):
    """A shard has objects that this cluster, as it is now, did not write."""


class ShardPage(NamedTuple):
    """Classification of some names of a shard, in their order."""

    names: list[str]
    """Objects that may go."""
    foreign: int
    """Number of unknown names."""
    front: str
    """The last of those that come before any object; empty when none does."""
    ended: bool
    """Whether an object came that has to stay, and with it all behind it."""


def shards_of(
    node: int, configured: Collection[int], registered: Mapping[int, NodeRegistration]
) -> list[int]:
    """The shards a node collects: its own, and by position those of nodes that are not alive.

    Nodes that see different states may both take a shard, which harms nothing, or neither may for a while.
    """
    alive = [each for each, registration in registered.items() if not registration.fenced]
    if node not in alive:
        return [node]
    others = [each for each in sorted({*configured, *registered}) if each not in alive]
    place = alive.index(node)
    return [node, *(shard for at, shard in enumerate(others) if at % len(alive) == place)]


def collectable(names: Sequence[str], bound: int) -> ShardPage:
    """Collectable names of a page of a shard's names, up to the epoch `bound`."""
    going: list[str] = []
    foreign, front = 0, ""
    for name in names:
        try:
            epoch = parse_object_name(name).epoch
        except ValueError:
            foreign += 1
            if not going:
                front = name
            continue
        if epoch > bound:
            return ShardPage(going, foreign, front, ended=True)
        going.append(name)
    return ShardPage(going, foreign, front, ended=False)


def behind_epoch(shard: int, epoch: int) -> str:
    """A key behind all names of a shard up to this epoch, and before all later ones: "0" follows "/"."""
    return f"{shard_prefix(shard)}{epoch:020d}0"


def check_epochs(names: Sequence[str], newest: int) -> None:
    """Raise NotThisCluster if one of the names has an epoch that this cluster has not reached yet.

    Such a name belongs to another cluster in the same storage, or to this one from before it lost its log.
    Its writer has other objects, with lower epochs, that look like garbage.
    """
    for name in names:
        with contextlib.suppress(ValueError):
            epoch = parse_object_name(name).epoch
            if epoch > newest:
                raise NotThisCluster(
                    f"{name} is of epoch {epoch}, and this cluster is at {newest}: another cluster uses this "
                    "storage, or this one lost its log: give each its own storage.url, and a new one an empty"
                )
