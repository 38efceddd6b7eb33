"""The commands that wait for their entries: each ends as applied, rejected or unknown, and none silently."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from strandline.node.raft.outcome import Applied, NotLeader, Outcome, Unknown
from strandline.node.raft.rules.replica_state import Part

log = logging.getLogger(__name__)


class PendingCommands(Part):
    """The commands that a leader took and that have not ended."""

    __slots__ = ()

    def end(self, index: int, outcome: Outcome) -> None:
        """Give all commands that wait for `index` the same outcome."""
        state = self.state
        for _, size, future in state.waiting.pop(index, ()):
            state.waiting_bytes -= size
            if not future.done():
                future.set_result(outcome)

    def end_all(self, reason: str) -> None:
        """End every pending command as unknown: this replica is going away."""
        for index in list(self.state.waiting):
            self.end(index, Unknown(reason))

    def leadership_lost(self) -> None:
        """Give the new leader's log some time to tell what became of the commands."""
        state = self.state
        if state.waiting:
            self.host.loop.call_later(self.settings.command_grace_seconds, self.give_up, state.term)

    def give_up(self, term: int) -> None:
        """End the commands whose outcome a deposed leader could not learn."""
        state = self.state
        for index in list(state.waiting):
            later = [entry for entry in state.waiting[index] if entry[0] > term]
            state.waiting[index] = [entry for entry in state.waiting[index] if entry[0] <= term]
            self.end(index, Unknown(f"lost leadership of term {term} before the command was applied"))
            if later:
                state.waiting[index] = later

    def resolve(
        self, waiting: list[tuple[int, int, asyncio.Future[Outcome]]], result: Any, index: int, term: int
    ) -> None:
        """Give the result of an applied entry to its proposers.

        A proposer of another term gets NotLeader: its own entry at this index is lost for good, because no
        log can hold both.
        """
        state = self.state
        for proposed_term, size, future in waiting:
            state.waiting_bytes -= size
            if not future.done():
                if proposed_term == term:
                    future.set_result(Applied(result, index, term))
                else:
                    future.set_result(
                        NotLeader(state.leader, "another leader's entry took the command's place")
                    )
