"""The feature level: which commands and formats a cluster's log may hold, agreed on by all its nodes.

A node of an earlier release stops at a command that it does not know, and reads no snapshot of a later
format. A rule that changed gives another state there, which is worse. So whatever a release adds belongs to a
level. A node says at its registration which levels it understands, the cluster's level rises on the
operator's word and only when every registered node understands the next (Kafka's `metadata.version`, KIP-584,
KIP-778), and it never falls. A new cluster begins at the highest level of the release that founds it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, TypeVar

from strandline.statemachine.controller.controller_commands import (
    FEATURE_LEVEL,
    AddNode,
    AlterClientQuotas,
    Command,
    RegisterNode,
    RemoveNode,
    ReplaceNode,
    SetBalancing,
    SetDraining,
    StartViewWorker,
    StopViews,
)
from strandline.statemachine.kafka_errors import KafkaError, Refused

FEATURE: Final = "strandline.version"
"""The name under which Kafka's clients are told of it."""
PLACEMENT: Final = 2
"""Racks, nodes that are drained, what a stopped view still may do."""
REMOVAL: Final = 3
"""Nodes that are removed."""
ADDRESSES: Final = 4
"""Quotas of IP addresses."""
GROWTH: Final = 5
"""Nodes that are added, and voters of the controller's group that the controller chooses."""
BALANCING: Final = 6
"""Replicas that move by themselves until the nodes are even."""
TARGETS: Final = 7
"""A topic whose first partition moves has the replication factor of that move's target. A replacement or
removal names the generation that the node's data folder gets by it."""
SUCCESSION: Final = 8
"""A process of views names the one before it."""
BRINGS: Final = {
    1: "what builds before feature levels understand",
    PLACEMENT: "racks, `node drain`, `view stop` of a version whose process never began",
    REMOVAL: "`node remove`",
    ADDRESSES: "quotas of IP addresses (`kafka-configs --entity-type ips`)",
    GROWTH: "nodes that join by `cluster.seeds`",
    BALANCING: "`cluster balance`",
    TARGETS: "partitions that are added amid a move get as many replicas as its target has; a late `node"
    " replace` or `node remove` touches no newer data folder",
    SUCCESSION: "a late word of a process of views touches no newer process",
}
assert max(BRINGS) == FEATURE_LEVEL


def needed(command: Command) -> int:
    """The lowest level at which the log may hold the command."""
    match command:
        case SetDraining():
            return PLACEMENT
        case RemoveNode(generation=generation):
            return TARGETS if generation else REMOVAL
        case AlterClientQuotas(ip=ip):
            return 1 if ip is None else ADDRESSES
        case AddNode():
            return GROWTH
        case SetBalancing():
            return BALANCING
        case ReplaceNode(generation=generation):
            return TARGETS if generation else 1
        case RegisterNode(rack=rack):
            return PLACEMENT if rack else 1
        case StopViews(worker=worker):
            return 1 if worker else PLACEMENT
        case StartViewWorker(before=before):
            return 1 if before is None else SUCCESSION
        case _:
            return 1


Said = TypeVar("Said", RegisterNode, StartViewWorker)


def as_allowed(level: int, command: Said) -> Said:
    """The command without what a cluster at `level` does not allow yet."""
    if needed(command) <= level:
        return command
    if isinstance(command, RegisterNode):
        return replace(command, rack="")
    return replace(command, before=None)


def refusal(level: int, command: Command) -> Refused | None:
    """The refusal of a command that a cluster at `level` does not allow yet; None for any other.

    The controller's leader asks before the command is in the log. Its level is that of its applied state,
    which never falls, so no replica that reads the entry is of a release that does not know it.
    """
    wanted = needed(command)
    if wanted <= level:
        return None
    reason = (
        f"{type(command).__name__} needs feature level {wanted}, the cluster is at {level}: when all nodes "
        "run this release, raise it with `strandline cluster upgrade`."
    )
    return Refused(KafkaError.UNSUPPORTED_VERSION, reason)
