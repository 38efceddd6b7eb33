"""Paths about garbage collection: collectable objects, what holds M back, and the collectors' switches.

A node answers for its own collector. Pausing is a decision of the cluster and goes to the controller; a dry
run and a reset concern this node's shards alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from strandline.node.admin.http import REQUEST_SECONDS, Json, json_body, refusal
from strandline.node.admin.pages import after_group, limit, only, page
from strandline.node.admin.source import AdminSource
from strandline.node.controller.client import Unavailable
from strandline.node.gc.collectable_epochs import HeldBack
from strandline.node.objectstore.store import StoreError
from strandline.node.runtime.slices import Slices
from strandline.statemachine.controller.controller_commands import SetCollection
from strandline.statemachine.controller.controller_state import PartitionAssignment
from strandline.statemachine.internal_topics import INTERNAL_TOPICS

SUBMIT_SECONDS: Final = REQUEST_SECONDS / 2
FAILING: Final = 20
"""Most partitions whose failures are reported in detail."""


class CollectionApi:
    """Answers requests about one node's part of collecting."""

    def __init__(self, source: AdminSource) -> None:
        self._source = source
        self._looking = False

    def routes(self) -> list[tuple[str, str, Callable[[Request], Awaitable[Response]]]]:
        """Method, path, and what answers it."""
        return [
            ("GET", "/api/gc", self.status),
            ("GET", "/api/gc/partitions", self.partitions),
            ("GET", "/api/gc/dry-run", self.dry_run),
            ("POST", "/api/gc/pause", self.pause),
            ("POST", "/api/gc/resume", self.resume),
            ("POST", "/api/gc/reset", self.reset),
        ]

    async def status(self, request: Request) -> Response:
        """M as this node knows it, what holds it back, and the collector; asks a leader for the reason."""
        only(request)
        source = self._source
        held = await source.collectable.held_back()
        clock = source.clock.estimate()
        answer = {
            "node": source.node_id,
            "cluster_epoch": held.maximum.cluster_epoch,
            "max_collectable_epoch": held.maximum.epoch,
            "held_back": self._held_back(held),
            "collector": source.collector.status(),
            "clock": {"trusted": clock.trusted, "offset_ms": clock.offset_ms},
            "level_one": self._level_one(),
        }
        return Json(answer)

    async def partitions(self, request: Request) -> Response:
        """This node's view of every partition's M(p), in the order of the groups."""
        only(request, "limit", "after")
        after, slices = after_group(request), Slices()
        known: dict[int, tuple[str, int, PartitionAssignment]] = {}
        for topic in self._source.controller.machine.topics:
            if topic.name in INTERNAL_TOPICS:
                continue
            for number, placed in enumerate(topic.partitions):
                if placed.group > after:
                    known[placed.group] = (topic.name, number, placed)
            await slices.breathe()
        return await page("partitions", sorted(known), limit(request), lambda group: self._row(*known[group]))

    async def dry_run(self, request: Request) -> Response:
        """Objects that this node's collector would delete now; one call at a time, as it lists the store."""
        only(request, "limit")
        most = limit(request)
        if self._looking:
            return refusal(409, "a dry run is under way on this node: wait for it")
        self._looking = True
        try:
            found = await self._source.collector.dry_run(most)
        except StoreError as error:
            return refusal(503, f"the object store does not answer: {error}")
        finally:
            self._looking = False
        return Json(
            {
                "node": self._source.node_id,
                "epoch": found.epoch,
                "objects": sum(found.objects.values()),
                "shards": {str(shard): count for shard, count in found.objects.items()},
                "names": found.names,
                "more": found.more,
            }
        )

    async def pause(self, request: Request) -> Response:
        """No node collects any more, until `resume`."""
        return await self._set(request, paused=True)

    async def resume(self, request: Request) -> Response:
        """All nodes collect again."""
        return await self._set(request, paused=False)

    async def reset(self, request: Request) -> Response:
        """Reset this node's collector: its counters, its pauses after failures, its sweep."""
        await _empty(request)
        self._source.collector.reset()
        return Json({"node": self._source.node_id, "reset": True})

    async def _set(self, request: Request, *, paused: bool) -> Response:
        await _empty(request)
        result = await self._source.controller.submit(SetCollection(paused), SUBMIT_SECONDS)
        if isinstance(result, Unavailable):
            done = "it may have been done all the same" if result.unknown else "nothing was done"
            return refusal(503, f"the controller does not answer ({result.reason}), {done}: try again")
        return Json({"paused": bool(result)})

    def _level_one(self) -> dict[str, Any]:
        """This node's work for level one, and the partitions where it fails, the longest failing first."""
        status = self._source.level_one.status()
        failing = [partition for partition in status.partitions if partition.errors]
        failing.sort(key=lambda partition: -partition.unreconciled_seconds)
        return {
            "unreconciled_bytes": sum(partition.unreconciled_bytes for partition in status.partitions),
            "unreconciled_seconds": max(
                (partition.unreconciled_seconds for partition in status.partitions), default=0.0
            ),
            "undecided_objects": status.undecided_objects,
            "retention_by_time": status.retention_by_time,
            "failing_count": len(failing),
            "failing": [
                {
                    "topic": partition.topic,
                    "partition": partition.partition,
                    "unreconciled_seconds": partition.unreconciled_seconds,
                    "errors": list(partition.errors),
                }
                for partition in failing[:FAILING]
            ],
        }

    def _held_back(self, held: HeldBack) -> dict[str, Any] | None:
        maximum = held.maximum
        if maximum.group is None:
            return None
        leader = self._source.leaders.leader_of(maximum.group)
        return {
            "topic": maximum.topic,
            "partition": maximum.partition,
            "group": maximum.group,
            "leader": None if leader is None else leader.node,
            "reason": held.reason,
            "since_ms": held.since_ms,
        }

    def _row(self, topic: str, number: int, placed: PartitionAssignment) -> dict[str, Any]:
        reported = self._source.collectable.reported(placed.group)
        leader = self._source.leaders.leader_of(placed.group)
        unheard = placed.creation_epoch - 1
        return {
            "topic": topic,
            "partition": number,
            "group": placed.group,
            "leader": None if leader is None else leader.node,
            "max_collectable_epoch": unheard if reported is None else max(reported.value, unheard),
            "heard_from_term": None if reported is None else reported.term,
        }


async def _empty(request: Request) -> None:
    """A request that changes something says so in a body of its own kind, even one with nothing in it."""
    only(request)
    if await json_body(request) != {}:
        raise HTTPException(400, "the body is an empty object: {}")
