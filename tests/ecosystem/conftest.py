"""One cluster of three real nodes for the folder, which compacts as soon as it can; tests kill its nodes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.real_cluster import RealCluster, running_cluster
from tests.ecosystem.compacting import NODE_SETTINGS


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster"), settings=NODE_SETTINGS) as running:
        yield running
        assert sorted(running.pids) == [1, 2, 3]
        assert "Traceback" not in running.logs()
