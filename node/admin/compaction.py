"""Paths about compaction: this node's local logs, what holds back the removal of tombstones, and holds.

A node tells of its own replicas, and of all copies of a partition where it leads that. So a caller that asks
every node has the whole picture.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from strandline.node.admin import request_bodies
from strandline.node.admin.http import Json, json_body, refusal
from strandline.node.admin.pages import after_group, limit, only, page
from strandline.node.admin.source import AdminSource
from strandline.node.compaction.holding import PartitionHold
from strandline.node.runtime.slices import Slices
from strandline.statemachine.controller.controller_state import Topic
from strandline.statemachine.controller.topic_config import CLEANUP_POLICY

FAILING: Final = 20
"""Most local logs whose problems are told in the summary."""


class CompactionApi:
    """Answers requests about one node's compaction."""

    def __init__(self, source: AdminSource) -> None:
        self._source = source

    def routes(self) -> list[tuple[str, str, Callable[[Request], Awaitable[Response]]]]:
        """Method, path, and what answers it."""
        return [
            ("GET", "/api/compaction", self.status),
            ("GET", "/api/compaction/partitions", self.partitions),
            ("POST", "/api/compaction/holds", self.hold),
            ("POST", "/api/compaction/holds/release", self.release),
        ]

    async def status(self, request: Request) -> Response:
        """This node's local logs in a few numbers, and what is wrong with the first that fail."""
        only(request)
        source, slices = self._source, Slices()
        failing: list[dict[str, Any]] = []
        replicas = source.compaction_status.replicas()
        for replica, log in replicas.values():
            problem = log.problems.first
            if problem is not None:
                failing.append({"topic": replica.topic, "partition": replica.number, "problem": problem})
            await slices.breathe()
        entries = source.removal.counters
        return Json(
            {
                "node": source.node_id,
                "logs": len(replicas),
                "resets": {why.value: count for why, count in source.compaction.measures.resets.items()},
                "entries": {"proposed": entries["proposed"], "in_force": entries["in_force"]},
                "clock_trusted": source.clock.estimate().trusted,
                "failing_count": len(failing),
                "failing": failing[:FAILING],
                "under_way": [one._asdict() for one in source.compaction.under_way()],
            }
        )

    async def partitions(self, request: Request) -> Response:
        """Compacted replicas on this node, in the order of their groups."""
        only(request, "limit", "after", "topic")
        status, after = self._source.compaction_status, after_group(request)
        replicas = status.replicas(request.query_params.get("topic"))
        groups = sorted(group for group in replicas if group > after)
        return await page(
            "partitions", groups, limit(request), lambda group: status.partition(replicas[group]).as_dict()
        )

    async def hold(self, request: Request) -> Response:
        """Renew a reader's hold of a topic's partitions."""
        only(request)
        asked = request_bodies.hold(await json_body(request))
        topic = self._compacted(asked.topic)
        if isinstance(topic, Response):
            return topic
        offsets = dict.fromkeys(range(len(topic.partitions))) if asked.offsets is None else asked.offsets
        unknown = sorted(number for number in offsets if number >= len(topic.partitions))
        if unknown:
            return refusal(404, f"{asked.topic} has no partition {unknown[0]}")
        lease_ms = round(asked.lease_seconds * 1000)
        held = await self._source.holding.hold(topic, asked.reader, offsets, lease_ms)
        return _held(asked.topic, asked.reader, held)

    async def release(self, request: Request) -> Response:
        """End a reader's hold of all partitions of a topic."""
        only(request)
        name, reader = request_bodies.release(await json_body(request))
        topic = self._compacted(name)
        if isinstance(topic, Response):
            return topic
        numbers = range(len(topic.partitions))
        return _held(name, reader, await self._source.holding.release(topic, reader, numbers))

    def _compacted(self, name: str) -> Topic | Response:
        topic = self._source.controller.machine.topic(name)
        if topic is None:
            return refusal(404, f"there is no topic {name!r}")
        if "compact" not in CLEANUP_POLICY.of(topic.configs):
            why = f"{name} is not compacted, so nothing of it is cleaned: cleanup.policy has no compact"
            return refusal(409, why)
        return topic


def _held(topic: str, reader: str, partitions: Sequence[PartitionHold]) -> Response:
    complete = all(one.error is None and one.lowest is None for one in partitions)
    rows = [asdict(one) for one in partitions]
    return Json({"complete": complete, "topic": topic, "reader": reader, "partitions": rows})
