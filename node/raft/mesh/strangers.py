"""The data folder of each peer: accepted, stored, or refused as a stranger's (docs/raft.md, "Folders")."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from strandline.node.raft.data_folder import Folder, Standing
from strandline.node.raft.mesh.link import Link
from strandline.node.raft.mesh.problems import MeshReason

STRANGER_SECONDS: Final = 15.0
"""The last coming of a refused process is news for this long; it dials, or is dialled, every second."""


@dataclass(frozen=True, slots=True)
class Stranger:
    """A process that came under a peer's node id with a data folder that is not that peer's."""

    folder: int
    at: float
    """When it came last, by the loop's clock."""
    foreign: bool = False
    """The folder is of another incarnation of the cluster: it cannot be let in."""
    replaced: bool = False
    """The controller has counted this folder, and another one since: it cannot be let in again."""


class Strangers:
    """The processes refused for their data folder, and whether this node was refused for its own."""

    folder: Folder

    def __init__(self, time: Callable[[], float]) -> None:
        self.known: dict[int, Stranger] = {}
        """By node id, those refused for their data folder and not let in since."""
        self._held: dict[int, tuple[Link, Callable[[Link], None]]] = {}
        """By node id, the newest link that waits for its peer's folder to be on the disk."""
        self._storing = False
        self._time = time
        self._disowned_at: float | None = None
        self.was_disowned = False
        """Whether a peer ever said so to this process: its folder did not found the cluster."""

    def check(self, link: Link) -> str | None:
        """MeshReason to refuse the other side's data folder; None if it is accepted."""
        return self.refusal(link.peer, link.standing)

    def refusal(self, peer: int, standing: Standing) -> str | None:
        """Reason to refuse a process with this folder, which is remembered; None if it is accepted."""
        why = self.folder.reason_to_refuse(peer, standing)
        if why is not None:
            key, foreign = standing.key, self.folder.is_foreign(standing)
            known = self.folder.known.get(peer)
            replaced = known is not None and 0 < key.generation < known.generation
            self.known[peer] = Stranger(key.folder, self._time(), foreign, replaced)
        return why

    def admit(self, link: Link, connected: Callable[[Link], None]) -> None:
        """Call `connected(link)` once the folder of the link's peer is on this node's disk.

        At once if it is. The link is held meanwhile, and it ends if a folder is refused or cannot be stored,
        or if a newer link of the peer comes up: what this one still holds is of a connection before.
        """
        if not self._accepts(link):
            return
        if (before := self._held.pop(link.peer, None)) is not None:
            before[0].close()
        self.folder.meet(link.peer, link.standing)
        if self.folder.has_stored(link.peer, link.standing):
            self._let_in(link, connected)
        else:
            link.hold()
            self._held[link.peer] = link, connected
            self._store()

    def _store(self) -> None:
        """One call at a time, however often peers come while a disk hangs."""
        if not self._storing:
            self._storing = True
            self.folder.store(partial(self._stored, [link for link, _ in self._held.values()]))

    def _stored(self, waited: list[Link], error: Exception | None) -> None:
        """The folders of these links' peers are on the disk, or cannot be; others may have come since."""
        self._storing = False
        for link in waited:
            held, connected = self._held.get(link.peer, (None, None))
            if held is link and connected is not None:
                del self._held[link.peer]
                self._end_hold(link, connected, error)
        if self._held:
            self._store()

    def _end_hold(self, link: Link, connected: Callable[[Link], None], error: Exception | None) -> None:
        """Either side's folder may have changed since the link was held."""
        if link.closing:
            return
        if error is not None:
            link.fail(
                MeshReason.NOT_NOTED, f"its data folder's identity cannot be noted: {error}: mend the disk"
            )
        elif self._accepts(link):
            self._let_in(link, connected)
            link.release()

    def _accepts(self, link: Link) -> bool:
        """Whether both folders stand as the handshake said and as is known here; ends the link if not."""
        if link.handshake.told.newcomer != self.folder.newcomer:
            # A vote came during the handshake: for as long as this connection lasts it would not count there.
            link.close()
            return False
        why = self.check(link)
        if why is not None:
            link.fail(MeshReason.OTHER_FOLDER, why)
        return why is None

    def _let_in(self, link: Link, connected: Callable[[Link], None]) -> None:
        self.known.pop(link.peer, None)
        self._disowned_at = None
        connected(link)

    def forget_if_known(self, peer: int) -> None:
        """A folder that is in force now is no stranger's any more."""
        key = self.folder.known.get(peer)
        if peer in self.known and key is not None and key.folder == self.known[peer].folder:
            del self.known[peer]

    def disowned(self) -> None:
        """A peer that proved the secret knows this node by another data folder than it has."""
        self._disowned_at, self.was_disowned = self._time(), True

    def is_disowned(self) -> bool:
        """Whether a peer said lately that it knows this node by another data folder."""
        at = self._disowned_at
        return at is not None and self._time() - at < STRANGER_SECONDS

    def knocking(self) -> dict[int, Stranger]:
        """By node id, the processes that come with other data folders; one that stopped coming is no news."""
        since = self._time() - STRANGER_SECONDS
        return {node: each for node, each in sorted(self.known.items()) if each.at > since}
