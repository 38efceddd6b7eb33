"""The paths about nodes: which there are, which data folders knock and are not let in, and letting one in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from strandline.node.admin import node_views
from strandline.node.admin.http import REQUEST_SECONDS, Json, json_body, refusal
from strandline.node.admin.pages import only
from strandline.node.admin.source import AdminSource
from strandline.node.controller.client import Unavailable
from strandline.node.runtime.slices import Slices
from strandline.statemachine.controller.controller_commands import (
    FEATURE_LEVEL,
    RaiseFeatureLevel,
    SetDraining,
)
from strandline.statemachine.controller.controller_state import CONTROLLER_GROUP
from strandline.statemachine.controller.drain_plan import Staying
from strandline.statemachine.controller.node_folders import removing, replacing
from strandline.statemachine.kafka_errors import KafkaError, Refused

SUBMIT_SECONDS: Final = REQUEST_SECONDS / 2


class NodesApi:
    """Answers requests about the nodes of the cluster."""

    def __init__(self, source: AdminSource) -> None:
        self._source = source

    def routes(self) -> list[tuple[str, str, Callable[[Request], Awaitable[Response]]]]:
        """Method, path, and what answers it."""
        return [
            ("GET", "/api/nodes", self.nodes),
            ("POST", "/api/nodes/replace", self.replace),
            ("POST", "/api/nodes/drain", self.drain),
            ("POST", "/api/nodes/remove", self.remove),
            ("POST", "/api/cluster/upgrade", self.upgrade),
        ]

    async def nodes(self, request: Request) -> Response:
        """All registered nodes; those that knock with another data folder; the replacement under way."""
        source, slices = self._source, Slices()
        machine = source.controller.machine
        replicas = dict.fromkeys(machine.nodes, 0)
        leads = dict.fromkeys(machine.nodes, 0)
        for topic in machine.topics:
            for partition in topic.partitions:
                for node in partition.replicas:
                    replicas[node] = replicas.get(node, 0) + 1
                leader = source.leaders.leader_of(partition.group)
                if leader is not None:
                    leads[leader.node] = leads.get(leader.node, 0) + 1
            await slices.breathe()
        staying = machine.drains_staying()
        rows = [
            node_views.node(
                source,
                known,
                replicas.get(known.node, 0),
                leads.get(known.node, 0),
                staying.get(known.node, Staying()),
            )
            for known in machine.nodes.values()
        ]
        strangers = [
            {"node": node, "folder": f"{stranger.folder:016x}"}
            for node, stranger in source.host.mesh.strangers.knocking().items()
        ]
        return Json(
            {
                "nodes": rows,
                "strangers": strangers,
                "replacement": self._replacement(),
                "free_id": max(self._members(), default=0) + 1,
            }
        )

    async def replace(self, request: Request) -> Response:
        """Let the data folder that a node knocks with take the place of the one it had."""
        only(request)
        body = await json_body(request)
        node, folder = (body.get("node"), body.get("folder")) if isinstance(body, dict) else (None, None)
        known = isinstance(body, dict) and set(body) <= {"node", "folder"}
        if not known or type(node) is not int or not (folder is None or _is_folder(folder)):
            return refusal(
                400, 'the body is {"node": id}, with "folder": "sixteen hexadecimal digits" if wanted'
            )
        if node not in self._members():
            return refusal(404, f"there is no node {node} in this cluster")
        source = self._source
        if node == source.host.node_id:
            return refusal(503, f"this is node {node} itself, and it takes another node to let its folder in")
        if (why := source.keeper.disowned() or source.keeper.waits_for()) is not None:
            return refusal(503, f"node {source.host.node_id} cannot let another in: {why}")
        stranger = source.host.mesh.strangers.knocking().get(node)
        if stranger is None or folder not in (None, f"{stranger.folder:016x}"):
            which = "another data folder" if folder is None else f"data folder {folder}"
            member = source.controller.machine.nodes.get(node)
            if member is not None and not member.fenced and source.host.connected(node):
                # It must not be told to start the node with an empty folder.
                return refusal(
                    409,
                    f"node {node} is alive with its own data folder, and no process comes as node {node}"
                    f" with {which}: there is nothing to replace",
                )
            return refusal(
                409,
                f"no process comes to this node as node {node} with {which}: start node"
                f" {node} with an empty data folder first",
            )
        folder = f"{stranger.folder:016x}"
        if stranger.foreign:
            return refusal(
                409,
                f"data folder {folder} is of another incarnation of this cluster and cannot be let in: start"
                f" node {node} with the folder that belongs here, or with an empty one",
            )
        if stranger.replaced:
            return refusal(
                409,
                f"data folder {folder} was node {node}'s until another took its place, and lacks what node"
                f" {node} promised since: start node {node} with that other folder, or with an empty one",
            )
        machine = source.controller.machine
        command = replacing(machine.folders, machine.feature_level, node, int(folder, 16))
        result = await source.controller.submit(command, SUBMIT_SECONDS)
        if isinstance(result, Unavailable):
            return refusal(503, result.reason)
        if isinstance(result, Refused):
            return refusal(409, result.message)
        return Json({"node": node, "folder": folder, "replacement": self._replacement()})

    async def drain(self, request: Request) -> Response:
        """Have a node get no more replicas and lose those it has, or end that."""
        only(request)
        body = await json_body(request)
        node, draining = (
            (body.get("node"), body.get("draining", True)) if isinstance(body, dict) else (None, None)
        )
        known = isinstance(body, dict) and set(body) <= {"node", "draining"}
        if not known or type(node) is not int or not 0 < node < 2**16 or type(draining) is not bool:
            return refusal(400, 'the body is {"node": id}, with "draining": false to end it')
        result = await self._source.controller.submit(SetDraining(node, draining), SUBMIT_SECONDS)
        if isinstance(result, Unavailable):
            return refusal(503, result.reason)
        if isinstance(result, Refused):
            unknown = result.error is KafkaError.BROKER_ID_NOT_REGISTERED
            return refusal(404 if unknown else 409, result.message)
        return Json({"node": node, "draining": draining, "replicas": result})

    async def remove(self, request: Request) -> Response:
        """Forget a dead node without replicas."""
        only(request)
        body = await json_body(request)
        node = body.get("node") if isinstance(body, dict) and set(body) <= {"node"} else None
        if type(node) is not int or not 0 < node < 2**16:
            return refusal(400, 'the body is {"node": id}')
        machine = self._source.controller.machine
        command = removing(machine.folders, machine.feature_level, node)
        result = await self._source.controller.submit(command, SUBMIT_SECONDS)
        if isinstance(result, Unavailable):
            return refusal(503, result.reason)
        if isinstance(result, Refused):
            unknown = result.error is KafkaError.BROKER_ID_NOT_REGISTERED
            return refusal(404 if unknown else 409, result.message)
        return Json({"node": node, "leaving": result})

    async def upgrade(self, request: Request) -> Response:
        """Raise the cluster's feature level to this node's release, or to the level that is named."""
        only(request)
        body = await json_body(request)
        level = body.get("level", FEATURE_LEVEL) if isinstance(body, dict) else None
        if not isinstance(body, dict) or not set(body) <= {"level"} or type(level) is not int or level < 1:
            return refusal(400, 'the body is {}, or {"level": number}')
        if level > FEATURE_LEVEL:
            return refusal(
                400, f"node {self._source.node_id} understands feature levels up to {FEATURE_LEVEL}"
            )
        controller = self._source.controller
        before = controller.machine.feature_level
        result = await controller.submit(RaiseFeatureLevel(level), SUBMIT_SECONDS)
        if isinstance(result, Unavailable):
            return refusal(503, result.reason)
        if isinstance(result, Refused):
            return refusal(409, result.message)
        return Json({"feature_level": result, "before": before})

    def _members(self) -> set[int]:
        machine, group = self._source.controller.machine, self._source.host.groups.get(CONTROLLER_GROUP)
        return {*machine.nodes, *machine.folders, *(group.voters if group is not None else ())}

    def _replacement(self) -> dict[str, Any] | None:
        present = self._source.controller.machine.replacement
        if present is None:
            return None
        return {
            "node": present.node,
            "folder": f"{present.folder:016x}",
            "leaving": len(present.leaving),
            "joining": len(present.joining),
            "stuck_topics": self._source.controller.machine.stuck_topics(),
        }


def _is_folder(text: object) -> bool:
    return isinstance(text, str) and len(text) == 16 and all(digit in "0123456789abcdef" for digit in text)
