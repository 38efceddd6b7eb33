"""Removal of tails that later ones have made dispensable.

A node that has published the state of each group that it leads needs its tails before no more: but for those
since its round of states before. A reader may be at these, and they have the newest state of a group whose
new leader has not published its own yet. So while a group has no leader nothing is removed, either. A node
that leads is not absent, however it stands with the controller: where nothing is written it publishes no
state again.

What the newest tail point needs stays as well, for as long as the point may be worth something. It is some
seconds old, and needs nothing that would go; it is older where a group has no leader, or a node is away.
Where nothing was written for long it is as old, and as good as new: its time begins with what comes next.
In a restored cluster it is one of the life before until there is a point of this life, and may be of any age:
where all is lost again, the next restore goes on from the same point. It may have been one before the newest.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from contextlib import suppress
from typing import Final

from strandline.node.checkpoints.context import CheckpointContext
from strandline.node.objectstore.store import (
    MAX_DELETE,
    MAX_LIST,
    ObjectNotFound,
    ObjectStore,
    StoreError,
    every_name,
)
from strandline.snapshot.tail_document import life_prefix, parse_tail_name, tails_prefix
from strandline.snapshot.tail_point import (
    READ_POINTS,
    TailPoint,
    TailPointDamaged,
    TailPointTooNew,
    decode_tail_point,
    parse_tail_point_name,
    tail_points_prefix,
)

log = logging.getLogger(__name__)

ABSENT_MS: Final = 3_600_000
"""Age at which tails go of a node that is not there, and of lives of the cluster that have ended."""
POINT_MS: Final = 3_600_000
"""Time from the first tail that is newer than a tail point of this life, from which on the point keeps no
tails: objects that its states name are gone by then."""
OWN_TAILS_MS: Final = 60_000
"""Tails made within this time after a tail point was begun may be those that lead to it."""
MAX_NAMES: Final = 100_000
"""Names that are looked at in one call; the others wait for the next."""


async def remove_tails(context: CheckpointContext, kept: Collection[str], started_ms: int) -> None:
    """Delete this node's tails but for those that are kept, by name: its clock may have gone back since.

    Those from before its process began, at `started_ms`, stay for an hour: groups may have other leaders now.
    The node that leads the controller also deletes old ones of absent nodes and of earlier lives. What is
    left by a failure goes with the next call.
    """
    machine, own = context.controller.machine, context.config.node.id
    cluster, now_ms = context.config.cluster.id, context.wall_ms()
    leaders = _leaders(context)
    if machine.incarnation is None or leaders is None:
        return
    life = life_prefix(cluster, machine.incarnation)
    leads = context.controller.leader == own
    needed = await _needed(context, now_ms)
    if needed is None:
        return
    present = leaders | {node.node for node in machine.nodes.values() if not node.fenced}

    def dispensable(name: str) -> bool:
        try:
            made_ms, node = parse_tail_name(name)
        except ValueError:
            return False  # no tail, and not this module's to delete
        if any(name.startswith(of) and made_ms >= floors.get(node, made_ms + 1) for of, floors in needed):
            return False
        if node == own and name.startswith(life):
            earlier = made_ms < started_ms and now_ms < started_ms + ABSENT_MS
            return name not in kept and not earlier
        gone = node not in present or not name.startswith(life)
        return leads and gone and made_ms < now_ms - ABSENT_MS

    after, seen = "", 0
    try:
        while seen < MAX_NAMES:
            names = await context.store.list(tails_prefix(cluster), after, MAX_LIST)
            old = [name for name in names if dispensable(name)]
            for start in range(0, len(old), MAX_DELETE):
                await context.store.delete_many(old[start : start + MAX_DELETE])
            if len(names) < MAX_LIST:
                return
            after, seen = names[-1], seen + len(names)
    except StoreError as error:
        log.info("old tails are kept for now: %s", error)


async def stored_points(store: ObjectStore, cluster: str) -> list[str]:
    """Names of a cluster's tail points, oldest first; raises StoreError."""
    names = await every_name(store, tail_points_prefix(cluster))
    return [name for name in names if parse_tail_point_name(name) is not None]


def _leaders(context: CheckpointContext) -> frozenset[int] | None:
    """The nodes that lead a partition; None if one has no leader."""
    found = set()
    for topic in context.controller.machine.topics:
        for partition in topic.partitions:
            leader = context.leaders.leader_of(partition.group)
            if leader is None:
                return None
            found.add(leader.node)
    return frozenset(found)


async def _needed(context: CheckpointContext, now_ms: int) -> list[tuple[str, dict[int, int]]] | None:
    """Of each tail point that tails are kept for, the prefix of its life's tails, and by node the time in the
    name of the first one that it needs.

    It is the newest point, unless that is an old one of this life (`_counts`); where it is of a life before,
    all that a restore reads, as it may have passed over the newest ones. None where that cannot be known now.
    """
    cluster, incarnation = context.config.cluster.id, context.controller.machine.incarnation
    found: list[tuple[str, dict[int, int]]] = []
    try:
        for name in reversed((await stored_points(context.store, cluster))[-READ_POINTS:]):
            point = decode_tail_point(bytes(await context.store.get(name)))
            own = point.incarnation == incarnation
            if not own or await _counts(context.store, point, now_ms):
                found.append((life_prefix(cluster, point.incarnation), dict(point.floors)))
            if own:
                break
    except (StoreError, ObjectNotFound, TailPointDamaged, TailPointTooNew) as error:
        log.warning("old tails are kept for now: the newest tail point cannot be read: %s", error)
        return None
    return found


async def _counts(store: ObjectStore, point: TailPoint, now_ms: int) -> bool:
    """Whether a tail point of this life keeps what it needs. Raises StoreError.

    What it needs is not deleted while it does, so the first tail after it is found again each time.
    """
    if point.taken_ms >= now_ms - POINT_MS:
        return True
    life = life_prefix(point.cluster, point.incarnation)
    for name in await store.list(life, f"{life}{point.taken_ms + OWN_TAILS_MS:015d}", MAX_LIST):
        with suppress(ValueError):  # no tail
            return parse_tail_name(name).made_ms >= now_ms - POINT_MS
    return True
