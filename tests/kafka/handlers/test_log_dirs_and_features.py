"""DescribeLogDirs and UpdateFeatures, in every version."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from kio.schema.errors import ErrorCode

from strandline.node.kafka.handlers.update_features import features
from strandline.node.kafka.wire.apis import APIS, ApiKey
from strandline.statemachine.controller.controller_commands import FEATURE_LEVEL
from strandline.statemachine.controller.feature_levels import FEATURE
from tests.kafka.handlers.fake_cluster import Cluster
from tests.kafka.handlers.fake_node import FakeNode
from tests.runtime.jumping_loop import run

LOG_DIRS, UPDATE = ApiKey.DESCRIBE_LOG_DIRS, ApiKey.UPDATE_FEATURES


@pytest.mark.parametrize("version", range(1, APIS[LOG_DIRS].last + 1))
def test_a_node_tells_its_replicas_and_its_disk(version: int) -> None:
    async def test() -> None:
        cluster = Cluster()
        here = {one.replicas[0] for one in cluster.create("t", 3, 1).partitions}
        assert here == {1, 2, 3}
        cluster.create("u", 1, 3)
        node = FakeNode(cluster)
        (told,) = (await node.ask(LOG_DIRS, version, topics=None)).results
        assert (told.error_code, told.log_dir) == (ErrorCode.none, "/data")
        assert {one.name: len(one.partitions) for one in told.topics} == {"t": 1, "u": 1}
        if version >= 4:
            assert (told.total_bytes, told.usable_bytes) == (1000, 400)
        (told,) = (await node.ask(LOG_DIRS, version, topics=[{"topic": "u", "partitions": [0, 7]}])).results
        ((topic,), (part,)) = told.topics, told.topics[0].partitions
        assert (topic.name, part.partition_index, part.is_future_key) == ("u", 0, False)
        node.disk.error = OSError(5, "it fails")
        (told,) = (await node.ask(LOG_DIRS, version, topics=None)).results
        assert (told.error_code, told.topics) == (ErrorCode.kafka_storage_error, ())

    run(test)


def test_a_size_is_that_of_the_records_which_the_replica_refers_to() -> None:
    async def test() -> None:
        node = FakeNode()
        node.topic("t")
        (before,) = (await node.ask(LOG_DIRS, topics=None)).results
        held = SimpleNamespace(extents=SimpleNamespace(bytes=70), level_one=SimpleNamespace(bytes=30))
        with patch.object(type(node.partition()), "machine", held):
            (told,) = (await node.ask(LOG_DIRS, topics=None)).results
        assert [one.topics[0].partitions[0].partition_size for one in (before, told)] == [0, 100]

    run(test)


async def updated(
    node: FakeNode, version: int, levels: dict[str, int], *, validate: bool = False
) -> dict[str, Any]:
    """The codes by feature; version 2 has one for all."""
    rows = [
        {"feature": name, "max_version_level": level, "upgrade_type": 1} for name, level in levels.items()
    ]
    answer = await node.ask(
        UPDATE, version, timeout=timedelta(seconds=1), validate_only=validate, feature_updates=rows
    )
    if version >= 2:
        return {"": answer.error_code}
    assert answer.error_code is ErrorCode.none
    return {one.feature: one.error_code for one in answer.results}


@pytest.mark.parametrize("version", range(APIS[UPDATE].last + 1))
def test_the_level_rises_once_all_nodes_understand_it(version: int) -> None:
    async def test() -> None:
        cluster = Cluster()
        node = FakeNode(cluster)
        name = "" if version >= 2 else FEATURE
        assert await updated(node, version, {FEATURE: 2}) == {name: ErrorCode.feature_update_failed}
        assert cluster.leader.feature_level == 1
        nodes = cluster.leader._state.nodes.values()
        for known in list(nodes):
            for machine in (cluster.leader, node.controller.machine):
                machine._state.put_node(known._replace(max_feature_level=FEATURE_LEVEL))
        if version >= 1:
            await updated(node, version, {FEATURE: 2}, validate=True)
            assert cluster.leader.feature_level == 1
        other = {"group.version": 0, FEATURE: 2}
        assert ErrorCode.invalid_update_version in (await updated(node, version, other)).values()
        assert cluster.leader.feature_level == 1, "all or none"
        assert await updated(node, version, {FEATURE: 2}) == {name: ErrorCode.none}
        assert cluster.leader.feature_level == 2
        for wrong in (1, 0, 99):
            assert await updated(node, version, {FEATURE: wrong}) == {name: ErrorCode.invalid_update_version}
        node.controller.hear()
        epoch, told = features(node.controller.machine)
        assert epoch == node.controller.machine.version
        assert [one[1:] for one in told if one.name == FEATURE] == [(1, FEATURE_LEVEL, 2)]

    run(test)
