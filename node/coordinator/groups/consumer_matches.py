"""What the patterns of a consumer group's members match: counted, and kept within bounds.

It is part of the state, and a plan that changes any of it has all of it. A few characters may match thousands
of names, so a pattern counts together with them. And as others may create topics at any time, what a group
matches must not grow on its own until no plan fits into the log: then nobody could even leave.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from typing import Final

from strandline.statemachine.groups.consumer_group import ConsumerGroup

MAX_MATCH_BYTES: Final = 2 * 1024 * 1024
"""Of what the patterns of one group match, as `size_of_match` counts: one entry of the log has all of it, and
takes 4 MiB. What the matches leave is for new members and for everybody's targets."""
NAME_BYTES: Final = 32
"""What a name takes besides its characters: in memory, and in the log where its topic is assigned."""
Matches = Mapping[str, tuple[str, ...]]
"""Names of topics by pattern, ascending."""


def size_of_match(pattern: str, names: tuple[str, ...]) -> int:
    """Of a pattern with the names it matches, about, in bytes."""
    return NAME_BYTES + len(pattern.encode()) + NAME_BYTES * len(names) + sum(map(len, names))


def size_of_matches(matches: Matches) -> int:
    """Of all patterns of a group."""
    return sum(size_of_match(pattern, names) for pattern, names in matches.items())


class Matched:
    """How much the patterns of a draft's members match: each counts once, as long as any member has it."""

    def __init__(self, group: ConsumerGroup) -> None:
        self._group = group
        self.growth = 0
        """By how much it is more than what the group's patterns match as the log has it."""

    @property
    def total(self) -> int:
        """As it is now."""
        return self._before + self.growth

    @property
    def room(self) -> int:
        """How much more the patterns of one group may match; below 0 where it is too much already."""
        return MAX_MATCH_BYTES - self.total

    def cost(self, old: str, new: str, names: tuple[str, ...]) -> int:
        """By how much it grows when a member takes another pattern, which matches these names."""
        if new:
            self._sizes.setdefault(new, size_of_match(new, names))
        gained = self._sizes[new] if new and not self._members[new] else 0
        return gained - (self._sizes.get(old, 0) if self._members[old] == 1 else 0)

    def exchange(self, old: str, new: str) -> None:
        """A member has another pattern than it had; "" for none, and for whoever comes or goes."""
        if old == new:
            return
        for pattern, more in ((old, -1), (new, 1)):
            held = self._members[pattern]
            self._members[pattern] = held + more
            if pattern and not (held and held + more):  # it was nobody's, or is nobody's any more
                self.growth += more * self._sizes.get(pattern, 0)

    def settle(self, matches: Matches) -> None:
        """This is what the patterns match in the end."""
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
        """How many have each pattern. Of the group as the log has it, until `exchange` is first called."""
        return Counter(member.pattern for member in self._group.members.values())


def within(limit: int, matches: Matches, before: Matches) -> Matches:
    """What patterns match, where there is room; beyond `limit` one that the group had keeps what it matched
    `before`, as far as that still is. A pattern that is new to the group was found to have room.

    What this gives it gives again, made from itself: else every heartbeat would change the group.
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
