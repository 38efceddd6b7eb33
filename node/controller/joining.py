"""A machine becomes a node of a cluster that runs: `cluster.seeds`.

The newcomer asks the seeds, which may be any members, with the command that makes it a node (`AddNode`). The
one that is asked has the controller apply it, and answers with the addresses of all. From then on the mesh
connects them, the controller's group takes the newcomer in (controller_voters.py), and it registers as every
node does. Until a peer is connected the newcomer asks again: a question that was answered already, by this or
an earlier process on the same data folder, gives the same answer.

A node learns of newcomers from the controller's log, and the higher id dials the lower. So a node that was
away while others joined does not find them, nor they it; and if one of these leads the controller now, the
log does not come either. A founder that lost its disk is such a node: its file does not name nodes that
joined. A node that heard no leader of the controller for long therefore asks the members that it knows, as a
newcomer asks its seeds, also while the storage does not answer. Nothing is decided by that: a data folder
that is not a member's is still let in by a replacement alone, and it knocks at all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from strandline.node.config.node_config import SeedAddress
from strandline.node.controller.members import Address, Members
from strandline.node.controller.periodic import PeriodicPart
from strandline.node.objectstore.storage_owner import Owner
from strandline.node.raft.host import RaftHost
from strandline.node.raft.mesh.guests import GUEST_SECONDS, SeedFailed
from strandline.statemachine.controller.controller_commands import AddNode, encode
from strandline.statemachine.controller.controller_state import CONTROLLER_GROUP

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
SUBMIT_SECONDS: Final = 8.0
"""Less than a guest may stay."""
ASK_SECONDS: Final = GUEST_SECONDS + 3.0
LOST_SECONDS: Final = 15.0
"""A node asks the members that it knows when it heard no leader of the controller for so long, and again."""
LOST_AGAIN_SECONDS: Final = 5.0
"""After none of them could tell."""

MEMBERS_WORD: Final = "members"
REFUSED_WORD: Final = "refused"
"""First elements of the answers."""


class Joining(PeriodicPart):
    """A node's part: it asks while no peer is connected if it joins, and while it hears no leader."""

    def __init__(
        self,
        host: RaftHost,
        members: Members,
        seeds: Sequence[SeedAddress],
        *,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """`seeds` are there on a node that joins."""
        super().__init__(LOOK_SECONDS, "asking the seeds failed and will be retried", loop=loop)
        self.trouble: str | None = None
        """The reason why this node is no member yet, as the seeds say it, in one line."""
        self._host = host
        self._members = members
        self._seeds = seeds
        self._asks_at = loop.time() + LOST_SECONDS
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
        """Ask with this command whenever there is need: a folder that was never registered does once
        `storage()` was seen to have an owner."""
        self._command, self._storage = command, storage
        self._asks_at = self._loop.time() + LOST_SECONDS
        self.start()

    def waits_for(self) -> str:
        """The reason why this node is no member yet, in one line."""
        return self.trouble or "this node joins the cluster: it waits to be told by the controller's log"

    async def _look(self) -> None:
        assert self._command is not None
        host, incarnation = self._host, self._incarnation()
        if not incarnation:
            return
        connected = [one for node, one in self._members.addresses().items() if host.connected(node)]
        if connected:
            self.trouble = self.refused = None
        if connected or not self._seeds:
            if self._is_lost():
                await self._ask_members(incarnation, connected)
            if not self._seeds or not self._members.have_elsewhere(
                self._command.mesh_host, self._command.mesh_port
            ):
                return
            # Nodes with higher ids dial this one, at its address before: the controller's leader may be one.
        failures = list[str]()
        asked = dict.fromkeys(
            [*self._seeds, *(SeedAddress(*one) for one in (*connected, *self._others.values()))]
        )
        self._others = {}
        for seed in asked:
            try:
                told = await self._ask(seed, incarnation)
            except SeedFailed as error:
                if seed in self._seeds:
                    failures.append(f"{seed.host}:{seed.port}: {error}")
                continue
            self.trouble = self.refused = None
            self._members.follow(told)
            return
        if host.folder.generation and self._is_lost() and await self._ask_members(incarnation, connected):
            # The seeds may be gone for good, and the members cannot dial this one where it has moved.
            self.trouble = self.refused = None
            return
        self.trouble = f"no seed lets node {host.node_id} in: {'; '.join(failures)}"
        if self.trouble != self._told:
            log.error("%s", self.trouble)
        self._told = self.trouble
        # A member that refuses the folder tells of the others, at which the folder may knock as well.
        self.refused = self.trouble if self._others else None

    def _incarnation(self) -> str:
        """That of the storage; as long as it does not answer, the one that this folder was registered in."""
        owner, folder = self._storage(), self._host.folder
        if owner is not None:
            return owner.incarnation
        return folder.incarnation if folder.generation else ""

    def _is_lost(self) -> bool:
        """Whether no leader of the controller was heard for long: it may be a node that is not known here."""
        group, now = self._host.groups.get(CONTROLLER_GROUP), self._loop.time()
        if group is not None and (group.is_leader or now - group.contact.last_heard() < LOST_SECONDS):
            return False
        return now >= self._asks_at

    async def _ask_members(self, incarnation: str, connected: Sequence[Address]) -> bool:
        """Ask those that are connected, then all that are known, until one tells the members; whether one
        did."""
        known = [*connected, *self._members.addresses().values(), *self._others.values()]
        assert self._command is not None
        own = (self._command.mesh_host, self._command.mesh_port)
        asked, self._others = dict.fromkeys(one for one in known if one != own), {}
        for address in asked:
            try:
                told = await self._ask(SeedAddress(*address), incarnation)
            except SeedFailed as error:
                log.debug("%s:%d does not tell the members: %s", *address, error)
                continue
            self._members.follow(told)
            self._asks_at = self._loop.time() + LOST_SECONDS
            return True
        self._asks_at = self._loop.time() + LOST_AGAIN_SECONDS
        return False

    async def _ask(self, seed: SeedAddress, incarnation: str) -> dict[int, Address]:
        """The members, as one of them tells; raises SeedFailed."""
        assert self._command is not None
        question, version = [encode(self._command), incarnation], self._members.version
        told = self._members_in(await self._host.mesh.ask(seed.host, seed.port, question, ASK_SECONDS))
        # A log that comes meanwhile may be newer than the answer, and names the members as well.
        return told if self._members.version == version else {}

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
