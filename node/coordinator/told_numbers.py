"""Tells the leaders of partitions the number of a transaction as soon as they are in it.

A batch needs the number of its transaction (`verification.py`), and older clients add a partition before
they write to it. So the coordinator's node tells the number to the partition's leader, which then need not
ask when the batch comes. It is told once the entry is applied that adds the partition: what is told is what
an answer to the leader's question would have been at that time. Nothing relies on it: a number that gets lost
is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from strandline.node.coordinator.context import CoordinatorContext
from strandline.node.partition.batch import Verified
from strandline.node.rpc import CallFailed

TOLD: Final = "transactions.told"
KEPT_SECONDS: Final = 5.0
"""A number is used within this time or not at all: as long as the answer to a question may take. Partitions
remember for longer which numbers have ended."""
MAX_KEPT: Final = 16_384
"""Numbers that are kept at a time; the oldest go."""

_Place = tuple[int, int, bytes, int]
"""Producer id and epoch, topic id and partition."""


class ToldNumbers:
    """The numbers that one node tells, and those that it was told. Belongs to the context's loop."""

    def __init__(self, context: CoordinatorContext) -> None:
        self._context = context
        self._kept: dict[_Place, tuple[int, float]] = {}
        """The number, and the loop's time at which it was told; in that order."""
        context.calls.serve(TOLD, self._was_told)

    def __len__(self) -> int:
        return len(self._kept)

    def tell(
        self, producer_id: int, epoch: int, number: int, partitions: Sequence[tuple[bytes, int]]
    ) -> None:
        """Tell the partitions' leaders that the partitions are in the open transaction of this number."""
        machine, leaders = self._context.controller.machine, self._context.leaders
        by_leader: dict[int, list[tuple[bytes, int]]] = {}
        for place in partitions:
            partition = machine.partition(*place)
            leader = None if partition is None else leaders.leader_of(partition.group)
            if leader is not None:
                by_leader.setdefault(leader.node, []).append(place)
        for node, places in by_leader.items():
            self._context.calls.tell(node, TOLD, [producer_id, epoch, number, [[*one] for one in places]])

    def take(self, producer_id: int, epoch: int, partition: tuple[bytes, int]) -> Verified | None:
        """The number that was told for a producer's next batch in a partition (topic id, number), once."""
        number, at = self._kept.pop((producer_id, epoch, *partition), (0, 0.0))
        fresh = number and self._context.loop.time() - at <= KEPT_SECONDS
        return Verified(number) if fresh else None

    async def _was_told(self, peer: int, payload: Any) -> None:
        producer_id, epoch, number, places = _checked(payload)
        now, kept = self._context.loop.time(), self._kept
        for topic_id, partition in places:
            place = (producer_id, epoch, topic_id, partition)
            kept.pop(place, None)
            kept[place] = (number, now)
        while kept and (len(kept) > MAX_KEPT or now - kept[next(iter(kept))][1] > KEPT_SECONDS):
            del kept[next(iter(kept))]


def _checked(payload: Any) -> tuple[int, int, int, list[tuple[bytes, int]]]:
    if isinstance(payload, list) and len(payload) == 4 and isinstance(payload[3], list):
        *numbers, places = payload
        fits = [*map(type, numbers)] == [int] * 3 and all(map(_is_place, places))
        # A transaction's number below 1 would stop every replica, in the log.
        if fits and numbers[2] >= 1:
            return numbers[0], numbers[1], numbers[2], [(topic_id, number) for topic_id, number in places]
    raise CallFailed(f"{TOLD} takes a producer id, an epoch, a number and partitions", unknown=False)


def _is_place(given: Any) -> bool:
    return isinstance(given, list) and [*map(type, given)] == [bytes, int]
