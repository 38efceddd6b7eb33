"""ListConfigResources: the resources that have configs, by kind (KIP-1142).

Kinds are topics, brokers, and groups; the last are those with configs of their own, as in Kafka. There are no
client metrics, the only kind of version 0, and no loggers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from kio.schema.errors import ErrorCode

from strandline.node.kafka.handlers.authorization import CLUSTER_REFUSED, may_with_cluster
from strandline.node.kafka.handlers.configs import (
    BROKER,
    BROKER_LOGGER,
    CATCH_UP_SECONDS,
    CLIENT_METRICS,
    GROUP,
    TOPIC,
)
from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.deadlines import NO_THROTTLE
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.response_types import ResponseTypes
from strandline.statemachine.controller.acl import Operation
from strandline.statemachine.controller.controller import Controller
from strandline.statemachine.controller.view_state import is_hidden

_NAMES: Final[dict[int, Callable[[Controller], Iterable[str]]]] = {
    TOPIC: lambda machine: (topic.name for topic in machine.topics if not is_hidden(topic.name)),
    BROKER: lambda machine: map(str, machine.nodes),
    BROKER_LOGGER: lambda machine: (),
    CLIENT_METRICS: lambda machine: (),
    GROUP: lambda machine: machine.configured_groups,
}


async def list_config_resources(context: BrokerContext, request: Request, a: ResponseTypes) -> Any:
    """List the resources, including every change made before.

    UNSUPPORTED_VERSION for a kind that Kafka does not list either.
    """
    asked = getattr(request.payload, "resource_types", (CLIENT_METRICS,))
    code = ErrorCode.none if {*asked} <= {*_NAMES} else ErrorCode.unsupported_version
    if not may_with_cluster(context, request, Operation.DESCRIBE_CONFIGS):
        code = CLUSTER_REFUSED
    found: list[tuple[int, str]] = []
    if code is ErrorCode.none:
        await context.controller.catch_up(CATCH_UP_SECONDS)
        machine = context.controller.machine
        kinds = dict.fromkeys(asked or _NAMES)
        found = [(kind, name) for kind in kinds for name in _NAMES[kind](machine)]
    return a.ListConfigResourcesResponse(
        throttle_time=NO_THROTTLE,
        error_code=code,
        config_resources=tuple(
            a.ConfigResource(resource_name=name, resource_type=kind) for kind, name in found
        ),
    )
