"""Topics that consumers subscribe to by patterns: what is looked at when they come, grow and go."""

from __future__ import annotations

import pytest

from strandline.node.re2.automaton import Automaton
from strandline.statemachine.controller.view_state import hidden_name
from tests.coordinator.consumers import Cluster


def test_a_new_topic_is_one_question_to_each_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(**{f"items-{number}": 1 for number in range(100)})
    topics = cluster.view()
    patterns = [f"items-.*{number}" for number in range(10)]
    first = topics.matches(patterns, {})
    asked: list[str] = []
    matches = Automaton.matches

    def counted(automaton: Automaton, name: str) -> bool:
        asked.append(name)
        return matches(automaton, name)

    monkeypatch.setattr(Automaton, "matches", counted)
    cluster.create("items-107", 1)
    cluster.create("other", 1)
    cluster.delete("items-17")
    cluster.grow("items-7", 3)
    now = topics.matches(patterns, {})
    assert sorted(asked) == ["items-107"] * len(patterns) + ["other"] * len(patterns)
    assert now["items-.*7"] == tuple(sorted({*first["items-.*7"], "items-107"} - {"items-17"}))
    assert now["items-.*8"] == first["items-.*8"]
    cluster.create("items-17", 1)
    assert topics.matching("items-.*7") == tuple(sorted({*first["items-.*7"], "items-107"})), (
        "it is there anew"
    )
    cluster.delete("items-17")
    cluster.create("items-17", 1)
    assert topics.matching("items-.*7").count("items-17") == 1, (
        "another one, which this node hears of at once"
    )
    assert topics.matching("items-.*7") is topics.matching("items-.*7")
    cluster.delete("items-17")
    assert topics.matching("other") == ("other",), "it is heard here that the topic is gone"
    cluster.create("items-17", 1)
    assert topics.matching("items-.*7").count("items-17") == 1


def test_a_pattern_does_not_match_a_topic_that_is_filled_out_of_sight() -> None:
    hidden = hidden_name(1, 2, 3)
    topics = Cluster(**{"orders": 1, hidden: 1}).view()
    assert topics.matching(".*") == ("orders",)
    assert topics.size(hidden) is not None, "it is there for a member that names it"
