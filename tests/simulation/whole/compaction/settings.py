"""The configurations of topics that are in force, and those that a node may still know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from strandline.statemachine.controller.controller_state import Topic
from strandline.statemachine.controller.settings import Configs
from strandline.statemachine.controller.topic_config import CLEANUP_POLICY, RETENTION_MS
from tests.simulation.whole.objects import Objects

LAG_SECONDS: Final = 6.0
"""A node is deaf, paused or cut off for 3 s at most, and then has to hear of what it missed."""


class Settings:
    """By the controller's newest state: `applying` hears of each of its entries."""

    def __init__(self, objects: Objects, now: Callable[[], float]) -> None:
        self._objects = objects
        self._now = now
        self._version = -1
        self._applied_at = 0.0
        self._by_topic: dict[bytes, list[tuple[float, Configs]]] = {}
        """What was set, and when."""

    def applying(self) -> None:
        """An entry of the controller is about to be applied: what it sets may be gone with the next one."""
        self._note()
        self._applied_at = self._now()

    def _note(self) -> None:
        """Take in what the last entry has changed."""
        controller = self._objects.controller()
        if controller is None or controller.version == self._version:
            return
        self._version = controller.version
        for topic in controller.topics:
            known = self._by_topic.setdefault(topic.topic_id, [])
            if not known or known[-1][1] != topic.configs:
                known.append((self._applied_at, dict(topic.configs)))

    def lately(self, topic_id: bytes) -> list[Configs]:
        """Those that some node may go by."""
        self._note()
        known = self._by_topic.get(topic_id, [])
        oldest = self._now() - LAG_SECONDS
        ends = [at for at, _ in known[1:]]
        return [
            configs for (_, configs), end in zip(known, [*ends, self._now()], strict=True) if end >= oldest
        ]

    def had(self, topic_id: bytes, policy: str) -> bool:
        """Whether some node may take the topic for one with this policy."""
        return any(policy in CLEANUP_POLICY.of(configs) for configs in self.lately(topic_id))

    def shortest_retention(self, topic: Topic) -> int:
        """As `Retention.limit_ms`."""
        found = [RETENTION_MS.of(configs) for configs in self.lately(topic.topic_id)]
        return min((one for one in found if one >= 0), default=-1)

    def compacted(self, topic_id: bytes) -> bool:
        """Whether it is compacted now."""
        self._note()
        return "compact" in CLEANUP_POLICY.of(self._by_topic[topic_id][-1][1])

    def flipped(self, topic_id: bytes) -> bool:
        """Whether it was not compacted a while ago, on some node: its local log there may be new."""
        return any("compact" not in CLEANUP_POLICY.of(configs) for configs in self.lately(topic_id))
