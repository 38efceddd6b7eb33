"""A rolling restart of a local cluster, with a stand-in for the nodes and a played state of the cluster."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from strandline.cluster import rolling_restart
from strandline.cluster.failure import MISUSED, CommandFailed
from strandline.cluster.leader_drain import Drained
from strandline.cluster.local import LocalCluster, quiet
from strandline.cluster.local_files import RESTORING
from strandline.cluster.ports import free_ports
from strandline.cluster.rolling_restart import PLAN, Restarted, restart_rolling

STAND_IN = (sys.executable, "-P", str(Path(__file__).with_name("stand_in.py")))


def pids(local: LocalCluster) -> dict[int, int]:
    return {node.node: node.pid for node in local.description.nodes.values() if node.pid is not None}


class Played:
    """The cluster as the command sees it: what is lacking, and what it asked of the nodes."""

    def __init__(self) -> None:
        self.lacking: Callable[[], str | None] = lambda: None
        self.asked: list[str] = []

    def lacks(self, _: Sequence[str]) -> str | None:
        return self.lacking()

    def wait_well(self, _: Sequence[str], __: float, ___: Any) -> str | None:
        self.asked.append("well?")
        return self.lacking()

    def drain(self, _: Sequence[str], node: int, *__: Any) -> Drained:
        self.asked.append(f"drain {node}")
        return Drained(node, 4, 1)

    def undrain(self, _: Sequence[str], node: int) -> None:
        self.asked.append(f"undrain {node}")


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalCluster]:
    cluster = LocalCluster(tmp_path / "cluster", program=STAND_IN)
    cluster.up(3, choose_ports=free_ports, timeout=60.0)
    try:
        yield cluster
    finally:
        with contextlib.suppress(CommandFailed):
            cluster.down(2.0)


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    made = Played()
    monkeypatch.setattr(rolling_restart, "lacks", made.lacks)
    monkeypatch.setattr(rolling_restart, "wait_well", made.wait_well)
    monkeypatch.setattr(rolling_restart, "drain_leaders", made.drain)
    monkeypatch.setattr(rolling_restart, "undrain", made.undrain)
    return made


def rolling(
    local: LocalCluster, *nodes: int, again: bool = False, resume: bool = False, timeout: float = 20.0
) -> list[Restarted]:
    return restart_rolling(local, nodes, again=again, resume=resume, timeout=timeout, progress=quiet)


def test_each_node_is_drained_and_restarted_once_all_is_well(local: LocalCluster, played: Played) -> None:
    first = pids(local)
    done = rolling(local)
    assert played.asked == ["well?", *(word for node in (1, 2, 3) for word in (f"drain {node}", "well?"))]
    assert [(each.node, each.handed_over, each.needed) for each in done] == [(1, 4, 1), (2, 4, 1), (3, 4, 1)]
    assert {each.node: each.pid for each in done} == pids(local)
    assert not set(first.values()) & set(pids(local).values())
    assert not (local.folder / PLAN).exists()
    assert [each.node for each in rolling(local, 2)] == [2]


def test_a_cluster_that_is_not_well_is_left_as_it_is(local: LocalCluster, played: Played) -> None:
    first = pids(local)
    played.lacking = lambda: "node 3 is away"
    with pytest.raises(CommandFailed, match="no node was stopped: node 3 is away; mend that first"):
        rolling(local)
    assert played.asked == ["well?"]
    assert pids(local) == first
    assert not (local.folder / PLAN).exists()


def test_a_node_is_not_stopped_when_another_is_lost_while_it_is_drained(
    local: LocalCluster, played: Played
) -> None:
    first = pids(local)
    told = iter([None, "node 3 is away"])
    played.lacking = lambda: next(told)
    with pytest.raises(CommandFailed, match="node 1 was not stopped: node 3 is away"):
        rolling(local)
    assert played.asked[-1] == "undrain 1"
    assert pids(local) == first


@pytest.mark.parametrize("moment", ["stop", "start"])
def test_a_restart_that_was_cut_off_goes_on_where_it_was(
    local: LocalCluster, played: Played, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    first = pids(local)
    real = getattr(local, moment)

    def cut(node: int, **options: Any) -> Any:
        if node == 2:
            raise KeyboardInterrupt
        return real(node, **options)

    monkeypatch.setattr(local, moment, cut)
    with pytest.raises(KeyboardInterrupt):
        rolling(local)
    monkeypatch.undo()
    for name in ("lacks", "wait_well", "undrain"):
        monkeypatch.setattr(rolling_restart, name, getattr(played, name))
    monkeypatch.setattr(rolling_restart, "drain_leaders", played.drain)
    after = pids(local)
    with pytest.raises(CommandFailed, match="nodes 1, 2, 3 was cut off; leave out the nodes") as caught:
        rolling(local, 3)
    assert caught.value.status == MISUSED
    assert [each.node for each in rolling(local)] == [2, 3]
    assert pids(local)[1] == after[1] != first[1]
    assert not {first[2], first[3]} & set(pids(local).values())
    assert not (local.folder / PLAN).exists()


def cut_off_behind_node_1(local: LocalCluster, played: Played) -> None:
    told = iter([None, None, None, "node 1 is away", None])
    played.lacking = lambda: next(told, None)
    with pytest.raises(CommandFailed, match="node 2 was not stopped"):
        rolling(local)


def test_again_restarts_also_what_the_call_that_was_cut_off_has_done(
    local: LocalCluster, played: Played
) -> None:
    cut_off_behind_node_1(local, played)
    assert [each.node for each in rolling(local, again=True)] == [1, 2, 3]


def test_an_old_restart_is_told_with_its_age_and_goes_on_if_told_to(
    local: LocalCluster, played: Played
) -> None:
    """Nodes that it has done might be meant once more, with other configuration."""
    cut_off_behind_node_1(local, played)
    before = pids(local)
    for seconds, ago in ((3 * 3600, "3 h"), (7 * 86_400, "7 days")):
        began = time.time() - seconds
        os.utime(local.folder / PLAN, (began, began))
        with pytest.raises(
            CommandFailed, match=rf"nodes 1, 2, 3 began {ago} ago and was cut off; go on"
        ) as old:
            rolling(local)
        assert old.value.status == MISUSED
    assert pids(local) == before
    assert [each.node for each in rolling(local, resume=True)] == [2, 3]
    with pytest.raises(CommandFailed, match="no rolling restart was cut off; begin one"):
        rolling(local, resume=True)
    assert not (local.folder / PLAN).exists()
    assert [each.node for each in rolling(local)] == [1, 2, 3], "no old plan is left"


def test_again_begins_also_in_the_place_of_an_old_restart(local: LocalCluster, played: Played) -> None:
    cut_off_behind_node_1(local, played)
    os.utime(local.folder / PLAN, (1.0, 1.0))
    assert [each.node for each in rolling(local, again=True)] == [1, 2, 3]


def test_a_node_that_does_not_come_back_ends_it_and_the_rest_is_left_alone(
    local: LocalCluster, played: Played
) -> None:
    first = pids(local)
    config = local.description.nodes[2].config
    text = config.read_text()
    config.write_text(text + '\n[storage.options]\nmode = "dies"\n')
    played.lacking = lambda: next((each.problem for each in local.status() if each.problem), None)
    with pytest.raises(CommandFailed, match=r"node 2 did not come back: the disk is full; .* left alone"):
        rolling(local)
    assert pids(local).keys() == {1, 3}
    assert pids(local)[3] == first[3]
    config.write_text(text)
    assert [each.node for each in rolling(local)] == [2, 3]


def test_a_node_that_comes_back_and_is_not_well_ends_it(local: LocalCluster, played: Played) -> None:
    first = pids(local)
    played.lacking = lambda: None if pids(local) == first else "node 1 is not in step"
    with pytest.raises(CommandFailed, match=r"0\.2 s after the start of node 1 .*: node 1 is not in step"):
        rolling(local, timeout=0.2)
    assert {node: pid for node, pid in pids(local).items() if node > 1} == {2: first[2], 3: first[3]}


def test_a_node_that_has_to_be_killed_is_started_again_and_ends_it(
    local: LocalCluster, played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = pids(local)

    def killed(node: int) -> bool:
        local.kill(node)
        raise CommandFailed(f"node {node} did not stop within 30 s and was killed", "see its log")

    monkeypatch.setattr(local, "stop", killed)
    with pytest.raises(
        CommandFailed, match=r"node 1 did not stop .* it is back, and the other nodes were left"
    ):
        rolling(local)
    assert pids(local).keys() == {1, 2, 3}
    assert (pids(local)[1] != first[1], pids(local)[2]) == (True, first[2])


def test_there_is_one_at_a_time(local: LocalCluster, played: Played) -> None:
    def drain(_: Sequence[str], node: int, *__: Any) -> Drained:
        with pytest.raises(CommandFailed, match="another rolling restart of this cluster is under way"):
            rolling(local)
        raise CommandFailed("enough", "stop")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rolling_restart, "drain_leaders", drain)
        with pytest.raises(CommandFailed, match="enough"):
            rolling(local)
    assert len(json.loads((local.folder / PLAN).read_text())["nodes"]) == 3


def test_a_torn_plan_is_none(local: LocalCluster, played: Played) -> None:
    """It is written before the first node is stopped."""
    for torn in ("", '{"nodes": [{"node": 1', "[]", '{"nodes": [{"node": 1, "process": 7}]}'):
        (local.folder / PLAN).write_text(torn)
        assert [each.node for each in rolling(local, 1)] == [1]


def test_a_node_that_was_removed_meanwhile_is_left_out(local: LocalCluster, played: Played) -> None:
    told = iter([None, "node 1 is away"])
    played.lacking = lambda: next(told, None)
    with pytest.raises(CommandFailed, match="node 1 was not stopped"):
        rolling(local)
    local.stop(3, 5.0)
    local.description.forget(3)
    assert [each.node for each in rolling(local)] == [1, 2]


def test_what_a_call_that_was_cut_off_had_started_is_waited_for(local: LocalCluster, played: Played) -> None:
    told = iter([None, None, None, "node 2 is away"])
    played.lacking = lambda: next(told, None)
    with pytest.raises(CommandFailed, match="node 2 was not stopped: node 2 is away"):
        rolling(local)
    for node in (2, 3):  # by another command
        local.stop(node, 5.0)
        local.start(node, timeout=60.0)
    played.lacking = lambda: "node 3 is away"
    with pytest.raises(CommandFailed, match="not well since a rolling restart was cut off: node 3 is away"):
        rolling(local)
    played.lacking = lambda: None
    assert rolling(local) == []
    assert not (local.folder / PLAN).exists()


def test_all_that_is_stopped_is_started_before_one_is_waited_for(local: LocalCluster, played: Played) -> None:
    told = iter([None, None, None, "node 1 is away"])
    played.lacking = lambda: next(told, None)
    with pytest.raises(CommandFailed, match="node 2 was not stopped"):
        rolling(local)
    after = pids(local)
    local.stop(2, 5.0)
    local.stop(3, 5.0)
    played.lacking = lambda: next((each.problem for each in local.status() if each.problem), None)
    assert [each.node for each in rolling(local)] == [2, 3]
    assert pids(local)[1] == after[1]


def test_a_configuration_that_no_node_could_start_with_is_told_before_one_is_stopped(
    local: LocalCluster, played: Played
) -> None:
    first = pids(local)
    config = local.description.nodes[3].config
    config.write_text(config.read_text() + "\n[node\n")
    with pytest.raises(CommandFailed, match=r"node-3\.toml"):
        rolling(local)
    assert (played.asked, pids(local)) == ([], first)


def test_a_folder_whose_restore_broke_off_is_left_as_it_is(local: LocalCluster, played: Played) -> None:
    (local.folder / RESTORING).write_text("point 8\n")
    before = pids(local)
    for restart in (rolling, LocalCluster.restart):
        with pytest.raises(CommandFailed, match=r"a restore into .* broke off"):
            restart(local)
    assert (played.asked, pids(local)) == ([], before)


def test_a_plan_takes_the_place_of_a_longer_one(local: LocalCluster, played: Played) -> None:
    told = iter([None, "node 1 is away", None, "node 1 is away"])
    played.lacking = lambda: next(told, None)
    for nodes, again in (((), False), ((2,), True)):
        with pytest.raises(CommandFailed, match="was not stopped"):
            rolling(local, *nodes, again=again)
    assert [row["node"] for row in json.loads((local.folder / PLAN).read_text())["nodes"]] == [2]
    assert [each.node for each in rolling(local)] == [2]
