"""Renews the leases of checkpoints, for a job that still reads the objects they name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from strandline.node.checkpoints.context import CheckpointContext
from strandline.node.checkpoints.rounds import CALL_SECONDS, rounds
from strandline.node.rpc import CallFailed
from strandline.statemachine.internal_topics import INTERNAL_TOPICS
from strandline.statemachine.partition.partition_commands import CheckpointTaken, RenewCheckpoint
from strandline.statemachine.partition.rejection import Rejected, Rejection

METHOD: Final = "checkpoint.renew"
_ENDED: Final = "its lease has ended, and what it names may be gone"
_GONE: Final = "no partition has this group: its topic was deleted"
_COORDINATOR: Final = "it is a coordinator's, which has no lease: nothing that it names lies elsewhere"


@dataclass(frozen=True, slots=True)
class RenewedLease:
    """One checkpoint's lease. Without `lease_until_ms`, Unix ms, it was not renewed, and `error` says why."""

    group: int
    index: int
    lease_until_ms: int | None
    ended: bool
    """Whether the lease has ended for good."""
    error: str | None


@dataclass(frozen=True, slots=True)
class RenewalReport:
    """Result for each lease, in the requested order."""

    checkpoints: tuple[RenewedLease, ...]

    @property
    def complete(self) -> bool:
        """Every lease goes on."""
        return all(lease.lease_until_ms is not None for lease in self.checkpoints)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"complete": self.complete, **asdict(self)}


@dataclass(slots=True)
class _Lease:
    group: int
    index: int
    until: int | None = None
    ended: bool = False
    error: str | None = "the time was over before there was an answer"


class Renewals:
    """One per node; also renews, at others' calls, for the groups that are led here."""

    def __init__(self, context: CheckpointContext) -> None:
        self._context = context
        context.calls.serve(METHOD, self._serve)

    async def renew(
        self,
        checkpoints: Sequence[tuple[int, int]],
        lease_ms: int,
        timeout: float,  # noqa: ASYNC109
    ) -> RenewalReport:
        """Lease checkpoints, each a partition's group and a log index, for this many ms from now.

        A lease is never shortened. Returns within `timeout` seconds, with what was achieved by then.
        """
        leases = [_Lease(*checkpoint) for checkpoint in checkpoints]
        end = self._context.loop.time() + timeout
        partitions = {
            partition.group
            for topic in self._context.controller.machine.topics
            if topic.name not in INTERNAL_TOPICS
            for partition in topic.partitions
        }

        async def once(lease: _Lease) -> None:
            if lease.group in partitions:
                await self._renew(lease, lease_ms)
            else:
                gone = self._context.controller.machine.place_of(lease.group) is None
                lease.ended, lease.error = True, _GONE if gone else _COORDINATOR

        await rounds(
            self._context.loop, leases, once, lambda lease: lease.ended or lease.until is not None, end
        )
        return RenewalReport(
            tuple(RenewedLease(each.group, each.index, each.until, each.ended, each.error) for each in leases)
        )

    async def _renew(self, lease: _Lease, lease_ms: int) -> None:
        leader = self._context.leaders.leader_of(lease.group)
        if leader is None:
            lease.error = "no leader is known: a majority of its replicas is down, or cannot be reached"
            return
        payload = [lease.group, lease.index, lease_ms]
        try:
            answer = await self._context.calls.call(leader.node, METHOD, payload, CALL_SECONDS)
        except CallFailed as failed:
            lease.error = f"node {leader.node}, its leader: {failed.reason}"
            return
        if isinstance(answer, int):
            lease.until, lease.error = answer, None
        elif answer is None:
            lease.ended, lease.error = True, _ENDED
        else:
            lease.error = f"node {leader.node}, its leader: {answer}"

    async def _serve(self, peer: int, payload: Any) -> int | str | None:
        """Renew a lease of a group that is led here: until when, None if it has ended, or why not."""
        match payload:
            case [int(group), int(index), int(lease_ms)] if lease_ms >= 0:
                replica = self._context.partitions.by_group(group)
                if replica is None:
                    return "it has no replica of the group"
                result = await replica.execute(RenewCheckpoint(index, lease_ms))
            case _:
                raise CallFailed("that is not a group, index and lease", unknown=False)
        if isinstance(result, Rejected) and result.reason is Rejection.CHECKPOINT_NOT_LEASED:
            return None
        return result.lease_until if isinstance(result, CheckpointTaken) else str(result)
