"""Whether a cluster could do without one of its nodes: all are healthy, and all replicas in step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from strandline.cluster.admin_client import DEGRADED, AdminClient, Unreachable
from strandline.cluster.failure import CommandFailed
from strandline.cluster.leader_drain import LEADERSHIPS, NO_SUCH_PATH
from strandline.cluster.remote import ask

SETTLING_SECONDS: Final = 2.0
"""Time to look well at a first look: during an election groups have no leader for a moment."""
_POLL_SECONDS: Final = 0.3


def lacks(addresses: Sequence[str]) -> str | None:
    """Find what keeps the cluster from doing without one of its nodes, in one line; None when nothing does.

    `addresses` are the HTTP ports of all its nodes. Nodes of earlier releases do not tell which replicas are
    in step, and are asked for their health alone.
    """
    try:
        found = ask(addresses)
    except CommandFailed as failed:
        return failed.cause
    ill = [row for row in found["nodes"] if row["problem"] is not None]
    # Those that are ill themselves come before those that only miss them.
    for row in sorted(ill, key=lambda row: str(row["problem"]).startswith(DEGRADED)):
        return f"node {row['node'] or '?'}{_at(row['admin'])}: {row['problem']}"
    for address in addresses:
        try:
            answer = AdminClient(address).request("GET", LEADERSHIPS)
        except Unreachable as error:
            return f"{address}: {error}"
        if answer.status == NO_SUCH_PATH:
            continue
        if answer.status != 200:
            return f"{address}: {answer.reasons}"
        for one in answer.body["behind"]:
            return (
                f"node {one['node']} is not in step in {one['groups']} of the groups that node"
                f" {answer.body['node']} leads (group {', '.join(map(str, one['examples']))})"
            )
    return None


def wait_well(addresses: Sequence[str], seconds: float, say: Callable[[str], Any]) -> str | None:
    """Wait until nothing is lacking, or for so long; what is lacking then."""
    deadline = time.monotonic() + seconds
    while (lacking := lacks(addresses)) is not None:
        if time.monotonic() >= deadline:
            break
        say(lacking)
        time.sleep(_POLL_SECONDS)
    return lacking


def _at(address: str | None) -> str:
    return "" if address is None else f" at {address}"
