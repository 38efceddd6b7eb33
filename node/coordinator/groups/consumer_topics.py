"""The topics that consumers can subscribe to, as the groups of KIP-848 see them at their coordinator.

A group's target follows from its members and from these. So they are looked at in one place, by name, with
the version of the controller that tells when a look is out of date.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from itertools import takewhile
from typing import TYPE_CHECKING, Final, NamedTuple

from strandline.node.re2.automaton import Automaton, InvalidPattern
from strandline.node.re2.patterns import compiled
from strandline.statemachine.controller.view_state import is_hidden
from strandline.statemachine.internal_topics import INTERNAL_TOPICS

if TYPE_CHECKING:
    from strandline.statemachine.controller.controller import Controller

MAX_PATTERNS: Final = 256
"""Number of patterns whose automata are kept; beyond it they are compiled again when they are needed."""

_log = logging.getLogger(__name__)


class TopicSize(NamedTuple):
    """A topic that is there."""

    topic_id: bytes
    partitions: int


class _Known(NamedTuple):
    automaton: Automaton
    version: int
    """Version of the controller's state for which `names` is complete."""
    births: int
    """Number of topics that were known at that version."""
    names: tuple[str, ...]
    """Those that match, ascending."""


class Topics:
    """A coordinator's view of the topics; `controller` gives this node's replica of the controller."""

    def __init__(self, controller: Callable[[], Controller]) -> None:
        self._controller = controller
        self._patterns: OrderedDict[str, _Known] = OrderedDict()
        self._born: dict[str, int] = {}
        """All topics with records as of `_version`, numbered in the order in which this view met them, but
        for those that are filled out of sight: these are in no list of all topics either."""
        self._births = 0
        self._version = -1

    @property
    def version(self) -> int:
        """Equal versions: equal topics."""
        return self._controller().version

    def size(self, name: str) -> TopicSize | None:
        """The topic of this name; None while there is none, or for one without records."""
        topic = None if name in INTERNAL_TOPICS else self._controller().topic(name)
        return None if topic is None else TopicSize(topic.topic_id, len(topic.partitions))

    def name_of(self, topic_id: bytes) -> str | None:
        """The name of a topic that is there."""
        topic = self._controller().topic_by_id(topic_id)
        return None if topic is None else topic.name

    def matching(self, pattern: str) -> tuple[str, ...]:
        """Names that match a pattern as a whole, ascending; raises InvalidPattern.

        Only topics that are new to it are looked at: there may be thousands, and hundreds of patterns.
        """
        self._look()
        known = self._patterns.get(pattern) or _Known(compiled(pattern), -1, 0, ())
        if known.version != self._version:
            new = takewhile(lambda name: self._born[name] > known.births, reversed(self._born))
            names = [name for name in known.names if self._born.get(name, self._births + 1) <= known.births]
            names += filter(known.automaton.matches, new)
            known = known._replace(version=self._version, births=self._births, names=tuple(sorted(names)))
        self._patterns[pattern] = known
        self._patterns.move_to_end(pattern)
        if len(self._patterns) > MAX_PATTERNS:
            self._patterns.popitem(last=False)
        return known.names

    def _look(self) -> None:
        """Take in the topics that came and went."""
        if self._version == self.version:
            return
        self._version = self.version
        there = dict.fromkeys(topic.name for topic in self._controller().topics)
        self._born = {name: number for name, number in self._born.items() if name in there}
        for name in there:
            if name not in self._born and name not in INTERNAL_TOPICS and not is_hidden(name):
                self._births += 1
                self._born[name] = self._births

    def matches(
        self, patterns: Iterable[str], before: Mapping[str, tuple[str, ...]]
    ) -> dict[str, tuple[str, ...]]:
        """The names that each pattern matches; one that is too costly by now keeps those of `before`."""
        found = {}
        for pattern in sorted(patterns):
            try:
                found[pattern] = self.matching(pattern)
            except InvalidPattern as error:
                _log.warning("the subscription pattern %r cannot be matched again: %s", pattern, error)
                found[pattern] = before.get(pattern, ())
        return found


def digest(names: Iterable[str], topics: Topics) -> bytes:
    """Of the ids and sizes of the topics among these names (each once, in order) that are there."""
    hashed = blake2b(digest_size=8)
    for name in names:
        size = topics.size(name)
        if size is not None:
            hashed.update(b"%s %b %d;" % (name.encode(), size.topic_id, size.partitions))
    return hashed.digest()
