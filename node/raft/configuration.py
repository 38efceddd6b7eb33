"""The members of a group at one point of its log (Raft §6)."""

from __future__ import annotations

from strandline.node.raft.entries import Entry, Folders, unpack_members


class Configuration:
    """The voters, and the learners that are only brought up to date, from log index `index` on.

    A member is a node with the data folder that it had when it was added (KIP-853: id and directory). The
    first configuration of a group names no folders; the first change names those that its leader knows.
    """

    __slots__ = ("folders", "index", "learners", "named", "voters")

    def __init__(
        self, index: int, voters: tuple[int, ...], learners: tuple[int, ...] = (), folders: Folders = ()
    ) -> None:
        self.index = index
        self.folders = folders
        self.named = dict(folders)
        self.voters = tuple(sorted(voters))
        self.learners = tuple(sorted(learners))

    @property
    def members(self) -> tuple[int, ...]:
        return self.voters + self.learners


def unpack_configuration(entry: Entry) -> Configuration:
    """The configuration in a MEMBERSHIP entry; raises BadMessage."""
    return Configuration(entry[1], *unpack_members(entry[0]))
