"""DescribeQuorum (KIP-595, KIP-836, KIP-853): the controller's group, for `kafka-metadata-quorum describe`.

Any node is asked, and the group's leader knows, so the node asks it. Offsets are log indices plus one: as in
Kafka, an end is the offset of the next entry.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from strandline.node.kafka.handlers.authorization import NO_CLUSTER, may_with_cluster
from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.response_types import ResponseTypes
from strandline.node.raft.group import RaftGroup
from strandline.node.raft.rules.progress import NEVER
from strandline.node.rpc import CallFailed, MeshCalls
from strandline.statemachine.controller.acl import Operation

METHOD: Final = "quorum"
TOPIC: Final = "__cluster_metadata"
"""Kafka's name of the controller's log."""
LISTENER: Final = "MESH"
"""The listener by which the controller's nodes reach each other. Java clients insist on capitals here."""
SECONDS: Final = 3.0
_UNKNOWN: Final = -1
_NO_LEADER: Final = "The controller has no leader that answers: see `strandline cluster status`."


class _Replica(NamedTuple):
    node: int
    folder: int
    end: int
    answered_ms: int
    """When it last answered the leader; -1 for the leader, and for a node that has not answered it yet."""
    level_ms: int
    """When it last had all that the leader has, as far as the last answer says; -1 if it lacks something."""


class _Quorum(NamedTuple):
    leader: int
    term: int
    high_watermark: int
    voters: list[_Replica]
    learners: list[_Replica]


def serve(context: BrokerContext) -> None:
    """Answer the other nodes while this one leads the controller; once, before the mesh is up."""

    async def quorum(_peer: int, _payload: Any) -> _Quorum | None:
        return _seen_by(context, context.controller.group)

    calls: MeshCalls = context.calls
    calls.serve(METHOD, quorum)


def _seen_by(context: BrokerContext, group: RaftGroup | None) -> _Quorum | None:
    if group is None or not group.is_ready:
        return None
    members = group.configuration
    voters, learners = (
        [_replica(context, group, node) for node in nodes] for nodes in (members.voters, members.learners)
    )
    return _Quorum(context.node_id, group.term, group.commit + 1, voters, learners)


def _replica(context: BrokerContext, group: RaftGroup, node: int) -> _Replica:
    now, folder = context.wall_ms(), group.host.folder_of(node)
    if node == context.node_id:
        return _Replica(node, folder, group.journal.last + 1, _UNKNOWN, now)
    answered = group.lease.acked_at(node)
    progress = group.progress.get(node)
    if answered == NEVER or progress is None:
        return _Replica(node, folder, _UNKNOWN, _UNKNOWN, _UNKNOWN)
    answered_ms = now - round((group.host.now() - answered) * 1000)
    level = answered_ms if progress.match == group.journal.last else _UNKNOWN
    return _Replica(node, folder, progress.match + 1, answered_ms, level)


async def describe_quorum(context: BrokerContext, request: Request, a: ResponseTypes) -> Any:
    """The voters and learners as the leader sees them; a refusal that clients repeat while there is none."""
    if not may_with_cluster(context, request, Operation.DESCRIBE):
        return _answer(a, NO_CLUSTER.code, NO_CLUSTER.message, ())
    asked = [
        (topic.topic_name, [one.partition_index for one in topic.partitions])
        for topic in request.payload.topics
    ]
    if asked != [(TOPIC, [0])]:
        refused = tuple(
            _topic(a, name, numbers, ErrorCode.unknown_topic_or_partition) for name, numbers in asked
        )
        return _answer(a, ErrorCode.none, None, refused)
    quorum = await _ask_leader(context)
    if quorum is None:
        return _answer(a, ErrorCode.not_leader_or_follower, _NO_LEADER, ())
    return _answer(
        a, ErrorCode.none, None, (_topic(a, TOPIC, [0], ErrorCode.none, quorum),), _nodes(context, a, quorum)
    )


async def _ask_leader(context: BrokerContext) -> _Quorum | None:
    leader = context.controller.leader
    if leader is None:
        return None
    try:
        told = await context.calls.call(leader, METHOD, None, SECONDS)
    except CallFailed:
        return None
    if told is None:
        return None
    leader, term, high_watermark, voters, learners = told
    return _Quorum(
        leader, term, high_watermark, [_Replica(*one) for one in voters], [_Replica(*one) for one in learners]
    )


def _answer(a: ResponseTypes, code: ErrorCode, message: str | None, topics: Any, nodes: Any = ()) -> Any:
    return a.DescribeQuorumResponse(error_code=code, error_message=message, topics=topics, nodes=nodes)


def _topic(
    a: ResponseTypes, name: str, numbers: list[int], code: ErrorCode, quorum: _Quorum | None = None
) -> Any:
    known = quorum or _Quorum(_UNKNOWN, 0, _UNKNOWN, [], [])
    partitions = tuple(
        a.PartitionData(
            partition_index=number,
            error_code=code,
            error_message=None,
            leader_id=known.leader,
            leader_epoch=known.term,
            high_watermark=known.high_watermark,
            current_voters=tuple(_row(a, one) for one in known.voters),
            observers=tuple(_row(a, one) for one in known.learners),
        )
        for number in numbers
    )
    return a.TopicData(topic_name=name, partitions=partitions)


def _row(a: ResponseTypes, replica: _Replica) -> Any:
    return a.ReplicaState(
        replica_id=replica.node,
        replica_directory_id=UUID(int=replica.folder) if replica.folder else None,
        log_end_offset=replica.end,
        last_fetch_timestamp=replica.answered_ms,
        last_caught_up_timestamp=replica.level_ms,
    )


def _nodes(context: BrokerContext, a: ResponseTypes, quorum: _Quorum) -> Any:
    registered = context.controller.machine.nodes
    members = [one.node for one in (*quorum.voters, *quorum.learners) if one.node in registered]
    return tuple(
        a.Node(
            node_id=node,
            listeners=(
                a.Listener(name=LISTENER, host=registered[node].mesh_host, port=registered[node].mesh_port),
            ),
        )
        for node in members
    )
