"""The paths about what a node leads: which followers are in step, and handing it over before a restart."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from strandline.node.admin.http import Json, json_body, refusal
from strandline.node.admin.pages import only
from strandline.node.admin.source import AdminSource
from strandline.node.runtime.slices import Slices

DRAIN_SECONDS: Final = 60.0
"""Time without leaderships unless a request says another: a restart takes less."""
MAX_DRAIN_SECONDS: Final = 600.0
"""A node that is drained does not stand for election, so it does not stay so by mistake."""
EXAMPLES: Final = 10
"""Groups that an answer names of each node."""
SLICE: Final = 64
"""Groups that are looked at before the time is: a tenth of a millisecond."""


class LeadershipsApi:
    """Answers requests about the leaderships of this node."""

    def __init__(self, source: AdminSource) -> None:
        self._source = source

    def routes(self) -> list[tuple[str, str, Callable[[Request], Awaitable[Response]]]]:
        """Method, path, and what answers it."""
        return [("GET", "/api/leaderships", self.leaderships), ("POST", "/api/leaderships/drain", self.drain)]

    async def leaderships(self, request: Request) -> Response:
        """Tell what this node leads, and which voters of these groups are not in step."""
        only(request)
        return Json(await self._found())

    async def drain(self, request: Request) -> Response:
        """Hand over what this node leads, and take no leadership for some time; 0 seconds end that."""
        only(request)
        body = await json_body(request)
        wanted: dict[str, Any] = body if isinstance(body, dict) and set(body) <= {"node", "seconds"} else {}
        node, seconds = wanted.get("node"), wanted.get("seconds", DRAIN_SECONDS)
        number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if type(node) is not int or not number or not 0 <= seconds <= MAX_DRAIN_SECONDS:
            return refusal(400, f'the body is {{"node": id}}, with "seconds" up to {MAX_DRAIN_SECONDS:g}')
        source = self._source
        if node != source.node_id:
            return refusal(503, f"this is node {source.node_id}: ask node {node} itself")
        leader_drain = source.host.leader_drain
        if seconds == 0:
            leader_drain.end()
        elif not leader_drain.for_a_while(float(seconds)):
            return refusal(503, f"node {node} is about to stop, and hands over what it leads anyway")
        return Json(await self._found())

    async def _found(self) -> dict[str, Any]:
        source, slices = self._source, Slices()
        leads, needed = 0, 0
        behind: dict[int, list[int]] = {}
        for number, group in enumerate([*source.host.groups.values()]):
            if number % SLICE == 0:
                await slices.breathe()
            voters = group.voters
            # The other one of two voters is no majority without this node.
            needed += len(voters) <= 2 and source.node_id in voters
            if group.is_leader:
                leads += len(voters) > 1
                for peer in group.behind():
                    behind.setdefault(peer, []).append(group.id)
        return {
            "node": source.node_id,
            "leads": leads,
            "needed": needed,
            "drained_seconds": source.host.leader_drain.seconds_left,
            "behind": [
                {"node": peer, "groups": len(groups), "examples": sorted(groups)[:EXAMPLES]}
                for peer, groups in sorted(behind.items())
            ],
        }
