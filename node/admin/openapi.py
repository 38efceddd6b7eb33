"""The HTTP API in OpenAPI 3.1: what tools generate clients from, and what a test holds the answers to."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any, Final

from strandline.node.admin.compaction_schemas import (
    COMPACTED_PARTITION,
    COMPACTION,
    HOLD_REQUEST,
    HOLDS,
    RELEASE_REQUEST,
)
from strandline.node.admin.schemas import (
    ABORT_REQUEST,
    ABORTED,
    BALANCE,
    BALANCE_REQUEST,
    BALANCING,
    CHECKPOINT,
    CHECKPOINT_REQUEST,
    CLUSTER,
    COLLECTABLE,
    COLLECTION,
    CONSUMER_GROUP,
    COORDINATOR,
    COORDINATORS_LED,
    DRAIN_REQUEST,
    DRAINED,
    DRY_RUN,
    ERROR,
    GROUP,
    HEALTH,
    LEADER_DRAIN_REQUEST,
    LEADERSHIPS,
    NODES,
    NOTHING,
    PARTITION,
    PAUSED,
    REMOVE_REQUEST,
    REMOVED,
    RENEWAL,
    RENEWAL_REQUEST,
    REPLACE_REQUEST,
    REPLACED,
    RESET,
    TEXT,
    TOPIC,
    TOPIC_WITH_PARTITIONS,
    TRANSACTION,
    UPGRADE_REQUEST,
    UPGRADED,
    Schema,
    maybe,
    record,
    rows,
)
from strandline.node.admin.view_schemas import (
    APPLIED,
    APPLY_REQUEST,
    PROGRAM_ENDED,
    PROGRAM_REQUEST,
    PROGRAM_STOPPED,
    PROGRAMS,
)


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


def _pages(name: str, items: Schema, key: str, **more: Schema) -> Schema:
    following = maybe(key, "Give it as `after` for the next page; null when there is none.")
    return record(**{name: rows(items), "next": following, **more})


_LIMIT: Final = _query(
    "limit", "How many.", {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100}
)
_AFTER_GROUP: Final = _query("after", "Go on after this group.", {"type": "integer", "minimum": 0})
_AFTER_NAME: Final = _query("after", "Go on after this name.", TEXT)
_NAME: Final = {"name": "name", "in": "path", "required": True, "schema": TEXT}

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
                    "200": {"description": "Metrics", "content": {"text/plain": {"schema": TEXT}}},
                    **_REFUSALS,
                },
            }
        },
        "/api/openapi.json": _get("This description", {"type": "object"}),
        "/api/cluster": _get("The cluster in a few numbers", CLUSTER),
        "/api/nodes": _get("All registered nodes, and data folders that are refused", NODES),
        "/api/nodes/replace": _post(
            "Let the data folder that a dead node comes with take its place", REPLACE_REQUEST, REPLACED
        ),
        "/api/nodes/remove": _post("Forget a dead node without replicas", REMOVE_REQUEST, REMOVED),
        "/api/nodes/drain": _post(
            "Have a node get no more replicas and lose those it has", DRAIN_REQUEST, DRAINED
        ),
        "/api/leaderships": _get("What this node leads, and which voters are not in step", LEADERSHIPS),
        "/api/leaderships/drain": _post(
            "Have this node hand over what it leads, and take no leadership for some time",
            LEADER_DRAIN_REQUEST,
            LEADERSHIPS,
        ),
        "/api/balance": {
            **_get("How replicas are spread, and which would move", BALANCE),
            **_post("Have replicas move by themselves, or leave them", BALANCE_REQUEST, BALANCING),
        },
        "/api/cluster/upgrade": _post("Raise the cluster's feature level", UPGRADE_REQUEST, UPGRADED),
        "/api/topics": _get("All topics", _pages("topics", TOPIC, "string"), _LIMIT, _AFTER_NAME),
        "/api/topics/{name}": _get("One topic and its partitions", TOPIC_WITH_PARTITIONS, _NAME),
        "/api/partitions": _get(
            "Replicas of partitions on this node",
            _pages("partitions", PARTITION, "integer"),
            _LIMIT,
            _AFTER_GROUP,
            _query("topic", "Only those of this topic.", TEXT),
        ),
        "/api/coordinators": _get(
            "Replicas of coordinators on this node",
            _pages("coordinators", COORDINATOR, "integer"),
            _LIMIT,
            _AFTER_GROUP,
        ),
        "/api/groups": _get(
            "Raft groups on this node", _pages("groups", GROUP, "integer"), _LIMIT, _AFTER_GROUP
        ),
        "/api/consumer-groups": _get(
            "Consumer groups that this node coordinates",
            _pages("consumer_groups", CONSUMER_GROUP, "string", coordinators=COORDINATORS_LED),
            _LIMIT,
            _AFTER_NAME,
            _query("state", "Only those in this state.", TEXT),
            _query("group", "Only this one.", TEXT),
        ),
        "/api/transactions": _get(
            "Transactional ids that this node coordinates",
            _pages("transactions", TRANSACTION, "string", coordinators=COORDINATORS_LED),
            _LIMIT,
            _AFTER_NAME,
            _query("state", "Only those in this state.", TEXT),
            _query("transactional_id", "Only this one.", TEXT),
        ),
        "/api/transactions/abort": _post("Abort a transaction that hangs", ABORT_REQUEST, ABORTED),
        "/api/gc": _get("What may be deleted, and what holds it back", COLLECTION),
        "/api/gc/partitions": _get(
            "What is known of every partition's M(p)",
            _pages("partitions", COLLECTABLE, "integer"),
            _LIMIT,
            _AFTER_GROUP,
        ),
        "/api/compaction": _get("This node's local logs, and what fails in them", COMPACTION),
        "/api/compaction/partitions": _get(
            "Compacted replicas on this node, and what holds removal back where it leads",
            _pages("partitions", COMPACTED_PARTITION, "integer"),
            _LIMIT,
            _AFTER_GROUP,
            _query("topic", "Only those of this topic.", TEXT),
        ),
        "/api/compaction/holds": _post(
            "Hold records of a compacted topic against cleaning, for a reader", HOLD_REQUEST, HOLDS
        ),
        "/api/compaction/holds/release": _post("End a reader's holds of a topic", RELEASE_REQUEST, HOLDS),
        "/api/views": {
            **_get("Programs of views, and the versions that this node runs", PROGRAMS),
            **_post("Begin to fill a program's next version", APPLY_REQUEST, APPLIED),
        },
        "/api/views/cancel": _post("End the filling of a version", PROGRAM_REQUEST, PROGRAM_ENDED),
        "/api/views/stop": _post("Stop the live version of a program", PROGRAM_REQUEST, PROGRAM_STOPPED),
        "/api/views/drop": _post("Drop a program and its topics", PROGRAM_REQUEST, PROGRAM_ENDED),
        "/api/gc/dry-run": _get("What this node's collector would delete now", DRY_RUN, _LIMIT),
        "/api/gc/pause": _post("Collect no more, on any node", NOTHING, PAUSED),
        "/api/gc/resume": _post("Collect again, on all nodes", NOTHING, PAUSED),
        "/api/gc/reset": _post("Reset this node's collector", NOTHING, RESET),
        "/api/checkpoints": _post(
            "Take a checkpoint of the topics, and of the controller", CHECKPOINT_REQUEST, CHECKPOINT
        ),
        "/api/checkpoints/renew": _post(
            "Renew the leases of partitions' checkpoints", RENEWAL_REQUEST, RENEWAL
        ),
    },
}
