"""Nodes that are forked for tests are to the rest of the machine what nodes are that start from nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cluster.forked_nodes import ForkedCluster
from tests.cluster.real_cluster import running_cluster, wait


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_forked_node_is_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRANDLINE_LOG_FORMAT", "json")
    with running_cluster(tmp_path / "cluster") as cluster:
        assert isinstance(cluster.local, ForkedCluster)
        pids = cluster.pids
        for node, pid in pids.items():
            assert os.getsid(pid) == pid
            files = {os.readlink(f"/proc/{pid}/fd/{number}") for number in (0, 1, 2)}
            assert files == {os.devnull, str(cluster.description.nodes[node].log)}
            assert cluster.description.nodes[node].log.read_text().startswith("{"), "it has our environment"
        parents = {node: parent_of(pid) for node, pid in pids.items()}
        assert os.getpid() not in parents.values()
        assert parents[1] == parents[3] != parents[2], "replicas hash strings differently"
        cluster.kill(2)
        wait(lambda: not Path(f"/proc/{pids[2]}").exists())
        cluster.start(2)
        assert cluster.pids[2] != pids[2]
        assert parent_of(cluster.pids[2]) == parents[2]
        cluster.stop(1)
        assert "node 1 stopped" in cluster.description.nodes[1].log.read_text()
