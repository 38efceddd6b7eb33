"""What was set for a moment only counts too: a leader may have gone by it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.simulation.whole.compaction.settings import LAG_SECONDS, Settings

TOPIC = b"t" * 16


def test_a_policy_that_was_set_for_a_moment_is_known_and_until_when() -> None:
    now = [0.0]
    controller = SimpleNamespace(version=0, topics=())
    objects: Any = SimpleNamespace(controller=lambda: controller)
    settings = Settings(objects, lambda: now[0])

    def set_at(time: float, wanted: str) -> None:
        now[0] = time
        settings.applying()
        controller.version += 1
        controller.topics = (SimpleNamespace(topic_id=TOPIC, configs={"cleanup.policy": wanted}),)

    set_at(1.0, "compact")
    set_at(2.0, "delete")
    set_at(2.5, "compact")
    assert settings.had(TOPIC, "delete")
    assert settings.compacted(TOPIC)
    now[0] = 2.5 + LAG_SECONDS
    assert settings.had(TOPIC, "delete")
    now[0] += 0.01
    assert not settings.had(TOPIC, "delete"), "it was in force until 2.5, whenever that was noticed"
    assert not settings.flipped(TOPIC)
