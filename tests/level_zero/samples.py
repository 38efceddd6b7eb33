"""Record batches, names and worlds that the tests of level zero share."""

from __future__ import annotations

import struct
from collections.abc import Coroutine
from typing import Any, TypeVar

from crc32c import crc32c

from strandline.statemachine.object_names import object_id
from tests.simulation.node import SimNode
from tests.simulation.world import World

T = TypeVar("T")
TOPIC = bytes(range(16))
OTHER_TOPIC = bytes(range(16, 32))
IDENTITY = object_id(1, 2, bytes(range(16)))


def record_batch(payload: bytes, *, base_offset: int = 0, leader_epoch: int = -1) -> bytes:
    """A magic 2 batch whose header and checksum are right; its records are just these bytes."""
    checked = struct.pack(">hiqqqhii", 0, 0, 1000, 1000, -1, -1, -1, 1) + payload
    head = struct.pack(">qiibI", base_offset, len(checked) + 9, leader_epoch, 2, crc32c(checked))
    return head + checked


def run(world: World, node: SimNode, coroutine: Coroutine[Any, Any, T], timeout: float = 300.0) -> T:
    """Run a coroutine on a node of a world until it ends; returns or raises what it does."""
    task = node.loop.create_task(coroutine)
    assert world.run_until(task.done, timeout=timeout, step=0.001), "the coroutine did not end"
    result: T = task.result()
    return result


def started(world: World, node_id: int = 1) -> SimNode:
    """A node whose process runs and does nothing by itself."""
    node = world.add_node(node_id)
    node.start(lambda _: None)
    world.run(world.now)
    return node


def identity(number: int) -> bytes:
    return object_id(0, 1, number.to_bytes(16, "big"))
