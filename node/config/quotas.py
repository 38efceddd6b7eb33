"""Settings of client quotas and of connections: `[quotas]`, the same on all nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from strandline.node.config.values import whole
from strandline.node.kafka.wire.hosts import host_of
from strandline.statemachine.controller.client_quota import shortest


@dataclass(frozen=True, slots=True)
class QuotasSection:
    """The sliding window over which a client's use is measured, on each node by itself, and connections."""

    windows: int = 11
    """Parts of the window: Kafka's `quota.window.num`."""
    window_seconds: float = 1.0
    """Length of a part: Kafka's `quota.window.size.seconds`."""
    max_connections: int = 10_000
    """Of a node, above which a further one waits: Kafka's `max.connections`."""
    max_connections_per_ip: int = 0
    """Of a host, above which a further one is closed (`max.connections.per.ip`); 0 for no bound."""
    max_connections_per_ip_overrides: Mapping[str, int] = field(default_factory=dict)
    """By host, see `host_of` (`max.connections.per.ip.overrides`)."""
    max_connection_creation_rate: int = 0
    """Connections a second, above which a further one waits (`max.connection.creation.rate`); 0 for none."""


def _connections_of_hosts(value: Any) -> dict[str, int]:
    """Numbers by host, of Kafka's text "127.0.0.1:200,10.0.0.7:5" or a list of such pairs."""
    pairs = [one for one in value.split(",") if one.strip()] if isinstance(value, str) else value
    if not isinstance(pairs, list) or not all(isinstance(pair, str) for pair in pairs):
        raise ValueError(f'{value!r} is not a list like ["10.0.0.7:100"]')
    found: dict[str, int] = {}
    for pair in pairs:
        address, _, number = pair.strip().rpartition(":")
        known = shortest(address.strip("[]"))
        if known is None or not number.isdecimal() or not 0 < int(number) < 2**31:
            raise ValueError(
                f"{pair!r} is no IP address with the number of its connections: write like 10.0.0.7:100"
            )
        host = host_of(known)
        if host in found:
            raise ValueError(f"{pair!r} is of {host}, which has a number already: name each host once")
        found[host] = int(number)
    return found


MAX_INT: Final = 2**31 - 1
"""Kafka's largest INT."""
CONNECTION_READERS: Final = {
    "quotas.max_connections": whole(1, MAX_INT),
    "quotas.max_connections_per_ip": whole(0, MAX_INT),
    "quotas.max_connections_per_ip_overrides": _connections_of_hosts,
    "quotas.max_connection_creation_rate": whole(0, MAX_INT),
}
