"""The HTTP API in OpenAPI 3.1: what tools generate clients from, and what a test holds the answers to."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any, Final

from node.admin.health import REASONS

Schema = dict[str, Any]


def _value(kind: str, meaning: str, **more: Any) -> Schema:
    return {"type": kind, "description": meaning, **more}


def _maybe(kind: str, meaning: str) -> Schema:
    return {"type": [kind, "null"], "description": meaning}


def _object(**properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _list(items: Schema, meaning: str = "") -> Schema:
    described = {"description": meaning} if meaning else {}
    return {"type": "array", "items": items, **described}


def _map(values: Schema, meaning: str) -> Schema:
    return {"type": "object", "additionalProperties": values, "description": meaning}


_INT, _TEXT = {"type": "integer"}, {"type": "string"}

HEALTH: Final = _object(
    status=_value("string", "healthy, or unhealthy with the problems.", enum=["healthy", "unhealthy"]),
    node=_value("integer", "This node."),
    problems=_list(
        _object(
            reason=_value("string", "Which problem.", enum=list(REASONS)),
            count=_value("integer", "How many things it is about."),
            meaning=_value("string", "What it means, and what to do."),
            groups=_list(_INT, "The first of the groups it is about."),
        ),
        "The worst first.",
    ),
)

CLUSTER: Final = _object(
    cluster_id=_maybe("string", "Null until the controller was set up."),
    node=_value("integer", "The node that answers."),
    cluster_epoch=_value("integer", "The newest cluster epoch this node knows."),
    feature_level=_value("integer", "What entries and snapshots may use."),
    controller=_object(
        leader=_maybe("integer", "The node that leads it, as far as this one knows."),
        epoch=_value("integer", "Its term."),
        applied_index=_value("integer", "Last entry applied here."),
        version=_value("integer", "Entry of the last change of topics, configs or nodes."),
    ),
    nodes=_value("integer", "Registered nodes."),
    live_nodes=_value("integer", "Those that are not fenced."),
    topics=_value("integer", "Topics."),
    partitions=_value("integer", "Partitions of all topics."),
)

NODE: Final = _object(
    node=_value("integer", "Node id."),
    boot_id=_value("string", "Which process it is: a number."),
    kafka_host=_value("string", "Where Kafka clients reach it."),
    kafka_port=_INT,
    mesh_host=_value("string", "Where other nodes reach it."),
    mesh_port=_INT,
    admin_port=_value("integer", "Where this API is."),
    min_feature_level=_INT,
    max_feature_level=_INT,
    fenced=_value("boolean", "Whether it counts as dead."),
    connected=_value("boolean", "Whether the answering node has a connection to it."),
    replicas=_value("integer", "Partitions it has a replica of."),
    leads=_value("integer", "Partitions it leads, as far as the answering node knows."),
)

_TOPIC: Final[dict[str, Schema]] = {
    "name": _TEXT,
    "topic_id": _value("string", "As Kafka's tools write it: URL-safe base64."),
    "partition_count": _INT,
    "replication_factor": _INT,
    "configs": _map(_TEXT, "What differs from the defaults."),
    "creation_epoch": _value("integer", "Cluster epoch when it was created."),
}
TOPIC: Final = _object(**_TOPIC)
TOPIC_WITH_PARTITIONS: Final = _object(
    **_TOPIC,
    partitions=_list(
        _object(
            partition=_value("integer", "Its number."),
            group=_value("integer", "Its Raft group."),
            replicas=_list(_INT, "Node ids, the preferred leader first."),
            leader=_maybe("integer", "Who leads it, as far as this node knows."),
            leader_epoch=_maybe("integer", "The leader's term."),
            creation_epoch=_INT,
        )
    ),
)

WINDOW: Final = {
    **_object(
        term=_value("integer", "The term it belongs to."),
        oldest=_maybe("integer", "Lowest epoch accepted."),
        newest=_maybe("integer", "Highest epoch seen."),
        size=_value("integer", "Epochs from one to the other."),
    ),
    "type": ["object", "null"],
    "description": "The epoch window; null while this node does not lead.",
}

PARTITION: Final = _object(
    topic=_TEXT,
    partition=_INT,
    group=_value("integer", "Its Raft group."),
    leads=_value("boolean", "Whether this node leads it and accepts batches."),
    leader=_maybe("integer", "Who leads it, as far as this node knows."),
    leader_epoch=_value("integer", "Term of the last leader whose begin was applied here."),
    start_offset=_INT,
    high_watermark=_value("integer", "Offset after the last record a consumer may see."),
    window=WINDOW,
    fences=_object(
        slides=_INT,
        new_epoch=_value("integer", "Fences granted by a slide."),
        same_epoch=_value("integer", "Fences granted within the window."),
        rejections=_value("integer", "Requests below the window."),
        last_gap=_value("integer", "How far below it the last of them was."),
    ),
    previous_applied_epoch=_value("integer", "No epoch below it is accepted again."),
    max_applied_epoch=_value("integer", "What a new leader's window starts from."),
    max_collectable_epoch=_value("integer", "M(p): this epoch and all below are needed no more."),
    held_back_by=_value(
        "string", "Why M(p) is no higher.", enum=["window", "extents", "checkpoint"]
    ),
    extents=_value("integer", "Batches it refers to."),
    producers=_value("integer", "Idempotent producers remembered."),
    checkpoints=_list(
        _object(
            index=_value("integer", "Log index that names it."),
            lease_until_ms=_value("integer", "End of its lease, ms since 1970."),
            oldest_epoch=_maybe("integer", "Lowest epoch it names."),
        ),
        "Those retained.",
    ),
)  # fmt: skip

GROUP: Final = _object(
    group=_value("integer", "Group id; 0 is the controller's."),
    kind=_value("string", "What it replicates."),
    role=_value("string", "This replica's.", enum=["leader", "follower", "candidate"]),
    term=_INT,
    leader=_maybe("integer", "Node believed to lead it."),
    voters=_list(_INT),
    learners=_list(_INT),
    commit=_value("integer", "Index of the last entry known to be committed."),
    applied=_value("integer", "Index of the last entry applied."),
    last=_value("integer", "Index of the last entry in the log."),
    synced=_value("integer", "Index of the last durable entry."),
    log_start=_value("integer", "Index before the first entry in the log."),
    snapshot=_value("integer", "Index of the newest snapshot."),
    quiet=_value("boolean", "Whether the shared heartbeat stands for its leader's."),
    needs_snapshot_from=_maybe("integer", "Set when its stored snapshot is damaged."),
    failure=_maybe("string", "Why the replica stopped."),
    followers=_map(
        _object(match=_INT, next=_INT, phase=_TEXT), "At the leader: how far each follower is, by node id."
    ),
    lost_acknowledged=_list(_INT, "Nodes that lost entries which they had acknowledged."),
    pending_commands=_value("integer", "Commands proposed here and not committed."),
    pending_bytes=_value("integer", "Their bytes."),
)

CHECKPOINT_REQUEST: Final = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "topics": {"type": ["array", "null"], "items": _TEXT, "minItems": 1, "maxItems": 1000},
        "lease_seconds": {"type": "number", "minimum": 1, "maximum": 2592000, "default": 3600},
        "timeout_seconds": {"type": "number", "minimum": 1, "maximum": 600, "default": 60},
    },
}

CHECKPOINT: Final = _object(
    complete=_value("boolean", "Whether every live replica published its state in time."),
    cluster=_value("string", "Cluster id."),
    checkpoints=_list(
        _object(
            group=_value("integer", "Group id; 0 is the controller's."),
            topic=_maybe("string", "Null for the controller's."),
            partition=_maybe("integer", "Null for the controller's."),
            index=_maybe("integer", "Log index that names the checkpoint; null when there is none."),
            published_by=_list(_INT, "Nodes whose document is in the store."),
            missing=_list(_INT, "Live nodes whose document is not."),
            error=_maybe("string", "Why there is none."),
        )
    ),
)

RENEWAL_REQUEST: Final = {
    "type": "object",
    "additionalProperties": False,
    "required": ["checkpoints"],
    "properties": {
        "checkpoints": {
            **_list(
                _object(
                    group={"type": "integer", "minimum": 1},
                    index={"type": "integer", "minimum": 1},
                )
            ),
            "minItems": 1,
            "maxItems": 10000,
        },
        "lease_seconds": {"type": "number", "minimum": 1, "maximum": 2592000, "default": 3600},
        "timeout_seconds": {"type": "number", "minimum": 1, "maximum": 600, "default": 20},
    },
}

RENEWAL: Final = _object(
    complete=_value("boolean", "Whether all leases go on."),
    checkpoints=_list(
        _object(
            group=_value("integer", "Group id."),
            index=_value("integer", "Log index that names the checkpoint."),
            lease_until_ms=_maybe("integer", "End of its lease, ms since 1970; null when not renewed."),
            ended=_value("boolean", "Its lease cannot be renewed any more."),
            error=_maybe("string", "Why it was not renewed."),
        )
    ),
)

ERROR: Final = _object(error=_value("string", "What is wrong, and what would be right."))


def _answer(meaning: str, schema: Schema) -> Schema:
    return {"description": meaning, "content": {"application/json": {"schema": schema}}}


_REFUSALS: Final = {
    "4XX": _answer("The request is wrong.", ERROR),
    "5XX": _answer("The node cannot answer now.", ERROR),
}


def _get(summary: str, schema: Schema, *parameters: Schema) -> Schema:
    answers = {"200": _answer(summary, schema), **_REFUSALS}
    return {"get": {"summary": summary, "parameters": list(parameters), "responses": answers}}


def _post(summary: str, request: Schema, schema: Schema) -> Schema:
    return {
        "post": {
            "summary": summary,
            "requestBody": {"required": True, "content": {"application/json": {"schema": request}}},
            "responses": {"200": _answer("What became of it", schema), **_REFUSALS},
        }
    }


def _query(name: str, meaning: str, schema: Schema) -> Schema:
    return {"name": name, "in": "query", "required": False, "description": meaning, "schema": schema}


def _pages(name: str, items: Schema, key: str) -> Schema:
    following = _maybe(key, "Give it as `after` for the next page; null when there is none.")
    return _object(**{name: _list(items), "next": following})


_LIMIT: Final = _query(
    "limit", "How many.", {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100}
)
_AFTER_GROUP: Final = _query("after", "Go on after this group.", {"type": "integer", "minimum": 0})
_AFTER_NAME: Final = _query("after", "Go on after this name.", _TEXT)
_NAME: Final = {"name": "name", "in": "path", "required": True, "schema": _TEXT}

_HEALTH: Final = _get("Whether this node does its part", HEALTH)
_HEALTH["get"]["responses"]["503"] = _answer("It does not.", HEALTH)

OPENAPI: Final[dict[str, Any]] = {
    "openapi": "3.1.0",
    "info": {"title": "Strandline node", "version": version("strandline")},
    "paths": {
        "/health": _HEALTH,
        "/metrics": {
            "get": {
                "summary": "Metrics in Prometheus' text format",
                "responses": {
                    "200": {"description": "Metrics", "content": {"text/plain": {"schema": _TEXT}}},
                    **_REFUSALS,
                },
            }
        },
        "/api/openapi.json": _get("This description", {"type": "object"}),
        "/api/cluster": _get("The cluster in a few numbers", CLUSTER),
        "/api/nodes": _get("All registered nodes", _object(nodes=_list(NODE))),
        "/api/topics": _get("All topics", _pages("topics", TOPIC, "string"), _LIMIT, _AFTER_NAME),
        "/api/topics/{name}": _get("One topic and its partitions", TOPIC_WITH_PARTITIONS, _NAME),
        "/api/partitions": _get(
            "Replicas of partitions on this node",
            _pages("partitions", PARTITION, "integer"),
            _LIMIT,
            _AFTER_GROUP,
            _query("topic", "Only those of this topic.", _TEXT),
        ),
        "/api/groups": _get(
            "Raft groups on this node", _pages("groups", GROUP, "integer"), _LIMIT, _AFTER_GROUP
        ),
        "/api/checkpoints": _post(
            "Take a checkpoint of the topics, and of the controller", CHECKPOINT_REQUEST, CHECKPOINT
        ),
        "/api/checkpoints/renew": _post(
            "Renew the leases of partitions' checkpoints", RENEWAL_REQUEST, RENEWAL
        ),
    },
}
