"""The restore point of a clean stop: nothing that was acknowledged before it is missing after a restore."""

from __future__ import annotations

import os
from typing import Final

from strandline.cluster.admin_client import first_answer
from strandline.cluster.failure import CommandFailed
from strandline.cluster.local_files import Description

LAST_POINT_SECONDS: Final = 20.0
"""Time limit for the restore point of a clean stop."""
LAST_LEASE_SECONDS: Final = 7_200.0
"""Its lease; a cluster that is down deletes nothing, and one that is up again takes another at once if it is
older than the interval."""


def take_last_point(found: Description) -> str | None:
    """Have the nodes take a restore point before they are stopped, where they take points by themselves.

    Returns the reason if they do, and there is none; at most LAST_POINT_SECONDS later.
    """
    from strandline.node.config.node_config import ConfigError, load

    running = [node for node in found.nodes.values() if node.pid is not None]
    try:
        if not running or not load(str(running[0].config), os.environ, ()).checkpoints.interval:
            return None
        if 2 * len(running) <= len(found.nodes):
            return f"{len(running)} of {len(found.nodes)} nodes run, and that is no majority"
        body = {"lease_seconds": LAST_LEASE_SECONDS, "timeout_seconds": LAST_POINT_SECONDS}
        report = first_answer(
            [node.admin for node in running], "POST", "/api/checkpoints", body, timeout=LAST_POINT_SECONDS + 5
        )
    except (ConfigError, CommandFailed) as error:
        return str(error)
    if report.get("restore_point") is not None:
        return None
    return str(report.get("no_restore_point") or "the nodes are of a build without restore points")
