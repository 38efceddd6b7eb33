"""The steps of a restore that change the storage: a record of the attempt first, and its new owner last.

Between the two nothing in the storage changes, and the cluster's old nodes could still come back. From the
change of the owner on they are refused: each reads the owner when it starts, once a minute and before it
deletes anything (storage_owner.py), and no node of another incarnation is let in by the new ones
(docs/raft.md, "Folders"). Nothing is ever deleted here.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Final

from strandline.node.objectstore.storage_owner import KEY, Owner, draw_incarnation, read_owner
from strandline.node.objectstore.store import ObjectStore
from strandline.node.restore.reading import CannotRestore
from strandline.node.restore.restored_states import RestoredCluster, check_terms, next_lineage, point_lineage
from strandline.node.restore.stored_point import StoredPoint, object_names, read_attempts
from strandline.snapshot.restore_point import RestoreAttempt, attempt_name
from strandline.statemachine.controller.controller_state import ControllerState
from strandline.statemachine.controller.restored_controller import hosts

ANSWER_SECONDS: Final = 1.0
"""Time limit for a connection to a node of the cluster before. Behind a port of a machine that runs there
is an answer at once, also that there is none."""


async def running_nodes(state: ControllerState) -> list[str]:
    """Addresses of nodes, from before, at which something still listens for other nodes."""

    async def answers(host: str, port: int) -> bool:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                _, writer = await asyncio.open_connection(host, port)
        except (OSError, TimeoutError):
            return False
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        return True

    known = [(one.node, one.mesh_host, one.mesh_port) for one in state.nodes.values()]
    found = await asyncio.gather(*(answers(host, port) for _, host, port in known))
    return [
        f"node {node} at {host}:{port}"
        for (node, host, port), there in zip(known, found, strict=True)
        if there
    ]


async def record_attempt(
    store: ObjectStore, stored: StoredPoint, *, now_ms: int, rng: random.Random
) -> RestoredCluster:
    """Record in the storage that a cluster is restored from this point, and decide its identity.

    The number of attempts is what keeps the numbers of two restored clusters apart, so the record comes
    before anything else. Raises StoreError, and CannotRestore if another attempt began meanwhile
    or terms would leave their range.
    """
    number = 1 + max((attempt.number for attempt in stored.attempts), default=0)
    lineage = next_lineage(stored, now_ms)
    steps = lineage - point_lineage(stored)
    check_terms(stored, steps)
    made = RestoredCluster(
        draw_incarnation(now_ms, rng),
        {node: rng.getrandbits(63) | 1 for node in hosts(stored.controller)},
        steps,
        lineage,
    )
    cluster = stored.owner.cluster
    record = RestoreAttempt(cluster, number, stored.point.number, made.incarnation, made.lineage)
    await store.put(attempt_name(cluster, number, rng.getrandbits(64)), [record.encode()])
    await _check_alone(store, stored, made)
    return made


async def _check_alone(store: ObjectStore, stored: StoredPoint, made: RestoredCluster) -> None:
    """Raise CannotRestore if there is an attempt that this one did not count in.

    Each of two attempts at once records itself before it looks, so that at least one sees the other.
    """
    known = {made.incarnation, *(attempt.incarnation for attempt in stored.attempts)}
    others = [one for one in await read_attempts(store, stored.owner.cluster) if one.incarnation not in known]
    if others:
        raise CannotRestore(
            f"another restore of {stored.owner} began meanwhile, of incarnation {others[0].incarnation}",
            "see to it that only one restore runs, then repeat this one if the other did not end well",
        )


async def take_over(store: ObjectStore, stored: StoredPoint, made: RestoredCluster) -> None:
    """Give the storage to the restored cluster; raises StoreError, and CannotRestore if it is in use."""
    await _check_alone(store, stored, made)
    found = await read_owner(store)
    if found != stored.owner:
        raise CannotRestore(
            f"the storage belonged to {stored.owner}, and belongs to {found or 'no cluster'} now",
            "another restore is under way, or something else writes there: end that first",
        )
    there = await object_names(store)
    if not there <= stored.names:
        raise CannotRestore(
            "objects were written while this looked at the storage: the cluster still runs",
            "stop its nodes, and go on with them if their data folders are whole",
        )
    if lost := stored.named - there:
        # Nothing keeps what a tail point names, once it is old, from a cluster that still runs.
        raise CannotRestore(
            f"{min(lost)}, which restore point {stored.point.number} names, was deleted while this looked at"
            " the storage: the cluster still runs, or something else deletes there",
            "stop its nodes, and go on with them if their data folders are whole; else repeat this",
        )
    await store.put(KEY, [Owner(found.cluster, made.incarnation).document().encode()])
