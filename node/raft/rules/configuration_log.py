"""The members of a group as its log says them: the newest configuration counts, committed or not (Raft §6).

PySyncObj let journalled changes count only once applied after a restart, and stored the current members with
a snapshot instead of those at its index.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from strandline.node.raft.configuration import Configuration, unpack_configuration
from strandline.node.raft.entries import Entry, EntryKind
from strandline.node.raft.pysyncobj_seam import LEADER
from strandline.node.raft.rules.progress import Progress
from strandline.node.raft.rules.replica_state import Part

log = logging.getLogger(__name__)


class ConfigurationLog(Part):
    """The configurations in a replica's log: each counts as soon as it is there (Raft §6)."""

    __slots__ = ()

    def note(self, entries: Sequence[Entry]) -> None:
        """Use every configuration as soon as it is in the log (Raft §6)."""
        membership = EntryKind.MEMBERSHIP
        changed = [entry for entry in entries if entry[0][0] == membership]
        if changed:
            self.state.configurations += [unpack_configuration(entry) for entry in changed]
            self.changed()

    def forget(self, index: int) -> None:
        """Entries from `index` on were deleted: the newest configuration left counts again."""
        state = self.state
        count = len(state.configurations)
        while len(state.configurations) > 1 and state.configurations[-1].index >= index:
            state.configurations.pop()
        if len(state.configurations) != count:
            self.changed()

    def at(self, index: int) -> Configuration:
        """The members as of log index `index`; a snapshot at that index must hold them."""
        state = self.state
        for configuration in reversed(state.configurations):
            if configuration.index <= index:
                return configuration
        return state.configurations[0]

    def compact(self, index: int) -> None:
        """Forget configurations that a snapshot at `index` makes history."""
        state = self.state
        while len(state.configurations) > 1 and state.configurations[1].index <= index:
            state.configurations.pop(0)

    def changed(self) -> None:
        state = self.state
        state.note_members()
        if state.role != LEADER:
            return
        for peer in state.peers:
            if peer not in state.progress:
                state.progress[peer] = Progress(self.journal.last + 1)
        self.host.set_active(state, True)
