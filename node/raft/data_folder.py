"""Identities of this node's data folder and of every other node's: durable, and checked on each connection.

A node's id is a setting; its promises (its votes, the entries it acknowledged) are in its data folder. A node
whose folder was wiped, and that started again under the old id, has forgotten its promises, and may elect a
leader that lacks acknowledged entries. So a folder draws an identity when it is made, every node keeps the
identities of the others as it met them, and a node refuses a connection of another folder under a known id
(docs/raft.md, "Folders"). Kafka tells the voters of its controllers apart in the same way (KIP-853:
directory.id).

The controller counts the folders of a node. Its registry names the folder in force, and a folder of a higher
generation takes the place of an earlier one.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from strandline.node.raft.disk import Disk
from strandline.node.raft.folder_file import FolderError, FolderFields, FolderFile, FolderKey, begin_use
from strandline.node.raft.wal.format import REPLACE

NO_FOLDER: Final = 0
"""No folder has this identity."""

Stored = Callable[[Exception | None], None]
"""Called with the error of a write, or with None once all that was asked for is durable."""
RunBlocking = Callable[[Callable[[], Any], Callable[[Any, Exception | None], None]], None]
"""Runs a job off the loop, in order, and calls back on the loop with its result or error."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A folder's description of itself in a hello to a peer."""

    key: FolderKey
    incarnation: str = ""
    """Id of the cluster's incarnation that the folder has taken part in; "" before the first."""
    newcomer: bool = False
    """The folder may have forgotten its promises: it neither votes nor counts in a majority."""


class Folder:
    """The identity of one node's data folder, and the identities of the other nodes' folders.

    `meet`, `learn` and `settle` change what the folder is to hold, in memory, and `store` writes it off the
    loop. What refuses a folder holds at once: see `reason_to_refuse`. What lets a folder in or gives this one
    a vote holds once it is durable: `has_stored`, `votes`, `generation`, `incarnation`.
    """

    def __init__(self, file: FolderFile, fields: FolderFields, run_blocking: RunBlocking) -> None:
        self.newcomer = False
        """Volatile: this process neither votes nor counts, as the folder may have had a predecessor."""
        self._file = file
        self._run_blocking = run_blocking
        self._stored = fields
        """The content of the file."""
        self._wanted = fields
        """The content that the file is to have."""
        self._waiting: list[Stored] = []
        """Calls of `store` that the next write answers."""
        self._writing = False

    @classmethod
    def open(
        cls,
        disk: Disk,
        folder: str,
        node: int,
        cluster: str,
        rng: random.Random,
        run_blocking: RunBlocking,
        *,
        logged: bool,
    ) -> Folder:
        """Read the identity, or draw one for a new folder; blocking.

        `logged` says whether the write-ahead log holds anything. Raises FolderError, and OSError.
        """
        begin_use(disk, folder)
        file = FolderFile(disk, folder, node, cluster)
        if file.exists():
            return cls(file, file.read(), run_blocking)
        if logged:
            raise FolderError(
                f"{file.path} is missing while the write-ahead log is there: bring it back, or {REPLACE}"
            )
        fields = FolderFields(rng.getrandbits(63) | 1, 0, "", False, {})
        file.write(fields)
        return cls(file, fields, run_blocking)

    @property
    def id(self) -> int:
        """The identity that the folder drew when it was made."""
        return self._stored.folder

    @property
    def generation(self) -> int:
        """The controller's count of this node's folders up to this one; 0 before it is registered."""
        return self._stored.generation

    @property
    def incarnation(self) -> str:
        """Id of the cluster's incarnation that the folder has taken part in; "" before the first."""
        return self._stored.incarnation

    @property
    def votes(self) -> bool:
        """Whether this folder has ever been given a vote: it took part in founding the cluster, or the
        controller registered it."""
        return self._stored.votes

    @property
    def awaits_vote(self) -> bool:
        """Whether a vote was given to this folder that the disk does not have yet."""
        return self._wanted.votes and not self._stored.votes

    @property
    def known(self) -> dict[int, FolderKey]:
        """The folder of every other node, as it was met or as the controller says; not durable yet, maybe."""
        return self._wanted.peers

    @property
    def addresses(self) -> dict[int, tuple[str, int]]:
        """Addresses of nodes of which the configuration does not say it; not durable yet, maybe."""
        return self._wanted.addresses

    def learn_addresses(self, addresses: dict[int, tuple[str, int]]) -> None:
        """Keep these addresses in place of those before."""
        self._wanted = replace(self._wanted, addresses=addresses)

    def is_foreign(self, claim: Standing) -> bool:
        """Whether a folder took part in another incarnation of the cluster: it is never let in here."""
        return bool(self.incarnation and claim.incarnation) and self.incarnation != claim.incarnation

    def reason_to_refuse(self, peer: int, claim: Standing) -> str | None:
        """Reason to refuse a peer with this folder; None if the peer is accepted.

        A peer's folder is the one that was met first, until the controller names one of a higher generation.
        """
        if self.is_foreign(claim):
            return (
                f"its data folder is of another incarnation of this cluster ({claim.incarnation}, here"
                f" {self.incarnation}): start it with the folder that belongs here"
            )
        known = self.known.get(peer)
        if known is None or known.folder == claim.key.folder or claim.key.generation > known.generation:
            return None
        if known.folder == NO_FOLDER:
            return (
                f"node {peer} was removed from this cluster, or is being replaced and its groups have not"
                " left its folder before out yet: wait, or, if it was removed, start it with an empty data"
                f" folder and let that in with `strandline node replace {peer}`"
            )
        return (
            f"it comes with data folder {claim.key.folder:016x}, and node {peer} of this cluster had another:"
            f" bring that one back, or let the new one in with `strandline node replace {peer}`"
        )

    def has_stored(self, peer: int, claim: Standing) -> bool:
        """Whether the disk of this node holds that the peer has this folder."""
        stored = self._stored.peers.get(peer)
        return stored is not None and stored.folder == claim.key.folder

    def meet(self, peer: int, claim: Standing) -> None:
        """Keep the folder of a peer that is not refused."""
        known = self.known.get(peer)
        if known is None or claim.key.generation > known.generation:
            self._know({**self.known, peer: claim.key})

    def learn(self, named: dict[int, FolderKey]) -> None:
        """Take the folders in force from the controller; they replace those that it named before.

        That state may be an old one, as it is after a start. So generations only grow, and within one
        generation an accepted folder stays accepted.
        """
        known = dict(self.known)
        for peer, key in named.items():
            present = known.get(peer, FolderKey(-1, NO_FOLDER))
            if key.generation > present.generation or (
                key.generation == present.generation and present.folder == NO_FOLDER
            ):
                known[peer] = key
        self._know(known)

    def _know(self, peers: dict[int, FolderKey]) -> None:
        self._wanted = replace(self._wanted, peers=peers)

    def settle(self, *, votes: bool, generation: int = 0, incarnation: str = "") -> None:
        """Record the folder's vote, and its generation and incarnation by the controller."""
        wanted = self._wanted
        self._wanted = replace(
            wanted,
            votes=wanted.votes or votes,
            generation=max(wanted.generation, generation),
            incarnation=wanted.incarnation or incarnation,
        )

    def store(self, stored: Stored) -> None:
        """Write what has changed off the loop: `stored(error)` is called at once if nothing has.

        One write is under way at a time, and the next takes all changes since. After an error the changes
        stay, and the next call tries again.
        """
        if not self._writing and self._wanted == self._stored:
            stored(None)
            return
        self._waiting.append(stored)
        if not self._writing:
            self._write()

    def _write(self) -> None:
        fields, waiting = self._wanted, self._waiting
        self._waiting, self._writing = [], True

        def written(_: None, error: Exception | None) -> None:
            self._writing = False
            if error is None:
                self._stored = fields
            with ExitStack() as calls:  # last in, first out; all are made, though one may fail
                calls.callback(self._write_on)
                for stored in reversed(waiting):
                    calls.callback(stored, error)

        self._run_blocking(partial(self._file.write, fields), written)

    def _write_on(self) -> None:
        if self._waiting and not self._writing:
            self._write()

    def standing(self) -> Standing:
        """The description of this folder for a peer."""
        return Standing(FolderKey(self.generation, self.id), self.incarnation, self.newcomer)
