"""The path about consumer groups: those whose coordinators this node leads.

`/api/groups` are Raft's groups, and were there before. As with transactions, a client that wants all of them
asks every node, and the answer of a node that has been cut off may be old.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from strandline.node.admin.pages import coordinators_led, limit, only, page
from strandline.node.admin.source import AdminSource
from strandline.node.coordinator.groups.coordinator import GroupCoordinator
from strandline.node.coordinator.groups.group_views import GroupView, group_views
from strandline.statemachine.groups.classic_group import ClassicGroup
from strandline.statemachine.groups.consumer_group import ConsumerGroup
from strandline.statemachine.internal_topics import GROUPS_TOPIC


class ConsumerGroupsApi:
    """Answers requests about one node's consumer groups."""

    def __init__(self, source: AdminSource) -> None:
        self._source = source

    def routes(self) -> list[tuple[str, str, Callable[[Request], Awaitable[Response]]]]:
        """Method, path, and what answers it."""
        return [("GET", "/api/consumer-groups", self.groups)]

    async def groups(self, request: Request) -> Response:
        """Groups in the order of their ids, of one state or one of them if asked so."""
        only(request, "limit", "after", "state", "group")
        asked = request.query_params
        state, wanted, after = asked.get("state"), asked.get("group"), asked.get("after")
        led = self._source.coordinators.led_groups()
        found = {
            view.group_id: (coordinator, view)
            for coordinator in led
            for view in group_views(coordinator)
            if (after is None or view.group_id > after)
            and state in (None, view.state)
            and wanted in (None, view.group_id)
        }
        told = coordinators_led(self._source.controller.machine, GROUPS_TOPIC, [one.number for one in led])
        return await page(
            "consumer_groups", sorted(found), limit(request), lambda key: _row(*found[key]), told
        )


def _row(coordinator: GroupCoordinator, view: GroupView) -> dict[str, Any]:
    held = coordinator.machine.groups.get(view.group_id)
    membership = None if held is None else held.membership
    live = coordinator.classic.get(view.group_id)
    generation, members = 0, len(view.members)
    if isinstance(membership, ConsumerGroup):
        generation, members = membership.epoch, len(membership.members)
    elif live is not None and len(live.members):
        generation = live.generation
    elif isinstance(membership, ClassicGroup):
        generation = membership.generation
    return {
        "group": view.group_id,
        "coordinator": coordinator.number,
        "protocol": view.kind,
        "state": view.state,
        "protocol_type": view.protocol_type,
        "assignor": view.protocol,
        "generation": generation,
        "members": members,
        "offsets": 0 if held is None else len(held.offsets),
        "pending_transactions": 0 if held is None else len(held.offsets.pending),
    }
