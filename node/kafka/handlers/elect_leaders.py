"""ElectLeaders: a partition's leadership goes back to its preferred replica.

Raft elects by itself, and never uncleanly, so only the preferred election is left for this request. The
leader of each partition hands over to the first of its replicas, without a gap in acknowledged records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from strandline.node.kafka.handlers.authorization import CLUSTER_REFUSED, NO_CLUSTER, may_with_cluster
from strandline.node.kafka.handlers.cluster_changes import poll_until
from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.deadlines import NO_THROTTLE, deadline_after
from strandline.node.kafka.handlers.failure import Failure
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.response_types import ResponseTypes
from strandline.node.rpc import CallFailed, MeshCalls
from strandline.statemachine.controller.acl import Operation
from strandline.statemachine.controller.controller_state import PartitionAssignment

METHOD: Final = "hand_over"
PREFERRED: Final = 0
UNCLEAN: Final = 1
HANDED_OVER_AT_ONCE: Final = 100
"""Partitions that change their leader at the same time; each is without one for an election."""

_DONE: Final = Failure(ErrorCode.none, None)
_NOT_NEEDED: Final = Failure(ErrorCode.election_not_needed, "Leader election not needed for topic partition.")
_UNAVAILABLE: Final = Failure(
    ErrorCode.preferred_leader_not_available, "The preferred leader was not available."
)
_NEVER_UNCLEAN: Final = Failure(
    ErrorCode.eligible_leaders_not_available,
    "Most replicas are out of reach, and no leader is elected without them: it would lose records.",
)


class _Move(NamedTuple):
    topic: str
    partition: int
    group: int
    leader: int
    preferred: int


def serve(context: BrokerContext) -> None:
    """Answer the other nodes' calls to hand over what this one leads; once, before the mesh is up."""

    async def hand_over(_peer: int, payload: Any) -> list[bool]:
        return [_hand_over(context, int(group), int(target)) for group, target in payload]

    calls: MeshCalls = context.calls
    calls.serve(METHOD, hand_over)


def _hand_over(context: BrokerContext, group: int, target: int) -> bool:
    replica = context.partitions.by_group(group) or context.coordinators.by_group(group)
    return replica is not None and replica.group.transfer(target)


async def elect_leaders(context: BrokerContext, request: Request, a: ResponseTypes) -> Any:
    """Answers when the preferred leaders lead, or with an error for each that does not by the deadline."""
    payload = request.payload
    deadline = deadline_after(context, payload.timeout)
    kind = getattr(payload, "election_type", PREFERRED)
    results: dict[str, dict[int, Failure]] = {}
    code = ErrorCode.none if kind in (PREFERRED, UNCLEAN) else ErrorCode.invalid_request
    if not may_with_cluster(context, request, Operation.ALTER):
        code = CLUSTER_REFUSED
        results = {
            one.topic: dict.fromkeys(one.partitions, NO_CLUSTER) for one in payload.topic_partitions or ()
        }
    elif code is ErrorCode.none:
        results = await _elect(context, payload.topic_partitions, kind, deadline)
    return a.ElectLeadersResponse(
        throttle_time=NO_THROTTLE,
        error_code=code,
        replica_election_results=tuple(
            a.ReplicaElectionResult(
                topic=topic,
                partition_result=tuple(
                    a.PartitionResult(
                        partition_id=number, error_code=result.code, error_message=result.message
                    )
                    for number, result in partitions.items()
                ),
            )
            for topic, partitions in results.items()
        ),
    )


async def _elect(
    context: BrokerContext, asked: Any, kind: int, deadline: float
) -> dict[str, dict[int, Failure]]:
    machine = context.controller.machine
    if asked is None:
        wanted = [(topic.name, number) for topic in machine.topics for number in range(len(topic.partitions))]
    else:
        wanted = [(one.topic, number) for one in asked for number in one.partitions]
    results: dict[str, dict[int, Failure]] = {}
    moves: dict[int, _Move] = {}
    for name, number in wanted:
        found = _move_for(context, name, number, kind)
        if isinstance(found, _Move):
            moves[found.group] = found
            found = _UNAVAILABLE
        elif asked is None and found is _NOT_NEEDED:
            continue  # The answer for "all partitions" has those that had to move only, as in Kafka.
        results.setdefault(name, {})[number] = found
    pending = list(moves.values())
    for first in range(0, len(pending), HANDED_OVER_AT_ONCE):
        for move, result in await _moved(context, pending[first : first + HANDED_OVER_AT_ONCE], deadline):
            results[move.topic][move.partition] = result
    return results


def _move_for(context: BrokerContext, name: str, number: int, kind: int) -> _Move | Failure:
    machine = context.controller.machine
    topic = machine.topic(name)
    if topic is None:
        return Failure(ErrorCode.unknown_topic_or_partition, f"No such topic as {name}")
    partition: PartitionAssignment | None = machine.partition(topic.topic_id, number)
    if partition is None:
        return Failure(ErrorCode.unknown_topic_or_partition, f"No such partition as {name}-{number}")
    leader, preferred = context.leaders.leader_of(partition.group), partition.replicas[0]
    if kind == UNCLEAN:
        return _NEVER_UNCLEAN if leader is None else _NOT_NEEDED
    if leader is not None and leader.node == preferred:
        return _NOT_NEEDED
    registration = machine.nodes.get(preferred)
    if leader is None or registration is None or registration.fenced:
        return _UNAVAILABLE
    return _Move(name, number, partition.group, leader.node, preferred)


async def _moved(
    context: BrokerContext, moves: Sequence[_Move], deadline: float
) -> list[tuple[_Move, Failure]]:
    """Ask the leaders, one call for each node, then wait until the moves that were begun are over."""
    results: list[tuple[_Move, Failure]] = []
    begun: list[_Move] = []
    by_leader: dict[int, list[_Move]] = {}
    for move in moves:
        by_leader.setdefault(move.leader, []).append(move)
    for leader, own in by_leader.items():
        left = max(deadline - context.loop.time(), 0.0)
        payload = [[move.group, move.preferred] for move in own]
        try:
            answers: Sequence[bool] = await context.calls.call(leader, METHOD, payload, left)
        except CallFailed as failed:
            if failed.unknown:
                begun += own  # It may have been carried out: the leaders in the end will show it.
                continue
            answers = [False] * len(own)
        for move, started in zip(own, answers, strict=True):
            if started:
                begun.append(move)
            else:
                results.append((move, _UNAVAILABLE))

    def over() -> bool:
        return all(_leads(context, move) for move in begun)

    await poll_until(context, deadline, over)
    late = Failure(ErrorCode.request_timed_out, "The preferred leader did not take over in time; it may yet.")
    return results + [(move, _DONE if _leads(context, move) else late) for move in begun]


def _leads(context: BrokerContext, move: _Move) -> bool:
    leader = context.leaders.leader_of(move.group)
    return leader is not None and leader.node == move.preferred
