"""The rules of removal that a walk can break, each by its name: removal_walk.py."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from strandline.node.compaction import removal_leader
from strandline.node.compaction.removal_minimum import Ends
from strandline.node.raft.configuration import Configuration
from tests.compaction.removal_nodes import GROUP, RemovalNode

RULES = {
    "answered": "the minimum is over all members, not those that answered",
    "greatest": "the newest report counts, not the greatest",
    "stays": "a lost connection clears what came over it",
    "level_one": "level one counts",
    "floor": "a floor rises only while the log is empty",
    "in_step": "a log that lacks a tombstone is reset",
    "less_clean": "a publisher that is less clean is refused",
    "term": "an entry carries the term it was made in, and reports that of their leader",
}
"""Broken here, but for the rules of local logs, of the state machine and of entries, which are broken in the
walk."""


def break_rules(node: RemovalNode, broken: Collection[str]) -> None:
    """Take these rules out of a node's production code."""
    heard = node.reports
    if "greatest" in broken:
        take = heard._take

        def keep_the_greatest(known: dict[int, Any], number: int, rows: list[list[int]]) -> None:
            before = known.get(GROUP)
            take(known, number, rows)
            now = known.get(GROUP)
            if before and now and before.term == now.term and (before.ends or now.ends):
                best = max(before.ends or now.ends, now.ends or before.ends)
                known[GROUP] = now._replace(ends=best)

        heard._take = keep_the_greatest  # type: ignore[method-assign, assignment]
    if "stays" in broken:
        kept: dict[int, Any] = {}
        lost, found = heard._on_disconnect, heard._on_connect

        def disconnect(peer: int) -> None:
            kept[peer] = heard._received.get(peer, {})
            lost(peer)
            heard._received[peer] = kept[peer]

        def connect(peer: int) -> None:
            found(peer)
            heard._received[peer] = kept.get(peer, {})

        node.on_disconnect, node.on_connect = disconnect, connect
    copies = node.leader.copies

    def fewer(replica: Any) -> removal_leader.Copies:
        seen = copies(replica)
        if "answered" in broken:
            there = Configuration(seen.configuration.index, tuple(seen.known))
            seen = seen._replace(configuration=there)
        if "level_one" in broken:
            seen = seen._replace(level_one=Ends(1 << 40, 1 << 40))
        if "term" in broken:
            spoken = {
                one: found.ends
                for one in seen.configuration.members
                if (found := heard._received.get(one, {}).get(GROUP)) is not None and found.ends is not None
            }
            seen = seen._replace(known={**spoken, **seen.known})
        return seen

    node.leader.copies = fewer  # type: ignore[method-assign]
