"""One cluster of three real nodes for the whole folder: starting it costs more than most tests here."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.peers.kafka_jars import NoKafka
from tests.peers.kafka_tools import KafkaTools
from tests.real_cluster import RealCluster, running_cluster


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running
        # Whatever clients did, nodes neither died nor met something they did not expect.
        assert sorted(running.pids) == [1, 2, 3]
        assert "Traceback" not in running.logs()


@pytest.fixture(scope="package")
def tools(cluster: RealCluster) -> KafkaTools:
    try:
        return KafkaTools(cluster.bootstrap)
    except NoKafka as error:
        pytest.skip(str(error))


@pytest.fixture(scope="package")
def kcat() -> str:
    found = shutil.which("kcat")
    if found is None:
        pytest.skip("kcat is not on this machine: run scripts/setup --clients as root, or install kcat")
    return found
