"""`kafka-metadata-quorum describe` shows the controller's group of real nodes; `kafka-cluster unregister`."""

from __future__ import annotations

from typing import Final

from tests.cluster.real_cluster import RealCluster
from tests.peers.kafka_tools import TOOLS, KafkaTools, Run, ran

QUORUM: Final = f"{TOOLS}.MetadataQuorumCommand"
CLUSTER: Final = f"{TOOLS}.ClusterTool"


def test_the_controllers_voters_by_the_tool_for_it(cluster: RealCluster, tools: KafkaTools) -> None:
    described = ("--bootstrap-server", tools.bootstrap, "describe")
    status, replication = tools.together(
        [Run(QUORUM, (*described, "--status")), Run(QUORUM, (*described, "--replication"))]
    )
    told = dict(line.split(":", 1) for line in ran(status))
    told = {name: value.strip() for name, value in told.items()}
    assert told["ClusterId"] == cluster.description.cluster
    assert told["LeaderId"] in ("1", "2", "3")
    assert int(told["LeaderEpoch"]) >= 1
    assert int(told["HighWatermark"]) > 3
    assert all(f'"id": {node}, ' in told["CurrentVoters"] for node in (1, 2, 3)), told
    assert "MESH://127.0.0.1:" in told["CurrentVoters"]
    assert told["CurrentObservers"] == "[]"
    head, *rows = [line.split() for line in ran(replication) if line.strip()]
    assert head[:4] == ["NodeId", "DirectoryId", "LogEndOffset", "Lag"]
    assert sorted(row[0] for row in rows) == ["1", "2", "3"]
    assert len({row[1] for row in rows}) == 3, "each has a folder of its own"
    assert all(0 <= int(row[3]) < 100 for row in rows)
    assert sorted(row[-1] for row in rows) == ["Follower", "Follower", "Leader"]


def test_a_node_that_lives_is_not_unregistered_and_the_tool_says_why(tools: KafkaTools) -> None:
    """`tests/controller/test_removed_nodes.py` has what becomes of one that is stopped."""
    asked = ("unregister", "--bootstrap-server", tools.bootstrap, "--id")
    alive, unknown = tools.together([Run(CLUSTER, (*asked, "3")), Run(CLUSTER, (*asked, "77"))])
    assert "Node 3 is alive: stop its process first" in alive.out + alive.err
    assert "Node 77 is not registered" in unknown.out + unknown.err
    assert 0 not in (alive.code, unknown.code)
