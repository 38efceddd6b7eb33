"""Ends transactions in the partitions and coordinators that this node leads, for transaction coordinators.

The mesh method `transactions.markers`. A coordinator repeats each decision until its end is confirmed, so an
answer claims no more than is known for certain: done means applied from a majority's log, or that the log has
ended a transaction of this number before.
"""

from __future__ import annotations

import asyncio
from enum import IntEnum
from typing import Any, Final, NamedTuple, Protocol

from strandline.node.controller.client import ControllerClient
from strandline.node.refusal import Refusal
from strandline.node.rpc import CallFailed, MeshCalls

METHOD: Final = "transactions.markers"
MAX_MARKERS: Final = 500
"""Markers of one call."""
ANSWER_SECONDS: Final = 0.5
"""Time limit of a call for its markers. The marker of a partition without a majority may wait for as long as
that lasts. The coordinator has to get the results of the others, and needs its calls for healthy
partitions."""
MAX_PRODUCER_EPOCH: Final = 2**15 - 1


class Marker(NamedTuple):
    """The outcome of a producer's transaction, for one partition or group coordinator."""

    raft_group: int
    producer_id: int
    producer_epoch: int
    number: int
    """Of the transaction."""
    commit: bool
    coordinator_term: int


class MarkerAnswer(IntEnum):
    """Result of one marker."""

    DONE = 0
    """The transaction is ended there, now or before."""
    AGAIN = 1
    """This node does not lead that group, or does not know the marker's outcome."""
    GONE = 2
    """The topic was deleted: the marker is not needed any more."""


class TransactionalReplica(Protocol):
    """A possible part of a transaction: a partition of records, or a coordinator of groups."""

    async def end_transaction(
        self, producer_id: int, epoch: int, number: int, commit: bool, coordinator_term: int, /
    ) -> Any:
        """Put a transaction's marker into the log."""


class PartitionReplicas(Protocol):
    """The partitions this node has a replica of."""

    def by_group(self, group: int) -> TransactionalReplica | None: ...


class GroupCoordinators(Protocol):
    """The coordinators of groups that this node leads."""

    def groups_by_raft_group(self, group: int) -> TransactionalReplica | None: ...


class MarkerContext(Protocol):
    """The node, as this module needs it; the broker satisfies it as it is."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    @property
    def calls(self) -> MeshCalls: ...
    @property
    def controller(self) -> ControllerClient: ...
    @property
    def partitions(self) -> PartitionReplicas: ...
    @property
    def coordinators(self) -> GroupCoordinators: ...


def serve(context: MarkerContext) -> None:
    """Answer the other nodes' coordinators, and this one's own."""
    ends: dict[Marker, asyncio.Task[MarkerAnswer]] = {}
    """On their way into a log. A marker that is said again meanwhile is not written again."""

    def end(marker: Marker) -> asyncio.Task[MarkerAnswer]:
        task = ends.get(marker)
        if task is None:
            task = ends[marker] = context.loop.create_task(_end(context, marker))
            task.add_done_callback(lambda _: ends.pop(marker))
        return task

    async def handler(peer: int, payload: Any) -> list[int]:
        asked = [end(marker) for marker in _markers(payload)]
        if asked:
            await asyncio.wait(asked, timeout=ANSWER_SECONDS)
        return [int(one.result() if one.done() else MarkerAnswer.AGAIN) for one in asked]

    context.calls.serve(METHOD, handler)


def _markers(payload: Any) -> list[Marker]:
    if not isinstance(payload, list) or len(payload) > MAX_MARKERS:
        raise CallFailed(f"{METHOD} takes a list of up to {MAX_MARKERS} markers", unknown=False)
    markers = []
    for fields in payload:
        kinds = [type(field) for field in fields] if isinstance(fields, list) else []
        if kinds != [int, int, int, int, bool, int]:
            raise CallFailed(f"{fields!r} is not a marker", unknown=False)
        marker = Marker(*fields)
        epoch, term = marker.producer_epoch, marker.coordinator_term
        if marker.producer_id < 0 or not 0 <= epoch <= MAX_PRODUCER_EPOCH or marker.number < 1 or term < 0:
            # No replica would survive it in its log.
            raise CallFailed(f"{marker} cannot be", unknown=False)
        markers.append(marker)
    return markers


async def _end(context: MarkerContext, marker: Marker) -> MarkerAnswer:
    group = marker.raft_group
    partition = context.partitions.by_group(group)
    if partition is not None:
        outcome = await partition.end_transaction(*marker[1:])
        return MarkerAnswer.AGAIN if isinstance(outcome, Refusal) else MarkerAnswer.DONE
    coordinator = context.coordinators.groups_by_raft_group(group)
    if coordinator is not None:
        ended = await coordinator.end_transaction(*marker[1:])
        return MarkerAnswer.DONE if isinstance(ended, bool) else MarkerAnswer.AGAIN
    return MarkerAnswer.GONE if context.controller.machine.group_is_gone(group) else MarkerAnswer.AGAIN
