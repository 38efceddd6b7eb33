"""What the answers and bodies of the HTTP API look like, as schemas of OpenAPI 3.1."""

from __future__ import annotations

from typing import Any, Final

from strandline.node.admin.health import REASONS
from strandline.statemachine.transactions.transaction_state import State

Schema = dict[str, Any]


def value(kind: str, meaning: str, **more: Any) -> Schema:
    """One value of a type, and what it means."""
    return {"type": kind, "description": meaning, **more}


def maybe(kind: str, meaning: str) -> Schema:
    """One that may be null."""
    return {"type": [kind, "null"], "description": meaning}


def record(**properties: Schema) -> Schema:
    """An object with exactly these properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def maybe_record(meaning: str, **properties: Schema) -> Schema:
    """A record that may be null."""
    return {**record(**properties), "type": ["object", "null"], "description": meaning}


def rows(items: Schema, meaning: str = "") -> Schema:
    """An array."""
    described = {"description": meaning} if meaning else {}
    return {"type": "array", "items": items, **described}


def mapping(values: Schema, meaning: str) -> Schema:
    """An object whose names are data."""
    return {"type": "object", "additionalProperties": values, "description": meaning}


INTEGER, TEXT = {"type": "integer"}, {"type": "string"}

HELD_BACK_BY: Final = ("reader", "checkpoint", "unreconciled", "idle")

HEALTH: Final = record(
    status=value(
        "string",
        "healthy; degraded: this node does its part, the problems want a look; unhealthy: it does not.",
        enum=["healthy", "degraded", "unhealthy"],
    ),
    node=value("integer", "This node."),
    problems=rows(
        record(
            reason=value("string", "Which problem.", enum=list(REASONS)),
            count=value("integer", "How many things it is about."),
            meaning=value("string", "What it means, and what to do."),
            detail=maybe("string", "What is known beyond that: which store or nodes, and why."),
            groups=rows(INTEGER, "The first of the groups it is about."),
        ),
        "The worst first.",
    ),
)

CLUSTER: Final = record(
    cluster_id=maybe("string", "Null until the controller was set up."),
    node=value("integer", "The node that answers."),
    cluster_epoch=value("integer", "The newest cluster epoch this node knows."),
    feature_level=value("integer", "What entries and snapshots may use."),
    controller=record(
        leader=maybe("integer", "The node that leads it, as far as this one knows."),
        epoch=value("integer", "Its term."),
        applied_index=value("integer", "Last entry applied here."),
        version=value("integer", "Entry of the last change of topics, configs or nodes."),
    ),
    nodes=value("integer", "Registered nodes."),
    live_nodes=value("integer", "Those that are not fenced."),
    topics=value("integer", "Topics."),
    partitions=value("integer", "Partitions of all topics."),
)

NODE: Final = record(
    node=value("integer", "Node id."),
    boot_id=value("string", "Which process it is: a number."),
    kafka_host=value("string", "Where Kafka clients reach it."),
    kafka_port=INTEGER,
    mesh_host=value("string", "Where other nodes reach it."),
    mesh_port=INTEGER,
    admin_port=value("integer", "Where this API is."),
    min_feature_level=INTEGER,
    max_feature_level=INTEGER,
    fenced=value("boolean", "Whether it counts as dead."),
    folder=maybe("string", "Identity of its data folder: sixteen hexadecimal digits."),
    connected=value("boolean", "Whether the answering node has a connection to it."),
    replicas=value("integer", "Partitions it has a replica of."),
    leads=value("integer", "Partitions it leads, as far as the answering node knows."),
)

_FOLDER: Final = value("string", "Identity of a data folder: sixteen hexadecimal digits.")
REPLACEMENT: Final = maybe_record(
    "The data folder that is on its way into a node's place; null when there is none.",
    node=INTEGER,
    folder=_FOLDER,
    leaving=value("integer", "Groups that still count the folder before among their members."),
    joining=value("integer", "Groups that the new folder is still to be added to."),
)
NODES: Final = record(
    nodes=rows(NODE),
    strangers=rows(
        record(node=value("integer", "The node id it comes under."), folder=_FOLDER),
        "Processes that come with a data folder that is not that node's, and are refused.",
    ),
    replacement=REPLACEMENT,
)
REPLACE_REQUEST: Final = {
    "type": "object",
    "additionalProperties": False,
    "required": ["node"],
    "properties": {
        "node": value("integer", "Node id."),
        "folder": value("string", "The new folder's identity; without it the one that was refused last."),
    },
}
REPLACED: Final = record(
    node=value("integer", "Node id."),
    folder=_FOLDER,
    replacement=REPLACEMENT,
)

_TOPIC: Final[dict[str, Schema]] = {
    "name": TEXT,
    "topic_id": value("string", "As Kafka's tools write it: URL-safe base64."),
    "partition_count": INTEGER,
    "replication_factor": INTEGER,
    "configs": mapping(TEXT, "What differs from the defaults."),
    "creation_epoch": value("integer", "Cluster epoch when it was created."),
}
TOPIC: Final = record(**_TOPIC)
TOPIC_WITH_PARTITIONS: Final = record(
    **_TOPIC,
    partitions=rows(
        record(
            partition=value("integer", "Its number."),
            group=value("integer", "Its Raft group."),
            replicas=rows(INTEGER, "Node ids, the preferred leader first."),
            leader=maybe("integer", "Who leads it, as far as this node knows."),
            leader_epoch=maybe("integer", "The leader's term."),
            creation_epoch=INTEGER,
        )
    ),
)

WINDOW: Final = {
    **record(
        term=value("integer", "The term it belongs to."),
        oldest=maybe("integer", "Lowest epoch accepted."),
        newest=maybe("integer", "Highest epoch seen."),
        size=value("integer", "Epochs from one to the other."),
    ),
    "type": ["object", "null"],
    "description": "The epoch window; null while this node does not lead.",
}

PARTITION: Final = record(
    topic=TEXT,
    partition=INTEGER,
    group=value("integer", "Its Raft group."),
    leads=value("boolean", "Whether this node leads it and accepts batches."),
    leader=maybe("integer", "Who leads it, as far as this node knows."),
    leader_epoch=value("integer", "Term of the last leader whose begin was applied here."),
    start_offset=INTEGER,
    high_watermark=value("integer", "Offset after the last record a consumer may see."),
    window=WINDOW,
    fences=record(
        slides=INTEGER,
        new_epoch=value("integer", "Fences granted by a slide."),
        same_epoch=value("integer", "Fences granted within the window."),
        rejections=value("integer", "Requests below the window."),
        last_gap=value("integer", "How far below it the last of them was."),
    ),
    previous_applied_epoch=value("integer", "No epoch below it is accepted again."),
    max_applied_epoch=value("integer", "What a new leader's window starts from."),
    max_collectable_epoch=value("integer", "M(p): this epoch and all below are needed no more."),
    held_back_by=value("string", "Why M(p) is no higher.", enum=list(HELD_BACK_BY)),
    last_reconciled_offset=value("integer", "LRO: up to it all records are in level one; -1: none."),
    last_reconciled_log_index=value("integer", "Log index of the entry that raised it last; 0: none did."),
    extents=value("integer", "Batches in level zero it refers to."),
    level_zero_bytes=value("integer", "Their bytes."),
    level_one=record(
        objects=value("integer", "Objects it refers to."),
        bytes=value("integer", "Their bytes."),
        removed_objects=value("integer", "Objects it no longer refers to that are not deleted yet."),
        removed_bytes=value("integer", "Their bytes."),
    ),
    producers=value("integer", "Idempotent producers remembered."),
    checkpoints=rows(
        record(
            index=value("integer", "Log index that names it."),
            lease_until_ms=value("integer", "End of its lease, ms since 1970."),
            oldest_epoch=maybe("integer", "Lowest epoch it names."),
        ),
        "Those retained.",
    ),
)  # fmt: skip

COORDINATORS_LED: Final = record(
    led=rows(INTEGER, "Numbers of those that this node leads: the list has what they coordinate."),
    of=value("integer", "How many there are in the cluster; 0 before the first is needed."),
)

CONSUMER_GROUP: Final = record(
    group=value("string", "Its id."),
    coordinator=value("integer", "The partition of the internal topic that has it."),
    protocol=value("string", "Of its members.", enum=["classic", "consumer"]),
    state=value("string", "In Kafka's words."),
    protocol_type=value("string", "What its members are; empty when nobody ever was one."),
    assignor=value("string", "What all members assign by; empty unless it is classic and stable."),
    generation=value("integer", "Of a classic group; of the other protocol, its epoch."),
    members=value("integer", "How many, whether or not the group is stable."),
    offsets=value("integer", "Partitions it has a committed offset for."),
    pending_transactions=value("integer", "Producers whose open transactions have offsets of it."),
)

TRANSACTION: Final = record(
    transactional_id=value("string", "Of the producer."),
    coordinator=value("integer", "The partition of the internal topic that has it."),
    state=value("string", "Of its newest transaction.", enum=[state.value for state in State]),
    number=value("integer", "Of its newest transaction; 0 when there was none."),
    producer_id=value("integer", "Of the present producer."),
    producer_epoch=value("integer", "Of the present producer, or the one it is to get next."),
    timeout_ms=value("integer", "How long its transactions may take."),
    started_ms=maybe("integer", "When its newest transaction began."),
    updated_ms=value("integer", "When something was done for it last."),
    partitions=rows(
        record(
            topic=maybe("string", "Null for one that was deleted."),
            partition=value("integer", "Its number."),
        ),
        "What is in the transaction until it is complete.",
    ),
    groups=rows(TEXT, "Consumer groups whose offsets are in it."),
)
ABORT_REQUEST: Final = record(
    transactional_id=value("string", "Of the producer."),
    number=value("integer", "Of the transaction that was seen: no later one is aborted."),
)
ABORTED: Final = record(
    transactional_id=value("string", "Of the producer."),
    number=value("integer", "Of the transaction."),
    aborted=value("boolean", "True: it is decided, and is carried out."),
)

COORDINATOR: Final = record(
    topic=value("string", "The internal topic."),
    partition=value("integer", "Its number, which follows from the keys."),
    group=value("integer", "Its Raft group."),
    kind=value("string", "What it coordinates.", enum=["groups", "transactions"]),
    leads=value("boolean", "Whether this node leads it and answers."),
    leader=maybe("integer", "Who leads it, as far as this node knows."),
    leader_epoch=value("integer", "The newest term applied here."),
    keys=value("integer", "Consumer groups, or transactional ids, that it has."),
)

GROUP: Final = record(
    group=value("integer", "Group id; 0 is the controller's."),
    kind=value("string", "What it replicates."),
    role=value("string", "This replica's.", enum=["leader", "follower", "candidate"]),
    term=INTEGER,
    leader=maybe("integer", "Node believed to lead it."),
    voters=rows(INTEGER),
    learners=rows(INTEGER),
    commit=value("integer", "Index of the last entry known to be committed."),
    applied=value("integer", "Index of the last entry applied."),
    last=value("integer", "Index of the last entry in the log."),
    synced=value("integer", "Index of the last durable entry."),
    log_start=value("integer", "Index before the first entry in the log."),
    snapshot=value("integer", "Index of the newest snapshot."),
    quiet=value("boolean", "Whether the shared heartbeat stands for its leader's."),
    needs_snapshot_from=maybe("integer", "Set when its stored snapshot is damaged."),
    failure=maybe("string", "Why the replica stopped."),
    followers=mapping(
        record(match=INTEGER, next=INTEGER, phase=TEXT),
        "At the leader: how far each follower is, by node id.",
    ),
    lost_acknowledged=rows(INTEGER, "Nodes that lost entries which they had acknowledged."),
    pending_commands=value("integer", "Commands proposed here and not committed."),
    pending_bytes=value("integer", "Their bytes."),
)

CHECKPOINT_REQUEST: Final = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "topics": {"type": ["array", "null"], "items": TEXT, "minItems": 1, "maxItems": 1000},
        "lease_seconds": {"type": "number", "minimum": 1, "maximum": 2592000, "default": 3600},
        "timeout_seconds": {"type": "number", "minimum": 1, "maximum": 600, "default": 60},
    },
}

CHECKPOINT: Final = record(
    complete=value("boolean", "Whether every live replica published its state in time."),
    cluster=value("string", "Cluster id."),
    checkpoints=rows(
        record(
            group=value("integer", "Group id; 0 is the controller's."),
            topic=maybe("string", "Null for the controller's."),
            partition=maybe("integer", "Null for the controller's."),
            index=maybe("integer", "Log index that names the checkpoint; null when there is none."),
            published_by=rows(INTEGER, "Nodes whose document is in the store."),
            missing=rows(INTEGER, "Live nodes whose document is not."),
            error=maybe("string", "Why there is none."),
        )
    ),
)

RENEWAL_REQUEST: Final = {
    "type": "object",
    "additionalProperties": False,
    "required": ["checkpoints"],
    "properties": {
        "checkpoints": {
            **rows(
                record(
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

RENEWAL: Final = record(
    complete=value("boolean", "Whether all leases go on."),
    checkpoints=rows(
        record(
            group=value("integer", "Group id."),
            index=value("integer", "Log index that names the checkpoint."),
            lease_until_ms=maybe("integer", "End of its lease, ms since 1970; null when not renewed."),
            ended=value("boolean", "Its lease cannot be renewed any more."),
            error=maybe("string", "Why it was not renewed."),
        )
    ),
)

ERROR: Final = record(error=value("string", "What is wrong, and what would be right."))

COLLECTION: Final = record(
    node=value("integer", "The node that answers."),
    cluster_epoch=value("integer", "As of the controller's state that M was taken from."),
    max_collectable_epoch=value("integer", "M as this node knows it: no partition needs it or any below."),
    held_back={
        **record(
            topic=TEXT,
            partition=INTEGER,
            group=INTEGER,
            leader=maybe("integer", "Who leads it, as far as this node knows."),
            reason=value("string", "Why.", enum=[*HELD_BACK_BY, "no_leader", "unheard"]),
            since_ms=maybe("integer", "For unreconciled: the time of the oldest batch that waits."),
        ),
        "type": ["object", "null"],
        "description": "The partition that holds M back; null when only the cluster epoch does.",
    },
    collector=record(
        paused=value("boolean", "Whether collecting is paused, in the whole cluster."),
        waiting=value("boolean", "Whether this node has yet to hear the controller since it started."),
        broken=maybe("string", "Why the collector stopped for good, until it is reset."),
        last_error=maybe("string", "The object store's, as long as the last sweep failed."),
        bound=value("integer", "Epoch up to which objects are deleted: M of a grace period ago."),
        lag_epochs=value("integer", "Closed epochs that are above the bound."),
        lag_seconds=value("number", "How long the oldest of them has been closed."),
        shards=rows(INTEGER, "Nodes whose objects this one collects."),
        sweeps=value("integer", "Sweeps over all these shards."),
        lists=value("integer", "Listings."),
        listed=value("integer", "Names that they gave."),
        deleted=value("integer", "Objects deleted."),
        foreign=value("integer", "Names in the last sweep that are no object's; they stay."),
        errors=value("integer", "Sweeps that failed."),
    ),
    clock=record(
        trusted=value("boolean", "Whether most nodes agree on the time; else nothing goes by its age."),
        offset_ms=value("integer", "What is added to this node's clock; 0 while it is near the others."),
    ),
    level_one=record(
        unreconciled_bytes=value("integer", "Batches in level zero, of partitions led here."),
        unreconciled_seconds=value("number", "How long the oldest of them has been seen here."),
        undecided_objects=value("integer", "Objects that are being made, or that may yet be named."),
        retention_by_time=value("boolean", "False while the nodes' clocks disagree."),
        failing_count=value("integer", "Partitions led here for which some work failed the last time."),
        failing=rows(
            record(
                topic=TEXT,
                partition=INTEGER,
                unreconciled_seconds=value("number", "How long its oldest batch in level zero waits."),
                errors=rows(TEXT, "Why it failed."),
            ),
            "The first of them, the longest first.",
        ),
    ),
)

COLLECTABLE: Final = record(
    topic=TEXT,
    partition=INTEGER,
    group=value("integer", "Its Raft group."),
    leader=maybe("integer", "Who leads it, as far as this node knows."),
    max_collectable_epoch=value("integer", "M(p) as this node knows it."),
    heard_from_term=maybe("integer", "Term of the leader that said so; null: none was heard."),
)

DRY_RUN: Final = record(
    node=value("integer", "The node that answers."),
    epoch=value("integer", "Up to which epoch objects would be deleted."),
    objects=value("integer", "How many were counted."),
    shards=mapping(INTEGER, "How many by shard."),
    names=rows(TEXT, "Those that were counted."),
    more=value("boolean", "Whether there are more than were asked for."),
)

PAUSED: Final = record(paused=value("boolean", "Whether collecting is paused now."))

RESET: Final = record(node=value("integer", "The node that answers."), reset=value("boolean", "True."))

NOTHING: Final = {"type": "object", "additionalProperties": False, "properties": {}}
