"""The controller's snapshot: equal states give equal bytes. docs/controller.md has the fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgpack

from strandline.statemachine.controller import view_state
from strandline.statemachine.controller.acl import Acl
from strandline.statemachine.controller.acl_set import AclSet
from strandline.statemachine.controller.client_quota import QuotaEntity
from strandline.statemachine.controller.controller_formats import (
    BEFORE_ADDRESSES,
    BEFORE_BALANCING,
    BEFORE_RACKS,
    format_of,
    of_this_format,
)
from strandline.statemachine.controller.controller_state import (
    ControllerState,
    ListenerAddress,
    Move,
    NodeFolder,
    NodeRegistration,
    PartitionAssignment,
    Replacement,
    Topic,
)
from strandline.statemachine.controller.quota_set import QuotaSet
from strandline.statemachine.controller.scram_credentials import ScramCredential

_SCALARS: Final = (
    "cluster_id",
    "incarnation",
    "feature_level",
    "cluster_epoch",
    "next_group",
    "next_producer_id",
    "time",
    "term",
    "leader",
    "applied_index",
    "version",
    "forgotten_index",
    "collection_paused",
)
_ROWS: Final = (
    "topics", "nodes", "folders", "replacement", "moves", "moved", "deleted", "group_configs", "credentials",
    "acls", "view_programs", "client_quotas", "draining", "balancing",
)  # fmt: skip
FIELDS: Final = ("format", *_SCALARS, *_ROWS)
"""Of a snapshot at the highest feature level; at a lower one it may have fewer."""


def capture(state: ControllerState, *, secrets: bool = True) -> bytes:
    """The state as a msgpack map, its rows arrays.

    Without `secrets` it has no users' credentials, for readers of the storage have no use for them.
    """
    values = {name: getattr(state, name) for name in _SCALARS}
    rows: dict[str, Any] = {
        "topics": list(state.topics.values()),
        "nodes": list(map(node_row, state.nodes.values())),
        "folders": sorted(state.folders.items()),
        "replacement": None if state.replacement is None else _replacement_row(state.replacement),
        "moves": list(state.moves.items()),
        "moved": sorted(state.moved),
        "deleted": list(state.deleted.items()),
        "group_configs": list(state.group_configs.items()),
        "credentials": [[*key, *value] for key, value in state.credentials.items()] if secrets else [],
        "acls": list(state.acls),
        "view_programs": view_state.rows(state.view_programs),
        "client_quotas": [[*entity, dict(values)] for entity, values in state.client_quotas],
        "draining": sorted(state.draining),
        "balancing": state.balancing,
    }
    written = format_of(state.feature_level, balancing=state.balancing)
    # Below its level the log holds no command that would fill what is left out.
    if written <= BEFORE_RACKS:
        del rows["draining"]
    if written <= BEFORE_BALANCING:
        del rows["balancing"]
    if written <= BEFORE_ADDRESSES:
        rows["client_quotas"] = [
            [user, client_id, values] for user, client_id, _, values in rows["client_quotas"]
        ]
    packed: bytes = msgpack.packb({"format": written, **values, **rows})
    return packed


def load(data: bytes) -> ControllerState:
    """Read what `capture` wrote, in this format or one before; raises ValueError for anything else."""
    try:
        fields = of_this_format(msgpack.unpackb(data))
        if tuple(fields) != (*_SCALARS, *_ROWS):
            raise ValueError(f"its fields are {', '.join(map(str, fields))}")
        state = ControllerState()
        for name in _SCALARS:
            setattr(state, name, fields[name])
        for row in fields["topics"]:
            state.put_topic(topic_from(row))
        for row in fields["nodes"]:
            state.put_node(node_from(row))
        state.folders = {node: NodeFolder(*folder) for node, folder in fields["folders"]}
        if fields["replacement"] is not None:
            node, folder, boot_id, leaving, joining = fields["replacement"]
            state.replacement = Replacement(node, folder, boot_id, frozenset(leaving), frozenset(joining))
        for group, (target, original, since) in fields["moves"]:
            state.moves[group] = Move(tuple(target), tuple(original), since)
        state.moved = set(fields["moved"])
        state.deleted = dict(fields["deleted"])
        state.group_configs = dict(fields["group_configs"])
        for user, mechanism, *values in fields["credentials"]:
            state.credentials[user, mechanism] = ScramCredential(*values)
        state.acls = AclSet(Acl(*row) for row in fields["acls"])
        state.view_programs = view_state.programs_from(fields["view_programs"])
        state.client_quotas = QuotaSet(
            (QuotaEntity(*names), values) for *names, values in fields["client_quotas"]
        )
        state.draining = set(fields["draining"])
        state.balancing = fields["balancing"]
        if state.places and max(state.places) >= state.next_group:
            raise ValueError(f"group {max(state.places)} was never allocated")
    except Exception as error:
        raise ValueError(f"the controller's state cannot be read: {error}") from error
    return state


def _replacement_row(replacement: Replacement) -> list[Any]:
    *values, leaving, joining = replacement
    return [*values, sorted(leaving), sorted(joining)]


def node_row(registration: NodeRegistration) -> Sequence[Any]:
    """The row of a node; it ends before a rack that is not named, as in earlier releases."""
    return registration if registration.rack else registration[:-1]


def node_from(row: Sequence[Any]) -> NodeRegistration:
    """A node of the row that msgpack makes of it; the row of an earlier release ends sooner."""
    registration = NodeRegistration(*row)
    return registration._replace(listeners=tuple(ListenerAddress(*one) for one in registration.listeners))


def topic_from(row: Sequence[Any]) -> Topic:
    """A topic of the row that msgpack makes of it, in a snapshot or an answer."""
    topic_id, name, partitions, configs, creation_epoch, version = row
    return Topic(
        topic_id,
        name,
        tuple(PartitionAssignment(group, tuple(replicas), epoch) for group, replicas, epoch in partitions),
        configs,
        creation_epoch,
        version,
    )
