"""One cluster of three real nodes for the whole folder: starting it costs more than most tests here."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.matrix import Drivers
from tests.clients.one_java import ToolsInOneJava
from tests.clients.programs import Missing
from tests.cluster.real_cluster import RealCluster, running_cluster
from tests.peers.kafka_jars import NoKafka
from tests.peers.kafka_tools import KafkaTools


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running
        # Whatever clients did, nodes neither died nor met something they did not expect.
        assert sorted(running.pids) == [1, 2, 3]
        assert "Traceback" not in running.logs()


@pytest.fixture(scope="package")
def bootstrap(request: pytest.FixtureRequest) -> str:
    """Of the cluster that the matrix is tried against: ours, or the one that CLIENTS_BOOTSTRAP names."""
    other = os.environ.get("CLIENTS_BOOTSTRAP")
    if other:
        return other
    cluster: RealCluster = request.getfixturevalue("cluster")
    return cluster.bootstrap


@pytest.fixture(scope="package")
def drivers(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drivers]:
    started = Drivers(bootstrap, tmp_path_factory.mktemp("drivers"))
    yield started
    started.end()


@pytest.fixture(scope="package")
def tools(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaTools]:
    try:
        started = ToolsInOneJava(bootstrap, tmp_path_factory.mktemp("tools") / "tools.log")
    except NoKafka as error:
        pytest.skip(str(error))
    except Missing:  # it is built, and they need nothing but Java
        yield KafkaTools(bootstrap)
        return
    yield started
    started.end()


@pytest.fixture(scope="package")
def kcat() -> str:
    found = shutil.which("kcat")
    if found is None:
        pytest.skip("kcat is not on this machine: run scripts/setup --clients as root, or install kcat")
    return found


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with nothing but a shell."""
    for name in ("KAFKA_LIBS", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin")
    return tmp_path
