"""Whether a cluster can do without a node, and draining one of its leaderships: nodes that the test plays."""

from __future__ import annotations

from typing import Any

import pytest

from strandline.cluster import leader_drain, well
from strandline.cluster.commands import clusters
from strandline.cluster.failure import CommandFailed
from strandline.cluster.leader_drain import Drained, drain_leaders
from strandline.cluster.well import lacks, wait_well
from tests.cluster.played_node import PlayedNode

HEALTHY = {"status": "healthy", "node": 1, "problems": []}
LEADS = {"node": 1, "leads": 0, "needed": 2, "drained_seconds": 60.0, "behind": []}


def node(number: int = 1, **changed: Any) -> PlayedNode:
    """One that is well, but for what is changed: the answers of `health`, `leaderships` or `drain`."""
    cluster = {"cluster_id": "c", "node": number, "cluster_epoch": 1, "controller": {"leader": 1}}
    answers: dict[str, tuple[int, Any]] = {
        "/health": (200, HEALTHY),
        "/api/cluster": (200, cluster),
        "/api/nodes": (200, {"nodes": []}),
        "/api/leaderships": (200, LEADS),
        "/api/leaderships/drain": (200, LEADS),
    }
    for path, answer in changed.items():
        answers["/health" if path == "health" else f"/api/{path}"] = answer
    return PlayedNode(answers)


def test_nothing_is_lacking_when_all_are_healthy_and_in_step() -> None:
    with node(1) as one, node(2) as two:
        assert lacks([one.address, two.address]) is None


def test_a_replica_that_is_not_in_step_is_named_with_its_leader() -> None:
    behind = [{"node": 3, "groups": 2, "examples": [7, 9]}]
    with node(1) as one, node(2, leaderships=(200, {**LEADS, "node": 2, "behind": behind})) as two:
        told = lacks([one.address, two.address])
    assert told == "node 3 is not in step in 2 of the groups that node 2 leads (group 7, 9)"


def test_the_node_that_does_not_answer_is_told_before_those_that_miss_it() -> None:
    away = {"problems": [{"reason": "nodes_away", "detail": "node 2 (silent)"}]}
    with node(1, health=(200, away)) as one, node(2) as two:
        gone = two.address
        assert "node 2 (silent)" in (lacks([one.address, two.address]) or "")
    with node(1, health=(200, away)) as one:
        told = lacks([one.address, gone])
    assert told is not None
    assert f"at {gone}: no answer" in told


def test_a_node_of_an_earlier_release_is_asked_for_its_health_alone() -> None:
    with node(1, leaderships=(404, {"error": "there is no such path"})) as one:
        assert lacks([one.address]) is None
        assert drain_leaders([one.address], 1, 60.0, 1.0, print) is None
    with node(1, leaderships=(401, {"error": "log in"})) as one:
        assert lacks([one.address]) == f"{one.address}: log in"


def test_a_wait_ends_with_what_is_lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(well, "_POLL_SECONDS", 0.0)
    told = iter(["node 3 is away", "node 3 is not in step", None])
    monkeypatch.setattr(well, "lacks", lambda _: next(told))
    said: list[str] = []
    assert wait_well([], 60.0, said.append) is None
    assert said == ["node 3 is away", "node 3 is not in step"]
    monkeypatch.setattr(well, "lacks", lambda _: "node 3 is away")
    assert wait_well([], 0.0, said.append) == "node 3 is away"


def test_the_node_itself_is_drained_until_it_leads_nothing() -> None:
    leads = (200, {**LEADS, "drained_seconds": None})
    with node(1, leaderships=leads) as one, node(2, leaderships=(200, {**LEADS, "node": 2})) as two:
        assert drain_leaders([one.address, two.address], 2, 60.0, 1.0, print) == Drained(2, 0, 2)
        assert ("POST", "/api/leaderships/drain", {"node": 2, "seconds": 60.0}) in two.asked
        assert all(method == "GET" for method, _, _ in one.asked)
        with pytest.raises(CommandFailed, match=r"node 3 is at none of these addresses .* is node 1; "):
            drain_leaders([one.address, two.address], 3, 60.0, 1.0, print)


def test_a_second_node_is_not_drained_beside_another() -> None:
    """Both would be restarted at once. Each begins its drain before it looks: one sees the other."""
    left = (200, {**LEADS, "node": 2})
    begun = (200, LEADS)
    with node(1, **{"leaderships/drain": begun}) as one, node(2, leaderships=left) as two:
        with pytest.raises(CommandFailed, match="node 2 is drained of its leaderships, for 60 s") as told:
            drain_leaders([one.address, two.address], 1, 60.0, 1.0, print)
        posts = [body for method, _, body in one.asked if method == "POST"]
    assert posts == [{"node": 1, "seconds": 60.0}, {"node": 1, "seconds": 0}]
    assert told.value.cure.endswith("strandline node drain 2 --leaders --undo")


def test_a_node_that_goes_on_leading_is_let_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_drain, "_POLL_SECONDS", 0.0)
    stuck = (200, {**LEADS, "leads": 2})
    with node(1, **{"leaderships": stuck, "leaderships/drain": stuck}) as one:
        with pytest.raises(CommandFailed, match=r"node 1 still leads 2 of 2 groups after 0.05 s"):
            drain_leaders([one.address], 1, 60.0, 0.05, lambda _: None)
        assert one.asked[-1] == ("POST", "/api/leaderships/drain", {"node": 1, "seconds": 0})


def test_a_drain_that_the_node_has_ended_is_told() -> None:
    ended = (200, {**LEADS, "leads": 2, "drained_seconds": None})
    with (
        node(1, **{"leaderships/drain": ended}) as one,
        pytest.raises(CommandFailed, match="node 1 has ended its drain, and leads 2 groups"),
    ):
        drain_leaders([one.address], 1, 60.0, 5.0, lambda _: None)


def test_status_waits_until_all_is_well_and_tells_what_is_lacking_when_it_is_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    behind = [{"node": 3, "groups": 2, "examples": [7]}]
    with node(1, leaderships=(200, {**LEADS, "behind": behind})) as one:
        with pytest.raises(CommandFailed, match=r"not well after 0\.05 s: node 3 is not in step in 2"):
            clusters.status(wait=0.05, admin=one.address)
        one.answers["/api/leaderships"] = (200, LEADS)
        clusters.status(wait=5.0, admin=one.address)
        assert "healthy" in capsys.readouterr().out


def test_a_group_that_changes_its_leader_after_the_wait_is_looked_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clusters, "_LOOK_SECONDS", 0.0)
    looks = iter([False, False, True, False])
    assert clusters._calm(lambda: next(looks), bool, 60.0)
    assert not clusters._calm(lambda: next(looks), bool, 0.0)
    assert not clusters._calm(lambda: False, bool, 60.0)
