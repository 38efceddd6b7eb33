"""The topics that the patterns of a consumer group's members match: counted, and kept within bounds.

The matches are part of the state, and a plan that changes any of them contains all. A few characters may
match thousands of names, so a pattern counts together with its matches. Since other users may create topics
at any time, the matches of a group must not grow on their own until no plan fits into the log: then no member
could even leave.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from typing import Final

from strandline.statemachine.groups.consumer_group import ConsumerGroup

MAX_MATCH_BYTES: Final = 2 * 1024 * 1024
"""Bound on the matches of one group's patterns, as `size_of_match` counts: one log entry has all of them, and
takes 4 MiB. The rest of it is for new members and for the targets of all."""
NAME_BYTES: Final = 32
"""Bytes of a name besides its characters: in memory, and in the log where its topic is assigned."""
Matches = Mapping[str, tuple[str, ...]]
"""Names of topics by pattern, ascending."""


def size_of_match(pattern: str, names: tuple[str, ...]) -> int:
    """Approximate bytes of a pattern with the names it matches."""
    return NAME_BYTES + len(pattern.encode()) + NAME_BYTES * len(names) + sum(map(len, names))


def size_of_matches(matches: Matches) -> int:
    """Of all patterns of a group."""
    return sum(size_of_match(pattern, names) for pattern, names in matches.items())


class Matched:
    """Bytes that the patterns of a draft's members match; a pattern of several members counts once."""

    def __init__(self, group: ConsumerGroup) -> None:
        self._group = group
        self.growth = 0
        """Bytes that were added to the matches which the log has of the group."""

    @property
    def total(self) -> int:
        """As it is now."""
        return self._before + self.growth

    @property
    def room(self) -> int:
        """Bytes that the patterns of one group may still match; negative if they match too much already."""
        return MAX_MATCH_BYTES - self.total

    def cost(self, old: str, new: str, names: tuple[str, ...]) -> int:
        """By how much it grows when a member takes another pattern, which matches these names."""
        if new:
            self._sizes.setdefault(new, size_of_match(new, names))
        gained = self._sizes[new] if new and not self._members[new] else 0
        return gained - (self._sizes.get(old, 0) if self._members[old] == 1 else 0)

    def exchange(self, old: str, new: str) -> None:
        """Count a member's change of pattern; "" stands for none, and for a member that joins or leaves."""
        if old == new:
            return
        for pattern, more in ((old, -1), (new, 1)):
            held = self._members[pattern]
            self._members[pattern] = held + more
            if pattern and not (held and held + more):  # no member had it before, or none has it now
                self.growth += more * self._sizes.get(pattern, 0)

    def settle(self, matches: Matches) -> None:
        """Set the final matches of the patterns."""
        self.growth = size_of_matches(matches) - self._before

    @cached_property
    def _sizes(self) -> dict[str, int]:
        """By pattern, also of some that no member has."""
        return {pattern: size_of_match(pattern, names) for pattern, names in self._group.matches.items()}

    @cached_property
    def _before(self) -> int:
        return size_of_matches(self._group.matches)

    @cached_property
    def _members(self) -> Counter[str]:
        """Number of members by pattern; until `exchange` is first called, those of the logged group."""
        return Counter(member.pattern for member in self._group.members.values())


def within(limit: int, matches: Matches, before: Matches) -> Matches:
    """The matches of the patterns within `limit` bytes: a pattern beyond it keeps what it matched `before`.

    Of the earlier matches only those that still match are kept. A pattern that is new to the group was found
    to have room. The function is idempotent: applied to its own result it gives the same, else every
    heartbeat would change the group.
    """
    if size_of_matches(matches) <= limit:
        return matches
    kept = dict(matches)
    for pattern in matches.keys() & before.keys():
        there = frozenset(matches[pattern])
        kept[pattern] = tuple(name for name in before[pattern] if name in there)
    size = size_of_matches(kept)
    for pattern in sorted(matches):
        more = size_of_match(pattern, matches[pattern]) - size_of_match(pattern, kept[pattern])
        if not more or size + more <= limit:
            kept[pattern] = matches[pattern]
            size += more
    return kept
