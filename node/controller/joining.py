"""A machine becomes a node of a cluster that runs: `cluster.seeds`.

The newcomer asks the seeds, which may be any members, with the command that makes it a node (`AddNode`). The
one that is asked has the controller apply it, and answers with the addresses of all. From then on the mesh
connects them, the controller's group takes the newcomer in (controller_voters.py), and it registers as every
node does. Until a peer is connected the newcomer asks again: a question that was answered already, by this or
an earlier process on the same data folder, gives the same answer.

A founder that lost its disk knows the others by its file alone, which does not name nodes that joined. One of
these may lead the controller, and neither would find the other. So it asks the founders as a newcomer asks
its seeds, once the log does not come by itself: it is let in only by a replacement, and it knocks at all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from strandline.node.config.node_config import PeerAddress, SeedAddress
from strandline.node.controller.members import Address, Members
from strandline.node.controller.periodic import PeriodicPart
from strandline.node.objectstore.storage_owner import Owner
from strandline.node.raft.host import RaftHost
from strandline.node.raft.mesh.guests import GUEST_SECONDS, SeedFailed
from strandline.statemachine.controller.controller_commands import AddNode, encode

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
SUBMIT_SECONDS: Final = 8.0
"""Less than a guest may stay."""
ASK_SECONDS: Final = GUEST_SECONDS + 3.0
FOUNDER_SECONDS: Final = 15.0
"""A founder on an empty data folder asks when it has waited for so long for the log."""

MEMBERS_WORD: Final = "members"
REFUSED_WORD: Final = "refused"
"""First elements of the answers."""


class Joining(PeriodicPart):
    """A newcomer's part: it asks while no peer is connected; a founder, while no log comes."""

    def __init__(
        self,
        host: RaftHost,
        members: Members,
        seeds: Sequence[SeedAddress],
        founders: Sequence[PeerAddress],
        *,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """`seeds` are there on a node that joins, `founders` on one of these."""
        super().__init__(LOOK_SECONDS, "asking the seeds failed and will be retried", loop=loop)
        self.trouble: str | None = None
        """The reason why this node is no member yet, as the seeds say it, in one line."""
        self._host = host
        self._members = members
        self._seeds = seeds
        self._founders = [SeedAddress(one.host, one.port) for one in founders if one.id != host.node_id]
        self._waits_since = loop.time()
        self._command: AddNode | None = None
        self._storage: Callable[[], Owner | None] = lambda: None
        self._told = ""
        self.refused: str | None = None
        """The reason why members refuse this data folder, in one line, as long as any that was asked did."""
        self._others: dict[int, Address] = {}
        """Members of which one told that refused this data folder: it knocks at them as well, since any of
        them may be asked to let it in."""

    @property
    def joins(self) -> bool:
        """Whether this node is none of the founders."""
        return bool(self._seeds)

    def begin(self, command: AddNode, storage: Callable[[], Owner | None]) -> None:
        """Ask with this command, once `storage()` was seen to have an owner; as a founder only if need be."""
        self._command, self._storage, self._waits_since = command, storage, self._loop.time()
        if self._seeds or self._host.folder.newcomer:
            self.start()

    def waits_for(self) -> str:
        """The reason why this node is no member yet, in one line."""
        return self.trouble or "this node joins the cluster: it waits to be told by the controller's log"

    async def _look(self) -> None:
        assert self._command is not None
        host, owner = self._host, self._storage()
        if owner is None:
            return
        if not self._seeds:
            await self._ask_founders(owner)
            return
        connected = [one for node, one in self._members.addresses().items() if host.connected(node)]
        if connected:
            self.trouble = self.refused = None
            if not self._members.have_elsewhere(self._command.mesh_host, self._command.mesh_port):
                return
            # Nodes with higher ids dial this one, at its address before: the controller's leader may be one.
        failures = list[str]()
        asked = dict.fromkeys(
            [*self._seeds, *(SeedAddress(*one) for one in (*connected, *self._others.values()))]
        )
        self._others = {}
        for seed in asked:
            try:
                told = await self._ask(seed, owner)
            except SeedFailed as error:
                if seed in self._seeds:
                    failures.append(f"{seed.host}:{seed.port}: {error}")
                continue
            self.trouble = self.refused = None
            self._members.follow(told)
            return
        self.trouble = f"no seed lets node {host.node_id} in: {'; '.join(failures)}"
        if self.trouble != self._told:
            log.error("%s", self.trouble)
        self._told = self.trouble
        # A member that refuses the folder tells of the others, at which the folder may knock as well.
        self.refused = self.trouble if self._others else None

    async def _ask_founders(self, owner: Owner) -> None:
        """Ask founders, and all that one told of, until one tells the members; again if no log comes."""
        if not self._host.folder.newcomer or self._loop.time() - self._waits_since < FOUNDER_SECONDS:
            return
        others = [SeedAddress(*one) for node, one in self._others.items() if node != self._host.node_id]
        asked, self._others = dict.fromkeys([*self._founders, *others]), {}
        for founder in asked:
            try:
                told = await self._ask(founder, owner)
            except SeedFailed as error:
                log.debug("%s:%d does not tell the members: %s", founder.host, founder.port, error)
                continue
            self._members.follow(told)
            self._waits_since = self._loop.time()
            return

    async def _ask(self, seed: SeedAddress, owner: Owner) -> dict[int, Address]:
        """The members, as one of them tells; raises SeedFailed."""
        assert self._command is not None
        question = [encode(self._command), owner.incarnation]
        return self._members_in(await self._host.mesh.ask(seed.host, seed.port, question, ASK_SECONDS))

    def _members_in(self, answer: Any) -> dict[int, Address]:
        """The addresses in an answer; raises SeedFailed for a refusal, and for anything else."""
        match answer:
            case [str(kind), str(reason)] if kind == REFUSED_WORD:
                raise SeedFailed(reason)
            case [str(kind), str(reason), list(rows)] if kind == REFUSED_WORD:
                self._others = _addresses(rows)
                raise SeedFailed(reason)
            case [str(kind), list(rows)] if kind == MEMBERS_WORD:
                return _addresses(rows)
            case _:
                raise SeedFailed("its answer cannot be read: upgrade it")


def _addresses(rows: list[Any]) -> dict[int, Address]:
    """Members by node id; raises SeedFailed for anything else."""
    found: dict[int, Address] = {}
    for row in rows:
        match row:
            case [int(node), str(host), int(port)] if 0 < node < 2**16 and 0 < port < 2**16 and host:
                found[node] = (host, port)
            case _:
                raise SeedFailed("it answers with something that is no member: upgrade it")
    return found
