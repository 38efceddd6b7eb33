"""Processes that came under a known node id with another data folder (docs/raft.md, "Folders")."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from strandline.node.raft.data_folder import Folder
from strandline.node.raft.mesh.link import Link

STRANGER_SECONDS: Final = 15.0
"""For so long the last coming of a refused process is news; it dials, or is dialled, every second."""


@dataclass(frozen=True, slots=True)
class Stranger:
    """A process that came under a peer's node id with a data folder that is not that peer's."""

    folder: int
    at: float
    """When it came last, by the loop's clock."""
    foreign: bool = False
    """The folder is of another incarnation of the cluster: it cannot be let in."""


class Strangers:
    """The processes refused for their data folder, and whether this node was refused for its own."""

    folder: Folder

    def __init__(self, time: Callable[[], float]) -> None:
        self.known: dict[int, Stranger] = {}
        """By node id, those refused for their data folder and not let in since."""
        self._time = time
        self._disowned_at: float | None = None

    def judge(self, link: Link) -> str | None:
        """Reason to refuse the other side's data folder; None if it is accepted."""
        why = self.folder.judges(link.peer, link.standing)
        if why is not None:
            foreign = self.folder.is_foreign(link.standing)
            self.known[link.peer] = Stranger(link.standing.key.folder, self._time(), foreign)
        return why

    def let_in(self, peer: int) -> None:
        """The peer's folder and this node's were taken."""
        self.known.pop(peer, None)
        self._disowned_at = None

    def forget_if_known(self, peer: int) -> None:
        """A folder that is in force now is no stranger's any more."""
        key = self.folder.known.get(peer)
        if peer in self.known and key is not None and key.folder == self.known[peer].folder:
            del self.known[peer]

    def refused_here(self, peer: int | None) -> None:
        """A connection ended for a data folder: the peer's, or, if that is no stranger, this node's own."""
        if peer not in self.known:
            self._disowned_at = self._time()

    def is_disowned(self) -> bool:
        """Whether a peer said lately that it knows this node by another data folder."""
        at = self._disowned_at
        return at is not None and self._time() - at < STRANGER_SECONDS

    def knocking(self) -> dict[int, Stranger]:
        """By node id, the processes that come with other data folders; one that stopped coming is no news."""
        since = self._time() - STRANGER_SECONDS
        return {node: each for node, each in sorted(self.known.items()) if each.at > since}
