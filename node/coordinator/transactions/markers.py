"""Sends the markers of prepared transactions to every partition and group in them, for as long as it takes.

A transaction is decided once it is prepared; from then on it must not stay open anywhere, even if nodes are
down. So each marker is sent, with pauses in between, until its partition or group confirms it; the node that
leads the coordinator at the time sends it. A marker that arrived before is ignored, so sending it again does
no harm.

Markers for one node are sent together: those of all transactions that were decided during the calls before.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from strandline.node.coordinator.context import CoordinatorContext
from strandline.node.partition.transaction_markers import MAX_MARKERS, METHOD, Marker, MarkerAnswer
from strandline.node.refusal import Refusal
from strandline.node.rpc import CallFailed
from strandline.statemachine.transactions.transaction_commands import TopicPartition
from strandline.statemachine.transactions.transaction_state import PREPARED, Transaction

log = logging.getLogger(__name__)

CALLS_AT_ONCE: Final = 4
"""Calls to one node without an answer yet."""
CALL_SECONDS: Final = 5.0
FIRST_PAUSE_SECONDS: Final = 0.02
LAST_PAUSE_SECONDS: Final = 1.0
REROUTE_SECONDS: Final = 0.05
"""Delay between a change of leaders and the search for markers that wait for the wrong node."""
CATCH_UP_SECONDS: Final = 3.0

Place = TopicPartition | str
"""A partition, or the id of a consumer group."""


class PreparedEnd(NamedTuple):
    """A prepared transaction, with the data that every partition and group in it gets."""

    producer_id: int
    producer_epoch: int
    number: int
    commit: bool
    places: tuple[Place, ...]


def prepared_end(transaction: Transaction) -> PreparedEnd:
    """The data of a prepared transaction's markers: a copy, as its row in the state soon changes."""
    assert transaction.state in PREPARED
    return PreparedEnd(
        transaction.marker_producer_id,
        transaction.marker_epoch,
        transaction.number,
        transaction.commits,
        (*transaction.partitions, *transaction.groups),
    )


class Markers:
    """The markers that one leadership of a coordinator sends. Belongs to the context's loop."""

    def __init__(self, context: CoordinatorContext, coordinator_term: int) -> None:
        self._context = context
        self._term = coordinator_term
        self._outboxes: dict[int, _Outbox] = {}
        """By node."""
        self._timer: asyncio.TimerHandle | None = None
        self._stop_watching = context.leaders.on_change(self._leaders_changed)

    def close(self) -> None:
        """Send nothing more."""
        self._stop_watching()
        if self._timer is not None:
            self._timer.cancel()
        for outbox in self._outboxes.values():
            outbox.close()

    def _leaders_changed(self) -> None:
        """Soon, and for all of them together: a node that hangs loses its leaderships one after the other."""
        if self._timer is None and self._outboxes:
            self._timer = self._context.loop.call_later(REROUTE_SECONDS, self._reroute)

    def _reroute(self) -> None:
        self._timer = None
        for outbox in self._outboxes.values():
            outbox.let_go()

    async def deliver(self, end: PreparedEnd) -> None:
        """Return once every place has its marker, or is gone; until then, never.

        Each partition has rounds of its own: one that cannot be reached holds up no other. The groups have
        theirs together, as one marker is for all that have the same coordinator, and so have partitions that
        are unknown here, as one question to the controller is for all of them.
        """
        machine = self._context.controller.machine
        rounds: list[tuple[Place, ...]] = []
        groups: list[Place] = []
        unknown: list[Place] = []
        for place in end.places:
            if isinstance(place, str):
                groups.append(place)
            elif machine.partition(*place) is None:
                unknown.append(place)
            else:
                rounds.append((place,))
        rounds += [tuple(places) for places in (groups, unknown) if places]
        await asyncio.gather(*(self._deliver(end, places) for places in rounds))

    async def _deliver(self, end: PreparedEnd, places: tuple[Place, ...]) -> None:
        pause = FIRST_PAUSE_SECONDS
        while places := await self._round(end, places):
            await asyncio.sleep(pause)
            pause = min(2 * pause, LAST_PAUSE_SECONDS)

    async def _round(self, end: PreparedEnd, places: tuple[Place, ...]) -> tuple[Place, ...]:
        """Send to each place once; those that are still without it.

        What is known is sent before anything is waited for: a topic that is gone holds up no other.
        """
        machine = self._context.controller.machine
        sent: list[tuple[list[Place], asyncio.Future[int]]] = []
        unknown: list[TopicPartition] = []
        groups: list[str] = []
        for place in places:
            if isinstance(place, str):
                groups.append(place)
            elif (partition := machine.partition(*place)) is None:
                unknown.append(place)
            else:
                sent.append(([place], self._post(partition.group, end)))
        left: list[Place] = []
        coordinated, nowhere = await self._coordinators(groups)
        left += nowhere
        sent += [(list(there), self._post(group, end)) for group, there in coordinated.items()]
        if unknown:
            left += await self._not_gone(unknown)
        for there, answer in sent:
            if await answer not in (MarkerAnswer.DONE, MarkerAnswer.GONE):
                left += there
        return tuple(left)

    async def _coordinators(self, groups: list[str]) -> tuple[dict[int, list[str]], list[str]]:
        """Consumer groups by their coordinator's Raft group, as one marker is for all its groups; and the
        groups whose coordinator is not known now."""
        found: dict[int, list[str]] = {}
        for position, group in enumerate(groups):
            place = await self._context.coordinators.group_place(group)
            if isinstance(place, Refusal):
                return found, groups[position:]
            found.setdefault(place.raft_group, []).append(group)
        return found, []

    async def _not_gone(self, unknown: list[TopicPartition]) -> list[TopicPartition]:
        """Of partitions that this node does not know those that may be there all the same.

        They were there when they were added. This node's replica of the controller may be behind; only once
        it is not is it certain that their topics were deleted.
        """
        controller = self._context.controller
        if not await controller.catch_up(CATCH_UP_SECONDS):
            return unknown
        return [place for place in unknown if controller.machine.partition(*place) is not None]

    def _post(self, group: int, end: PreparedEnd) -> asyncio.Future[int]:
        leader = self._context.leaders.leader_of(group)
        if leader is None:
            answer: asyncio.Future[int] = self._context.loop.create_future()
            answer.set_result(MarkerAnswer.AGAIN)
            return answer
        outbox = self._outboxes.get(leader.node)
        if outbox is None:
            outbox = self._outboxes[leader.node] = _Outbox(self._context, leader.node)
        return outbox.post(Marker(group, *end[:4], self._term))


_Posted = tuple[Marker, "asyncio.Future[int]"]


class _Outbox:
    """Markers that are being sent to one node."""

    def __init__(self, context: CoordinatorContext, node: int) -> None:
        self._context = context
        self._node = node
        self._waiting: deque[_Posted] = deque()
        self._turn: asyncio.Handle | None = None
        self._calls: dict[asyncio.Task[None], list[_Posted]] = {}
        self._closed = False

    def post(self, marker: Marker) -> asyncio.Future[int]:
        """The answer to one marker; markers posted in the same turn of the loop share a call."""
        answer: asyncio.Future[int] = self._context.loop.create_future()
        self._waiting.append((marker, answer))
        if self._turn is None and not self._closed:
            self._turn = self._context.loop.call_soon(self._flush)
        return answer

    def let_go(self) -> None:
        """Answer AGAIN to markers that wait here, or in a call, for a partition that this node leads no more:
        they go to the new leader. This node may hang, and a call to it ends only after seconds."""
        here: dict[int, bool] = {}
        kept: deque[_Posted] = deque()
        for posted in (self._waiting, *self._calls.values()):
            for marker, answer in posted:
                group = marker.raft_group
                if group not in here:
                    leader = self._context.leaders.leader_of(group)
                    here[group] = leader is not None and leader.node == self._node
                if not here[group]:
                    if not answer.done():
                        answer.set_result(MarkerAnswer.AGAIN)
                elif posted is self._waiting:
                    kept.append((marker, answer))
        self._waiting = kept

    def close(self) -> None:
        self._closed = True
        if self._turn is not None:
            self._turn.cancel()
        for call in self._calls:
            call.cancel()

    def _flush(self) -> None:
        self._turn = None
        while self._waiting and len(self._calls) < CALLS_AT_ONCE and not self._closed:
            posted = [self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_MARKERS))]
            call = self._context.loop.create_task(self._call(posted))
            self._calls[call] = posted
            call.add_done_callback(self._called)

    def _called(self, call: asyncio.Task[None]) -> None:
        del self._calls[call]
        if not call.cancelled() and (error := call.exception()) is not None:
            log.error("markers for node %d: %r", self._node, error)
        self._flush()

    async def _call(self, posted: list[_Posted]) -> None:
        answers: Sequence[int] = ()
        try:
            markers = [list(marker) for marker, _ in posted]
            given = await self._context.calls.call(self._node, METHOD, markers, CALL_SECONDS)
            if isinstance(given, list | tuple) and len(given) == len(posted):
                answers = given
        except CallFailed as failed:
            # It may have arrived: sending it again does no harm.
            log.debug("markers for node %d: %s", self._node, failed)
        finally:
            for (_, waiting), answer in zip(
                posted, answers or [MarkerAnswer.AGAIN] * len(posted), strict=True
            ):
                if not waiting.done():
                    waiting.set_result(answer)
