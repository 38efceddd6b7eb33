"""The alerting rules and the dashboard ask for nothing that nodes do not expose."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from strandline.node.admin import metric_names
from strandline.node.admin.exposition import Metric, Type
from strandline.node.admin.health import REASONS
from tests import ROOT

FOLDER = ROOT / "docs" / "monitoring"
_SCRAPED = {"up", "job", "instance", "le"}
_WORDS = {"sum", "by", "max", "count", "rate", "increase", "histogram_quantile", "and", "on", "label_values"}


def metrics() -> dict[str, Metric]:
    """Every series' name and what it is of."""
    found = {}
    groups = [group for group in vars(metric_names).values() if isinstance(group, tuple)]
    for each in (each for group in groups for each in group if isinstance(each, Metric)):
        ends = ("_bucket", "_sum", "_count") if each.type is Type.HISTOGRAM else ("",)
        found.update({f"{each.name}{end}": each for end in ends})
    assert len(found) > 100
    return found


def alerts() -> list[dict[str, Any]]:
    plain = yaml.safe_load((FOLDER / "alerts.yaml").read_text())
    return [rule for group in plain["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((FOLDER / "grafana.json").read_text())["panels"]
    return found


def expressions() -> list[str]:
    asked = [rule["expr"] for rule in alerts()]
    asked += [target["expr"] for panel in panels() for target in panel["targets"]]
    return [*asked, "label_values(strandline_node_info, instance)"]


@pytest.mark.parametrize("expression", expressions())
def test_every_name_in_an_expression_is_exposed(expression: str) -> None:
    known = metrics()
    bare = re.sub(r'"[^"]*"|\[[^]]*\]', "", expression)
    names = set(re.findall(r"[a-z_]+", bare))
    asked = names & known.keys()
    assert asked or "up" in names, "it asks for no metric"
    labels = {label for name in asked for label in known[name].labels}
    assert names <= asked | labels | _SCRAPED | _WORDS


def test_every_alert_says_what_it_is_and_what_to_do() -> None:
    names = [rule["alert"] for rule in alerts()]
    assert len(names) == len(set(names)) >= 10
    for rule in alerts():
        assert set(rule["annotations"]) == {"summary", "cure"}
        assert rule["labels"]["severity"] in ("page", "ticket")


def test_the_values_of_labels_are_real() -> None:
    asked = " ".join(expressions())
    kinds = re.findall(r'kind=~"([^"]+)"', asked)
    assert kinds
    assert all(kind in ("put", "read", "list", "delete") for each in kinds for kind in each.split("|"))
    assert "storage_failing" in REASONS
