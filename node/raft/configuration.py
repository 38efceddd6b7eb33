"""The members of a group at one point of its log (Raft §6)."""

from __future__ import annotations

from strandline.node.raft.entries import Entry, unpack_members


class Configuration:
    """The voters, and the learners that are only brought up to date, from log index `index` on."""

    __slots__ = ("index", "learners", "voters")

    def __init__(self, index: int, voters: tuple[int, ...], learners: tuple[int, ...] = ()) -> None:
        self.index = index
        self.voters = tuple(sorted(voters))
        self.learners = tuple(sorted(learners))

    @property
    def members(self) -> tuple[int, ...]:
        return self.voters + self.learners


def unpack_configuration(entry: Entry) -> Configuration:
    """The configuration in a MEMBERSHIP entry; raises BadMessage."""
    return Configuration(entry[1], *unpack_members(entry[0]))
