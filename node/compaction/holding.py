"""Holds for readers that keep a state of their own: any node is asked, each partition's leader gives them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from strandline.node.controller.client import ControllerClient
from strandline.node.controller.leaders import LeaderTable
from strandline.node.rpc import CallFailed, MeshCalls
from strandline.statemachine.controller.controller_state import Topic
from strandline.statemachine.partition.holds import MAX_HOLD_MS, MAX_READER_BYTES
from strandline.statemachine.partition.partition import PartitionStateMachine
from strandline.statemachine.partition.partition_commands import (
    HoldReleased,
    HoldRenewed,
    ReleaseHold,
    RenewHold,
)
from strandline.statemachine.partition.rejection import Rejected, Rejection

METHOD: Final = "compaction.hold"
CALL_SECONDS: Final = 5.0
"""Time limit for the answer of one partition's leader."""
AT_ONCE: Final = 64
"""Partitions that are asked at a time."""
ATTEMPTS: Final = 3
"""Of a first hold: level one's end may pass where it was to begin, before its entry is applied."""
_RELEASE: Final = 0
"""In place of a lease."""
_REASONS: Final = {
    Rejection.HOLD_ABOVE_THE_END: "the partition ends at {}",
    Rejection.TOO_MANY_HOLDS: "{} readers hold it already: let one release its hold",
}


@dataclass(frozen=True, slots=True)
class PartitionHold:
    """A reader's hold of one partition, or why there is none."""

    partition: int
    offset: int | None
    """Held from here on; null: it is not held."""
    until_ms: int | None
    """Unix milliseconds, in the partition's time."""
    lowest: int | None = None
    """The lowest offset that can be held, if what was asked for lies below: that hold is lost."""
    error: str | None = None


class Replica(Protocol):
    """A partition's replica here."""

    @property
    def machine(self) -> PartitionStateMachine: ...
    @property
    def leads(self) -> bool: ...
    async def execute(self, command: RenewHold | ReleaseHold, /) -> Any: ...


class Replicas(Protocol):
    """The replicas here."""

    def by_group(self, group: int, /) -> Replica | None: ...


class HoldingContext(Protocol):
    """A node, as holds need it; the broker satisfies it as it is."""

    calls: MeshCalls
    controller: ControllerClient
    leaders: LeaderTable

    @property
    def partitions(self) -> Replicas: ...


class Holding:
    """One per node; also answers others' calls for the partitions that are led here."""

    def __init__(self, context: HoldingContext) -> None:
        self._context = context
        context.calls.serve(METHOD, self._serve)

    async def hold(
        self, topic: Topic, reader: str, offsets: Mapping[int, int | None], lease_ms: int
    ) -> list[PartitionHold]:
        """Renew a reader's hold of some partitions for `lease_ms`, each from an offset on.

        In place of an offset None renews the hold that the reader has; without one it begins at the last
        stable offset, or higher, where the partition can be held.
        """
        return await self._each(topic, reader, offsets, lease_ms)

    async def release(self, topic: Topic, reader: str, partitions: Sequence[int]) -> list[PartitionHold]:
        """End a reader's hold of some partitions, if it has any."""
        return await self._each(topic, reader, dict.fromkeys(partitions), _RELEASE)

    async def _each(
        self, topic: Topic, reader: str, offsets: Mapping[int, int | None], lease_ms: int
    ) -> list[PartitionHold]:
        allowed = asyncio.Semaphore(AT_ONCE)

        async def one(number: int, offset: int | None) -> PartitionHold:
            async with allowed:
                return await self._ask(number, topic.partitions[number].group, [reader, offset, lease_ms])

        return await asyncio.gather(*(one(number, offsets[number]) for number in sorted(offsets)))

    async def _ask(self, number: int, group: int, fields: list[Any]) -> PartitionHold:
        leader = self._context.leaders.leader_of(group)
        if leader is None:
            error = "no leader is known: a majority of its replicas is down, or cannot be reached"
            return PartitionHold(number, None, None, error=error)
        try:
            answer = await self._context.calls.call(leader.node, METHOD, [group, *fields], CALL_SECONDS)
        except CallFailed as failed:
            answer = failed.reason
        match answer:
            case [offset, until, lowest, error]:
                return PartitionHold(number, offset, until, lowest, error)
        return PartitionHold(number, None, None, error=f"node {leader.node}, its leader: {answer}")

    async def _serve(self, peer: int, payload: Any) -> list[int | str | None] | str:
        """The fields of the answer for a partition that is led here, or one line why there are none."""
        match payload:
            case [int(group), str(reader), int() | None as offset, int(lease_ms)] if (
                0 < len(reader.encode()) <= MAX_READER_BYTES
                and 0 <= lease_ms <= MAX_HOLD_MS
                and (offset is None or offset >= 0)
            ):
                replica = self._context.partitions.by_group(group)
            case _:
                raise CallFailed("that is not a group, reader, offset and lease", unknown=False)
        if replica is None or not replica.leads:
            return "it does not lead the partition any more: ask again"
        if lease_ms == _RELEASE:
            result = await replica.execute(ReleaseHold(reader))
        else:
            present = replica.machine.holds.get(reader)
            if offset is None and present is not None:
                offset = present.offset
            if offset is None:
                result = await _begin(replica, reader, lease_ms)
            else:
                result = await replica.execute(RenewHold(reader, offset, lease_ms))
        match result:
            case HoldReleased():
                return [None, None, None, None]
            case HoldRenewed():
                return [result.offset, result.until, None, None]
            case Rejected(Rejection.HOLD_TOO_LOW, lowest):
                return [None, None, lowest, None]
            case Rejected(reason, current) if reason in _REASONS:
                return [None, None, None, _REASONS[reason].format(current)]
        return getattr(result, "message", None) or str(result)


async def _begin(replica: Replica, reader: str, lease_ms: int) -> Any:
    """Hold what comes after the last stable offset: no reader of decided records has come further."""
    machine = replica.machine
    for _ in range(ATTEMPTS):
        begin = max(machine.last_stable_offset, machine.lowest_holdable)
        result = await replica.execute(RenewHold(reader, begin, lease_ms))
        if not (isinstance(result, Rejected) and result.reason is Rejection.HOLD_TOO_LOW):
            break
    return result
