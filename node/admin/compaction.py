"""Paths about compaction: the local logs of this node, and what holds back the removal of tombstones.

A node tells of its own replicas, and of all copies of a partition where it leads that. So a caller that asks
every node has the whole picture.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from strandline.node.admin.http import Json
from strandline.node.admin.pages import after_group, limit, only, page
from strandline.node.admin.slices import Slices
from strandline.node.admin.source import AdminSource

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
        ]

    async def status(self, request: Request) -> Response:
        """This node's local logs in a few numbers, and what is wrong with the first that fail."""
        only(request)
        source, slices = self._source, Slices()
        failing: list[dict[str, Any]] = []
        replicas = source.compaction_status.replicas()
        for replica, log in replicas.values():
            if log.problem is not None:
                failing.append({"topic": replica.topic, "partition": replica.number, "problem": log.problem})
            await slices.breathe()
        entries = source.removal.counters
        return Json(
            {
                "node": source.node_id,
                "logs": len(replicas),
                "resets": {why.value: count for why, count in source.compaction.measures.resets.items()},
                "entries": {"proposed": entries["proposed"], "in_force": entries["in_force"]},
                "clock_trusted": source.clock.verdict().trusted,
                "failing_count": len(failing),
                "failing": failing[:FAILING],
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
