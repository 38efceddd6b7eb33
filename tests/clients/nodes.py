"""What a node says of itself, and what the system says of it."""

from __future__ import annotations

import re
import time
import urllib.request

import psutil

from tests.cluster.real_cluster import RealCluster

_SETTLE_SECONDS = 10.0


def number_of(cluster: RealCluster, address: str) -> int:
    """The node whose Kafka port is at this address."""
    (found,) = [
        number for number, node in cluster.description.nodes.items() if f":{node.ports.kafka}" in address
    ]
    return found


def rss(cluster: RealCluster, node: int) -> int:
    """Resident memory in bytes."""
    return int(psutil.Process(cluster.pids[node]).memory_info().rss)


def metric(cluster: RealCluster, node: int, name: str) -> float:
    """The value of a metric without labels, or with exactly those in `name`."""
    address = cluster.description.nodes[node].admin
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://{address}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    (found,) = re.findall(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    return float(found)


def closed(cluster: RealCluster, node: int, reason: str) -> int:
    """Connections that the node has closed for this reason."""
    return int(metric(cluster, node, f'strandline_kafka_connections_closed_total{{reason="{reason}"}}'))


def connections(cluster: RealCluster, node: int) -> int:
    """Open Kafka connections."""
    return int(metric(cluster, node, "strandline_kafka_connections"))


def left_connections(cluster: RealCluster, node: int, expected: int) -> int:
    """Open Kafka connections, when there are no more than expected or ten seconds are over."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while (found := connections(cluster, node)) > expected and time.monotonic() < deadline:
        time.sleep(0.05)
    return found
