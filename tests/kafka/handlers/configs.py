"""Short ways to ask for the configs of topics, brokers and groups."""

from __future__ import annotations

from typing import Any

from strandline.node.kafka.wire.apis import ApiKey
from tests.kafka.handlers.fake_node import FakeNode

DESCRIBE, ALTER = ApiKey.DESCRIBE_CONFIGS, ApiKey.ALTER_CONFIGS
INCREMENTAL = ApiKey.INCREMENTAL_ALTER_CONFIGS
TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, UNSET, APPEND, SUBTRACT = 0, 1, 2, 3


def resource(kind: int, name: str, **more: Any) -> dict[str, Any]:
    return {"resource_type": kind, "resource_name": name, **more}


async def describe(
    node: FakeNode, *resources: dict[str, Any], version: int | None = None, **more: Any
) -> Any:
    asked = [{"configuration_keys": None, **one} for one in resources]
    return (await node.ask(DESCRIBE, version, resources=asked, **more)).results


async def alter(
    node: FakeNode,
    *resources: dict[str, Any],
    key: ApiKey = INCREMENTAL,
    version: int | None = None,
    **more: Any,
) -> Any:
    return (await node.ask(key, version, resources=resources, **more)).responses


def change(operation: int, name: str, value: str | None) -> dict[str, Any]:
    return {"config_operation": operation, "name": name, "value": value}
