"""The nodes of the cluster, and the addresses at which the mesh finds them.

`cluster.nodes` names those that found the cluster. From then on the controller's log has the members: nodes
that join (`AddNode`), nodes that are removed, and the address that each said it listens at. So a list in a
node's file may grow stale: it is where a node looks first, and again where the controller's word leads
nowhere. What the controller says beyond the file is kept in the data folder, for a start at which no peer is
known otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from strandline.node.config.node_config import NodeConfig, PeerAddress
from strandline.node.raft.host import RaftHost
from strandline.statemachine.controller.controller import Controller
from strandline.statemachine.controller.controller_state import REMOVED

Address = tuple[str, int]
DEFAULT_REPLICAS: Final = 3
"""Of a topic that does not say how many it wants, where there are as many nodes."""


def member_ids(founders: Sequence[PeerAddress], machine: Controller) -> list[int]:
    """The nodes of the cluster by this state, in order: also founders that have not registered yet."""
    gone = {node for node, known in machine.folders.items() if known.folder == REMOVED}
    return sorted({*machine.nodes, *(peer.id for peer in founders)} - gone)


def default_replicas(config: NodeConfig, machine: Controller) -> int:
    """Replicas of a topic that does not say how many it wants."""
    return config.topics.replication_factor or min(
        DEFAULT_REPLICAS, len(member_ids(config.cluster.nodes, machine))
    )


class Members:
    """The members as this node's replica of the controller has them."""

    def __init__(self, host: RaftHost, founders: Sequence[PeerAddress], machine: Controller) -> None:
        self._host = host
        self._founders = founders
        self._configured: dict[int, Address] = {peer.id: (peer.host, peer.port) for peer in founders}
        self._machine = machine
        self._set: set[int] = set()
        """Those that the mesh was told of."""
        self._back: dict[int, int] = {}
        """Those that are members again by a member's word, with the generation by which they were removed."""
        self._ids: tuple[int, list[int]] | None = None

    @property
    def ids(self) -> list[int]:
        """See `member_ids`; worked out once for each version of the controller's state."""
        if self._ids is None or self._ids[0] != self._machine.version:
            self._ids = self._machine.version, member_ids(self._founders, self._machine)
        return self._ids[1]

    @property
    def version(self) -> int:
        """Index of the controller's last entry that changed what this is made of."""
        return self._machine.version

    @property
    def writers(self) -> set[int]:
        """All nodes that may ever have written objects, also those that were removed since."""
        return {*self._configured, *self._machine.folders}

    def addresses(self) -> dict[int, Address]:
        """Address of each node, by the controller's word, or else by this node's file."""
        told = {node: (known.mesh_host, known.mesh_port) for node, known in self._machine.nodes.items()}
        return {**self._configured, **self._host.known_addresses, **told}

    def have_elsewhere(self, host: str, port: int) -> bool:
        """Whether the controller has another address of this node than the one at which it listens."""
        known = self._machine.nodes.get(self._host.node_id)
        return known is not None and (known.mesh_host, known.mesh_port) != (host, port)

    def follow(self, told: dict[int, Address] | None = None) -> None:
        """Have the mesh know the members as they are now; `told` are addresses that a member gave, which had
        caught up with the log, where this node has not."""
        machine, me = self._machine, self._host.node_id
        removed = {
            node: known.generation for node, known in machine.folders.items() if known.folder == REMOVED
        }
        self._back |= {node: removed[node] for node in told or () if node in removed}
        gone = {node for node, generation in removed.items() if self._back.get(node) != generation}
        wanted = {**self.addresses(), **(told or {})}
        for node, address in wanted.items():
            # One that was removed knocks at the nodes whose file has it, until an operator replaces it.
            if node != me and (node not in gone or node in self._configured):
                self._host.set_peer(node, *address, self._configured.get(node))
                self._set.add(node)
        for node in self._set & gone - self._configured.keys():
            self._host.remove_peer(node)
            self._set.discard(node)
        self._host.know_addresses(
            {
                node: address
                for node, address in wanted.items()
                if node not in gone and node != me and self._configured.get(node) != address
            }
        )
