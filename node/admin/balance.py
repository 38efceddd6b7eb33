"""The paths about balancing: how replicas are spread, which would move and why, and whether they do."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from strandline.node.admin.http import REQUEST_SECONDS, Json, json_body, refusal
from strandline.node.admin.pages import only
from strandline.node.admin.source import AdminSource
from strandline.node.controller.client import Unavailable
from strandline.node.runtime.slices import Slices
from strandline.statemachine.controller.balance_plan import Balance, Step
from strandline.statemachine.controller.controller_commands import SetBalancing
from strandline.statemachine.kafka_errors import Refused

SUBMIT_SECONDS: Final = REQUEST_SECONDS / 2
STEPS: Final = 100
"""Moves that an answer tells of."""
TRIES: Final = 3
"""Plans that may be overtaken by changes of nodes or topics."""


class BalanceApi:
    """Answers requests about balancing."""

    def __init__(self, source: AdminSource) -> None:
        self._source = source

    def routes(self) -> list[tuple[str, str, Callable[[Request], Awaitable[Response]]]]:
        """Method, path, and what answers it."""
        return [("GET", "/api/balance", self.balance), ("POST", "/api/balance", self.set)]

    async def balance(self, request: Request) -> Response:
        """Replicas by node, and the next moves that would even them out, each with its reason."""
        only(request)
        machine, slices = self._source.controller.machine, Slices()
        held: Counter[int] = Counter()
        for topic in machine.topics:
            for partition in topic.partitions:
                held.update(partition.replicas)
            await slices.breathe()
        balance = machine.balance()
        for _ in range(TRIES):
            steps = await self._steps(balance)
            if steps is not None:
                break
        else:
            return refusal(503, "nodes or topics changed whenever moves were planned: ask again")
        return Json(
            {
                "on": balance.on,
                "waits": balance.waits(),
                "nodes": [
                    {"node": node, "rack": known.rack, "replicas": held[node]}
                    for node, known in machine.nodes.items()
                ],
                "steps": list(map(_row, steps[:STEPS])),
                "more": len(steps) > STEPS,
            }
        )

    async def _steps(self, balance: Balance) -> list[Step] | None:
        """The next steps; None if nodes or topics changed meanwhile."""
        machine, steps = self._source.controller.machine, list[Step]()
        version = machine.version
        for found in balance.parts():
            if found is not None:
                steps.append(found)
                if len(steps) > STEPS:
                    break
                continue
            await asyncio.sleep(0)
            if machine.version != version:
                return None
        return steps

    async def set(self, request: Request) -> Response:
        """Have replicas move by themselves until nodes are even, or leave them."""
        only(request)
        body = await json_body(request)
        on = body.get("on") if isinstance(body, dict) and set(body) == {"on"} else None
        if type(on) is not bool:
            return refusal(400, 'the body is {"on": true} or {"on": false}')
        result = await self._source.controller.submit(SetBalancing(on), SUBMIT_SECONDS)
        if isinstance(result, Unavailable):
            return refusal(503, result.reason)
        if isinstance(result, Refused):
            return refusal(409, result.message)
        return Json({"on": result})


def _row(step: Step) -> dict[str, Any]:
    return {
        "topic": step.topic,
        "partition": step.command.partition,
        "leaves": step.leaves,
        "joins": step.joins,
        "replicas": list(step.command.target or ()),
        "why": step.why,
    }
