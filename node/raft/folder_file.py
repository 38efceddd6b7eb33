"""The file of a data folder's identity, read and written atomically (docs/raft.md, "Folders")."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from zlib import crc32

from strandline.node.raft.disk import Disk
from strandline.node.raft.wal.format import REPLACE

NAME: Final = "identity"
FORMAT: Final = 1
UNSTARTED: Final = "restored-and-never-started"
"""A restore makes this file first in a data folder, and the node's first start removes it."""


class FolderError(Exception):
    """The folder's identity cannot be trusted; one line with file, cause and cure."""


class FolderKey(NamedTuple):
    """One folder of a node: its generation, which the controller counts, and its identity.

    Generation 0 is that of a folder the controller has not registered.
    """

    generation: int
    folder: int


@dataclass(frozen=True, slots=True)
class FolderFields:
    """The content of the file, but for the node and the cluster."""

    folder: int
    """The identity that the folder drew when it was made."""
    generation: int
    incarnation: str
    votes: bool
    peers: dict[int, FolderKey]
    """By node id, the folders of the other nodes."""
    addresses: dict[int, tuple[str, int]] = field(default_factory=dict)
    """By node id, where the mesh finds nodes of which the configuration does not say it."""


class FolderFile:
    """The identity's file in one data folder, of one node of one cluster. Every method blocks."""

    def __init__(self, disk: Disk, folder: str, node: int, cluster: str) -> None:
        self.path = f"{folder}/{NAME}"
        self._disk = disk
        self._node = node
        self._cluster = cluster

    def exists(self) -> bool:
        return self._disk.exists(self.path)

    def read(self) -> FolderFields:
        """Read the file. Raises FolderError if it is damaged or another node's, and OSError."""
        fields = self._decode(self._disk.read(self.path))
        peers = {int(peer): FolderKey(*key) for peer, key in fields["peers"].items()}
        addresses = {int(node): (str(host), int(port)) for node, (host, port) in _told(fields).items()}
        return FolderFields(
            fields["folder"], fields["generation"], fields["incarnation"], fields["votes"], peers, addresses
        )

    def write(self, fields: FolderFields) -> None:
        """Replace the content durably: a new file, synced, takes the old one's name. Raises OSError."""
        body = {
            "format": FORMAT,
            "node": self._node,
            "cluster": self._cluster,
            "folder": fields.folder,
            "generation": fields.generation,
            "incarnation": fields.incarnation,
            "votes": fields.votes,
            "peers": {str(peer): list(key) for peer, key in sorted(fields.peers.items())},
        }
        if fields.addresses:
            # A release that does not know of them reads the rest.
            body["addresses"] = {str(node): list(one) for node, one in sorted(fields.addresses.items())}
        text = json.dumps(body)
        data = json.dumps({"crc32": crc32(text.encode()), "identity": text}).encode()
        temporary = f"{self.path}.new"
        if self._disk.exists(temporary):
            self._disk.unlink(temporary)
        file = self._disk.open(temporary, create=True)
        try:
            file.pwrite(data, 0)
            file.datasync()
        finally:
            file.close()
        self._disk.rename(temporary, self.path)
        self._disk.sync_dir(self.path.rpartition("/")[0])

    def _decode(self, data: bytes) -> dict[str, Any]:
        path = self.path
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
            raise FolderError(
                f"{path} has format {version}, this release reads {FORMAT}: start the newer one"
            )
        if owner != (self._node, self._cluster):
            raise FolderError(
                f"{path} belongs to node {owner[0]} of cluster {owner[1]!r}, this is node {self._node} of"
                f" cluster {self._cluster!r}: start with the data folder, node id and cluster id that belong"
                " together"
            )
        return fields


def _told(fields: dict[str, Any]) -> dict[str, Any]:
    """The addresses in the file; a file of an earlier release has none."""
    found: dict[str, Any] = fields.get("addresses", {})
    return found


def has_served(disk: Disk, folder: str, node: int, cluster: str) -> bool:
    """Whether a node's data folder has been part of a cluster; blocking. Raises FolderError, and OSError."""
    file = FolderFile(disk, folder, node, cluster)
    return file.exists() and bool(file.read().incarnation)


def begin_use(disk: Disk, folder: str) -> None:
    """Remove the mark of a restored folder, durably, before its node promises anything; raises OSError.

    From then on the folder may hold what nothing else does, and no restore removes it.
    """
    if disk.exists(f"{folder}/{UNSTARTED}"):
        disk.unlink(f"{folder}/{UNSTARTED}")
        disk.sync_dir(folder)
