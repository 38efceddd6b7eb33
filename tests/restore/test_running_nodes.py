"""A restore's look at the nodes from before: one that still listens keeps it from beginning."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace
from typing import Any, cast

from strandline.node.restore.take_over import running_nodes


def state(ports: dict[int, int]) -> Any:
    nodes = {
        node: SimpleNamespace(node=node, mesh_host="127.0.0.1", mesh_port=port)
        for node, port in ports.items()
    }
    return cast(Any, SimpleNamespace(nodes=nodes))


def test_nodes_that_still_listen_are_named_also_when_they_are_few() -> None:
    with socket.create_server(("127.0.0.1", 0)) as runs, socket.socket() as stopped:
        stopped.bind(("127.0.0.1", 0))  # and does not listen
        ports = {1: stopped.getsockname()[1], 2: runs.getsockname()[1]}
        assert asyncio.run(running_nodes(state(ports))) == [f"node 2 at 127.0.0.1:{ports[2]}"]
        assert asyncio.run(running_nodes(state({1: ports[1]}))) == []
