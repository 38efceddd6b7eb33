"""The way to the nodes that a version's process was told: an address, and the login there."""

from __future__ import annotations

from collections.abc import Mapping

from strandline.cluster.broker_connection import BrokerConnection
from strandline.cluster.failure import CommandFailed
from strandline.snapshot.connection import ConnectionLost

Address = tuple[str, int]
Way = Mapping[str, str]
"""By librdkafka's names."""


def addresses(way: Way) -> list[Address]:
    """The nodes to begin with."""
    return [_address(one) for one in way["bootstrap.servers"].split(",")]


def connected(address: Address, way: Way, client_id: str) -> BrokerConnection:
    """Connect to a node and log in. Raises ConnectionLost."""
    try:
        return BrokerConnection(*address, way, client_id)
    except CommandFailed as failed:
        raise ConnectionLost(str(failed)) from failed


def _address(text: str) -> Address:
    host, _, port = text.strip().rpartition(":")
    return host.strip("[]"), int(port)
