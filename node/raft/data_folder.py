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

import json
import random
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from zlib import crc32

from strandline.node.raft.disk import Disk
from strandline.node.raft.wal.format import REPLACE

NAME: Final = "identity"
FORMAT: Final = 1
NOBODY: Final = 0
"""No folder has this identity."""


class FolderError(Exception):
    """The folder's identity cannot be trusted; one line with file, cause and cure."""


class FolderKey(NamedTuple):
    """One folder of a node: its generation, which the controller counts, and its identity.

    Generation 0 is that of a folder the controller has not registered.
    """

    generation: int
    folder: int


@dataclass(frozen=True, slots=True)
class Standing:
    """A folder's description of itself in a hello to a peer."""

    key: FolderKey
    incarnation: str = ""
    """Id of the cluster's incarnation that the folder has taken part in; "" before the first."""
    newcomer: bool = False
    """The folder may have forgotten its promises: it neither votes nor counts in a majority."""


class Folder:
    """The identity of one node's data folder. Every change is durable when the call returns.

    Changes are a few in a folder's life (a peer met for the first time, a registration), so they are written
    where they happen, on the loop. They raise OSError when the disk does not take them.
    """

    def __init__(self, disk: Disk, path: str, node: int, cluster: str, fields: dict[str, Any]) -> None:
        self._disk = disk
        self._path = path
        self._node = node
        self._cluster = cluster
        self.id: int = fields["folder"]
        self.generation: int = fields["generation"]
        self.incarnation: str = fields["incarnation"]
        self.votes: bool = fields["votes"]
        """Whether this folder has ever been given a vote: it took part in founding the cluster, or the
        controller registered it."""
        self.newcomer = False
        """Volatile: this process neither votes nor counts, as the folder may have had a predecessor."""
        self.known: dict[int, FolderKey] = {
            int(peer): FolderKey(*key) for peer, key in fields["peers"].items()
        }
        """The folder of every other node, as it was met or as the controller says."""
        self._unnoted: set[int] = set()
        """Nodes for which the controller names another folder, until that is written to the disk."""

    @classmethod
    def open(
        cls, disk: Disk, folder: str, node: int, cluster: str, rng: random.Random, *, logged: bool
    ) -> Folder:
        """Read the identity, or draw one for a new folder; blocking.

        `logged` says whether the write-ahead log holds anything. Raises FolderError, and OSError.
        """
        path = f"{folder}/{NAME}"
        if disk.exists(path):
            return cls(disk, path, node, cluster, _read(path, disk.read(path), node, cluster))
        if logged:
            raise FolderError(
                f"{path} is missing while the write-ahead log is there: bring it back, or {REPLACE}"
            )
        fresh = {"folder": rng.getrandbits(63) | 1, "generation": 0, "incarnation": "", "votes": False}
        made = cls(disk, path, node, cluster, {**fresh, "peers": {}})
        made._write()
        return made

    def is_foreign(self, claim: Standing) -> bool:
        """Whether a folder took part in another incarnation of the cluster: it is never let in here."""
        return bool(self.incarnation and claim.incarnation) and self.incarnation != claim.incarnation

    def judges(self, peer: int, claim: Standing) -> str | None:
        """Reason to refuse a peer with this folder; None if the peer is accepted.

        A peer's folder is the one that was met first, until the controller names one of a higher generation.
        """
        if self.is_foreign(claim):
            return (
                f"its data folder is of another incarnation of this cluster ({claim.incarnation}, here"
                f" {self.incarnation}): start it with the folder that belongs here"
            )
        if peer in self._unnoted:
            return f"which data folder node {peer} has now cannot be noted here: mend this node's disk"
        known = self.known.get(peer)
        if known is None or known.folder == claim.key.folder or claim.key.generation > known.generation:
            return None
        if known.folder == NOBODY:
            return (
                f"node {peer} is being replaced, and its groups have not left its folder before out yet: wait"
            )
        return (
            f"it comes with data folder {claim.key.folder:016x}, and node {peer} of this cluster had another:"
            f" bring that one back, or let the new one in with `strandline node replace {peer}`"
        )

    def meet(self, peer: int, claim: Standing) -> None:
        """Keep the folder of a peer that `judges` accepted. Raises OSError."""
        known = self.known.get(peer)
        if known is None or claim.key.generation > known.generation:
            self.set_known({**self.known, peer: claim.key})

    def learn(self, said: dict[int, FolderKey]) -> None:
        """Take the folders in force from the controller; they replace what it said of a node before.

        That state may be an old one, as it is after a start. So generations only grow, and within one
        generation an accepted folder stays accepted. Raises OSError.
        """
        known = dict(self.known)
        for peer, key in said.items():
            present = known.get(peer, FolderKey(-1, NOBODY))
            if key.generation > present.generation or (
                key.generation == present.generation and present.folder == NOBODY
            ):
                known[peer] = key
        # A disk may be full for hours. The earlier folder is no longer valid, and the new one is only valid
        # once it is written.
        self._unnoted = {peer for peer, key in self.known.items() if key.folder != known[peer].folder}
        self.set_known(known)
        self._unnoted = set()

    def set_known(self, known: dict[int, FolderKey]) -> None:
        """Take these for the folders of the other nodes. Raises OSError."""
        if known != self.known:
            before, self.known = self.known, dict(sorted(known.items()))
            try:
                self._write()
            except BaseException:
                self.known = before
                raise

    def settle(self, *, votes: bool, generation: int = 0, incarnation: str = "") -> None:
        """Record the folder's vote, and its generation and incarnation by the controller. Raises OSError."""
        before = self.votes, self.generation, self.incarnation
        after = (
            self.votes or votes,
            max(self.generation, generation),
            self.incarnation or incarnation,
        )
        if after != before:
            self.votes, self.generation, self.incarnation = after
            try:
                self._write()
            except BaseException:
                self.votes, self.generation, self.incarnation = before
                raise

    def standing(self) -> Standing:
        """The description of this folder for a peer."""
        return Standing(FolderKey(self.generation, self.id), self.incarnation, self.newcomer)

    def _write(self) -> None:
        """Write the file atomically: a new file, synced, takes the old one's name."""
        body = {
            "format": FORMAT,
            "node": self._node,
            "cluster": self._cluster,
            "folder": self.id,
            "generation": self.generation,
            "incarnation": self.incarnation,
            "votes": self.votes,
            "peers": {str(peer): list(key) for peer, key in self.known.items()},
        }
        text = json.dumps(body)
        data = json.dumps({"crc32": crc32(text.encode()), "identity": text}).encode()
        temporary = f"{self._path}.new"
        if self._disk.exists(temporary):
            self._disk.unlink(temporary)
        file = self._disk.open(temporary, create=True)
        try:
            file.pwrite(data, 0)
            file.datasync()
        finally:
            file.close()
        self._disk.rename(temporary, self._path)
        self._disk.sync_dir(self._path.rpartition("/")[0])


def has_served(disk: Disk, folder: str, node: int, cluster: str) -> bool:
    """Whether a node's data folder has been part of a cluster; blocking. Raises FolderError, and OSError."""
    path = f"{folder}/{NAME}"
    return disk.exists(path) and bool(_read(path, disk.read(path), node, cluster)["incarnation"])


def _read(path: str, data: bytes, node: int, cluster: str) -> dict[str, Any]:
    try:
        outer = json.loads(data)
        text = outer["identity"]
        if crc32(text.encode()) != outer["crc32"]:
            raise ValueError("its checksum does not match")
        fields: dict[str, Any] = json.loads(text)
        version, owner = fields["format"], (fields["node"], fields["cluster"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FolderError(f"{path} is damaged ({error}): bring it back, or {REPLACE}") from None
    if version != FORMAT:
        raise FolderError(f"{path} has format {version}, this release reads {FORMAT}: start the newer one")
    if owner != (node, cluster):
        raise FolderError(
            f"{path} belongs to node {owner[0]} of cluster {owner[1]!r}, this is node {node} of cluster"
            f" {cluster!r}: start with the data folder, node id and cluster id that belong together"
        )
    return fields
