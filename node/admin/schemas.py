"""Schemas of the HTTP API's answers and bodies, in OpenAPI 3.1."""

from __future__ import annotations

from typing import Any, Final

from strandline.node.admin.health import REASONS
from strandline.statemachine.transactions.transaction_state import TransactionState

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
        "healthy; degraded: this node works, and an operator should look at the problems;"
        " unhealthy: it does not work.",
        enum=["healthy", "degraded", "unhealthy"],
    ),
    node=value("integer", "This node."),
    problems=rows(
        record(
            reason=value("string", "Which problem.", enum=list(REASONS)),
            count=value("integer", "Number of affected things."),
            meaning=value("string", "What it means, and what to do."),
            detail=maybe("string", "Details: which store or nodes, and the cause."),
            groups=rows(INTEGER, "The first of the affected groups."),
        ),
        "The worst first.",
    ),
)

CLUSTER: Final = record(
    cluster_id=maybe("string", "Null until the controller is initialised."),
    node=value("integer", "The node that answers."),
    cluster_epoch=value("integer", "The newest cluster epoch this node knows."),
    feature_level=value("integer", "Feature level of log entries and snapshots."),
    controller=record(
        leader=maybe("integer", "The leader, as known to this node."),
        epoch=value("integer", "Its term."),
        applied_index=value("integer", "Last entry applied here."),
        version=value("integer", "Log index of the last change of topics, configurations or nodes."),
    ),
    nodes=value("integer", "Registered nodes."),
    live_nodes=value("integer", "Registered nodes that are not fenced."),
    topics=value("integer", "Topics."),
    partitions=value("integer", "Partitions of all topics."),
)

NODE: Final = record(
    node=value("integer", "Node id."),
    boot_id=value("string", "Number that identifies the process."),
    kafka_host=value("string", "Host of its Kafka port."),
    kafka_port=INTEGER,
    mesh_host=value("string", "Host of its port for other nodes."),
    mesh_port=INTEGER,
    admin_port=value("integer", "Port of this API."),
    min_feature_level=INTEGER,
    max_feature_level=INTEGER,
    rack=maybe("string", "The rack that it stands in, as node.rack says."),
    fenced=value("boolean", "Whether the controller considers the node dead."),
    draining=value("boolean", "Whether it gets no more replicas, because an operator empties it."),
    without_room=value("integer", "Of its replicas, while it is emptied: those that no other node can take."),
    below_minimum=rows(
        {"type": "string"},
        "While it is emptied: topics that stay, because they have fewer replicas than min.insync.replicas.",
    ),
    without_majority=rows(
        TEXT, "While it is emptied: topics that stay, because they have no majority of live replicas."
    ),
    folder=maybe("string", "Identity of its data folder: sixteen hexadecimal digits."),
    connected=value("boolean", "Whether the answering node has a connection to it."),
    controller_role=value(
        "string",
        'In the group of the controller: "voter", "learner" (it follows without a vote), or "none" yet.',
    ),
    replicas=value("integer", "Partitions it has a replica of."),
    leads=value("integer", "Partitions it leads, as known to the answering node."),
)

_FOLDER: Final = value("string", "Identity of a data folder: sixteen hexadecimal digits.")
REPLACEMENT: Final = maybe_record(
    "The data folder that is replacing a node's lost one, or 0 for a node that is removed; null if none.",
    node=INTEGER,
    folder=_FOLDER,
    leaving=value("integer", "Groups that still have the old folder as a member."),
    joining=value("integer", "Groups that the new folder has not joined yet."),
    stuck_topics=rows(
        TEXT, "Topics of these groups that have no majority of live replicas: the replacement waits for them."
    ),
)
NODES: Final = record(
    nodes=rows(NODE),
    strangers=rows(
        record(node=value("integer", "The node id that the process uses."), folder=_FOLDER),
        "Processes that are refused because their data folder is not the node's.",
    ),
    replacement=REPLACEMENT,
    free_id=value("integer", "The lowest id above those that nodes have, or had."),
)
REPLACE_REQUEST: Final = {
    "type": "object",
    "additionalProperties": False,
    "required": ["node"],
    "properties": {
        "node": value("integer", "Node id."),
        "folder": value("string", "Identity of the new folder. Default: the folder that was refused last."),
    },
}
DRAIN_REQUEST: Final = {
    "type": "object",
    "additionalProperties": False,
    "required": ["node"],
    "properties": {
        "node": value("integer", "Node id."),
        "draining": value("boolean", "False to let the node get replicas again. Default: true."),
    },
}
DRAINED: Final = record(
    node=value("integer", "Node id."),
    draining=value("boolean", "Whether it gets no more replicas."),
    replicas=value("integer", "Partitions it has a replica of."),
)
LEADER_DRAIN_REQUEST: Final = {
    "type": "object",
    "additionalProperties": False,
    "required": ["node"],
    "properties": {
        "node": value("integer", "Id of the node that is asked."),
        "seconds": {"type": "number", "minimum": 0, "maximum": 600, "default": 60},
    },
}
LEADERSHIPS: Final = record(
    node=value("integer", "Node id."),
    leads=value("integer", "Groups that it leads and that have other voters."),
    needed=value(
        "integer", "Groups with this node as one of one or two voters, which are away while it is restarted."
    ),
    drained_seconds=maybe("number", "For how long it takes no leadership; null when it may."),
    behind=rows(
        record(
            node=value("integer", "Id of a voter that is not in step."),
            groups=value("integer", "Number of groups led here in which it is not."),
            examples=rows(INTEGER, "The first of them."),
        ),
        "Voters that do not answer, or have not nearly all of what is committed.",
    ),
)
BALANCE_REQUEST: Final = {
    "type": "object",
    "additionalProperties": False,
    "required": ["on"],
    "properties": {"on": value("boolean", "Whether replicas are to move by themselves.")},
}
BALANCING: Final = record(on=value("boolean", "Whether replicas move by themselves."))
BALANCE: Final = record(
    on=value("boolean", "Whether replicas move by themselves."),
    waits=maybe("string", "The reason for which none moves now although some should."),
    nodes=rows(
        record(
            node=value("integer", "Node id."),
            rack=value("string", "The rack that it says it stands in; empty where it names none."),
            replicas=value("integer", "Partitions it has a replica of."),
        )
    ),
    steps=rows(
        record(
            topic=value("string", "Topic."),
            partition=value("integer", "Partition."),
            leaves=value("integer", "The node that loses its replica."),
            joins=value("integer", "The node that gets one."),
            replicas={"type": "array", "items": {"type": "integer"}},
            why=value("string", "What is uneven without the move."),
        ),
        "The moves until the nodes are even, in their order.",
    ),
    more=value("boolean", "Whether there are more than these."),
)
REMOVE_REQUEST: Final = {
    "type": "object",
    "additionalProperties": False,
    "required": ["node"],
    "properties": {"node": value("integer", "Node id.")},
}
REMOVED: Final = record(
    node=value("integer", "Node id."),
    leaving=value("integer", "Groups that still have the node as a member."),
)
UPGRADE_REQUEST: Final = {
    "type": "object",
    "additionalProperties": False,
    "properties": {"level": value("integer", "Feature level. Default: the highest of this node's release.")},
}
UPGRADED: Final = record(
    feature_level=value("integer", "The cluster's feature level now."),
    before=value("integer", "What it was, as known to this node."),
)
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
    "configs": mapping(TEXT, "Configurations that differ from the defaults."),
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
            leader=maybe("integer", "The leader, as known to this node."),
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
    leader=maybe("integer", "The leader, as known to this node."),
    leader_epoch=value("integer", "Term of the last leader whose begin was applied here."),
    start_offset=INTEGER,
    high_watermark=value("integer", "Offset after the last record that consumers can read."),
    window=WINDOW,
    fences=record(
        slides=INTEGER,
        new_epoch=value("integer", "Fences granted by a slide."),
        same_epoch=value("integer", "Fences granted within the window."),
        rejections=value("integer", "Requests below the window."),
        last_gap=value("integer", "Distance of the last rejection below the window, in epochs."),
    ),
    previous_applied_epoch=value("integer", "No epoch below it is accepted again."),
    max_applied_epoch=value("integer", "What a new leader's window starts from."),
    max_collectable_epoch=value("integer", "M(p): the partition no longer needs this epoch and all below."),
    held_back_by=value("string", "Why M(p) is no higher.", enum=list(HELD_BACK_BY)),
    last_reconciled_offset=value("integer", "LRO: all records up to this offset are in level one; -1: none."),
    last_reconciled_log_index=value("integer", "Log index of the entry that last raised it; 0: none."),
    extents=value("integer", "Batches in level zero that the partition refers to."),
    level_zero_bytes=value("integer", "Their bytes."),
    inline=record(
        bytes=value("integer", "Of these, the bytes that lie in the nodes' logs alone."),
        seconds=value("number", "Age of the oldest of these batches, as seen here."),
        from_offset=maybe("integer", "The first offset that lies in the logs alone."),
    ),
    level_one=record(
        objects=value("integer", "Level-one objects that the partition refers to."),
        bytes=value("integer", "Their bytes."),
        removed_objects=value("integer", "Objects that it no longer refers to and that are not deleted yet."),
        removed_bytes=value("integer", "Their bytes."),
    ),
    producers=value("integer", "Idempotent producers remembered."),
    checkpoints=rows(
        record(
            index=value("integer", "Log index that names it."),
            lease_until_ms=value("integer", "End of its lease, ms since 1970."),
            oldest_epoch=maybe("integer", "Lowest epoch it names."),
        ),
        "Retained checkpoints.",
    ),
)  # fmt: skip

COORDINATORS_LED: Final = record(
    led=rows(INTEGER, "Partition numbers of the coordinators that this node leads."),
    coordinators_total=value("integer", "Coordinators in the cluster; 0 before the first is needed."),
)

CONSUMER_GROUP: Final = record(
    group=value("string", "Its id."),
    coordinator=value("integer", "Partition of the internal topic that coordinates it."),
    protocol=value("string", "Protocol of the members.", enum=["classic", "consumer"]),
    state=value("string", "State, as Kafka names it."),
    protocol_type=value("string", "Protocol type of the members; empty if the group never had one."),
    assignor=value("string", "Assignor in use; empty unless the group is classic and stable."),
    generation=value("integer", "Generation of a classic group, or epoch of a consumer group."),
    members=value("integer", "Number of members."),
    offsets=value("integer", "Partitions with a committed offset."),
    pending_transactions=value(
        "integer", "Producers with an open transaction that contains offsets of the group."
    ),
)

TRANSACTION: Final = record(
    transactional_id=value("string", "The producer's transactional id."),
    coordinator=value("integer", "Partition of the internal topic that coordinates it."),
    state=value(
        "string", "State of the newest transaction.", enum=[state.value for state in TransactionState]
    ),
    number=value("integer", "Number of the newest transaction; 0: none."),
    producer_id=value("integer", "Id of the current producer."),
    producer_epoch=value("integer", "Epoch of the current producer, or the next one."),
    timeout_ms=value("integer", "Transaction timeout."),
    started_ms=maybe("integer", "Start of the newest transaction."),
    updated_ms=value("integer", "Time of the last change."),
    partitions=rows(
        record(
            topic=maybe("string", "Null for a deleted topic."),
            partition=value("integer", "Its number."),
        ),
        "Partitions in the transaction, until it is complete.",
    ),
    groups=rows(TEXT, "Consumer groups with offsets in the transaction."),
)
ABORT_REQUEST: Final = record(
    transactional_id=value("string", "The producer's transactional id."),
    number=value("integer", "Number of the transaction to abort. A later transaction is not aborted."),
)
ABORTED: Final = record(
    transactional_id=value("string", "The producer's transactional id."),
    number=value("integer", "Number of the transaction."),
    aborted=value("boolean", "True: the abort is decided and under way."),
)

COORDINATOR: Final = record(
    topic=value("string", "The internal topic."),
    partition=value("integer", "Partition number; a key's hash decides which."),
    group=value("integer", "Its Raft group."),
    kind=value("string", "What it coordinates.", enum=["groups", "transactions"]),
    leads=value("boolean", "Whether this node leads it and answers."),
    leader=maybe("integer", "The leader, as known to this node."),
    leader_epoch=value("integer", "The newest term applied here."),
    keys=value("integer", "Consumer groups or transactional ids of this coordinator."),
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
    quiet=value(
        "boolean", "Whether the group is quiesced: nodes exchange one heartbeat for all quiesced groups."
    ),
    needs_snapshot_from=maybe("integer", "Set when its stored snapshot is damaged."),
    failure=maybe("string", "Why the replica stopped."),
    followers=mapping(
        record(match=INTEGER, next=INTEGER, phase=TEXT),
        "At the leader: each follower's progress, by node id.",
    ),
    lost_acknowledged=rows(INTEGER, "Nodes that lost acknowledged entries."),
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
    complete=value("boolean", "Whether every live replica published its state before the timeout."),
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
    restore_point=maybe("integer", "Number of the restore point that names these documents."),
    no_restore_point=maybe("string", "Why there is none; null too where not all topics were asked for."),
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
    complete=value("boolean", "Whether all leases were renewed."),
    checkpoints=rows(
        record(
            group=value("integer", "Group id."),
            index=value("integer", "Log index that names the checkpoint."),
            lease_until_ms=maybe("integer", "End of its lease, ms since 1970; null when not renewed."),
            ended=value("boolean", "Whether the lease has ended for good."),
            error=maybe("string", "Why it was not renewed."),
        )
    ),
)

ERROR: Final = record(error=value("string", "The cause and the cure."))

COLLECTION: Final = record(
    node=value("integer", "The node that answers."),
    cluster_epoch=value("integer", "Cluster epoch of the controller's state that M is computed from."),
    max_collectable_epoch=value(
        "integer", "This node's view of M: no partition needs this epoch or any below."
    ),
    held_back={
        **record(
            topic=TEXT,
            partition=INTEGER,
            group=INTEGER,
            leader=maybe("integer", "The leader, as known to this node."),
            reason=value("string", "Why.", enum=[*HELD_BACK_BY, "no_leader", "unheard"]),
            since_ms=maybe("integer", "For unreconciled: timestamp of the oldest waiting batch."),
        ),
        "type": ["object", "null"],
        "description": "The partition that holds M back; null if M is limited by the cluster epoch alone.",
    },
    collector=record(
        paused=value("boolean", "Whether collection is paused in the whole cluster."),
        waiting=value(
            "boolean", "Whether this node waits for its first answer from the controller since it started."
        ),
        broken=maybe("string", "Why the collector stopped until it is reset."),
        last_error=maybe("string", "Error of the last sweep, if it failed."),
        bound=value("integer", "Objects up to this epoch are deleted: M as it was a grace period ago."),
        lag_epochs=value("integer", "Number of closed epochs above the bound."),
        lag_seconds=value(
            "number", "Time since the oldest of these epochs was closed; 0 while none has objects."
        ),
        shards=rows(INTEGER, "Nodes whose objects this one collects."),
        sweeps=value("integer", "Sweeps over all these shards."),
        lists=value("integer", "Listings."),
        listed=value("integer", "Object names listed."),
        deleted=value("integer", "Objects deleted."),
        foreign=value("integer", "Unknown names in the last sweep; they are not deleted."),
        errors=value("integer", "Sweeps that failed."),
    ),
    clock=record(
        trusted=value(
            "boolean", "Whether a majority of nodes agrees on the time; otherwise nothing expires."
        ),
        offset_ms=value("integer", "Correction of this node's clock; 0 while it is close to the others."),
    ),
    level_one=record(
        unreconciled_bytes=value("integer", "Bytes of batches in level zero, of partitions led here."),
        unreconciled_seconds=value("number", "Age of the oldest of these batches, as seen here."),
        undecided_objects=value(
            "integer", "Objects that are being built, or whose registration is not decided."
        ),
        retention_by_time=value("boolean", "False while the nodes' clocks disagree."),
        failing_count=value("integer", "Partitions led here whose last job failed."),
        failing=rows(
            record(
                topic=TEXT,
                partition=INTEGER,
                unreconciled_seconds=value("number", "Age of its oldest batch in level zero."),
                errors=rows(TEXT, "Why it failed."),
            ),
            "The first of these partitions, the longest waiting first.",
        ),
    ),
)

COLLECTABLE: Final = record(
    topic=TEXT,
    partition=INTEGER,
    group=value("integer", "Its Raft group."),
    leader=maybe("integer", "The leader, as known to this node."),
    max_collectable_epoch=value("integer", "This node's view of M(p)."),
    heard_from_term=maybe("integer", "Term of the leader that reported it; null: no report yet."),
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
