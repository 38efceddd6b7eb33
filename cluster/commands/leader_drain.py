"""`strandline node drain --leaders`: a node that leads nothing for a while, before its restart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from strandline.cluster.failure import MISUSED, CommandFailed
from strandline.cluster.leader_drain import drain_leaders, undrain
from strandline.cluster.output import plural, progress, show

SECONDS: Final = 60.0
"""Time without leaderships, unless the command is told another."""


def drain_node_leaders(
    addresses: Sequence[str], node: int, seconds: float, timeout: float, as_json: bool
) -> None:
    """Have a node lead nothing for so many seconds; 0 undo it. Raises CommandFailed."""
    plain: dict[str, Any] = {"node": node, "drained_seconds": seconds or None}
    if not seconds:
        undrain(addresses, node)
        show(as_json, plain, f"node {node} may lead again")
        return
    if not timeout:
        raise CommandFailed(
            "with --leaders the command waits until the node leads nothing", "leave out --timeout 0", MISUSED
        )
    with progress(as_json) as say:
        drained = drain_leaders(addresses, node, seconds, timeout, say)
    if drained is None:
        raise CommandFailed(
            f"node {node} runs an earlier release, which cannot be drained of its leaderships alone",
            "stop it: it hands over what it leads first",
        )
    plain |= {"handed_over": drained.handed_over, "needed": drained.needed}
    said = (
        f"node {node} has handed over {plural(drained.handed_over, 'leadership')}, and takes none for"
        f" {seconds:g} s: restart it now"
    )
    if drained.needed:
        said += f"; {plural(drained.needed, 'group')} of one or two replicas will be away meanwhile"
    show(as_json, plain, said)
