"""What a node says when its cluster.nodes is not what the cluster is."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from strandline.node.config.node_config import NodeConfig, PeerAddress
from strandline.node.controller.cluster_members import differences
from strandline.statemachine.controller.controller_state import NodeRegistration
from tests.controller.brokers import Brokers

THREE = tuple(PeerAddress(node, "127.0.0.1", 7100 + node) for node in (1, 2, 3))


def registered(*peers: PeerAddress, fenced: bool = False) -> dict[int, NodeRegistration]:
    return {
        peer.id: NodeRegistration(peer.id, 9, "h", 9092, peer.host, peer.port, 1, 1, 1, fenced, 0, 0)
        for peer in peers
    }


def test_what_is_the_same_is_no_difference_while_some_are_still_to_come() -> None:
    assert differences(THREE, (1, 2, 3), registered(*THREE)) == []
    assert differences(THREE, (1, 2, 3), registered(THREE[0])) == []


def test_a_node_that_was_only_added_to_the_list_is_told() -> None:
    (line,) = differences((*THREE, PeerAddress(4, "h", 1)), (1, 2, 3), registered(*THREE))
    assert line.startswith(
        "node 4 is in cluster.nodes and no part of the cluster, whose members are 1, 2, 3:"
    )
    assert "adds no node" in line


def test_a_list_that_lacks_nodes_is_old_and_does_no_harm() -> None:
    assert differences(THREE[:1], (1, 2, 3), registered(*THREE)) == []


def test_another_address_is_told_of_a_node_that_is_there() -> None:
    moved = registered(THREE[0], THREE[1], PeerAddress(3, "10.0.0.3", 7103))
    (line,) = differences(THREE, (1, 2, 3), moved)
    assert "node 3 says that its address is 10.0.0.3:7103, and cluster.nodes has 127.0.0.1:7103" in line
    gone = registered(THREE[0], THREE[1]) | registered(PeerAddress(3, "10.0.0.3", 7103), fenced=True)
    assert differences(THREE, (1, 2, 3), gone) == []


def test_a_node_that_starts_with_a_longer_list_says_so(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "cluster.nodes differs"
    with Brokers() as brokers:
        assert said not in caplog.text
        node = next(each for each in brokers.nodes if each != brokers.leader())
        brokers.crash(node)
        whole = brokers.config

        def longer(each: int) -> NodeConfig:
            config = whole(each)
            peers = (*config.cluster.nodes, PeerAddress(9, "10.0.0.9", 7109))
            return replace(config, cluster=replace(config.cluster, nodes=peers))

        monkeypatch.setattr(brokers, "config", longer)
        caplog.set_level(logging.WARNING)
        brokers.start(node)
        brokers.wait(lambda: brokers.registered(node))
    (line,) = [record.getMessage() for record in caplog.records if said in record.getMessage()]
    assert "node 9 is in cluster.nodes and no part of the cluster" in line
