"""The paths of the HTTP API and what answers them.

docs/operating.md shows them, /api/openapi.json describes them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from strandline.node.admin import node_views, request_bodies
from strandline.node.admin.balance import BalanceApi
from strandline.node.admin.collection import CollectionApi
from strandline.node.admin.compaction import CompactionApi
from strandline.node.admin.consumer_groups import ConsumerGroupsApi
from strandline.node.admin.exposition import CONTENT_TYPE
from strandline.node.admin.health import problems, status
from strandline.node.admin.http import REQUEST_SECONDS, STRANGER, Json, json_body, refusal
from strandline.node.admin.leaderships import LeadershipsApi
from strandline.node.admin.metrics import Metrics
from strandline.node.admin.nodes import NodesApi
from strandline.node.admin.openapi import OPENAPI
from strandline.node.admin.pages import after_group, limit, only, page
from strandline.node.admin.request_bodies import MAX_CHECKPOINT_SECONDS
from strandline.node.admin.source import AdminSource
from strandline.node.admin.transactions import TransactionsApi
from strandline.node.admin.views import ViewsApi
from strandline.node.checkpoints.checkpoint_coordinator import CheckpointUnderWay, UnknownTopic
from strandline.node.runtime.slices import Slices

SECONDS: Final = dict.fromkeys(
    ("/api/checkpoints", "/api/checkpoints/renew"), MAX_CHECKPOINT_SECONDS + REQUEST_SECONDS
)
"""Paths that may take longer than others."""


class AdminApi:
    """Answers requests about one node."""

    def __init__(self, source: AdminSource, metrics: Metrics) -> None:
        self._source = source
        self._metrics = metrics
        self._checkpointing = False

    def app(self) -> Starlette:
        """The application, its errors in JSON."""
        routes: list[tuple[str, str, Callable[[Request], Awaitable[Response]]]] = [
            ("GET", "/health", self.health),
            ("GET", "/metrics", self.metrics),
            ("GET", "/api/openapi.json", self.openapi),
            ("GET", "/api/cluster", self.cluster),
            ("GET", "/api/topics", self.topics),
            ("GET", "/api/topics/{name}", self.topic),
            ("GET", "/api/partitions", self.partitions),
            ("GET", "/api/coordinators", self.coordinators),
            ("GET", "/api/groups", self.groups),
            ("POST", "/api/checkpoints", self.checkpoint),
            ("POST", "/api/checkpoints/renew", self.renewal),
            *NodesApi(self._source).routes(),
            *LeadershipsApi(self._source).routes(),
            *BalanceApi(self._source).routes(),
            *CollectionApi(self._source).routes(),
            *CompactionApi(self._source).routes(),
            *ConsumerGroupsApi(self._source).routes(),
            *TransactionsApi(self._source).routes(),
            *ViewsApi(self._source).routes(),
        ]
        app = Starlette(
            routes=[Route(path, answer, methods=[method]) for method, path, answer in routes],
            exception_handlers={HTTPException: _refused, Exception: _failed},
        )
        # A redirection would repeat the Host header of the request.
        app.router.redirect_slashes = False
        return app

    async def health(self, request: Request) -> Response:
        """200 when the node does its part, 503 when not; the body lists the problems for users."""
        found = problems(self._source)
        answer: dict[str, Any] = {"status": status(found)}
        if STRANGER not in request.scope:
            answer["node"] = self._source.node_id
            answer["problems"] = [problem.as_dict() for problem in found]
        return Json(answer, 503 if answer["status"] == "unhealthy" else 200)

    async def metrics(self, request: Request) -> Response:
        """For Prometheus."""
        return Response(await self._metrics.page(), headers={"Content-Type": CONTENT_TYPE})

    async def openapi(self, request: Request) -> Response:
        """The API's description."""
        return Json(OPENAPI)

    async def cluster(self, request: Request) -> Response:
        """The cluster in a few numbers."""
        return Json(node_views.cluster(self._source))

    async def topics(self, request: Request) -> Response:
        """Topics in the order of their names."""
        only(request, "limit", "after")
        known = {topic.name: topic for topic in self._source.controller.machine.topics}
        after = request.query_params.get("after", "")
        names = sorted(name for name in known if name > after)
        return await page("topics", names, limit(request), lambda name: node_views.topic(known[name]))

    async def topic(self, request: Request) -> Response:
        """One topic with its partitions."""
        source, slices = self._source, Slices()
        name = request.path_params["name"]
        known = source.controller.machine.topic(name)
        if known is None:
            return refusal(404, f"there is no topic {name!r}")
        partitions = []
        for number in range(len(known.partitions)):
            partitions.append(node_views.topic_partition(source, known, number))
            await slices.breathe()
        return Json({**node_views.topic(known), "partitions": partitions})

    async def partitions(self, request: Request) -> Response:
        """Replicas of partitions on this node, in the order of their groups."""
        only(request, "limit", "after", "topic")
        source, topic = self._source, request.query_params.get("topic")
        replicas = {
            replica.group.id: replica
            for replica in source.partitions
            if topic is None or replica.topic == topic
        }
        after = after_group(request)
        groups = sorted(group for group in replicas if group > after)
        return await page(
            "partitions", groups, limit(request), lambda group: node_views.partition(source, replicas[group])
        )

    async def coordinators(self, request: Request) -> Response:
        """Replicas of coordinators on this node, in the order of their Raft groups."""
        only(request, "limit", "after")
        source = self._source
        replicas = {replica.group.id: replica for replica in source.coordinators}
        after = after_group(request)
        groups = sorted(group for group in replicas if group > after)
        return await page(
            "coordinators",
            groups,
            limit(request),
            lambda group: node_views.coordinator(source, replicas[group]),
        )

    async def groups(self, request: Request) -> Response:
        """Raft groups on this node, in the order of their ids."""
        only(request, "limit", "after")
        present = dict(self._source.host.groups)
        after = after_group(request)
        groups = sorted(group for group in present if group > after)
        return await page("groups", groups, limit(request), lambda group: node_views.group(present[group]))

    async def checkpoint(self, request: Request) -> Response:
        """Take a checkpoint, one at a time, and say what became of it."""
        only(request)
        topics, lease_seconds, seconds = request_bodies.checkpoint(await json_body(request))
        if self._checkpointing:
            return refusal(409, "a checkpoint is being taken on this node: wait for it")
        self._checkpointing = True
        try:
            report = await self._source.checkpoints.take(topics, round(lease_seconds * 1000), seconds)
        except UnknownTopic as error:
            return refusal(404, str(error))
        except CheckpointUnderWay as error:
            return refusal(409, str(error))
        finally:
            self._checkpointing = False
        return Json(report.as_dict())

    async def renewal(self, request: Request) -> Response:
        """Renew leases of checkpoints; any number of jobs may at a time."""
        only(request)
        leases, lease_seconds, seconds = request_bodies.renewal(await json_body(request))
        report = await self._source.checkpoints.renew(leases, round(lease_seconds * 1000), seconds)
        return Json(report.as_dict())


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    why = error.detail
    if error.status_code == 404:
        why = "there is no such path: /api/openapi.json lists those there are"
    elif error.status_code == 405:
        why = f"{request.method} is not for this path"
    answer = refusal(error.status_code, why)
    answer.headers.update(error.headers or {})
    return answer


async def _failed(request: Request, error: Exception) -> Response:
    return refusal(500, "internal error: this node's log says more")
