"""The formats of the controller's snapshots: each older one that is read becomes this one.

What a release adds is empty in the states of the releases before it.
"""

from __future__ import annotations

from typing import Any, Final

from strandline.statemachine.controller.feature_levels import ADDRESSES, PLACEMENT

SNAPSHOT_FORMAT: Final = 13
BEFORE_LISTENERS: Final = 4
"""The oldest format that is read: a node's row ends before its listeners, and there are no moves."""
BEFORE_CREDENTIALS: Final = 5
"""No user has credentials."""
BEFORE_ACLS: Final = 6
"""There are no access control entries."""
BEFORE_VIEWS: Final = 7
"""There are no programs of views."""
BEFORE_NUMBERED_MOVES: Final = 8
"""A move does not say since when it is."""
BEFORE_QUOTAS: Final = 9
"""There are no client quotas."""
BEFORE_RACKS: Final = 10
"""No node names a rack or is drained. It is what a cluster below feature level 2 writes, so that nodes of
earlier releases read it."""
BEFORE_ADDRESSES: Final = 11
"""No client quota is of an IP address: its row has no place for one, and is read as one without. A cluster
below feature level 4 writes this."""
BEFORE_BALANCING: Final = 12
"""Replicas do not move by themselves. A cluster in which that is off writes this."""


def format_of(feature_level: int, *, balancing: bool) -> int:
    """The format of the snapshot of a cluster at this level: the oldest that has what there is."""
    if feature_level < PLACEMENT:
        return BEFORE_RACKS
    if feature_level < ADDRESSES:
        return BEFORE_ADDRESSES
    return SNAPSHOT_FORMAT if balancing else BEFORE_BALANCING


def of_this_format(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a snapshot as this release has them, without `format`.

    Raises ValueError for a format of a later release, or of one that is too old.
    """
    version = fields.pop("format")
    if version > SNAPSHOT_FORMAT:
        raise ValueError(
            f"it has format {version}, this release reads up to {SNAPSHOT_FORMAT}: upgrade this node"
        )
    if version < BEFORE_LISTENERS:
        raise ValueError(
            f"it has format {version} of an earlier release, this one reads {BEFORE_LISTENERS} "
            f"to {SNAPSHOT_FORMAT}"
        )
    if version == BEFORE_LISTENERS:
        later = {name: fields.pop(name) for name in ("deleted", "group_configs")}
        fields |= {"moves": [], "moved": [], **later}
    if version <= BEFORE_CREDENTIALS:
        fields["credentials"] = []
    if version <= BEFORE_ACLS:
        fields["acls"] = []
    if version <= BEFORE_VIEWS:
        fields["view_programs"] = []
    if version <= BEFORE_NUMBERED_MOVES:
        fields["moves"] = [[group, [*move, 0]] for group, move in fields["moves"]]
    if version <= BEFORE_QUOTAS:
        fields["client_quotas"] = []
    if version <= BEFORE_RACKS:
        fields["draining"] = []
    if version <= BEFORE_BALANCING:
        fields["balancing"] = False
    return fields
