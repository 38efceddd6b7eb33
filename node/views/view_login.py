"""The way of a view's process to the nodes: one of the listeners, and a login that only they can give it.

The process is a client like any other, and reads and writes partitions that other nodes lead. Where clients
log in it does so as `Internal:views`, by a password that every node computes from `cluster.secret`. It goes
to the process through its pipe, and stands in no command line, environment, file or log.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from typing import Final

from strandline.node.config.addresses import is_loopback, is_wildcard
from strandline.node.config.listeners import ListenerSection
from strandline.node.config.node_config import NodeConfig
from strandline.node.kafka.wire.session import VIEWS
from strandline.statemachine.controller.controller_state import NodeRegistration

_PURPOSE: Final = b"strandline: password of Internal:views"
"""The password differs by it from all else that nodes make of the secret."""
PLAINTEXT, SASL_PLAINTEXT, SASL_SSL = "PLAINTEXT", "SASL_PLAINTEXT", "SASL_SSL"


Way = Mapping[str, str]
"""Settings of a client, by librdkafka's names: the address that it begins with, and its login."""


def password(secret: str) -> str:
    """The password of `Internal:views` in the cluster that has this secret; 256 bits."""
    return hmac.digest(secret.encode(), _PURPOSE, "sha256").hex()


def ways_in(
    config: NodeConfig, ports: Mapping[str, int], nodes: Iterable[NodeRegistration]
) -> tuple[list[Way], str]:
    """The ways in, the best one first; and for each listener that is none the reason, in one line.

    With authorization a login is better than none, which gives the process the rights of every other client
    without one; otherwise a listener without a login costs less. Of the same kind one on the loopback is
    better, and then the one that the configuration has first. `ports` are those of listeners that listen.
    """
    alive = [node for node in nodes if not node.fenced]
    authorized = config.authorization.enabled

    def rank(listener: ListenerSection) -> tuple[bool, bool]:
        return listener.has_sasl != authorized, not is_loopback(listener.host)

    fit: list[Way] = []
    unfit: list[str] = []
    for listener in sorted(config.listeners, key=rank):
        if listener.name not in ports:
            continue
        why = _unfit(listener, alive)
        if why is None:
            fit.append(_way(config, listener, ports[listener.name]))
        else:
            unfit.append(f"{listener.name}: {why}")
    return fit, "; ".join(unfit)


def _unfit(listener: ListenerSection, nodes: Iterable[NodeRegistration]) -> str | None:
    """The reason why the process cannot come by a listener, with the cure."""
    if listener.protocol not in (PLAINTEXT, SASL_PLAINTEXT, SASL_SSL):
        return f"clients show certificates by {listener.protocol}, and the process has none"
    if listener.client_certificate == "required":
        return "clients must show certificates, and the process has none"
    if listener.has_sasl and _mechanism(listener) is None:
        return "its mechanisms have no SCRAM: add SCRAM-SHA-512"
    if listener.has_tls and not listener.nodes_ca:
        return "set nodes_ca to the authorities that have signed the nodes' certificates"
    places: dict[tuple[str, int], int] = {}
    for node in nodes:
        address = node.address(listener.name)
        if address is None:
            return f"node {node.node} has no listener of this name"
        other = places.setdefault((address.host, address.port), node.node)
        if other != node.node:
            return (
                f"clients of nodes {other} and {node.node} are told the same address, {address.host}:"
                f"{address.port}: set advertised_host to one at which each node reaches the others"
            )
    return None


def _mechanism(listener: ListenerSection) -> str | None:
    scram = [one for one in listener.mechanisms if one.startswith("SCRAM-")]
    return max(scram, default=None)


def _way(config: NodeConfig, listener: ListenerSection, port: int) -> Way:
    if not listener.has_sasl:
        host = "127.0.0.1" if is_wildcard(listener.host) else listener.host
        return {"bootstrap.servers": f"{host}:{port}"}
    mechanism = _mechanism(listener)
    assert mechanism is not None, "such a listener is unfit"
    # A certificate is of the name that clients are told.
    host = listener.advertised_host or listener.host
    settings = {
        "bootstrap.servers": f"{host}:{listener.advertised_port or port}",
        "security.protocol": listener.protocol,
        "sasl.mechanism": mechanism,
        "sasl.username": VIEWS,
        "sasl.password": password(config.cluster.secret),
    }
    if listener.has_tls:
        settings["ssl.ca.location"] = listener.nodes_ca
    return settings
