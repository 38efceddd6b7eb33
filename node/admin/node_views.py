"""A node's state as plain values for JSON. node/admin/schemas.py describes each field."""

from __future__ import annotations

import base64
from typing import Any, Final

from strandline.node.admin.replica_sources import CoordinatorSource, PartitionSource
from strandline.node.admin.source import AdminSource
from strandline.node.raft.group import RaftGroup
from strandline.statemachine.controller.controller_state import CONTROLLER_GROUP, NodeRegistration, Topic
from strandline.statemachine.controller.drain_plan import Staying
from strandline.statemachine.groups.groups import GroupsMachine
from strandline.statemachine.partition.epoch_window import EpochWindow

MOST_TOPICS: Final = 20
"""Topics that a node's row names, of those that keep the node from being emptied."""


def cluster(source: AdminSource) -> dict[str, Any]:
    """The cluster as this node's replica of the controller has it."""
    machine = source.controller.machine
    group = source.host.groups.get(CONTROLLER_GROUP)
    leader = None if group is None else source.node_id if group.is_leader else group.leader
    topics = machine.topics
    return {
        "cluster_id": machine.cluster_id,
        "node": source.node_id,
        "cluster_epoch": source.epoch.current(),
        "feature_level": machine.feature_level,
        "controller": {
            "leader": leader,
            "epoch": 0 if group is None else group.term,
            "applied_index": machine.applied_index,
            "version": machine.version,
        },
        "nodes": len(machine.nodes),
        "live_nodes": sum(not registration.fenced for registration in machine.nodes.values()),
        "topics": len(topics),
        "partitions": sum(len(topic.partitions) for topic in topics),
    }


def node(
    source: AdminSource, registration: NodeRegistration, replicas: int, leads: int, staying: Staying
) -> dict[str, Any]:
    """A registered node; `replicas` and `leads` count partitions."""
    me = registration.node == source.node_id
    return {
        "node": registration.node,
        # Above 2**53, where readers of JSON begin to round.
        "boot_id": str(registration.boot_id),
        "kafka_host": registration.kafka_host,
        "kafka_port": registration.kafka_port,
        "mesh_host": registration.mesh_host,
        "mesh_port": registration.mesh_port,
        "admin_port": registration.admin_port,
        "min_feature_level": registration.min_feature_level,
        "max_feature_level": registration.max_feature_level,
        "rack": registration.rack or None,
        "fenced": registration.fenced,
        "draining": registration.node in source.controller.machine.draining,
        "without_room": staying.without_room,
        "below_minimum": list(staying.below_minimum[:MOST_TOPICS]),
        "without_majority": list(staying.without_majority[:MOST_TOPICS]),
        "folder": _folder(source, registration.node),
        "connected": me or source.host.connected(registration.node),
        "controller_role": controller_role(source, registration.node),
        "replicas": replicas,
        "leads": leads,
    }


def controller_role(source: AdminSource, node: int) -> str:
    """The part of a node in the controller's group, as the answering node's log has it."""
    group = source.host.groups.get(CONTROLLER_GROUP)
    if group is None or node not in group.configuration.members:
        return "none"
    return "voter" if node in group.configuration.voters else "learner"


def _folder(source: AdminSource, node: int) -> str | None:
    known = source.controller.machine.folders.get(node)
    return None if known is None else f"{known.folder:016x}"


def topic(known: Topic) -> dict[str, Any]:
    """A topic without its partitions."""
    return {
        "name": known.name,
        "topic_id": topic_id_text(known.topic_id),
        "partition_count": len(known.partitions),
        "replication_factor": known.replication_factor,
        "configs": dict(known.configs),
        "creation_epoch": known.creation_epoch,
    }


def topic_partition(source: AdminSource, known: Topic, number: int) -> dict[str, Any]:
    """A partition's replicas and its leader, as known to this node."""
    placed = known.partitions[number]
    leader = source.leaders.leader_of(placed.group)
    return {
        "partition": number,
        "group": placed.group,
        "replicas": list(placed.replicas),
        "leader": None if leader is None else leader.node,
        "leader_epoch": None if leader is None else leader.term,
        "creation_epoch": placed.creation_epoch,
    }


def partition(source: AdminSource, replica: PartitionSource) -> dict[str, Any]:
    """This node's replica of a partition."""
    machine, fence = replica.machine, replica.fence
    leader = source.leaders.leader_of(replica.group.id)
    counters = fence.counters
    return {
        "topic": replica.topic,
        "partition": replica.number,
        "group": replica.group.id,
        "leads": replica.leads,
        "leader": None if leader is None else leader.node,
        "leader_epoch": machine.term,
        "start_offset": machine.start_offset,
        "high_watermark": machine.high_watermark,
        "window": _window(fence.window),
        "fences": {
            "slides": counters.slides,
            "new_epoch": counters.new_epoch_fences,
            "same_epoch": counters.same_epoch_fences,
            "rejections": counters.rejections,
            "last_gap": counters.last_gap,
        },
        "previous_applied_epoch": machine.previous_applied_epoch,
        "max_applied_epoch": machine.max_applied_epoch,
        "max_collectable_epoch": collectable_epoch(replica),
        "held_back_by": _held_back_by(replica),
        "last_reconciled_offset": machine.last_reconciled_offset,
        "last_reconciled_log_index": machine.last_reconciled_log_index,
        "extents": len(machine.extents),
        "level_zero_bytes": machine.extents.bytes,
        "inline": {
            "bytes": machine.extents.inline_bytes,
            "seconds": source.inline_storing.age(replica.group.id),
            "from_offset": machine.extents.first_inline_offset if machine.extents.inline_bytes else None,
        },
        "level_one": {
            "objects": len(machine.level_one),
            "bytes": machine.level_one.bytes,
            "removed_objects": len(machine.removed),
            "removed_bytes": sum(removed.size for removed in machine.removed),
        },
        "producers": len(machine.producers),
        "checkpoints": [
            {
                "index": checkpoint.log_index,
                "lease_until_ms": checkpoint.lease_until,
                "oldest_epoch": checkpoint.oldest_epoch,
            }
            for checkpoint in machine.checkpoints.retained
        ],
    }


def coordinator(source: AdminSource, replica: CoordinatorSource) -> dict[str, Any]:
    """This node's replica of a coordinator."""
    leader = source.leaders.leader_of(replica.group.id)
    return {
        "topic": replica.place.topic,
        "partition": replica.place.partition,
        "group": replica.group.id,
        "kind": replica.machine.kind,
        "leads": replica.leads,
        "leader": None if leader is None else leader.node,
        "leader_epoch": replica.machine.term,
        "keys": coordinated_keys(replica),
    }


def coordinated_keys(replica: CoordinatorSource) -> int:
    """Number of a coordinator's groups or transactional ids."""
    machine = replica.machine
    return len(machine.groups if isinstance(machine, GroupsMachine) else machine.transactions)


def group(replica: RaftGroup) -> dict[str, Any]:
    """A replica of a Raft group; see RaftGroup.status."""
    status = replica.status()
    status["pending_commands"] = len(replica.waiting)
    status["pending_bytes"] = replica.waiting_bytes
    status["followers"] = {str(peer): progress for peer, progress in status["followers"].items()}
    return status


def topic_id_text(topic_id: bytes) -> str:
    """A topic's id as Kafka's tools write it: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode()


def collectable_epoch(replica: PartitionSource) -> int:
    """M(p) as the leader tells it to others, reads under way included; elsewhere that of the state."""
    return replica.collectable_epoch if replica.leads else replica.machine.max_collectable_epoch


def _held_back_by(replica: PartitionSource) -> str:
    """The reason that holds M(p) back, as HeldBack names it."""
    machine = replica.machine
    if collectable_epoch(replica) < machine.max_collectable_epoch:
        return "reader"
    holds = {
        "checkpoint": machine.checkpoints.oldest_epoch(machine.time),
        "unreconciled": machine.extents.oldest_epoch,
        "idle": machine.previous_applied_epoch,
    }
    named = {what: epoch for what, epoch in holds.items() if epoch is not None}
    return min(named, key=lambda what: named[what])


def _window(window: EpochWindow | None) -> dict[str, Any] | None:
    if window is None:
        return None
    return {"term": window.term, "oldest": window.oldest, "newest": window.newest, "size": window.size}
