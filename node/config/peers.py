"""Readers of `cluster.nodes` and `cluster.seeds`: nodes of the cluster, and addresses to find it by."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from strandline.node.config.addresses import is_wildcard
from strandline.node.config.values import node_id, whole

_PEER = re.compile(r"(\d+)@(.+):(\d+)")
_SEED = re.compile(r"([^@]+):(\d+)")


class PeerAddress(NamedTuple):
    """A node of the cluster and where its mesh listens; written `1@127.0.0.1:7101`."""

    id: int
    host: str
    port: int


class SeedAddress(NamedTuple):
    """An address where the mesh of some node of the cluster listens; written `127.0.0.1:7101`."""

    host: str
    port: int


def _peers(value: Any) -> tuple[PeerAddress, ...]:
    texts = value.split(",") if isinstance(value, str) else value
    if not isinstance(texts, list) or not texts:
        raise ValueError(f'{value!r} is not a list of nodes: write like ["1@127.0.0.1:7101"]')
    peers = []
    for text in texts:
        match = _PEER.fullmatch(text.strip()) if isinstance(text, str) else None
        if match is None:
            raise ValueError(f'{text!r} is not a node: write id@host:port, like "1@127.0.0.1:7101"')
        peer = PeerAddress(node_id(int(match[1])), match[2].strip("[]"), whole(1, 65535)(int(match[3])))
        if is_wildcard(peer.host):
            raise ValueError(
                f"{text!r} is not an address that other nodes can connect to: write the one at which they "
                f"reach node {peer.id}, and let it listen on all by mesh.host"
            )
        peers.append(peer)
    ids = [str(peer.id) for peer in peers]
    addresses = [f"{peer.host}:{peer.port}" for peer in peers]
    for each in (*ids, *addresses):
        if ids.count(each) > 1 or addresses.count(each) > 1:
            raise ValueError(f"{each} is given to two nodes: each has its own id and its own address")
    return tuple(sorted(peers))


def _seeds(value: Any) -> tuple[SeedAddress, ...]:
    texts = value.split(",") if isinstance(value, str) else value
    if not isinstance(texts, list) or not texts:
        raise ValueError(f'{value!r} is not a list of addresses: write like ["127.0.0.1:7101"]')
    seeds = []
    for text in texts:
        match = _SEED.fullmatch(text.strip()) if isinstance(text, str) else None
        if match is None or is_wildcard(match[1]):
            raise ValueError(
                f'{text!r} is not the address of a node\'s mesh: write host:port, like "127.0.0.1:7101"'
            )
        seeds.append(SeedAddress(match[1].strip("[]"), whole(1, 65535)(int(match[2]))))
    return tuple(seeds)


PEER_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    "cluster.nodes": _peers,
    "cluster.seeds": _seeds,
}
